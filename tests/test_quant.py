# SPDX-License-Identifier: Apache-2.0
"""The reference helpers of the number formats: E8M0, FP8 blocks, packed FP4, the FP8 KV page."""
import pytest
import torch
from util import rng

from dsv4spec.reference import quant as q


def byte(*values):
    return torch.tensor(values, dtype=torch.uint8)


def test_a11_codes_are_made_with_the_stored_scale():
    """A block of 452.48 has exact scale 1.01, stored scale 2: it reads back 448 (the wrong order gives 896)."""
    codes, scale = q.fp8_block_quant(torch.full((128, 128), 452.48))
    assert scale.tolist() == [[128]]
    assert torch.equal(q.fp8_block_dequant(codes, scale), torch.full((128, 128), 448.))


def test_a11_random_blocks_keep_three_bits():
    weight = torch.randn(200, 300, generator=rng("a11")) * torch.exp2(torch.randint(-9, 9, (200, 1), generator=rng(1)))
    codes, scale = q.fp8_block_quant(weight)
    assert codes.shape == weight.shape and scale.shape == (2, 3)
    error = (q.fp8_block_dequant(codes, scale) - weight).norm() / weight.norm()
    assert 0.01 < error < 0.04
    largest = q.fp8_block_dequant(codes, scale).abs().max()
    assert 224 * q.e8m0_decode(scale).max() <= largest <= 448 * q.e8m0_decode(scale).max()


def test_a11_refuses_a_scale_that_is_no_power_of_two():
    assert q.e8m0_encode(torch.tensor([0.25, 1., 2. ** -127, 2. ** 127])).tolist() == [125, 127, 0, 254]
    for bad in (1.01, 3., 0., -2., float("nan"), float("inf")):
        with pytest.raises(ValueError, match="e8m0_encode: scale: expected powers of two, got"):
            q.e8m0_encode(torch.tensor([1., bad]))


def test_e8m0_bytes_are_exponents():
    want = [2. ** -127, 2. ** -126, 0.5, 1., 2., 2. ** 127]
    got = q.e8m0_decode(byte(0, 1, 126, 127, 128, 254))
    assert got.dtype == torch.float32 and got.tolist() == want
    assert torch.isnan(q.e8m0_decode(byte(255))).all()
    every = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(q.e8m0_decode(every.view(torch.float8_e8m0fnu))[:255], q.e8m0_decode(every)[:255])
    assert torch.equal(q.e8m0_decode(every)[:255], every.view(torch.float8_e8m0fnu).float()[:255])


def test_fp8_blocks_may_be_cut_and_zero():
    weight = torch.zeros(130, 8)
    weight[129, 7] = -3.5
    codes, scale = q.fp8_block_quant(weight)
    assert scale.tolist() == [[127], [120]]  # 3.5 / 448 = 2^-7
    assert torch.equal(q.fp8_block_dequant(codes, scale), weight)


@pytest.mark.parametrize("packed,scale,want",
                         [(0x2B, 125, (-0.375, 0.25)), (0x7F, 127, (-6., 6.)), (0x10, 130, (0., 4.))])
def test_worked_fp4(packed, scale, want):
    """Low nibble first, then the high one; one E8M0 scale per 32 unpacked values."""
    assert q.fp4_dequant(byte(packed), byte(scale)).tolist() == list(want)
    assert q.fp4_dequant(byte(packed).view(torch.int8), byte(scale)).tolist() == list(want)


def test_fp4_round_trip_of_every_code():
    every = torch.tensor(q.FP4_VALUES + tuple(-v for v in q.FP4_VALUES)).repeat(2, 4) * torch.tensor([[1.], [0.25]])
    packed, scale = q.fp4_quant(every)
    assert packed.dtype == torch.int8 and packed.shape == (2, 32) and scale.tolist() == [[127, 127], [125, 125]]
    assert torch.equal(q.fp4_dequant(packed, scale), every)


def test_fp4_rounds_to_the_nearest_code_and_ties_to_even():
    values = torch.tensor([6., 0.25, 0.26, 0.75, 1.75, 2.5, 3.5, 5., -5., 4.99] + [0.] * 22)
    packed, scale = q.fp4_quant(values)
    assert scale.tolist() == [127]
    assert q.fp4_dequant(packed, scale)[:10].tolist() == [6., 0., 0.5, 1., 2., 2., 4., 4., -4., 4.]


def test_worked_kv_scale():
    amax = torch.tensor([0., 1e-5, 1., 448., 450.])
    assert q.kv_scale(amax).tolist() == [105, 105, 119, 127, 128]


@pytest.mark.parametrize("page,used,size",
                         [(256, 149504, 149760), (64, 37376, 37440), (2, 1168, 1728), (128, 74752, 74880)])
def test_worked_page_layout(page, used, size):
    """Rows of 576 bytes, then scales of 8, then padding to a multiple of 576: scales are not beside their rows."""
    assert q.kv_page_bytes(page) == size and q.kv_scale_offset(page, page) == used
    assert (q.kv_row_offset(1), q.kv_scale_offset(0, page)) == (576, 576 * page)
    assert q.kv_scale_offset(1, page) == 576 * page + 8


def test_kv_page_round_trip():
    kv = torch.randn(6, 512, generator=rng("kv")) * torch.tensor([1., 100., 1e-3, 0., 1e-9, 7.])[:, None]
    packed = q.kv_page_pack(kv)
    assert packed.dtype == torch.uint8 and packed.shape == (q.kv_page_bytes(6),)
    back = q.kv_page_unpack(packed, 6)
    assert torch.equal(back[:, 448:], kv[:, 448:].bfloat16().float())
    nope, step = kv[:, :448], q.e8m0_decode(q.kv_scale(kv[:, :448].abs().amax(1))) / 512  # of subnormal codes
    assert ((back[:, :448] - nope).abs() <= nope.abs() / 16 + step[:, None]).all()
    scales = packed[q.kv_scale_offset(1, 6):][:8]
    groups = kv[1, :448].view(7, 64).abs().amax(1)
    assert scales[:7].tolist() == q.kv_scale(groups).tolist() and scales[7] == 0
    row = packed[q.kv_row_offset(1):][:448].view(torch.float8_e4m3fn).float().view(7, 64)
    assert torch.equal((row * q.e8m0_decode(scales[:7].clone())[:, None]).flatten(), back[1, :448])
    assert not packed[q.kv_scale_offset(6, 6):].any()
