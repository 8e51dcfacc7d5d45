# SPDX-License-Identifier: Apache-2.0
"""The draft tree of a round: its nodes, its links, and what remains of it after acceptance. A chain (topk 1) is the
tree whose node i hangs on node i - 1; only wider trees need masks, NextN masks and moved KV."""
from __future__ import annotations

from dataclasses import dataclass

import torch

from dsv4spec import ops
from dsv4spec.cache import StaticWindow, Window
from dsv4spec.cache.batch import ForwardBatch, ForwardMode

from .options import SpeculativeConfig


@dataclass(slots=True)
class Draft:
    """Drafted tokens int64 [B, n-1] in node order, or of a chain a list of n-1 columns; of a tree also ``parents`` and ``selected`` as ops.build_tree takes
    them."""

    tokens: torch.Tensor | list[torch.Tensor]
    steps: int
    topk: int = 1
    parents: torch.Tensor | None = None
    selected: torch.Tensor | None = None


@dataclass(slots=True)
class Links:
    """What verify_tree_greedy walks: int64 [B, n] each."""

    retrieve_index: torch.Tensor
    next_token: torch.Tensor
    next_sibling: torch.Tensor


def window_rows(options: SpeculativeConfig) -> int:
    """KV rows at and beyond s that a round writes: the verify window, or the NextN nodes of a wider tree."""
    inner = options.eagle_topk * (options.num_steps - 1) if options.eagle_topk > 1 else 0
    return max(options.num_draft_tokens, inner)


def topk(logits: torch.Tensor, k: int, out=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and ids of the k likeliest tokens, [R, k] each."""
    values, index = torch.topk(torch.softmax(logits, -1), k, out=out)
    return values, index


def link(draft: Draft, window: torch.Tensor, batch: ForwardBatch) -> Links:
    """Links of a tree's verify window [B, n]; gives ``batch`` the nodes' positions and mask."""
    _, batch.positions, *links, batch.tree_mask = ops.build_tree(
        window[:, 0].contiguous(), draft.parents, draft.selected, draft.tokens, batch.live_seq_lens,
        topk=draft.topk, num_steps=draft.steps, num_draft_tokens=window.shape[1])
    return Links(*links)


def chain_links(size: int, steps: int, device) -> Links:
    """Links of a chain's window [B, steps + 1]: node i + 1 under node i, whatever the tokens and lengths, so that they
    can be kept. Its window is plain causal and needs no mask."""
    order = torch.arange(-1, steps, device=device).repeat(size, 1)
    if steps == 0:  # the root alone
        return Links(torch.arange(size, device=device)[:, None], order.clone(), order.clone())
    some = torch.ones(size, dtype=torch.int64, device=device)  # any token, any length
    _, _, *links, _ = ops.build_tree(some, order[:, :-1] if steps > 1 else order[:, :0], order[:, 1:], order[:, 1:], some,
                                     topk=1, num_steps=steps, num_draft_tokens=steps + 1)
    return Links(*links)


def draft_tree(worker, window: Window | StaticWindow, carried: dict[str, torch.Tensor]) -> Draft:
    """Grow a tree of topk branches for num_steps levels and choose its best num_draft_tokens - 1 nodes.

    Every NextN forward runs all nodes grown so far under a tree mask (node j's draft KV at position s + j): nothing
    is shared between branches but their ancestors, and no branch needs pages of its own.
    """
    options, k = worker.options, worker.options.eagle_topk
    size, state, scores = window.size, carried["state"], None
    p, index = carried["first_p"], carried["first"]
    ids = index.new_empty(size, 0)
    inputs = state.new_empty(size, 0, state.shape[1])
    mask = torch.zeros(size, 0, 0, dtype=torch.bool, device=ids.device)
    all_parents, all_scores, all_tokens = [], [], []
    for step in range(options.num_steps):
        new, scores, parents, state_rows, cand_scores, cand_tokens = ops.select_draft_topk(p, index, scores, step=step)
        all_parents.append(parents)
        all_scores.append(cand_scores)
        all_tokens.append(cand_tokens)
        if step == options.num_steps - 1:
            break
        ids = torch.cat([ids, new.view(size, k)], 1)
        inputs = torch.cat([inputs, state[state_rows].view(size, k, -1)], 1)
        mask = _grow(mask, state_rows.view(size, k), k)
        state = _run_nodes(worker, window, ids, inputs, mask)[:, -k:].reshape(size * k, -1)
        p, index = topk(worker.nextn.logits(state), k)
    parent_list, selected, tokens = ops.organize_draft(all_scores, all_tokens, all_parents,
                                                       num_draft_tokens=options.num_draft_tokens)
    return Draft(tokens, options.num_steps, k, parent_list, selected)


def _grow(mask: torch.Tensor, state_rows: torch.Tensor, k: int) -> torch.Tensor:
    """Mask [B, m+k, m+k] with one more level: a new node sees what its parent sees, and itself."""
    size, m = mask.shape[:2]
    out = torch.zeros(size, m + k, m + k, dtype=torch.bool, device=mask.device)
    out[:, :m, :m] = mask
    if m:
        parent = state_rows - torch.arange(size, device=mask.device)[:, None] * k  # beam of the last level
        out[:, m:, :m] = mask[:, m - k:].gather(1, parent[..., None].expand(-1, -1, m))
    out[:, m:, m:].diagonal(dim1=1, dim2=2).fill_(True)
    return out


def _run_nodes(worker, window, ids, inputs, mask) -> torch.Tensor:
    size, m = ids.shape
    batch = window.nodes(ForwardMode.NEXTN_DECODE, m, ids.view(-1))
    batch.tree_mask = mask
    batch.positions = (batch.live_seq_lens[:, None] + mask.sum(-1) - 1).view(-1)
    return worker._nextn(batch, inputs.view(size * m, -1)).view(size, m, -1)


def compact(worker, batch: ForwardBatch, hidden, predict, accept_index):
    """Accepted nodes of a tree need not be contiguous: move their Target KV to the front slots of the window and
    gather their hidden rows and predictions. Rows past the accepted ones repeat the root.

    Returns hidden [B*w, hc*d] and predict [B*w], w = min(n, num_steps + 1)."""
    size = accept_index.shape[0]
    n = batch.slots.shape[0] // size
    width = min(n, accept_index.shape[1])
    index = accept_index[:, :width].long()
    root = torch.arange(size, device=index.device)[:, None] * n
    source = torch.where(index >= 0, index, root).view(-1)
    accepted = (index >= 0).view(-1)
    front = batch.slots.view(size, n)[:, :width].reshape(-1)
    src = torch.where(accepted, batch.slots[source], -1)
    dst = torch.where(accepted, front, -1)
    for layer in worker.cache.target:
        ops.move_accepted_kv(layer.kv_pages, src, dst)
    return hidden[source], predict[source]
