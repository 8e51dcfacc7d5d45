# SPDX-License-Identifier: Apache-2.0
"""The EAGLE state machine against toy models: worked example 10.8 and the field reports A2, A8, A14, A16, A19, A30."""
import pytest
import torch
from toy import VOCAB, carried, make, read, start, stumbles, successor
from util import BACKENDS

from dsv4spec import ops
from dsv4spec.spec.accept import embeddable, take_blocks, window_candidates
from dsv4spec.spec.metrics import Metrics
from dsv4spec.spec.options import SpeculativeConfig
from dsv4spec.spec.plain import Chunk


@pytest.fixture(autouse=True, params=BACKENDS)
def backend(request):
    with ops.use_backend(request.param, missing="reference"):
        yield request.param


def right_for(count):
    """A draft that agrees with the Target for the first ``count`` drafts after a multiple of 10."""
    return lambda t: torch.where(t % 10 < count, t + 1, t + 40)


# ------------------------------------------------------------------------------------------------ worked example 10.8
def test_worked_timeline():
    worker, cache = make(successor, stumbles)
    row = start(worker, cache, [11, 12, 13])
    target, nextn = worker.target, worker.nextn
    assert nextn.batches[0].input_ids.tolist() == [12, 13, 14] and cache.length(row) == 3
    confirmed = [11, 12, 13, 14]
    rounds = [  # s, window, predict, accept_len, new s, select row
        (3, [14, 15, 22, 23], [15, 16, 23, 24], 2, 5, 1),
        (5, [16, 17, 18, 19], [17, 18, 19, 20], 4, 9, 3),
        (9, [20, 27, 28, 29], [21, 28, 29, 30], 1, 10, 0),
        (10, [21, 22, 23, 24], [22, 23, 24, 25], 4, 14, 3),
        (14, [25, 32, 33, 34], [26, 33, 34, 35], 1, 15, 0)]
    for s, window, predict, accept_len, after, select in rounds:
        assert cache.length(row) == s and len(confirmed) == s + 1
        block, = worker.decode([row])
        verify, extend = target.batches[-1], nextn.batches[-1]
        assert verify.input_ids.tolist() == window
        assert verify.positions.tolist() == extend.positions.tolist() == list(range(s, s + 4))
        assert extend.input_ids.tolist() == predict
        assert block.tokens == predict[:accept_len] and block.drafts == accept_len - 1
        assert carried(worker, row)["state"][0].tolist() == [predict[select], s + select]
        assert cache.length(row) == after
        confirmed += block.tokens
        assert len(confirmed) == after + 1
    assert worker.metrics.forwards == {"target_prefill": 1, "target_decode": 0, "target_verify": 5,
                                       "nextn_extend": 6, "nextn_decode": 10}


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_forwards_of_a_round(steps):
    worker, cache = make(successor, successor, SpeculativeConfig(steps))
    row = start(worker, cache, [1, 2])
    block, = worker.decode([row])
    assert block.tokens == list(range(4, 5 + steps))
    assert worker.metrics.forwards == {"target_prefill": 1, "target_decode": 0, "target_verify": 1, "nextn_extend": 2,
                                       "nextn_decode": max(0, steps - 1)}
    assert worker.target.batches[-1].input_ids.numel() == steps + 1


def test_steps_may_change_between_rounds():
    worker, cache = make(successor, successor, SpeculativeConfig(4))
    row = start(worker, cache, [1])
    out = [2]
    for steps in (4, 0, 2, 1, 0, 3):
        block, = worker.decode([row], num_steps=steps)
        assert len(block.tokens) == steps + 1
        out += block.tokens
    assert out == list(range(2, 2 + len(out)))
    check_draft_cache(worker, cache, row, [1, *out])
    with pytest.raises(ValueError, match="num_steps: expected 0..4"):
        worker.decode([row], num_steps=5)


# -------------------------------------------------------------------------------------------------------- A2
def check_draft_cache(worker, cache, row, confirmed):
    """One draft row per committed position: token i + 1, position i, from the Target's hidden row i."""
    s = cache.length(row)
    assert len(confirmed) == s + 1
    want = [[confirmed[i + 1], i, confirmed[i], i] for i in range(s)]
    assert read(cache, cache.draft.kv_pages, row).tolist() == want
    assert read(cache, cache.target[0].kv_pages, row)[:, :2].tolist() == [[confirmed[i], i] for i in range(s)]


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_a2_next_token_hidden_and_draft_cache_after_each_accept_count(accepted):
    worker, cache = make(successor, right_for(accepted))
    row = start(worker, cache, [8, 9])  # bonus 10: the drafts after it are right `accepted` times
    confirmed = [8, 9, 10]
    block, = worker.decode([row])
    assert block.drafts == accepted and block.tokens == list(range(11, 12 + accepted))
    verify_hidden = worker.nextn.hidden[-1]
    assert verify_hidden[accepted].tolist() == [10 + accepted, 2 + accepted]
    assert carried(worker, row)["state"][0].tolist() == [11 + accepted, 2 + accepted]
    assert carried(worker, row)["bonus"] == 11 + accepted
    confirmed += block.tokens
    check_draft_cache(worker, cache, row, confirmed)
    for _ in range(6):
        confirmed += worker.decode([row])[0].tokens
        check_draft_cache(worker, cache, row, confirmed)


# -------------------------------------------------------------------------------------------------------- A8
@pytest.mark.parametrize("cuts", [(10,), (4, 4, 2), (1,) * 10, (9, 1), (3, 7)])
def test_a8_chunked_prefill_gives_the_draft_cache_of_one_chunk(cuts):
    prompt = [(7 * i + 3) % VOCAB for i in range(10)]
    worker, cache = make(successor, stumbles)
    row, at, tails = cache.open(), 0, []
    for size in cuts:
        end = at + size
        following = prompt[end] if end < len(prompt) else None
        tails += worker.prefill([Chunk(row, prompt[at:end], following)])
        at = end
    bonus = prompt[-1] + 1
    assert tails[-1] == bonus and tails[:-1] == [prompt[sum(cuts[:i])] for i in range(1, len(cuts))]
    check_draft_cache(worker, cache, row, [*prompt, bonus])
    assert read(cache, cache.draft.kv_pages, row)[3].tolist() == [prompt[4], 3, prompt[3], 3]
    assert carried(worker, row)["first"].item() == stumbles(torch.tensor(bonus)).item()
    assert worker.metrics.forwards["nextn_extend"] == worker.metrics.forwards["target_prefill"] == len(cuts)


# ------------------------------------------------------------------------------------------------------- A14
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_a14_rows_of_a_mixed_batch_equal_their_single_runs(steps):
    prompts = [[10 * i + 1 + j for j in range(1 + 3 * i)] for i in range(5)]
    mixed, cache = make(successor, stumbles, SpeculativeConfig(steps))
    rows = [start(mixed, cache, p) for p in prompts]
    got = [[] for _ in rows]
    lengths = set()
    for _ in range(6):
        for i, block in enumerate(mixed.decode(rows)):
            got[i].append((block.tokens, block.drafts))
        lengths.add(tuple(len(g[-1][0]) for g in got))
    assert len({n for row in lengths for n in row}) > 1, "the case must mix accept lengths"
    for prompt, blocks in zip(prompts, got):
        alone, own = make(successor, stumbles, SpeculativeConfig(steps))
        row = start(alone, own, prompt)
        assert [(b.tokens, b.drafts) for b in (alone.decode([row])[0] for _ in range(6))] == blocks


def test_a14_a_count_past_the_segment_is_an_error():
    with pytest.raises(RuntimeError, match="accepted: expected 0..2, got 3 for request 1"):
        take_blocks([[1, 2, 3], [4, 5, 6]], [0, 3], lambda i, tokens: len(tokens))


# ------------------------------------------------------------------------------------------------------- A16
def test_a16_placeholders_never_reach_the_embedding_and_are_never_accepted():
    window = window_candidates(torch.tensor([5]), torch.tensor([[-1, VOCAB, 5]]), VOCAB, None)
    assert window.tolist() == [[5, -1, -1, 5]]
    assert embeddable(window).tolist() == [[5, 0, 0, 5]]
    for placeholder in (-1, VOCAB):
        worker, cache = make(lambda t: t * 0, successor, SpeculativeConfig(1))
        row = start(worker, cache, [1])
        carried(worker, row)["first"][0, 0] = placeholder
        block, = worker.decode([row])  # the Target says 0, which is what a placeholder is embedded as
        assert worker.target.batches[-1].input_ids.tolist() == [0, 0]
        assert block.tokens == [0] and block.drafts == 0


def test_a16_rows_past_max_len_are_not_written_and_only_their_request_drafts_less():
    worker, cache = make(successor, successor, max_len=16)
    rows = [start(worker, cache, range(1, 15)), start(worker, cache, range(1, 4))]
    before = cache.draft.kv_pages.clone()
    long, short = worker.decode(rows)
    slots = worker.target.batches[-1].slots.view(2, 4)
    assert (slots[0] >= 0).tolist() == [True, True, False, False] and (slots[1] >= 0).all()
    assert long.tokens == [16, 17] and long.drafts == 1  # window: 15 at 14, draft 16 at 15
    assert short.tokens == [5, 6, 7, 8] and short.drafts == 3
    assert worker.metrics.drafted_at == [2, 1, 1] and worker.metrics.accepted_at == [2, 1, 1]
    changed = (cache.draft.kv_pages != before).any(-1).sum()
    assert changed == 2 + 4
    assert cache.length(rows[0]) == 16


# ------------------------------------------------------------------------------------------------------- A19
@pytest.mark.parametrize("keep, drafts", [(1, 1), (2, 2), (3, 3), (4, 3)])
def test_a19_a_stop_inside_the_block_cuts_tokens_counts_and_kv(keep, drafts):
    worker, cache = make(successor, successor)
    row = start(worker, cache, [1, 2])
    block, = worker.decode([row], lambda i, tokens: keep)
    assert block.tokens == [4, 5, 6, 7][:keep] and block.drafts == drafts
    assert cache.length(row) == 2 + keep
    assert worker.metrics.verified_tokens == keep and sum(worker.metrics.accepted_at) == drafts
    check_draft_cache(worker, cache, row, [1, 2, 3, *block.tokens])


# ------------------------------------------------------------------------------------------------------- A30
def test_a30_counted_acceptance():
    metrics = Metrics(3)
    for accepted, times in enumerate([39, 1, 0, 3]):
        for _ in range(times):
            metrics.record_rounds([3], [accepted], [accepted + 1])
    report = metrics.report()
    assert (report["rounds"], report["accepted"], report["drafted"]) == (43, 10, 129)
    assert round(report["accept_length"], 4) == 1.2326
    assert round(report["accept_length_without_bonus"], 4) == 0.2326
    assert round(report["acceptance_rate"], 4) == 0.0775
    assert [round(p, 4) for p in report["acceptance_per_position"]] == [0.0930, 0.0698, 0.0698]


def test_a30_eos_third_in_five_accepted_counts_three_tokens():
    block, = take_blocks([[1, 2, 3, 4, 5, 6]], [5], lambda i, tokens: 3)
    assert block.tokens == [1, 2, 3] and block.drafts == 3


def test_a30_a_right_draft_behind_a_wrong_one_is_not_counted():
    """Drafts right, wrong, right, right: one accepted."""
    worker, cache = make(successor, lambda t: torch.where(t == 11, t + 9, torch.where(t == 20, t - 7, t + 1)),
                         SpeculativeConfig(4))
    row = start(worker, cache, [9])
    block, = worker.decode([row])
    assert worker.target.batches[-1].input_ids.tolist() == [10, 11, 20, 13, 14]
    assert block.tokens == [11, 12] and worker.metrics.accepted_at == [1, 0, 0, 0]


def test_a30_collapse_is_reported():
    worker, cache = make(successor, lambda t: t + 9)
    row = start(worker, cache, [1])
    with pytest.warns(UserWarning, match="accept length 1.0"):
        for _ in range(80):
            worker.decode([row])


def test_plain_decoding_is_one_forward_a_token():
    worker, cache = make(successor, None, None)
    row = start(worker, cache, [1, 2])
    out = [worker.decode([row])[0].tokens for _ in range(5)]
    assert out == [[4], [5], [6], [7], [8]] and cache.length(row) == 7
    assert worker.metrics.forwards == {"target_prefill": 1, "target_decode": 5, "target_verify": 0, "nextn_extend": 0,
                                       "nextn_decode": 0}
