# SPDX-License-Identifier: Apache-2.0
"""Which backend has a kernel for which op. A kernel that is missing is written down here; one missing by
accident fails ``tests/test_op_table.py``."""

# Ops without a kernel, by kernel folder (kernels/<folder>). They raise MissingKernel there, or run their
# reference where the caller asked for that by name.
NO_KERNEL: dict[str, frozenset[str]] = {
    "cpu": frozenset({"verify_tree_sampling"}),
    "cuda": frozenset({
        "compress_kv",
        "lightning_index",
        "moe_experts",
        "sparse_paged_attention",
        "verify_tree_sampling",
    }),
    "ascendc": frozenset({
        "alloc_extend",
        "assign_draft_slots",
        "build_tree",
        "compress_kv",
        "lightning_index",
        "mhc_head",
        "mhc_post_pre",
        "mhc_pre",
        "moe_experts",
        "move_accepted_kv",
        "nextn_fuse_hidden",
        "q_norm_rope",
        "select_draft_topk",
        "sparse_paged_attention",
        "swa_paged_attention",
        "swa_store_kv",
        "verify_metadata",
        "verify_positions_padding",
        "verify_tree_greedy",
        "verify_tree_sampling",
    }),
}
