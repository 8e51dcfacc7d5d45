# SPDX-License-Identifier: Apache-2.0
"""Draft trees: selection, building, verification. Node 0 is the root, the bonus token."""
from ._dispatch import is_torch, kernel, new, op, zeros

MASK_MODES = ("full", "qlen", "qlen_bits")


@op("(Tensor topk_p, Tensor topk_index, Tensor? scores, *, int step) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
def select_draft_topk(topk_p, topk_index, scores, *, step, out=None):
    """One step of the draft beam.

    Step 0 keeps all k candidates. Step i >= 1 keeps the k largest of the k*k path scores
    ``scores[b,a] * topk_p[b*k + a, c]``, largest first. Equal scores: the lower flat index ``a*k + c`` first;
    NaN counts as -inf in that order. Flat candidate numbers: 0..k-1 at step 0, ``k + k*k*(i-1) + a*k + c``
    after.

    Args:
        topk_p: ``[M, k]`` float32, topk_index: ``[M, k]`` int64 token ids; M = B at step 0, B*k after; k <=
            256.
        scores: ``[B, k]`` float32 path scores of the last step; None at step 0.
        step: 0, 1, ...
        out: tuple of the six outputs, or None to allocate.

    Returns:
        (input_ids ``[B*k]`` int64, scores ``[B, k]``, parents (flat numbers; ``[B, k+1]`` = -1, 0.. at step
        0, ``[B, k]`` after), hidden_rows ``[B*k]`` int64 (rows of the last hidden state), cand_scores ``[B,
        1, k]`` or ``[B, k, k]``, cand_tokens ``[B, k]`` or ``[B, k*k]``).

    Raises:
        ValueError: an argument outside this contract.
    """
    if out is None:
        k = topk_p.shape[1]
        B = scores.shape[0] if step and scores is not None else topk_p.shape[0]
        out = (new(topk_p, (B * k,), "int64"), new(topk_p, (B, k), "float32"),
               new(topk_p, (B, k if step else k + 1), "int64"), new(topk_p, (B * k,), "int64"),
               new(topk_p, (B, k if step else 1, k), "float32"), new(topk_p, (B, k * k if step else k), "int64"))
    kernel("select_draft_topk", topk_p, topk_index, scores, *out, step)
    return out


def organize_draft(cand_scores, cand_tokens, parents, *, num_draft_tokens):
    """Choose the nodes of the tree: the n-1 best candidates of all steps, in ascending flat order.

    Args:
        cand_scores, cand_tokens, parents: per step, what :func:`select_draft_topk` gave.
        num_draft_tokens: n, the root included.

    Returns:
        (parent_list ``[B, k*(steps-1)+1]`` (``[B, 0]`` for one step), selected_index ``[B, n-1]``,
        draft_tokens ``[B, n-1]``), all int64. Equal scores: the lower flat index; NaN counts as -inf.

    Raises:
        ValueError: fewer than n-1 candidates.
    """
    like, B = cand_scores[0], cand_scores[0].shape[0]
    available = sum(s.shape[1] * s.shape[2] for s in cand_scores)
    count = num_draft_tokens - 1
    if not 0 <= count <= available:
        raise ValueError(f"organize_draft: num_draft_tokens: expected 1 to {available + 1}, got {num_draft_tokens}")
    if is_torch(like):
        import torch

        from dsv4spec.reference.tree import largest

        chosen = largest(torch.cat([s.flatten(1) for s in cand_scores], 1), count).sort(-1).values
        tokens = torch.cat(list(cand_tokens), 1).gather(1, chosen)
        parent_list = torch.cat(list(parents[:-1]), 1) if len(parents) > 1 else new(like, (B, 0), "int64")
        return parent_list, chosen, tokens
    import numpy as np

    scores = np.concatenate([s.reshape(B, s.shape[1] * s.shape[2]) for s in cand_scores], 1)
    chosen = np.sort(np.argsort(-np.where(np.isnan(scores), -np.inf, scores), axis=1, kind="stable")[:, :count], axis=1)
    tokens = np.take_along_axis(np.concatenate(cand_tokens, 1), chosen, axis=1)
    parent_list = np.concatenate(parents[:-1], 1) if len(parents) > 1 else new(like, (B, 0), "int64")
    return parent_list, chosen, tokens


@op("(Tensor bonus_tokens, Tensor parent_list, Tensor selected_index, Tensor draft_tokens, Tensor live_seq_lens, *, "
    "int topk, int num_steps, int num_draft_tokens, str mask_mode='qlen', Tensor(a!)? tree_mask=None, "
    "Tensor(b!)? status=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    mutates=("tree_mask", "status"), passes_through={5: "tree_mask"})
def build_tree(bonus_tokens, parent_list, selected_index, draft_tokens, live_seq_lens, *, topk, num_steps,
               num_draft_tokens, mask_mode="qlen", tree_mask=None, status=None, out=None):
    """Links, positions and attention mask of the chosen draft nodes, the bonus token in front as the root.

    A node whose parent was not selected is reported, not walked: no link leads to it, its mask row is root +
    itself, its position s. A padding request is not read; its rows are zero when this allocates, untouched in
    ``out``.

    Args:
        bonus_tokens: ``[B]`` int64. parent_list: ``[B, topk*(num_steps-1)+1]`` int64 (``[B, 0]`` for one
            step).
        selected_index: ``[B, n-1]`` int64, ascending flat candidate numbers. draft_tokens: ``[B, n-1]``
            int64.
        live_seq_lens: ``[B]`` int32 or int64, committed length s = position of the root; <= 0 is padding.
        topk, num_steps, num_draft_tokens: k, steps, n <= min(256, 1 + k + (steps-1)*k*k).
        mask_mode: ``"qlen"``: bool ``[B, n, n]``; ``"qlen_bits"``: ``[B, n]``, bit c = sees node c (uint8 for
            n <= 8, uint16 for n <= 16, uint32 for n <= 32); ``"full"``: the caller's flat bool ``tree_mask``.
        tree_mask: for "full" only: at least ``n*sum(s) + n*n*B`` elements. Request b starts at
            ``n*n*b + n*(sum of earlier s)``; each of its n rows is s prefix columns (filled here), then n
            tree columns.
        status: int32 ``[B]`` or None; 1 for a tree with a node that has no parent, else 0.
        out: tuple of the outputs in return order (its mask is ``tree_mask`` for "full"), or None to allocate.

    Returns:
        (tokens ``[B, n]``, positions ``[B*n]``, retrieve_index, next_token, next_sibling ``[B, n]``, all
        int64, and the mask). next_token is the lowest-numbered child, siblings go upward, -1 = none. (The
        ``torch.ops`` form returns an empty tensor for the mask in mode "full": its mask is the mutated
        argument.)

    Raises:
        ValueError: an argument outside this contract; on the CPU, without ``status``, a node without parent
            (naming its request), and a "full" mask that is too small. Devices never raise on data.
    """
    if mask_mode not in MASK_MODES:
        raise ValueError(f"build_tree: mask_mode: expected one of {', '.join(MASK_MODES)}, got {mask_mode!r}")
    if (mask_mode == "full") != (tree_mask is not None):
        rule = "the caller's flat bool tensor in mask mode full" if tree_mask is None else "None unless mask mode is full"
        raise ValueError(f"build_tree: tree_mask: expected {rule}, got {'None' if tree_mask is None else 'a tensor'}")
    B, n = bonus_tokens.shape[0], num_draft_tokens
    if out is None:
        if mask_mode == "qlen":
            tree_mask = zeros(bonus_tokens, (B, n, n), "bool")
        elif mask_mode == "qlen_bits":
            tree_mask = zeros(bonus_tokens, (B, n), "uint8" if n <= 8 else "uint16" if n <= 16 else "uint32")
        out = (zeros(bonus_tokens, (B, n), "int64"), zeros(bonus_tokens, (B * n,), "int64"),
               *(zeros(bonus_tokens, (B, n), "int64") for _ in range(3)), tree_mask)
    elif mask_mode == "full" and out[5] is not tree_mask:
        raise ValueError("build_tree: out: expected tree_mask itself as the mask in mask mode full, got another tensor")
    kernel("build_tree", bonus_tokens, parent_list, selected_index, draft_tokens, live_seq_lens, *out, status, topk,
           num_steps, num_draft_tokens, MASK_MODES.index(mask_mode))
    return out


def _accept_outputs(like, B: int, n: int, num_steps: int):
    return zeros(like, (B * n,), "int32"), zeros(like, (B, num_steps + 1), "int32"), zeros(like, (B,), "int32")


@op("(Tensor candidates, Tensor retrieve_index, Tensor next_token, Tensor next_sibling, Tensor target_predict, *, "
    "int num_steps) -> (Tensor, Tensor, Tensor)")
def verify_tree_greedy(candidates, retrieve_index, next_token, next_sibling, target_predict, *, num_steps, out=None):
    """Accept the path whose tokens are the target's argmax at each node before them.

    From the root, at most ``num_steps`` times, to the first child (in sibling order) whose token equals
    ``target_predict`` at the current node. Negative candidates are never accepted.

    Args:
        candidates, retrieve_index, next_token, next_sibling: ``[B, n]`` int64 as :func:`build_tree` gives
            them (tokens first); a row with ``next_token[b, 0] == 0`` (zeroed padding) is skipped.
        target_predict: ``[B, n]`` int64, the target's argmax at each node, below 2^31.
        num_steps: most drafts to accept.
        out: (predicts, accept_index, accept_token_num), or None to allocate. Rows of padding requests are
            zero when this allocates, untouched in ``out``; all others are written whole.

    Returns:
        predicts int32 ``[B*n]`` (target token of each visited node, -1 elsewhere; the last visited node's is
        the new bonus), accept_index int32 ``[B, num_steps+1]`` (rows b*n + i of the visited nodes, then -1),
        accept_token_num int32 ``[B]`` (drafts only: visited nodes - 1).

    Raises:
        ValueError: an argument outside this contract; on the CPU also links that are no tree and rows outside
            their request (other backends end the walk there; no walk exceeds n-1 steps).
    """
    if out is None:
        out = _accept_outputs(candidates, *candidates.shape[:2], num_steps)
    kernel("verify_tree_greedy", candidates, retrieve_index, next_token, next_sibling, target_predict, *out, num_steps)
    return out


@op("(Tensor candidates, Tensor retrieve_index, Tensor next_token, Tensor next_sibling, Tensor target_probs, "
    "Tensor coins, Tensor final_coins, *, int num_steps, float threshold_single=1.0, float threshold_acc=1.0) -> "
    "(Tensor, Tensor, Tensor)")
def verify_tree_sampling(candidates, retrieve_index, next_token, next_sibling, target_probs, coins, final_coins, *,
                         num_steps, threshold_single=1.0, threshold_acc=1.0, out=None):
    """Accept a path at random, so that the emitted tokens follow the target's distribution.

    At the current node, over its children in order: ``acc += p(token)``; accept if ``p > 0`` and
    (``coins[b, current] < acc / max(threshold_acc, 1e-9)`` or ``p >= threshold_single``). A rejected child's
    probability is removed. The last token is drawn from what is left at the last node with ``final_coins``.
    Thresholds below 1 trade exactness for length.

    Args:
        candidates, retrieve_index, next_token, next_sibling: as :func:`verify_tree_greedy`.
        target_probs: ``[B, n, V]`` float32, not changed. coins: ``[B, n]``, final_coins: ``[B]``, float32 in
            [0, 1).
        num_steps, threshold_single, threshold_acc: most drafts to accept; thresholds in 0..1.
        out: as :func:`verify_tree_greedy`.

    Returns:
        As :func:`verify_tree_greedy`.

    Raises:
        ValueError: an argument outside this contract.
    """
    if out is None:
        out = _accept_outputs(candidates, *candidates.shape[:2], num_steps)
    kernel("verify_tree_sampling", candidates, retrieve_index, next_token, next_sibling, target_probs, coins, final_coins,
           *out, num_steps, threshold_single, threshold_acc)
    return out
