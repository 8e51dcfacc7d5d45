# SPDX-License-Identifier: Apache-2.0
"""Views whose rows lie more than 2^32 elements apart: 32 bits of an offset anywhere would reach other memory. Virtual memory
only: what no row touches is never there."""
import mmap

import pytest
import torch
from emu_cases import CASES, FEW
from emu_runner import structure, tensors
from samples import SAMPLES
from util import BACKENDS, bits

from dsv4spec import _C, ops, use_backend

APART = 2**32 + 64  # in 32 bits this is 64, which is still aligned, and wrong
MAP_NORESERVE = 0x4000  # Linux
LARGE = ("82000 rows", "4104", "of many", "8 rows")  # larger than what is asked here
NAMES = sorted(f"{op} sample" for op in SAMPLES) + [
    name for name in FEW if not name.endswith("sample") and not any(part in name for part in LARGE)]
# AscendC loads weights of the cube by strides of 16 bits, and refuses others.
NEAR = {("ascend_emu", "nextn_fuse_hidden"): (4, 5)}


def far(t: torch.Tensor) -> torch.Tensor:
    """The same values, the rows of the first dimension APART."""
    if t.dim() < 2 or t.shape[0] < 2:
        return t
    size = ((t.shape[0] - 1) * APART + t[0].numel()) * t.element_size()
    memory = torch.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE), dtype=t.dtype)
    return memory.as_strided(t.shape, (APART, *t.contiguous().stride()[1:])).copy_(t)


def call(name, backend, place, out=None):
    """Results, and what was given, which may have been written."""
    op, args, kwargs = CASES[name]() if name in CASES else (name.split()[0], *SAMPLES[name.split()[0]]())
    args = [a if i in NEAR.get((backend, op), ()) else structure(a, place) for i, a in enumerate(args)]
    kwargs = structure(kwargs, place) | ({} if out is None else {"out": out})
    with use_backend(backend):
        result = getattr(ops, op)(*args, **kwargs)
    return result, tensors((args, kwargs))


def same(got, want) -> bool:
    return len(got) == len(want) and all(bits(g).equal(bits(w)) for g, w in zip(got, want))


PAIRS = [(name, backend) for name in NAMES for backend in ("cpu", "cuda_emu", "ascend_emu")
         if backend in BACKENDS and name.split()[0] in _C.backends()[backend]["ops"]]


@pytest.mark.parametrize("name, backend", PAIRS)
def test_rows_far_apart(name, backend):
    op = name.split()[0]
    want, given = call(name, backend, lambda t: t)
    got, written = call(name, backend, far)
    assert same(tensors(got), tensors(want)) and same(written, given)
    if want is not None and op != "build_tree":  # whose results are contiguous
        out = structure(want, lambda t: far(torch.zeros_like(t)))
        call(name, backend, lambda t: t, out)
        assert same(tensors(out), tensors(want))


@pytest.mark.skipif("ascend_emu" not in BACKENDS, reason="ascend_emu is not among the backends")
def test_the_weights_that_ascendc_refuses():
    op, args, kwargs = CASES["nextn_fuse_hidden 3x4x136 bfloat16 bfloat16"]()
    with use_backend("ascend_emu"), pytest.raises(ValueError, match="^nextn_fuse_hidden: e_proj: expected rows at most 65535"):
        ops.nextn_fuse_hidden(*args[:4], far(args[4]), args[5], **kwargs)
