# SPDX-License-Identifier: Apache-2.0
"""What an engine is after things went wrong: exceptions in a forward, iterators nobody finishes, options out of range."""
import pytest

import tiny_checkpoints as tiny
from dsv4spec import Engine, SamplingParams, SpeculativeConfig

PARAMS = SamplingParams(12, ignore_eos=True)
PROMPTS = [[5, 6, 7], [9], [4] * 21]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    raw = tiny.raw_config()
    return tiny.write(tmp_path_factory.mktemp("faults"), raw, tiny.random_tensors(raw, "faults"))


@pytest.fixture
def engine(model):
    return Engine(model, speculative=SpeculativeConfig(2), max_len=128, chunked_prefill_size=16)


def clean(engine) -> bool:
    usage = engine.cache.usage()
    return not engine._scheduler.busy and not usage["rows"] and all(p["free"] == p["total"] for p in usage["pools"].values())


def tokens(outputs):
    return [o.token_ids for o in outputs]


@pytest.mark.parametrize("phase", ["_target_prefill", "_draft_extend_for_prefill", "_draft", "_verify",
                                   "_draft_extend_for_decode"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("new_tokens", [2, 12])  # 2: the requests are at their limit when the extend fails
def test_an_exception_in_a_step_leaves_a_clean_engine(engine, monkeypatch, phase, error, new_tokens):
    want = tokens(engine.generate(PROMPTS, PARAMS))
    other = engine.submit([8, 8], PARAMS)
    engine.step()

    def fail(*_, **__):
        raise error("as told")

    with monkeypatch.context() as patch:
        patch.setattr(engine._scheduler.worker, phase, fail)
        with pytest.raises(error, match="as told"):
            engine.generate(PROMPTS, SamplingParams(new_tokens, ignore_eos=True))
    assert clean(engine)
    assert other.finish_reason == "error" and "as told" in other.error
    assert len(other.output) == len(other.from_draft) == 1 + sum(other.accept_lengths)
    assert tokens(engine.generate(PROMPTS, PARAMS)) == want


def test_an_iterator_that_never_starts_queues_nothing(engine):
    iterator = engine.stream(PROMPTS, PARAMS)
    assert clean(engine)
    iterator.close()
    engine.stream(PROMPTS, PARAMS)
    assert clean(engine)
    with pytest.raises(ValueError, match="prompt: expected token ids"):
        engine.stream([[5], [96]], PARAMS)  # refused at the call, not at the first chunk


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_an_iterator_left_half_way_aborts_its_requests_only(engine, chunks):
    want = tokens(engine.generate(PROMPTS, PARAMS))
    other = engine.submit(PROMPTS[0], PARAMS)
    iterator = engine.stream(PROMPTS, PARAMS)
    for _ in range(chunks):
        next(iterator)
    del iterator
    while engine._scheduler.busy:
        engine.step()
    assert clean(engine) and other.output == want[0] and other.finish_reason == "length"
    assert tokens(engine.generate(PROMPTS, PARAMS)) == want


def test_two_iterators_and_two_engines_take_turns(engine, model):
    want = tokens(engine.generate(PROMPTS, PARAMS))
    second = Engine(model, speculative=None, max_len=64, page_size=16)
    streams = [engine.stream(PROMPTS[:2], PARAMS), engine.stream(PROMPTS[2:], PARAMS), second.stream(PROMPTS, PARAMS)]
    got = [{}, {}, {}]
    open_ = set(range(3))
    while open_:
        for i in sorted(open_):
            chunk = next(streams[i], None)
            if chunk is None:
                open_.remove(i)
            else:
                got[i].setdefault(chunk.index, []).extend(chunk.token_ids)
    assert [got[0][0], got[0][1], got[1][0]] == want == [got[2][i] for i in range(3)]
    assert clean(engine) and clean(second)


@pytest.mark.parametrize("name, value", [("max_total_tokens", 0), ("max_total_tokens", -1), ("page_size", 0), ("max_len", 1),
                                         ("max_len", 4097), ("max_running_requests", 0), ("chunked_prefill_size", 0),
                                         ("speculative", "NEXTN")])
def test_options_out_of_range_are_named(model, name, value):
    with pytest.raises(ValueError, match=f"{name}: expected "):
        Engine(model, **{name: value})


@pytest.mark.filterwarnings("ignore:no draft token accepted")
@pytest.mark.parametrize("page_size, max_len", [(64, 64), (16, 48), (4, 127), (16, 128)])
def test_a16_windows_that_pass_max_len_at_a_page_edge(model, page_size, max_len):
    """The last windows of a request reach beyond max_len, where it has no pages; plain decoding never goes there."""
    prompts = [[5, 6, 7], [4] * (max_len - 5)]
    outputs = []
    for speculative in (None, SpeculativeConfig(3), SpeculativeConfig(5)):
        engine = Engine(model, speculative=speculative, max_len=max_len, page_size=page_size, max_running_requests=2)
        got = engine.generate(prompts, SamplingParams(500, ignore_eos=True))
        assert [len(o.token_ids) + len(o.prompt_token_ids) for o in got] == [max_len] * 2
        assert {o.finish_reason for o in got} == {"length"} and clean(engine)
        outputs.append(tokens(got))
    assert outputs[0] == outputs[1] == outputs[2]


def test_intermediate_results_of_all_batch_sizes_share_one_memory(engine):
    """Kept for each number of rows apart they would be 3.5 GiB with Flash's sizes."""
    buffers = engine._scheduler.worker.target.buffers
    engine.generate(PROMPTS, PARAMS)
    assert len(buffers._views) > 3
    for name in ("streams", "heads", "experts"):
        assert len({getattr(view, name).untyped_storage().data_ptr() for view in buffers._views.values()}) == 1
    small, large, beyond = buffers.of(2), buffers.of(256), buffers.of(257)
    assert small.sites[0][1].data_ptr() == large.sites[0][1].data_ptr() != large.sites[1][1].data_ptr()
    assert all(x.is_contiguous() for x in (small.streams, *small.sites[1]))
    assert buffers.of(257) is not beyond and beyond.heads.shape[0] == 257


def test_a30_counters_start_again_at_a_reset(engine):
    engine.generate(PROMPTS, PARAMS)
    first = engine.metrics()
    assert first["rounds"] and first["drafted"] and first["output_tokens"] == len(PROMPTS) * 12
    engine.reset_metrics()
    zero = engine.metrics()
    assert not any(zero["forwards"].values()) and not any(zero["time_s"].values())
    assert zero["rounds"] == zero["drafted"] == zero["prompt_tokens"] == zero["output_tokens"] == 0
    assert zero["accept_length"] is zero["ttft_ms"] is zero["tpot_ms"] is None
    engine.generate(PROMPTS, PARAMS)
    timed = ("time_s", "ttft_ms", "tpot_ms")
    assert {k: v for k, v in engine.metrics().items() if k not in timed} == \
        {k: v for k, v in first.items() if k not in timed}
