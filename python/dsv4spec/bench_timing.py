# SPDX-License-Identifier: Apache-2.0
"""Clocks, roofs and the comparison of results for ``bench ops``."""
from __future__ import annotations

import statistics
import time

import torch

REPEATS = 15
SECONDS = 0.02          # of the device, for one figure
TOLERANCE = {torch.bfloat16: 2 ** -6, torch.float32: 1e-4}  # of the largest value; four roundings of bfloat16


class Clock:
    """Times calls. On a GPU they are captured into one graph, so that no launch from Python is counted; calls that cannot
    be captured are timed as they are (``how`` says which). Calls take turns over several sets of arguments, together
    larger than the L2 cache, so that no data are there from the call before."""

    def __init__(self, device: torch.device):
        self.device = device
        self.cuda = device.type == "cuda"
        self.cache = torch.cuda.get_device_properties(device).L2_cache_size if self.cuda else 0

    def sets(self, bytes_: int, most: int = 24) -> int:
        return max(1, min(most, -(-2 * self.cache // max(bytes_, 1)))) if bytes_ > self.cache // 1000 else 1

    def seconds(self, calls: list, graph: bool = True) -> tuple[float, str]:
        """Median time of one call, and "graph" or "calls"."""
        for call in calls:
            call()
        once = self._elapsed(lambda: [call() for call in calls]) / len(calls)
        least = -(-16 // len(calls)) if self.cuda and graph else 1
        rounds = max(least, min(200, int(SECONDS / REPEATS / max(once * len(calls), 1e-7))))
        loop = lambda: [call() for _ in range(rounds) for call in calls]  # noqa: E731
        how = "calls"
        if graph and self.cuda:
            try:
                loop, how = self._captured(loop), "graph"
            except RuntimeError:  # a host read inside, for example; torch has ended the capture
                torch.cuda.synchronize()
        times = [self._elapsed(loop) for _ in range(REPEATS)]
        return statistics.median(times) / (rounds * len(calls)), how

    def _captured(self, loop):
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            loop()
        return graph.replay

    def _elapsed(self, function) -> float:
        """One run, after one that is not counted. A GPU is still busy with that one when the clock starts, so that the
        way of the work to the device is not counted either."""
        function()
        if not self.cuda:
            start = time.perf_counter()
            function()
            return time.perf_counter() - start
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3


def roofs(clock: Clock, small: bool = False) -> dict[str, float]:
    """Bytes per second of a large copy (read and written) and operations per second of a large bfloat16 product."""
    count, n = (1 << 22, 256) if small else (1 << 29, 8192)
    source = torch.ones(count, dtype=torch.bfloat16, device=clock.device)
    target = torch.empty_like(source)
    copy, _ = clock.seconds([lambda: target.copy_(source)])
    a = torch.randn(n, n, device=clock.device).bfloat16()
    out = torch.empty_like(a)
    product, _ = clock.seconds([lambda: torch.mm(a, a, out=out)])
    return {"copy_bytes_per_s": 4 * count / copy, "matmul_flops_per_s": 2 * n ** 3 / product}


def tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in tensors(item)] if isinstance(value, (tuple, list)) else []


def copied(value):
    """Arguments in memory of their own."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return tuple(copied(item) for item in value) if isinstance(value, (tuple, list)) else value


def difference(got, want) -> str | None:
    """None if the results agree: integers exactly, floats within TOLERANCE of the largest value, and on average within an
    eighth of that of the average one. Else one sentence."""
    for i, (a, b) in enumerate(zip(tensors(got), tensors(want), strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {i} is {tuple(a.shape)} {a.dtype}, expected {tuple(b.shape)} {b.dtype}"
        if a.dtype not in TOLERANCE:
            a, b = (t if t.dtype == torch.bool else t.view(torch.uint8) for t in (a, b)) if a.element_size() == 1 else (a, b)
            wrong = int((a != b).sum())
            if wrong:
                return f"result {i} differs in {wrong} of {a.numel()} places"
            continue
        if a.numel() == 0:
            continue
        if not bool((torch.isfinite(a) == torch.isfinite(b)).all()):
            return f"result {i} has values that are not finite in other places"
        error, size = (a.float() - b.float()).abs().nan_to_num(0), b.float().abs().nan_to_num(0, 0, 0)
        allowed = TOLERANCE[a.dtype]
        worst, mean = float(error.max() / size.max().clamp(min=1e-30)), float(error.mean() / size.mean().clamp(min=1e-30))
        if worst > allowed or mean > allowed / 8:
            return f"result {i} is off by {worst:.1e} of its largest value at worst, {mean:.1e} on average"
    return None
