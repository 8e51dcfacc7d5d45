# SPDX-License-Identifier: Apache-2.0
"""Ops on NumPy arrays, without torch: slots of a paged cache, the close of an mHC sub-layer, a verify walk. Every result is
compared with numbers worked out by hand or with NumPy's own."""
import sys

import numpy as np
from dsv4spec import ops


def expect(what, got, wanted):
    print(f"{what}: {np.asarray(got).tolist()}")
    if not np.array_equal(got, wanted):
        sys.exit(f"{what}: expected {np.asarray(wanted).tolist()}")


# Pages of 4 tokens: request 0 grows from 5 to 11 tokens, request 1 from 8 to 9; pages 5, 6, 9 are free.
slots, pages = ops.alloc_extend(np.array([5, 8]), np.array([11, 9]), np.array([12, 11]), np.array([5, 6, 9]),
                                extend_num_tokens=7, page_size=4)[:2]
expect("slots", slots, [13, 14, 15, 20, 21, 22, 24])
expect("pages used", pages, [2])

# mHC: out[t,i] = post[t,i] * y[t] + sum_j comb[t,j,i] * residual[t,j], into memory that is there already.
random = np.random.default_rng(0)
y, residual, post, comb = (random.standard_normal(shape, dtype=np.float32)
                           for shape in ((5, 64), (5, 4, 64), (5, 4), (5, 4, 4)))
out = np.full_like(residual, np.nan)
ops.mhc_post(y, residual, post, comb, out=out)
wanted = post[:, :, None] * y[:, None] + np.einsum("tji,tjd->tid", comb, residual)
error = float(np.abs(out - wanted).max())
print(f"mhc_post: largest difference from NumPy's {error:.1e}")
if not error < 1e-5:
    sys.exit("mhc_post: expected at most 1e-5")

# A chain of three drafts; the target agrees with two of them.
tree = ops.build_tree(np.array([100]), np.array([[-1, 0, 1]]), np.array([[0, 1, 2]]), np.array([[11, 12, 13]]), np.array([7]),
                      topk=1, num_steps=3, num_draft_tokens=4)
expect("positions", tree[1], [7, 8, 9, 10])
tokens, _, rows, next_token, sibling, _ = tree
predicts, path, accepted = ops.verify_tree_greedy(tokens, rows, next_token, sibling, np.array([[11, 12, 99, 5]]), num_steps=3)
expect("predicts", predicts, [11, 12, 99, -1])
expect("accept_index", path, [[0, 1, 2, -1]])
expect("accepted", accepted, [2])

try:
    ops.mhc_post(y, residual[:, :, ::2], post, comb)
except ValueError as error:
    print("refused:", error)
else:
    sys.exit("mhc_post: expected a refusal of a residual with every second channel")
if "torch" in sys.modules:
    sys.exit("torch was imported")
