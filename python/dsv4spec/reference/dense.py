# SPDX-License-Identifier: Apache-2.0
"""References of the dense products."""
import torch
import torch.nn.functional as F

from .mhc import _rmsnorm, _wide


def linear(x, w, *, groups=1, norm_weight=None, eps=0.0):
    out_dtype = torch.promote_types(x.dtype, w.dtype)
    T, G, N = x.shape[0], groups, w.shape[1]
    if norm_weight is not None:
        x = _rmsnorm(x, norm_weight, eps)
    x, w = _wide(x, w)
    y = torch.einsum("tgk,gkn->tgn", x.reshape(T, G, w.shape[0] // G), w.reshape(G, w.shape[0] // G, N))
    return y.reshape(T, G * N).to(out_dtype)


def route_experts(x, gate, *, topk, scaling, bias=None, table=None, ids=None):
    x, gate = _wide(x, gate)
    score = F.softplus(x @ gate).sqrt()
    if table is None:
        chosen = (score + bias).sort(dim=1, descending=True, stable=True).indices[:, :topk]
    else:
        chosen = table[ids.long()].long()
    weights = score.gather(1, chosen)
    return chosen.int(), weights * scaling / (weights.sum(1, keepdim=True) + 1e-20)
