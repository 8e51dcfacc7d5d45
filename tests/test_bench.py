# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec bench``: every op has cases, what is refused, what the JSON states, statistics on samples that are given."""
import importlib.util
import json
import math
import sys
import types

import pytest
import torch
from dsv4spec import _C, bench_against, bench_cases, bench_check, bench_measure, bench_peers, bench_roofs, bench_timing, ops
from dsv4spec import bench as command
from dsv4spec.cli import main
from dsv4spec.bench_roofs import Roofs
from dsv4spec.bench_timing import Clock, Times
from dsv4spec.ops.table import NO_KERNEL

ROOFS = Roofs(copy_bytes_per_s=1e10, read_bytes_per_s=2e10, float32_flops_per_s=1e11, bfloat16_flops_per_s=4e11, call_s=1e-6)
MEASURE = bench_roofs.measure
CPU = sorted(set(ops.OPS) - NO_KERNEL["cpu"])


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Two samples of a call each over two sets of arguments, and roofs that are given."""
    monkeypatch.setattr(bench_timing, "SECONDS", 1e-6)
    monkeypatch.setattr(bench_timing, "SAMPLE", 1e-9)
    monkeypatch.setattr(bench_timing, "LEAST", 2)
    monkeypatch.setattr(bench_timing, "FEWEST", 2)
    monkeypatch.setitem(bench_measure.MOST_SETS, "cpu", 3)
    monkeypatch.setattr(bench_roofs, "measure", lambda clock, small: ROOFS)


def bench(*args):
    return main(["bench", *map(str, args)])


def first_case(name):
    return next(c for c in bench_cases.cases("tiny") if c.op == name)


# -------------------------------------------------------------------------------------------------------------- cases
@pytest.mark.parametrize("size", bench_cases.SIZES)
def test_every_op_has_cases(size):
    assert {c.op for c in bench_cases.cases(size)} == set(ops.OPS)


def test_formulas_against_counts_by_hand():
    """Nothing is allocated: bytes and operations are data of a case."""
    for name, d, heads in (("flash", 4096, 64), ("pro", 7168, 128)):
        found = {(c.op, c.label): c for c in bench_cases.cases(name)}
        fuse = found["nextn_fuse_hidden", "T=16 bf16"]
        assert fuse.goal == "memory" and fuse.flops == 2 * 16 * d * d * 5 and fuse.math == "bfloat16"
        assert fuse.bytes == 2 * (2 * d * d) + 2 * d * 2 + 2 * 16 * d * (1 + 4 + 4)
        assert found["nextn_fuse_hidden", "T=16 e4m3"].bytes == fuse.bytes - 2 * d * d + 2 * (d // 128) ** 2
        assert found["mhc_post", "T=4096"].bytes == 4096 * (2 * d * 9 + 80)
        assert found["mhc_pre", "T=4096"].goal == found["mhc_post_pre", "T=4096"].goal == "memory"
        verify = found["swa_paged_attention", "verify B=64 rows=4"]
        assert verify.goal == "half" and verify.flops == 64 * 4 * heads * 128 * 512 * 4
        assert found["build_tree", "B=1024"].goal == "quick"
        index = found["lightning_index", "B=16 rows=4 length=8192"]
        assert index.flops == 2 * 64 * 64 * 129 * 2048 and index.write == 4 * 64 * (512 if name == "flash" else 1024)
        experts, inter = found["moe_experts", "T=4"], 2048 if name == "flash" else 3072
        assert experts.flops == 2 * 4 * 7 * 3 * d * inter  # six and a shared one
        assert experts.read == 2 * 9 * 3 * d * inter + 2 * 4 * d + 4 * 6 * 12  # all eight in memory, and the shared one


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
        assert math.isclose(line["gb_per_s"], case.bytes / line["median_us"] / 1e3)
        assert math.isclose(line["fraction_of_roof"], max(line["floors_us"].values()) / line["median_us"])
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


# ------------------------------------------------------------------------------------------------- what is refused
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


# ------------------------------------------------------------------------------------------------------- statistics
def test_percentiles_and_stability_of_given_samples():
    times = Times(tuple(i * 1e-6 for i in range(11)), 3, "calls")
    assert math.isclose(times.median, 5e-6) and math.isclose(times.percentile(0.1), 1e-6)
    assert math.isclose(times.percentile(0.95), 9.5e-6)
    assert not Times((1.0,) * 5 + (1.04,) * 5, 1, "calls").unstable
    assert Times((1.0,) * 5 + (1.06,) * 5, 1, "calls").unstable and Times((1.06,) * 5 + (1.0,) * 5, 1, "calls").unstable
    assert Times((1.0,), 1, "calls").unstable  # nothing to compare it with
    assert Times((1.0, 2.0) * 4, 1, "calls").report()["unstable"] is False  # wide, but the same all along


class Steps:
    """A clock that only calls move, by the seconds that they say."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def call(self, seconds, log=None, name=None):
        def run():
            self.now += seconds
            if log is not None:
                log.append(name)

        return run


def test_only_the_calls_are_counted_however_much_memory_they_rotate_through():
    """An empty kernel is as quick with one set of arguments as with many: nothing between calls is in the figure."""
    clock = Steps()
    times = Clock(torch.device("cpu"), clock).times({"one": [clock.call(1e-6)], "many": [clock.call(1e-6)] * 1000})
    for name in ("one", "many"):
        assert all(math.isclose(s, 1e-6, rel_tol=1e-6) for s in times[name].seconds)


def test_all_sets_take_turns_and_contenders_alternate(monkeypatch):
    clock, log = Steps(), []
    monkeypatch.setattr(bench_timing, "LEAST", 6)
    calls = {name: [clock.call(1.0, log, (name, i)) for i in range(3)] for name in ("ours", "theirs")}
    monkeypatch.setattr(bench_timing, "FEWEST", 6)
    Clock(torch.device("cpu"), clock).times(calls)
    sampled = log[-12:]  # six samples of one call of each, after the warm-up
    assert [name for name, _ in sampled] == ["ours", "theirs"] * 6
    assert {i for _, i in sampled} == {0, 1, 2}


def test_quicker_threads():
    clock = Steps()
    most = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        timed = Clock(torch.device("cpu"), clock)

        def call(one, two):
            return lambda: clock.call(one if torch.get_num_threads() == 1 else two)()

        assert timed.quicker_threads(call(1e-3, 2e-3)) == 1 and timed.quicker_threads(call(2e-3, 1e-3)) == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(most)


# ------------------------------------------------------------------------------------------------ emulators and plots
def emulated(backend, *args):
    if not _C.backends()[backend]["loadable"]:
        pytest.skip(f"{backend} is not built")
    return bench(*args, "--shapes", "tiny", "--backend", backend)


def test_the_ascend_emulator_gives_costs_and_no_time(tmp_path, capsys):
    file = tmp_path / "costs.json"
    assert emulated("ascend_emu", "mhc_post", "verify_tree_sampling", "--json", file) == 0
    result, text = json.loads(file.read_text()), capsys.readouterr().out
    assert "ascend_emu is emulated: costs that its counters give, no times" in text and "vector cycles" in text
    assert result["emulated"] and "timing" not in result and "roofs" not in result
    for line in result["lines"]:
        assert not [key for key in line if key.endswith("_us") or key == "us"]
        assert line["bytes_moved"] >= line["bytes_read"] + line["bytes_written"] and line["vector_cycles"] > 0
        assert math.isclose(line["over_fewest"], line["bytes_moved"] / (line["bytes_read"] + line["bytes_written"]))
    assert {name.split()[0] for name in result["no_kernel"]} == {"verify_tree_sampling"}


def test_the_cuda_emulator_counts_launches_and_refuses_wrong_results(tmp_path, monkeypatch, capsys):
    file = tmp_path / "costs.json"
    assert emulated("cuda_emu", "mhc_pre", "--json", file) == 0
    text, lines = capsys.readouterr().out, json.loads(file.read_text())["lines"]
    assert [line["case"] for line in lines] == ["T=1", "T=20"]
    assert all(line["blocks"] >= line["launches"] >= 1 and "median_us" not in line for line in lines)
    assert "DSV4SPEC_EMU_FLAVOUR=shadow counts sectors" in text
    right = ops.mhc_pre
    monkeypatch.setattr(ops, "mhc_pre", lambda *a, **k: tuple(t + 1 for t in right(*a, **k)))
    assert emulated("cuda_emu", "mhc_pre") == 1 and "REFUSED: result 0 is off by" in capsys.readouterr().out


def test_what_is_too_large_to_emulate_is_said(capsys):
    if not _C.backends()["ascend_emu"]["loadable"]:
        pytest.skip("ascend_emu is not built")
    assert bench("moe_experts", "mhc_post", "--cases", "T=4096", "--backend", "ascend_emu") == 0
    assert "1 too large to emulate in seconds" in capsys.readouterr().out


def test_plot_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="gate: matplotlib is not installed")
    file = tmp_path / "ops.png"
    assert bench("mhc_post", "lightning_index", "--shapes", "tiny", "--backend", "cpu", "--against", "none", "--plot",
                 file) == 0
    data = file.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) > 10000


def test_plot_without_matplotlib_or_times_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert bench("mhc_post", "--plot", tmp_path / "ops.png") == 1
    err = capsys.readouterr().err
    assert "--plot needs matplotlib: pip install 'dsv4spec[plot]'" in err and err.count("\n") == 1
    monkeypatch.undo()
    pytest.importorskip("matplotlib", reason="gate: matplotlib is not installed")
    assert bench("mhc_post", "--backend", "cuda_emu", "--plot", tmp_path / "ops.png") == 1
    assert "cuda_emu is emulated: there is no time to plot" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------- --shapes FILE
def test_shapes_from_a_file(tmp_path):
    shapes, file = tmp_path / "mine.json", tmp_path / "out.json"
    shapes.write_text(json.dumps([{"op": "mhc_post", "T": 5, "d": 72}, {"op": "alloc_extend", "size": "tiny", "B": 3, "n": 2},
                                  {"op": "q_norm_rope", "T": 2, "H": 3, "D": 32, "R": 8, "dtype": "float32"}]))
    assert bench("--shapes", shapes, "--backend", "cpu", "--against", "none", "--json", file) == 0
    lines = json.loads(file.read_text())["lines"]
    assert [line["op"] for line in lines] == ["mhc_post", "alloc_extend", "q_norm_rope"]
    assert lines[0]["params"] == {"T": 5, "d": 72, "hc": 4, "dtype": "bfloat16"} and lines[0]["size"] == "file"
    assert lines[0]["case"] == "T=5 d=72" and lines[2]["params"]["dtype"] == "float32"


@pytest.mark.parametrize("text, sentence", [
    ("{", "is not JSON"),
    ('{"op": "mhc_post"}', "expected a list of cases, got dict"),
    ("[3]", "case 0: case: expected an object, got 3"),
    ('[{"op": "mhc_pots"}]', 'case 0: op: expected one of alloc_extend, '),
    ('[{"op": "mhc_post", "T": 1}, {"op": "mhc_post", "size": "big", "T": 1}]',
     'case 1: size: expected one of flash, pro, tiny, got "big"'),
    ('[{"op": "mhc_post", "T": 1, "width": 5}]', 'case 0: width: expected one of T, d, hc, dtype, got "width"'),
    ('[{"op": "mhc_post", "T": 0}]', "case 0: T: expected an integer of at least 1, got 0"),
    ('[{"op": "mhc_post", "T": 1, "dtype": "half"}]', 'case 0: dtype: expected one of bfloat16, float32, got "half"'),
    ('[{"op": "mhc_post"}]', "case 0: T: expected a value (it has no default), got null"),
])
def test_shapes_that_are_wrong_are_one_sentence(text, sentence, tmp_path, capsys):
    shapes = tmp_path / "mine.json"
    shapes.write_text(text)
    assert bench("--shapes", shapes) == 1
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1


def test_a_case_outside_its_ops_contract_is_refused_and_the_others_are_measured(tmp_path, capsys):
    shapes, file = tmp_path / "mine.json", tmp_path / "out.json"
    shapes.write_text(json.dumps([{"op": "mhc_post", "T": 2, "d": 8, "hc": 3}, {"op": "mhc_post", "T": 10 ** 12},
                                  {"op": "mhc_post", "T": 5, "d": 72}]))
    assert bench("--shapes", shapes, "--backend", "cpu", "--against", "none", "--json", file) == 1
    result, printed = json.loads(file.read_text()), capsys.readouterr().out
    assert [line["case"] for line in result["lines"]] == ["T=5 d=72"]
    assert [row["case"] for row in result["refused"]] == ["mhc_post file T=2 d=8 hc=3", f"mhc_post file T={10 ** 12}"]
    assert "hc=3: REFUSED: mhc_post: residual: expected 1, 2 or 4 streams, got 3" in printed
    assert "allocate" in result["refused"][1]["why"] and "1 measured, 2 refused" in printed


def test_wrong_options_are_one_line(capsys, tmp_path):
    for args, sentence in ((["--shapes", "huge"], "--shapes: expected some of flash, pro, tiny or a .json file, got huge"),
                           (["mhc_pots"], "OP: expected some of alloc_extend, "),
                           (["--against", "jax"], "--against: expected some of torch, compile, "),
                           (["--against", "jax", "--backend", "cuda_emu"], "--against: expected some of torch, compile, "),
                           (["--baseline", "f.json", "--backend", "cuda_emu"], "is emulated: there is no time to compare"),
                           (["mhc_pots", "--json", str(tmp_path / "left.json")], "OP: expected some of alloc_extend, "),
                           (["mhc_post", "--cases", "T=5000"], "no case is left"),
                           (["--shapes", str(tmp_path / "no.json")], "No such file"),
                           (["--json", str(tmp_path / "nowhere" / "f.json")], "nowhere")):
        assert bench(*args) == 1
        err = capsys.readouterr().err
        assert sentence in err and err.count("\n") == 1
    if not torch.cuda.is_available():
        assert bench("--backend", "cuda") == 1 and "torch sees no GPU" in capsys.readouterr().err
    if importlib.util.find_spec("torch_npu") is None:
        assert bench("--backend", "npu") == 1 and "got npu, which is not available here" in capsys.readouterr().err
    assert bench("mhc_post", "--list", "--json", tmp_path / "left.json") == 0
    assert not list(tmp_path.iterdir()), "a run that measures nothing leaves no empty file"
