# SPDX-License-Identifier: Apache-2.0
"""Text to tokens and back, piece by piece, with the ``tokenizers`` library."""
from __future__ import annotations

import os


class Tokenizer:
    """The ``tokenizer.json`` of a checkpoint folder.

    Raises FileNotFoundError if it has none, ValueError if it is not one."""

    def __init__(self, folder: str):
        path = os.path.join(folder, "tokenizer.json")
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"{folder}: there is no such folder")
        if not os.path.exists(path):
            raise FileNotFoundError(f"{path}: this checkpoint has no tokenizer.json; give token ids instead of text")
        import tokenizers

        try:
            self.inner = tokenizers.Tokenizer.from_file(path)
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"{path}: is not a tokenizer: {error}") from error

    @staticmethod
    def of(folder: str) -> "Tokenizer | None":
        """The folder's tokenizer, or None if it has no tokenizer.json."""
        return Tokenizer(folder) if os.path.exists(os.path.join(folder, "tokenizer.json")) else None

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(text).ids

    def decode(self, ids: list[int]) -> str:
        return self.inner.decode(ids, skip_special_tokens=True)


class TextStream:
    """The text of one request while its tokens arrive. The pieces taken, joined, are the final text.

    A token may end inside a character, and the text may end inside a stop string: such ends are held back until they
    are decided.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = ()):
        from tokenizers.decoders import DecodeStream

        self.tokenizer, self.stop = tokenizer, stop
        self.ids: list[int] = []
        self.text, self.taken = "", 0
        self._stream = DecodeStream(skip_special_tokens=True)
        self._cut: int | None = None  # where a stop string begins

    def push(self, token: int) -> bool:
        """Add one token; True if it completes a stop string."""
        self.ids.append(token)
        piece = self._stream.step(self.tokenizer.inner, token)
        if not piece:
            return False
        before = len(self.text)
        self.text += piece
        for stop in self.stop:
            at = self.text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                self._cut = at if self._cut is None else min(self._cut, at)
        return self._cut is not None

    def take(self, final: bool = False) -> str:
        """Text not taken yet and certain to stay; all of it if ``final``."""
        text = self.final() if final else self.text[:self._certain()]
        piece, self.taken = text[self.taken:], max(self.taken, len(text))
        return piece

    def _certain(self) -> int:
        if self._cut is not None:
            return self._cut
        held = 0
        for stop in self.stop:
            for size in range(min(len(stop) - 1, len(self.text)), held, -1):
                if self.text.endswith(stop[:size]):
                    held = size
                    break
        return len(self.text) - held

    def final(self) -> str:
        """The whole text: cut before a stop string, else with whatever an incomplete last character decodes to."""
        if self._cut is not None:
            return self.text[:self._cut]
        whole = self.tokenizer.decode(self.ids)
        return whole if whole.startswith(self.text) else self.text
