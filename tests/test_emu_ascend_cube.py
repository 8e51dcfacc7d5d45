# SPDX-License-Identifier: Apache-2.0
"""The cube core of the Ascend emulator against the documentation of its instructions: the pages' worked examples, whole
products, and one mistake a rule."""
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from ascend_util import ORDERS, AscendEmulator
from build_util import cxx

HERE = Path(__file__).parent / "emu/ascendc"


class Cube:
    """Cases of selftest/cube.cpp and planted_cube.cpp on arrays of the host."""

    def __init__(self, emulator):
        self.emulator = emulator

    def run(self, name, a, b, out, n=0, plant=0):
        self.emulator.clear()
        return self.emulator.run(name, plant=plant, a=a, b=b, out=out, n=n), self.emulator.report()

    def clean(self, name, a, b, out, n=0):
        status, report = self.run(name, a, b, out, n)
        assert status == 0, report


@pytest.fixture(scope="module")
def base():
    return AscendEmulator()


@pytest.fixture(params=ORDERS, ids=lambda p: f"order{p[0]}-{p[1]}")
def emu(base, request):
    with base.settings(order=request.param[0], seed=request.param[1]):
        yield Cube(base)


def _nz(x, rows):
    """[m, k] as column blocks of 32 bytes with `rows` rows each; what lies beyond is NaN bytes, or zero in k."""
    c0 = 32 // x.itemsize
    blocks = -(-x.shape[1] // c0)
    out = np.frombuffer(b"\xff" * (blocks * rows * 32), x.dtype).reshape(blocks, rows, c0).copy()
    padded = np.zeros((x.shape[0], blocks * c0), x.dtype)
    padded[:, :x.shape[1]] = x
    out[:, :x.shape[0]] = padded.reshape(x.shape[0], blocks, c0).transpose(1, 0, 2)
    return out


def _halves(*shape):
    return np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint16).reshape(shape)


def test_nd2nz(emu):
    out = np.zeros(4096, np.uint16)
    x = _halves(16, 32)
    emu.clean("nd2nz", x, None, out, 0)
    assert np.array_equal(out[:512], _nz(x[:, :23], 16).reshape(-1))
    x = _halves(24, 32)  # two matrices of 8 rows, 12 rows apart
    emu.clean("nd2nz", x, None, out, 1)
    expected = np.full(4096, 0xFFFF, np.uint16)
    for i in range(2):
        for row in range(8):
            for column in range(32):
                value = x[12 * i + row, column] if column < 23 else 0
                expected[320 * i + (37 * (column // 16) + 2 * row) * 16 + column % 16] = value
    assert np.array_equal(out, expected)
    x = _halves(40, 56)
    emu.clean("nd2nz", x, None, out, 2)
    assert np.array_equal(out[:4 * 48 * 16], _nz(x, 48).reshape(-1))


def test_blocks_into_l1(emu):
    x, out = _halves(112), np.zeros(128, np.uint16)
    emu.clean("gm_to_l1_blocks", x, None, out)
    assert np.array_equal(out[:48], x[:48]) and np.array_equal(out[80:], x[64:]) and (out[48:80] == 0xFFFF).all()


def test_load_2d(emu):
    x, out = _halves(40, 56), np.zeros(12 * 256, np.uint16)
    emu.clean("load_2d", x, None, out, 0)
    nz = _nz(x, 48).reshape(4, 3, 16, 16)  # k block, m block
    assert np.array_equal(out.reshape(3, 4, 16, 16), nz.transpose(1, 0, 2, 3))
    x = _halves(56, 40)  # A given as [k, m]
    emu.clean("load_2d", x, None, out, 1)
    nz = _nz(x, 64).reshape(3, 4, 16, 16)  # m block, k block, k, m
    assert np.array_equal(out.reshape(3, 4, 16, 16), nz.transpose(0, 1, 3, 2))
    x, out = np.arange(8 * 128, dtype=np.uint32), np.zeros(12 * 128, np.uint32)
    for n, start in ((2, 0), (3, 1)):
        emu.clean("load_2d", x, None, out, n)
        for i in range(4):
            at = i * 3
            assert np.array_equal(out.reshape(12, 128)[at], x.reshape(8, 128)[start + 2 * i])
            assert (out.reshape(12, 128)[at + 1:at + 3] == 0xFFFFFFFF).all()


@pytest.mark.parametrize("element", [1, 2, 4])
@pytest.mark.parametrize("second", [False, True])
def test_load_squares(emu, element, second):
    dtype = {1: np.uint8, 2: np.uint16, 4: np.uint32}[element]
    x = (np.arange(6 * 512 // element) * 7).astype(dtype)
    out = np.zeros_like(x)
    emu.clean("load_squares", x, None, out, element + 16 * second)
    side, c0 = (32, 32) if element == 1 else (16, 32 // element)
    for i in range(3):
        square = x.reshape(-1)[i * side * side:(i + 1) * side * side]
        if element == 4:  # two fractals of 16 x 8, side by side
            square = np.concatenate(list(square.reshape(2, 16, 8)), axis=1)
        turned = square.reshape(side, side).T
        parts = {1: [turned[:16], turned[16:]], 2: [turned], 4: [turned[:, :8], turned[:, 8:]]}[element]
        for f, part in enumerate(parts):
            place = i if element == 2 else i + 3 * f if second else 2 * i + f
            assert np.array_equal(out.reshape(-1, 16, c0)[place], part), (i, f)


def _bits(x, dtype):
    t = torch.tensor(x).to(dtype)
    return t.view(torch.int16).numpy() if t.element_size() == 2 else t.numpy()


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "i8"])
@pytest.mark.parametrize("m,n,k,b_by_k", [(30, 40, 70, False), (30, 40, 70, True), (40, 50, 70, False),
                                          (16, 64, 48, True), (64, 32, 128, False)])
def test_products(emu, dtype, m, n, k, b_by_k):
    rng = np.random.default_rng(m + n)
    a, b = rng.integers(-8, 9, (m, k)), rng.integers(-8, 9, (k, n))  # exact in any order of summation
    kind = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "i8": torch.int8}[dtype]
    width = -(-n // 16) * 16
    left, right = _bits(a, kind), _bits(b.T.copy() if b_by_k else b, kind)
    packed = m | n << 12 | k << 24 | b_by_k << 36
    out = np.zeros((m, width), np.int32 if dtype == "i8" else np.float32)
    emu.clean(f"product_{dtype}", left, right, out, packed)
    assert np.array_equal(out[:, :n], a @ b)
    if dtype in ("f16", "bf16"):
        rounded = np.zeros((m, width), np.int16)
        name = "product_f16_to_f16" if dtype == "f16" else "product_bf16_to_bf16"
        emu.clean(name, left, right, rounded, packed)
        assert np.array_equal(rounded[:, :n], _bits((a @ b).astype(np.float32), kind))


def test_k_direction_align(emu):
    for m, n, k in ((40, 50, 70), (32, 32, 36), (16, 16, 44)):
        rng = np.random.default_rng(k)
        a, b = rng.integers(-8, 9, (k, m)), rng.integers(-8, 9, (k, n))
        out = np.zeros((m, -(-n // 16) * 16), np.float32)
        emu.clean("product_k_align", _bits(a, torch.float32), _bits(b, torch.float32), out, m | n << 12 | k << 24)
        assert np.array_equal(out[:, :n], a.T @ b)


def test_gemv(emu):
    rng = np.random.default_rng(3)
    a, b = rng.integers(-8, 9, 256), rng.integers(-8, 9, (32, 256))
    out = np.zeros(32, np.float32)
    emu.clean("gemv", _bits(a, torch.float16), _bits(b, torch.float16), out)
    assert np.array_equal(out, b @ a)


def test_fixpipe_rows(emu):
    c = np.arange(2 * 64 * 16, dtype=np.float32)
    out = np.full((48, 64), -1, np.float32)
    emu.clean("fixpipe_rows", c, None, out)
    expected = np.concatenate(list(c.reshape(2, 64, 16)), axis=1)
    assert np.array_equal(out[:, :32], expected[:48]) and (out[:, 32:] == -1).all()


PLANTED = {
    "cube_mte1_before_mte2": "rule 10", "cube_m_before_mte1": "rule 10", "cube_fix_before_m": "rule 10",
    "cube_second_product": "PipeBarrier<PIPE_M>", "cube_l0_reused": "rule 10", "cube_rows_overlap": "dstStride",
    "cube_n_of_fixpipe": "nSize", "cube_src_stride": "srcStride", "cube_quant_mode": "quantPre",
    "cube_several_matrices": "ndNum", "cube_unit_flag": "unitFlag", "cube_bias": "bias", "cube_big_m": "at most 4095",
    "cube_address_mode": "addrMode", "cube_start_outside": "rule 19", "cube_l0_outside": "rule 19",
    "cube_l0_alignment": "rule 1 ", "cube_l0c_alignment": "rule 1 ", "cube_nd2nz_stride": "srcDValue",
    "cube_nd2nz_rows": "nValue", "cube_nd2nz_no_stride": "dstNzC0Stride", "cube_l1_outside": "rule 19",
    "cube_l1_never_written": "rule 18", "cube_k_never_written": "rule 18", "cube_accumulate_on_nothing": "rule 18",
    "cube_wrong_side": "expected L0A", "cube_on_a_vector_core": "rule 13",
}


MMAD_LINE = 1 + (HERE / "selftest/planted_cube.cpp").read_text().split("Mmad(c, a2, b2, mmad);")[0].count("\n")


@pytest.mark.parametrize("name", PLANTED)
def test_planted_mistakes(emu, name):
    rng = np.random.default_rng(5)
    a, b = rng.integers(-4, 5, (32, 64)), rng.integers(-4, 5, (32, 64))
    left, right = _bits(a, torch.float16), _bits(b, torch.float16)
    out = np.zeros((64, 64), np.float32)
    status, report = emu.run(name, left, right, out)
    assert status == 0, report
    if name != "cube_on_a_vector_core":
        assert np.array_equal(out.reshape(-1)[:512].reshape(16, 32), a[:16] @ b.T)
    status, report = emu.run(name, left, right, out, plant=1)
    assert status == 1 and PLANTED[name] in report and name in report, report


def test_nan_into_mmad(emu):
    """The page of Mmad: NaN among its inputs may end in an execution error. Infinity may not."""
    rng = np.random.default_rng(5)
    a, b = rng.integers(-4, 5, (32, 64)), rng.integers(-4, 5, (32, 64))
    out = np.zeros((64, 64), np.float32)
    for bad, matrix, place in ((a, "fm", (5, 3)), (b, "filter", (17, 63))):
        for value in (np.nan, np.inf):
            with_bad = bad.astype(np.float32)
            with_bad[place] = value
            left, right = (_bits(with_bad if x is bad else x, torch.float16) for x in (a, b))
            status, report = emu.run("cube_big_m", left, right, out)
            expected = f"NaN into Mmad at planted_cube.cpp:{MMAD_LINE}: {matrix} row {place[0]}, k {place[1]}"
            assert (status, expected in report) == ((1, True) if np.isnan(value) else (0, False)), report
    outside = a.astype(np.float32)
    outside[16:] = np.nan  # rows beyond m
    assert emu.run("cube_big_m", _bits(outside, torch.float16), _bits(b, torch.float16), out)[0] == 0


# What a kernel writes -> what the compiler says.
REFUSED = {
    "Mmad(f, b, b, MmadParams());": None,
    "Mmad(f, h, h, MmadParams());": None,
    "Mmad(f, b, h, MmadParams());": "rule 17: Mmad: both matrices are of one type",
    "Mmad(b, b, b, MmadParams());": "rule 17: Mmad: half, bfloat16 and float give float",
    "Mmad(f, q, q, MmadParams());": "rule 17: Mmad: half, bfloat16 and float give float; int8 gives int32",
    "Fixpipe<bfloat16_t, int32_t>(gb, i, FixpipeParamsV220());": "rule 17: Fixpipe: float to half, bfloat16 or float",
    "Fixpipe<float, float, CFG_NZ>(gf, f, FixpipeParamsV220());": "rule 17: Fixpipe: CFG_ROW_MAJOR only",
    "LoadDataWithTranspose(w, w, LoadData2dTransposeParams());": "rule 17: LoadDataWithTranspose: int8",
    "LoadData(w, w, LoadData2DParams());": "rule 17: LoadData takes elements of 1, 2 or 4 bytes",
}
SNIPPET = """#include "kernel_operator.h"
using namespace AscendC;
void kernel(LocalTensor<float> f, LocalTensor<bfloat16_t> b, LocalTensor<half> h, LocalTensor<int32_t> i,
            LocalTensor<int8_t> q, LocalTensor<int64_t> w, GlobalTensor<float> gf, GlobalTensor<bfloat16_t> gb) {{ {} }}
"""


@pytest.mark.parametrize("line,message", REFUSED.items())
def test_types_are_refused_by_the_compiler(line, message):
    done = subprocess.run([cxx(), "-std=c++17", "-fsyntax-only", f"-I{HERE}", "-x", "c++", "-"],
                          input=SNIPPET.format(line), text=True, capture_output=True)
    if message is None:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0 and message in done.stderr, done.stderr
