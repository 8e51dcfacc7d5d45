# SPDX-License-Identifier: Apache-2.0
"""A checkpoint folder in, text out: requests, streaming, metrics."""
from __future__ import annotations

import logging
from typing import Iterator, Sequence

import torch

from . import ops
from .cache import KVCache
from .cache.allocation import C128_PAGE
from .models import load_model
from .placement import resolve_device, resolve_dtype, torch_threads
from .request import GenerationOutput, Request, SamplingParams, StreamChunk
from .scheduler import Scheduler
from .spec.graphs import GraphOptions, graphs_for
from .spec.metrics import Metrics
from .spec.options import SpeculativeConfig
from .spec.plain import PlainWorker
from .spec.tree import window_rows
from .spec.worker import EagleWorker
from .text import TextStream, Tokenizer

log = logging.getLogger("dsv4spec")

_OUT_OF_SCOPE = ("tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size", "expert_parallel_size",
                 "disaggregation_mode", "enable_prefix_caching")


class GenerationError(RuntimeError):
    """Some requests could not be finished. ``outputs`` holds all results, those of the other requests whole."""

    def __init__(self, message: str, outputs: list[GenerationOutput]):
        super().__init__(message)
        self.outputs = outputs


def raise_errors(outputs: list[GenerationOutput]) -> list[GenerationOutput]:
    """The outputs, or GenerationError with them if a request failed."""
    errors = [f"prompt {i}: {output.error}" for i, output in enumerate(outputs) if output.error]
    if errors:
        raise GenerationError("; ".join(errors), outputs)
    return outputs


class Engine:
    """Runs a DeepSeek-V4 checkpoint, with its NextN layer as the drafter, on one device. Greedy.

    Args:
        directory: ``config.json``, ``*.safetensors`` and, for text, ``tokenizer.json``.
        speculative: a SpeculativeConfig; None for plain decoding; "auto": the default counts if the checkpoint has
            ``mtp.0``, else plain (``engine.speculative`` says which).
        dtype: "auto" (float32 on the CPU, the checkpoint's on devices), "float32", "bfloat16" or a torch dtype.
        device: "auto", "cpu", "cuda" or "npu".
        backend: name for :func:`dsv4spec.use_backend`; None: the one in use, else the device's own.
        missing: what an op without a kernel does: "error" raises, "reference" runs its reference;
            ``metrics()["reference_ops"]`` lists the ops that did.
        page_size: tokens of a window page, a multiple of 4.
        max_running_requests: requests that share a forward; the others wait.
        max_total_tokens: tokens that all running requests together may hold; when it is too few, the youngest request
            gives way and resumes later.
        chunked_prefill_size: most prompt tokens in one forward.
        max_len: prompt and output tokens of one request; a request that reaches it ends with "length".
        disable_cuda_graph, cuda_graph_max_bs, cuda_graph_bs, disable_cuda_graph_padding: rounds on a CUDA device are
            captured per padded batch size, see spec/graphs.py. ``metrics()["cuda_graphs"]`` counts rounds replayed, and
            those that ran op by op, by reason.

    Raises:
        ValueError: options out of range or out of scope (parallelism over devices, prefill-decode disaggregation,
            prefix sharing between requests), and checkpoints that cannot be loaded; the text names the cause.
    """

    def __init__(self, directory, *, speculative: SpeculativeConfig | str | None = "auto", dtype="auto", device="auto",
                 backend: str | None = None, missing: str = "error", page_size: int = 64,
                 max_running_requests: int = 8, max_total_tokens: int | None = None, chunked_prefill_size: int = 512,
                 max_len: int | None = None, disable_cuda_graph: bool = False, cuda_graph_max_bs: int | None = None,
                 cuda_graph_bs: Sequence[int] | None = None, disable_cuda_graph_padding: bool = False, **out_of_scope):
        _refuse_out_of_scope(out_of_scope)
        graphs = GraphOptions(disable_cuda_graph, cuda_graph_max_bs,
                              None if cuda_graph_bs is None else tuple(cuda_graph_bs), disable_cuda_graph_padding)
        if speculative not in ("auto", None) and not isinstance(speculative, SpeculativeConfig):
            raise ValueError(f"Engine: speculative: expected a SpeculativeConfig, None or 'auto', got {speculative!r}")
        for name, value in (("page_size", page_size), ("max_running_requests", max_running_requests),
                            ("chunked_prefill_size", chunked_prefill_size)):
            if value < 1:
                raise ValueError(f"Engine: {name}: expected at least 1, got {value}")
        self.device = resolve_device(device)
        self.backend = backend if backend is not None else ops.current_backend()
        self.missing = missing
        self._reference_ops: set[str] = set()
        with self._routed():
            wanted = None if speculative == "auto" else speculative is not None
            self.dtype = resolve_dtype(dtype, self.device, directory)
            self.config, target, nextn = load_model(directory, dtype=self.dtype, device=self.device, nextn=wanted)
        if speculative == "auto":
            speculative = SpeculativeConfig() if nextn is not None else None
        self.speculative: SpeculativeConfig | None = speculative
        if speculative is not None:
            speculative.check_target(self.config.compress_ratios[:self.config.num_hidden_layers])
        self.max_len = min(self.config.max_position_embeddings, 32768) if max_len is None else max_len
        if not 2 <= self.max_len <= self.config.max_position_embeddings:
            raise ValueError(f"Engine: max_len: expected 2 <= max_len <= max_position_embeddings "
                             f"{self.config.max_position_embeddings}, got {max_len}")
        total = max_total_tokens
        if total is None:
            each = -(-self.max_len // page_size) * page_size  # a request holds whole pages
            total = max(each, min(max_running_requests * each, 262144))
        self.cache = KVCache(self.config, page_size=page_size, max_requests=max_running_requests, max_total_tokens=total,
                             max_len=self.max_len, num_draft_tokens=window_rows(speculative) if speculative else 1,
                             prefill_chunk=chunked_prefill_size, dtype=self.dtype, device=self.device,
                             draft=speculative is not None)
        worker = self._worker(target, nextn, max_running_requests)
        with self._routed(), torch.inference_mode(), torch_threads(self.config, self.device):
            worker.graphs = graphs_for(worker, graphs)
        self._scheduler = Scheduler(worker, self.cache, max_running=max_running_requests,
                                    prefill_budget=chunked_prefill_size)
        self.tokenizer = Tokenizer.of(directory)

    def _worker(self, target, nextn, rows: int) -> PlainWorker:
        counts = Metrics(self.speculative.num_steps if self.speculative else 0)
        common = dict(vocab_size=self.config.vocab_size, max_requests=rows, device=self.device)
        if self.speculative is None:
            return PlainWorker(target, self.cache, counts, **common)
        return EagleWorker(target, nextn, self.cache, self.speculative, counts, max_len=self.max_len, **common)

    # ------------------------------------------------------------------------------------------ whole requests
    def generate(self, prompts, params: SamplingParams | Sequence[SamplingParams] | None = None
                 ) -> list[GenerationOutput]:
        """Decode prompts (each a list of token ids or a text) together; results in their order.

        Args:
            prompts: list of prompts. params: one for all, or one each; default ``SamplingParams()``.

        Raises:
            ValueError: a prompt that is empty, holds ids outside the vocabulary, or can never fit; nothing was run.
            GenerationError: the pools are too small for a request even alone; the others were finished.
        """
        requests = self._requests(prompts, params)
        for request in requests:
            self._scheduler.add(request)
        try:
            # Once around all steps: torch's products are slow for a while after each change of the thread count.
            with self._routed(), torch_threads(self.config, self.device):
                while any(request.finish_reason is None for request in requests):
                    self.step()
        finally:
            for request in requests:
                self.abort(request)
        return raise_errors([request.result() for request in requests])

    def stream(self, prompts, params: SamplingParams | Sequence[SamplingParams] | None = None
               ) -> Iterator[StreamChunk]:
        """As :meth:`generate`, giving tokens out as they are confirmed: the joined chunks equal its result. The last
        chunk of a request carries its output (``finish_reason`` "error" if it could not be finished). Closing the
        iterator aborts what still runs."""
        return self._chunks(self._requests(prompts, params))

    def _chunks(self, requests: list[Request]) -> Iterator[StreamChunk]:
        open_ = dict(enumerate(requests))
        for request in requests:  # not before the first chunk is asked for: an iterator that never starts never ends
            self._scheduler.add(request)
        try:
            while open_:
                self.step()
                for index, request in list(open_.items()):
                    chunk = request.chunk(index)
                    if chunk is None:
                        continue
                    if chunk.output is not None:
                        del open_[index]
                    yield chunk
        finally:
            for request in requests:
                self.abort(request)

    # -------------------------------------------------------------------------------------------- step by step
    def submit(self, prompt, params: SamplingParams | None = None) -> Request:
        """Queue one request; it joins at the next :meth:`step` that has room. ValueError as :meth:`generate`."""
        request = self._request(prompt, params or SamplingParams())
        self._scheduler.add(request)
        return request

    @torch.inference_mode()
    def step(self) -> None:
        """One prefill batch and one decode round of everything that runs."""
        with self._routed(), torch_threads(self.config, self.device):
            self._scheduler.step()

    def abort(self, request: Request) -> None:
        """End a request between steps; nothing happens if it has ended."""
        self._scheduler.abort(request)

    # ------------------------------------------------------------------------------------------------- metrics
    def metrics(self) -> dict:
        """Counters since the start or :meth:`reset_metrics` (keys: spec/metrics.py), and ``reference_ops``."""
        return {**self._scheduler.metrics.report(), "reference_ops": sorted(self._reference_ops)}

    def reset_metrics(self) -> None:
        """Counters and times of :meth:`metrics` start again at zero."""
        self._scheduler.metrics.reset()
        self._reference_ops.clear()

    # ------------------------------------------------------------------------------------------------- helpers
    def _routed(self):
        return ops.use_backend(self.backend, missing=self.missing, used=self._reference_ops)

    def _requests(self, prompts, params) -> list[Request]:
        """All are checked before one is queued."""
        if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], int)):
            raise ValueError("Engine: prompts: expected a list of prompts, got a single one; put it in a list")
        params = params if params is not None else SamplingParams()
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise ValueError(f"Engine: params: expected one, or one for each of {len(prompts)} prompts, got {len(each)}")
        return [self._request(prompt, p) for prompt, p in zip(prompts, each)]

    def _request(self, prompt, params: SamplingParams) -> Request:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError("Engine: prompt: expected token ids (the checkpoint has no tokenizer.json), got text")
            prompt = self.tokenizer.encode(prompt)
        prompt = [int(token) for token in prompt]
        if params.stop and self.tokenizer is None:
            raise ValueError(f"Engine: stop: expected none without a tokenizer.json, got {params.stop}")
        self._check_prompt(prompt)
        text = TextStream(self.tokenizer, params.stop) if self.tokenizer is not None else None
        return Request(prompt, params, frozenset(self.config.eos_token_ids), self.max_len, self.speculative is not None,
                       text)

    def _check_prompt(self, prompt: list[int]) -> None:
        if not 1 <= len(prompt) < self.max_len:
            raise ValueError(f"Engine: prompt: expected 1..{self.max_len - 1} tokens (max_len {self.max_len}), "
                             f"got {len(prompt)}")
        wrong = [token for token in prompt if not 0 <= token < self.config.vocab_size]
        if wrong:
            raise ValueError(f"Engine: prompt: expected token ids 0..{self.config.vocab_size - 1}, got {wrong[0]}")
        pools = self.cache.usage()["pools"]
        for pool, tokens in (("C4", self.cache.page_size), ("C128", 128 * C128_PAGE)):
            if pool in pools and len(prompt) // tokens > pools[pool]["total"]:
                raise ValueError(f"Engine: prompt: expected at most {pools[pool]['total'] * tokens} tokens (the {pool} "
                                 f"pool; raise max_total_tokens), got {len(prompt)}")


def _refuse_out_of_scope(options: dict) -> None:
    for name, value in options.items():
        if name not in _OUT_OF_SCOPE:
            raise TypeError(f"Engine: unknown option {name!r}")
        if value is True or value not in (None, False, 1):
            raise ValueError(f"Engine: {name}: expected 1 or off (one device per process; a serving engine that calls the "
                             f"ops does the rest), got {value!r}")
