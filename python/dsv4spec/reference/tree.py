# SPDX-License-Identifier: Apache-2.0
"""References of the draft tree: selection, building, verification."""
import torch


def _arange(n: int, like):
    return torch.arange(n, device=like.device)


def _over(out, values, live):
    """Rows of live requests from ``values``; the others stay as in ``out``, or are zero without one."""
    before = out if out is not None else [torch.zeros_like(v) for v in values]
    rows = [live.repeat_interleave(v.shape[0] // max(live.shape[0], 1)) for v in values]
    return tuple(torch.where(r.view(-1, *[1] * (v.dim() - 1)), v, b) for v, b, r in zip(values, before, rows))


def _first(match):
    """(is there one, index of the first) True along the last dimension."""
    if match.shape[-1] == 0:
        none = torch.zeros(match.shape[:-1], dtype=torch.bool, device=match.device)
        return none, none.long()
    return match.any(-1), match.int().argmax(-1)


def largest(values, count: int):
    """Indices of the ``count`` largest along the last dimension; equal: the lower index; NaN counts as -inf."""
    keys = torch.where(values.isnan(), float("-inf"), values)
    return torch.sort(keys, dim=-1, descending=True, stable=True).indices[..., :count]


def select_draft_topk(topk_p, topk_index, scores, *, step):
    k = topk_p.shape[1]
    if step == 0:
        batch = topk_p.shape[0]
        parents = torch.arange(-1, k, device=topk_p.device).repeat(batch, 1)
        hidden_rows = _arange(batch, topk_p).repeat_interleave(k)
        return (topk_index.reshape(-1).clone(), topk_p.clone(), parents, hidden_rows, topk_p[:, None].clone(),
                topk_index.clone())
    batch = scores.shape[0]
    cand_scores = scores[:, :, None] * topk_p.reshape(batch, k, k)
    cand_tokens = topk_index.reshape(batch, k * k).clone()
    flat = cand_scores.reshape(batch, k * k)
    chosen = largest(flat, k)
    hidden_rows = chosen // k + _arange(batch, topk_p)[:, None] * k
    return (cand_tokens.gather(1, chosen).reshape(-1), flat.gather(1, chosen), chosen + k * k * (step - 1) + k,
            hidden_rows.reshape(-1), cand_scores, cand_tokens)


def _parents(parent_list, selected, k: int):
    """(parent node, has one) of nodes 0..n-1; the root has none."""
    batch, drafts = selected.shape
    width = parent_list.shape[1]
    group = torch.div(selected, k, rounding_mode="floor")
    wanted = parent_list.gather(1, group.clamp(0, width - 1)) if width else torch.full_like(selected, -1)
    found, at = _first(selected[:, None, :] == wanted[:, :, None])
    by_list = (group > 0) & (group < width) & found & (at < _arange(drafts, selected))
    parent = torch.where(group == 0, 0, at + 1)
    root = torch.zeros(batch, 1, dtype=torch.int64, device=selected.device)
    return torch.cat([root, parent], 1), torch.cat([root.bool(), (group == 0) | by_list], 1)


def _ancestors(parent, linked):
    """bool ``[B, n, n]``: row i holds node i and everything above it, by doubling the length of the paths."""
    n = parent.shape[1]
    nodes = _arange(n, parent)
    reach = (parent[:, :, None] == nodes) & linked[:, :, None] | (nodes[:, None] == nodes)
    for _ in range(max(n - 1, 1).bit_length()):
        reach = torch.bmm(reach.float(), reach.float()) > 0
    return reach


def _fill_full_mask(mask, rows, live):
    """Write the caller's flat FULL mask in place; see include/dsv4spec/tree.h for the layout."""
    batch, n, _ = rows.shape
    if batch == 0 or mask.shape[0] == 0:
        return
    s = live.long().clamp(min=0)
    end = (n * (s + n)).cumsum(0)
    place = _arange(mask.shape[0], mask)
    b = torch.searchsorted(end, place, right=True)
    inside, b = b < batch, b.clamp(max=batch - 1)
    local = place - (end[b] - n * (s[b] + n))
    row, column = local // (s[b] + n), local % (s[b] + n) - s[b]
    tree = rows[b, row.clamp(max=n - 1), column.clamp(min=0)]
    mask.copy_(torch.where(inside & (live[b] > 0), (column < 0) | tree, mask))


def build_tree(bonus_tokens, parent_list, selected_index, draft_tokens, live_seq_lens, *, topk, num_steps,
               num_draft_tokens, mask_mode="qlen", tree_mask=None, status=None, out=None):
    n, batch, live = num_draft_tokens, bonus_tokens.shape[0], live_seq_lens > 0
    nodes = _arange(n, bonus_tokens)
    parent, linked = _parents(parent_list, selected_index, topk)
    reach = _ancestors(parent, linked)
    depth = reach.sum(-1) - 1
    rows = reach | (nodes == 0)
    siblings = (parent[:, :, None] == parent[:, None, :]) & linked[:, :, None] & linked[:, None, :]
    has_child, child = _first((parent[:, None, :] == nodes[:, None]) & linked[:, None, :])
    has_next, following = _first(siblings & (nodes[:, None] < nodes))
    if status is not None:
        status.copy_((live & ~linked[:, 1:].all(-1)).int())
    values = [torch.cat([bonus_tokens[:, None], draft_tokens], 1),
              (live_seq_lens.long()[:, None] + depth).reshape(-1),
              _arange(batch * n, nodes).view(batch, n),
              torch.where(has_child, child, -1), torch.where(has_next, following, -1)]
    if mask_mode == "full":
        _fill_full_mask(tree_mask, rows, live_seq_lens)
        return (*_over(out[:5] if out else None, values, live), tree_mask)
    if mask_mode == "qlen_bits":
        bits = (rows.long() << nodes).sum(-1)
        values.append(bits.to(torch.uint8 if n <= 8 else torch.uint16 if n <= 16 else torch.uint32))
    else:
        values.append(rows)
    return _over(out, values, live)


def _walk(candidates, next_token, next_sibling, num_steps: int, accepts):
    """Walk all trees at once; ``accepts(current, child)`` says which requests take the child they look at.

    Every iteration looks at one child of each request's current node, so n-1 of them see a whole tree, and a
    malformed one cannot hold the walk. Returns (current node, path [B, num_steps+1] of nodes with -1 behind, count).
    """
    batch, n = candidates.shape
    rows = _arange(batch, candidates)
    current, count = torch.zeros_like(rows), torch.zeros_like(rows)
    child = next_token[:, 0]
    path = torch.full((batch, num_steps + 1), -1, dtype=torch.int64, device=candidates.device)
    path[:, 0] = 0
    for _ in range(n - 1):
        there = (child > 0) & (child < n) & (count < num_steps)
        safe = child.clamp(0, n - 1)
        take = there & (candidates[rows, safe] >= 0) & accepts(current, safe, there)
        count = count + take
        slot = torch.where(take, count, 0)
        path[rows, slot] = torch.where(take, safe, path[rows, slot])
        current = torch.where(take, safe, current)
        follow = torch.where(take, next_token[rows, safe], next_sibling[rows, safe])
        child = torch.where(there, follow, child)
    return current, path, count


def _outputs(path, count, tokens, retrieve_index, live, out):
    """predicts, accept_index and accept_token_num of the nodes on ``path`` with their ``tokens [B, num_steps+1]``."""
    batch, n = retrieve_index.shape
    on_path = path >= 0
    index = retrieve_index.gather(1, path.clamp(min=0))
    inside = on_path & (index >= _arange(batch, path)[:, None] * n) & (index < (_arange(batch, path)[:, None] + 1) * n)
    predicts = torch.full((batch * n + 1,), -1, dtype=torch.int64, device=path.device)  # the last one is a sink
    predicts.scatter_(0, torch.where(inside, index, batch * n).reshape(-1), torch.where(inside, tokens, -1).reshape(-1))
    values = [predicts[:-1].int(), torch.where(on_path, index, -1).int(), count.int()]
    return _over(out, values, live)


def verify_tree_greedy(candidates, retrieve_index, next_token, next_sibling, target_predict, *, num_steps, out=None):
    rows = _arange(candidates.shape[0], candidates)

    def accepts(current, child, there):
        return candidates[rows, child] == target_predict[rows, current]

    _, path, count = _walk(candidates, next_token, next_sibling, num_steps, accepts)
    tokens = target_predict.gather(1, path.clamp(min=0))
    return _outputs(path, count, tokens, retrieve_index, next_token[:, 0] != 0, out)


def verify_tree_sampling(candidates, retrieve_index, next_token, next_sibling, target_probs, coins, final_coins, *,
                         num_steps, threshold_single=1.0, threshold_acc=1.0, out=None):
    batch, n, vocab = target_probs.shape
    rows = _arange(batch, candidates)
    left = target_probs.nan_to_num(nan=0.0)  # what rejected children leave of each node's distribution
    acc = torch.zeros_like(final_coins)

    def accepts(current, child, there):
        token = candidates[rows, child]
        known = there & (token >= 0) & (token < vocab)
        token = token.clamp(0, vocab - 1)
        p = torch.where(known, left[rows, current, token], 0.0)
        acc.add_(p)
        coin = coins[rows, current]
        take = (p > 0) & ((coin < acc / max(threshold_acc, 1e-9)) | (p >= threshold_single))
        left[rows, current, token] = torch.where(known & ~take, 0.0, left[rows, current, token])
        acc.masked_fill_(take, 0.0)
        return take

    last, path, count = _walk(candidates, next_token, next_sibling, num_steps, accepts)
    final = draw(left[rows, last], final_coins)
    nodes = path.clamp(min=0)
    tokens = candidates.gather(1, nodes)  # a visited node predicts the token of the node visited next, the last one `final`
    tokens = torch.cat([tokens[:, 1:], tokens[:, :1]], 1).scatter(1, count[:, None], final[:, None])
    return _outputs(path, count, tokens, retrieve_index, next_token[:, 0] != 0, out)


def draw(weights, coin):
    """The first id whose prefix sum exceeds ``coin * sum``; none: the last id with weight > 0; none: the last id."""
    vocab = weights.shape[-1]
    prefix = weights.cumsum(-1)
    over, first = _first((prefix > coin[:, None] * prefix[:, -1:]) & (weights > 0))
    ids = _arange(vocab, weights)
    valid = torch.where(weights > 0, ids, -1).amax(-1)
    return torch.where(over, first, torch.where(valid >= 0, valid, vocab - 1))


def chain_rejection(target_probs, draft_probs, drafts, coins, final_coins):
    """Speculative sampling of a chain: accept draft j while ``0 < q <= 1`` and ``coin_j * q < p``; then draw from
    ``max(p - q, 0)`` at the rejected place, from ``p`` behind an accepted chain.

    Args:
        target_probs: ``[B, m+1, V]``. draft_probs: ``[B, m, V]``; values that are no probability count as 0.
        drafts: int64 ``[B, m]``. coins: ``[B, m]``. final_coins: ``[B]``.

    Returns:
        (accepted drafts ``[B]`` int64, the drawn token ``[B]`` int64).
    """
    batch, m = drafts.shape
    rows = _arange(batch, drafts)
    q_all = torch.where((draft_probs > 0) & (draft_probs <= 1), draft_probs, 0.0)
    p = target_probs[:, :m].gather(2, drafts[..., None])[..., 0]
    q = q_all.gather(2, drafts[..., None])[..., 0]
    accepted = ((q > 0) & (coins * q < p)).int().cumprod(1).sum(1)
    padded = torch.cat([q_all, torch.zeros_like(target_probs[:, :1])], 1)
    residual = (target_probs[rows, accepted] - padded[rows, accepted]).clamp(min=0)
    return accepted, draw(residual, final_coins)
