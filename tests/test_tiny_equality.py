# SPDX-License-Identifier: Apache-2.0
"""The trained model in the box: greedy speculative = plain = transformers, with drafts that are really accepted."""
import functools
import json
from pydoc_data import topics

import pytest
from util import transformers_or_gate

from dsv4spec import Engine, SamplingParams, SpeculativeConfig
from dsv4spec.bench_e2e import Transformers
from dsv4spec.demo import ASSET

LENGTHS = (5, 700, 64, 127, 1, 260)  # the window is 64; some prompts need several chunks
NEW = 48
PARAMS = SamplingParams(NEW, ignore_eos=True)


def engine(**options):
    return Engine(ASSET, max_running_requests=len(LENGTHS), max_len=1024, **options)


@functools.cache
def plain():
    e = engine(speculative=None)
    texts = [text for _, text in sorted(topics.topics.items())]
    prompts = [e.tokenizer.encode(text * 3)[:n] for text, n in zip(texts[::9], LENGTHS)]
    return prompts, [o.token_ids for o in e.generate(prompts, PARAMS)]


@pytest.mark.parametrize("steps, page_size, chunk", [(1, 16, 512), (2, 64, 100), (3, 128, 512), (4, 64, 33), (5, 64, 512)])
def test_speculative_equals_plain(steps, page_size, chunk):
    prompts, want = plain()
    e = engine(speculative=SpeculativeConfig(steps), page_size=page_size, chunked_prefill_size=chunk)
    outputs = e.generate(prompts, PARAMS)
    assert [o.token_ids for o in outputs] == want
    metrics = e.metrics()
    assert metrics["accept_length"] > 1.4 and all(p > 0 for p in metrics["acceptance_per_position"])
    assert metrics["accepted"] == sum(sum(o.from_draft) for o in outputs)


def test_plain_equals_transformers():
    transformers_or_gate()
    prompts, want = plain()
    theirs = Transformers(str(ASSET), NEW)
    assert theirs.check(prompts[3], theirs.generate(prompts[3]), want[3]) in (0, 1)  # 1: parted at two nearly equal logits; raises otherwise


def test_the_model_has_every_layer_kind():
    config = json.loads((ASSET / "config.json").read_text())
    assert set(config["compress_ratios"][:config["num_hidden_layers"]]) == {0, 4, 128}
    assert 6 <= config["num_hidden_layers"] <= 10
