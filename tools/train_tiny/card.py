# SPDX-License-Identifier: Apache-2.0
"""README.md of the model directory: what it is, text and licence, how it was made, numbers."""
import platform
from pathlib import Path

TEXT = """# Tiny DeepSeek-V4 with its MTP layer

A complete, trained DeepSeek-V4 checkpoint in the official format (tensor names, dtypes, keys of
`config.json`), small enough to ship: {params:.2f} M parameters, {layers} Target layers of all three
attention kinds (window only, C4 with its lightning indexer, C128), hash routing in the first
{hashed}, and one MTP (NextN) layer trained for three recursive steps. It exists to run the whole
speculative decoding loop, demos and tests; it knows only the prose of Python's own documentation.

## Text and licence

All training text ships with CPython {python}: the language help topics (`pydoc_data.topics`), the
docstrings of the standard library in place under their signatures, its comments, and the docstrings
of built-in modules. It is copyright of the Python Software Foundation and contributors, under the
PSF License Version 2 (code samples in the documentation also under the Zero Clause BSD License);
see `LICENSE.txt` of CPython. No other text was used. The tokenizer ({vocab} byte-level BPE tokens,
any text round-trips) was trained on the same training text.

Every text is cut into passages of about 4,000 characters at paragraph boundaries, and 6 % of the
passages are held out, chosen by a hash of their name. Other passages of the same topic or module
may be training text. Paragraphs that occur twice are used once, and paragraphs of held-out passages
that share 30 % or more of their 8-word runs with training text were removed.

## Numbers

| measured after rounding to the shipped dtypes | |
| --- | --- |
| held-out text | {held_docs} passages, {chars} characters, {held_tokens} tokens |
| bits per character, held-out | **{bits:.3f}** |
| draft acceptance at positions 1, 2, 3 | {rates} |
| tokens per round (3 drafts, greedy) | **{per_round:.2f}** |
| acceptance test | {prompts} held-out prompts of {prompt_tokens} tokens, {new_tokens} new each |
| training | {seen} |

Bits per character: all held-out passages as one stream `bos text eos bos text eos ...`, windows of
512 tokens with a stride of 256, every token scored once; the bits of all tokens (bos and eos
included) over the number of characters. Acceptance at position j: rounds in which drafts 1 to j
were all accepted, over all rounds; tokens per round counts the token that the Target adds.

## Reproduce

`tools/train_tiny` (see its docstring). A run is limited by time, not by steps, so that another
machine gives other numbers; `--steps` takes the clock out.
"""


def write(out, model, seen, held, **numbers):
    cfg = model.cfg
    Path(out, "README.md").write_text(TEXT.format(
        params=sum(p.numel() for p in model.parameters()) / 1e6, layers=cfg["num_hidden_layers"],
        hashed=cfg["num_hash_layers"], vocab=cfg["vocab_size"], python=platform.python_version(),
        held_docs=len(held), chars=sum(len(t) for _, t, _ in held),
        held_tokens=sum(len(i) for _, _, i in held), seen=seen, **numbers))
