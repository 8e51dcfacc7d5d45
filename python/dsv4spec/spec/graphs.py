# SPDX-License-Identifier: Apache-2.0
"""Rounds captured once per padded batch size and replayed: a round is then three launches and one copy.

A batch of 3 runs the graph of 4 with one request of padding, which reads and writes nothing. What changes from round
to round lies in tensors that never move: rows, lengths and page tables (:class:`StaticWindow`), what the requests carry,
and the rows that the host picks. The rest follows from them inside the graphs. A round that no graph fits runs op by
op, and ``metrics()["cuda_graphs"]`` says how many did and why.
"""
from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Callable, Protocol, Sequence

import numpy as np
import torch

from dsv4spec.cache import StaticWindow

from .round import EagerRound, picked_rows
from .tree import Draft

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


class Capture(Protocol):
    """Makes a graph of what a function does on the device.

    ``capture(function)`` runs it once and returns ``(result, replay)``. ``replay()`` does again, into the same tensors,
    whatever the run did to tensors; Python does not run again. ``warm_up(function)`` runs it as it is.
    """

    def warm_up(self, function: Callable) -> object: ...

    def capture(self, function: Callable) -> tuple[object, Callable[[], None]]: ...


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


class RoundGraph:
    """The draft, verify and draft-extend graphs of one padded batch size, with their inputs."""

    def __init__(self, worker, capture: Capture, size: int, steps: int):
        self.worker, self.size, self.steps = worker, size, steps
        with torch.inference_mode(False):  # plain tensors, that any later mode may write
            self.window = StaticWindow(worker.cache, size, *worker.window_of(steps))
            first = torch.tensor(picked_rows(self.window.n, steps, [1] * size))
            self._staged = first.pin_memory() if worker.device.type == "cuda" else first
            self.picked = first.to(worker.device, copy=True)
        self._counts = worker.metrics.forwards
        before = dict(self._counts)
        self.carried = self._first_run(capture)
        self._draft, self._verify, self._extend = (self._captured(capture, part) for part in self._parts())
        self._counts.update(before)

    def _parts(self) -> list[Callable]:
        """The device's side of a round. Each leaves its result where the next one reads it."""
        worker, window = self.worker, self.window

        def draft():
            window.locate()
            self.drafted = worker._draft(window, self.carried, self.steps)

        def verify():
            self.verified = worker._verify(window, self.carried["bonus"], self.drafted, None)

        def extend():
            worker._draft_extend_for_decode(window, self.verified, self.picked, out=self.carried)

        return [draft, verify, extend]

    def _first_run(self, capture: Capture) -> dict[str, torch.Tensor]:
        """All parts over padding alone, which fills what the models keep from forward to forward. Returns room for what
        requests carry; its shapes are the models' to say."""
        worker, window = self.worker, self.window
        window.fill([])
        nothing = torch.zeros(self.size, window.n - 1, dtype=torch.int64, device=worker.device)

        def verify_and_extend():
            window.locate()
            # A chain's verify part serves for a tree too: it is the extend part whose shapes are wanted.
            self.verified = worker._verify(window, self.picked, Draft(nothing, window.n - 1), None)
            return worker._draft_extend_for_decode(window, self.verified, self.picked)

        found = capture.warm_up(verify_and_extend)
        with torch.inference_mode(False):
            self.carried = {name: torch.zeros(value.shape, dtype=value.dtype, device=value.device)
                            for name, value in found.items()}
        for part in self._parts():
            capture.warm_up(part)
        return self.carried

    def _captured(self, capture: Capture, part: Callable) -> Callable[[], None]:
        """Capture a part. Its replay also counts the forwards that the part made."""
        before = dict(self._counts)
        _, replay = capture.capture(part)
        forwards = {name: self._counts[name] - before[name] for name in before if self._counts[name] > before[name]}

        def run() -> None:
            replay()
            for name, count in forwards.items():
                self._counts[name] += count

        return run

    # ------------------------------------------------------------------------------------------------- a round
    def begin(self, rows: Sequence[int]) -> RoundGraph:
        """Take a round of ``rows`` up. CacheFull before anything was taken."""
        self.window.fill(rows)
        self.rows = list(rows)
        for name, value in self.worker.carry.get(rows).items():
            own = self.carried[name]
            if value.data_ptr() != own.data_ptr():  # else the last round of this graph left it here
                own[:len(rows)].copy_(value)
        return self

    def draft(self) -> None:
        self._draft()

    def verify(self) -> list[list[int]]:
        self._verify()
        return self.verified.host[:len(self.rows)].tolist()

    def extend(self, kept: list[int]) -> None:
        self._staged.numpy()[:len(kept)] = picked_rows(self.window.n, self.steps, kept)
        self.picked.copy_(self._staged, non_blocking=True)
        self._extend()
        self.worker.carry.put(self.rows, **{name: value[:len(self.rows)] for name, value in self.carried.items()})


class RoundGraphs:
    """The graphs of a worker, by batch size.

    Args:
        capture: None where nothing can be captured; ``why_not`` then says why.
    """

    def __init__(self, worker, options: GraphOptions, capture: Capture | None, why_not: str = ""):
        self.worker, self.options, self.why_not = worker, options, why_not
        self.steps = worker.options.num_steps
        self.graphs: dict[int, RoundGraph] = {}
        self._said: set[str] = set()
        if capture is None:
            return
        width = worker.window_of(self.steps)[1]
        if width > worker.max_len:
            self.why_not = f"max_len {worker.max_len} is below the {width} rows of a round"
            return
        start = time.perf_counter()
        for size in reversed(options.sizes(worker.max_requests)):  # the largest first: it makes the shared memory
            try:
                self.graphs[size] = RoundGraph(worker, capture, size, self.steps)
            except NotImplementedError:  # a kernel is missing: no round could run either
                raise
            except RuntimeError as error:
                self.graphs, self.why_not = {}, f"capture of batch size {size} failed: {error}"
                log.warning("CUDA graphs are off, rounds run op by op: %s", self.why_not)
                return
        log.info("CUDA graphs of batch sizes %s captured in %.1f s", ", ".join(map(str, sorted(self.graphs))),
                 time.perf_counter() - start)

    def begin(self, rows: Sequence[int], steps: int) -> RoundGraph | EagerRound:
        """The round to run: a graph's, or an eager one whose reason is counted and, once, logged."""
        size, why = self._choose(rows, steps)
        metrics = self.worker.metrics
        if why:
            this = EagerRound(self.worker, rows, steps)
            metrics.eager_rounds[why] = metrics.eager_rounds.get(why, 0) + 1
            if self.graphs and why not in self._said:
                self._said.add(why)
                log.info("a round of %d requests runs op by op, not as a CUDA graph: %s", len(rows), why)
            return this
        this = self.graphs[size].begin(rows)
        metrics.graph_rounds += 1
        return this

    def _choose(self, rows: Sequence[int], steps: int) -> tuple[int, str]:
        """(captured size, "") or (0, why no graph fits)."""
        if not self.graphs:
            return 0, self.why_not
        if steps != self.steps:
            return 0, f"num_steps other than {self.steps}"
        exact = self.options.disable_cuda_graph_padding
        size = min((s for s in self.graphs if s == len(rows) or (s > len(rows) and not exact)), default=0)
        if not size:
            return 0, f"batch size not captured ({', '.join(map(str, sorted(self.graphs)))} are)"
        width = self.graphs[size].window.width
        if max(map(self.worker.cache.length, rows)) + width > self.worker.max_len:
            return 0, "a request near max_len"
        return size, ""


def graphs_for(worker, options: GraphOptions) -> RoundGraphs:
    """Graphs on a CUDA device; elsewhere, or where they are disabled, a RoundGraphs that says why there are none."""
    if options.disable_cuda_graph:
        return RoundGraphs(worker, options, None, "disabled")
    if worker.device.type != "cuda":
        return RoundGraphs(worker, options, None, f"device {worker.device.type}")
    if worker.options.draft_p_min:
        return RoundGraphs(worker, options, None, "draft_p_min reads a probability on the host after each draft")
    return RoundGraphs(worker, options, CudaCapture(worker.device))
