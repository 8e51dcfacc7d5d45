# SPDX-License-Identifier: Apache-2.0
"""References of the mHC ops."""
import torch


def _wide(*tensors: torch.Tensor):
    """fp32 arithmetic, or fp64 if any input is fp64."""
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    return tuple(t.to(dtype) for t in tensors)


def mhc_post(y, residual, post, comb):
    y32, r32, post32, comb32 = _wide(y, residual, post, comb)
    out = post32[..., None] * y32[:, None, :] + torch.einsum("tji,tjd->tid", comb32, r32)
    return out.to(residual.dtype)
