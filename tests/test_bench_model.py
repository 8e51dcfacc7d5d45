# SPDX-License-Identifier: Apache-2.0
"""What ``dsv4spec bench`` says of an emulated backend: bytes that are counted, cycles by the formulas of
docs/benchmarks.md, written out again here, and nothing that could be taken for a measured time."""
import json
import math
import os
import subprocess
import sys

import pytest
from bench_util import bench
from emu_util import library

from dsv4spec import _C, bench_emulated, bench_model

CASES = [{"op": "swa_store_kv", "size": "tiny", "T": T} for T in (64, 128)] + [
    {"op": "nextn_fuse_hidden", "size": "tiny", "T": 3},                              # two kernels, products
    {"op": "mhc_pre", "size": "flash", "T": 1},                                       # a cluster
    {"op": "moe_experts", "size": "tiny", "T": 1}]


@pytest.fixture(scope="module", params=["cuda_emu", "ascend_emu"])
def run(request, tmp_path_factory):
    """(what --json keeps, what is printed) of CASES, by the command as a user has it: in a process of its own."""
    library(f"dsv4spec_{request.param}")
    if request.param == "cuda_emu":
        library("dsv4spec_cuda_emu", "shadow")
    folder = tmp_path_factory.mktemp("model")
    (folder / "cases.json").write_text(json.dumps(CASES))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("DSV4SPEC_EMU_", "DSV4SPEC_BACKEND"))}
    out = subprocess.run([sys.executable, "-m", "dsv4spec", "bench", "--backend", request.param, "--shapes",
                          str(folder / "cases.json"), "--json", str(folder / "out.json")],
                         env=environment, text=True, capture_output=True)
    assert out.returncode == 0, out
    return json.loads((folder / "out.json").read_text()), out.stdout


def lines(run, op):
    return [line for line in run[0]["lines"] if line["op"] == op]


def test_bytes_are_counted_and_cycles_modelled(run):
    result, text = run
    device = bench_model.H200 if result["backend"] == "cuda_emu" else bench_model.ATLAS_A2
    assert result["model"]["name"] == device.name and result["bytes_not_counted"] is None and len(result["lines"]) == 4
    assert f"is emulated: no times, but bytes that it counts, and cycles of a model of one {device} " \
           "(docs/benchmarks.md)\n" in text
    for line in result["lines"]:
        moved, fewest = line["moved_read"] + line["moved_written"], line["bytes_read"] + line["bytes_written"]
        assert math.isclose(line["over_fewest"], moved / fewest) and 0.9 < line["over_fewest"] < 2
        assert 0 < line["moved_written"] < line["moved_read"] and line["modelled"]["cycles"] > 0
        printed = next(row.split() for row in text.splitlines() if row.startswith(f"{line['op']} file {line['case']} "))
        modelled = line["modelled"]
        assert [str(line["launches"]), str(line["moved_read"]), str(line["moved_written"]), f"{line['over_fewest']:.2f}",
                f"{modelled['cycles']:.0f}", f"{modelled['us']:.2f}", modelled["binds"]] == printed[-7 - len(
                    modelled["terms"]):-len(modelled["terms"])]


def test_cycles_are_the_sum_of_their_parts(run):
    for line in run[0]["lines"]:
        modelled, parts = line["modelled"], {}
        for kernel in modelled["kernels"]:
            longest = max(kernel["parallel"], key=kernel["parallel"].get)
            for name, cycles in {**kernel["serial"], longest: kernel["parallel"][longest]}.items():
                parts[name] = parts.get(name, 0) + cycles
        assert modelled["parts"] == pytest.approx(parts) and modelled["cycles"] == pytest.approx(sum(parts.values()))
        assert parts[modelled["binds"]] == max(parts.values())
        assert modelled["us"] == pytest.approx(modelled["cycles"] / run[0]["model"]["clock"] * 1e6)
        for name, cycles in modelled["terms"].items():
            assert cycles == pytest.approx(sum({**k["serial"], **k["parallel"]}[name] for k in modelled["kernels"]))


def test_a_copy_by_hand(run):
    """swa_store_kv of T rows of 64 bf16, rotated in the last 16: rows in and out, a table row of 64 bytes and two int64
    a row, and the norm's weight of 128 bytes."""
    for line in lines(run, "swa_store_kv"):
        T, (kernel,) = line["params"]["T"], line["modelled"]["kernels"]
        if run[0]["backend"] == "cuda_emu":  # each sector once from memory, and the weight once a block of four tokens
            once = T * (128 + 128 + 64 + 16) + 128
            assert kernel["memory"] == once and kernel["blocks"] == T // 4
            assert line["moved_read"] + line["moved_written"] == once + (T // 4 - 1) * 128
            assert kernel["parallel"]["memory"] == pytest.approx(once / 4.8e12 * 1.98e9)
            again = once + (T // 4 - 1) * 128
            assert kernel["parallel"]["L2"] == pytest.approx(again / 6.65e12 * 1.98e9 * 132 / (T // 4))
            assert kernel["serial"]["launch"] == pytest.approx(3000)
            assert kernel["serial"]["latency"] == pytest.approx(472 + 29 * kernel["counts"]["barriers"] / (T // 4))
        else:
            assert kernel["memory"] == line["moved_read"] + line["moved_written"] and kernel["cache"] == 0
            assert kernel["parallel"]["memory"] == pytest.approx(kernel["memory"] / 1.8e12 * 1.8e9)
            assert kernel["serial"] == {"launch": pytest.approx(20e-6 * 1.8e9)}


def test_twice_the_rows_are_twice_the_memory_cycles(run):
    one, two = (line["modelled"] for line in lines(run, "swa_store_kv"))
    assert 1.9 < two["terms"]["memory"] / one["terms"]["memory"] < 2.05


def test_products_by_hand(run):
    (line,) = lines(run, "nextn_fuse_hidden")
    kernels = line["modelled"]["kernels"]
    assert len(kernels) == line["launches"] == (1 if run[0]["backend"] == "cuda_emu" else 2)
    (products,) = [k for k in kernels if k["parallel"]["products"]]
    if run[0]["backend"] == "cuda_emu":
        flops = products["counts"]["mma"] * 2 * 16 * 8 * 16  # rows are filled up to tiles
        assert flops > line["flops"]
        assert products["parallel"]["products"] == pytest.approx(
            flops / (989e12 * 2 / 3) * 1.98e9 * 132 / products["blocks"])
        assert products["parallel"]["arithmetic"] == 0 and products["parallel"]["shared"] > 0
    else:
        assert products["parallel"]["products"] == products["counts"]["cube_steps"] / min(24, products["blocks"])


def test_latency_is_one_of_memory_and_those_of_barriers(run):
    (line,) = lines(run, "mhc_pre")
    (kernel,) = line["modelled"]["kernels"]
    counts, blocks = kernel["counts"], kernel["blocks"]
    if run[0]["backend"] == "ascend_emu":  # no latency is documented
        assert set(kernel["serial"]) == {"launch"}
        return
    assert counts["cluster"] == blocks and counts["cluster_barriers"] >= blocks
    assert kernel["serial"]["latency"] == pytest.approx(
        472 + (29 * counts["barriers"] + 180 * counts["cluster_barriers"]) / blocks)


def test_what_goes_through_the_cache(run):
    """On a GPU all that leaves an L1, on an NPU what is not the op's tensors."""
    (line,) = lines(run, "mhc_pre")
    (kernel,) = line["modelled"]["kernels"]
    moved, counts = line["moved_read"] + line["moved_written"], kernel["counts"]
    if run[0]["backend"] == "cuda_emu":
        assert kernel["cache"] == moved
        return
    every, scratch = (sum(counts[what][pipe] for pipe in ("MTE2", "MTE3", "FIX")) for what in ("bytes", "scratch"))
    assert kernel["cache"] == scratch > 0 and kernel["memory"] == moved == every - scratch
    assert kernel["parallel"]["L2"] == pytest.approx(scratch / 7e12 * 1.8e9)


def test_nothing_looks_like_a_time(run):
    result, text = run
    assert result["emulated"] and not {"timing", "roofs", "roofs_after", "against"} & set(result)
    for line in result["lines"]:  # microseconds are in "modelled", and only there
        assert not [key for key in line if "us" in key.split("_") or "tflop" in key or "gb_per" in key or "median" in key]
    assert not [word for word in ("GB/s", "TFLOP/s", "p10", "x torch", "measured") if word in text]


# ------------------------------------------------------------------------------------------- the model by itself
def kernel(blocks=132, threads=128, smem=0, mma=0, read=1000, sectors=1000, barriers=0, wavefronts=0):
    traffic = dict(block_sectors=sectors, touched_sectors=read)
    return {"launches": 1, "blocks": blocks, "block": [threads, 1, 1], "smem": smem, "mma": mma, "ldmatrix": 0,
            "collectives": mma, "barriers": barriers * blocks, "cluster_barriers": 0, "read": traffic,
            "write": dict(block_sectors=0, touched_sectors=0), "atomic": dict(block_sectors=0, touched_sectors=0),
            "shared": dict(wavefronts=wavefronts)}


def cost(flops=0, **given):
    return bench_model.cuda({"k": kernel(**given)}, flops, (0, 0))


def test_each_resource_can_bind():
    assert cost(read=1, sectors=1).binds == "launch"
    assert cost(read=10 ** 7).binds == "memory"
    assert cost(sectors=10 ** 7).binds == "L2"
    assert cost(mma=10 ** 7).binds == "products"
    assert cost(flops=10 ** 10).binds == "arithmetic"
    assert cost(wavefronts=10 ** 8).binds == "shared"
    assert cost(barriers=10 ** 4).binds == "latency"


def test_blocks_that_do_not_fill_the_device():
    """One multiprocessor has a 132nd of the rates; one block more than there are takes as long as twice as many; memory is
    everybody's. Blocks that do not fit wait for others."""
    terms = {blocks: cost(blocks=blocks, mma=264).cycles_of("parallel") for blocks in (1, 132, 133, 264)}
    assert terms[1]["products"] == pytest.approx(132 * terms[132]["products"])
    assert terms[133]["L2"] == pytest.approx(terms[132]["L2"] * 264 / 133)
    assert len({t["memory"] for t in terms.values()}) == 1
    for given, resident in ((dict(), 16), (dict(threads=32), 32), (dict(smem=100 * 1024), 2), (dict(threads=1024), 2)):
        latency = [cost(blocks=132 * n, **given).cycles_of("serial")["latency"] for n in (resident, resident + 1)]
        assert latency == [472, 944], given


def test_what_the_products_leave_is_shared_out_by_threads():
    two = {"a": kernel(blocks=100, mma=10), "b": kernel(blocks=300)}
    a, b = bench_model.cuda(two, 4096 * 10 + 4000, (0, 0)).kernels
    busiest = [132 / 100, 132 * 3 / 300]
    assert [k.parallel["arithmetic"] for k in (a, b)] == pytest.approx(
        [n / 67e12 * 1.98e9 * x for n, x in zip((1000, 3000), busiest)])


def test_without_counts_the_bytes_are_the_tables(capsys):
    """Where another flavour is loaded already, as in this process, and where there is no clang."""
    if not _C.backends()["cuda_emu"]["loadable"]:
        pytest.skip("cuda_emu is not built")
    if os.environ.get("DSV4SPEC_EMU_FLAVOUR"):
        pytest.skip("a flavour is asked for")
    assert bench("swa_store_kv", "--shapes", "tiny", "--backend", "cuda_emu") == 0
    text = capsys.readouterr().out
    assert "no times, but cycles of a model of one H200" in text
    assert "bytes are not counted: the flavour that counts them cannot be loaded beside" in text
    row = next(row.split() for row in text.splitlines() if row.startswith("swa_store_kv tiny T=20 "))
    assert row[4:7] == ["-", "-", "-"] and float(row[7]) > 3000 and " shared" not in text.splitlines()[3]


def test_why_there_are_no_counts(monkeypatch, tmp_path):
    monkeypatch.delenv("DSV4SPEC_EMU_FLAVOUR", raising=False)
    monkeypatch.setattr(bench_emulated, "LIB", tmp_path)
    monkeypatch.setattr(bench_emulated._C, "build_summary", "cuda: x\ncuda_emu shadow: not built: no clang++\n")
    assert bench_emulated.load_cuda() == ("", "cuda_emu shadow: not built: no clang++")
    monkeypatch.setenv("DSV4SPEC_EMU_FLAVOUR", "asan")
    assert bench_emulated.load_cuda() == ("asan", "DSV4SPEC_EMU_FLAVOUR=asan")
    assert os.environ["DSV4SPEC_EMU_FLAVOUR"] == "asan"
