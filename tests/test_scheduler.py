# SPDX-License-Identifier: Apache-2.0
"""Requests that join, leave, give way and come back, on toy models (field reports A10, A19, A30)."""
import random

import pytest
from toy import make, stumbles, successor
from util import BACKENDS

from dsv4spec import ops
from dsv4spec.cache import CacheFull
from dsv4spec.request import Request, SamplingParams
from dsv4spec.scheduler import Scheduler
from dsv4spec.spec.options import SpeculativeConfig

EOS = 100


@pytest.fixture(autouse=True, params=BACKENDS)
def backend(request):
    with ops.use_backend(request.param, missing="reference"):
        yield request.param


def scheduler(options=SpeculativeConfig(3), *, max_running=8, budget=64, **sizes):
    worker, cache = make(successor, stumbles, options, requests=max_running, **sizes)
    return Scheduler(worker, cache, max_running=max_running, prefill_budget=budget)


def request(prompt, max_new_tokens=20, max_tokens=256, speculative=True, **params):
    return Request(list(prompt), SamplingParams(max_new_tokens, **params), frozenset([EOS]), max_tokens, speculative)


def run(s: Scheduler) -> None:
    for _ in range(1000):
        if not s.busy:
            return
        s.step()
        check_accounting(s)
    raise AssertionError("the scheduler does not come to an end")


def check_accounting(s: Scheduler) -> None:
    usage = s.cache.usage()
    for row in usage["rows"].values():
        assert row["committed"] <= row["allocated"]
    for r in s.running:
        assert s.cache.length(r.row) == r.done
    assert len(usage["rows"]) == len(s.running)


def all_free(s: Scheduler) -> bool:
    return all(pool["free"] == pool["total"] for pool in s.cache.usage()["pools"].values())


@pytest.mark.parametrize("options", [None, SpeculativeConfig(0), SpeculativeConfig(1), SpeculativeConfig(4)])
def test_requests_join_and_leave(options):
    s = scheduler(options, max_running=3, budget=16)
    requests = [request(range(1 + i, 4 + 5 * i), 1 + 6 * i, speculative=options is not None) for i in range(6)]
    for r in requests[:4]:
        s.add(r)
    for _ in range(3):
        s.step()
    for r in requests[4:]:
        s.add(r)
    run(s)
    for r in requests:
        first = r.prompt[-1] + 1
        assert r.output == list(range(first, first + r.params.max_new_tokens)) and r.finish_reason == "length"
        assert len(r.from_draft) == len(r.output)
        if options is not None:
            assert sum(r.accept_lengths) + 1 == len(r.output)
    assert all_free(s) and s.metrics.output_tokens == sum(len(r.output) for r in requests)


# ------------------------------------------------------------------------------------------------------- A19
@pytest.mark.parametrize("prompt_end", range(90, 100))
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a19_eos_inside_an_accepted_block(prompt_end, ignore_eos):
    s = scheduler()
    r = request([prompt_end], 15, ignore_eos=ignore_eos)
    s.add(r)
    run(s)
    last = prompt_end + 15 if ignore_eos else EOS
    assert r.output == list(range(prompt_end + 1, last + 1))
    assert r.finish_reason == ("length" if ignore_eos else "stop")
    assert sum(r.accept_lengths) + 1 == len(r.output) == len(r.from_draft) == s.metrics.output_tokens
    assert s.metrics.verified_tokens == len(r.output) - 1
    assert sum(s.metrics.accepted_at) == sum(r.from_draft)
    assert all_free(s)


def test_a19_streamed_chunks_join_to_the_whole():
    s = scheduler()
    r = request([7], 30)
    s.add(r)
    tokens, flags, sizes, output = [], [], [], None
    while output is None:
        s.step()
        chunk = r.chunk(0)
        tokens += chunk.token_ids
        flags += chunk.from_draft
        sizes.append(len(chunk.token_ids))
        output = chunk.output
    assert tokens == output.token_ids == list(range(8, 38)) and flags == output.from_draft
    assert sizes[1:] == output.accept_lengths[1:] and max(sizes) == 4 and r.chunk(0).token_ids == []


def test_stop_token_ids_end_a_request_that_ignores_eos():
    s = scheduler()
    r = request([95], 20, ignore_eos=True, stop_token_ids=[104])
    s.add(r)
    run(s)
    assert r.output[-1] == 104 and r.finish_reason == "stop"


def test_a16_max_len_ends_a_request():
    s = scheduler(max_len=16)
    r = request(range(1, 12), 50, max_tokens=16)
    s.add(r)
    run(s)
    assert r.output == [12, 13, 14, 15, 16] and r.finish_reason == "length"


# ------------------------------------------------------------------------------------------------------- A10
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("options", [None, SpeculativeConfig(3)])
def test_a10_every_page_comes_back(page_size, options):
    """Random requests on pools too small for all of them: finish, abort while waiting, between prefill and decode, and
    between rounds; preempted ones resume with the same tokens."""
    draw = random.Random(page_size)
    s = scheduler(options, max_running=6, budget=24, page_size=page_size, max_total_tokens=2 * (64 + 64),
                  max_len=160, prefill_chunk=24)
    live, done = [], []
    for step in range(400):
        if len(done) + len(live) < 60 and draw.random() < 0.4:
            start = draw.randrange(1, 40)
            r = request(range(start, start + draw.randrange(1, 50)), draw.randrange(1, 60), 160, options is not None,
                        ignore_eos=True)
            s.add(r)
            live.append(r)
        if live and draw.random() < 0.08:
            s.abort(draw.choice(live))
        s.step()
        check_accounting(s)
        done += [r for r in live if r.finish_reason]
        live = [r for r in live if not r.finish_reason]
    run(s)
    done += live
    assert len(done) == 60 and s.metrics.preemptions > 0
    reasons = {r.finish_reason for r in done}
    assert reasons == {"length", "abort"}
    for r in done:
        first = r.prompt[-1] + 1
        assert r.output == [t % 128 for t in range(first, first + len(r.output))]
        assert r.finish_reason == "abort" or len(r.output) == r.params.max_new_tokens
    assert all_free(s)


def test_a_request_that_never_fits_fails_alone():
    s = scheduler(max_running=4, budget=64, page_size=16, max_total_tokens=64)
    small = [request([i], 12) for i in (1, 2)]
    large = request(range(1, 120), 5)
    late = request([3], 12)
    for r in (small[0], large, small[1], late):
        s.add(r)
    run(s)
    assert large.finish_reason == "error" and "does not fit even alone" in large.error and "SWA pool" in large.error
    for r in (*small, late):
        assert r.finish_reason == "length" and len(r.output) == 12
    assert all_free(s)


def test_the_worker_takes_nothing_when_a_round_does_not_fit():
    s = scheduler(max_running=2, page_size=16, max_total_tokens=32)
    a, b = (request(range(1, 14), 16) for _ in range(2))
    s.add(a)
    s.add(b)
    s._admit()
    s._prefill()
    before = s.cache.usage()
    with pytest.raises(CacheFull, match="SWA pool"):
        s.worker.decode([a.row, b.row])
    assert s.cache.usage() == before
    run(s)
    assert s.metrics.preemptions >= 1 and a.output == b.output == list(range(14, 30))


def test_steady_round_forwards():
    """Architecture invariant 4: NextN forwards a round = 1 extend + (num_steps - 1) decode."""
    s = scheduler(SpeculativeConfig(3))
    r = request([1, 2, 3], 40)
    s.add(r)
    run(s)
    rounds = len(r.accept_lengths)
    assert s.metrics.forwards == {"target_prefill": 1, "target_decode": 0, "target_verify": rounds,
                                  "nextn_extend": rounds + 1, "nextn_decode": 2 * rounds}
    assert s.metrics.rounds == rounds


@pytest.mark.parametrize("params, name", [
    ({"temperature": 0.7}, "temperature"), ({"max_new_tokens": 0}, "max_new_tokens"),
    ({"max_new_tokens": True}, "max_new_tokens"), ({"stop": [""]}, "stop")])
def test_sampling_params_are_checked(params, name):
    with pytest.raises(ValueError, match=f"SamplingParams: {name}: expected "):
        SamplingParams(**params)
