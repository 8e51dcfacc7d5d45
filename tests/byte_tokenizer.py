# SPDX-License-Identifier: Apache-2.0
"""A tokenizer.json without training: two special tokens, then one token for each byte."""
from pathlib import Path

EOS, SPECIAL, SIZE = 1, 2, 258


def write(directory) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<bos>": 0, "<eos>": EOS, **{c: SPECIAL + i for i, c in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    tokenizer.save(str(Path(directory) / "tokenizer.json"))
