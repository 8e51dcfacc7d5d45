# SPDX-License-Identifier: Apache-2.0
"""The decoder layer that the Target and the NextN layer share: attention of three kinds, MoE, and mHC around both.

Projections of one input are stacked into one matrix product (dense.py). Boundaries of sub-layers are one op: ``mhc_post_pre``
closes one, opens the next and applies its norm.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch

from .. import ops
from ..cache import CompressedView, ForwardBatch, LayerCache
from .buffers import RopeTables, Rows
from .config import DeepseekV4Config
from .dense import Linear, Router
from .weights import Weights


@dataclass(slots=True)
class Site:
    """mHC weights of one sub-layer, and the weight of the norm that follows."""

    fn: torch.Tensor
    base: torch.Tensor
    scale: torch.Tensor
    norm: torch.Tensor

    @classmethod
    def take(cls, w: Weights, hc: str, norm: str) -> Site:
        f32 = torch.float32
        return cls(w(f"{hc}_fn", f32), w(f"{hc}_base", f32), w(f"{hc}_scale", f32), w(f"{norm}.weight", f32))


class Compressor:
    """Weights of one compressor besides its projections."""

    def __init__(self, w: Weights, prefix: str, ratio: int, eps: float):
        self.ape, self.norm = w(f"{prefix}.ape", torch.float32), w(f"{prefix}.norm.weight", torch.float32)
        self.ratio, self.eps, self.width = ratio, eps, self.ape.shape[1]

    def __call__(self, kv, gate, state, pages, view: CompressedView, batch: ForwardBatch, cos_sin) -> None:
        ops.compress_kv(kv, gate, self.ape, self.norm, cos_sin, state.data, batch.rows, batch.query_start_loc,
                        batch.seq_lens, *view.entries(), pages, ratio=self.ratio, eps=self.eps)


@dataclass(slots=True)
class Pick:
    """The rows that a last layer is asked for, where its KV alone is wanted of the others: their numbers (int64 [B], one
    of each request), the batch that they make, and room for their results."""

    rows: torch.Tensor
    batch: ForwardBatch
    room: Rows


class Attention:
    """Window attention, with compressed entries where ``ratio`` is 4 (indexer's choice) or 128 (all)."""

    def __init__(self, c: DeepseekV4Config, w: Weights, prefix: str, ratio: int):
        self.c, self.ratio = c, ratio
        p = prefix + "attn."
        compressed = [f"{p}compressor.wkv.weight", f"{p}compressor.wgate.weight"] if ratio else []
        if ratio == 4:
            index = f"{p}indexer."
            compressed += [f"{index}compressor.wkv.weight", f"{index}compressor.wgate.weight",
                           f"{index}weights_proj.weight"]
        # The compressors' inputs are fp32 whatever the stream: one product more only if the stream is not fp32.
        first, self.widths, fp32_widths = [f"{p}wq_a.weight", f"{p}wkv.weight"], (c.q_lora_rank, c.head_dim), []
        if ratio:
            self.compressor = Compressor(w, f"{p}compressor", ratio, c.rms_norm_eps)
            fp32_widths = [self.compressor.width] * 2
        if ratio == 4:
            self.index_compressor = Compressor(w, f"{index}compressor", ratio, c.rms_norm_eps)
            fp32_widths += [self.index_compressor.width] * 2 + [c.index_n_heads]
        self.w_fp32, self.fp32_widths = None, fp32_widths
        if w.dtype == torch.float32:
            first, self.widths = first + compressed, (*self.widths, *fp32_widths)
        elif ratio:
            self.w_fp32 = Linear(w.stack(compressed, torch.float32))
        self.w_in = Linear(w.narrow(first))
        queries = [f"{p}wq_b.weight"] + ([f"{index}wq_b.weight"] if ratio == 4 else [])
        self.q_rows = c.num_attention_heads * c.head_dim
        wq_b, q_norm = w.narrow(queries), w(f"{p}q_norm.weight", torch.float32)
        self.wq_b_index = Linear(wq_b, norm_weight=q_norm, eps=c.rms_norm_eps)
        self.wq_b = self.wq_b_index if ratio != 4 else Linear(wq_b[:self.q_rows], norm_weight=q_norm, eps=c.rms_norm_eps)
        self.kv_norm = w(f"{p}kv_norm.weight", torch.float32)
        self.sink = w(f"{p}attn_sink", torch.float32)
        self.wo_a, self.wo_b = Linear(w.narrow([f"{p}wo_a.weight"]), groups=c.o_groups), Linear(w.narrow([f"{p}wo_b.weight"]))

    def __call__(self, x: torch.Tensor, batch: ForwardBatch, cache: LayerCache, tables: RopeTables, room: Rows,
                 pick: Pick | None = None) -> torch.Tensor:
        """``pick``: store the KV of all rows, and return the picked ones' results (window attention only)."""
        c, ratio = self.c, self.ratio
        H, D = c.num_attention_heads, c.head_dim
        cos_sin = tables.compressed if ratio else tables.plain
        qr, kv, *wide = self.w_in.split(x, self.widths, room, "in")
        if self.w_fp32 is not None:
            wide = self.w_fp32(x.float()).split_with_sizes(self.fp32_widths, 1)
        ops.swa_store_kv(kv, self.kv_norm, cos_sin, batch.positions, batch.slots, cache.kv_pages, eps=c.rms_norm_eps)
        if pick is not None:
            assert not ratio, "compressed entries need the scores of every row"
            qr, batch, room = qr.index_select(0, pick.rows), pick.batch, pick.room
        T = qr.shape[0]
        view = batch.c4 if ratio == 4 else batch.c128
        choose = ratio == 4 and view.table.shape[1] * view.page > c.index_topk  # else every visible entry is chosen
        q = (self.wq_b_index if choose else self.wq_b)(qr, room, "q")
        q_index = q[:, self.q_rows:] if choose else None
        q = (q[:, :self.q_rows] if choose else q).view(T, H, D)
        q = ops.q_norm_rope(q, cos_sin, batch.positions, eps=c.rms_norm_eps, out=q)
        rest = dict(window=c.sliding_window, scale=c.softmax_scale, sink=self.sink, cos_sin=cos_sin, out=room.heads)
        if not ratio:
            o = ops.swa_paged_attention(q, cache.kv_pages, batch.table, batch.query_start_loc, batch.seq_lens,
                                        tree_mask=batch.tree_mask, **rest)
            return self._out(o, T, room)
        self.compressor(wide[0], wide[1], cache.state, cache.c_pages, view, batch, cos_sin)
        if ratio == 4:
            self.index_compressor(wide[2], wide[3], cache.index_state, cache.index_pages, view, batch, cos_sin)
        indices = self._choose(q_index, wide[4], view, batch, cache, cos_sin) if choose else None
        o = ops.sparse_paged_attention(q, cache.kv_pages, batch.table, cache.c_pages, view.table, batch.query_start_loc,
                                       batch.seq_lens, ratio=ratio, indices=indices, **rest)
        return self._out(o, T, room)

    def _choose(self, q, weights, view, batch, cache, cos_sin) -> torch.Tensor:
        c = self.c
        return ops.lightning_index(
            q.view(q.shape[0], c.index_n_heads, c.index_head_dim), weights, cache.index_pages, view.table,
            batch.query_start_loc, batch.seq_lens, ratio=4, topk=c.index_topk, cos_sin=cos_sin)

    def _out(self, o: torch.Tensor, T: int, room: Rows) -> torch.Tensor:
        return self.wo_b(self.wo_a(o.view(T, self.q_rows), room, "a"), room, "b")


class MoE:
    """Routed experts, chosen by the gate or (hash layers) by the token, plus the shared experts."""

    def __init__(self, c: DeepseekV4Config, w: Weights, prefix: str, hashed: bool):
        p, inter = prefix + "ffn.", c.moe_intermediate_size
        self.limit, self.router = c.swiglu_limit, Router(c, w, f"{p}gate.", hashed)
        shared = f"{p}shared_experts."
        matrices = [f"{p}experts.{e}.{m}.weight" for e in range(c.n_routed_experts) for m in ("w1", "w2", "w3")]
        if c.n_shared_experts:
            matrices += [f"{shared}{m}.weight" for m in ("w1", "w2", "w3")]
        dtype = w.narrow_dtype(matrices)
        options = dict(dtype=dtype, device=w.device)
        self.w13 = torch.empty(c.n_routed_experts, 2 * inter, c.hidden_size, **options)
        self.w2 = torch.empty(c.n_routed_experts, c.hidden_size, inter, **options)
        for e in range(c.n_routed_experts):
            name = f"{p}experts.{e}."
            self.w13[e, :inter], self.w13[e, inter:] = w(name + "w1.weight", dtype), w(name + "w3.weight", dtype)
            self.w2[e] = w(name + "w2.weight", dtype)
        self.shared = {}
        if c.n_shared_experts:
            self.shared = dict(shared_w13=w.stack((shared + "w1.weight", shared + "w3.weight"), dtype),
                               shared_w2=w(shared + "w2.weight", dtype))

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, room: Rows) -> torch.Tensor:
        chosen, weights = self.router(x, ids, room)
        return ops.moe_experts(x, chosen, weights, self.w13, self.w2, limit=self.limit, out=room.experts,
                               **self.shared)


class DecoderLayer:
    """Attention and MoE of one layer with their two mHC sites."""

    def __init__(self, c: DeepseekV4Config, w: Weights, prefix: str, *, ratio: int, hashed: bool):
        self.attention_site = Site.take(w, prefix + "hc_attn", prefix + "attn_norm")
        self.attention = Attention(c, w, prefix, ratio)
        self.moe_site = Site.take(w, prefix + "hc_ffn", prefix + "ffn_norm")
        self.moe = MoE(c, w, prefix, hashed)


def run_layers(c: DeepseekV4Config, layers: list[DecoderLayer], caches: list[LayerCache], streams: torch.Tensor,
               ids: torch.Tensor, batch: ForwardBatch, tables: RopeTables, room: Rows,
               pick: Pick | None = None) -> torch.Tensor:
    """``streams`` [T, hc, d] through the layers; the last mix is executed, so the result is the state [T, hc*d] before
    the hc head. With ``pick``, the last layer stores the KV of all rows and yields the states [B, hc*d] of those."""
    options = dict(rms_eps=c.rms_norm_eps, hc_eps=c.hc_eps, sinkhorn_iters=c.hc_sinkhorn_iters)
    site = layers[0].attention_site
    here, other = room.sites
    into_here, into_other = (room.streams, *here), (room.streams, *other)
    y, post, comb = ops.mhc_pre(streams, site.fn, site.base, site.scale, norm_weight=site.norm, out=here, **options)
    for i, (layer, cache) in enumerate(zip(layers, caches)):
        last = i + 1 == len(layers)
        y = layer.attention(y, batch, cache, tables, room, pick if last else None)
        if last and pick is not None:
            streams, post, comb = (x.index_select(0, pick.rows) for x in (streams, post, comb))
            ids = ids if layer.moe.router.table is None else ids.index_select(0, pick.rows)
            room, into_other = pick.room, (pick.room.streams, *pick.room.sites[1])
        site = layer.moe_site
        streams, y, post, comb = ops.mhc_post_pre(y, streams, post, comb, site.fn, site.base, site.scale,
                                                  norm_weight=site.norm, out=into_other, **options)
        y = layer.moe(y, ids, room)
        if not last:
            site = layers[i + 1].attention_site
            streams, y, post, comb = ops.mhc_post_pre(y, streams, post, comb, site.fn, site.base, site.scale,
                                                      norm_weight=site.norm, out=into_here, **options)
    return ops.mhc_post(y, streams, post, comb).flatten(1)


class Head:
    """hc head, final norm and the vocabulary projection."""

    def __init__(self, c: DeepseekV4Config, w: Weights, prefix: str, head: Linear):
        self.c, self.head = c, head
        self.site = Site.take(w, prefix + "hc_head", prefix + "norm")

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        c, site = self.c, self.site
        x = ops.mhc_head(hidden.view(hidden.shape[0], c.hc_mult, c.hidden_size), site.fn, site.base, site.scale,
                         rms_eps=c.rms_norm_eps, hc_eps=c.hc_eps, norm_weight=site.norm)
        return self.head(x).float()
