# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec bench ops`` on the CPU at tiny sizes: the code path that a GPU runs, less its clock. What it prints, what it
refuses, and that every op with a CUDA kernel is in it."""
import json
import math
import sys
import types

import pytest
import torch
from dsv4spec import bench_cases, bench_ops, bench_peers, bench_timing, ops
from dsv4spec.cli import main
from dsv4spec.ops.table import NO_KERNEL


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(bench_timing, "REPEATS", 2)
    monkeypatch.setattr(bench_timing, "SECONDS", 1e-4)


def bench(*args):
    return main(["bench", "ops", "--device", "cpu", "--sizes", "tiny", "--compile", "none", *map(str, args)])


def test_every_op_with_a_cuda_kernel_is_measured(tmp_path, capsys):
    file = tmp_path / "ops.json"
    assert bench("--json", file) == 0
    result, text = json.loads(file.read_text()), capsys.readouterr().out
    assert result["refused"] == result["not_measured"] == []
    assert {line["op"] for line in result["lines"]} >= set(ops.OPS) - NO_KERNEL["cuda"]
    for line in result["lines"]:
        for key in ("us", "call_us", "eager_us", "floor_us", "fraction"):
            assert math.isfinite(line[key]) and line[key] > 0, (line, key)
        assert math.isclose(line["fraction"], line["floor_us"] / line["us"])
        memory = line["bytes"] / result["roofs"]["copy_bytes_per_s"]
        products = line["flops"] / result["roofs"]["matmul_flops_per_s"]
        assert line["binds"] == ("memory" if memory >= products else "products")
        assert f"{line['op']} tiny {line['case']}" in text
    assert " binds, " in text and "goals met" in text


@pytest.mark.parametrize("name", sorted(set(ops.OPS) - NO_KERNEL["cuda"]))
def test_a_wrong_result_is_not_timed(name, tmp_path, monkeypatch, capsys):
    right = getattr(ops, name)

    def wrong(*args, **kwargs):
        out = right(*args, **kwargs)
        changed = bench_timing.tensors(out) or [args[-1] if name == "swa_store_kv" else args[0]]
        worst = max(changed, key=lambda t: t.numel()).view(-1)
        worst[worst.numel() // 2] += 1 if worst.dtype != torch.bool else ~worst[worst.numel() // 2]
        return out

    if name == "build_tree":  # its bool mask is no place for a sum; the tokens are
        wrong = lambda *a, **k: (lambda out: (out[0].add_(1), out)[1])(right(*a, **k))  # noqa: E731
    monkeypatch.setattr(ops, name, wrong)
    file = tmp_path / "ops.json"
    assert bench("--ops", name, "--json", file) == 1
    result = json.loads(file.read_text())
    assert result["lines"] == [] and result["refused"] and "REFUSED" in capsys.readouterr().out


def test_flash_and_pro_have_the_cases_of_the_goals():
    """Of the tuned sizes nothing is allocated here: bytes and operations are data of a case."""
    for name, d, heads in (("flash", 4096, 64), ("pro", 7168, 128)):
        cases = list(bench_cases.cases(bench_cases.SIZES[name]))
        found = {(c.op, c.label): c for c in cases}
        fuse = found["nextn_fuse_hidden", "T=16 bf16"]
        assert fuse.goal == "memory" and fuse.bytes == 4 * d * d + 16 * d * 2 * 9 and fuse.flops == 2 * 16 * d * d * 5
        assert found["nextn_fuse_hidden", "T=16 e4m3"].bytes == fuse.bytes - 2 * d * d
        assert found["mhc_pre", "T=4096"].goal == found["mhc_post_pre", "T=4096"].goal == "memory"
        assert found["mhc_post", "T=4096"].bytes == 4096 * d * 2 * 9
        assert found["swa_paged_attention", "decode B=512 rows=1"].goal == "memory"
        verify = found["swa_paged_attention", "verify B=64 rows=4"]
        assert verify.goal == "half" and verify.flops == 64 * 4 * heads * 128 * 512 * 4
        assert found["build_tree", "B=1024"].goal == "quick"
        assert {c.op for c in cases} >= set(ops.OPS) - NO_KERNEL["cuda"]


def test_time_that_is_over_is_said(monkeypatch, tmp_path):
    file = tmp_path / "ops.json"
    clock = iter([0.0] + [1e9] * 1000)
    monkeypatch.setattr(bench_ops.time, "monotonic", lambda: next(clock))
    assert bench("--ops", "mhc_post", "--json", file) == 0
    result = json.loads(file.read_text())
    assert not result["lines"] and result["not_measured"][0] == "mhc_post tiny T=1"


def test_a_compiler_or_peer_that_fails_is_a_figure_less(tmp_path, monkeypatch):
    file = tmp_path / "ops.json"
    monkeypatch.setattr(torch, "compile", lambda *a, **k: 1 / 0)
    monkeypatch.setattr(bench_peers, "PEERS", {"mhc_post": [("json", bench_peers._mhc_post), ("json", peer)]})
    assert main(["bench", "ops", "--device", "cpu", "--sizes", "tiny", "--ops", "mhc_post", "--json", str(file)]) == 0
    line = json.loads(file.read_text())["lines"][0]
    assert line["compiled_us"] is None and line["compile_why_not"] == "ZeroDivisionError: division by zero"
    assert line["peers"]["json.mhc_post"]["us"] is None and "tile_kernels" in line["peers"]["json.mhc_post"]["why_not"]
    assert line["peers"]["json.peer"]["us"] > 0


def peer(y, residual, post, comb):
    return lambda: ops.mhc_post(y, residual, post, comb), lambda want: want


def test_flash_mla_is_asked_for_the_same_keys(monkeypatch):
    """The list of keys that the peer gets, by a stand-in that attends over it."""
    def sparse(q, kv, index, scale, d_v, attn_sink):
        out = torch.zeros_like(q)
        for t in range(q.shape[0]):
            keys = kv[index[t, 0][index[t, 0] >= 0].long(), 0].float()
            x = torch.cat((q[t].float() @ keys.T * scale, attn_sink[:, None]), 1).softmax(-1)
            out[t] = (x[:, :-1] @ keys).to(q.dtype)
        return out, None, None

    monkeypatch.setitem(sys.modules, "flash_mla", types.SimpleNamespace(flash_mla_sparse_fwd=sparse))
    [case] = [c for c in bench_cases.cases(bench_cases.SIZES["tiny"]) if c.label == "verify B=2 rows=4"]
    args, kwargs = case.make(torch.device("cpu"))
    call, pick = bench_peers._flash_mla_sparse_fwd(*args, **kwargs)
    assert bench_timing.difference(call(), pick(ops.swa_paged_attention(*args, **kwargs))) is None


def test_wrong_options_are_one_line(capsys):
    assert main(["bench", "ops", "--device", "cpu", "--sizes", "huge"]) == 1
    assert "--sizes: expected some of flash, pro, tiny, got huge" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main(["bench", "ops"]) == 1 and "torch sees no GPU" in capsys.readouterr().err
