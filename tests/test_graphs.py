# SPDX-License-Identifier: Apache-2.0
"""Rounds replayed as graphs equal rounds run op by op: padded batches, changed lengths, requests that join and leave
(field reports A20, A21). Captures are tapes (graph_tape.py), on which nothing of the host can change."""
import dataclasses
import functools
import logging

import pytest
import torch
from graph_tape import HostAccess, Tape, storages
from helped import Helped

import dsv4spec.engine
import tiny_checkpoints as tiny
from dsv4spec import Engine, SamplingParams, SpeculativeConfig, ops
from dsv4spec.demo import ASSET
from dsv4spec.spec.graphs import GraphOptions, Graphs, graphs_for
from dsv4spec.spec.plain import Chunk

TEXT = "An exception is raised when the argument is not a string.  " * 30


def engine(taped=False, directory=ASSET, steps=3, helped=None, **options):
    """An engine whose rounds are taped (on ``engine.tape``), or unless ``taped`` run op by op.

    ``helped``: sequences of :class:`Helped`, which then takes NextN's place."""
    tape = Tape()

    def graphs(worker, wanted):
        if helped:
            worker.nextn = Helped(worker.nextn, helped)
        return Graphs(worker, wanted, tape) if taped else graphs_for(worker, wanted)

    options = {"max_running_requests": 4, "max_len": 512, **options}
    speculative = SpeculativeConfig(steps) if isinstance(steps, int) else steps
    with pytest.MonkeyPatch.context() as m:
        m.setattr(dsv4spec.engine, "graphs_for", graphs)
        made = Engine(directory, speculative=speculative, **options)
    made.tape = tape
    return made


@functools.cache
def prompts():
    ids = engine().tokenizer.encode(TEXT)
    return [ids[i:i + n] for i, n in enumerate((5, 130, 64, 127, 1, 260, 17))]


def generate(engine, counts=(30, 7, 22, 12, 40, 3, 19)):
    """Seven requests of unlike lengths on four places: they join, leave and pad in every way."""
    params = [SamplingParams(n, ignore_eos=True) for n in counts]
    return [(o.token_ids, o.accept_lengths) for o in engine.generate(prompts(), params)]


@functools.cache
def plain():
    made = Engine(ASSET, speculative=None, max_running_requests=4, max_len=512)
    return [tokens for tokens, _ in generate(made)]


@pytest.mark.parametrize("steps, page_size", [(0, 64), (1, 16), (2, 64), (3, 128), (5, 64)])
def test_replayed_rounds_give_the_tokens_of_eager_ones(steps, page_size):
    eager, taped = engine(steps=steps, page_size=page_size), engine(True, steps=steps, page_size=page_size)
    want = generate(eager)
    assert [tokens for tokens, _ in want] == plain()
    assert generate(taped) == want
    mine, theirs = taped.metrics(), eager.metrics()
    assert mine["cuda_graphs"] == {"replayed_rounds": theirs["forwards"]["target_verify"], "eager_rounds": {}}
    assert theirs["cuda_graphs"]["eager_rounds"] == {"device cpu": theirs["forwards"]["target_verify"]}
    for key in ("forwards", "rounds", "drafted_per_position", "accepted_per_position"):
        assert mine[key] == theirs[key], key
    replays = [recording.replays for recording in taped.tape.recordings]
    assert len(replays) == 9 and all(replays), "every graph of the sizes 1, 2 and 4 must have run"


def test_plain_decoding_is_replayed_too():
    eager, taped = engine(steps=None, page_size=16), engine(True, steps=None, page_size=16)
    assert [tokens for tokens, _ in generate(taped)] == [tokens for tokens, _ in generate(eager)] == plain()
    mine, theirs = taped.metrics(), eager.metrics()
    assert mine["forwards"] == theirs["forwards"]
    assert mine["cuda_graphs"] == {"replayed_rounds": theirs["forwards"]["target_decode"], "eager_rounds": {}}
    assert [r.replays > 0 for r in taped.tape.recordings] == [True] * 3


@pytest.mark.parametrize("options", [(2, 2, 5), (3, 2, 8), (1, 3, 4)])
def test_trees_are_replayed_too(options, tmp_path):
    """A window-only Target; its NextN is helped, so that rounds accept every count."""
    raw = tiny.raw_config(compress_ratios=[0, 1, 0, 0], num_hash_layers=1)
    directory = tiny.write(tmp_path, raw, tiny.random_tensors(raw, "graphs"))
    ids = [list(range(2, 2 + n)) for n in (5, 40, 1, 17, 33)]
    params = [SamplingParams(n, ignore_eos=True) for n in (20, 9, 14, 17, 5)]
    common = dict(max_len=256, page_size=16, max_running_requests=5)
    plain = Engine(directory, speculative=None, **common).generate(ids, params)
    sequences, outputs = [prompt + o.token_ids for prompt, o in zip(ids, plain)], []
    for taped in (False, True):
        made = engine(taped, directory, SpeculativeConfig(*options), helped=sequences, **common)
        outputs.append(made.generate(ids, params))
    assert [o.token_ids for o in outputs[1]] == [o.token_ids for o in plain]
    assert [o.accept_lengths for o in outputs[1]] == [o.accept_lengths for o in outputs[0]]
    assert {1, 2} <= {n for o in outputs[1] for n in o.accept_lengths}, "the case must reject and accept"
    counts = made.metrics()["cuda_graphs"]
    assert counts["eager_rounds"] == {} and counts["replayed_rounds"] > 5


def test_preempted_requests_come_back_to_graphs():
    taped = engine(True, max_total_tokens=320, page_size=16)
    assert [tokens for tokens, _ in generate(taped)] == plain()
    assert taped.metrics()["preemptions"] and not taped.metrics()["cuda_graphs"]["eager_rounds"]


# ------------------------------------------------------------------------------------------------------- worker level
@pytest.fixture
def routed():
    with ops.use_backend("cpu", missing="error"), torch.inference_mode():
        yield


def prefilled(lengths, options=GraphOptions(), **engine_options):
    """(worker, cache rows) of requests of these lengths; without ``options`` the worker runs op by op."""
    made = engine(max_running_requests=8, **engine_options)
    worker, ids = made._scheduler.worker, made.tokenizer.encode(TEXT)
    worker.tape = Tape()
    worker.graphs = Graphs(worker, options, worker.tape) if options else None
    rows = [made.cache.open() for _ in lengths]
    worker.prefill([Chunk(row, ids[row:row + n]) for row, n in zip(rows, lengths)])
    return worker, rows


def pools(cache) -> list[torch.Tensor]:
    """Every byte that requests leave in the caches, [rows, columns] each."""
    found = []
    for layer in (*cache.target, cache.draft):
        found += [x.flatten(0, 1) for x in (layer.kv_pages, layer.c_pages, layer.index_pages) if x is not None]
        found += [s.data.flatten(0, 1) for s in (layer.state, layer.index_state) if s is not None]
    return found


def changed(before, after) -> list[list[int]]:
    return [(a.view(torch.int32) != b.view(torch.int32)).any(1).nonzero().flatten().tolist()
            for a, b in zip(before, after)]


def test_a20_padding_of_a_graph_reads_and_writes_nothing(routed):
    """3 real rows padded to 8. Padding keeps length 0, slot and page -1; the graph changes the very rows of the pools that
    an eager round of the three changes, and no other byte; NaN in the padding's inputs leaves the tokens equal."""
    lengths = (66, 10, 127)
    taped, rows = prefilled(lengths, GraphOptions(cuda_graph_bs=(8,)))
    eager, _ = prefilled(lengths, None)
    graph, before = taped.graphs.graphs[8], [p.clone() for p in pools(taped.cache)]
    for carried in graph.carried.values():
        carried.fill_(float("nan") if carried.is_floating_point() else 0)
    got, want = taped.decode(rows), eager.decode(rows)
    assert got == want and taped.metrics.graph_rounds == 1
    verify = graph.window.verify
    assert verify.rows.tolist() == [*rows, *[-1] * 5]
    assert verify.seq_lens.tolist() == [*(n + 4 for n in lengths), *[0] * 5]
    assert verify.live_seq_lens.tolist()[3:] == [0] * 5
    assert verify.slots.view(8, 4)[3:].eq(-1).all() and verify.slots.view(8, 4)[:3].ge(0).all()
    assert all(t[3:].eq(-1).all() for t in (verify.table, verify.c4.table, verify.c128.table))
    for step in range(2):
        assert graph.window.step(step, None).seq_lens.tolist() == [*(n + step + 1 for n in lengths), *[0] * 5]
    mine, theirs = changed(before, pools(taped.cache)), changed(before, pools(eager.cache))
    assert mine == theirs and any(mine)
    for a, b in zip(pools(taped.cache), pools(eager.cache)):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)
    for _ in range(12):
        assert taped.decode(rows) == eager.decode(rows)


def test_a20_an_all_padding_graph_changes_nothing(routed):
    taped, rows = prefilled((66, 10), GraphOptions(cuda_graph_bs=(4,)))
    graph, before = taped.graphs.graphs[4], [p.clone() for p in pools(taped.cache)]
    graph.window.fill([])
    for replay in graph._replays:
        replay()
    assert not any(changed(before, pools(taped.cache)))
    assert taped.decode(rows)


def test_a21_replay_follows_lengths_and_tables_not_the_capture(routed):
    """Windows of 3 rows, captured on padding, replayed at [10, 20] and then at [33, 7] with other tables in the same
    buffers: both equal eager rounds, every address stays, and nothing reads a tensor on the host."""
    taped, rows = prefilled((10, 20), GraphOptions(cuda_graph_bs=(2,)), steps=2, page_size=16)
    eager, _ = prefilled((10, 20), None, steps=2, page_size=16)
    graph = taped.graphs.graphs[2]
    window = graph.window

    def held():
        return sorted(storages(graph.carried, graph.picked, graph.drafted, graph.verified, window.verify,
                               [t for t in vars(window).values() if isinstance(t, torch.Tensor)],
                               [t.device for t in window._tables.values()], taped.nextn.target.buffers))

    addresses, tables = held(), []
    assert len(addresses) > 20
    for round_ in range(3):
        assert taped.decode(rows) == eager.decode(rows)
        tables.append(graph.window.verify.table.tolist())
        assert held() == addresses, "a buffer moved"
        if round_ == 0:  # both end; others take their rows, at other lengths and with other pages
            for worker in (taped, eager):
                ids = engine().tokenizer.encode(TEXT)
                for row in rows:
                    worker.cache.free(row)
                first, second = worker.cache.open(), worker.cache.open()
                worker.prefill([Chunk(second, ids[9:42])])
                worker.prefill([Chunk(first, ids[3:10])])
            rows = [second, first]
            assert [taped.cache.length(row) for row in rows] == [33, 7]
    assert tables[0] != tables[1] and taped.metrics.graph_rounds == 3
    for recording in taped.tape.recordings:
        recording.owned = storages(taped)
        recording.check_inputs()  # what the captures read is still what the worker holds


def test_what_changes_on_the_host_cannot_hide_in_a_graph(routed, monkeypatch):
    """A capture that reads a length, or makes a tensor from a list, fails; the rounds then run op by op and say so."""
    worker, rows = prefilled((10, 20), None)
    right = worker._draft
    for wrong in (lambda window, *a: right(window, *a) if window.live.sum().item() >= 0 else None,
                  lambda window, *a: right(window, *a) if torch.tensor([1]) is not None else None):
        monkeypatch.setattr(worker, "_draft", wrong)
        worker.graphs = Graphs(worker, GraphOptions(), Tape())
        assert not worker.graphs.graphs and "capture of batch size 8 failed: aten::" in worker.graphs.why_not
    assert issubclass(HostAccess, RuntimeError)
    monkeypatch.undo()
    blocks = worker.decode(rows)
    assert len(blocks) == 2 and list(worker.metrics.eager_rounds) == [worker.graphs.why_not]


def test_rounds_without_a_graph_run_eagerly_and_say_why(routed, caplog):
    worker, rows = prefilled((10, 20, 5, 140), GraphOptions(cuda_graph_max_bs=2), max_len=150)
    eager, _ = prefilled((10, 20, 5, 140), None, max_len=150)
    with caplog.at_level(logging.INFO, logger="dsv4spec"):
        for batch, steps in ((rows[:3], 3), (rows[:3], 3), (rows[:2], 1), (rows[3:], 3), (rows[3:], 3), (rows[:2], 3)):
            assert worker.decode(batch, num_steps=steps) == eager.decode(batch, num_steps=steps)
            if eager.cache.length(rows[3]) > 145:
                break
    report = worker.metrics.report()["cuda_graphs"]
    assert report["eager_rounds"]["batch size not captured (1, 2 are)"] == 2
    assert report["eager_rounds"]["num_steps other than 3"] == 1 and report["replayed_rounds"] >= 1
    while eager.cache.length(rows[3]) <= 146:
        assert worker.decode(rows[3:]) == eager.decode(rows[3:])
    assert worker.decode(rows[3:]) == eager.decode(rows[3:])
    assert worker.metrics.eager_rounds["a request near max_len"] >= 1
    said = [r.message for r in caplog.records if "runs op by op" in r.message]
    assert len([m for m in said if "batch size" in m]) == 1, "each reason is logged once"


@pytest.mark.parametrize("options, most, sizes", [
    (GraphOptions(), 1, [1]), (GraphOptions(), 8, [1, 2, 4, 8]), (GraphOptions(), 20, [1, 2, 4, 8, 16, 20]),
    (GraphOptions(cuda_graph_max_bs=5), 20, [1, 2, 4, 5]), (GraphOptions(cuda_graph_bs=(3, 7, 99)), 20, [3, 7]),
    (GraphOptions(cuda_graph_max_bs=6, cuda_graph_bs=(3, 7)), 20, [3])])
def test_sizes(options, most, sizes):
    assert options.sizes(most) == sizes


def test_options():
    for wrong, text in ((dict(cuda_graph_max_bs=0), "cuda_graph_max_bs: expected at least 1, got 0"),
                        (dict(cuda_graph_bs=[]), "cuda_graph_bs: expected"), (dict(cuda_graph_bs=[0, 1]), "cuda_graph_bs")):
        with pytest.raises(ValueError, match=text):
            Engine(ASSET, **wrong)
    worker = engine(disable_cuda_graph=True)._scheduler.worker
    assert worker.graphs.why_not == "disabled" and not worker.graphs.graphs
    assert graphs_for(worker, GraphOptions()).why_not == "device cpu"
    assert dataclasses.replace(GraphOptions(), disable_cuda_graph=True) == GraphOptions(True)


def test_exact_sizes_only_without_padding(routed):
    worker, rows = prefilled((10, 20, 5), GraphOptions(cuda_graph_bs=(2, 4), disable_cuda_graph_padding=True))
    worker.decode(rows)
    worker.decode(rows[:2])
    assert worker.metrics.graph_rounds == 1
    assert worker.metrics.eager_rounds == {"batch size not captured (2, 4 are)": 1}
