# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec bench``: every op has cases, their formulas, what is measured and what the JSON states."""
import json
import math

import pytest
import torch
from bench_util import ROOFS, bench, first_case, short  # noqa: F401
from dsv4spec import bench as command
from dsv4spec import bench_cases, bench_check, bench_measure, bench_roofs, ops
from dsv4spec.bench_timing import Clock
from dsv4spec.ops.table import NO_KERNEL

MEASURE = bench_roofs.measure
CPU = sorted(set(ops.OPS) - NO_KERNEL["cpu"])


# -------------------------------------------------------------------------------------------------------------- cases
@pytest.mark.parametrize("size", bench_cases.SIZES)
def test_every_op_has_cases(size):
    assert {c.op for c in bench_cases.cases(size)} == set(ops.OPS)


def test_formulas_against_counts_by_hand():
    """Nothing is allocated: bytes and operations are data of a case."""
    for name, d, heads in (("flash", 4096, 64), ("pro", 7168, 128)):
        found = {(c.op, c.label): c for c in bench_cases.cases(name)}
        fuse = found["nextn_fuse_hidden", "T=16 bf16"]
        assert fuse.goal == "memory" and fuse.flops_of == {"bfloat16": 2 * 16 * d * d * 5}
        assert fuse.bytes == 2 * (2 * d * d) + 2 * d * 2 + 2 * 16 * d * (1 + 4 + 4)
        assert found["nextn_fuse_hidden", "T=16 e4m3"].bytes == fuse.bytes - 2 * d * d + 2 * (d // 128) ** 2
        assert found["mhc_post", "T=4096"].bytes == 4096 * (2 * d * 9 + 80)
        assert found["mhc_pre", "T=4096"].goal == found["mhc_post_pre", "T=4096"].goal == "memory"
        verify = found["swa_paged_attention", "verify B=64 rows=4"]
        assert verify.goal == "half" and verify.flops == 64 * 4 * heads * 128 * 512 * 4
        assert found["build_tree", "B=1024"].goal == found["move_accepted_kv", "B=64"].goal == "quick"
        assert found["move_accepted_kv", "B=1024"].goal == "memory"
        index = found["lightning_index", "B=16 rows=4 length=8192"]
        assert index.flops == 2 * 64 * 64 * 129 * 2048 and index.write == 4 * 64 * (512 if name == "flash" else 1024)
        experts, inter = found["moe_experts", "T=4"], 2048 if name == "flash" else 3072
        products = 2 * 4 * 7 * d * inter  # of a matrix: six experts and a shared one
        assert experts.flops_of == {"bfloat16": 2 * products, "float32": products} and experts.flops == 3 * products
        assert experts.read == 2 * 9 * 3 * d * inter + 2 * 4 * d + 4 * 6 * 12  # all eight in memory, and the shared one


@pytest.mark.parametrize("length", [1, 5, 125, 127, 128, 2000])
def test_a_short_context_is_no_whole_window(length):
    """Of a file's cases: three rows behind few tokens see those and themselves, not 128 keys."""
    from dsv4spec import bench_sweep  # noqa: F401  (fills SPECS)

    visible = [min(128, length + j + 1) for j in range(3)]
    given = dict(B=2, rows=3, length=length)
    window = bench_cases.case("swa_paged_attention", "flash", **given)
    assert window.flops == 4 * 64 * 512 * 2 * sum(visible)
    both = bench_cases.case("sparse_paged_attention", "flash", ratio=4, **given)
    assert both.flops == 4 * 64 * 512 * 2 * (sum(visible) + 3 * min(512, length // 4))
    whole = bench_cases.case("swa_paged_attention", "flash", B=2, rows=3, length=4000)
    keys = len(set().union(*(range(length + j + 1 - n, length + j + 1) for j, n in enumerate(visible))))
    assert whole.read - window.read == 2 * 2 * 512 * (130 - keys)


@pytest.mark.parametrize("name", sorted(ops.OPS))
def test_bytes_are_not_more_than_the_tensors_have(name):
    """And written bytes are those of the results, where an op returns them all anew."""
    for case in {c.label: c for c in bench_cases.cases("tiny") if c.op == name}.values():
        args, kwargs = case.make("cpu")
        size = lambda value: sum(t.numel() * t.element_size() for t in bench_check.tensors(value))  # noqa: E731
        out = bench_measure.reference_of(name)(*args, **kwargs)
        assert 0 < case.read <= size((args, kwargs)) + 64 * sum(1 for _ in bench_check.tensors(args)), case.label
        if name in ("mhc_pre", "mhc_post", "mhc_post_pre", "mhc_head", "q_norm_rope", "nextn_fuse_hidden", "moe_experts",
                    "swa_paged_attention", "sparse_paged_attention", "lightning_index", "select_draft_topk",
                    "verify_tree_greedy", "verify_positions_padding", "assign_draft_slots"):
            assert case.write == size(out), case.label


def test_list_shows_formulas_and_measures_nothing(capsys, monkeypatch):
    monkeypatch.setattr(bench_measure, "measure", None)
    assert bench("mhc_post", "--list") == 0
    text = capsys.readouterr().out
    assert "bytes read     e*T*d*(1 + hc) + 4*T*(hc + hc*hc)" in text and "T=4096" in text and "mhc_pre" not in text
    assert "flops, float32 2*T*hc*d*(hc + 1)" in text and "flops, dtype" not in text
    assert bench("moe_experts", "swa_paged_attention", "--list") == 0
    text = capsys.readouterr().out
    assert "flops, dtype   4*T*d*(experts*inter + shared)\n  flops, float32 2*T*d*(experts*inter + shared)\n" in text
    assert "seen           sum over rows" in text

# -------------------------------------------------------------------------------------------------- what is measured
def test_every_op_is_measured(tmp_path, capsys, monkeypatch):
    """The first case of each; the JSON has what a reader needs to judge or repeat it."""
    monkeypatch.setattr(command, "chosen", lambda args: [first_case(name) for name in sorted(ops.OPS)])
    file = tmp_path / "ops.json"
    assert bench("--backend", "cpu", "--json", file) == 0
    result, text = json.loads(file.read_text()), capsys.readouterr().out
    assert result["refused"] == result["not_measured"] == []
    assert [line["op"] for line in result["lines"]] == CPU
    assert {name.split()[0] for name in result["no_kernel"]} == NO_KERNEL["cpu"]
    assert result["schema"] == 1 and result["seeds"] == [0, 1] and result["backend"] == "cpu" and not result["emulated"]
    assert result["dsv4spec"]["git_hash"] and result["versions"]["torch"] == torch.__version__
    assert result["machine"]["device"] and "driver" in result["machine"] and result["threads"]["torch"] >= 1
    assert result["roofs"] == ROOFS.report()
    for line in result["lines"]:
        case = first_case(line["op"])
        for row in (line, line["against"]["torch"]):
            assert 0 < row["min_us"] <= row["p10_us"] <= row["median_us"] <= row["p90_us"] and row["samples"] >= 2
            assert isinstance(row["unstable"], bool)
        assert line["params"] == case.params and line["bytes_read"] + line["bytes_written"] == case.bytes
        assert 0 < line["kernel_us"] < line["median_us"] and line["against"]["torch"]["kernel_us"] is None
        assert math.isclose(line["gb_per_s"], case.bytes / line["kernel_us"] / 1e3)
        taken = line["median_us" if line["roof"] == "call" else "kernel_us"]
        assert math.isclose(line["fraction_of_roof"], max(line["floors_us"].values()) / taken)
        assert line["roof"] == max(line["floors_us"], key=line["floors_us"].get)
        assert math.isclose(line["against"]["torch"]["times_ours"],
                            line["against"]["torch"]["median_us"] / line["call"]["median_us"])
        assert f"{line['op']} tiny {line['case']}" in text
    assert "x torch" in text and "without a kernel" in text


def test_the_roof_that_binds():
    post, fuse = first_case("mhc_post"), bench_cases.case("nextn_fuse_hidden", "flash", T=1024)
    assert ROOFS.binds(bench_cases.case("mhc_post", "flash", T=64))[0] == "copy"
    assert ROOFS.binds(post) == ("call", 1e-6)
    assert ROOFS.binds(fuse) == ("bfloat16", fuse.flops / 4e11)
    read = bench_cases.case("nextn_fuse_hidden", "flash", T=1)
    assert ROOFS.binds(read) == ("read", read.bytes / 2e10)
    experts = [bench_cases.case("moe_experts", "flash", T=64, dtype=dtype) for dtype in ("bfloat16", "float32")]
    count = experts[0].flops
    assert ROOFS.binds(experts[0]) == ("bf16+f32", pytest.approx(count * (2 / 4e11 + 1 / 1e11) / 3))
    assert ROOFS.binds(experts[1]) == ("float32", count / 1e11)


def test_roofs_that_moved_are_said(monkeypatch, capsys):
    import dataclasses

    given = iter([ROOFS, dataclasses.replace(ROOFS, copy_bytes_per_s=2e10, call_s=1.05e-6)])
    monkeypatch.setattr(bench_roofs, "measure", lambda clock, small: next(given))
    assert bench("build_tree", "--shapes", "tiny", "--backend", "cpu", "--against", "none", "--cases", "B=1") == 0
    assert "rates changed meanwhile: copy_bytes_per_s 1e+10 to 2e+10\n" in capsys.readouterr().out


def test_roofs_are_measured():
    """By a clock that stands still but for a step each time it is looked at: the rates are sizes over that step."""
    ticks = iter(range(10 ** 9))
    roofs = MEASURE(Clock(torch.device("cpu"), lambda: next(ticks) * 1e-3), small=True)
    assert math.isclose(roofs.copy_bytes_per_s, 8 * 2 ** 20 / 1e-3) and math.isclose(roofs.read_bytes_per_s, 4 * 2 ** 20 / 1e-3)
    assert math.isclose(roofs.float32_flops_per_s, 2 * 256 ** 3 / 1e-3) and math.isclose(roofs.call_s, 1e-3)


def test_other_backends_and_dtypes(tmp_path):
    file = tmp_path / "ops.json"
    assert bench("mhc_post", "--shapes", "tiny", "--backend", "reference", "--dtype", "float32", "--against", "none",
                 "--json", file) == 0
    lines = json.loads(file.read_text())["lines"]
    assert [line["params"]["dtype"] for line in lines] == ["float32"] * len(lines) and lines[0]["against"] == {}


def test_time_that_is_over_is_said(monkeypatch, tmp_path):
    file = tmp_path / "ops.json"
    clock = iter([0.0] + [1e9] * 1000)
    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
    assert bench("mhc_post", "--shapes", "tiny", "--backend", "cpu", "--budget", 5, "--json", file) == 0
    result = json.loads(file.read_text())
    assert not result["lines"] and result["not_measured"][0] == "mhc_post tiny T=1"


def test_a_baseline_marks_what_is_slower(tmp_path, capsys):
    file = tmp_path / "before.json"
    args = "mhc_post", "--shapes", "tiny", "--backend", "cpu", "--against", "none"
    assert bench(*args, "--json", file) == 0
    before = json.loads(file.read_text())
    before["lines"] = before["lines"][:1]
    before["lines"][0]["median_us"] = 1e-6  # nothing is as quick
    file.write_text(json.dumps(before))
    capsys.readouterr()
    assert bench(*args, "--baseline", file, "--json", tmp_path / "now.json") == 0
    text = capsys.readouterr().out
    assert text.count("of the baseline's time SLOWER") == 1 and "1 slower than 1.15 times the baseline" in text
    first, second = json.loads((tmp_path / "now.json").read_text())["lines"]
    assert math.isclose(first["times_baseline"], first["median_us"] / 1e-6) and second["times_baseline"] is None
    file.write_text("[]")
    assert bench(*args, "--baseline", file) == 1 and "expected what --json wrote" in capsys.readouterr().err
