# SPDX-License-Identifier: Apache-2.0
"""Counters of a run: each is incremented where the thing happens, none is derived from another."""
from __future__ import annotations

import time
import warnings

FORWARDS = ("target_prefill", "target_decode", "target_verify", "nextn_extend", "nextn_decode")
COLLAPSE_ROUNDS = 64  # rounds of requests without one accepted draft after which a warning is due


class Metrics:
    """What the workers and the scheduler count.

    Attributes:
        forwards: model calls by kind (a batch of any size is one call).
        seconds: host time by phase (prefill, decode, draft, verify, extend). The only host read of a round is in
            verify, so that on an asynchronous device the waiting shows there.
        rounds: verify rounds of requests (a batch of 8 counts 8).
        drafted_at, accepted_at: draft tokens offered to, and accepted by, the Target at each draft position.
        prompt_tokens, output_tokens: tokens prefilled (again after a preemption) and tokens given out.
        verified_tokens: tokens given out by verify rounds.
        graph_rounds, eager_rounds: batch rounds replayed as CUDA graphs, and those run op by op, by reason.
        preemptions, time_to_first, decode_seconds, decode_tokens: scheduling, in requests, seconds and tokens.
    """

    def __init__(self, num_steps: int = 0):
        self.num_steps, self.forwards = num_steps, {}
        self.reset()

    def reset(self) -> None:
        self.forwards.update(dict.fromkeys(FORWARDS, 0))
        self.seconds = dict.fromkeys(("prefill", "decode", "draft", "verify", "extend"), 0.0)
        self.drafted_at = [0] * self.num_steps
        self.accepted_at = [0] * self.num_steps
        self.rounds = self.verified_tokens = 0
        self.prompt_tokens = self.output_tokens = self.preemptions = 0
        self.graph_rounds, self.eager_rounds = 0, {}
        self.time_to_first: list[float] = []
        self.decode_seconds, self.decode_tokens = 0.0, 0
        self._warned = False

    def phase(self, name: str) -> _Phase:
        """``with metrics.phase(name)``: the block's host time goes to ``seconds[name]``."""
        return _Phase(self.seconds, name)

    def record_rounds(self, drafted, accepted, kept) -> None:
        """Count one round of some requests; lists of one number each, at most num_steps.

        Args:
            drafted: draft positions offered (fewer than num_steps near max_len, or by draft_p_min).
            accepted: accepted drafts among the tokens kept.
            kept: tokens given out, the Target's own included; a stop inside the block cuts both.
        """
        self.rounds += len(kept)
        self.verified_tokens += sum(kept)
        for counts, numbers in ((self.drafted_at, drafted), (self.accepted_at, accepted)):
            more = 0  # requests with a draft at this position
            for position in range(self.num_steps - 1, -1, -1):
                more += numbers.count(position + 1)
                counts[position] += more
        if not self._warned and self.rounds >= COLLAPSE_ROUNDS and self.num_steps and not self.accepted_at[0]:
            self._warned = True
            warnings.warn(f"no draft token accepted in {self.rounds} rounds (accept length 1.0): the NextN layer does "
                          "not fit this Target, or its input is wrong", stacklevel=2)

    def report(self) -> dict:
        """All counters and their ratios as JSON-ready values; a ratio without a denominator is None."""
        drafted, accepted = sum(self.drafted_at), sum(self.accepted_at)
        return {
            "forwards": dict(self.forwards),
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "rounds": self.rounds,
            "drafted": drafted,
            "accepted": accepted,
            "acceptance_rate": _ratio(accepted, drafted),
            "drafted_per_position": list(self.drafted_at),
            "accepted_per_position": list(self.accepted_at),
            "acceptance_per_position": [_ratio(a, d) for a, d in zip(self.accepted_at, self.drafted_at)],
            "accept_length": _ratio(self.verified_tokens, self.rounds),
            "accept_length_without_bonus": _ratio(accepted, self.rounds),
            "time_s": {name: round(value, 6) for name, value in self.seconds.items()},
            "ttft_ms": _ratio(1000 * sum(self.time_to_first), len(self.time_to_first)),
            "tpot_ms": _ratio(1000 * self.decode_seconds, self.decode_tokens),
            "cuda_graphs": {"replayed_rounds": self.graph_rounds, "eager_rounds": dict(self.eager_rounds)},
            "preemptions": self.preemptions,
        }


def _ratio(above: float, below: float):
    return above / below if below else None


class _Phase:
    __slots__ = ("_seconds", "_name", "_start")

    def __init__(self, seconds: dict[str, float], name: str):
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *error) -> None:
        self._seconds[self._name] += time.perf_counter() - self._start
