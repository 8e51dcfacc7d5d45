# SPDX-License-Identifier: Apache-2.0
"""What a longer context costs one decode step of window attention: it must be nothing."""
from __future__ import annotations

import statistics
import time

import torch

from . import ops
from .cache import ForwardMode, KVCache

SHORT, LONG, STEPS, REPEATS = 1024, 32768, 200, 7
PAGE = 64


def context_ratio(config, dtype, device) -> float:
    """Time of a decode step's window attention (metadata, KV store, attention) at 32k over that at 1k context, one
    request, median of interleaved repeats. The cache's pages come from a prefill without a model: contents are zero,
    which no kernel looks at."""
    cases = {length: _Case(config, dtype, device, length) for length in (SHORT, LONG)}
    seconds = {length: [] for length in cases}
    for repeat in range(REPEATS + 1):
        for length, case in cases.items():
            took = case.time()
            seconds[length] += [took] if repeat else []
    return statistics.median(seconds[LONG]) / statistics.median(seconds[SHORT])


class _Case:
    def __init__(self, config, dtype, device, length: int):
        self.config, self.device, self.length = config, device, length
        self.cache = KVCache(_window_only(config), page_size=PAGE, max_requests=1, max_total_tokens=4096,
                             max_len=LONG + 2 * STEPS * (REPEATS + 2), num_draft_tokens=1, prefill_chunk=512, dtype=dtype,
                             device=device, draft=False)
        self.row = self.cache.open()
        for start in range(0, length, 512):
            self.cache.batch(ForwardMode.TARGET_PREFILL, [self.row], torch.zeros(512, dtype=torch.int64, device=device), 512)
            self.cache.commit([self.row], [512])
        heads, dim, rope = config.num_attention_heads, config.head_dim, config.qk_rope_head_dim
        self.q = torch.randn(1, heads, dim, device=device).to(dtype)
        self.kv = torch.randn(1, dim, device=device).to(dtype)
        self.norm = torch.ones(dim, device=device)
        self.table = torch.ones(self.cache.max_len, rope, device=device)
        self.token = torch.zeros(1, dtype=torch.int64, device=device)

    def time(self) -> float:
        c, pages = self.config, self.cache.target[0].kv_pages
        start = time.perf_counter()
        for _ in range(STEPS):
            batch = self.cache.batch(ForwardMode.TARGET_DECODE, [self.row], self.token, 1)
            ops.swa_store_kv(self.kv, self.norm, self.table, batch.positions, batch.slots, pages, eps=c.rms_norm_eps)
            out = ops.swa_paged_attention(self.q, pages, batch.table, batch.query_start_loc, batch.seq_lens,
                                          window=c.sliding_window, scale=c.softmax_scale, cos_sin=self.table)
            self.cache.commit([self.row], [1])
        out.sum().item()  # a device has run everything
        return time.perf_counter() - start


def _window_only(config):
    import dataclasses

    return dataclasses.replace(config, num_hidden_layers=1, compress_ratios=(0,))
