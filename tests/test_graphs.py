# SPDX-License-Identifier: Apache-2.0
"""Steps replayed as graphs equal steps run op by op: padded batches, changed lengths, requests that join and leave.
Captures are tapes (graph_tape.py), on which nothing of the host can change."""
import contextlib
import functools
from types import SimpleNamespace

import pytest
import torch
from graphed import TEXT, engine

import tiny_checkpoints as tiny
from dsv4spec import Engine, SamplingParams, SpeculativeConfig
from dsv4spec.demo import ASSET
from dsv4spec.spec.graphs import CudaCapture, GraphOptions, graphs_for


@functools.cache
def prompts():
    ids = engine().tokenizer.encode(TEXT)
    return [ids[i:i + n] for i, n in enumerate((5, 130, 64, 127, 1, 260, 17))]


def generate(engine, counts=(30, 7, 22, 12, 40, 3, 19)):
    """Seven requests of unlike lengths on four places: they join, leave and pad in every way."""
    params = [SamplingParams(n, ignore_eos=True) for n in counts]
    return [(o.token_ids, o.accept_lengths) for o in engine.generate(prompts(), params)]


@functools.cache
def plain():
    made = Engine(ASSET, speculative=None, max_running_requests=4, max_len=512)
    return [tokens for tokens, _ in generate(made)]


@pytest.mark.parametrize("steps, page_size", [(0, 64), (1, 16), (2, 64), (3, 128), (5, 64)])
def test_replayed_rounds_give_the_tokens_of_eager_ones(steps, page_size):
    eager, taped = engine(steps=steps, page_size=page_size), engine(True, steps=steps, page_size=page_size)
    want = generate(eager)
    assert [tokens for tokens, _ in want] == plain()
    assert generate(taped) == want
    mine, theirs = taped.metrics(), eager.metrics()
    assert mine["cuda_graphs"] == {"replayed_rounds": theirs["forwards"]["target_verify"], "eager_rounds": {}}
    assert theirs["cuda_graphs"]["eager_rounds"] == {"device cpu": theirs["forwards"]["target_verify"]}
    for key in ("forwards", "rounds", "drafted_per_position", "accepted_per_position"):
        assert mine[key] == theirs[key], key
    replays = [recording.replays for recording in taped.tape.recordings]
    assert len(replays) == 9 and all(replays), "every graph of the sizes 1, 2 and 4 must have run"


def test_plain_decoding_is_replayed_too():
    eager, taped = engine(steps=None, page_size=16), engine(True, steps=None, page_size=16)
    assert [tokens for tokens, _ in generate(taped)] == [tokens for tokens, _ in generate(eager)] == plain()
    mine, theirs = taped.metrics(), eager.metrics()
    assert mine["forwards"] == theirs["forwards"]
    assert mine["cuda_graphs"] == {"replayed_rounds": theirs["forwards"]["target_decode"], "eager_rounds": {}}
    assert [r.replays > 0 for r in taped.tape.recordings] == [True] * 3


@pytest.mark.parametrize("options", [(2, 2, 5), (3, 2, 8), (1, 3, 4)])
def test_trees_are_replayed_too(options, tmp_path):
    """A window-only Target; its NextN is helped, so that rounds accept every count."""
    raw = tiny.raw_config(compress_ratios=[0, 1, 0, 0], num_hash_layers=1)
    directory = tiny.write(tmp_path, raw, tiny.random_tensors(raw, "graphs"))
    ids = [list(range(2, 2 + n)) for n in (5, 40, 1, 17, 33)]
    params = [SamplingParams(n, ignore_eos=True) for n in (20, 9, 14, 17, 5)]
    common = dict(max_len=256, page_size=16, max_running_requests=5)
    plain = Engine(directory, speculative=None, **common).generate(ids, params)
    sequences, outputs = [prompt + o.token_ids for prompt, o in zip(ids, plain)], []
    for taped in (False, True):
        made = engine(taped, directory, SpeculativeConfig(*options), helped=sequences, **common)
        outputs.append(made.generate(ids, params))
    assert [o.token_ids for o in outputs[1]] == [o.token_ids for o in plain]
    assert [o.accept_lengths for o in outputs[1]] == [o.accept_lengths for o in outputs[0]]
    assert {1, 2} <= {n for o in outputs[1] for n in o.accept_lengths}, "the case must reject and accept"
    counts = made.metrics()["cuda_graphs"]
    assert counts["eager_rounds"] == {} and counts["replayed_rounds"] > 5


def test_preempted_requests_come_back_to_graphs():
    taped = engine(True, max_total_tokens=320, page_size=16)
    assert [tokens for tokens, _ in generate(taped)] == plain()
    assert taped.metrics()["preemptions"] and not taped.metrics()["cuda_graphs"]["eager_rounds"]


@pytest.mark.parametrize("options, most, sizes", [
    (GraphOptions(), 1, [1]), (GraphOptions(), 8, [1, 2, 4, 8]), (GraphOptions(), 20, [1, 2, 4, 8, 16, 20]),
    (GraphOptions(cuda_graph_max_bs=5), 20, [1, 2, 4, 5]), (GraphOptions(cuda_graph_bs=(3, 7, 99)), 20, [3, 7]),
    (GraphOptions(cuda_graph_max_bs=6, cuda_graph_bs=(3, 7)), 20, [3])])
def test_sizes(options, most, sizes):
    assert options.sizes(most) == sizes


def test_options():
    for wrong, text in ((dict(cuda_graph_max_bs=0), "cuda_graph_max_bs: expected at least 1, got 0"),
                        (dict(cuda_graph_bs=[]), "cuda_graph_bs: expected"),
                        (dict(cuda_graph_bs=[0, 1]), "cuda_graph_bs")):
        with pytest.raises(ValueError, match=text):
            Engine(ASSET, **wrong)
    worker = engine(disable_cuda_graph=True)._scheduler.worker
    assert worker.graphs.why_not == "disabled" and not worker.graphs.graphs
    assert graphs_for(worker, GraphOptions()).why_not == "device cpu"


def test_a_cuda_capture_warms_up_beside_and_shares_one_pool(monkeypatch):
    """Against a stand-in for torch.cuda: what is called, and when; a GPU is needed for more (test_cuda_gpu.py)."""
    calls = []

    class Stream:
        def __init__(self, name="side"):
            self.name = name

        def wait_stream(self, other):
            calls.append((self.name, "waits for", other.name))

    @contextlib.contextmanager
    def entered(name, **options):
        calls.append((name, *options.values()))
        yield

    graph = SimpleNamespace(replay=lambda: calls.append(("replay",)))
    for name, stand_in in (("graph_pool_handle", lambda: "pool"), ("Stream", lambda device: Stream()),
                           ("current_stream", lambda device: Stream("current")), ("CUDAGraph", lambda: graph),
                           ("synchronize", lambda device: calls.append(("synchronize",))),
                           ("stream", lambda stream: entered(stream.name)),
                           ("graph", lambda graph, pool: entered("capture", pool=pool))):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    capture = CudaCapture(torch.device("cuda"))
    assert capture.warm_up(lambda: calls.append(("run",)) or 5) == 5
    assert calls == [("side", "waits for", "current"), ("side",), ("run",), ("current", "waits for", "side"),
                     ("synchronize",)]
    for _ in range(2):
        calls.clear()
        result, replay = capture.capture(lambda: calls.append(("run",)) or 6)
        replay()
        assert result == 6 and calls == [("capture", "pool"), ("run",), ("replay",)]
