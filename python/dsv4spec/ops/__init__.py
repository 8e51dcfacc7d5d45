# SPDX-License-Identifier: Apache-2.0
"""The ops of dsv4spec: one function each, whose docstring is its contract. They take torch tensors, NumPy arrays or
any object with ``__dlpack__``."""
from . import _dispatch, _torch
from ._dispatch import (BACKENDS, OPS, MissingKernel, clear_used_reference, current_backend, has_kernel, use_backend,
                        used_reference)
from .attention import q_norm_rope, swa_paged_attention, swa_store_kv
from .dense import linear, route_experts
from .mhc import mhc_head, mhc_post, mhc_post_pre, mhc_pre, nextn_fuse_hidden
from .paging import alloc_extend, assign_draft_slots, move_accepted_kv
from .target import compress_kv, lightning_index, moe_experts, sparse_paged_attention
from .tree import build_tree, organize_draft, select_draft_topk, verify_tree_greedy, verify_tree_sampling
from .verify import verify_metadata, verify_positions_padding

__all__ = [
    "BACKENDS", "OPS", "MissingKernel", "clear_used_reference", "current_backend", "has_kernel", "use_backend",
    "used_reference",
    # mhc
    "nextn_fuse_hidden", "mhc_pre", "mhc_post", "mhc_post_pre", "mhc_head",
    # attention
    "q_norm_rope", "swa_store_kv", "swa_paged_attention",
    # target
    "compress_kv", "lightning_index", "moe_experts", "sparse_paged_attention",
    # dense
    "linear", "route_experts",
    # verify
    "verify_positions_padding", "verify_metadata",
    # tree
    "select_draft_topk", "organize_draft", "build_tree", "verify_tree_greedy", "verify_tree_sampling",
    # paging
    "alloc_extend", "assign_draft_slots", "move_accepted_kv",
]

_dispatch.route_of_the_environment()
_torch.register_when_torch_is_there(_dispatch)
