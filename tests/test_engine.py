# SPDX-License-Identifier: Apache-2.0
"""The Engine's surface: prompts and options, streaming, joining, closing, refusals (field reports A10, A19)."""
import byte_tokenizer
import pytest
import torch

import dsv4spec
import tiny_checkpoints as tiny
from dsv4spec import Engine, GenerationError, SamplingParams, SpeculativeConfig, ops

pytestmark = pytest.mark.filterwarnings("ignore:no draft token accepted")
GREEDY = SamplingParams(max_new_tokens=14, ignore_eos=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("engine")
    raw = tiny.raw_config(vocab_size=byte_tokenizer.SIZE)
    tensors = tiny.random_tensors(raw, "engine")
    whole = tiny.write(root / "whole", raw, tensors)
    byte_tokenizer.write(whole)
    bare = tiny.write(root / "bare", raw, {n: t for n, t in tensors.items() if not n.startswith("mtp.")})
    return {"whole": whole, "bare": bare}


def engine(folder, **options):
    return Engine(folder, **{"max_len": 256, **options})


def all_free(e) -> bool:
    usage = e.cache.usage()
    return not usage["rows"] and all(p["free"] == p["total"] for p in usage["pools"].values())


def test_defaults_and_texts(folders):
    e = engine(folders["whole"])
    assert e.speculative == SpeculativeConfig(3, 1, 4) and e.dtype == torch.float32 and e.device.type == "cpu"
    a, b = e.generate(["first text", list(range(5, 30))], [GREEDY, SamplingParams(5, ignore_eos=True)])
    assert a.prompt_token_ids == e.tokenizer.encode("first text") and a.text == e.tokenizer.decode(a.token_ids)
    assert (len(a.token_ids), len(b.token_ids)) == (14, 5) and a.finish_reason == "length"
    assert all_free(e)
    report = e.metrics()
    assert report["output_tokens"] == 19 and report["tpot_ms"] > 0 and report["ttft_ms"] > 0
    assert report["reference_ops"] == []
    e.reset_metrics()
    assert e.metrics()["output_tokens"] == 0


def test_auto_without_a_nextn_layer_is_plain_and_asked_for_is_an_error(folders):
    assert engine(folders["bare"]).speculative is None
    with pytest.raises(ValueError, match="mtp"):
        engine(folders["bare"], speculative=SpeculativeConfig(1))


def test_a19_the_joined_stream_is_the_whole(folders):
    e = engine(folders["whole"])
    prompts = ["some text", "x", list(range(100, 190))]
    want = e.generate(prompts, GREEDY)
    texts, tokens, outputs = ["", "", ""], [[], [], []], {}
    for chunk in e.stream(prompts, GREEDY):
        assert chunk.index not in outputs
        texts[chunk.index] += chunk.text
        tokens[chunk.index] += chunk.token_ids
        if chunk.output:
            outputs[chunk.index] = chunk.output
    for i, output in enumerate(want):
        assert outputs[i] == output and tokens[i] == output.token_ids and texts[i] == output.text


def test_a10_a_closed_stream_gives_its_pages_back(folders):
    e = engine(folders["whole"])
    stream = e.stream(["abc", "defg"], GREEDY)
    next(stream)
    assert not all_free(e)
    stream.close()
    assert all_free(e)


def test_requests_join_while_others_run(folders):
    e = engine(folders["whole"])
    alone = [o.token_ids for p in ("one", "two two", "three") for o in e.generate([p], GREEDY)]
    first = e.submit("one", GREEDY)
    e.step()
    stream = e.stream(["two two"], GREEDY)
    late = e.submit("three", GREEDY)
    chunks = [t for chunk in stream for t in chunk.token_ids]
    while late.finish_reason is None:
        e.step()
    assert [first.output, chunks, late.output] == alone and all_free(e)
    gone = e.submit("four", GREEDY)
    e.step()
    e.abort(gone)
    assert gone.result().finish_reason == "abort" and all_free(e)


@pytest.mark.parametrize("max_len", [15, 20, 65])
def test_default_pools_hold_every_running_request(folders, max_len):
    """Requests much shorter than a page hold a whole one each: none has to give way to another."""
    e = engine(folders["whole"], speculative=None, max_len=max_len, max_running_requests=3)
    e.generate([[5, 6, 7], [8, 9], [10]], SamplingParams(8, ignore_eos=True))
    report = e.metrics()
    assert report["preemptions"] == 0 and report["forwards"]["target_decode"] == 7


def test_bfloat16_runs(folders):
    e = engine(folders["whole"], dtype="bfloat16")
    output, = e.generate(["abc"], GREEDY)
    assert e.cache.target[0].kv_pages.dtype == torch.bfloat16 and len(output.token_ids) == 14


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_backend_by_name_or_from_around(folders, backend):
    by_name = engine(folders["whole"], backend=backend)
    with ops.use_backend(backend):
        around = engine(folders["whole"])
    assert by_name.backend == around.backend == backend
    assert by_name.generate(["abc"], GREEDY) == around.generate(["abc"], GREEDY)
    assert ops.current_backend() is None


def test_ops_that_ran_their_reference_are_told_per_engine(folders, monkeypatch):
    """One kernel is taken away: only the engine that asked for the reference lists it, until its metrics are reset."""
    whole = engine(folders["whole"], backend="cpu", missing="error")
    for name in ("backend_ops", "_kernels_everywhere"):
        monkeypatch.setattr(ops._dispatch, name, lambda backend: frozenset(ops.OPS) - {"mhc_post"})
    helped = engine(folders["whole"], backend="cpu", missing="reference")
    ops.clear_used_reference()
    for e, listed in ((helped, ["mhc_post"]), (whole, []), (helped, ["mhc_post"])):
        e.generate(["abc"], GREEDY)
        assert e.metrics()["reference_ops"] == listed
    assert ops.used_reference() == []  # of calls outside engines
    helped.reset_metrics()
    assert helped.metrics()["reference_ops"] == []


@pytest.mark.parametrize("prompts, text", [
    ([[]], r"prompt: expected 1\.\.255 tokens"), ([[1] * 256], r"prompt: expected 1\.\.255 tokens .*, got 256"),
    ([[5], [258]], "prompt: expected token ids 0..257, got 258"), ([[-1]], "prompt: expected token ids"),
    ("one", "prompts: expected a list of prompts"), ([1, 2], "prompts: expected a list of prompts")])
def test_bad_prompts_start_nothing(folders, prompts, text):
    e = engine(folders["whole"])
    with pytest.raises(ValueError, match=text):
        e.generate(prompts, GREEDY)
    assert not e._scheduler.busy and e.metrics()["forwards"]["target_prefill"] == 0


def test_no_prompts_is_no_output(folders):
    assert engine(folders["whole"]).generate([], GREEDY) == []


def test_a_prompt_that_can_never_fit_is_refused(folders):
    e = engine(folders["whole"], max_total_tokens=64, page_size=16)
    with pytest.raises(ValueError, match="prompt: expected at most 64 tokens .the C4 pool; raise max_total_tokens"):
        e.generate([[5] * 200], GREEDY)


def test_a_request_that_outgrows_the_pools_fails_and_the_others_finish(folders):
    e = engine(folders["whole"], max_total_tokens=64, page_size=16)
    with pytest.raises(GenerationError, match="prompt 1: .*does not fit even alone.*C4 pool") as caught:
        e.generate([[5], [6] * 50, [7]], [GREEDY, SamplingParams(40, ignore_eos=True), GREEDY])
    good, bad, late = caught.value.outputs
    assert bad.finish_reason == "error" and len(good.token_ids) == len(late.token_ids) == 14 and all_free(e)


@pytest.mark.parametrize("options, text", [
    ({"tensor_parallel_size": 2}, "tensor_parallel_size: expected 1 or off"),
    ({"disaggregation_mode": "prefill"}, "disaggregation_mode"),
    ({"enable_prefix_caching": True}, "enable_prefix_caching"),
    ({"speculative": "yes"}, "speculative: expected"), ({"page_size": 0}, "page_size: expected"),
    ({"page_size": 6}, "page_size: expected a multiple of 4"), ({"max_len": 1}, "max_len: expected"),
    ({"max_len": 10**6}, "max_len: expected"), ({"dtype": "float16"}, "dtype: expected"),
    ({"device": "tpu"}, "device"), ({"missing": "maybe"}, "missing: expected")])
def test_options_are_refused_by_name(folders, options, text):
    with pytest.raises(ValueError, match=text):
        engine(folders["whole"], **options)


def test_out_of_scope_options_may_be_off(folders):
    engine(folders["whole"], tensor_parallel_size=1, enable_prefix_caching=False)
    with pytest.raises(TypeError, match="unknown option 'colour'"):
        engine(folders["whole"], colour="red")


def test_stop_strings_need_a_tokenizer(folders):
    e = engine(folders["bare"])
    with pytest.raises(ValueError, match="stop: expected none without a tokenizer.json"):
        e.generate([[5]], SamplingParams(stop="x"))
    with pytest.raises(ValueError, match="prompt: expected token ids"):
        e.generate(["text"], SamplingParams())


def test_public_names():
    assert {"Engine", "SpeculativeConfig", "SamplingParams", "GenerationError"} <= set(dsv4spec.__all__)
