# SPDX-License-Identifier: Apache-2.0
"""Human output of commands: text with accepted drafts told apart from the Target's tokens, and a short table."""
from __future__ import annotations

import os
from typing import TextIO

from .text import Tokenizer

GREEN, RESET = "\x1b[32m", "\x1b[0m"


class Marker:
    """Writes tokens as they come; runs of accepted drafts are green on a terminal, else in [brackets]."""

    def __init__(self, out: TextIO, tokenizer: Tokenizer | None):
        self.out, self.tokenizer = out, tokenizer
        colour = out.isatty() and "NO_COLOR" not in os.environ
        self.marks = (GREEN, RESET) if colour else ("[", "]")
        self.legend = f"{GREEN}green{RESET}: accepted drafts" if colour else "[in brackets]: accepted drafts"
        self._ids, self._draft, self._stream = [], False, None
        if tokenizer is not None:
            from tokenizers.decoders import DecodeStream

            self._stream = DecodeStream(skip_special_tokens=True)

    def write(self, token_ids: list[int], from_draft: list[bool]) -> None:
        for token, draft in zip(token_ids, from_draft):
            piece = self._stream.step(self.tokenizer.inner, token) if self._stream is not None else f" {token}"
            if not piece:  # a part of a character: it shows with the token that completes it
                continue
            if draft != self._draft:
                self.out.write(self.marks[0] if draft else self.marks[1])
                self._draft = draft
            self.out.write(piece)
        self.out.flush()

    def end(self) -> None:
        self.out.write((self.marks[1] if self._draft else "") + "\n")
        self._draft = False


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def table(rows: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)


def metric_rows(metrics: dict) -> list[tuple[str, str]]:
    """The short table of a run."""
    rows = [("tokens", f"{metrics['prompt_tokens']} prompt, {metrics['output_tokens']} new")]
    if metrics["rounds"]:
        rows += [("tokens per round", f"{number(metrics['accept_length'])} ({metrics['rounds']} verify rounds)"),
                 ("acceptance per position", "  ".join(f"d{i + 1} {percent(p)}" for i, p in
                                                       enumerate(metrics["acceptance_per_position"])) or "-")]
    times = "  ".join(f"{name} {value:.3f}" for name, value in metrics["time_s"].items() if value)
    forwards = "  ".join(f"{name} {count}" for name, count in metrics["forwards"].items() if count)
    graphs = metrics["cuda_graphs"]
    eager = [f"{count} op by op: {why}" for why, count in graphs["eager_rounds"].items() if why != "device cpu"]
    if graphs["replayed_rounds"] or eager:
        rows.append(("decode steps", "; ".join([f"{graphs['replayed_rounds']} as CUDA graphs", *eager])))
    if metrics["reference_ops"]:
        rows.append(("ops that ran their reference", ", ".join(metrics["reference_ops"])))
    return rows + [("first token / per token", f"{number(metrics['ttft_ms'])} ms / {number(metrics['tpot_ms'])} ms"),
                   ("seconds", times), ("forwards", forwards)]
