# SPDX-License-Identifier: Apache-2.0
"""Text that arrives token by token (field report A19)."""
import byte_tokenizer
import pytest

from dsv4spec.request import Request, SamplingParams
from dsv4spec.text import TextStream, Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer.write(directory)
    return Tokenizer(str(directory))


def pieces(tokenizer, ids, stop=()):
    stream, out = TextStream(tokenizer, stop), []
    for i, token in enumerate(ids):
        hit = stream.push(token)
        out.append(stream.take(final=hit or i == len(ids) - 1))
        if hit:
            break
    assert "".join(out) == stream.final()
    return out


@pytest.mark.parametrize("text", ["plain", "a\u00e9b", "\u6c34\U0001f30a end", " lead and trail ", ""])
def test_a19_pieces_join_to_the_whole(tokenizer, text):
    out = pieces(tokenizer, [0, *tokenizer.encode(text), byte_tokenizer.EOS])
    assert "".join(out) == text
    assert not any("\ufffd" in piece for piece in out)


def test_a_text_cut_inside_a_character_keeps_its_mark(tokenizer):
    ids = tokenizer.encode("a\u6c34")[:-1]
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids) != "a"


@pytest.mark.parametrize("text, stop, want", [
    ("one END two", ("END",), "one "),
    ("ENEND", ("END",), "EN"),
    ("aab aac", ("aac", "ab"), "a"),
    ("no stop EN", ("END",), "no stop EN"),
    ("stop at once", ("s",), ""),
])
def test_a19_text_ends_before_a_stop_string(tokenizer, text, stop, want):
    out = pieces(tokenizer, tokenizer.encode(text), stop)
    assert "".join(out) == want
    for end in range(1, len(out)):  # nothing was given out that a stop string took back
        assert want.startswith("".join(out[:end]))


def test_a19_tokens_end_with_the_one_that_completes_the_stop_string(tokenizer):
    ids = tokenizer.encode("one END two")
    request = Request([5], SamplingParams(50, stop="END"), frozenset(), 100, True, TextStream(tokenizer, ("END",)))
    assert request.take(ids[:5]) == 5 and request.finish_reason is None
    assert request.take(ids[5:]) == 2
    assert request.output == ids[:7] and request.finish_reason == "stop" and request.result().text == "one "
