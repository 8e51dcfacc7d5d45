# SPDX-License-Identifier: Apache-2.0
"""Arguments and formulas of the tree, verify and paging ops for ``dsv4spec bench``: few bytes, so that the call counts."""
from __future__ import annotations

import torch

from .bench_cases import spec


def _positions(c):
    return (c.arange(c.n) + c.length).repeat(c.B), c.i32(c.B, c.length)


@spec("B n length dtype", "B={B}", read="8*B*n + 4*B", write="8*max(1, min(B*n, B*n//4 + B))")
def verify_positions_padding(c):
    return _positions(c), dict(num_draft_tokens=c.n, ratio=4)


@spec("B n page length dtype", "B={B}", read="8*B*n + 12*B",
      write="16*min(B*n, B*n//4 + B) + 16*min(B*n, B*n//128 + B) + 8*B")
def verify_metadata(c):
    pages = c.arange(c.B, torch.int32)[:, None].repeat(1, c.length // (4 * c.page) + 2)
    return (*_positions(c), pages, pages.clone(), c.n), dict(c4_page=c.page, c128_page=4)


@spec("B dtype", "B={B}", read="4*12*B + 8*B", write="2*28*B + 4*12*B")
def select_draft_topk(c):
    k = 2
    return (torch.rand(c.B * k, k, device=c.device), c.arange(c.B * k * k).view(-1, k),
            torch.rand(c.B, k, device=c.device)), dict(step=1)


def _tree(c):
    """Two branches, two steps, the root and the four best."""
    def repeat(*row):
        return torch.tensor(row, device=c.device).repeat(c.B, 1)

    return ((c.arange(c.B), repeat(-1, 0, 1), repeat(0, 1, 2, 4), repeat(20, 21, 22, 24), c.i32(c.B, c.length)),
            dict(topk=2, num_steps=2, num_draft_tokens=5, status=c.i32(c.B, 0)))


@spec("B length dtype", "B={B}", read="8*B + 3*8*B + 2*4*8*B + 4*B", write="5*8*5*B + 25*B + 4*B")
def build_tree(c):
    return _tree(c)


def _links(c):
    from . import ops

    args, kwargs = _tree(c)
    tokens, _, retrieve, next_token, sibling, _ = ops.OPS["build_tree"].public(*args, **kwargs)
    return tokens, retrieve, next_token, sibling


@spec("B length dtype", "B={B}", read="5*8*5*B", write="4*5*B + 4*3*B + 4*B")
def verify_tree_greedy(c):
    tokens, *links = _links(c)
    predicted = torch.where(torch.rand(c.B, 5, device=c.device) < 0.8, tokens.roll(-1, 1), 7)
    return (tokens, *links, predicted), dict(num_steps=2)


# One row of probabilities is read whole, that of the last accepted node.
@spec("B V length dtype", "B={B}", read="4*8*5*B + 4*B*V + 4*6*B", write="4*5*B + 4*3*B + 4*B", flops="2*B*V")
def verify_tree_sampling(c):
    probs = torch.rand(c.B, 5, c.V, device=c.device)
    return ((*_links(c), probs / probs.sum(-1, keepdim=True), torch.rand(c.B, 5, device=c.device),
             torch.rand(c.B, device=c.device)), dict(num_steps=2))


@spec("B n page length dtype", "B={B}", read="16*B", write="8*B*n + 4")
def alloc_extend(c):
    prefix = c.i32(c.B, c.length)
    free = c.order(2 * c.B) + c.B
    last = c.arange(c.B) * c.page + (c.length - 1) % c.page
    return (prefix, prefix + c.n, last, free), dict(extend_num_tokens=c.B * c.n, page_size=c.page, status=c.i32(1, 0))


@spec("B steps page length dtype", "B={B}", read="8*B", write="8*B*steps")
def assign_draft_slots(c):
    table = c.arange(c.B, torch.int32)[:, None].repeat(1, c.length // c.page + 2)
    return (table, c.i32(c.B, c.length)), dict(topk=1, num_steps=c.steps, page_size=c.page)


@spec("B n D page dtype", "B={B}", read="B*n*(e*D + 16)", write="e*B*n*D")
def move_accepted_kv(c):
    moves = c.B * c.n
    order = c.order(2 * moves)
    return (c.random(-(-2 * moves // c.page), c.page, c.D), order[:moves], order[moves:]), {}
