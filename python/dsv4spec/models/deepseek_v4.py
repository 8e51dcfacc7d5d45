# SPDX-License-Identifier: Apache-2.0
"""The Target: DeepSeek-V4's main stack over the paged caches."""
from __future__ import annotations

import torch

from ..cache import ForwardBatch, KVCache
from .buffers import Buffers, RopeTables
from .checkpoint import Checkpoint
from .config import DeepseekV4Config
from .dense import Linear
from .layers import DecoderLayer, Head, run_layers
from .weights import Weights, target_tensors


class DeepseekV4Target:
    """The main stack. Attributes ``embed`` ``[vocab, d]`` and ``head`` are shared with the NextN layer."""

    def __init__(self, config: DeepseekV4Config, weights: Weights):
        self.config, self.dtype, self.device = config, weights.dtype, weights.device
        self.embed, self.head = weights("embed.weight"), Linear(weights.narrow(["head.weight"]))
        self.tables = RopeTables(config, self.device)
        self.buffers = Buffers(config, self.dtype, self.device)
        self.layers = [DecoderLayer(config, weights, f"layers.{i}.", ratio=ratio, hashed=i < config.num_hash_layers)
                       for i, ratio in enumerate(config.compress_ratios)]
        self._logits = Head(config, weights, "", self.head)
        weights.finish()

    @classmethod
    def from_checkpoint(cls, checkpoint, config: DeepseekV4Config, *, dtype: torch.dtype = torch.float32,
                        device="cpu") -> DeepseekV4Target:
        """Load from a directory or a :class:`Checkpoint`. CheckpointError lists what is missing or wrong."""
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(checkpoint, config.num_hidden_layers)
        specs = target_tensors(config)
        return cls(config, Weights(checkpoint, specs, block=config.block, dtype=dtype, device=device, what="Target"))

    @torch.no_grad()
    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """All rows of ``batch`` through the stack, writing their KV: ``[T, hc*d]``, the state before the hc head
        and the final norm (stream-major). Token ids outside the vocabulary (-1 markers) read some ordinary
        embedding."""
        c = self.config
        ids = batch.input_ids.clamp(0, c.vocab_size - 1)
        streams = torch.embedding(self.embed, ids)[:, None].expand(-1, c.hc_mult, -1)
        return run_layers(c, self.layers, cache.target, streams, ids, batch, self.tables.of(cache),
                          self.buffers.of(len(ids)))

    @torch.no_grad()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits ``[R, vocab]`` float32 of states ``[R, hc*d]``."""
        return self._logits(hidden)
