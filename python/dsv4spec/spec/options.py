# SPDX-License-Identifier: Apache-2.0
"""The one place where speculative options are filled in and checked."""
from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Sequence

ALGORITHMS = {"EAGLE": "EAGLE", "NEXTN": "EAGLE"}  # name asked for -> name that runs
DEFAULT_COUNTS = (3, 1, 4)  # num_steps, eagle_topk, num_draft_tokens for DeepSeek-V4
MAX_DRAFT_TOKENS = 64  # attention takes 1..64 query rows a request
MAX_TOPK = 16


def _refuse(option: str, rule: str, value) -> None:
    raise ValueError(f"SpeculativeConfig: {option}: expected {rule}, got {value!r}")


def max_tree_nodes(num_steps: int, topk: int) -> int:
    """Nodes of the widest tree: the root, ``topk`` first drafts and ``topk^2`` candidates for each later step."""
    return 1 + (topk + (num_steps - 1) * topk * topk if num_steps else 0)


@dataclass(frozen=True)
class SpeculativeConfig:
    """How a request is decoded speculatively. After construction every field holds a checked value.

    Args:
        num_steps: draft tokens along one path, 0 or more; a round runs ``num_steps - 1`` NextN decode forwards. With 0
            the verify window holds the root alone and every round gives one token.
        eagle_topk: branches of the draft tree at each node; 1 is a chain. More than 1 needs a Target without
            compressed layers (:meth:`check_target`).
        num_draft_tokens: rows of the verify window, root included. For topk 1 it is ``num_steps + 1``; another
            value is corrected with a warning. For topk > 1 the default is ``1 + topk * num_steps``.
        algorithm: ``"EAGLE"`` or its alias ``"NEXTN"``.
        draft_p_min: a chain's round drafts no further once NextN gave the draft just made a probability below this, for
            every request of the batch: its successors would hardly be accepted. 0 (the default) always drafts
            ``num_steps``. Reads one number a draft step on the host. As llama.cpp's ``--draft-p-min`` and
            ``assistant_confidence_threshold`` of transformers; the output is the same for every value.

    With all three counts unset the result is (3, 1, 4). The rules follow the EAGLE options of the SGLang runtime.

    Raises:
        ValueError: a count out of range or options that contradict one another; the text names the option.
    """

    num_steps: int | None = None
    eagle_topk: int | None = None
    num_draft_tokens: int | None = None
    algorithm: str = "EAGLE"
    draft_p_min: float = 0.0

    def __post_init__(self):
        steps, topk, nodes = self.num_steps, self.eagle_topk, self.num_draft_tokens
        name = self.algorithm.upper() if isinstance(self.algorithm, str) else self.algorithm
        if name not in ALGORITHMS:
            _refuse("algorithm", f"one of {', '.join(ALGORITHMS)}", self.algorithm)
        for option, value, least in (("num_steps", steps, 0), ("eagle_topk", topk, 1), ("num_draft_tokens", nodes, 1)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                _refuse(option, f"an integer >= {least}", value)
        if steps is None and (topk is not None or nodes is not None):
            given = "eagle_topk" if topk is not None else "num_draft_tokens"
            _refuse("num_steps", f"a count when {given} is given", None)
        if steps is None:
            steps, topk, nodes = DEFAULT_COUNTS
        topk = 1 if topk is None else topk
        p_min = self.draft_p_min
        if isinstance(p_min, bool) or not isinstance(p_min, (int, float)) or not 0 <= p_min <= 1:
            _refuse("draft_p_min", "a number from 0 to 1", p_min)
        if p_min and topk > 1:
            _refuse("draft_p_min", "0 for a tree (eagle_topk > 1), which keeps its best nodes anyway", p_min)
        nodes = _window(steps, topk, nodes)
        for field, value in (("num_steps", steps), ("eagle_topk", topk), ("num_draft_tokens", nodes),
                             ("algorithm", ALGORITHMS[name])):
            object.__setattr__(self, field, value)

    def check_target(self, compress_ratios: Sequence[int]) -> None:
        """Refuse a tree for a Target with compressed layers: compressors take rows in the order of positions, and a
        tree has several rows at one position. ``compress_ratios``: of the Target's layers (0 and 1: window-only).

        Raises ValueError naming eagle_topk."""
        compressed = sorted({r for r in compress_ratios if r > 1})
        if self.eagle_topk > 1 and compressed:
            _refuse("eagle_topk", f"1 for a Target with compressed layers (ratios {compressed})", self.eagle_topk)


def _window(steps: int, topk: int, nodes: int | None) -> int:
    """The checked width of the verify window."""
    if topk > MAX_TOPK:
        _refuse("eagle_topk", f"at most {MAX_TOPK}", topk)
    if topk > 1 and topk * (steps - 1) > MAX_DRAFT_TOKENS:  # all inner nodes are rows of one NextN forward
        _refuse("eagle_topk", f"at most {MAX_DRAFT_TOKENS // (steps - 1)} for num_steps {steps}", topk)
    if steps == 0 and topk > 1:
        _refuse("eagle_topk", "1 when num_steps is 0", topk)
    if nodes is not None and nodes < min(2, steps + 1):
        _refuse("num_draft_tokens", "at least 2 (the root and one draft)", nodes)
    if topk == 1:
        if nodes is not None and nodes != steps + 1:
            warnings.warn(f"SpeculativeConfig: num_draft_tokens: {nodes} changed to num_steps + 1 = {steps + 1}, "
                          "the window of a chain (eagle_topk 1)", stacklevel=4)
        nodes = steps + 1
        if nodes > MAX_DRAFT_TOKENS:
            _refuse("num_steps", f"at most {MAX_DRAFT_TOKENS - 1}", steps)
        return nodes
    nodes = min(1 + topk * steps, MAX_DRAFT_TOKENS) if nodes is None else nodes
    most = min(max_tree_nodes(steps, topk), MAX_DRAFT_TOKENS)
    if nodes > most:
        _refuse("num_draft_tokens", f"at most {most} for num_steps {steps} and eagle_topk {topk}", nodes)
    return nodes
