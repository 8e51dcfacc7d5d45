# SPDX-License-Identifier: Apache-2.0
"""The EAGLE state machine of DeepSeek-V4's NextN layer, one phase a function, in the order in which a round runs.

Between rounds each request has: s committed positions (KV of Target and draft written), a *bonus* token at position s
that is given out already but has no KV yet, and what the last draft extend left for it: the first draft token(s) of
the next round and the NextN state they came from.

    draft     first drafts -> num_steps - 1 NextN decode forwards at positions s, s+1, ... -> d1 .. dn
    verify    one Target forward over the window [bonus, d1 .. dn] at positions s ..
    accept    the longest path that agrees with the Target's argmax, plus the Target's next token (the new bonus)
    extend    one NextN forward over the same positions, row j pairing the Target's hidden row j with the token
              that follows it; it overwrites all draft KV made from guesses and yields the next first drafts
    commit    s += tokens kept

Rejected rows leave KV behind at positions >= s; the next window starts at s and overwrites them before they are read.
"""
from __future__ import annotations

from typing import Sequence

import torch

from dsv4spec import ops
from dsv4spec.cache import StaticWindow, Window
from dsv4spec.cache.batch import ForwardBatch, ForwardMode

from . import tree
from .accept import Block, Keep, embeddable, keep_all, take_blocks, window_candidates
from .captured import Capture, RoundGraph
from .metrics import Metrics
from .options import SpeculativeConfig
from .plain import Chunk, PlainWorker
from .round import EagerRound, Verified


class EagleWorker(PlainWorker):
    """Draft with NextN, verify with the Target; greedy.

    Args (besides :class:`PlainWorker`'s):
        nextn: ``forward(batch, cache, hidden [T, hc*d], picked) -> [T or B, hc*d]`` (states before its hc_head, of the
            rows picked) and ``logits``.
        options: checked counts. ``decode(num_steps=...)`` may use fewer steps in a round.
        max_len: positions a request may hold; rows at or beyond it have no KV and are never accepted.
    """

    def __init__(self, target, nextn, cache, options: SpeculativeConfig, metrics: Metrics, *, vocab_size: int,
                 max_requests: int, max_len: int, device="cpu"):
        super().__init__(target, cache, metrics, vocab_size=vocab_size, max_requests=max_requests, device=device)
        self.nextn, self.options, self.max_len = nextn, options, max_len
        self.window = tree.window_rows(options)
        # carry: bonus int64 [B]; state [B, hc*d], NextN's output that the first drafts came from; first int64 [B, k], the
        # first drafts of the next round, and first_p [B, k], their probabilities (of a chain: where draft_p_min asks)
        self._chains: dict[tuple[int, int], tree.Links] = {}  # by batch size and steps

    # ------------------------------------------------------------------------------------------------ prefill
    def prefill(self, chunks: Sequence[Chunk]) -> list[int]:
        """Target prefill, then the draft extend over the same rows. See :meth:`PlainWorker.prefill`."""
        with self.metrics.phase("prefill"):
            hidden, tails = self._target_prefill(chunks)
        with self.metrics.phase("extend"):
            self._draft_extend_for_prefill(chunks, hidden, tails)
        self._commit_prefill(chunks)
        return tails

    def _draft_extend_for_prefill(self, chunks: Sequence[Chunk], hidden: torch.Tensor, tails: list[int]) -> None:
        """Row i pairs the hidden row of token i with token i+1; the last one of a piece with the token after it."""
        shifted = [token for chunk, tail in zip(chunks, tails) for token in (*chunk.tokens[1:], tail)]
        rows, counts = [c.row for c in chunks], [len(c.tokens) for c in chunks]
        batch = self.cache.batch(ForwardMode.NEXTN_EXTEND, rows, self._ids(shifted), counts)
        state = self._nextn(batch, hidden, batch.query_start_loc[1:].long() - 1)
        self.carry.put(rows, **self._carry_on(self._ids(tails), state))

    # -------------------------------------------------------------------------------------------------- round
    def decode(self, rows: Sequence[int], keep: Keep = keep_all, num_steps: int | None = None) -> list[Block]:
        """One round for every row: 1 .. num_steps + 1 tokens each. Raises CacheFull before anything was taken."""
        steps = self._steps(num_steps)
        this = self._begin(rows, steps)
        with self.metrics.phase("draft"):
            this.draft()
        with self.metrics.phase("verify"):
            host = this.verify()  # the one host read of a round
            counts = [row.pop() for row in host]
            blocks = take_blocks(host, counts, keep)
            kept = [len(block.tokens) for block in blocks]
            self.metrics.record_rounds(this.offered, [block.drafts for block in blocks], kept)
        with self.metrics.phase("extend"):
            this.extend(kept)
        self.cache.commit(rows, kept)
        return blocks

    def eager(self, rows: Sequence[int], steps: int) -> EagerRound:
        return EagerRound(self, rows, steps)

    def captured(self, capture: Capture, size: int) -> RoundGraph:
        return RoundGraph(self, capture, size, self.captured_steps)

    @property
    def captured_steps(self) -> int:
        return self.options.num_steps

    @property
    def why_not_captured(self) -> str:
        return "draft_p_min reads a probability on the host after each draft" if self.options.draft_p_min else ""

    def _steps(self, num_steps: int | None) -> int:
        most = self.options.num_steps
        if num_steps is None:
            return most
        if not 0 <= num_steps <= most or (self.options.eagle_topk > 1 and num_steps != most):
            raise ValueError(f"decode: num_steps: expected 0..{most} (a tree's is fixed), got {num_steps}")
        return num_steps

    def window_of(self, steps: int) -> tuple[int, int]:
        """Rows of a request in the verify window of a round of ``steps``, and KV rows that the round may write."""
        return (self.options.num_draft_tokens, self.window) if self.options.eagle_topk > 1 else (steps + 1, steps + 1)

    # The three parts of a round read and write tensors of the device and nothing else (but for draft_p_min), so that
    # they can be captured.
    def _draft(self, window: Window | StaticWindow, carried: dict[str, torch.Tensor], steps: int) -> tree.Draft:
        """First drafts, then steps - 1 NextN decode forwards, or fewer by draft_p_min (whose host read no capture may
        hold): row i of each window, at position s + i."""
        if self.options.eagle_topk > 1:
            return tree.draft_tree(self, window, carried)
        if steps == 0:
            return tree.Draft(self._blank(0).view(window.size, 0), 0)
        token, hidden, p = carried["first"][:, 0], carried["state"], carried.get("first_p")
        tokens = [token]
        for step in range(steps - 1):
            if p is not None and p.max().item() < self.options.draft_p_min:
                break
            hidden = self._nextn(window.step(step, token), hidden)
            token, p = self._best(self.nextn.logits(hidden))
            tokens.append(token)
        return tree.Draft(torch.stack(tokens, 1) if window.room is None else tokens, len(tokens))

    def _verify(self, window: Window | StaticWindow, bonus: torch.Tensor, draft: tree.Draft,
                room: Sequence[int] | None) -> Verified:
        """One Target forward over [bonus, drafts], then the walk along its argmax. ``room``: see window_candidates."""
        if type(draft.tokens) is list:
            if room is None and window.room is not None:
                return self._verify_natively(window, bonus, draft.tokens)
            draft = tree.Draft(torch.stack(draft.tokens, 1), draft.steps)
        batch, size, n = window.verify, window.size, draft.tokens.shape[1] + 1
        tokens = window_candidates(bonus, draft.tokens, self.vocab_size, room)
        batch.input_ids = embeddable(tokens).view(-1)
        links = tree.link(draft, tokens, batch) if draft.topk > 1 else self._chain_links(size, draft.steps)
        hidden = self._target(batch)
        predict = self._likeliest(self.target.logits(hidden))
        # Room that is zeroed at once: what a padding request of a tree leaves must be an index.
        out = torch.zeros(size * (n + draft.steps + 2), dtype=torch.int32, device=self.device).split_with_sizes(
            [size * n, size * (draft.steps + 1), size])
        _, index, accepted = ops.verify_tree_greedy(tokens, links.retrieve_index, links.next_token, links.next_sibling,
                                                    predict.view(-1, n), num_steps=draft.steps,
                                                    out=(out[0], out[1].view(size, -1), out[2]))
        # Along a chain the accepted path is the window itself.
        path = predict.view(-1, n) if draft.topk == 1 else predict[index.clamp_min(0)]
        return Verified(hidden, predict, index, torch.cat([path, accepted[:, None]], 1))

    def _verify_natively(self, window: Window, bonus: torch.Tensor, drafts: list[torch.Tensor]) -> Verified:
        """The same along a chain that fits, on the host: one call before the forward and one behind it."""
        room = window.room
        room.native.candidates(bonus, drafts, self.vocab_size)
        hidden = self._target(window.verify)
        return Verified(hidden, room.predict, None, room.native.accept(self.target.logits(hidden)))

    def _draft_extend_for_decode(self, window: Window | StaticWindow, verified: Verified, picked: torch.Tensor,
                                 out: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
        """Fixed rows per request whatever was accepted; row ``picked`` (kept - 1 of each request) is the one whose state
        is asked for. Later rows store garbage that the next window overwrites. Returns what the requests carry on, in
        ``out``."""
        if self.options.eagle_topk > 1:
            hidden, predict = tree.compact(self, window.verify, verified.hidden, verified.predict, verified.index)
            extend = window.nodes(ForwardMode.NEXTN_EXTEND, hidden.shape[0] // window.size, predict)
        else:
            hidden, predict = verified.hidden, verified.predict
            extend = window.verify.for_draft(ForwardMode.NEXTN_EXTEND, predict)
        state = self._nextn(extend, hidden, picked)
        if out is None:
            return self._carry_on(predict.index_select(0, picked), state)
        torch.index_select(predict, 0, picked, out=out["bonus"])
        return self._carry_on(out["bonus"], out["state"].copy_(state), out)

    # ------------------------------------------------------------------------------------------------- helpers
    def _nextn(self, batch: ForwardBatch, hidden: torch.Tensor, picked: torch.Tensor | None = None) -> torch.Tensor:
        self.metrics.forwards[batch.mode.value] += 1
        return self.nextn.forward(batch, self.cache, hidden, picked)

    def _best(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The likeliest token of each row, and its probability if draft_p_min asks for it."""
        if not self.options.draft_p_min:
            return self._likeliest(logits), None
        p, token = torch.softmax(logits, -1).max(-1)
        return token, p

    def _chain_links(self, size: int, steps: int) -> tree.Links:
        if (size, steps) not in self._chains:
            self._chains[size, steps] = tree.chain_links(size, steps, self.device)
        return self._chains[size, steps]

    def _carry_on(self, bonus: torch.Tensor, state: torch.Tensor, out: dict | None = None) -> dict[str, torch.Tensor]:
        """What requests carry to the next round: the bonus, NextN's state behind it, and the drafts that its logits
        propose."""
        logits, out = self.nextn.logits(state), out or {}
        if self.options.draft_p_min:
            first, p = self._best(logits)
            return dict(bonus=bonus, state=state, first=first[:, None], first_p=p[:, None])
        if self.options.eagle_topk == 1:  # probability 1: a chain has nothing to compare it with
            first = self._likeliest(logits, out["first"][:, 0] if out else None)
            return dict(bonus=bonus, state=state, first=first[:, None])
        p, first = tree.topk(logits, self.options.eagle_topk, (out["first_p"], out["first"]) if out else None)
        return dict(bonus=bonus, state=state, first=first, first_p=p)
