# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from util import transformers_or_gate

from dsv4spec.models.rope import Yarn, rope_frequencies, rope_table

FLASH = Yarn(factor=16, original_max_position=65536, beta_fast=32, beta_slow=1)


def test_plain_table_is_cos_then_sin():
    table = rope_table(200, 64, 10000.0)
    assert table.shape == (200, 64) and table.dtype == torch.float32
    assert torch.equal(table[0], torch.cat((torch.ones(32), torch.zeros(32))))
    for p, i in ((1, 0), (7, 5), (199, 31)):
        angle = p * 10000.0 ** (-2 * i / 64)
        assert table[p, i].item() == pytest.approx(math.cos(angle), abs=2e-5)
        assert table[p, 32 + i].item() == pytest.approx(math.sin(angle), abs=2e-5)


def test_yarn_ramp_and_no_magnitude_factor():
    """Worked: low 15, high 25 for the released models; the usual factor 0.1 ln(16) + 1 would give rows of length 1.277."""
    assert FLASH.ramp(64, 160000.0) == (15, 25)
    f, plain = rope_frequencies(64, 160000.0, FLASH), rope_frequencies(64, 160000.0)
    assert torch.equal(f[:16], plain[:16])
    assert torch.allclose(f[25:], plain[25:] / 16, rtol=1e-6)
    assert f[20].item() == pytest.approx(plain[20].item() * (0.5 / 16 + 0.5), rel=1e-6)
    table = rope_table(50, 64, 160000.0, FLASH)
    assert torch.allclose(table[:, :32] ** 2 + table[:, 32:] ** 2, torch.ones(50, 32), atol=1e-6)


@pytest.mark.parametrize("dim,original", [(8, 64), (16, 4096), (64, 65536)])
def test_equals_transformers(dim, original):
    modeling = transformers_or_gate("transformers.models.deepseek_v4.modeling_deepseek_v4")
    from transformers import DeepseekV4Config

    config = DeepseekV4Config(
        hidden_size=64, head_dim=2 * dim, qk_rope_head_dim=dim, num_hidden_layers=2, max_position_embeddings=4096,
        compress_rope_theta=160000.0, rope_theta=10000.0, compress_ratios=[0, 4],
        rope_scaling=dict(type="yarn", factor=16, beta_fast=32, beta_slow=1,
                          original_max_position_embeddings=original))
    rotary = modeling.DeepseekV4RotaryEmbedding(config)
    positions = torch.arange(4096)[None]
    for layer_type, theta, yarn in (("main", 10000.0, None), ("compress", 160000.0, Yarn(16, original))):
        cos, sin = rotary(torch.zeros(1), positions, layer_type=layer_type)
        table = rope_table(4096, dim, theta, yarn)
        assert torch.equal(table, torch.cat((cos[0], sin[0]), dim=-1))


@pytest.mark.parametrize("call,message", [
    (lambda: rope_table(-1, 64, 1e4), "rope_table: max_pos: expected >= 0, got -1"),
    (lambda: rope_table(4, 63, 1e4), "rope_frequencies: dim: expected an even number >= 2, got 63"),
    (lambda: rope_table(4, 64, 1.0), "rope_frequencies: theta: expected a number > 1, got 1.0"),
    (lambda: Yarn(0.5, 64), "Yarn: factor: expected a number >= 1, got 0.5"),
    (lambda: Yarn(16, 0), "Yarn: original_max_position: expected >= 1, got 0"),
    (lambda: Yarn(16, 64, 1, 32), "Yarn: beta_fast: expected beta_fast > beta_slow > 0, got 1 and 32"),
])
def test_refuses(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == message


def test_empty():
    assert rope_table(0, 64, 1e4).shape == (0, 64)
