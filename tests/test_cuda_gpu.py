# SPDX-License-Identifier: Apache-2.0
"""The ops and the engine on a real GPU: graph capture and replay, side streams, the allocator (A20, A21, A22). Where no GPU
is, the graph tests run with the tape of graph_tape.py in place of a capture, so that the tests themselves are tried."""
import contextlib

import pytest
import torch
from graph_tape import Tape
from samples import SAMPLES

from dsv4spec import Engine, SamplingParams, SpeculativeConfig, ops
from dsv4spec.demo import ASSET
from dsv4spec.ops.table import NO_KERNEL

GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not GPU, reason="no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
KERNELS = sorted(set(SAMPLES) - NO_KERNEL["cuda"])


def on(device, value):
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {k: on(device, v) for k, v in value.items()}
    return tuple(on(device, v) for v in value) if isinstance(value, (tuple, list)) else value


def tensors(value):
    return [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, torch.Tensor)]


@contextlib.contextmanager
def no_sync(device):
    """Nothing inside may wait for the device."""
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def capture(device, function):
    """The results of ``function`` and what replays it."""
    if device == "cpu":
        return Tape().capture(function)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()  # allocations and lazy loading
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return result, graph.replay


def sample(name, device):
    args, kwargs = on(device, SAMPLES[name]())
    return list(args), kwargs


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", KERNELS)
def test_a21_every_op_replays_with_new_values_in_the_same_memory(name, device):
    """Capture on zeros (no request, no token), replay thrice on the sample: equal to the eager call."""
    args, kwargs = sample(name, device)
    want_args, want_kwargs = sample(name, device)
    want = tensors(getattr(ops, name)(*want_args, **want_kwargs))
    inputs = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
    values = [t.clone() for t in inputs]
    for t in inputs:
        t.zero_()
    call = lambda: getattr(ops, name)(*args, **kwargs)  # noqa: E731
    got, replay = capture(device, call)
    for _ in range(3):  # scratch of the captured call stays where it is, or the second replay would differ
        for t, value in zip(inputs, values):
            t.copy_(value)
        with no_sync(device):
            replay()
        for a, b in zip(tensors(got), want, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(args, want_args):  # what an op writes in place
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def verify_inputs(device):
    g = torch.Generator().manual_seed(21)
    q = torch.randn(6, 4, 64, generator=g).to(device)
    pages = torch.randn(16, 4, 64, generator=g).to(device)
    table = torch.full((2, 12), -1, dtype=torch.int32, device=device)
    lens = torch.zeros(2, dtype=torch.int32, device=device)
    return q, pages, table, torch.tensor([0, 3, 6], dtype=torch.int32, device=device), lens


@pytest.mark.parametrize("device", DEVICES)
def test_a21_verify_captured_at_some_lengths_replays_at_others(device):
    q, pages, table, start, lens = verify_inputs(device)
    call = lambda: ops.swa_paged_attention(q, pages, table, start, lens, window=16, scale=0.125)  # noqa: E731

    def fill(lengths):
        rows = [torch.arange(-(-n // 4)) * 3 % 16 for n in lengths]
        new = torch.stack([torch.nn.functional.pad(r, (0, 12 - len(r)), value=-1) for r in rows]).int()
        table.copy_(new.to(device)), lens.copy_(torch.tensor(lengths, dtype=torch.int32).to(device))

    fill([10, 20])
    got, replay = capture(device, call)
    for lengths in ([33, 7], [10, 20], [0, 47]):  # 0: a request that became padding (A20)
        fill(lengths)
        want = call()
        with no_sync(device):
            replay()
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert lengths[0] or not got[:3].any()


@pytest.mark.parametrize("device", DEVICES)
def test_a20_padding_up_to_a_captured_batch_changes_nothing(device):
    """3 real requests padded to 8: their bits are those of a batch of 3, and no page but theirs is touched."""
    g = torch.Generator().manual_seed(20)
    kv, norm, angles = torch.randn(8, 64, generator=g), torch.ones(64), torch.rand(64, 8, generator=g)
    kv[3:] = float("nan")
    before = torch.randn(8, 4, 64, generator=g)
    slots = torch.tensor([5, 17, 30, -1, -1, -1, -1, -1])
    pages = on(device, before.clone())
    ops.swa_store_kv(*on(device, (kv, norm, angles, torch.arange(8), slots)), pages, eps=1e-6)
    alone = on(device, before.clone())
    ops.swa_store_kv(*on(device, (kv[:3], norm, angles, torch.arange(3), slots[:3])), alone, eps=1e-6)
    assert torch.equal(pages, alone)
    changed = (pages.cpu() != before).any(-1).flatten().nonzero().flatten().tolist()
    assert changed == [5, 17, 30]


@needs_gpu
def test_a22_ops_run_on_the_current_stream():
    """A side stream fills the inputs late; on any other stream the ops would read old values."""
    y, residual = torch.zeros(64, 128, device="cuda"), torch.zeros(64, 4, 128, device="cuda")
    post, comb = torch.ones(64, 4, device="cuda"), torch.ones(64, 4, 4, device="cuda")
    fn, base, scale = torch.zeros(24, 512, device="cuda"), torch.zeros(24, device="cuda"), torch.ones(3, device="cuda")
    stream = torch.cuda.Stream()
    for i in range(1, 21):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            y.fill_(i), residual.fill_(i)
            out = ops.mhc_post(y, residual, post, comb)
            pre, _, _ = ops.mhc_pre(residual, fn, base, scale, rms_eps=1e-6, hc_eps=0, sinkhorn_iters=1)  # has scratch
        stream.synchronize()
        assert (out == 5 * i).all() and (pre == 2 * i).all(), i  # sigmoid(0) of four streams


@needs_gpu
def test_a22_another_device_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    args = on("cuda:1", SAMPLES["mhc_post"]()[0])
    torch.testing.assert_close(ops.mhc_post(*args).cpu(), ops.mhc_post(*SAMPLES["mhc_post"]()[0]))
    assert torch.cuda.current_device() == 0


@needs_gpu
def test_scratch_is_given_back():
    args, kwargs = sample("mhc_pre", "cuda")
    ops.mhc_pre(*args, **kwargs)
    held = torch.cuda.memory_allocated()
    for _ in range(100):
        ops.mhc_pre(*args, **kwargs)
    assert torch.cuda.memory_allocated() == held


PROMPTS = [[17, 4, 99, 250, 33], [400, 12], [7] * 40]


@needs_gpu
def test_engine_speculative_equals_plain_in_graphs_and_eager():
    """The whole loop in float32, three requests at once, with mixed accept lengths."""
    params = SamplingParams(48, ignore_eos=True)

    def tokens(speculative, **options):
        engine = Engine(ASSET, device="cuda", dtype="float32", missing="reference", speculative=speculative, **options)
        outputs = engine.generate(PROMPTS, params)
        return [o.token_ids for o in outputs], outputs, engine.metrics()

    plain, _, _ = tokens(None)
    drafted, outputs, metrics = tokens(SpeculativeConfig(3))
    eager, _, _ = tokens(SpeculativeConfig(3), disable_cuda_graph=True)
    assert drafted == plain and eager == plain
    assert len({n for o in outputs for n in o.accept_lengths}) > 1
    assert metrics["cuda_graphs"]["replayed_rounds"] and not metrics["cuda_graphs"]["eager_rounds"], metrics["cuda_graphs"]
