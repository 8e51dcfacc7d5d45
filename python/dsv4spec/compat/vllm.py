# SPDX-License-Identifier: Apache-2.0
"""The mHC functions as vLLM (``mhc_pre``, ``mhc_post``, ``mhc_fused_post_pre``) and vLLM-Ascend (``npu_hc_*``) call them.

They differ from SGLang's NPU path in names, argument order and the shape of ``post`` (``[..., hc, 1]`` in vLLM).
vLLM names epsilons and factors that this package fixes by the model: other values are refused, never ignored.
"""
from __future__ import annotations

from dsv4spec import ops

from .sglang import hc_post, hc_pre, streams_of

__all__ = ["mhc_fused_post_pre", "mhc_post", "mhc_pre", "npu_hc_post", "npu_hc_pre_v2"]

npu_hc_pre_v2 = hc_pre  # the same order; vLLM-Ascend passes [tokens, hc, d] or [batch, tokens, hc, d]
npu_hc_post = hc_post


def _only(name: str, got: float, want: float, why: str) -> None:
    if got != want:
        raise ValueError(f"{name}: expected {want} ({why}), got {got}")


def _check(hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value, norm_weight, norm_eps, rms_eps) -> None:
    _only("hc_sinkhorn_eps", hc_sinkhorn_eps, hc_pre_eps, "DeepSeek-V4 has one hc_eps")
    _only("hc_post_mult_value", hc_post_mult_value, 2.0, "DeepSeek-V4's post gate is 2 * sigmoid")
    if norm_weight is not None:
        _only("norm_eps", norm_eps, rms_eps, "the following norm has the eps of the statistics")


def mhc_pre(residual, fn, hc_scale, hc_base, rms_eps, hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value, sinkhorn_repeat,
            n_splits=1, norm_weight=None, norm_eps=1e-6):
    """Open a sub-layer. ``n_splits`` is a launch hint and has no effect on the values here.

    Args:
        residual: ``[..., hc, d]`` bfloat16, float16 or float32. fn: ``[(2+hc)*hc, hc*d]``, hc_scale: ``[3]``,
            hc_base: ``[(2+hc)*hc]`` float32. sinkhorn_repeat: Sinkhorn steps. norm_weight: ``[d]`` of the norm that
            follows, or None.

    Returns:
        (post ``[..., hc, 1]`` float32, comb ``[..., hc, hc]`` float32, layer input ``[..., d]`` of residual's dtype).

    Raises:
        ValueError: a constant that DeepSeek-V4 does not have, or an argument outside the contract of ``mhc_pre``.
    """
    _check(hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value, norm_weight, norm_eps, rms_eps)
    lead, hc, d = streams_of("mhc_pre", "residual", residual)
    y, post, comb = ops.mhc_pre(residual.reshape(-1, hc, d), fn, hc_base, hc_scale, rms_eps=rms_eps, hc_eps=hc_pre_eps,
                                sinkhorn_iters=sinkhorn_repeat, norm_weight=norm_weight)
    return post.view(*lead, hc, 1), comb.view(*lead, hc, hc), y.view(*lead, d)


def mhc_post(x, residual, post_layer_mix, comb_res_mix):
    """Close a sub-layer (the op ``mhc_post``).

    Args:
        x: ``[..., d]``, the sub-layer's output. residual: ``[..., hc, d]``, in x's dtype.
        post_layer_mix: ``[..., hc, 1]`` float32. comb_res_mix: ``[..., hc, hc]`` float32.

    Returns:
        streams ``[..., hc, d]`` in residual's dtype.

    Raises:
        ValueError: an argument outside the contract of ``mhc_post``.
    """
    return hc_post(x, residual, post_layer_mix.squeeze(-1), comb_res_mix)


def mhc_fused_post_pre(x, residual, post_layer_mix, comb_res_mix, fn, hc_scale, hc_base, rms_eps, hc_pre_eps,
                       hc_sinkhorn_eps, hc_post_mult_value, sinkhorn_repeat, n_splits=1, tile_n=1, norm_weight=None,
                       norm_eps=1e-6):
    """:func:`mhc_post` of one sub-layer and :func:`mhc_pre` of the next in one pass (the op ``mhc_post_pre``).

    Args:
        x, residual, post_layer_mix, comb_res_mix: as :func:`mhc_post`; the others as :func:`mhc_pre`, and ``tile_n``, like
            ``n_splits``, is a hint without effect.

    Returns:
        (streams ``[..., hc, d]``, post ``[..., hc, 1]``, comb ``[..., hc, hc]``, layer input ``[..., d]``).

    Raises:
        ValueError: as :func:`mhc_pre`.
    """
    _check(hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value, norm_weight, norm_eps, rms_eps)
    lead, hc, d = streams_of("mhc_fused_post_pre", "residual", residual)
    streams, y, post, comb = ops.mhc_post_pre(
        x.reshape(-1, d), residual.reshape(-1, hc, d), post_layer_mix.reshape(-1, hc), comb_res_mix.reshape(-1, hc, hc),
        fn, hc_base, hc_scale, rms_eps=rms_eps, hc_eps=hc_pre_eps, sinkhorn_iters=sinkhorn_repeat,
        norm_weight=norm_weight)
    return streams.view(residual.shape), post.view(*lead, hc, 1), comb.view(*lead, hc, hc), y.view(*lead, d)
