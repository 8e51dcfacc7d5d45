# SPDX-License-Identifier: Apache-2.0
"""The clock of ``dsv4spec bench``: statistics of given samples, whose turn it is, what is counted."""
import math
from concurrent.futures import ThreadPoolExecutor

import torch
from bench_util import short  # noqa: F401
from dsv4spec import _C, bench_timing, ops
from dsv4spec.bench_timing import Clock, Times


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


def test_a_short_call_is_counted_awake(monkeypatch):
    """The first call after another contender's finds its threads asleep: it is not in the figure."""
    clock, last = Steps(), []
    monkeypatch.setattr(bench_timing, "LEAST", 6)

    def call(name, seconds):
        def run():
            clock.now += seconds + (1e-4 if last != [name] else 0)
            last[:] = [name]

        return run

    times = Clock(torch.device("cpu"), clock).times({"short": [call("short", 1e-5)], "long": [call("long", 1.0)]})
    assert all(math.isclose(s, 1e-5, rel_tol=1e-6) for s in times["short"].seconds)
    assert all(math.isclose(s, 1.0001, rel_tol=1e-6) for s in times["long"].seconds)  # and is not taken twice


def test_time_in_kernels_is_of_the_thread_that_asked_and_part_of_the_call():
    x = torch.randn(64, 4, 4096, dtype=torch.bfloat16)
    y, post, comb = torch.randn(64, 4096, dtype=torch.bfloat16), torch.ones(64, 4), torch.ones(64, 4, 4)
    call = lambda: ops.mhc_post(y, x, post, comb)  # noqa: E731
    assert _C.time_kernels(False) == 0
    call()
    assert _C.time_kernels(True) == 0  # nobody had asked
    with ThreadPoolExecutor(1) as other:
        other.submit(call).result()
        assert other.submit(_C.time_kernels, False).result() == 0 == _C.time_kernels(True)
    times = Clock(torch.device("cpu")).times({"ours": [call], "none": [lambda: None]})
    assert _C.time_kernels(False) == 0  # the clock left it off
    assert all(0 < kernel < seconds for kernel, seconds in zip(times["ours"].kernel, times["ours"].seconds))
    assert times["ours"].report()["kernel_us"] > 0 and times["none"].report()["kernel_us"] is None


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
