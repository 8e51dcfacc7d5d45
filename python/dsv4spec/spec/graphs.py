# SPDX-License-Identifier: Apache-2.0
"""Steps captured once per padded batch size and replayed: a round is then three launches and three small copies.

A batch of 3 runs the graph of 4 with one request of padding, which reads and writes nothing. What changes from round
to round lies in tensors that never move: rows, lengths and page tables (:class:`StaticWindow`), what the requests carry,
and the rows that the host picks. The rest follows from them inside the graphs. A round that no graph fits runs op by
op, and ``metrics()["cuda_graphs"]`` says how many did and why.
"""
from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Callable, Sequence

import torch

from .captured import Capture, CapturedStep

log = logging.getLogger("dsv4spec")


@dataclass(frozen=True)
class GraphOptions:
    """Which batch sizes are captured. Names and meaning are those of the SGLang runtime.

    Args:
        disable_cuda_graph: run everything op by op.
        cuda_graph_max_bs: largest captured batch size; None: the most requests that run at once.
        cuda_graph_bs: the sizes themselves; None: 1, 2, 4, 8, 16, 24, ... up to the largest.
        disable_cuda_graph_padding: only batches of exactly a captured size are replayed.
    """

    disable_cuda_graph: bool = False
    cuda_graph_max_bs: int | None = None
    cuda_graph_bs: tuple[int, ...] | None = None
    disable_cuda_graph_padding: bool = False

    def __post_init__(self):
        if self.cuda_graph_max_bs is not None and self.cuda_graph_max_bs < 1:
            raise ValueError(f"cuda_graph_max_bs: expected at least 1, got {self.cuda_graph_max_bs}")
        if self.cuda_graph_bs is not None and (not self.cuda_graph_bs or min(self.cuda_graph_bs) < 1):
            raise ValueError(f"cuda_graph_bs: expected batch sizes of at least 1, got {list(self.cuda_graph_bs)}")

    def sizes(self, max_requests: int) -> list[int]:
        """Batch sizes to capture, ascending; none is larger than the most requests that run at once."""
        most = min(self.cuda_graph_max_bs or max_requests, max_requests)
        wanted = self.cuda_graph_bs or (1, 2, 4, *range(8, most, 8), most)
        return sorted({size for size in wanted if size <= most})


class CudaCapture:
    """Graphs of the CUDA runtime through torch. They share one memory pool: results stay referenced, so that no later
    capture is given their memory, and intermediate results of one graph are free for the next."""

    def __init__(self, device: torch.device):
        self.device, self._pool = device, torch.cuda.graph_pool_handle()

    def warm_up(self, function: Callable) -> object:
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            result = function()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        torch.cuda.synchronize(self.device)
        return result

    def capture(self, function: Callable) -> tuple[object, Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = function()
        return result, graph.replay


class Graphs:
    """The graphs of a worker, by batch size.

    Args:
        capture: None where nothing can be captured; ``why_not`` then says why.
    """

    def __init__(self, worker, options: GraphOptions, capture: Capture | None, why_not: str = ""):
        self.worker, self.options, self.why_not = worker, options, why_not
        self.graphs: dict[int, CapturedStep] = {}
        self._said: set[str] = set()
        if capture is None:
            return
        if worker.window > worker.cache.max_len:
            self.why_not = f"max_len {worker.cache.max_len} is below the {worker.window} rows of a step"
            return
        start = time.perf_counter()
        for size in reversed(options.sizes(worker.max_requests)):  # the largest first: it makes the shared memory
            try:
                self.graphs[size] = worker.captured(capture, size)
            except NotImplementedError:  # a kernel is missing: no round could run either
                raise
            except RuntimeError as error:
                self.graphs, self.why_not = {}, f"capture of batch size {size} failed: {error.__context__ or error}"
                log.warning("CUDA graphs are off, steps run op by op: %s", self.why_not)
                return
        log.info("CUDA graphs of batch sizes %s captured in %.1f s", ", ".join(map(str, sorted(self.graphs))),
                 time.perf_counter() - start)

    def begin(self, rows: Sequence[int], steps: int):
        """The step to run: a graph's, or the worker's eager one, whose reason is counted and, once, logged."""
        size, why = self._choose(rows, steps)
        metrics = self.worker.metrics
        if why:
            this = self.worker.eager(rows, steps)
            metrics.eager_rounds[why] = metrics.eager_rounds.get(why, 0) + 1
            if self.graphs and why not in self._said:
                self._said.add(why)
                log.info("a step of %d requests runs op by op, not as a CUDA graph: %s", len(rows), why)
            return this
        this = self.graphs[size].begin(rows)
        metrics.graph_rounds += 1
        return this

    def _choose(self, rows: Sequence[int], steps: int) -> tuple[int, str]:
        """(captured size, "") or (0, why no graph fits)."""
        if not self.graphs:
            return 0, self.why_not
        if steps != self.worker.captured_steps:
            return 0, f"num_steps other than {self.worker.captured_steps}"
        exact = self.options.disable_cuda_graph_padding
        size = min((s for s in self.graphs if s == len(rows) or (s > len(rows) and not exact)), default=0)
        if not size:
            return 0, f"batch size not captured ({', '.join(map(str, sorted(self.graphs)))} are)"
        width = self.graphs[size].window.width
        if max(map(self.worker.cache.length, rows)) + width > self.worker.cache.max_len:
            return 0, "a request near max_len"
        return size, ""


def graphs_for(worker, options: GraphOptions) -> Graphs:
    """Graphs on a CUDA device; elsewhere, or where they are disabled, a Graphs that says why there are none."""
    if options.disable_cuda_graph:
        return Graphs(worker, options, None, "disabled")
    if worker.device.type != "cuda":
        return Graphs(worker, options, None, f"device {worker.device.type}")
    if worker.why_not_captured:
        return Graphs(worker, options, None, worker.why_not_captured)
    return Graphs(worker, options, CudaCapture(worker.device))
