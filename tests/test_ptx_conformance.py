# SPDX-License-Identifier: Apache-2.0
"""The wrappers of kernels/cuda/ptx.cuh do what the PTX ISA says: emulated here and, where there is a GPU, on it. An
emulated run checks the second body of each wrapper, a run on a GPU the instruction itself; both get the same
registers, and the expected ones are computed here from the ISA's tables.

On a machine with a GPU but without nvcc, DSV4SPEC_CONFORMANCE_LIBRARY names a library that was built elsewhere by
nvcc -shared -Xcompiler=-fPIC -Iinclude -Icsrc -Ikernels/cuda tests/emu/cuda/selftest/conformance.cu."""
import ctypes
import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from build_util import ROOT
from emu_util import Emulator, library, pointer

SOURCE = ROOT / "tests" / "emu" / "cuda" / "selftest" / "conformance.cu"

def _nvcc(out, *more):
    nvcc = shutil.which(os.environ.get("CUDACXX", "nvcc"))
    if not nvcc:
        pytest.skip("no nvcc")
    folders = [f"-I{ROOT / f}" for f in ("include", "csrc", "kernels/cuda")]
    release = re.search(r"release (\d+)\.(\d+)", subprocess.run([nvcc, "--version"], text=True, capture_output=True).stdout)
    advice = ["-Xptxas=--suppress-async-bulk-multicast-advisory-warning"]  # as in kernels/cuda/CMakeLists.txt
    result = subprocess.run([nvcc, "-std=c++17", "-O2", "-Werror", "all-warnings",
                             *(advice if tuple(map(int, release.groups())) >= (12, 8) else []), *folders, *more, str(SOURCE),
                             "-o", str(out)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert result.returncode == 0, result.stdout
    return out


def _has_gpu() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


@pytest.fixture(scope="module", params=["emulated", "gpu"])
def lib(request, tmp_path_factory):
    if request.param == "emulated":
        return Emulator(library("cuda_emu_selftest")).lib
    if not _has_gpu():
        pytest.skip("no GPU")
    built = os.environ.get("DSV4SPEC_CONFORMANCE_LIBRARY")
    if not built:
        out = tmp_path_factory.mktemp("ptx") / "conformance.so"
        built = _nvcc(out, "-shared", "-Xcompiler=-fPIC", "-arch=native")
    return ctypes.CDLL(str(built))


def test_nvcc_compiles_it(tmp_path):
    for arch in ("sm_80", "sm_90a"):
        _nvcc(tmp_path / "conformance.o", "-c", f"-arch={arch}")


def test_every_wrapper_is_covered():
    text = (ROOT / "kernels" / "cuda" / "ptx.cuh").read_text()
    wrappers = re.findall(r"^DSV4_DEVICE [\w ]*?\b(\w+)\(", text, re.M)
    assert len(wrappers) >= 6
    kernels = SOURCE.read_text()
    assert [w for w in wrappers if not re.search(rf"\b{w}\b", kernels)] == []


def bf16_bits(x):
    bits = np.asarray(x, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any(), "exact in bf16"
    return bits >> 16


def pair(low, high):
    return (np.uint32(low) | np.uint32(high) << np.uint32(16)).astype(np.uint32)


def mma_registers(a, b, c):
    """The fragments of mma.m16n8k16 with .bf16 operands, element i of each lane from the ISA's formulas."""
    ra, rb, rc = np.zeros((32, 4), np.uint32), np.zeros((32, 2), np.uint32), np.zeros((32, 4), np.float32)
    a, b = bf16_bits(a), bf16_bits(b)
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        ea = [a[group + (8 if i in (2, 3, 6, 7) else 0), thread * 2 + (i & 1) + (8 if i >= 4 else 0)]
              for i in range(8)]
        eb = [b[thread * 2 + (i & 1) + (8 if i >= 2 else 0), group] for i in range(4)]
        ra[lane] = [pair(ea[2 * r], ea[2 * r + 1]) for r in range(4)]
        rb[lane] = [pair(eb[2 * r], eb[2 * r + 1]) for r in range(2)]
        rc[lane] = [c[group + (8 if i >= 2 else 0), thread * 2 + (i & 1)] for i in range(4)]
    return ra, rb, rc


def run_mma(lib, a, b, c):
    ra, rb, rd = mma_registers(a, b, c)
    assert lib.selftest_mma(pointer(ra), pointer(rb), pointer(rd)) == 0
    d = np.zeros((16, 8), np.float32)
    for lane in range(32):
        for i in range(4):
            d[(lane >> 2) + (8 if i >= 2 else 0), lane % 4 * 2 + (i & 1)] = rd[lane, i]
    return d


def test_mma_bf16(lib):
    rng = np.random.default_rng(1)
    a, b = rng.integers(-8, 9, (16, 16)), rng.integers(-8, 9, (16, 8))
    c = rng.integers(-99, 100, (16, 8))
    assert (run_mma(lib, a, b, c) == a @ b + c).all()
    for row, k, column in ((0, 0, 0), (15, 15, 7), (3, 9, 5), (12, 4, 2)):  # one product, at one place
        a, b = np.zeros((16, 16)), np.zeros((16, 8))
        a[row, k], b[k, column] = 3, -5
        expected = np.zeros((16, 8))
        expected[row, column] = -15
        assert (run_mma(lib, a, b, np.zeros((16, 8))) == expected).all()


def test_mma_bf16_special_values(lib):
    a, b, c = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
    a[1, 2], b[2, 3] = 2.0 ** 127, 2.0 ** 127   # overflows to infinity
    a[4, 5], b[5, 6] = 2.0 ** -126, 0.25        # denormals are kept
    a[7, 0], b[0, 0] = np.nan, 0
    d = run_mma(lib, a, b, c)
    assert d[1, 3] == np.inf and d[4, 6] == 2.0 ** -128
    assert np.isnan(d[7]).all() and np.isnan(d).sum() == 8


@pytest.mark.parametrize("cluster", [1, 2, 8, 16])
def test_clusters(lib, cluster):
    blocks, step = 2 * cluster, 3
    who, one, four = np.zeros((blocks, 32, 2), np.uint32), np.zeros((blocks, 32), np.float32), np.zeros((blocks, 32, 4), np.float32)
    result = lib.selftest_clusters(cluster, blocks, step, pointer(who), pointer(one), pointer(four))
    if result == -1:
        pytest.skip(f"this device has no clusters of {cluster} blocks")
    assert result == 0
    block = np.arange(blocks)
    assert (who[..., 0] == (block % cluster)[:, None]).all() and (who[..., 1] == cluster).all()
    other = block // cluster * cluster + (block % cluster + step) % cluster
    expected = other[:, None] * 32 + np.arange(32)
    assert (one == expected + 0.75).all()
    assert (four == expected[..., None] + np.array([0, 0.25, 0.5, 0.75])).all()


@pytest.mark.parametrize("cluster", [1, 2, 5, 8, 16])
@pytest.mark.parametrize("size", [256, 16, 144])
def test_bulk_copies(lib, cluster, size):
    """To all blocks and to one; expected bytes in two parts, before and after the copy; a row that is not copied whole."""
    blocks, rounds, words = 2 * cluster, 5, 64
    x = np.arange(1, blocks * rounds * words + 1, dtype=np.uint32).reshape(2, rounds, cluster, words)
    out = np.zeros((2, cluster, rounds, cluster, words), np.uint32)
    result = lib.selftest_bulk_copies(cluster, blocks, size, pointer(x), pointer(out))
    if result == -1:
        pytest.skip(f"this device has no clusters of {cluster} blocks")
    assert result == 0
    expected = np.broadcast_to(np.where(np.arange(words) < size // 4, x, 0)[:, None], out.shape).copy()
    expected[:, 1:, 1] = 0
    expected[:, 0, 1, 1:] = 0
    assert (out == expected).all()


@pytest.mark.parametrize("transposed", [0, 1])
def test_ldmatrix_x4(lib, transposed):
    stride = 24  # elements: rows stay 16-byte aligned
    rows = np.arange(32 * stride, dtype=np.uint16)
    order = np.random.default_rng(2).permutation(32).astype(np.int32)
    out = np.zeros((32, 4), np.uint32)
    assert lib.selftest_ldmatrix(pointer(rows), stride, pointer(order), transposed, pointer(out)) == 0
    matrices = rows.reshape(32, stride)[order, :8].reshape(4, 8, 8)  # addresses of matrix m: lanes 8 m to 8 m + 7
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    for lane in range(32):
        expected = [pair(m[lane // 4, lane % 4 * 2], m[lane // 4, lane % 4 * 2 + 1]) for m in matrices]
        assert out[lane].tolist() == expected


def test_store_global16(lib):
    x, y = np.arange(1, 129, dtype=np.uint32).reshape(32, 4), np.zeros((32, 4), np.uint32)
    assert lib.selftest_stores(pointer(x), pointer(y)) == 0
    assert (y == x[np.arange(32) ^ 3]).all()


def test_cp_async16(lib):
    x = np.arange(1, 257, dtype=np.uint32).reshape(64, 4)
    valid = np.array([i % 3 != 1 for i in range(64)], np.int32)
    out = np.zeros((96, 4), np.uint32)
    assert lib.selftest_cp_async(pointer(x), pointer(valid), pointer(out)) == 0
    arrived = np.where(valid[:, None] != 0, x, 0)[np.arange(64) ^ 1]
    assert (out[:32] == arrived[:32]).all(), "after a wait that leaves one group under way, the first has arrived"
    assert (out[32:] == arrived).all()
