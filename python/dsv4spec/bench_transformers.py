# SPDX-License-Identifier: Apache-2.0
"""transformers' modules for the same work, as it runs them eagerly. Each function takes the arguments of an op and gives
``(call, pick)`` as in bench_peers."""
from __future__ import annotations

from types import SimpleNamespace

import torch

MOST_BYTES = 1 << 30  # that one tensor of its may take


def _modeling():
    from transformers.models.deepseek_v4 import modeling_deepseek_v4

    return modeling_deepseek_v4


def _set(module, **values):
    for name, value in values.items():
        setattr(module, name, torch.nn.Parameter(value, requires_grad=False))
    return module


def _normed(weight, eps):
    """RMSNorm behind a collapse of streams, as the decoder layer has it."""
    if weight is None:
        return lambda y: y
    module = _modeling().DeepseekV4RMSNorm(weight.shape[0], eps=eps)
    return _set(module, weight=weight)


def _mhc_pre(residual, fn, base, scale, *, rms_eps, hc_eps, sinkhorn_iters, norm_weight=None):
    config = SimpleNamespace(hc_mult=residual.shape[1], hc_sinkhorn_iters=sinkhorn_iters, hc_eps=hc_eps,
                             rms_norm_eps=rms_eps, hidden_size=8)
    module = _set(_modeling().DeepseekV4HyperConnection(config), fn=fn, base=base, scale=scale)
    norm = _normed(norm_weight, rms_eps)

    def call():
        post, comb, y = module(residual[None])
        return norm(y)[0], post[0], comb[0]

    return call, lambda want: want


def _mhc_head(residual, fn, base, scale, *, rms_eps, hc_eps, norm_weight=None):
    config = SimpleNamespace(hc_mult=residual.shape[1], hc_eps=hc_eps, rms_norm_eps=rms_eps, hidden_size=8)
    module = _set(_modeling().DeepseekV4HyperHead(config), hc_fn=fn, hc_base=base, hc_scale=scale)
    norm = _normed(norm_weight, rms_eps)
    return lambda: norm(module(residual[None]))[0], lambda want: want


def _moe_experts(x, topk_ids, topk_weights, w13, w2, *, limit, shared_w13=None, shared_w2=None):
    modeling = _modeling()
    E, d, inter = w2.shape
    config = SimpleNamespace(num_local_experts=1, hidden_size=8, intermediate_size=8, hidden_act="silu",
                             swiglu_limit=limit, mlp_bias=False, _experts_implementation="eager")
    experts = _set(modeling.DeepseekV4Experts(config), gate_up_proj=w13, down_proj=w2)
    experts.num_experts, experts.hidden_dim, experts.intermediate_dim = E, d, inter
    shared = modeling.DeepseekV4MLP(config)
    if shared_w13 is not None:
        gate, up = shared_w13.chunk(2)
        for part, weight in ((shared.gate_proj, gate), (shared.up_proj, up), (shared.down_proj, shared_w2)):
            _set(part, weight=weight)

    def call():
        out = experts(x, topk_ids, topk_weights)
        return out + shared(x) if shared_w13 is not None else out

    return call, lambda want: want


def _swa_paged_attention(q, kv_pages, block_table, query_start_loc, seq_lens, *, window, scale, sink=None, cos_sin=None,
                         tree_mask=None):
    """Its attention over the keys of each request, gathered before; without the rotation of the output."""
    from .reference.attention import rope

    if tree_mask is not None:
        raise ValueError("no tree masks")
    modeling, (page, D), H = _modeling(), kv_pages.shape[1:], q.shape[1]
    if (repeated := seq_lens.shape[0] * H * window * D * q.element_size()) > MOST_BYTES:
        raise ValueError(f"its keys, repeated for every head, are {repeated / 1e9:.1f} GB")
    B, rows = seq_lens.shape[0], int(query_start_loc[1])
    length = int(seq_lens[0])
    first = max(0, length - rows - window + 1)
    positions = torch.arange(first, length, device=q.device)
    keys = kv_pages[block_table.long()[:, positions // page].clamp(min=0), positions % page][:, None].contiguous()
    query_at = torch.arange(length - rows, length, device=q.device)[:, None]
    seen = (positions <= query_at) & (positions > query_at - window)
    mask = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill(~seen, -torch.inf)[None, None]
    query = q.view(B, rows, H, D).transpose(1, 2).contiguous()
    module = SimpleNamespace(num_key_value_groups=H, sinks=sink.to(q.dtype), training=False)

    def call():
        return modeling.eager_attention_forward(module, query, keys, keys, mask, scaling=scale)[0].reshape(q.shape)

    def pick(want):  # turn our result back: the inverse of the inverse rotation
        at = query_at[:, 0].repeat(B)
        return rope(want.float(), cos_sin, at).to(want.dtype) if cos_sin is not None else want

    return call, pick


MODULES = {"mhc_pre": _mhc_pre, "mhc_head": _mhc_head, "moe_experts": _moe_experts,
           "swa_paged_attention": _swa_paged_attention}
