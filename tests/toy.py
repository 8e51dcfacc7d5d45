# SPDX-License-Identifier: Apache-2.0
"""Toy Target and NextN whose tokens are functions of the last token, on the real paged cache. Both write what they saw
into their KV pages, so that a test can read back which rows exist and what they were made from."""
from __future__ import annotations

from types import SimpleNamespace

import torch

from dsv4spec.cache import KVCache
from dsv4spec.cache.batch import ForwardMode
from dsv4spec.spec.metrics import Metrics
from dsv4spec.spec.options import SpeculativeConfig
from dsv4spec.spec.plain import Chunk, PlainWorker
from dsv4spec.spec.worker import EagleWorker

VOCAB = 128


def config(**changes):
    fields = dict(num_hidden_layers=1, compress_ratios=[0, 0], sliding_window=64, head_dim=4, index_head_dim=4)
    return SimpleNamespace(**{**fields, **changes})


def successor(t):
    return t + 1


def stumbles(t):
    """The toy draft of the worked timeline: t + 1, but t + 7 when t is a multiple of 5."""
    return torch.where(t % 5 == 0, t + 7, t + 1)


def one_hot(tokens: torch.Tensor, runners_up: torch.Tensor | None = None) -> torch.Tensor:
    logits = torch.zeros(len(tokens), VOCAB)
    if runners_up is not None:
        logits[torch.arange(len(tokens)), runners_up] = 3.0
    logits[torch.arange(len(tokens)), tokens] = 5.0
    return logits


class ToyTarget:
    """Next token = ``rule(token)``. Hidden row: (token, position), what NextN must be paired with."""

    def __init__(self, rule):
        self.rule, self.batches = rule, []

    def forward(self, batch, cache):
        assert (batch.input_ids >= 0).all() and (batch.input_ids < VOCAB).all()
        self.batches.append(batch)
        hidden = torch.stack([batch.input_ids.float(), batch.positions.float()], 1)
        store(cache.target[0].kv_pages, batch, hidden)
        return hidden

    def logits(self, hidden):
        return one_hot(self.rule(hidden[:, 0].long()) % VOCAB)


class ToyNextN:
    """Next token = ``rule(token)``, and ``second(token)`` behind it. Its state: (token, position, -, -) of the row; its KV holds (token, position,
    Target token, Target position), so that a row made from the wrong hidden state shows."""

    def __init__(self, rule, second=lambda t: t + 50):
        self.rule, self.second, self.batches, self.hidden = rule, second, [], []

    def forward(self, batch, cache, hidden, picked=None):
        assert (batch.input_ids >= 0).all() and (batch.input_ids < VOCAB).all()
        self.batches.append(batch)
        self.hidden.append(hidden)
        own = torch.stack([batch.input_ids.float(), batch.positions.float()], 1)
        store(cache.draft.kv_pages, batch, torch.cat([own, hidden], 1))
        return own if picked is None else own[picked]

    def logits(self, state):
        token = state[:, 0].long()
        return one_hot(self.rule(token) % VOCAB, self.second(token) % VOCAB)


def store(pages, batch, rows):
    kept = batch.slots >= 0
    flat = pages.view(-1, pages.shape[-1])
    flat[batch.slots[kept], :rows.shape[1]] = rows[kept]


def read(cache, pages, row) -> torch.Tensor:
    """KV rows of positions 0 .. s-1 of a request (nothing recycled yet)."""
    s = cache.length(row)
    batch = cache.batch(ForwardMode.NEXTN_DECODE, [row], torch.zeros(s, dtype=torch.int64), s, start=[0])
    return pages.view(-1, pages.shape[-1])[batch.slots]


def make(target_rule, draft_rule, options=SpeculativeConfig(3), *, max_len=256, requests=8, page_size=16, **sizes):
    """(worker, cache): an EagleWorker, or a PlainWorker if ``options`` is None."""
    target, nextn = ToyTarget(target_rule), ToyNextN(draft_rule)
    sizes = {"max_total_tokens": requests * max_len, "num_draft_tokens": options.num_draft_tokens if options else 1,
             "prefill_chunk": 64, **sizes}
    cache = KVCache(config(), page_size=page_size, max_requests=requests, max_len=max_len, draft=options is not None,
                    **sizes)
    common = dict(vocab_size=VOCAB, max_requests=requests)
    if options is None:
        return PlainWorker(target, cache, Metrics(), **common), cache
    metrics = Metrics(options.num_steps)
    return EagleWorker(target, nextn, cache, options, metrics, max_len=max_len, **common), cache


def start(worker, cache, prompt) -> int:
    row = cache.open()
    worker.prefill([Chunk(row, list(prompt))])
    return row


def carried(worker, row) -> dict[str, torch.Tensor]:
    """What the worker keeps of a request for its next round, [1, ...] each."""
    return worker.carry.get([row])
