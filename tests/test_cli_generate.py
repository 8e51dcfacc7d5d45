# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec generate`` as a process: its JSON, its streams, its refusals."""
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys

import byte_tokenizer
import pytest

import tiny_checkpoints as tiny
from dsv4spec.cli import main
from dsv4spec.ops import _dispatch

PROMPTS = [[5, 6, 7], [9], list(range(20, 60))]
FORWARDS = {"target_prefill", "target_decode", "target_verify", "nextn_extend", "nextn_decode"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders: with NextN and tokenizer, and without either."""
    raw = tiny.raw_config(vocab_size=byte_tokenizer.SIZE)
    root = tmp_path_factory.mktemp("cli")
    tensors = tiny.random_tensors(raw, "cli")
    whole = tiny.write(root / "whole", raw, tensors)
    byte_tokenizer.write(whole)
    bare = tiny.write(root / "bare", {**raw, "num_nextn_predict_layers": 0},
                      {n: t for n, t in tensors.items() if not n.startswith("mtp.")})
    (root / "ids.json").write_text(json.dumps(PROMPTS))
    return {"whole": str(whole), "bare": str(bare), "ids": str(root / "ids.json")}


def generate(*args, code=0):
    """(stdout, stderr) of ``dsv4spec generate``, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        got = main(["generate", *map(str, args)])
    assert got == code, err.getvalue()
    return out.getvalue(), err.getvalue()


def test_process_and_exit_codes(models):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "dsv4spec.cli", "generate", "--model", models["whole"],
               "--prompt-ids", models["ids"], "--max-new-tokens", "3", "--ignore-eos"]
    options = dict(capture_output=True, text=True, env=env, timeout=120)
    good = subprocess.run([*command, "--json"], **options)
    assert good.returncode == 0, good.stderr
    assert [len(o["token_ids"]) for o in json.loads(good.stdout)["outputs"]] == [3, 3, 3]
    bad = subprocess.run([*command, "--speculative-num-steps", "-1"], **options)
    assert bad.returncode == 1 and bad.stdout == "" and "num_steps" in bad.stderr


def test_json_object(models):
    common = ("--model", models["whole"], "--prompt-ids", models["ids"], "--max-new-tokens", 20, "--ignore-eos", "--json")
    out, err = generate(*common)
    result = json.loads(out)
    assert out.count("\n") == 1 and "NEXTN (the checkpoint has mtp.0)" in err
    assert result["speculative"] == {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4,
                                     "draft_p_min": 0.0}
    assert len(result["outputs"]) == 3
    for output in result["outputs"]:
        assert len(output["token_ids"]) == 20 and output["finish_reason"] == "length"
        assert sum(output["accept_lengths"]) + 1 == 20 and isinstance(output["text"], str)
    metrics = result["metrics"]
    assert set(metrics["forwards"]) == FORWARDS and metrics["forwards"]["target_decode"] == 0
    assert metrics["rounds"] == sum(len(o["accept_lengths"]) for o in result["outputs"])
    assert metrics["accepted"] == sum(sum(o["from_draft"]) for o in result["outputs"])
    plain, _ = generate(*common, "--speculative-algorithm", "none", "--page-size", 16)
    plain = json.loads(plain)
    assert [o["token_ids"] for o in plain["outputs"]] == [o["token_ids"] for o in result["outputs"]]
    assert plain["speculative"] is None and plain["metrics"]["forwards"]["target_verify"] == 0
    assert all(o["accept_lengths"] == [] for o in plain["outputs"])


def test_ids_need_no_tokenizer_and_no_nextn(models):
    out, err = generate("--model", models["bare"], "--prompt-ids", models["ids"], "--max-new-tokens", 4, "--json")
    result = json.loads(out)
    assert [o["text"] for o in result["outputs"]] == [None] * 3 and result["speculative"] is None
    assert err.count("speculative algorithm") == 1 and "none (the checkpoint has no mtp.0)" in err


def test_human_output_and_stream_show_the_same_text(models):
    common = ("--model", models["whole"], "--prompt", "some text", "--max-new-tokens", 12, "--ignore-eos")
    whole, _ = generate(*common)
    assert "tokens per round" in whole and "forwards" in whole and "accepted drafts" in whole
    stream, _ = generate(*common, "--stream")
    body = whole.split("prompt 0: some text\n")[1]
    assert stream.split("(length, 12 tokens)")[0] == body.split("(length, 12 tokens)")[0]
    both, err = generate(*common, "--stream", "--json")
    assert len(json.loads(both)["outputs"][0]["token_ids"]) == 12
    assert stream.split("(length")[0].strip() in err


def test_several_prompts_and_options(models):
    out, err = generate("--model", models["whole"], "--prompt", "a", "bcd", "--max-new-tokens", 5, "--json",
                        "--ignore-eos", "--speculative-algorithm", "EAGLE", "--speculative-num-steps", 2,
                        "--speculative-eagle-topk", 1, "--speculative-num-draft-tokens", 7, "--device", "cpu",
                        "--dtype", "float32", "--backend", "reference", "--missing", "error")
    result = json.loads(out)
    assert len(result["outputs"]) == 2 and result["speculative"]["num_draft_tokens"] == 3
    assert "warning: SpeculativeConfig: num_draft_tokens: 7 changed to num_steps + 1 = 3" in err
    assert result["dtype"] == "float32" and result["device"] == "cpu"


def test_ops_that_ran_their_reference_are_listed(models, monkeypatch):
    """Two kernels are taken away from the backend; only the caller's word makes their references run."""
    lost = {"moe_experts", "mhc_head"}
    monkeypatch.setattr(_dispatch, "backend_ops", lambda name: frozenset(_dispatch.OPS) - lost)
    monkeypatch.setattr(_dispatch, "_kernels_everywhere", lambda name: frozenset(_dispatch.OPS) - lost)
    common = ("--model", models["whole"], "--prompt-ids", models["ids"], "--max-new-tokens", 4, "--ignore-eos",
              "--backend", "cpu", "--missing", "reference")
    result = json.loads(generate(*common, "--json")[0])
    assert result["metrics"]["reference_ops"] == sorted(lost)
    assert (result["backend"], result["missing"]) == ("cpu", "reference")
    human, _ = generate(*common)
    assert "ops that ran their reference  mhc_head, moe_experts" in human


def test_the_table_says_why_rounds_run_op_by_op(models):
    common = ("--model", models["whole"], "--prompt-ids", models["ids"], "--max-new-tokens", 4, "--ignore-eos")
    options = ("--disable-cuda-graph", "--cuda-graph-max-bs", 4, "--cuda-graph-bs", 1, 2, "--disable-cuda-graph-padding")
    result = json.loads(generate(*common, *options, "--json")[0])
    rounds = result["metrics"]["cuda_graphs"]["eager_rounds"]
    assert list(rounds) == ["disabled"] and result["metrics"]["cuda_graphs"]["replayed_rounds"] == 0
    assert f"0 as CUDA graphs; {rounds['disabled']} op by op: disabled" in generate(*common, *options)[0]
    assert "CUDA graphs" not in generate(*common)[0]


def test_no_op_runs_its_reference_unasked(models):
    common = ("--model", models["whole"], "--prompt-ids", models["ids"], "--max-new-tokens", 4)
    result = json.loads(generate(*common, "--json", "--missing", "error")[0])
    assert result["metrics"]["reference_ops"] == [] and result["missing"] == "error"
    assert "ran their reference" not in generate(*common)[0]


@pytest.mark.parametrize("args, text", [
    (("--speculative-algorithm", "NEXTN"), "mtp"),
    (("--speculative-algorithm", "none", "--speculative-num-steps", 3), "--speculative-num-steps: expected none"),
    (("--max-new-tokens", 0), "max_new_tokens: expected"),
    (("--page-size", 0), "page_size: expected"),
    (("--device", "cuda"), "device"),
    (("--backend", "nothing"), "nothing"),
])
def test_refusals_are_one_line(models, args, text):
    out, err = generate("--model", models["bare"], "--prompt-ids", models["ids"], "--json", *args, code=1)
    assert out == "" and text in err and "Traceback" not in err
    assert "dsv4spec: error: " in err.splitlines()[-1]


@pytest.mark.parametrize("args, text", [
    (("--speculative-num-steps", "-1"), "num_steps: expected an integer >= 0"),
    (("--speculative-eagle-topk", "2"), "num_steps: expected a count when eagle_topk is given"),
    (("--speculative-num-steps", "2", "--speculative-eagle-topk", "2"),
     "eagle_topk: expected 1 for a Target with compressed"),
])
def test_a13_contradictory_options_name_the_option(models, args, text):
    _, err = generate("--model", models["whole"], "--prompt-ids", models["ids"], *args, code=1)
    assert text in err and "Traceback" not in err


@pytest.mark.parametrize("content, text", [("[1, 2]", "list of non-empty lists"), ("[[]]", "list of non-empty lists"),
                                           ("[[1.5]]", "list of non-empty lists"), ("{", "is not JSON"),
                                           ("[[258]]", "expected token ids 0..257, got 258"),
                                           ("[[-1]]", "expected token ids 0..257, got -1")])
def test_prompt_ids_are_checked(models, tmp_path, content, text):
    (tmp_path / "ids.json").write_text(content)
    _, err = generate("--model", models["whole"], "--prompt-ids", tmp_path / "ids.json", code=1)
    assert text in err and "Traceback" not in err


def test_text_without_a_tokenizer_and_missing_folders(models, tmp_path):
    _, err = generate("--model", models["bare"], "--prompt", "text", code=1)
    assert "no tokenizer.json" in err
    for prompt in (("--prompt", "text"), ("--prompt-ids", models["ids"])):
        _, err = generate("--model", tmp_path / "nowhere", *prompt, code=1)
        assert "nowhere" in err and "tokenizer.json" not in err and "Traceback" not in err


def test_a_damaged_tokenizer_is_one_line(models, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(models["whole"], folder)
    (folder / "tokenizer.json").write_text("{")
    for prompt in (("--prompt", "text"), ("--prompt-ids", models["ids"])):
        _, err = generate("--model", folder, *prompt, code=1)
        assert "tokenizer.json: is not a tokenizer" in err and "Traceback" not in err


def test_a_missing_library_is_one_line(models, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # as if it were not installed
    assert main(["generate", "--model", models["whole"], "--prompt", "text"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.endswith("dsv4spec: error: generate needs tokenizers: pip install 'dsv4spec[models]'\n")
