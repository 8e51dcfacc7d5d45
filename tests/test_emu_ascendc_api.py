# SPDX-License-Identifier: Apache-2.0
"""Every vector and copy instruction of the AscendC emulator replays the worked example of its documentation page, in
every order of execution, so that kernel and emulator do not share one misreading. Pages are those of the open
asc-devkit documentation (docs/zh/api/SIMD-API), named as they are there; numbers are theirs where they print any."""
import numpy as np
import pytest
from ascend_util import ORDERS, AscendEmulator

BYTES = 20 * 1024
VECTOR = "基础API/Memory矢量计算"
RINT, FLOOR, CEIL, ROUND, TRUNC, ODD, NONE = 1, 2, 3, 4, 5, 6, 0


@pytest.fixture(scope="module")
def emu():
    return AscendEmulator()


def bf16(x):
    return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def buffer(emu, values, dtype):
    """20 KB: the values, and then ones."""
    out = emu.array(BYTES // np.dtype(dtype).itemsize, dtype)
    out[:] = 1
    values = np.asarray(values, dtype).ravel()
    out[:values.size] = values
    return out


def replay(emu, case, dtype, a=(), b=(), n=0, out=(), out_dtype=None, b_dtype=None, work=None, blocks=1):
    """The result of one case, the same in every order."""
    results = []
    for order, seed in ORDERS:
        given = dict(a=buffer(emu, a, dtype), b=buffer(emu, b, b_dtype or dtype),
                     out=buffer(emu, out, out_dtype or dtype),
                     work=buffer(emu, () if work is None else work, np.uint8))
        with emu.settings(order=order, seed=seed):
            assert emu.run("do_" + case, n=n, blocks=blocks, **given) == 0, emu.report()
        results.append((given["out"], given["work"]))
    for result, scratch in results[1:]:
        assert result.tobytes() == results[0][0].tobytes()
    return results[0]


COUNT = np.arange(1, 513)
BINARY = [  # the pages' example: 512 elements by count, by lanes, by bits; the numbers of Add's page
    ("Add", f"{VECTOR}/基础算术/Add.md", np.int16, np.add),
    ("Sub", f"{VECTOR}/基础算术/Sub.md", np.int16, np.subtract),
    ("Mul", f"{VECTOR}/基础算术/Mul.md", np.int16, np.multiply),
    ("Div", f"{VECTOR}/基础算术/Div.md", np.float16, np.divide),
    ("Max", f"{VECTOR}/基础算术/Max.md", np.int16, np.maximum),
    ("Min", f"{VECTOR}/基础算术/Min.md", np.int16, np.minimum),
    ("And", f"{VECTOR}/逻辑计算/And.md", np.int16, np.bitwise_and),
    ("Or", f"{VECTOR}/逻辑计算/Or.md", np.int16, np.bitwise_or),
]


@pytest.mark.parametrize("name,page,dtype,expected", BINARY, ids=[row[0] for row in BINARY])
@pytest.mark.parametrize("form", range(3))
def test_of_two_tensors(emu, name, page, dtype, expected, form):
    a = COUNT.astype(dtype)
    b = (np.arange(513, 1025) if name != "Mul" else COUNT % 7).astype(dtype)
    got, _ = replay(emu, name, dtype, a, b, form)
    want = expected(a.astype(np.float64), b.astype(np.float64)) if name == "Div" else expected(a, b)
    assert np.array_equal(got[:512], want.astype(dtype)) and (got[512:] == 1).all(), page
    if name == "Add":
        assert list(got[:3]) == [514, 516, 518] and got[511] == 1536


UNARY = [
    ("Abs", f"{VECTOR}/基础算术/Abs.md", np.abs), ("Exp", f"{VECTOR}/基础算术/Exp.md", np.exp),
    ("Ln", f"{VECTOR}/基础算术/Ln.md", np.log), ("Sqrt", f"{VECTOR}/基础算术/Sqrt.md", np.sqrt),
    ("Relu", f"{VECTOR}/基础算术/Relu.md", lambda x: np.maximum(x, 0)),
    ("Rsqrt", f"{VECTOR}/基础算术/Rsqrt.md", lambda x: 1 / np.sqrt(x)),
    ("Reciprocal", f"{VECTOR}/基础算术/Reciprocal.md", lambda x: 1 / x),
]


@pytest.mark.parametrize("name,page,expected", UNARY, ids=[row[0] for row in UNARY])
@pytest.mark.parametrize("form", range(3))
def test_of_one_tensor(emu, name, page, expected, form):
    x = np.linspace(-4, 4, 512) if name in ("Abs", "Relu") else np.linspace(0.125, 8, 512)
    x = x.astype(np.float16)
    got, _ = replay(emu, name, np.float16, x, n=form)
    want = expected(x.astype(np.float64))
    assert np.allclose(got[:512].astype(np.float64), want, rtol=1e-3, atol=0), page
    assert (got[512:] == 1).all()


def test_rsqrt_and_reciprocal_are_coarse(emu):
    """Both pages: a float result is not right to 1e-4; Div and Sqrt are to be used where that matters."""
    x = np.full(512, 3.0, np.float16)
    for name, want in (("Reciprocal", 1 / 3), ("Rsqrt", 3 ** -0.5)):
        got, _ = replay(emu, name, np.float16, x)
        assert abs(float(got[0]) - want) < 1e-3 * want


@pytest.mark.parametrize("form", range(3))
def test_not(emu, form):
    x = COUNT.astype(np.int16)
    got, _ = replay(emu, "Not", np.int16, x, n=form)
    assert np.array_equal(got[:512], ~x), f"{VECTOR}/逻辑计算/Not.md"


SCALAR = [  # 2 of the pages' examples
    ("Adds", f"{VECTOR}/基础算术/Adds.md", lambda x: x + 2), ("Muls", f"{VECTOR}/基础算术/Muls.md", lambda x: x * 2),
    ("Maxs", f"{VECTOR}/基础算术/Maxs.md", lambda x: np.maximum(x, 200)),
    ("Mins", f"{VECTOR}/基础算术/Mins.md", lambda x: np.minimum(x, 200)),
    ("ShiftLeft", f"{VECTOR}/逻辑计算/ShiftLeft.md", lambda x: x << 2),
    ("ShiftRight", f"{VECTOR}/逻辑计算/ShiftRight.md", lambda x: x >> 2),
]


@pytest.mark.parametrize("name,page,expected", SCALAR, ids=[row[0] for row in SCALAR])
@pytest.mark.parametrize("form", range(3))
def test_with_a_scalar(emu, name, page, expected, form):
    x = COUNT.astype(np.int16)
    got, _ = replay(emu, name, np.int16, x, n=form)
    assert np.array_equal(got[:512], expected(x)) and (got[512:] == 1).all(), page
    if name == "ShiftRight":
        assert list(got[:7]) == [0, 0, 0, 1, 1, 1, 1] and got[511] == 128
    if name == "Muls":
        assert list(got[:3]) == [2, 4, 6] and got[511] == 1024


def test_leaky_relu(emu):
    x = np.linspace(-4, 4, 512).astype(np.float16)
    got, _ = replay(emu, "LeakyRelu", np.float16, x)
    want = np.where(x >= 0, x, x * np.float16(0.25)).astype(np.float16)
    assert np.array_equal(got[:512], want), f"{VECTOR}/基础算术/LeakyRelu.md"


@pytest.mark.parametrize("form", range(3))
def test_axpy(emu, form):
    """复合计算/Axpy.md: [1, 2, 3, ..., 512] times 2, added to zeros."""
    out_dtype = np.float32 if form == 2 else np.float16
    got, _ = replay(emu, "Axpy", np.float16, COUNT, n=form, out=np.zeros(512), out_dtype=out_dtype)
    assert np.array_equal(got[:512], (COUNT * 2).astype(out_dtype)) and (got[512:] == 1).all()


@pytest.mark.parametrize("form", range(3))
def test_mul_add_dst(emu, form):
    """复合计算/MulAddDst.md: dst = src0 * src1 + dst."""
    got, _ = replay(emu, "MulAddDst", np.float16, COUNT % 8, COUNT % 5, form, out=COUNT % 9)
    assert np.array_equal(got[:512], ((COUNT % 8) * (COUNT % 5) + COUNT % 9).astype(np.float16))


def test_filling(emu):
    for form in range(3):
        got, _ = replay(emu, "Duplicate", np.float16, n=form)
        assert (got[:256] == 18).all() and (got[256:] == 1).all(), "数据填充/Duplicate.md"
    for form in range(2):
        got, _ = replay(emu, "CreateVecIndex", np.int16, n=form)
        assert np.array_equal(got[:128], np.arange(128)) and (got[128:] == 1).all(), "数据填充/CreateVecIndex.md"
    got, _ = replay(emu, "Brcb", np.float16, np.arange(1, 17))
    assert np.array_equal(got[:256], np.repeat(np.arange(1, 17), 16)), "数据填充/Brcb.md"
    got, _ = replay(emu, "Copy", np.int16, COUNT)
    assert np.array_equal(got[:512], COUNT) and (got[512:] == 1).all(), "数据搬运/Copy（UBToUB掩码式高维数据搬运）.md"
    x = np.arange(256).reshape(16, 16)
    got, _ = replay(emu, "Transpose", np.float16, x)
    assert np.array_equal(got[:256].reshape(16, 16), x.T), "数据排布转换/Transpose.md"


# 数据结构/precision_conversion.md: pair of types -> (dtypes, input, round mode -> output)
HALF, FLOAT = np.float16, np.float32
CASTS = {
    0: (FLOAT, HALF, 0.5 + 2**-12, {RINT: 0.5, FLOOR: 0.5, CEIL: 0.5 + 2**-11, ROUND: 0.5 + 2**-11, TRUNC: 0.5,
                                    ODD: 0.5 + 2**-11}),
    1: (FLOAT, "bf16", 0.5 + 2**-9 + 2**-11, {RINT: 0.5 + 2**-8, FLOOR: 0.5, CEIL: 0.5 + 2**-8, ROUND: 0.5 + 2**-8,
                                              TRUNC: 0.5}),
    2: (FLOAT, np.int32, 2.0**22 + 0.5, {RINT: 2**22, FLOOR: 2**22, CEIL: 2**22 + 1, ROUND: 2**22 + 1, TRUNC: 2**22}),
    3: (FLOAT, np.int16, 2.0**22 + 0.5, {m: 2**15 - 1 for m in (RINT, FLOOR, CEIL, ROUND, TRUNC)}),
    4: (FLOAT, FLOAT, 0.5, {RINT: 0, FLOOR: 0, CEIL: 1, ROUND: 1, TRUNC: 0}),
    5: ("bf16", FLOAT, 1.5 - 2**-6, {NONE: 1.5 - 2**-6}),
    6: ("bf16", np.int32, 2.0**6 + 0.5, {RINT: 2**6, FLOOR: 2**6, CEIL: 2**6 + 1, ROUND: 2**6 + 1, TRUNC: 2**6}),
    7: (HALF, FLOAT, 1.5 - 2**-10, {NONE: 1.5 - 2**-10}),
    8: (HALF, np.int8, 2.0**7 - 0.5, {m: 2**7 - 1 for m in (RINT, FLOOR, CEIL, ROUND, TRUNC)}),
    9: (HALF, np.int32, -1.5, {RINT: -2, FLOOR: -2, CEIL: -1, ROUND: -2, TRUNC: -1}),
    10: (np.int32, FLOAT, 2**25 + 3, {RINT: 2**25 + 4, FLOOR: 2**25, CEIL: 2**25 + 4, ROUND: 2**25 + 4, TRUNC: 2**25}),
    11: (np.int32, np.int16, 2**31 - 1, {NONE: 2**15 - 1}),
    12: (np.int64, np.int32, 2**31, {NONE: 2**31 - 1}),
    13: (np.int64, FLOAT, 2**35 + 2**12 + 2**11, {RINT: 2**35 + 2**13, FLOOR: 2**35 + 2**12, CEIL: 2**35 + 2**13,
                                                  ROUND: 2**35 + 2**13, TRUNC: 2**35 + 2**12}),
    14: (np.int16, HALF, 2**12 + 2, {RINT: 2**12, FLOOR: 2**12, CEIL: 2**12 + 4, ROUND: 2**12 + 4, TRUNC: 2**12}),
    15: (FLOAT, np.int64, 2.0**22 + 0.5, {RINT: 2**22, FLOOR: 2**22, CEIL: 2**22 + 1, ROUND: 2**22 + 1, TRUNC: 2**22}),
    16: (np.int32, np.int64, 1, {NONE: 1}),
    17: (np.uint8, HALF, 1, {NONE: 1}),
}


@pytest.mark.parametrize("pair", CASTS)
def test_cast(emu, pair):
    source, target, value, results = CASTS[pair]
    for mode, want in results.items():
        a = bf16([value] * 64) if source == "bf16" else np.full(64, value, source)
        to = np.uint16 if target == "bf16" else target
        got, _ = replay(emu, "Cast", a.dtype, a, n=mode + 8 * pair, out_dtype=to)
        want = bf16([want])[0] if target == "bf16" else np.asarray(want, target)
        assert (got[:64] == want).all(), (mode, got[0], want)
        assert (got[64:] == 1).all()


@pytest.mark.parametrize("form", range(3))
def test_cast_by_repeats(emu, form):
    """类型转换/Cast.md: half to int32, up, by count, lanes and bits: the wider type decides the lanes of a repeat."""
    x = (np.arange(512) / 4).astype(np.float16)
    got, _ = replay(emu, "Cast_repeats", np.float16, x, n=form, out_dtype=np.int32)
    assert np.array_equal(got[:512], np.ceil(x).astype(np.int32)) and (got[512:] == 1).all()


def test_reduce_sum(emu):
    """归约计算/ReduceSum.md: ones; 288 of them by count, 65 repeats of 128."""
    for form, want in ((0, 288), (1, 8320)):
        got, _ = replay(emu, "ReduceSum", np.float16, np.ones(8320), n=form)
        assert got[0] == want and (got[1:] == 1).all()


def test_the_order_of_a_sum(emu):
    """ReduceSum.md: a binary tree within a repeat; repeats one after the other with a count, as a tree otherwise."""
    x = np.random.default_rng(7).standard_normal(192).astype(np.float32)

    def tree(v):
        while len(v) > 1:
            v = (v[0::2] + v[1::2]).astype(np.float32)
        return v[0]

    repeats = [tree(x[i * 64:(i + 1) * 64]) for i in range(3)]
    got, _ = replay(emu, "ReduceSum_order", np.float32, x, n=0)
    assert got[0] == np.float32(np.float32(repeats[0] + repeats[1]) + repeats[2])
    got, _ = replay(emu, "ReduceSum_order", np.float32, x, n=1)
    assert got[0] == tree(np.array(repeats + [0] * 61, np.float32))


def test_reduce_max_and_min(emu):
    """归约计算/ReduceMax.md: value and index of 8320 elements; the smallest index of equal ones; bits of the index."""
    x = (np.arange(8320) % 97).astype(np.float16)
    x[5000], x[6000], x[77], x[8000] = 500, 500, -3, -3
    for form, value, index in ((0, 500, 5000), (1, 500, 5000), (2, -3, 77)):
        got, _ = replay(emu, "ReduceMax", np.float16, x, n=form)
        assert got[0] == value and got[1:2].view(np.uint16)[0] == index


def test_reduce_repeat(emu):
    """归约计算/ReduceRepeat.md: four repeats of 128 halves, in the four orders of value and index."""
    x = np.ones(512, np.float16)
    best = [3, 250, 300, 511]
    for i, at in enumerate(best):
        x[at] = 10 + i
    index = np.array([at % 128 for at in best], np.uint16)
    value = np.array([10, 11, 12, 13], np.float16)

    def run(n):
        return replay(emu, "ReduceRepeat", np.float16, x, n=n)[0]

    got = run(0)[:8].reshape(4, 2)
    assert np.array_equal(got[:, 0], value) and np.array_equal(got[:, 1].copy().view(np.uint16), index)
    got = run(1)[:8].reshape(4, 2)
    assert np.array_equal(got[:, 1], value) and np.array_equal(got[:, 0].copy().view(np.uint16), index)
    assert np.array_equal(run(2)[:4], value)
    assert np.array_equal(run(3)[:8].view(np.uint32), index)  # indices alone are 32 bits wide
    got = run(4)[:8].reshape(4, 2)
    least = [1 if i == 0 else 0 for i in index]
    assert (got[:, 0] == 1).all() and np.array_equal(got[:, 1].copy().view(np.uint16), least)
    sums = x.reshape(4, 128).astype(np.float64).sum(1)
    for n in (5, 6):
        assert np.array_equal(run(n)[:4], sums.astype(np.float16))


def test_reduce_data_block(emu):
    """归约计算/ReduceDataBlock.md: eight blocks of sixteen halves; a block without lanes keeps what it had."""
    x = np.ones((8, 16), np.float16)
    x[np.arange(8), np.arange(8) * 2] = np.arange(1, 9)

    def run(n):
        return replay(emu, "ReduceDataBlock", np.float16, x, n=n, out=np.full(16, 99))[0][:16]

    assert np.array_equal(run(0), [*range(1, 9), *[99] * 8])
    assert np.array_equal(run(1)[:8], np.ones(8))
    for n in (2, 4):
        assert np.array_equal(run(n)[:8], np.arange(1, 9) + 15)
    assert np.array_equal(run(3), [16, 17, *[99] * 14])


def test_compare(emu):
    """比较与选择/Compare.md: primes against even numbers, a bit an element; dav-2201 takes no mask."""
    a = np.tile([2, 3, 5, 7, 11, 13, 17, 19], 32).astype(np.float32)
    b = np.tile([2, 4, 6, 8, 10, 12, 14, 16], 32).astype(np.float32)
    # GT, GE, LE and EQ are printed on the page
    want = {0: 0b00001110, 1: 0b11110000, 2: 0b00000001, 3: 0b00001111, 4: 0b11110001, 5: 0b11111110}
    for mode, byte in want.items():
        for form in (0, 8):
            got, _ = replay(emu, "Compare", np.float32, a, b, n=mode + form, out_dtype=np.uint8)
            assert (got[:32] == byte).all() and (got[32:] == 1).all(), mode
    got, _ = replay(emu, "Compare", np.float32, a, n=16 + 1, out_dtype=np.uint8)  # Compares.md: GT 7
    assert (got[:32] == 0b11110000).all()


def test_select(emu):
    """比较与选择/Select.md: the bits of its example, in the three modes."""
    r = np.random.default_rng(5)
    a, b = r.uniform(-100, 100, 256).astype(np.float32), r.uniform(-100, 100, 256).astype(np.float32)
    bits = np.array([60, 32, 10, 7, 42, 52, 38, 26, 19, 15, 18, 83, 41, 43, 91, 30, 45, 77, 80, 58, 34, 76, 44, 4, 64,
                     45, 48, 31, 30, 56, 43, 88], np.uint8)
    chosen = np.unpackbits(bits, bitorder="little").astype(bool)
    first = np.tile(chosen[:64], 4)
    for n, want in ((0, np.where(chosen, a, b)), (1, np.where(chosen, a, b)), (2, np.where(chosen, a, 0)),
                    (3, np.where(first, a, b)), (4, np.where(first, a, b))):
        got, _ = replay(emu, "Select", np.float32, a, b, n, work=bits)
        assert np.array_equal(got[:256], want.astype(np.float32)) and (got[256:] == 1).all(), n


def test_gather(emu):
    """离散与聚合/Gather.md: offsets in bytes, 254 down to 0, turn 128 halves round."""
    for form in range(3):
        got, _ = replay(emu, "Gather", np.float16, np.arange(128), np.arange(254, -1, -2), form, b_dtype=np.uint32)
        assert np.array_equal(got[:128], np.arange(127, -1, -1)) and (got[128:] == 1).all()


def test_gather_mask(emu):
    """比较与选择/GatherMask.md: the built-in pattern 2 in place, 128 are kept; a pattern of one's own, 70 a repeat."""
    got, work = replay(emu, "GatherMask", np.uint32, np.arange(1, 257), n=0)
    assert np.array_equal(got[:128], np.arange(2, 257, 2)) and work.view(np.int32)[0] == 128
    pattern = np.full(8, 0x99999999, np.uint32)  # the first and the fourth of every four
    x = np.arange(1, 257)
    got, work = replay(emu, "GatherMask", np.uint32, x, pattern, n=1)
    lanes = [i for i in range(70) if i % 4 in (0, 3)]
    want = [x[i] for i in lanes] + [x[32 + i] for i in lanes]  # repeats start four blocks apart
    assert work.view(np.int32)[0] == len(want) and np.array_equal(got[:len(want)], want)


def test_data_copy(emu):
    """数据搬运/DataCopy（GM与UB连续数据搬运）.md and DataCopy（GM与UB高维切分数据搬运）.md."""
    for form in (0, 1):
        got, _ = replay(emu, "DataCopy", np.float16, COUNT, n=form)
        assert np.array_equal(got[:512], COUNT) and (got[512:] == 1).all()
    # three blocks of 32 elements; 16 are left out after each of the source's, 32 after each of the target's
    x = np.arange(144)
    want = np.ones(224)
    for i in range(3):
        want[i * 64:i * 64 + 32] = x[i * 48:i * 48 + 32]
    for form in (2, 3, 4):  # into UB, within it, out of it
        got, _ = replay(emu, "DataCopy", np.float16, x, n=form)
        assert np.array_equal(got[:224], want), form


def test_data_copy_pad(emu):
    """数据搬运/DataCopyPad（GMToUB非对齐数据搬运）.md and DataCopyPad（UBToGM非对齐数据搬运）.md."""
    x = np.arange(32 * 59)
    got, _ = replay(emu, "DataCopyPad", np.float32, x, n=0)
    want = np.zeros((32, 64))
    want[:, :59] = x.reshape(32, 59)
    assert np.array_equal(got[:32 * 64].reshape(32, 64), want)
    # without paddings: a block's tail is its first element; a source gap of 4 bytes, a target gap of a block
    got, _ = replay(emu, "DataCopyPad", np.float32, x, n=1)
    for i in range(4):
        row = got[i * 72:i * 72 + 64]
        assert np.array_equal(row[:59], x[i * 60:i * 60 + 59]) and (row[59:] == x[i * 60]).all()
        assert (got[i * 72 + 64:(i + 1) * 72] == 1).all()
    got, _ = replay(emu, "DataCopyPad", np.float32, x, n=2)
    for i in range(2):
        assert np.array_equal(got[i * 8:i * 8 + 8], [7, 7, *x[i * 5:i * 5 + 5], 7])
    # out: blocks start at 32 bytes of UB, a gap of one block there, of eight bytes in global memory
    got, _ = replay(emu, "DataCopyPad", np.float32, x, n=3)
    for i in range(3):
        assert np.array_equal(got[i * 7:i * 7 + 5], x[i * 16:i * 16 + 5])
        assert (got[i * 7 + 5:i * 7 + 7] == 1).all()


def test_atomic_add(emu):
    """原子操作/SetAtomicAdd.md: what is copied out is added to what stands there; the copies need no order."""
    got, _ = replay(emu, "SetAtomicAdd", np.float32, np.arange(64), out=np.full(64, 100), blocks=4)
    assert np.array_equal(got[:64], np.arange(64) * 4 + 100)


def test_the_mask_register(emu):
    """掩码操作/SetVectorMask.md: lanes in the normal mode; elements in the counter mode, whatever the repeats."""
    x = np.arange(256, dtype=np.float32)
    got, _ = replay(emu, "mask_register", np.float32, x, n=0)
    want = np.ones(256, np.float32)
    want[:8], want[64:72] = x[:8] + 1, x[64:72] + 1
    assert np.array_equal(got[:256], want)
    got, _ = replay(emu, "mask_register", np.float32, x, n=1)
    assert np.array_equal(got[:100], x[:100] + 1) and (got[100:] == 1).all()


def test_who_is_who(emu):
    """工具接口/系统资源与变量/GetBlockIdx.md, GetSubBlockIdx(ISASI).md: three groups of a cube and two vector cores."""
    got, _ = replay(emu, "blocks", np.int32, blocks=3)
    for i in range(6):
        assert (got[i * 16:(i + 1) * 16] == 30000 + i % 2 * 100 + i).all()
