# SPDX-License-Identifier: Apache-2.0
"""References of the mHC ops and of the NextN input fusion."""
import torch

from .quant import fp8_block_dequant


def _wide(*tensors: torch.Tensor):
    """fp32 arithmetic, or fp64 if any input is fp64."""
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    return tuple(t.to(dtype) for t in tensors)


def _rmsnorm(x, weight, eps):
    """Weighted RMSNorm over the last dimension, rounded once to the dtype of x."""
    x32, w32 = _wide(x, weight)
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * w32).to(x.dtype)


def nextn_fuse_hidden(embeds, hidden, enorm_weight, hnorm_weight, e_proj, h_proj, *, eps, e_proj_scale=None,
                      h_proj_scale=None):
    T, d = embeds.shape
    e = _rmsnorm(embeds, enorm_weight, eps)
    h = _rmsnorm(hidden.reshape(T, hidden.shape[1] // d, d), hnorm_weight, eps)
    e, h, e_weight, h_weight = _wide(e, h, _dense(e_proj, e_proj_scale), _dense(h_proj, h_proj_scale))
    return ((e @ e_weight.T)[:, None, :] + h @ h_weight.T).to(embeds.dtype)


def _dense(weight, scale):
    if weight.dtype == torch.float8_e4m3fn:
        return fp8_block_dequant(weight, scale)
    if weight.dtype == torch.int8:
        weight, scale = _wide(weight, scale)
        return weight * scale[:, None]
    return weight


def sinkhorn(logits, *, hc_eps, iters):
    """comb of mhc_pre from its logits [.., hc, hc]: softmax is the first row step, the last is a column step."""
    comb = torch.softmax(logits, -1) + hc_eps
    comb = comb / (comb.sum(-2, keepdim=True) + hc_eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + hc_eps)
        comb = comb / (comb.sum(-2, keepdim=True) + hc_eps)
    return comb


def _project(residual, fn, rms_eps):
    """(fn . x) / rms(x): the scale comes after the product, over all hc*d values together, without a weight."""
    x, fn = _wide(residual.flatten(1), fn)
    return x @ fn.T * torch.rsqrt(x.square().mean(-1, keepdim=True) + rms_eps)


def _join(residual, weights, norm_weight, rms_eps):
    r32, w32 = _wide(residual, weights)
    y = (w32[..., None] * r32).sum(1).to(residual.dtype)
    return y if norm_weight is None else _rmsnorm(y, norm_weight, rms_eps)


def mhc_pre(residual, fn, base, scale, *, rms_eps, hc_eps, sinkhorn_iters, norm_weight=None):
    hc = residual.shape[1]
    m = _project(residual, fn, rms_eps)
    pre_part, post_part, comb_part = m.split((hc, hc, hc * hc), -1)
    pre_base, post_base, comb_base = base.split((hc, hc, hc * hc))
    pre = torch.sigmoid(pre_part * scale[0] + pre_base) + hc_eps
    post = 2 * torch.sigmoid(post_part * scale[1] + post_base)
    comb = sinkhorn((comb_part * scale[2] + comb_base).unflatten(-1, (hc, hc)), hc_eps=hc_eps, iters=sinkhorn_iters)
    return _join(residual, pre, norm_weight, rms_eps), post, comb


def mhc_post(y, residual, post, comb):
    y32, r32, post32, comb32 = _wide(y, residual, post, comb)
    out = post32[..., None] * y32[:, None, :] + torch.einsum("tji,tjd->tid", comb32, r32)
    return out.to(residual.dtype)


def mhc_post_pre(y, residual, post, comb, fn, base, scale, *, rms_eps, hc_eps, sinkhorn_iters, norm_weight=None):
    after = mhc_post(y, residual, post, comb)
    return after, *mhc_pre(after, fn, base, scale, rms_eps=rms_eps, hc_eps=hc_eps, sinkhorn_iters=sinkhorn_iters,
                           norm_weight=norm_weight)


def mhc_head(residual, fn, base, scale, *, rms_eps, hc_eps, norm_weight=None):
    weights = torch.sigmoid(_project(residual, fn, rms_eps) * scale + base) + hc_eps
    return _join(residual, weights, norm_weight, rms_eps)
