# SPDX-License-Identifier: Apache-2.0
"""Differentiable Sinkhorn through sinkhorn.cpp (built with a C++ compiler on first use)."""
import ctypes
import functools
import os
import subprocess
import tempfile
from pathlib import Path

import torch

EPS = 1e-6


@functools.cache
def library():
    out = Path(tempfile.mkdtemp()) / "sinkhorn.so"
    source = Path(__file__).with_name("sinkhorn.cpp")
    flags = ["-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC"]
    subprocess.run([os.environ.get("CXX", "g++"), *flags, str(source), "-o", str(out)], check=True)
    return ctypes.CDLL(str(out))


def _call(name, tensors, iters):
    n = tensors[0].numel() // 16
    getattr(library(), name)(*(ctypes.c_void_p(t.data_ptr()) for t in tensors), ctypes.c_int64(n),
                             ctypes.c_int(iters), ctypes.c_float(EPS))


class Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, iters):
        logits = logits.float().contiguous()
        ctx.iters, out = iters, torch.empty_like(logits)
        ctx.save_for_backward(logits)
        _call("sinkhorn_forward", [logits, out], iters)
        return out

    @staticmethod
    def backward(ctx, grad):
        logits, = ctx.saved_tensors
        out = torch.empty_like(logits)
        _call("sinkhorn_backward", [logits, grad.float().contiguous(), out], ctx.iters)
        return out, None


@torch.compiler.disable
def sinkhorn(logits, iters):
    """[4, 4, T] logits -> mixing matrices [4, 4, T]; softmax over dim 1, last step over dim 0."""
    return Sinkhorn.apply(logits, iters)


def sinkhorn_plain(logits, iters):
    """The same in plain torch, in any dtype: the definition."""
    m = logits.softmax(1) + EPS
    m = m / (m.sum(0, keepdim=True) + EPS)
    for _ in range(iters - 1):
        m = m / (m.sum(1, keepdim=True) + EPS)
        m = m / (m.sum(0, keepdim=True) + EPS)
    return m
