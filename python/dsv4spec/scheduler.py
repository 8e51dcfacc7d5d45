# SPDX-License-Identifier: Apache-2.0
"""Which requests run: they join and leave between steps, give way when a pool is empty, and come back later."""
from __future__ import annotations

import logging
import time
from collections import deque

from .cache import CacheFull, KVCache
from .request import Request
from .spec.plain import PlainWorker

log = logging.getLogger("dsv4spec")


class Scheduler:
    """Runs requests on one worker.

    A step admits waiting requests, runs one batch of prefill pieces (``prefill_budget`` tokens at most, oldest first)
    and one decode round of all requests whose prompt is in the cache. When a pool has too few pages, the youngest
    running request gives its pages back and waits at the head of the queue; it resumes by prefilling prompt and output
    again. A request that does not fit though it runs alone ends with ``finish_reason`` "error".
    """

    def __init__(self, worker: PlainWorker, cache: KVCache, *, max_running: int, prefill_budget: int):
        self.worker, self.cache, self.metrics = worker, cache, worker.metrics
        self.max_running, self.prefill_budget = max_running, prefill_budget
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in the order of admission: the last one is the youngest
        self._hold = False  # no admission after a preemption until a request leaves

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """End a request between steps; its pages go back at once."""
        if request.finish_reason is None:
            request.finish_reason = "abort"
            self._leave(request)

    def step(self) -> None:
        """One prefill batch, if a prompt is waiting for it, and one decode round.

        An exception from a forward (an interrupt too) leaves caches and requests at different tokens: it ends all that
        run, gives their pages back, and goes on to the caller. Waiting requests stay."""
        try:
            self._admit()
            self._prefill()
            self._decode()
        except BaseException as error:
            for request in list(self.running):
                del request.output[len(request.from_draft):]  # tokens of a round that did not end
                request.finish_reason, request.error = "error", f"the step failed: {error!r}"
                self._leave(request)
            raise

    # ------------------------------------------------------------------------------------------------ the parts
    def _admit(self) -> None:
        while self.waiting and not self._hold and len(self.running) < self.max_running:
            request = self.waiting.popleft()
            request.row = self.cache.open()
            self.running.append(request)

    def _prefill(self) -> None:
        tails = None
        while tails is None:
            chunks, owners, budget = [], [], self.prefill_budget
            for request in self.running:
                if budget and not request.ready:
                    chunks.append(request.next_chunk(budget))
                    owners.append(request)
                    budget -= len(chunks[-1].tokens)
            if not chunks:
                return
            try:
                tails = self.worker.prefill(chunks)
            except CacheFull as full:
                self._make_room(full)
        for request, chunk, tail in zip(owners, chunks, tails):
            request.done += len(chunk.tokens)
            request.ready = request.to_prefill == 0
            if chunk.next_token is None:
                self._first_token(request, tail)

    def _first_token(self, request: Request, token: int) -> None:
        request.first_token_at = time.perf_counter()
        self.metrics.time_to_first.append(request.first_token_at - request.arrived)
        request.take([token])
        request.from_draft.append(False)
        self.metrics.output_tokens += 1
        if request.finish_reason:
            self._leave(request)

    def _decode(self) -> None:
        blocks = None
        while blocks is None:
            ready = [request for request in self.running if request.ready]
            if not ready:
                return
            try:
                blocks = self.worker.decode([r.row for r in ready], lambda i, tokens: ready[i].take(tokens))
            except CacheFull as full:
                self._make_room(full)
        for request, block in zip(ready, blocks):
            request.record(block)
            self.metrics.output_tokens += len(block.tokens)
            if request.finish_reason:
                self.metrics.decode_seconds += time.perf_counter() - request.first_token_at
                self.metrics.decode_tokens += len(request.output) - 1
                self._leave(request)

    def _make_room(self, full: CacheFull) -> None:
        """Preempt the youngest running request, or fail the only one."""
        youngest = self.running[-1]
        if len(self.running) == 1:
            youngest.finish_reason = "error"
            youngest.error = (f"request of {len(youngest.prompt)} prompt and {len(youngest.output)} new tokens does not "
                              f"fit even alone: {full}")
            log.error(youngest.error)
            self._leave(youngest)
            return
        self.running.pop()
        self.cache.free(youngest.row)
        youngest.row, youngest.done, youngest.ready = None, 0, False
        self.waiting.appendleft(youngest)
        self.metrics.preemptions += 1
        self._hold = True

    def _leave(self, request: Request) -> None:
        if request.row is not None:
            self.cache.free(request.row)
            request.row = None
            self.running.remove(request)
            self._hold = False
        elif request in self.waiting:
            self.waiting.remove(request)
