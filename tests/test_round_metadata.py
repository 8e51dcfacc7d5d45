# SPDX-License-Identifier: Apache-2.0
"""What the forwards of one round are told of positions, slots and compressed entries: computed on the device from live
lengths and page tables, inside the capture, so that a replay needs nothing else. Expected values are counted by
hand."""
import dataclasses

import pytest
import tiny_checkpoints as tiny
import torch
from graph_tape import Tape
from graphed import TEXT, engine

from dsv4spec import SpeculativeConfig, ops
from dsv4spec.cache.window import StaticWindow, Window
from dsv4spec.spec.graphs import GraphOptions, Graphs
from dsv4spec.spec.plain import Chunk

LENGTHS, STEPS = (66, 10, 127), 3


@pytest.fixture
def routed():
    with ops.use_backend("cpu", missing="error"), torch.inference_mode():
        yield


def worker_of(directory=None, steps=STEPS, lengths=LENGTHS, **options):
    options |= {"directory": directory} if directory else {}
    made = engine(steps=steps, max_running_requests=8, page_size=16, **options)
    worker = made._scheduler.worker
    ids = made.tokenizer.encode(TEXT) if not directory else [2 + 7 * i % 90 for i in range(400)]
    rows = [made.cache.open() for _ in lengths]
    worker.prefill([Chunk(row, ids[row:row + n]) for row, n in zip(rows, lengths)])
    return worker, rows


def windows(worker, rows, size):
    """The window of the same round as a graph sees it (padded to ``size``), and as an eager round does."""
    n, width = worker.window_of(STEPS)
    static = StaticWindow(worker.cache, size, n, width)
    static.fill(rows)
    static.locate()
    eager = Window(worker.cache, rows, n, width)
    return static, eager


def test_each_step_of_a_draft_has_a_view_of_its_own_on_one_set_of_buffers(routed):
    """Draft locations of a multi-step draft: slots and lengths of step i are those of position s + i, none is shared
    with another step, page tables and the layer's weights are the same memory in every step."""
    worker, rows = worker_of()
    static, eager = windows(worker, rows, 5)
    table, page = static.verify.table, worker.cache.page_size
    taken = set()
    for i in range(STEPS - 1):
        ids = torch.zeros(5, dtype=torch.int64)
        step = static.step(i, ids)
        want = [int(table[r, (n + i) // page]) * page + (n + i) % page for r, n in enumerate(LENGTHS)]
        assert step.slots.tolist() == [*want, -1, -1]
        assert step.seq_lens.tolist() == [*(n + i + 1 for n in LENGTHS), 0, 0]
        assert step.positions[:3].tolist() == [n + i for n in LENGTHS] and step.c4 is step.c128 is None
        assert step.live_seq_lens.tolist() == [*LENGTHS, 0, 0] and step.table.data_ptr() == table.data_ptr()
        assert not taken & set(want)
        taken |= set(want)
        other = eager.step(i, ids[:3])
        for field in ("positions", "slots", "seq_lens", "live_seq_lens"):
            assert torch.equal(getattr(step, field)[:3], getattr(other, field)), field

    def held():
        return [t.data_ptr() for t in (worker.nextn.e_proj, worker.nextn.h_proj, worker.cache.draft.kv_pages)]

    before = held()
    worker.decode(rows)
    assert held() == before


@pytest.mark.parametrize("lengths", [(66, 10, 127), (1, 3, 4), (125, 128, 60)])
def test_compressed_entries_of_a_verify_follow_live_lengths(routed, lengths):
    """The entries that the window's rows complete, of both ratios; a request of length 0 is padding and has none."""
    worker, rows = worker_of(lengths=lengths)
    static, eager = windows(worker, rows, 4)
    n = STEPS + 1
    for ratio, view, other in ((4, static.verify.c4, eager.verify.c4), (128, static.verify.c128, eager.verify.c128)):
        want = [(p + 1 - ratio, int(view.table[r, p // ratio // view.page]) * view.page + p // ratio % view.page)
                for r, s in enumerate(lengths) for p in range(s, s + n) if (p + 1) % ratio == 0]
        some = view.locs >= 0
        assert list(zip(view.positions[some].tolist(), view.locs[some].tolist())) == want
        assert view.positions[~some].eq(0).all() and view.table[3].eq(-1).all()
        kept = other.locs >= 0
        assert torch.equal(view.locs[some], other.locs[kept])
        assert torch.equal(view.positions[some], other.positions[kept])


def test_positions_that_were_prepared_before_a_draft_are_made_anew_after_it(routed, tmp_path):
    """A tree's shape is known after its draft only: the verify forward of a captured round runs with the nodes' depths,
    not with the chain's positions that the window was filled with; so it is in every replay, whatever the tree."""
    raw = tiny.raw_config(compress_ratios=[0, 1, 0, 0], num_hash_layers=1)
    directory = tiny.write(tmp_path, raw, tiny.random_tensors(raw, "metadata"))
    worker, rows = worker_of(directory, SpeculativeConfig(2, 2, 5), (9, 30))
    seen, target = [], worker._target

    def watched(batch):
        seen.append(dataclasses.replace(batch))
        return target(batch)

    worker._target = watched
    worker.decode(rows)
    batch, lengths = seen[-1], [9, 30]
    positions = batch.positions.view(2, 5)
    depth = batch.tree_mask.view(2, 5, 5).sum(-1) - 1  # ancestors of a node
    assert torch.equal(positions, torch.tensor(lengths)[:, None] + depth)
    assert not torch.equal(positions[0], 9 + torch.arange(5)), "the tree of this case is a chain"
    worker._target = target

    taped, rows = worker_of(directory, SpeculativeConfig(2, 2, 5), (9, 30))
    taped.graphs = Graphs(taped, GraphOptions(), Tape())
    eager, _ = worker_of(directory, SpeculativeConfig(2, 2, 5), (9, 30))
    for _ in range(4):
        assert taped.decode(rows) == eager.decode(rows)
    assert taped.metrics.graph_rounds == 4
