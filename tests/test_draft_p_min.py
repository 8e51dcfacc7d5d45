# SPDX-License-Identifier: Apache-2.0
"""draft_p_min: a round stops drafting when NextN is unsure, and gives out what it would have anyway."""
import pytest
import toy
from toy import make, start, stumbles, successor

from dsv4spec import Engine, SamplingParams, SpeculativeConfig
from dsv4spec.demo import ASSET
from dsv4spec.ops import use_backend

STEPS = 4


@pytest.fixture(autouse=True)
def backend():
    with use_backend("cpu"):
        yield


class Unsure(toy.ToyNextN):
    """Wrong behind every multiple of 5, and knows it: probability 0.01 there, 0.5 elsewhere."""

    def __init__(self):
        super().__init__(stumbles)

    def logits(self, state):
        sure = state[:, 0].long() % 5 != 0
        return super().logits(state) * sure[:, None]


def worker_of(p_min):
    worker, cache = make(successor, stumbles, SpeculativeConfig(STEPS, draft_p_min=p_min))
    worker.nextn = Unsure()
    return worker, cache


def test_a_round_stops_behind_an_unsure_draft():
    worker, cache = worker_of(0.3)
    row = start(worker, cache, [1, 2, 3])
    # 4 is out already. Drafts: 5 (sure), then one made from 5: unsure, and the last.
    block, = worker.decode([row])
    assert (block.tokens, block.drafts) == ([5, 6], 1)
    assert worker.metrics.drafted_at == [1, 1, 0, 0] and worker.metrics.forwards["nextn_decode"] == 1
    block, = worker.decode([row])  # 7, 8, 9, 10: all sure
    assert (block.tokens, block.drafts) == ([7, 8, 9, 10, 11], 4)
    assert worker.metrics.drafted_at == [2, 2, 1, 1] and worker.metrics.forwards["nextn_decode"] == 1 + 3
    assert cache.length(row) == 3 + 2 + 5


def test_an_unsure_first_draft_is_verified_alone():
    worker, cache = worker_of(0.3)
    row = start(worker, cache, [1, 2, 3, 4])  # 5 is out
    block, = worker.decode([row])
    assert block.tokens == [6] and worker.metrics.drafted_at == [1, 0, 0, 0]
    assert worker.metrics.forwards["nextn_decode"] == 0 and worker.target.batches[-1].input_ids.shape == (2,)


def test_a_batch_drafts_on_while_one_of_it_is_sure():
    worker, cache = worker_of(0.3)
    rows = [start(worker, cache, [1, 2, 3, 4]), start(worker, cache, [5])]
    unsure, sure = worker.decode(rows)
    assert unsure.tokens == [6] and sure.tokens == [7, 8, 9, 10, 11]
    assert worker.metrics.drafted_at == [2, 2, 2, 2]


@pytest.mark.parametrize("p_min", [0.0, 0.005, 0.3, 1.0])
def test_the_output_is_the_same_for_every_value(p_min):
    worker, cache = worker_of(p_min)
    row, out = start(worker, cache, [3]), []
    for _ in range(12):
        out += worker.decode([row])[0].tokens
    assert out == list(range(5, 5 + len(out)))
    drafted = worker.metrics.drafted_at
    assert drafted == [12] * 4 if p_min < 0.01 else drafted[0] == 12 and sum(drafted) < 4 * 12
    assert p_min < 1 or drafted[1:] == [0, 0, 0]  # nothing is that sure


def test_the_model_in_the_box():
    prompts, params = ["Return a list of", "An exception is raised when"], SamplingParams(48, ignore_eos=True)
    plain = [o.token_ids for o in Engine(ASSET, speculative=None).generate(prompts, params)]
    engine = Engine(ASSET, speculative=SpeculativeConfig(5, draft_p_min=0.25))
    assert [o.token_ids for o in engine.generate(prompts, params)] == plain
    drafted = engine.metrics()["drafted_per_position"]
    assert drafted[0] > drafted[-1]


@pytest.mark.parametrize("value", [-0.1, 1.5, True, "0.2", float("nan")])
def test_refuses(value):
    with pytest.raises(ValueError, match="SpeculativeConfig: draft_p_min: expected a number from 0 to 1, got"):
        SpeculativeConfig(3, draft_p_min=value)
    with pytest.raises(ValueError, match="draft_p_min: expected 0 for a tree"):
        SpeculativeConfig(2, 2, draft_p_min=0.2)
