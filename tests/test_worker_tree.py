# SPDX-License-Identifier: Apache-2.0
"""Draft trees (topk > 1) against toy models (field report A14)."""
import pytest
import torch
from toy import carried, make, read, start, successor
from util import BACKENDS

from dsv4spec import ops
from dsv4spec.spec import tree
from dsv4spec.spec.options import SpeculativeConfig
from dsv4spec.spec.tree import window_rows

TREE = SpeculativeConfig(2, 2, 5)


@pytest.fixture(autouse=True, params=BACKENDS)
def backend(request):
    with ops.use_backend(request.param, missing="reference"):
        yield request.param


def best(t):
    """Wrong after multiples of 3."""
    return torch.where(t % 3 == 0, t + 40, t + 1)


def second(t):
    """Right where ``best`` is wrong, but not after multiples of 9."""
    return torch.where((t % 3 == 0) & (t % 9 != 0), t + 1, t + 60)


def tree_worker(options=TREE, **sizes):
    worker, cache = make(successor, best, options, num_draft_tokens=window_rows(options), **sizes)
    worker.nextn.second = second
    return worker, cache


def check_caches(worker, cache, row, confirmed):
    s = cache.length(row)
    assert len(confirmed) == s + 1
    assert read(cache, cache.target[0].kv_pages, row)[:, :2].tolist() == [[confirmed[i], i] for i in range(s)]
    want = [[confirmed[i + 1], i, confirmed[i], i] for i in range(s)]
    assert read(cache, cache.draft.kv_pages, row).tolist() == want


@pytest.mark.parametrize("bonus, drafts", [(9, 0), (10, 2), (3, 1), (11, 2)])
def test_the_path_through_a_sibling_is_taken_and_its_kv_moved(bonus, drafts):
    """Both children of the root wrong; best children right; the runner-up right, whose child 5 is too unlikely for the
    window; 12, and 13 as the runner-up below it. Tokens, draft KV and Target KV."""
    worker, cache = tree_worker()
    row = start(worker, cache, [bonus - 2, bonus - 1])
    confirmed = [bonus - 2, bonus - 1, bonus]
    block, = worker.decode([row])
    assert block.drafts == drafts and block.tokens == list(range(bonus + 1, bonus + 2 + drafts))
    confirmed += block.tokens
    check_caches(worker, cache, row, confirmed)
    for _ in range(10):
        confirmed += worker.decode([row])[0].tokens
        check_caches(worker, cache, row, confirmed)
    assert confirmed == list(range(confirmed[0], confirmed[0] + len(confirmed)))


def test_window_of_the_tree():
    """Root 12 (a multiple of 3): 52 and 13 are its children; 13's children come before 52's by score."""
    worker, cache = tree_worker()
    row = start(worker, cache, [11])
    worker.decode([row])
    batch = worker.target.batches[-1]
    assert batch.input_ids.tolist()[:3] == [12, 52, 13]
    assert batch.positions.tolist()[:3] == [1, 2, 2] and set(batch.positions.tolist()[3:]) == {3}
    mask = batch.tree_mask[0]
    assert mask[:3].tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0]]
    nextn = worker.nextn.batches[1]  # one draft forward over the two first drafts
    assert nextn.input_ids.tolist() == [52, 13] and nextn.positions.tolist() == [1, 1]
    assert nextn.tree_mask[0].tolist() == [[True, False], [False, True]]


TREES = [TREE, SpeculativeConfig(3, 2, 8), SpeculativeConfig(4, 3, 9), SpeculativeConfig(1, 3)]


@pytest.mark.parametrize("options", TREES)
def test_a14_rows_of_a_mixed_tree_batch_equal_their_single_runs(options):
    prompts = [[8, 9], [10], [1, 2, 3]]
    mixed, cache = tree_worker(options)
    rows = [start(mixed, cache, p) for p in prompts]
    got = [[] for _ in rows]
    for _ in range(8):
        for i, block in enumerate(mixed.decode(rows)):
            got[i].append((block.tokens, block.drafts))
    counts = {drafts for row in got for _, drafts in row}
    assert len(counts) > 1
    for prompt, row, blocks in zip(prompts, rows, got):
        alone, own = tree_worker(options)
        single = start(alone, own, prompt)
        assert [(b.tokens, b.drafts) for b in (alone.decode([single])[0] for _ in range(8))] == blocks
        confirmed = [*prompt, prompt[-1] + 1, *(t for tokens, _ in blocks for t in tokens)]
        assert carried(mixed, row)["bonus"] == confirmed[-1]
        check_caches(mixed, cache, row, confirmed)


def test_forwards_of_a_tree_round():
    worker, cache = tree_worker(SpeculativeConfig(3, 2, 8))
    row = start(worker, cache, [1])
    worker.decode([row])
    assert worker.metrics.forwards == {"target_prefill": 1, "target_decode": 0, "target_verify": 1, "nextn_extend": 2,
                                       "nextn_decode": 2}


def test_a16_tree_nodes_without_a_slot_are_not_accepted():
    worker, cache = tree_worker(max_len=16)
    row = start(worker, cache, range(1, 15))
    block, = worker.decode([row])
    assert (worker.target.batches[-1].slots >= 0).tolist() == [True, True, False, False, False]
    assert len(block.tokens) <= 2 and block.tokens[0] == 16


def test_a_node_of_the_draft_tree_sees_what_its_parent_sees():
    """The output is right whatever the drafts see, so only the mask itself tells."""
    mask = torch.zeros(2, 0, 0, dtype=torch.bool)
    for state_rows in ([[0, 0], [1, 1]], [[1, 1], [2, 3]], [[0, 1], [3, 3]]):  # beam of the level before, + 2 * request
        mask = tree._grow(mask, torch.tensor(state_rows), 2)
    first = ["100000", "010000", "011000", "010100", "011010", "010101"]
    second = ["100000", "010000", "101000", "010100", "010110", "010101"]
    assert mask.tolist() == [[[c == "1" for c in row] for row in rows] for rows in (first, second)]
