# SPDX-License-Identifier: Apache-2.0
"""One call of every op with a CUDA kernel at 8 requests of which some are padding: CASES[name](live) gives (op, args,
kwargs). The shapes and scalars of a case are the same for all lengths, as a captured graph needs them; the values of
all other tensors change with the lengths."""
import torch
from tree_model import random_draft
from util import rng

from dsv4spec.ops.table import NO_KERNEL
from dsv4spec.reference import tree as reference

B, N = 8, 3  # requests; rows of each in a verify window
LENGTHS = {"captured": [10, 20, 5, 0, 0, 0, 0, 0], "others": [33, 7, 62, 0, 0, 0, 0, 0], "fewer": [0, 64, 0, 0, 0, 0, 0, 0],
           "more": [3, 126, 0, 1, 9, 127, 5, 44], "none": [0] * 8, "all": [1, 2, 3, 4, 60, 61, 62, 63]}
CASES = {}


def case(make):
    if make.__name__ not in NO_KERNEL["cuda"]:
        CASES[make.__name__] = lambda live: (make.__name__, *make(torch.tensor(live), rng(make.__name__, *live)))
    return make


def table(live, g, width, share=1.0):
    """Pages of live requests, all different; -1 for padding, and for a share of the others."""
    pages = torch.randperm(B * width, generator=g).view(B, width)
    there = (live[:, None] > 0) & (torch.rand(B, width, generator=g) < share)
    return torch.where(there, pages, -1).int()


def window(live):
    return torch.where(live[:, None] > 0, live[:, None] + torch.arange(N), -1).reshape(-1)


def floats(g, *shape):
    return torch.randn(shape, generator=g)


@case
def verify_positions_padding(live, g):
    return (window(live), live.int()), dict(num_draft_tokens=N, ratio=4)


@case
def verify_metadata(live, g):
    return (window(live), live, table(live, g, 4), table(live, g, 2), N), dict(c4_page=16, c128_page=2)


@case
def select_draft_topk(live, g):
    return (torch.rand(B * 4, 4, generator=g), torch.randint(0, 99, (B * 4, 4), generator=g),
            torch.rand(B, 4, generator=g)), dict(step=2)


def tree(live, g, n):
    return (torch.randint(0, 99, (B,), generator=g), *random_draft(B, 4, 2, n, int(live.sum())), live)


def build_tree(mode):
    def make(live):
        n, g = 9, rng("tree", mode, *live)
        kwargs = dict(topk=4, num_steps=2, num_draft_tokens=n, mask_mode=mode, status=torch.full((B,), -7, dtype=torch.int32))
        if mode == "full":
            kwargs["tree_mask"] = torch.rand(n * (n + 128) * B, generator=g) < 0.5
        return "build_tree", tree(torch.tensor(live), g, n), kwargs
    return make


CASES |= {f"build_tree {mode}": build_tree(mode) for mode in ("qlen", "qlen_bits", "full")}


@case
def verify_tree_greedy(live, g):
    tokens, _, rows, next_token, sibling, _ = reference.build_tree(*tree(live, g, 9), topk=4, num_steps=2, num_draft_tokens=9)
    return (tokens % 3, rows, next_token, sibling, torch.randint(0, 3, (B, 9), generator=g)), dict(num_steps=2)


@case
def alloc_extend(live, g):
    last = torch.where(live % 4 == 0, -1, torch.randint(0, 50, (B,), generator=g) * 4 + live % 4 - 1)
    return ((live, torch.where(live > 0, live + N, 0), last, torch.randperm(40, generator=g)),
            dict(extend_num_tokens=B * N, page_size=4, status=torch.full((1,), -7, dtype=torch.int32)))


@case
def assign_draft_slots(live, g):
    return (table(live, g, 40, 0.8), live), dict(topk=2, num_steps=N, page_size=4)


@case
def move_accepted_kv(live, g):
    order = torch.randperm(B * 16, generator=g)
    keep = (live > 0).repeat_interleave(N)
    return (floats(g, B, 16, 64).bfloat16(), torch.where(keep, order[:B * N], -1), torch.where(keep, order[9:9 + B * N], -1)), {}


@case
def mhc_pre(live, g):
    return ((floats(g, B, 4, 128).bfloat16(), floats(g, 24, 512) / 20, floats(g, 24), floats(g, 3)),
            dict(rms_eps=1e-6, hc_eps=1e-6, sinkhorn_iters=20))


@case
def mhc_post(live, g):
    return (floats(g, B, 128), floats(g, B, 4, 128), floats(g, B, 4), floats(g, B, 4, 4)), {}


@case
def mhc_post_pre(live, g):
    return ((floats(g, B, 128).bfloat16(), floats(g, B, 4, 128).bfloat16(), floats(g, B, 4), floats(g, B, 4, 4),
             floats(g, 24, 512) / 20, floats(g, 24), floats(g, 3)), dict(rms_eps=1e-6, hc_eps=1e-6, sinkhorn_iters=20))


@case
def mhc_head(live, g):
    return ((floats(g, B, 4, 128).bfloat16(), floats(g, 4, 512) / 20, floats(g, 4), floats(g, 1)),
            dict(rms_eps=1e-6, hc_eps=1e-6))


@case
def nextn_fuse_hidden(live, g):
    return ((floats(g, B, 128).bfloat16(), floats(g, B, 512).bfloat16(), floats(g, 128), floats(g, 128),
             floats(g, 128, 128).bfloat16(), floats(g, 128, 128).bfloat16()), dict(eps=1e-6))


def rotation(g):
    return floats(g, 200, 16)


@case
def q_norm_rope(live, g):
    return (floats(g, B * N, 4, 64).bfloat16(), rotation(g), window(live)), dict(eps=1e-6, out=floats(g, B * N, 4, 64).bfloat16())


@case
def swa_store_kv(live, g):
    slots = torch.where(window(live) >= 0, torch.randperm(B * 16, generator=g)[:B * N], -1)
    return ((floats(g, B * N, 64).bfloat16(), floats(g, 64), rotation(g), window(live).clamp(min=0), slots,
             floats(g, B, 16, 64).bfloat16()), dict(eps=1e-6))


@case
def swa_paged_attention(live, g):
    return ((floats(g, B * N, 4, 64).bfloat16(), floats(g, B * 9, 16, 64).bfloat16(), table(live, g, 9),
             torch.arange(B + 1).int() * N, torch.where(live > 0, live + N, 0).int()),
            dict(window=32, scale=0.2, sink=floats(g, 4), cos_sin=rotation(g), out=floats(g, B * N, 4, 64).bfloat16()))
