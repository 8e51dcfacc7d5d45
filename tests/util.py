# SPDX-License-Identifier: Apache-2.0
"""Helpers of the op tests: hostile tensors (guard zones, odd strides, poison) and one comparison for floats."""
from __future__ import annotations

import hashlib
import os

import pytest
import torch

from dsv4spec import _C

EMULATED = ("cuda_emu", "ascend_emu")  # backends that run here wherever they were built (DSV4SPEC_EMULATE=ON)


def _backends() -> list[str]:
    """Those that the op tests run on: what the variable names, else the device that DSV4SPEC_TEST_DEVICE names, the CPU,
    the reference and the emulators built."""
    if named := os.environ.get("DSV4SPEC_TEST_BACKENDS"):
        return named.split(",")
    device = filter(None, [os.environ.get("DSV4SPEC_TEST_DEVICE")])
    return [*device, "cpu", "reference", *(name for name in EMULATED if _C.backends()[name]["loadable"])]


BACKENDS = _backends()
UNCHECKED = [b for b in BACKENDS if b != "cpu"]  # those that cannot refuse by the values in a tensor: they skip
GUARD = 64  # elements of sentinel on either side of a guarded tensor
_SENTINEL = {torch.bool: True, torch.uint8: 0xA5, torch.int8: 0x5A}


def rng(*key) -> torch.Generator:
    """A generator seeded by the case, so that one case's data do not depend on which tests ran before."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def sentinel(dtype: torch.dtype):
    if dtype.is_floating_point:
        return float("nan")
    return _SENTINEL.get(dtype, -7777777 if dtype in (torch.int32, torch.int64) else 0xA5)


class Guarded:
    """A poisoned tensor with a sentinel zone before and after it; ``check()`` fails if a zone changed."""

    def __init__(self, shape, dtype, *, values: torch.Tensor | None = None, offset: int = 0):
        count = 1
        for n in shape:
            count *= n
        self.offset = GUARD + offset
        self.memory = torch.full((self.offset + count + GUARD,), sentinel(dtype), dtype=dtype)
        self.tensor = self.memory[self.offset:self.offset + count].view(shape)
        if values is not None:
            self.tensor.copy_(values)
        self._before = self.memory.clone()

    def check(self, what: str = "output") -> None:
        n = self.tensor.numel()
        for zone in (slice(0, self.offset), slice(self.offset + n, None)):
            same = bits(self.memory[zone]).equal(bits(self._before[zone]))
            assert same, f"{what}: wrote outside its memory"


def bits(t: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, for comparisons in which NaN equals itself."""
    return t.contiguous().view(torch.uint8) if t.dtype != torch.bool else t.contiguous()


def strided(t: torch.Tensor, pad: int = 3) -> torch.Tensor:
    """The same values with odd strides in all but the innermost dimension; the gaps hold poison."""
    if t.dim() < 2:
        return t
    shape = [n + pad for n in t.shape]
    memory = torch.full(shape, sentinel(t.dtype), dtype=t.dtype)
    view = memory[tuple(slice(1, 1 + n) for n in t.shape)]
    view.copy_(t)
    return view


def check_close(got: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor | None = None, *, op: str,
                factor: float = 2.0, floor: float | None = None) -> None:
    """Compare with a float64 result. The bound is ``factor`` times the largest error of ``plain`` (plain torch at
    the tested dtype), and never below half an ulp-step of the result's dtype at its largest value (``floor``)."""
    assert got.shape == exact.shape, f"{op}: shape {tuple(got.shape)}, expected {tuple(exact.shape)}"
    if exact.numel() == 0:
        return
    exact = exact.double()
    finite = torch.isfinite(exact)
    assert torch.equal(torch.isnan(got), torch.isnan(exact)), f"{op}: NaNs in other places than the reference"
    error = (got.double() - exact).abs()[finite]
    eps = torch.finfo(got.dtype).eps
    scale = exact[finite].abs().max().item() if finite.any() else 0.0
    bound = floor if floor is not None else eps * scale
    if plain is not None:
        bound = max(bound, factor * (plain.double() - exact).abs()[finite].max().item())
    if error.numel() and not error.max().item() <= bound:
        worst = int((got.double() - exact).abs().nan_to_num(0).argmax())
        share = (error > bound).double().mean().item()
        raise AssertionError(f"{op}: worst at flat index {worst}: got {got.flatten()[worst].item()}, expected "
                             f"{exact.flatten()[worst].item()}, bound {bound:.3g}, {share:.2%} of values beyond it")


def transformers_or_gate(module: str = "transformers"):
    """transformers' independent implementation (the extra [test] installs it); a closed gate where it is missing."""
    return pytest.importorskip(module, reason="gate: transformers 5.23 or newer is not installed")
