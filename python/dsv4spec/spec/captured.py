# SPDX-License-Identifier: Apache-2.0
"""Steps of a worker captured for one padded batch size, with the inputs that they read at each replay."""
from __future__ import annotations

from dataclasses import replace
from typing import Callable, Protocol, Sequence

import torch

from dsv4spec.cache import StaticWindow
from dsv4spec.cache.batch import ForwardMode

from .round import picked_rows
from .tree import Draft


class Capture(Protocol):
    """Makes a graph of what a function does on the device.

    ``capture(function)`` runs it once and returns ``(result, replay)``. ``replay()`` does again, into the same tensors,
    whatever the run did to tensors; Python does not run again. ``warm_up(function)`` runs it as it is.
    """

    def warm_up(self, function: Callable) -> object: ...

    def capture(self, function: Callable) -> tuple[object, Callable[[], None]]: ...


class CapturedStep:
    """What is common to steps: the window, what requests carry from step to step, and the counting of forwards.

    Args:
        n, width: see :class:`StaticWindow`.
    """

    def __init__(self, worker, capture: Capture, size: int, n: int, width: int):
        self.worker, self.size, self._counts = worker, size, worker.metrics.forwards
        with torch.inference_mode(False):  # plain tensors, that any later mode may write
            self.window = StaticWindow(worker.cache, size, n, width)
        self.window.fill([])  # nothing but padding: captures touch no request
        before = dict(self._counts)
        worker.capturing = True
        try:
            self._capture(capture)
        finally:
            worker.capturing = False
        self._counts.update(before)

    def _capture(self, capture: Capture) -> None:
        with torch.inference_mode(False):
            self.carried = {name: torch.zeros(like.shape, dtype=like.dtype, device=like.device)
                            for name, like in self._first_run(capture).items()}
        for part in self._parts():
            capture.warm_up(part)
        self._replays = [self._captured(capture, part) for part in self._parts()]

    def _first_run(self, capture: Capture) -> dict[str, torch.Tensor]:
        """Tensors like those that requests carry: shapes and dtypes are the models' to say."""
        raise NotImplementedError

    def _parts(self) -> list[Callable]:
        """The device's side of a step. Each part leaves its result where the next one reads it."""
        raise NotImplementedError

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

    def begin(self, rows: Sequence[int]) -> CapturedStep:
        """Take a step of ``rows`` up. CacheFull before anything was taken."""
        self.window.fill(rows)
        self.rows = list(rows)
        for name, value in self.worker.carry.get(rows).items():
            own = self.carried[name]
            if value.data_ptr() != own.data_ptr():  # else the last step of this graph left it here
                own[:len(rows)].copy_(value)
        return self

    def _carry_on(self) -> None:
        self.worker.carry.put(self.rows, **{name: value[:len(self.rows)] for name, value in self.carried.items()})


class DecodeGraph(CapturedStep):
    """Plain decoding: one Target forward of one row a request. Stands for :class:`EagerDecode`."""

    def __init__(self, worker, capture: Capture, size: int):
        super().__init__(worker, capture, size, 1, 1)

    def _first_run(self, capture: Capture) -> dict[str, torch.Tensor]:
        return {"bonus": torch.zeros(self.size, dtype=torch.int64, device=self.worker.device)}

    def _parts(self) -> list[Callable]:
        def decode():
            self.window.locate()
            batch = replace(self.window.verify, mode=ForwardMode.TARGET_DECODE, input_ids=self.carried["bonus"])
            self.worker._next(batch, out=self.carried["bonus"])

        return [decode]

    def decode(self) -> list[int]:
        replay, = self._replays
        replay()
        self._carry_on()
        return self.carried["bonus"][:len(self.rows)].tolist()


class RoundGraph(CapturedStep):
    """The draft, verify and draft-extend graphs of a round. Stands for :class:`EagerRound`."""

    def __init__(self, worker, capture: Capture, size: int, steps: int):
        self.steps = steps
        n, width = worker.window_of(steps)
        with torch.inference_mode(False):
            first = torch.tensor(picked_rows(n, steps, [1] * size))
            self._staged = first.pin_memory() if worker.device.type == "cuda" else first
            self.picked = first.to(worker.device, copy=True)
        super().__init__(worker, capture, size, n, width)

    def _first_run(self, capture: Capture) -> dict[str, torch.Tensor]:
        worker, window = self.worker, self.window
        nothing = torch.zeros(self.size, window.n - 1, dtype=torch.int64, device=worker.device)

        def verify_and_extend():
            window.locate()
            # A chain's verify part serves for a tree too: it is the extend part whose shapes are wanted.
            verified = worker._verify(window, self.picked, Draft(nothing, window.n - 1), None)
            return worker._draft_extend_for_decode(window, verified, self.picked)

        return capture.warm_up(verify_and_extend)

    def _parts(self) -> list[Callable]:
        worker, window = self.worker, self.window

        def draft():
            window.locate()
            self.drafted = worker._draft(window, self.carried, self.steps)

        def verify():
            self.verified = worker._verify(window, self.carried["bonus"], self.drafted, None)

        def extend():
            worker._draft_extend_for_decode(window, self.verified, self.picked, out=self.carried)

        return [draft, verify, extend]

    def draft(self) -> None:
        self._replays[0]()

    def verify(self) -> list[list[int]]:
        self._replays[1]()
        self.offered = [self.steps] * len(self.rows)  # no request is near max_len
        return self.verified.host[:len(self.rows)].tolist()

    def extend(self, kept: list[int]) -> None:
        self._staged.numpy()[:len(kept)] = picked_rows(self.window.n, self.steps, kept)
        self.picked.copy_(self._staged, non_blocking=True)
        self._replays[2]()
        self._carry_on()
