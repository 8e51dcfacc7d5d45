# SPDX-License-Identifier: Apache-2.0
"""What is asked for (SamplingParams), how far it got (Request) and what comes back (GenerationOutput)."""
from __future__ import annotations

import time
from dataclasses import dataclass, field

from .spec.accept import Block
from .spec.plain import Chunk
from .text import TextStream


@dataclass(frozen=True)
class SamplingParams:
    """How one request is decoded.

    Args:
        max_new_tokens: most tokens to give out, at least 1.
        ignore_eos: go on past the config's EOS tokens (``stop_token_ids`` and ``stop`` still hold).
        temperature: 0, the only value: greedy. Sampling is not there yet and is refused, never turned into greedy.
        stop: strings that end the text; the text is cut before the string, the tokens end with the one that
            completed it. Needs a tokenizer.
        stop_token_ids: tokens that end the request, kept in the output as an EOS is.

    Raises:
        ValueError: a value out of range, named.
    """

    max_new_tokens: int = 64
    ignore_eos: bool = False
    temperature: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self):
        if self.temperature != 0:
            raise ValueError("SamplingParams: temperature: expected 0 (greedy; sampling is not supported yet), "
                             f"got {self.temperature}")
        if not isinstance(self.max_new_tokens, int) or isinstance(self.max_new_tokens, bool) or self.max_new_tokens < 1:
            raise ValueError(f"SamplingParams: max_new_tokens: expected an integer >= 1, got {self.max_new_tokens!r}")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(isinstance(s, str) and s for s in stop):
            raise ValueError(f"SamplingParams: stop: expected non-empty strings, got {stop!r}")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))


@dataclass
class GenerationOutput:
    """One request's result.

    Attributes:
        token_ids: new tokens only; an EOS or stop token that ended the request is the last of them.
        text: the new text without special tokens, or None without a tokenizer.
        finish_reason: "stop" (EOS, stop token or string), "length", "abort" or "error" (``error`` says what).
        accept_lengths: tokens given out by each verify round, the Target's own included; the last is cut at a stop,
            so that ``sum + 1 == len(token_ids)``. Empty without speculation.
        from_draft: per token, whether it was an accepted draft.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str | None
    finish_reason: str
    accept_lengths: list[int]
    from_draft: list[bool]
    error: str | None = None


@dataclass
class StreamChunk:
    """New tokens of request ``index`` since its last chunk; ``text`` None without a tokenizer. ``output`` comes with
    the last chunk."""

    index: int
    token_ids: list[int]
    from_draft: list[bool]
    text: str | None
    output: GenerationOutput | None = None


@dataclass(eq=False)
class Request:
    """One request in the scheduler. Confirmed tokens are prompt + output; the cache holds KV of ``done`` of them.

    Outside a forward, ``done`` is the row's committed length, and the last confirmed token has no KV yet.
    """

    prompt: list[int]
    params: SamplingParams
    eos: frozenset[int]
    max_tokens: int  # prompt and output together
    speculative: bool
    text: TextStream | None = None
    output: list[int] = field(default_factory=list)
    from_draft: list[bool] = field(default_factory=list)
    accept_lengths: list[int] = field(default_factory=list)
    row: int | None = None
    done: int = 0
    ready: bool = False  # everything but the last confirmed token is in the cache: the request can decode
    finish_reason: str | None = None
    error: str | None = None
    sent: int = 0  # tokens already streamed
    arrived: float = field(default_factory=time.perf_counter)
    first_token_at: float = 0.0

    def __post_init__(self):
        self.stop_ids = frozenset(self.params.stop_token_ids) | (frozenset() if self.params.ignore_eos else self.eos)
        self.limit = min(self.params.max_new_tokens, self.max_tokens - len(self.prompt))

    # ------------------------------------------------------------------------------------------------- prefill
    @property
    def to_prefill(self) -> int:
        """Tokens still to run before decoding: the prompt, or after a preemption all confirmed ones but the last."""
        return len(self.prompt) + max(len(self.output) - 1, 0) - self.done

    def next_chunk(self, budget: int) -> Chunk:
        """The next piece to prefill: at most ``budget`` tokens, and the token known to follow."""
        confirmed = self.prompt + self.output
        end = self.done + min(budget, self.to_prefill)
        return Chunk(self.row, confirmed[self.done:end], confirmed[end] if end < len(confirmed) else None)

    # ------------------------------------------------------------------------------------------------- results
    def take(self, tokens: list[int]) -> int:
        """Give out tokens up to the first stop; returns how many. The stop rules act token by token."""
        tokens = tokens[:self.limit - len(self.output)]
        if self.params.stop or not self.stop_ids.isdisjoint(tokens):
            for count, token in enumerate(tokens, 1):
                if (self.params.stop and self.text.push(token)) or token in self.stop_ids:
                    self.finish_reason, tokens = "stop", tokens[:count]
                    break
        self.output += tokens
        if self.finish_reason is None and len(self.output) == self.limit:
            self.finish_reason = "length"
        return len(tokens)

    def record(self, block: Block) -> None:
        """Where the block's tokens (already taken) came from."""
        self.from_draft += [i < block.drafts for i in range(len(block.tokens))]
        self.done += len(block.tokens)
        if self.speculative:
            self.accept_lengths.append(len(block.tokens))

    def chunk(self, index: int) -> StreamChunk | None:
        """What is new since the last chunk, or None."""
        done = self.finish_reason is not None
        text = self._text().take(final=done) if self.text is not None else None
        if self.sent == len(self.output) and not text and not done:
            return None
        start, self.sent = self.sent, len(self.output)
        return StreamChunk(index, self.output[start:], self.from_draft[start:], text,
                           self.result() if done else None)

    def result(self) -> GenerationOutput:
        text = self._text().final() if self.text is not None else None
        return GenerationOutput(self.prompt, self.output, text, self.finish_reason, self.accept_lengths,
                                self.from_draft, self.error)

    def _text(self) -> TextStream:
        """The text up to the last token; without stop strings it is decoded only when somebody asks."""
        for token in self.output[len(self.text.ids):]:
            self.text.push(token)
        return self.text
