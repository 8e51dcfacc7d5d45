# SPDX-License-Identifier: Apache-2.0
"""What the Target itself writes: greedy continuations of pieces of the training text.

Drafts are judged by the Target's own greedy choices on its own text, not on the corpus, so the MTP
layer is trained on that text last. The continuations are written by the package's engine from the
exported model, in batches, without drafts."""
from pathlib import Path

import numpy as np

PROMPTS = (3, 8, 24, 48)  # tokens; half of the pieces start a passage, behind its bos token
LENGTH = 128  # positions of one training row; rows have four tokens more, the drafts' last targets


def _pieces(train, count, length, rng):
    docs = [d for d in train if len(d) > 2 * length]
    for _ in range(count):
        doc = docs[rng.integers(len(docs))]
        at = 0 if rng.random() < 0.5 else int(rng.integers(1, len(doc) - length))
        yield [int(t) for t in doc[at:at + length]]


def prepare(work, model_dir, train, tokens, batch=32, seed=5):
    """About `tokens` tokens of such text, rows [N, LENGTH + 4] that begin with the prompt; kept in `work`."""
    cache = Path(work) / "own_text.npy"
    if cache.exists():
        return np.load(cache)
    from dsv4spec import Engine, SamplingParams

    engine = Engine(model_dir, speculative=None, max_running_requests=batch)
    rng, rows = np.random.default_rng(seed), []
    while len(rows) * LENGTH < tokens:
        for length in PROMPTS:
            pieces = list(_pieces(train, 4 * batch, length, rng))
            params = SamplingParams(max_new_tokens=LENGTH + 4 - length, ignore_eos=True)
            outputs = engine.generate(pieces, params)
            rows += [piece + out.token_ids for piece, out in zip(pieces, outputs, strict=True)]
        print(f"own text: {len(rows) * LENGTH} tokens", flush=True)
    rows = np.array(rows, dtype=np.int16)
    np.save(cache, rows)
    return rows


class Rows:
    """Endless batches of rows, shuffled anew in each pass; `passes` as data.Batches has it."""

    def __init__(self, rows, seed):
        self.rng, self.rows, self.passes, self.order = np.random.default_rng(seed), rows, 0, []

    def next(self, batch, length):
        if length != LENGTH:
            raise ValueError(f"own text comes in rows of {LENGTH} tokens: --length {LENGTH}, not {length}")
        if len(self.order) < batch:
            self.order, self.passes = list(self.rng.permutation(len(self.rows))), self.passes + 1
        picked, self.order = self.order[:batch], self.order[batch:]
        return self.rows[picked].astype(np.int64)
