# SPDX-License-Identifier: Apache-2.0
"""Clocks and the statistics of their figures for ``dsv4spec bench``."""
from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import torch

from . import _C

SECONDS = 0.25         # of one contender's samples, if that is enough for LEAST of them
SAMPLE = 50e-6         # shortest sample: a hundred times what reading the clock and the loop take
LEAST, MOST = 9, 200   # samples
SLOW, FEWEST = 0.3, 3  # from so many seconds a call on so few samples do
LONG = 0.02            # a call of this many seconds is quicker on all threads
AWAKE = 1e-3           # of calls before a sample that are not counted, for calls shorter than LONG: threads slept meanwhile
REPLAYS = 15           # samples on a GPU
DRIFT = 0.05           # between the medians of the two halves of the samples


@dataclass(frozen=True)
class Times:
    """Seconds a call, in the order in which they were taken."""

    seconds: tuple[float, ...]
    calls: int  # a sample
    how: str    # "calls" from Python, or "graph": replays of a captured CUDA graph
    kernel: tuple[float, ...] = ()  # of those, what the kernels of this package took: on a CPU, if it launched any

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def halves(self) -> tuple[float, float]:
        middle = len(self.seconds) // 2
        return statistics.median(self.seconds[:middle]), statistics.median(self.seconds[-middle:])

    @property
    def unstable(self) -> bool:
        """Do the two halves of the run differ by more than DRIFT?"""
        if len(self.seconds) < 2:
            return True
        first, second = self.halves
        return abs(first - second) > DRIFT * min(first, second)

    @property
    def kernel_median(self) -> float | None:
        return statistics.median(self.kernel) if any(self.kernel) else None

    def percentile(self, share: float) -> float:
        """Of the sorted samples, between neighbours in proportion."""
        ordered = sorted(self.seconds)
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    def report(self) -> dict:
        """JSON-ready, microseconds."""
        figures = {"median": self.median, "min": min(self.seconds), "p10": self.percentile(0.1), "p90": self.percentile(0.9)}
        return {f"{name}_us": 1e6 * value for name, value in figures.items()} | {
            "kernel_us": self.kernel_median and 1e6 * self.kernel_median, "samples": len(self.seconds), "calls_per_sample": self.calls, "how": self.how, "unstable": self.unstable}


class Clock:
    """Times calls on one device. Every call of a list has arguments of its own and they take turns, so that a list over more
    memory than the caches finds none of it there. Nothing is flushed, so no flush can be counted."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter):
        self.device, self.clock = device, clock
        self.cuda = device.type == "cuda"
        self.cache = torch.cuda.get_device_properties(device).L2_cache_size if self.cuda else cpu_cache()

    def times(self, contenders: dict[str, list[Callable]], graph: bool = True,
              threads: dict[str, int] | None = None) -> dict[str, Times]:
        """Of every contender, whose samples are taken by turns, so that a change of the machine's speed meets all.
        ``threads``: torch's, for the contenders that it names."""
        before, threads = torch.get_num_threads(), threads or {}
        try:
            return self._times(contenders, graph, lambda name: torch.set_num_threads(threads.get(name, before)))
        finally:
            torch.set_num_threads(before)

    def _times(self, contenders, graph, prepare) -> dict[str, Times]:
        samplers = {}
        for name, calls in contenders.items():
            prepare(name)
            samplers[name] = self._sampler(calls, graph)
        rounds = max((s.wanted for s in samplers.values()), default=0)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in samplers}
        for i in range(rounds):
            for name, s in samplers.items():
                if (i + 1) * s.wanted // rounds > len(taken[name]):  # spread over all rounds
                    prepare(name)
                    taken[name].append(tuple(seconds / s.calls for seconds in s.sample()))
        result = {}
        for name, s in samplers.items():
            seconds, kernel = zip(*taken[name])
            result[name] = Times(seconds, s.calls, s.how, kernel)
        return result

    def quicker_threads(self, call: Callable) -> int:
        """1 or torch's number of threads: with which of them is ``call`` quicker? Threads of torch cost small calls more
        than they bring, above all where cores have other work."""
        most, seconds = torch.get_num_threads(), {}
        try:
            for count in (most, 1):
                torch.set_num_threads(count)
                if self._elapsed(call) > 10 * LONG:
                    return count
                seconds[count] = min(self._elapsed(call) for _ in range(3))
                if seconds[count] > LONG:
                    return count
        finally:
            torch.set_num_threads(most)
        return min(seconds, key=seconds.get)

    def _sampler(self, calls: list[Callable], graph: bool) -> _Sampler:
        for call in calls[:64]:  # what compiles or allocates does it here
            call()
        turn = _Turn(calls)
        turn(1)
        once = max(self._elapsed(lambda: turn(1)), 1e-9)
        once = max(min(once, self._elapsed(lambda: turn(3)) / 3), 1e-9) if once < 0.01 else once
        if self.cuda:
            return self._cuda_sampler(calls, turn, once, graph)
        count = max(1, int(SAMPLE / once + 0.999))
        least = FEWEST if once > SLOW else LEAST
        first = max(1, int(AWAKE / once)) if once < LONG else 0

        def sample():
            turn(first)
            return self._with_kernels(lambda: turn(count))

        return _Sampler(sample, count, "calls", max(least, min(MOST, int(SECONDS / (once * (count + first))))))

    def _cuda_sampler(self, calls, turn, once, graph) -> _Sampler:
        count = max(1, min(200, int(SECONDS / 10 / REPLAYS / once)))
        loop, how = (lambda: turn(count)), "calls"
        if graph:
            rounds = max(-(-16 // len(calls)), count // len(calls))
            try:
                loop, how = self._captured(lambda: [call() for _ in range(rounds) for call in calls]), "graph"
                count = rounds * len(calls)
            except RuntimeError:  # a host read inside, for example; torch has ended the capture
                torch.cuda.synchronize()

        def sample():
            loop()  # not counted, and the device is still busy with it when the clock starts: nor is the way there
            return (self._elapsed(loop), 0.0)

        return _Sampler(sample, count, how, REPLAYS)

    def _captured(self, loop):
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            loop()
        return graph.replay

    def _with_kernels(self, function) -> tuple[float, float]:
        """Seconds of ``function``, and of the kernels that it launched."""
        _C.time_kernels(True)
        elapsed = self._elapsed(function)
        return elapsed, 1e-9 * _C.time_kernels(False)

    def _elapsed(self, function) -> float:
        if not self.cuda:
            start = self.clock()
            function()
            return self.clock() - start
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3


@dataclass(frozen=True)
class _Sampler:
    sample: Callable[[], tuple[float, float]]  # seconds of `calls` calls, and of the kernels in them
    calls: int
    how: str
    wanted: int


class _Turn:
    """Runs the next calls of a ring."""

    def __init__(self, calls):
        self.calls, self.at = calls, 0

    def __call__(self, count: int) -> None:
        calls, at = self.calls, self.at
        for _ in range(count):
            calls[at]()
            at += 1
            if at == len(calls):
                at = 0
        self.at = at


def cpu_cache() -> int:
    """Bytes of the largest cache that Linux names, else 32 MiB."""
    sizes = [32 << 20]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        if text.endswith("K"):
            sizes.append(int(text[:-1]) << 10)
    return max(sizes[1:], default=sizes[0])
