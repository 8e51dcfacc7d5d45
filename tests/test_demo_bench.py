# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec demo`` and ``dsv4spec bench e2e`` on a random checkpoint: what they print, what they refuse."""
import contextlib
import io
import json
import math
import shutil

import byte_tokenizer
import pytest
from util import transformers_or_gate

import tiny_checkpoints as tiny
from dsv4spec import bench_context, bench_e2e, bench_worker, demo
from dsv4spec.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:no draft token accepted")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    raw = tiny.raw_config(vocab_size=byte_tokenizer.SIZE, index_topk=64)
    folder = tiny.write(tmp_path_factory.mktemp("demo") / "model", raw, tiny.random_tensors(raw, "demo"))
    byte_tokenizer.write(folder)
    return str(folder)


def command(*args, code=0):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        got = main([*map(str, args)])
    assert got == code, err.getvalue()
    return out.getvalue(), err.getvalue()


def test_demo_shows_both_runs(model):
    out, _ = command("demo", "--model", model, "--prompt", "abc", "--max-new-tokens", 12, "--repeats", 1,
                     "--draft-p-min", 0)
    for text in ("plain decoding:", "speculative decoding:", "acceptance per position", "tokens per round",
                 "target_verify", "nextn_decode", "speed-up", "same text: yes, ", "accepted drafts"):
        assert text in out, text


def test_demo_on_a_named_backend(model):
    """Every op is the reference's by request, so that none ran it for want of a kernel."""
    out, _ = command("demo", "--model", model, "--prompt", "abc", "--max-new-tokens", 4, "--repeats", 1,
                     "--backend", "reference", "--missing", "error")
    assert "same text: yes, 4 tokens" in out and "ran their reference" not in out
    for name in (["demo"], ["bench", "e2e"]):
        _, err = command(*name, "--model", model, "--backend", "nothing", code=1)
        assert "nothing" in err and err.count("\n") == 1


def test_demo_fails_if_the_texts_differ(model, monkeypatch):
    right = demo.timed

    def wrong(engine, prompts, params):
        seconds, (output,) = right(engine, prompts, params)
        if engine.speculative:
            output.token_ids[3] += 1
        return seconds, [output]

    monkeypatch.setattr(demo, "timed", wrong)
    _, err = command("demo", "--model", model, "--prompt", "abc", "--max-new-tokens", 6, "--repeats", 1, code=1)
    assert "differ from token 3 on" in err


def test_bench_e2e(model, tmp_path, monkeypatch):
    transformers_or_gate()
    monkeypatch.setattr(bench_context, "STEPS", 5)
    monkeypatch.setattr(bench_context, "REPEATS", 1)
    file = tmp_path / "e2e.json"
    out, _ = command("bench", "e2e", "--model", model, "--prompt", "abc", "de", "--max-new-tokens", 8,
                     "--repeats", 1, "--json", file)
    result = json.loads(file.read_text())
    assert json.loads(out) == result
    for key in ("plain_tokens_per_s", "speculative_tokens_per_s", "speculative_over_plain", "transformers_tokens_per_s",
                "plain_over_transformers", "tokens_per_round", "swa_decode_32k_over_1k"):
        assert math.isfinite(result[key]) and result[key] > 0, key
    assert result["plain_over_transformers"] == result["plain_tokens_per_s"] / result["transformers_tokens_per_s"]


def test_bench_worker(model, tmp_path):
    file = tmp_path / "worker.json"
    out, _ = command("bench", "worker", "--model", model, "--batches", 1, 3, "--contexts", 20, 70, "--rounds", 3, "--json", file)
    cases = json.loads(file.read_text())["cases"]
    assert [(c["batch"], c["context"]) for c in cases] == [(1, 20), (1, 70), (3, 20), (3, 70)]
    assert len(out.strip().splitlines()) == 5
    for c in cases:
        assert 0 < c["worker_us_p10"] <= c["worker_us"] <= c["worker_us_p90"] and c["models_us"] > 0
        assert 1 <= c["tokens_per_round"] <= 4


def test_bench_worker_counts_what_is_not_a_model(model):
    """A round's time is the models' and the worker's."""
    import time

    import torch

    from dsv4spec.models import load_model

    config, target, nextn = load_model(model, dtype=torch.float32, device="cpu", nextn=True)
    with torch.inference_mode():
        case = bench_worker.Case(config, target, nextn, 2, 20, 3, 5)
        forward = target.forward
        target.forward = lambda *a: time.sleep(0.05) or forward(*a)
        case.round()
    assert case.model_us[0] > 50_000 > case.worker_us[0]


def test_bench_refuses_outputs_that_differ():
    with pytest.raises(RuntimeError, match="speculative: tokens of prompt 1 differ from token 2 on"):
        bench_e2e._refuse_difference("speculative", [[7], [1, 2, 3]], [[7], [1, 2, 4]])
    bench_e2e._refuse_difference("speculative", [[1, 2]], [[1, 2]])


def test_bench_context_case_recycles_pages():
    """The 32k case holds the window's pages only."""
    from dsv4spec.models.config import DeepseekV4Config
    import torch

    case = bench_context._Case(DeepseekV4Config.from_dict(tiny.raw_config()), torch.float32, torch.device("cpu"), 4096)
    case.time()
    held = case.cache.usage()["rows"][case.row]["swa_pages"]
    assert held <= 2 and case.cache.length(case.row) == 4096 + bench_context.STEPS


def test_faults_are_one_line_and_come_before_the_work(model, tmp_path):
    _, err = command("bench", "e2e", "--model", model, "--json", tmp_path / "nowhere" / "e2e.json", code=1)
    assert "nowhere" in err and err.count("\n") == 1
    for name in (["demo"], ["bench", "e2e"]):
        with pytest.raises(SystemExit):
            command(*name, "--model", model, "--repeats", 0)
    bare = tmp_path / "bare"
    shutil.copytree(model, bare)
    (bare / "tokenizer.json").unlink()
    for name in (["demo"], ["bench", "e2e"]):
        _, err = command(*name, "--model", bare, code=1)
        assert "no tokenizer.json" in err and "Traceback" not in err
