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
        "linear",
        "moe_experts",
        "route_experts",
        "sparse_paged_attention",
        "verify_tree_sampling",
    }),
    "ascendc": frozenset({
        "compress_kv",
        "lightning_index",
        "linear",
        "moe_experts",
        "route_experts",
        "sparse_paged_attention",
        "verify_tree_sampling",
    }),
}
