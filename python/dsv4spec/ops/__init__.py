# SPDX-License-Identifier: Apache-2.0
"""The ops of dsv4spec: one function each, whose docstring is its contract. They take torch tensors, NumPy arrays or
any object with ``__dlpack__``."""
from ._dispatch import BACKENDS, OPS, MissingKernel, clear_used_reference, use_backend, used_reference
from .attention import q_norm_rope, swa_paged_attention, swa_store_kv
from .mhc import mhc_head, mhc_post, mhc_post_pre, mhc_pre, nextn_fuse_hidden
from .target import compress_kv, lightning_index, moe_experts, sparse_paged_attention

__all__ = [
    "BACKENDS", "OPS", "MissingKernel", "clear_used_reference", "use_backend", "used_reference",
    # mhc
    "nextn_fuse_hidden", "mhc_pre", "mhc_post", "mhc_post_pre", "mhc_head",
    # attention
    "q_norm_rope", "swa_store_kv", "swa_paged_attention",
    # target
    "compress_kv", "lightning_index", "moe_experts", "sparse_paged_attention",
]
