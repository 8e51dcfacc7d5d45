# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec bench`` times no wrong result, of ours or of what it compares with."""
import json
import sys
import types

import pytest
import torch
from bench_util import bench, first_case, short  # noqa: F401
from dsv4spec import bench as command
from dsv4spec import bench_against, bench_cases, bench_check, bench_measure, bench_peers, ops
from dsv4spec.bench_timing import Clock
from dsv4spec.ops.table import NO_KERNEL

CPU = sorted(set(ops.OPS) - NO_KERNEL["cpu"])


def spoil(name, out, args):
    """Change one value of a result, or of what the op writes."""
    names = bench_measure.names_of(name)
    written = bench_check.tensors(out) or bench_measure.mutated(args, {}, names, ops.OPS[name].mutates)
    worst = max((t for t in written if t.dtype != torch.bool), key=torch.numel).view(-1)
    worst[worst.isfinite().nonzero()[-1]] += 1


@pytest.mark.parametrize("name", CPU)
def test_a_wrong_result_is_not_timed(name, tmp_path, monkeypatch, capsys):
    right = getattr(ops, name)

    def wrong(*args, **kwargs):
        out = right(*args, **kwargs)
        spoil(name, out, args)
        return out

    monkeypatch.setattr(ops, name, wrong)
    monkeypatch.setattr(Clock, "times", None)
    monkeypatch.setattr(command, "chosen", lambda args: [first_case(name)])
    file = tmp_path / "ops.json"
    assert bench("--backend", "cpu", "--json", file) == 1
    result = json.loads(file.read_text())
    assert result["lines"] == [] and "result" in result["refused"][0]["why"] and "REFUSED" in capsys.readouterr().out


def test_a_kept_result_is_not_timed(tmp_path, monkeypatch):
    """An implementation that gives the result of its first call again is right once."""
    right, kept = ops.mhc_post, []
    monkeypatch.setattr(ops, "mhc_post", lambda *a, **k: kept[0] if kept else kept.append(right(*a, **k)) or kept[0])
    file = tmp_path / "ops.json"
    assert bench("mhc_post", "--shapes", "tiny", "--backend", "cpu", "--json", file) == 1
    assert len(json.loads(file.read_text())["refused"]) == 2  # of both cases


def test_a_result_that_goes_wrong_while_it_is_timed_is_refused(tmp_path, monkeypatch):
    """Timed calls write into memory that holds no result yet: here nothing is written any more."""
    right = ops.mhc_post
    monkeypatch.setattr(ops, "mhc_post", lambda *a, out=None: right(*a) if out is None else out)
    file = tmp_path / "ops.json"
    assert bench("mhc_post", "--shapes", "tiny", "--backend", "cpu", "--json", file) == 1
    assert json.loads(file.read_text())["refused"][0]["why"].startswith("after it was timed: ")


def test_a_compiler_or_peer_that_fails_is_a_figure_less(tmp_path, monkeypatch, capsys):
    file = tmp_path / "ops.json"
    monkeypatch.setattr(torch, "compile", lambda *a, **k: 1 / 0)
    peers = [("json", bench_peers._mhc_post), ("json", peer), ("json", liar)]
    monkeypatch.setattr(bench_peers, "PEERS", {"mhc_post": peers})
    assert bench("mhc_post", "--shapes", "tiny", "--backend", "cpu", "--against", "compile,peers", "--json", file) == 0
    row = json.loads(file.read_text())["lines"][0]["against"]
    assert "median_us" not in row["compile"] and row["compile"]["why_not"] == "ZeroDivisionError: division by zero"
    assert "tile_kernels" in row["json.mhc_post"]["why_not"] and "off by" in row["json.liar"]["why_not"]
    assert row["json.peer"]["median_us"] > 0
    text = capsys.readouterr().out
    assert "not compared: compile: ZeroDivisionError" in text and "not compared: json.liar: " in text


def peer(y, residual, post, comb):
    return lambda: ops.mhc_post(y, residual, post, comb), lambda want: want


def liar(y, residual, post, comb):
    return lambda: ops.mhc_post(y, residual, post, comb) * 2, lambda want: want


def test_torch_compile_is_timed_and_asked_for_once_an_op(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **k: function)
    file = tmp_path / "ops.json"
    for against, times in (("compile", 2), ("compile:first", 1)):
        assert bench("mhc_post", "--shapes", "tiny", "--backend", "cpu", "--against", against, "--json", file) == 0
        lines = json.loads(file.read_text())["lines"]
        assert [("compile" in line["against"]) for line in lines].count(True) == times


@pytest.mark.parametrize("name", ("mhc_pre", "mhc_head", "moe_experts", "swa_paged_attention"))
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_transformers_computes_the_same(name, dtype):
    pytest.importorskip("transformers", reason="gate: transformers 5.23 or newer is not installed")
    case = next(c for c in bench_cases.cases("tiny", dtype) if c.op == name)
    with torch.no_grad():
        args, kwargs = case.make("cpu")
        want = (bench_measure.reference_of(name)(*args, **kwargs), None)
        clock = Clock(torch.device("cpu"))
        other = bench_against.contenders(case, [args], [kwargs], want, ["transformers"], clock)["transformers"]
    assert other.why_not is None and len(other.calls) == 1


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
    [case] = [c for c in bench_cases.cases("tiny") if c.label == "verify B=2 rows=4"]
    args, kwargs = case.make("cpu")
    call, pick = bench_peers._flash_mla_sparse_fwd(*args, **kwargs)
    assert bench_check.difference(call(), pick(ops.swa_paged_attention(*args, **kwargs))) is None
