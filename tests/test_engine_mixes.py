# SPDX-License-Identifier: Apache-2.0
"""Random mixes of requests on a real (random) model: whatever joins, leaves, is preempted or aborted around it, a request
gives transformers' greedy tokens, and every page comes back (architecture invariants 1 and 3; field report A10)."""
import random

import pytest
from test_generate_equality import NEW, Helper, cases, checkpoint, same, tmp  # noqa: F401 (tmp is a fixture)

from dsv4spec import Engine, SamplingParams, SpeculativeConfig


class HelperOfRunning(Helper):
    """Helper for the requests that hold the cache rows now."""

    def __init__(self, engine, truth):
        super().__init__(engine._scheduler.worker.nextn, None)
        self.engine, self.truth = engine, truth

    def logits(self, state):
        self.sequences = {r.row: self.truth[tuple(r.prompt)] for r in self.engine._scheduler.running}
        return super().logits(state)


@pytest.mark.parametrize("kind, options, page_size, tokens", [
    ("all", SpeculativeConfig(3), 16, 352), ("all", SpeculativeConfig(5), 64, 256), ("all", None, 16, 320),
    ("window", SpeculativeConfig(2, 2, 5), 16, 176), ("all", SpeculativeConfig(1), 128, 640)])
def test_mixes(kind, options, page_size, tokens, tmp):  # noqa: F811
    prompts, expected = cases(kind, tmp)
    engine = Engine(checkpoint(kind, tmp)[0], speculative=options, page_size=page_size, max_len=192,
                    max_running_requests=5, max_total_tokens=tokens, chunked_prefill_size=40)
    if options is not None:
        truth = {tuple(p): p + t for p, (t, _) in zip(prompts, expected)}
        engine._scheduler.worker.nextn = HelperOfRunning(engine, truth)
    draw = random.Random(f"{kind} {page_size}")
    waiting = [(i, draw.randrange(1, NEW + 1)) for i in range(len(prompts)) for _ in range(3)]
    draw.shuffle(waiting)
    live, done = [], []
    while waiting or live:
        while waiting and draw.random() < 0.5:
            i, count = waiting.pop()
            live.append((i, count, engine.submit(prompts[i], SamplingParams(count, ignore_eos=True))))
        if live and draw.random() < 0.04:
            engine.abort(draw.choice(live)[2])
        engine.step()
        usage = engine.cache.usage()
        assert all(row["committed"] <= row["allocated"] for row in usage["rows"].values())
        done += [entry for entry in live if entry[2].finish_reason]
        live = [entry for entry in live if not entry[2].finish_reason]
    reasons = {request.finish_reason for _, _, request in done}
    assert "length" in reasons and reasons <= {"length", "abort"} and len(done) == 3 * len(prompts)
    assert engine.metrics()["preemptions"] > 0, "the pools are meant to be too small"
    for i, count, request in done:
        got, (tokens_, gaps_) = request.output, expected[i]
        if request.finish_reason == "length":
            assert len(got) == count
        same(got, (tokens_[:len(got)], gaps_[:len(got)]), f"{kind} {options} prompt {i}")
        if options is not None and got:
            assert sum(request.accept_lengths) + 1 == len(got)
    usage = engine.cache.usage()
    assert not usage["rows"] and all(p["free"] == p["total"] for p in usage["pools"].values())
