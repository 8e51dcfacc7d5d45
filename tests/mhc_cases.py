# SPDX-License-Identifier: Apache-2.0
"""Inputs shared by the mHC tests."""
import torch
from util import BACKENDS, check_close, rng

KERNELS = [b for b in BACKENDS if b != "reference"]  # those that promise the same bits for a row in any batch
EPS = dict(rms_eps=1e-6, hc_eps=1e-6)
PRE = dict(EPS, sinkhorn_iters=20)
# (T, hc, d): edges of tokens (tiles of 4 and 16, blocks of 64) and of channels (vectors, pieces of 1024/hc;
# what the registers of a block hold, 8192).
CASES = ([(T, hc, d) for T in (0, 1, 3, 17) for hc in (1, 2, 4) for d in (8, 120, 128, 136)] +
         [(5, 4, 248), (5, 4, 256), (5, 4, 264), (2, 1, 1032), (4, 2, 520), (63, 4, 64), (64, 4, 64), (65, 2, 64),
          (5, 4, 4096), (1, 4, 7168), (2, 1, 8208)])


def residual_of(T, hc, d, dtype):
    g = rng("residual", T, hc, d)
    return (torch.randn(T, hc, d, generator=g) * 2).to(dtype)


def coefficients_of(hc, d, columns, scales):
    """fn, base and scale such that the columns spread over a few units."""
    g = rng("fn", hc, d, columns)
    fn = torch.randn(columns, hc * d, generator=g) / (hc * d) ** 0.5
    return fn, torch.randn(columns, generator=g), torch.rand(scales, generator=g) + 0.5


def norm_weight_of(d, kind):
    if kind is None:
        return None
    return (torch.rand(d, generator=rng("norm", d)) + 0.5).to(kind)


def doubled(args):
    return tuple(t.double() if torch.is_tensor(t) else t for t in args)


def close(got, exact, plain, op):
    """check_close whose least bound is 4 ulps for fp32: on a few values, plain torch's own error is luck."""
    scale = exact[torch.isfinite(exact)].abs().max().item() if exact.numel() else 0.0
    floor = 4 * torch.finfo(torch.float32).eps * scale if got.dtype == torch.float32 else None
    check_close(got, exact, plain, op=op, floor=floor)


def same_bits(backend, dense, guarded):
    """Kernels take 16-byte accesses where strides allow them; the arithmetic is the same."""
    if backend in KERNELS:
        assert all(torch.equal(d, g.tensor) for d, g in zip(dense, guarded)), "strides change the result"
