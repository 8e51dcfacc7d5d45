# SPDX-License-Identifier: Apache-2.0
"""The draft: DeepSeek-V4's one NextN (MTP) layer, window-only, with the Target's embedding and head."""
from __future__ import annotations

import torch

from .. import ops
from ..cache import ForwardBatch, KVCache
from .checkpoint import Checkpoint
from .config import DeepseekV4Config
from .deepseek_v4 import DeepseekV4Target
from .layers import DecoderLayer, Head, Pick, run_layers
from .weights import Weights, nextn_tensors

_P = "mtp.0."


class DeepseekV4NextN:
    """The NextN layer: ratio 0, top-k gate (never hash routing), own hc head and final norm."""

    def __init__(self, config: DeepseekV4Config, weights: Weights, target: DeepseekV4Target):
        self.config, self.target = config, target
        self.embed = target.embed
        self.enorm, self.hnorm = (weights(f"{_P}{n}.weight", torch.float32) for n in ("enorm", "hnorm"))
        # FP8 and int8 projections stay as they are: the fusion op reads codes and scales.
        (self.e_proj, self.e_scale), (self.h_proj, self.h_scale) = weights.packed(
            [f"{_P}{n}.weight" for n in ("e_proj", "h_proj")])
        self.layer = DecoderLayer(config, weights, _P, ratio=0, hashed=False)
        self._logits = Head(config, weights, _P, target.head)
        weights.finish()

    @classmethod
    def from_checkpoint(cls, checkpoint, config: DeepseekV4Config, *, target: DeepseekV4Target) -> DeepseekV4NextN:
        """Load ``mtp.0.*`` from a directory or a :class:`Checkpoint`, in the dtype and on the device of ``target``.
        CheckpointError lists what is missing or wrong."""
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(checkpoint, config.num_hidden_layers)
        weights = Weights(checkpoint, nextn_tensors(config), block=config.block, dtype=target.dtype,
                          device=target.device, what="NextN layer (mtp.0)")
        return cls(config, weights, target)

    @torch.no_grad()
    def forward(self, batch: ForwardBatch, cache: KVCache, hidden: torch.Tensor,
                picked: torch.Tensor | None = None) -> torch.Tensor:
        """One step of the draft.

        Args:
            batch: its ids are the *next* tokens: row i pairs the state of token i with token i + 1, at position i.
            hidden: ``[T, hc*d]``: the Target's states before its hc head, or this method's own result.
            picked: int64 ``[B]``, one row of each request in order (of a causal batch), or None for all rows. The KV of
                every row is stored; of the rows not picked nothing else is computed.

        Returns:
            ``[T or B, hc*d]``, the states before this layer's hc head. ValueError if ``hidden`` has another shape.
        """
        c = self.config
        T = batch.input_ids.shape[0]
        if tuple(hidden.shape) != (T, c.nextn_hidden_size):
            raise ValueError(f"nextn.forward: hidden: expected shape [T={T}, hc_mult*hidden_size="
                             f"{c.nextn_hidden_size}] ({c.hc_mult} streams before the hc head), got "
                             f"{list(hidden.shape)}")
        buffers, pick = self.target.buffers, None
        own, ids = buffers.of(T), batch.input_ids.clamp(0, c.vocab_size - 1)
        streams = ops.nextn_fuse_hidden(torch.embedding(self.embed, ids), hidden, self.enorm, self.hnorm, self.e_proj,
                                        self.h_proj, eps=c.rms_norm_eps, e_proj_scale=self.e_scale,
                                        h_proj_scale=self.h_scale, out=own.fused)
        if picked is not None:
            room = buffers.of(len(picked))
            pick = Pick(picked, batch.one_row_each(picked, room.counting), room)
        return run_layers(c, [self.layer], [cache.draft], streams, ids, batch, self.target.tables.of(cache),
                          own, pick)

    @torch.no_grad()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits ``[R, vocab]`` float32 of states ``[R, hc*d]``, by this layer's own hc head and norm."""
        return self._logits(hidden)
