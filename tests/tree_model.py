# SPDX-License-Identifier: Apache-2.0
"""Draft trees for tests: random ones, and the rules of build_tree and of a tree walk one node at a time."""
import torch
from util import rng


def random_draft(B, k, steps, n, key=""):
    """(parent_list, selected, tokens) of a beam as select_draft_topk and organize_draft would give them."""
    from dsv4spec.ops import organize_draft
    from dsv4spec.reference.tree import select_draft_topk

    g = rng("draft", B, k, steps, n, key)
    scores, results = None, []
    for step in range(steps):
        rows = B * k if step else B
        p = torch.rand(rows, k, generator=g).sort(-1, descending=True).values
        results.append(select_draft_topk(p, torch.randint(0, 1000, (rows, k), generator=g), scores, step=step))
        scores = results[-1][1]
    return organize_draft(*([r[i] for r in results] for i in (4, 5, 2)), num_draft_tokens=n)


def build(bonus, parent_list, selected, drafts, live, k, n):
    """Per live request: tokens, positions, links and QLEN rows, and whether a node has no parent."""
    trees = []
    for b, s in enumerate(live.tolist()):
        if s <= 0:
            trees.append(None)
            continue
        chosen, parent = selected[b].tolist(), [None] * n
        for i in range(1, n):
            group = chosen[i - 1] // k
            if group == 0:
                parent[i] = 0
            elif 0 < group < parent_list.shape[1] and int(parent_list[b, group]) in chosen[:i - 1]:
                parent[i] = chosen.index(int(parent_list[b, group])) + 1
        children = [[i for i in range(n) if parent[i] == j] for j in range(n)]
        rows, depth = [], []
        for i in range(n):
            up = [i]
            while parent[up[-1]] is not None:
                up.append(parent[up[-1]])
            depth.append(len(up) - 1)
            rows.append([c in up or c == 0 for c in range(n)])
        after = [-1] * n
        for siblings in children:
            for left, right in zip(siblings, siblings[1:]):
                after[left] = right
        trees.append(dict(tokens=[int(bonus[b]), *drafts[b].tolist()], positions=[s + d for d in depth],
                          retrieve=[b * n + i for i in range(n)], next=[c[0] if c else -1 for c in children],
                          sibling=after, rows=rows, broken=None in parent[1:]))
    return trees


def walk(tokens, next_token, next_sibling, target, steps):
    """Accepted nodes, the root first."""
    path, child = [0], next_token[0]
    while child != -1 and len(path) <= steps:
        if tokens[child] >= 0 and tokens[child] == target[path[-1]]:
            path.append(child)
            child = next_token[child]
        else:
            child = next_sibling[child]
    return path
