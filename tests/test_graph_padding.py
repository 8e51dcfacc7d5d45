# SPDX-License-Identifier: Apache-2.0
"""One worker's rounds as graphs: what padding, changed lengths and tables, and the host can do to them (A20, A21)."""
import logging

import pytest
import torch
from graph_tape import HostAccess, Tape, storages
from graphed import TEXT, engine

from dsv4spec import ops
from dsv4spec.spec.graphs import GraphOptions, Graphs
from dsv4spec.spec.plain import Chunk


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
    """3 real rows padded to 8. Padding keeps length 0, slot and page -1; the graph changes the very rows of the pools
    that an eager round of the three changes, and no other byte; NaN in the padding's inputs changes no token."""
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


def test_exact_sizes_only_without_padding(routed):
    worker, rows = prefilled((10, 20, 5), GraphOptions(cuda_graph_bs=(2, 4), disable_cuda_graph_padding=True))
    worker.decode(rows)
    worker.decode(rows[:2])
    assert worker.metrics.graph_rounds == 1
    assert worker.metrics.eager_rounds == {"batch size not captured (2, 4 are)": 1}
