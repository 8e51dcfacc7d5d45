# SPDX-License-Identifier: Apache-2.0
"""The ops and the engine on a real NPU, beside the op tests that the bridge takes there (DSV4SPEC_TEST_DEVICE=npu): the
order of torch_npu's queue, streams, and the tokens of the CPU. Where no NPU is, nothing here runs."""
import importlib.util

import pytest
import torch
from samples import SAMPLES

from dsv4spec import Engine, SamplingParams, SpeculativeConfig, ops
from dsv4spec.demo import ASSET


def _npu() -> bool:
    if importlib.util.find_spec("torch_npu") is None:
        return False
    import torch_npu  # noqa: F401

    return torch.npu.is_available()


pytestmark = pytest.mark.skipif(not _npu(), reason="no NPU")


def test_a_launch_goes_behind_what_torch_has_queued():
    """Ops in torch_npu's queue write the inputs just before the call, and read the output just behind it."""
    (y, residual, post, comb), _ = SAMPLES["mhc_post"]()
    want = ops.mhc_post(y, residual, post, comb)
    for _ in range(200):
        inputs = [torch.zeros_like(t, device="npu") for t in (y, residual, post, comb)]
        for t, value in zip(inputs, (y, residual, post, comb)):
            t.add_(value.to("npu"))
        out = ops.mhc_post(*inputs)
        assert torch.allclose((out * 2).cpu() / 2, want, atol=1e-5)


def test_the_current_stream_is_the_one_that_is_launched_on():
    (y, residual, post, comb), _ = SAMPLES["mhc_post"]()
    want = ops.mhc_post(y, residual, post, comb)
    stream = torch.npu.Stream()
    for _ in range(20):
        with torch.npu.stream(stream):
            inputs = [t.to("npu") for t in (y, residual, post, comb)]
            for _ in range(20):
                inputs[0] = inputs[0] * 1  # a while of work before the call
            out = ops.mhc_post(*inputs)
        stream.synchronize()
        assert torch.allclose(out.cpu(), want, atol=1e-5)


def test_the_engine_gives_the_tokens_of_the_cpu():
    outputs = {}
    for device in ("cpu", "npu"):
        engine = Engine(ASSET, speculative=SpeculativeConfig(3), device=device, dtype="float32", missing="reference",
                        max_len=256)
        ids = engine.tokenizer.encode("An exception is raised when the argument is not a string. ")
        outputs[device] = engine.generate([ids[:9], ids], SamplingParams(16, ignore_eos=True))
    for a, b in zip(*outputs.values()):
        assert a.token_ids == b.token_ids and a.accept_lengths == b.accept_lengths
