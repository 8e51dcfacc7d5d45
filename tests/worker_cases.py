# SPDX-License-Identifier: Apache-2.0
"""The whole worker loop with a device's kernels, run by its emulator: the tokens of the CPU, and ops without a kernel
there by name only. float32, greedy, batches of unlike prompts, accepted counts from none to all. A test file imports
these tests and gives them the fixture ``loop``."""
from __future__ import annotations

import contextlib
import functools
import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from graph_tape import Tape
from helped import Helped

import dsv4spec.engine
import tiny_checkpoints as tiny
from dsv4spec import Engine, SamplingParams, SpeculativeConfig
from dsv4spec.cache import ForwardMode
from dsv4spec.cli import main
from dsv4spec.demo import ASSET
from dsv4spec.ops import MissingKernel
from dsv4spec.ops.table import NO_KERNEL
from dsv4spec.spec.graphs import Graphs

GAP = 1e-3  # two best logits nearer than this may fall either way (fp32)
NEW = (14, 5, 20, 11, 8)
LENGTHS = (3, 40, 17, 1, 62)
EVERYWHERE = {"mhc_pre", "mhc_post_pre", "mhc_post", "mhc_head", "nextn_fuse_hidden", "q_norm_rope", "swa_store_kv",
              "swa_paged_attention", "moe_experts", "assign_draft_slots", "verify_tree_greedy"}
COMPRESSED = {"compress_kv", "sparse_paged_attention", "verify_metadata"}
KINDS = {  # config, and the ops that its rounds use
    "all": (dict(index_topk=64), EVERYWHERE | COMPRESSED),
    "indexed": (dict(), EVERYWHERE | COMPRESSED | {"lightning_index"}),
    "window": (dict(compress_ratios=[0, 1, 0, 0], num_hash_layers=1), EVERYWHERE),
}


@dataclass(frozen=True)
class Loop:
    """An emulated backend: its name, its kernels' folder, its emulator, orders of execution other than the first, and
    a folder for checkpoints."""

    backend: str
    folder: str
    emu: object
    orders: tuple
    tmp: Path

    @property
    def missing(self) -> frozenset[str]:
        return NO_KERNEL[self.folder]


@functools.cache
def checkpoint(kind, tmp):
    raw = tiny.raw_config(**KINDS[kind][0])
    return tiny.write(tmp / kind, raw, tiny.random_tensors(raw, f"cuda_emu {kind}"))


def prompts():
    return [[2 + (7 * i + 3 * n) % 90 for i in range(n)] for n in LENGTHS]


def generate(engine):
    return [(o.token_ids, o.accept_lengths) for o in
            engine.generate(prompts(), [SamplingParams(n, ignore_eos=True) for n in NEW])]


@functools.cache
def plain(kind, tmp):
    """Tokens of plain decoding on the CPU, and the gap of the two best logits at each."""
    engine = Engine(checkpoint(kind, tmp), speculative=None, max_len=128, backend="cpu")
    found = []
    for prompt, (tokens, _) in zip(prompts(), generate(engine)):
        ids, row = torch.tensor(prompt + tokens), engine.cache.open()
        with engine._routed():
            batch = engine.cache.batch(ForwardMode.TARGET_PREFILL, [row], ids, len(ids))
            target = engine._scheduler.worker.target
            best = target.logits(target.forward(batch, engine.cache)).topk(2).values
        engine.cache.free(row)
        found.append((tokens, (best[:, 0] - best[:, 1])[len(prompt) - 1:-1].tolist()))
    return found


def run(kind, tmp, config, backend, *, tape=None, **options):
    """Generated (tokens, accept lengths) and the engine; NextN is helped, so that rounds accept every count."""
    sequences = [p + tokens for p, (tokens, _) in zip(prompts(), plain(kind, tmp))]

    def graphs(worker, wanted):
        worker.nextn = Helped(worker.nextn, sequences, config.num_steps + 2)
        return Graphs(worker, wanted, tape, "device cpu")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dsv4spec.engine, "graphs_for", graphs)
        engine = Engine(checkpoint(kind, tmp), speculative=config, backend=backend, missing="reference", max_len=128,
                        max_running_requests=len(LENGTHS), **options)
    return generate(engine), engine


def check(kind, tmp, got):
    for i, ((tokens, _), (want, gaps)) in enumerate(zip(got, plain(kind, tmp), strict=True)):
        if tokens != want:
            at = next(j for j, (a, b) in enumerate(zip(tokens, want)) if a != b)
            assert gaps[at] < GAP, f"prompt {i} parts at token {at}, where the two best logits differ by {gaps[at]:.1e}"


CASES = [("all", SpeculativeConfig(3), 16), ("all", SpeculativeConfig(1), 64), ("all", SpeculativeConfig(5), 128),
         ("indexed", SpeculativeConfig(2), 64), ("window", SpeculativeConfig(3), 48),
         ("window", SpeculativeConfig(2, 2, 5), 16), ("window", SpeculativeConfig(3, 2, 8), 64)]


@pytest.mark.parametrize("kind, config, page_size", CASES)
def test_tokens_are_those_of_the_cpu(kind, config, page_size, loop):
    loop.emu.clear()
    got, engine = run(kind, loop.tmp, config, loop.backend, page_size=page_size)
    assert loop.emu.report() == ""
    check(kind, loop.tmp, got)
    lengths = {n for _, accepted in got for n in accepted}
    assert {1, config.num_steps + 1} <= lengths, "the case must reject all and accept all"
    tree = {"select_draft_topk", "build_tree", "move_accepted_kv"} if config.eagle_topk > 1 else set()
    used = KINDS[kind][1] | tree
    assert set(engine.metrics()["reference_ops"]) == used & loop.missing
    launched = loop.emu.counters()
    assert sum(row["launches"] for row in launched.values()) > 100
    assert len(launched) >= len(used - loop.missing) - 1  # a kernel or more for each op
    _, cpu = run(kind, loop.tmp, config, "cpu", page_size=page_size)
    assert cpu.metrics()["reference_ops"] == [] and cpu.metrics()["forwards"] == engine.metrics()["forwards"]


def test_the_order_of_execution_changes_nothing(loop):
    first = run("all", loop.tmp, SpeculativeConfig(2), loop.backend, page_size=16)[0]
    for order, seed in loop.orders:
        with loop.emu.settings(order=order, seed=seed):
            assert run("all", loop.tmp, SpeculativeConfig(2), loop.backend, page_size=16)[0] == first, (order, seed)
        assert loop.emu.report() == ""


@pytest.mark.parametrize("kind, config", [("all", SpeculativeConfig(3)), ("indexed", SpeculativeConfig(2)),
                                          ("window", SpeculativeConfig(2, 2, 5))])
def test_rounds_replay_as_graphs(kind, config, loop):
    """Captured once and replayed, kernels and the references that stand in for some: neither reads on the host."""
    got, engine = run(kind, loop.tmp, config, loop.backend, page_size=16, tape=Tape(), cuda_graph_bs=(2, 5))
    assert loop.emu.report() == ""
    check(kind, loop.tmp, got)
    counts = engine.metrics()["cuda_graphs"]
    assert counts["eager_rounds"] == {} and counts["replayed_rounds"] > 5, engine._scheduler.worker.graphs.why_not


def test_the_trained_model(loop):
    """Drafts of a NextN layer that fits its Target, against the CPU; the window of 64 is passed."""
    outputs = {}
    for backend in ("cpu", loop.backend):
        engine = Engine(ASSET, speculative=SpeculativeConfig(3), backend=backend, missing="reference", max_len=256)
        text = "An exception is raised when the argument is not a string. "
        ids = [engine.tokenizer.encode(text * n)[:length] for n, length in ((2, 9), (8, 90))]
        outputs[backend] = engine.generate(ids, SamplingParams(16, ignore_eos=True))
    for a, b in zip(*outputs.values()):
        assert a.token_ids == b.token_ids and a.accept_lengths == b.accept_lengths
    assert max(n for o in outputs["cpu"] for n in o.accept_lengths) > 1


def test_a_missing_kernel_raises_unless_asked(loop):
    engine = Engine(checkpoint("all", loop.tmp), speculative=SpeculativeConfig(2), backend=loop.backend)
    with pytest.raises(MissingKernel, match=loop.backend):
        engine.generate([[5, 6, 7]], SamplingParams(2))
    assert engine.metrics()["reference_ops"] == []


def test_the_command_line_lists_the_references(loop):
    (loop.tmp / "ids.json").write_text(json.dumps(prompts()[:2]))
    common = ["generate", "--model", str(checkpoint("all", loop.tmp)), "--prompt-ids", str(loop.tmp / "ids.json"), "--json",
              "--max-new-tokens", "4", "--ignore-eos"]
    results = {}
    for name in ("cpu", loop.backend):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            assert main([*common, "--backend", name, "--missing", "reference"]) == 0
        results[name] = json.loads(out.getvalue())
    tokens = {name: [o["token_ids"] for o in result["outputs"]] for name, result in results.items()}
    assert tokens[loop.backend] == tokens["cpu"]
    assert set(results[loop.backend]["metrics"]["reference_ops"]) == KINDS["all"][1] & loop.missing
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        assert main([*common, "--backend", loop.backend, "--missing", "error"]) == 1
    assert "dsv4spec: error: " in err.getvalue() and "Traceback" not in err.getvalue()
