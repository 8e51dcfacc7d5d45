# SPDX-License-Identifier: Apache-2.0
"""Arguments and formulas of the fusion, mHC, attention and Target ops for ``dsv4spec bench``. ``e`` is the size of an
element of the case's dtype in bytes. A row, a weight or a key of a request counts once; tables and slots count too."""
from __future__ import annotations

import torch

from .bench_cases import WEIGHTS, spec

_MIX = "4*T*(hc + hc*hc)"                                             # post and comb
_SITE = "4*(2 + hc)*hc*hc*d + 4*(2 + hc)*hc + 12 + 2*d"               # fn, base, scale, the norm's weight
_RMS = dict(rms_eps=1e-6, hc_eps=1e-6)


@spec("T d hc weights dtype", "T={T} {weights}",
      read="2*d*d*w + scales + 4*d + e*T*d*(1 + hc)", write="e*T*d*hc", dtype_flops="2*T*d*d*(1 + hc)")
def nextn_fuse_hidden(c):
    def matrix():
        values = c.f32(c.d, c.d, scale=c.d ** -0.5)
        return (values * 64 if c.weights in ("e4m3", "int8") else values).to(WEIGHTS[c.weights])

    norms = [c.random(c.d, dtype=torch.bfloat16) for _ in range(2)]
    args = (c.random(c.T, c.d), c.random(c.T, c.hc * c.d), *norms, matrix(), matrix())
    scales = {}
    if c.weights == "e4m3":
        blocks = -(-c.d // 128)
        scales = {name: torch.full((blocks, blocks), 121, dtype=torch.uint8, device=c.device)  # 2^-6
                  for name in ("e_proj_scale", "h_proj_scale")}
    elif c.weights == "int8":
        scales = {name: torch.full((c.d,), 2.0 ** -6, device=c.device) for name in ("e_proj_scale", "h_proj_scale")}
    return args, dict(eps=1e-6, **scales)


def _weights(c, columns: int, scales: int):
    return c.f32(columns, c.hc * c.d, scale=(c.hc * c.d) ** -0.5), c.f32(columns), torch.ones(scales, device=c.device)


def _mixed(c):
    return (c.random(c.T, c.d), c.random(c.T, c.hc, c.d), torch.rand(c.T, c.hc, device=c.device),
            torch.rand(c.T, c.hc, c.hc, device=c.device))


def _norm(c):
    return dict(norm_weight=c.random(c.d, dtype=torch.bfloat16))


@spec("T d hc dtype", "T={T}", read=f"e*T*hc*d + {_SITE}", write=f"e*T*d + {_MIX}",
      flops="2*T*hc*d*((2 + hc)*hc + 2)")
def mhc_pre(c):
    return (c.random(c.T, c.hc, c.d), *_weights(c, (2 + c.hc) * c.hc, 3)), dict(_RMS, sinkhorn_iters=20, **_norm(c))


@spec("T d hc dtype", "T={T}", read=f"e*T*d*(1 + hc) + {_MIX}", write="e*T*hc*d", flops="2*T*hc*d*(hc + 1)")
def mhc_post(c):
    return _mixed(c), {}


@spec("T d hc dtype", "T={T}", read=f"e*T*d*(1 + hc) + {_MIX} + {_SITE}", write=f"e*T*d*(1 + hc) + {_MIX}",
      flops="2*T*hc*d*((2 + hc)*hc + hc + 3)")
def mhc_post_pre(c):
    return (*_mixed(c), *_weights(c, (2 + c.hc) * c.hc, 3)), dict(_RMS, sinkhorn_iters=20, **_norm(c))


@spec("T d hc dtype", "T={T}", read="e*T*hc*d + 4*hc*hc*d + 4*hc + 4 + 2*d", write="e*T*d", flops="2*T*hc*d*(hc + 2)")
def mhc_head(c):
    return (c.random(c.T, c.hc, c.d), *_weights(c, c.hc, 1)), dict(_RMS, **_norm(c))


@spec("T H D R dtype", "T={T}", read="e*T*H*D + T*(4*R + 8)", write="e*T*H*D", flops="4*T*H*D")
def q_norm_rope(c):
    return (c.random(c.T, c.H, c.D), c.angles(c.T), c.arange(c.T)), dict(eps=1e-6)


@spec("T D R page dtype", "T={T}", read="e*T*D + 2*D + T*(4*R + 16)", write="e*T*D", flops="4*T*D")
def swa_store_kv(c):
    pages = c.random(-(-2 * c.T // c.page), c.page, c.D)
    return ((c.random(c.T, c.D), c.random(c.D, dtype=torch.bfloat16), c.angles(c.T), c.arange(c.T), c.order(2 * c.T)[:c.T],
             pages), dict(eps=1e-6))


def _batch(c):
    """query_start_loc and seq_lens of B requests with ``rows`` rows each behind ``length`` committed tokens."""
    return c.arange(c.B + 1, torch.int32) * c.rows, c.i32(c.B, c.length + c.rows)


def _window(c):
    """Pages of the window and of the new rows; the rest of a request's pages is gone."""
    first, last = max(0, c.length - c.window) // c.page, (c.length + c.rows - 1) // c.page
    pages = last - first + 1
    table = torch.full((c.B, last + 1), -1, dtype=torch.int32, device=c.device)
    table[:, first:] = c.order(c.B * pages).view(c.B, pages).int()
    return c.random(c.B * pages, c.page, c.D), table


def _entries(c, page: int, width: int, count: int):
    """``count`` compressed entries of each request, in pages of their own."""
    pages = -(-count // page)
    return c.random(c.B * pages, page, width), c.order(c.B * pages).view(c.B, pages).int()


@spec("kind B rows H D R window page length dtype", "{kind} B={B} rows={rows}",
      read="e*B*D*(min(window - 1, length) + rows) + e*B*rows*H*D + 4*B*(2 + window//page + 1) + 4*H + 4*R*B*rows",
      write="e*B*rows*H*D",
      dtype_flops="4*D*H*B*seen(rows, length, window)")
def swa_paged_attention(c):
    pages, table = _window(c)
    kwargs = dict(window=c.window, scale=c.D ** -0.5, sink=c.f32(c.H), cos_sin=c.angles(c.length + c.rows))
    if c.kind == "tree":  # a binary tree: node j hangs below (j-1) // 2
        mask = torch.eye(c.rows, dtype=torch.bool)
        for j in range(1, c.rows):
            mask[j] |= mask[(j - 1) // 2]
        kwargs["tree_mask"] = mask.to(c.device).expand(c.B, c.rows, c.rows).contiguous()
    return (c.random(c.B * c.rows, c.H, c.D), pages, table, *_batch(c)), kwargs


# ratio 4 has entries that overlap (coff 2); every request's call completes an entry.
@spec("B rows D R ratio coff page length dtype", "ratio={ratio} B={B} rows={rows}",
      read="8*B*rows*coff*D + 4*B*rows*coff*D + 8*B*ratio*coff*D + 2*D + 4*B*(R + 12)",
      write="8*B*rows*coff*D + e*B*D", flops="6*B*ratio*coff*D")
def compress_kv(c):
    length = (c.length // c.ratio + 1) * c.ratio - c.rows  # the last row ends a group
    ring, T = c.coff * c.ratio + c.rows, c.B * c.rows
    state = torch.cat((c.f32(c.B, ring, c.coff * c.D), c.f32(c.B, ring, c.coff * c.D)), -1)
    made = (length + c.rows) // c.ratio - length // c.ratio
    groups = (length // c.ratio + c.arange(made)).repeat(c.B) * c.ratio
    args = (c.f32(T, c.coff * c.D), c.f32(T, c.coff * c.D), c.f32(c.ratio, c.coff * c.D),
            c.random(c.D, dtype=torch.bfloat16), c.angles(length + c.rows), state, c.order(c.B),
            c.arange(c.B + 1, torch.int32) * c.rows, c.i32(c.B, length + c.rows), groups,
            c.order(2 * c.B * made)[:c.B * made],
            c.random(-(-2 * c.B * made // c.page), c.page, c.D))
    return args, dict(ratio=c.ratio, eps=1e-6)


# Its rotated queries are float32, so that is how it multiplies.
@spec("B rows IH ID topk R page length dtype", "B={B} rows={rows} length={length}",
      read="e*B*rows*IH*ID + 4*B*rows*IH + e*B*(length//4)*ID + 4*B*(length//4//page + 3) + 4*R*B*rows",
      write="4*B*rows*topk", flops="2*B*rows*IH*(ID + 1)*(length//4)")
def lightning_index(c):
    pages, table = _entries(c, c.page, c.ID, (c.length + c.rows) // 4)
    return ((c.random(c.B * c.rows, c.IH, c.ID), c.f32(c.B * c.rows, c.IH), pages, table, *_batch(c)),
            dict(ratio=4, topk=c.topk, cos_sin=c.angles(c.length + c.rows)))


@spec("B rows H D R window page ratio topk length dtype", "ratio={ratio} B={B} rows={rows} length={length}",
      read="e*B*D*(min(window - 1, length) + rows + min(topk, length//ratio)) + e*B*rows*H*D"
           " + 4*B*rows*min(topk, length//ratio) + 4*R*B*rows",
      write="e*B*rows*H*D", dtype_flops="4*D*H*B*(seen(rows, length, window) + rows*min(topk, length//ratio))")
def sparse_paged_attention(c):
    pages, table = _window(c)
    count = c.length // c.ratio
    c_pages, c_table = _entries(c, c.page, c.D, (c.length + c.rows) // c.ratio)
    chosen = None
    if count > c.topk:  # the rows of a request, which stand side by side, choose alike
        chosen = torch.stack([c.order(count)[:c.topk].sort().values for _ in range(c.B)]).int().repeat_interleave(c.rows, 0)
    return ((c.random(c.B * c.rows, c.H, c.D), pages, table, c_pages, c_table, *_batch(c)),
            dict(window=c.window, scale=c.D ** -0.5, ratio=c.ratio, sink=c.f32(c.H), cos_sin=c.angles(c.length + c.rows),
                 indices=chosen))


# The activations that w2 multiplies are float32 by contract, so a third of the products are.
@spec("T d E experts inter shared dtype", "T={T}",
      read="e*3*d*inter*min(E, T*experts) + e*3*d*shared + e*T*d + 12*T*experts", write="e*T*d",
      dtype_flops="4*T*d*(experts*inter + shared)", flops="2*T*d*(experts*inter + shared)")
def moe_experts(c):
    ids = (c.arange(c.T * c.experts) % c.E).view(c.T, c.experts)  # all experts as evenly as can be

    def weights(*shape):
        return c.random(*shape, scale=c.d ** -0.5)

    return ((c.random(c.T, c.d), ids, torch.rand(c.T, c.experts, device=c.device), weights(c.E, 2 * c.inter, c.d),
             weights(c.E, c.d, c.inter)),
            dict(limit=10.0, shared_w13=weights(2 * c.shared, c.d), shared_w2=weights(c.d, c.shared)))


# The projections of a layer's input, and the router: float32 products whatever the dtypes are. Weights are (in, out).
@spec("T d inter dtype", "T={T}", read="e*T*d + e*d*inter", write="e*T*inter", flops="2*T*d*inter")
def linear(c):
    return (c.random(c.T, c.d), c.random(c.d, c.inter, scale=c.d ** -0.5)), {}


@spec("T d routed experts dtype", "T={T}", read="e*T*d + 4*d*routed + 4*routed", write="8*T*experts",
      flops="2*T*d*routed")
def route_experts(c):
    gate = c.f32(c.d, c.routed, scale=c.d ** -0.5)
    return (c.random(c.T, c.d), gate), dict(topk=c.experts, scaling=1.5, bias=c.f32(c.routed))
