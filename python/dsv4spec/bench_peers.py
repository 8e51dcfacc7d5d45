# SPDX-License-Identifier: Apache-2.0
"""Other libraries' kernels for the same work, as far as they are installed. A peer takes the arguments of the op and gives
a call without arguments whose result is compared with the reference before it is timed; what it must prepare (other
layouts of indices, outputs) is not timed. Written from the libraries' documented signatures.

flashinfer is looked for, but has no call here: its paged attention takes heads of 64, 128 or 256 elements, and its MLA wrapper,
which takes 512, neither a sink per head nor a window, and wants the rotated part of a key apart from it. Its norms and
rotations are single steps of ops that are fused here."""
from __future__ import annotations

import importlib
import importlib.util

import torch

LIBRARIES = ("flash_mla", "deep_gemm", "tile_kernels", "flashinfer", "sgl_kernel")


def version(name: str) -> str | None:
    """Of a library, or None if it is not installed."""
    from importlib import metadata

    if importlib.util.find_spec(name) is None:
        return None
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def installed() -> dict[str, str | None]:
    """Version of each library, or None."""
    return {name: version(name) for name in LIBRARIES}


def peers(op: str):
    """(name, make) of the installed peers of ``op``; ``make(*args, **kwargs)`` gives ``(call, pick)``, where ``pick(result
    of the op's reference)`` is what the call's result must equal. A peer that does not fit these arguments raises."""
    for library, function in PEERS.get(op, ()):
        if importlib.util.find_spec(library) is not None:
            yield f"{library}.{function.__name__.lstrip('_')}", function


def _flash_mla_sparse_fwd(q, kv_pages, block_table, query_start_loc, seq_lens, *, window, scale, sink=None, cos_sin=None,
                          tree_mask=None):
    """Prefill kernel over a list of keys per row; without the rotation of its output, which ours has fused."""
    from flash_mla import flash_mla_sparse_fwd

    if tree_mask is not None:
        raise ValueError("no tree masks")
    page = kv_pages.shape[1]
    rows = int(query_start_loc[1])
    request = torch.arange(q.shape[0], device=q.device) // rows
    last = seq_lens.long()[request] - rows + torch.arange(q.shape[0], device=q.device) % rows
    keys = last[:, None] - torch.arange(window - 1, -1, -1, device=q.device)
    pages = block_table.long()[request].gather(1, keys.clamp(min=0) // page)
    index = torch.where((keys >= 0) & (pages >= 0), pages * page + keys % page, -1).int()[:, None].contiguous()
    kv = kv_pages.reshape(-1, 1, kv_pages.shape[2])

    def call():
        return flash_mla_sparse_fwd(q, kv, index, scale, d_v=kv.shape[2], attn_sink=sink)[0]

    from .reference.attention import rope

    def pick(want):  # turn our result back: the inverse of the inverse rotation
        return rope(want.float(), cos_sin, last).to(want.dtype) if cos_sin is not None else want

    return call, pick


def _tf32_hc_prenorm_gemm(residual, fn, base, scale, **_):
    """The product and the sum of squares of mhc_pre alone, checked against plain products."""
    from deep_gemm import tf32_hc_prenorm_gemm

    x = residual.flatten(1)
    out, squares = torch.empty(x.shape[0], fn.shape[0], device=x.device), torch.empty(x.shape[0], device=x.device)

    def call():
        tf32_hc_prenorm_gemm(x, fn, out, squares, num_splits=None)
        return out.bfloat16(), squares

    def pick(_):
        return (x.double() @ fn.double().T).bfloat16(), x.double().square().sum(-1).float()

    return call, pick


def _mhc_pre(residual, fn, base, scale, *, rms_eps, hc_eps, sinkhorn_iters, norm_weight=None):
    from tile_kernels.modeling.mhc.functional import mhc_pre

    def call():  # its y comes without the norm that ours has fused, and is left out of the comparison
        _, (post, comb) = mhc_pre(residual[None], fn, scale, base, norm_eps=rms_eps, post_mult_value=2.0, pre_eps=hc_eps,
                                  sinkhorn_eps=hc_eps, sinkhorn_repeat=sinkhorn_iters)
        return post.flatten(0, 1).squeeze(-1), comb.flatten(0, 1)

    return call, lambda want: want[1:]


def _mhc_post(y, residual, post, comb):
    from tile_kernels.modeling.mhc.ops import mhc_post

    arguments = y[None], residual[None], post[None, ..., None], comb[None]
    return lambda: mhc_post(*arguments)[0], lambda want: want


def _verify_tree_greedy(candidates, retrieve_index, next_token, next_sibling, target_predict, *, num_steps):
    from sgl_kernel import verify_tree_greedy

    B, n = candidates.shape
    predicts = torch.full((B * n,), -1, dtype=torch.int32, device=candidates.device)
    index = torch.full((B, num_steps + 1), -1, dtype=torch.int32, device=candidates.device)
    count = torch.zeros(B, dtype=torch.int32, device=candidates.device)

    def call():
        verify_tree_greedy(predicts, index, count, candidates, retrieve_index, next_token, next_sibling, target_predict)
        return predicts, index, count

    return call, lambda want: want


PEERS = {
    "swa_paged_attention": [("flash_mla", _flash_mla_sparse_fwd)],
    "mhc_pre": [("deep_gemm", _tf32_hc_prenorm_gemm), ("tile_kernels", _mhc_pre)],
    "mhc_post": [("tile_kernels", _mhc_post)],
    "verify_tree_greedy": [("sgl_kernel", _verify_tree_greedy)],
}
