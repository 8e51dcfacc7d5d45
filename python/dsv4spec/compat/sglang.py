# SPDX-License-Identifier: Apache-2.0
"""SGLang's speculative ops: ``sgl_kernel``'s tree ops, ``hc_pre`` / ``hc_post`` and position padding of its NPU path.

An engine switches by its import: ``from dsv4spec.compat.sglang import build_tree_kernel_efficient``. Releases of
``sgl_kernel`` spell the link tensors ``retrive_*`` or ``retrieve_*``; as keywords both are taken.

SGLang's skip marker (slot 0) appears in no function here: none of them takes slots.
"""
from __future__ import annotations

import enum
import functools
import math
import warnings

import torch

from dsv4spec import ops

__all__ = ["TreeMaskMode", "build_tree_kernel_efficient", "fill_verify_positions_cmp_padding_one",
           "fill_verify_positions_cmp_padding_one_device", "hc_post", "hc_pre", "verify_tree_greedy"]


class TreeMaskMode(enum.IntEnum):
    """Layout of ``tree_mask``, by SGLang's numbers."""

    FULL_MASK = 0
    QLEN_ONLY = 1
    QLEN_ONLY_BITPACKING = 2


def _either_spelling(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **{name.replace("retrive_", "retrieve_"): value for name, value in kwargs.items()})

    return call


def _start_of(op, name, buffer, *shape):
    """The start of a contiguous buffer as a view of ``shape``: engines pass what they allocated for their largest batch."""
    count = math.prod(shape)
    if not buffer.is_contiguous():
        raise ValueError(f"{op}: {name}: expected a contiguous tensor, got strides {list(buffer.stride())}")
    if buffer.numel() < count:
        raise ValueError(f"{op}: {name}: expected at least {count} elements, got {buffer.numel()}")
    return buffer.view(-1)[:count].view(shape)


@_either_spelling
def build_tree_kernel_efficient(parent_list, selected_index, verified_seq_len, tree_mask, positions, retrieve_index,
                                retrieve_next_token, retrieve_next_sibling, topk, depth, draft_token_num,
                                tree_mask_mode=TreeMaskMode.FULL_MASK) -> None:
    """Positions, links and mask of the draft trees, written into the caller's tensors (B requests, n nodes each).

    As ``sgl_kernel.build_tree_kernel_efficient``; the op is :func:`dsv4spec.ops.build_tree`. Three differences, all on
    the safe side: the prefix columns of a full mask are filled here too; rows of a request with
    ``verified_seq_len <= 0`` (graph padding) stay as the caller filled them; a node whose parent was not selected
    never sends a walk out of bounds (it is left out of the links, as there, and on the CPU a RuntimeWarning says so).

    Args:
        parent_list: ``[B, topk*(depth-1)+1]`` int64; for depth 1 ``[B, 0]`` of any dtype (SGLang makes it a float one).
        selected_index: ``[B, n-1]`` int64.
        verified_seq_len: ``[B]`` int64 or int32, committed lengths.
        tree_mask: FULL_MASK: bool, ``n*sum(verified_seq_len) + n*n*B`` elements; QLEN_ONLY: bool, ``B*n*n``;
            QLEN_ONLY_BITPACKING: ``B*n`` uint8 (n <= 8), uint16 (n <= 16) or uint32 (n <= 32).
        positions: ``B*n`` elements, int64. It and tree_mask: of any shape, contiguous; what a larger buffer has beyond
            stays as it is.
        retrieve_index, retrieve_next_token, retrieve_next_sibling: ``[B, n]`` int64, rows contiguous; -1 = none.
        topk, depth, draft_token_num: k, steps of the draft, n with the root.
        tree_mask_mode: a :class:`TreeMaskMode` or its number.

    Raises:
        ValueError: an argument outside the contract of ``build_tree``.
    """
    op, mode, n = "build_tree_kernel_efficient", TreeMaskMode(tree_mask_mode), draft_token_num
    if verified_seq_len.dim() != 1:
        raise ValueError(f"{op}: verified_seq_len: expected shape [B], got {list(verified_seq_len.shape)}")
    if n < 1:
        raise ValueError(f"{op}: draft_token_num: expected at least 1, got {n}")
    B = len(verified_seq_len)
    shape = {TreeMaskMode.FULL_MASK: (tree_mask.numel(),), TreeMaskMode.QLEN_ONLY: (B, n, n)}.get(mode, (B, n))
    mask = _start_of(op, "tree_mask", tree_mask, *shape)
    if parent_list.numel() == 0:
        parent_list = parent_list.long()
    tokens = torch.empty(B, n, dtype=torch.int64, device=positions.device)  # of no use here: sgl_kernel has no tokens
    status = torch.empty(B, dtype=torch.int32, device=positions.device)
    ops.build_tree(verified_seq_len.long(), parent_list, selected_index, selected_index, verified_seq_len, topk=topk,
                   num_steps=depth, num_draft_tokens=n, mask_mode=("full", "qlen", "qlen_bits")[mode],
                   tree_mask=mask if mode is TreeMaskMode.FULL_MASK else None, status=status,
                   out=(tokens, _start_of(op, "positions", positions, B * n), retrieve_index, retrieve_next_token,
                        retrieve_next_sibling, mask))
    if status.device.type == "cpu" and status.any():
        rows = status.nonzero().flatten().tolist()
        warnings.warn(f"build_tree_kernel_efficient: requests {rows} have a draft token whose parent was not selected; "
                      "it is left out", RuntimeWarning, stacklevel=3)


@_either_spelling
def verify_tree_greedy(predicts, accept_index, accept_token_num, candidates, retrieve_index, retrieve_next_token,
                       retrieve_next_sibling, target_predict) -> None:
    """Accept the path of the Target's argmax; the first three tensors are written.

    As ``sgl_kernel.verify_tree_greedy``; the op is :func:`dsv4spec.ops.verify_tree_greedy`. Entries of ``predicts``
    and ``accept_index`` that the walk does not reach keep the caller's values, as there.

    Args:
        predicts: int32, at least ``B*n`` elements, contiguous. accept_index: ``[B, num_steps+1]`` int32, rows contiguous,
            usually filled with -1. accept_token_num: ``[B]`` int32, becomes the number of accepted drafts (bonus not
            counted). A request with ``retrieve_next_token[b, 0] = 0`` is graph padding: nothing of it is written.
        candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling, target_predict: ``[B, n]`` int64.

    Raises:
        ValueError: an argument outside the contract of ``verify_tree_greedy``.
    """
    if accept_index.dim() != 2:
        raise ValueError(f"verify_tree_greedy: accept_index: expected shape [B, num_steps+1], got {list(accept_index.shape)}")
    written = _start_of("verify_tree_greedy", "predicts", predicts, candidates.numel()), accept_index
    before = [tensor.clone() for tensor in written]
    ops.verify_tree_greedy(candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling, target_predict,
                           num_steps=accept_index.shape[1] - 1, out=(*written, accept_token_num))
    for tensor, old in zip(written, before, strict=True):
        tensor.copy_(torch.where(tensor >= 0, tensor, old))


def streams_of(op, name, tensor):
    """Leading dimensions, streams and width of ``[..., hc, d]``."""
    if tensor.dim() < 2:
        raise ValueError(f"{op}: {name}: expected shape [..., hc, d], got {list(tensor.shape)}")
    return tensor.shape[:-2], *tensor.shape[-2:]


def hc_pre(x, hc_fn, hc_scale, hc_base, hc_mult=4, hc_sinkhorn_iters=20, norm_eps=1e-6, hc_eps=1e-6):
    """``torch.ops.custom.npu_hc_pre`` of SGLang's NPU path: open an mHC sub-layer. The op: ``mhc_pre``, without norm.

    Args:
        x: ``[..., hc_mult, d]`` bfloat16, float16 or float32, any leading dimensions.
        hc_fn: ``[(2+hc)*hc, hc*d]``, hc_scale: ``[3]``, hc_base: ``[(2+hc)*hc]``, all float32.
        hc_mult, hc_sinkhorn_iters, norm_eps, hc_eps: streams, Sinkhorn steps, epsilons of statistics and mixes.

    Returns:
        (y ``[..., d]`` of x's dtype, post ``[..., hc]`` float32, comb ``[..., hc, hc]`` float32).

    Raises:
        ValueError: ``hc_mult`` is not x's number of streams, or an argument outside the contract of ``mhc_pre``.
    """
    lead, hc, d = streams_of("hc_pre", "x", x)
    if hc != hc_mult:
        raise ValueError(f"hc_pre: x: expected shape [..., hc_mult={hc_mult}, d], got {list(x.shape)}")
    y, post, comb = ops.mhc_pre(x.reshape(-1, hc, d), hc_fn, hc_base, hc_scale, rms_eps=norm_eps, hc_eps=hc_eps,
                                sinkhorn_iters=hc_sinkhorn_iters)
    return y.view(*lead, d), post.view(*lead, hc), comb.view(*lead, hc, hc)


def hc_post(x, residual, post, comb):
    """``torch.ops.custom.npu_hc_post``: close an mHC sub-layer. The op: ``mhc_post``.

    Args:
        x: ``[..., d]``, residual: ``[..., hc, d]`` of its dtype, post: ``[..., hc]``, comb: ``[..., hc, hc]`` float32.

    Returns:
        The new streams, ``[..., hc, d]`` of residual's dtype.

    Raises:
        ValueError: leading dimensions that differ, or an argument outside the contract of ``mhc_post``.
    """
    lead, hc, d = streams_of("hc_post", "residual", residual)
    for name, tensor, own in (("x", x, (d,)), ("post", post, (hc,)), ("comb", comb, (hc, hc))):
        if tensor.shape != (*lead, *own):
            raise ValueError(f"hc_post: {name}: expected shape {[*lead, *own]}, got {list(tensor.shape)}")
    return ops.mhc_post(x.reshape(-1, d), residual.reshape(-1, hc, d), post.reshape(-1, hc),
                        comb.reshape(-1, hc, hc)).view(residual.shape)


def fill_verify_positions_cmp_padding_one_device(positions, dst, ratio, live_seq_lens, n_draft) -> None:
    """Fill ``dst`` with the RoPE positions of the compressed entries of a verify step; device values only.

    As the helper of SGLang's Ascend backend; the op: ``verify_positions_padding``. ``dst`` may have any length: what does
    not fit is cut, what is left over becomes 0. There are ``len(positions) // n_draft`` requests: what positions and
    lengths have beyond them is not read.

    Args:
        positions: ``[B*n_draft]`` int64. dst: ``[N]`` int64, written. ratio: 4 or 128. live_seq_lens: ``[B]`` int32 or
            int64, committed lengths *before* the window; 0 is graph padding. n_draft: rows of each request.

    Raises:
        ValueError: an argument outside the contract of ``verify_positions_padding``.
    """
    op = "fill_verify_positions_cmp_padding_one"
    if n_draft < 1:
        raise ValueError(f"{op}: n_draft: expected at least 1, got {n_draft}")
    if dst.dim() != 1 or dst.dtype != torch.int64:
        raise ValueError(f"{op}: dst: expected shape [N] of int64, got {list(dst.shape)} of {dst.dtype}")
    requests = len(positions) // n_draft
    filled = ops.verify_positions_padding(positions[:requests * n_draft], live_seq_lens[:requests],
                                          num_draft_tokens=n_draft, ratio=ratio)
    count = min(len(filled), len(dst))
    dst[:count].copy_(filled[:count])
    dst[count:].zero_()


def fill_verify_positions_cmp_padding_one(positions, dst, ratio, seq_lens_cpu, n_draft) -> None:
    """As :func:`fill_verify_positions_cmp_padding_one_device`, from *final* lengths: live + n_draft, 0 for padding.

    Args:
        positions, dst, ratio, n_draft: as there.
        seq_lens_cpu: ``[B]`` int32 or int64, on the host or not. A length of 1..n_draft is a window that starts at an empty
            request and counts as padding.

    Raises:
        ValueError: as there.
    """
    live = torch.clamp(seq_lens_cpu.to(positions.device) - n_draft, min=0)
    fill_verify_positions_cmp_padding_one_device(positions, dst, ratio, live, n_draft)
