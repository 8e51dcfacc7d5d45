# SPDX-License-Identifier: Apache-2.0
"""What the memory-bound CUDA kernels ask of memory at Flash sizes, and mHC at Pro's, as the shadow flavour of the emulator
counts it, against the bytes that they have to move: every byte once, but for what a comment beside the case names. Run as
a script (DSV4SPEC_EMU_FLAVOUR=shadow) it prints one JSON object a line of FIGURES."""
from __future__ import annotations

import functools
import json

import torch
from emu_util import Emulator, library
from util import rng

from dsv4spec import ops, use_backend
from dsv4spec.models.rope import rope_table

D_MODEL, HC, HEADS, HEAD, ROPE, WINDOW, PAGE = 4096, 4, 64, 512, 64, 128, 64
PRO = 7168
SITE = dict(rms_eps=1e-6, hc_eps=1e-6)
CASES = {}  # name -> () -> (bytes, call)


def aligned(t: torch.Tensor) -> torch.Tensor:
    """At a multiple of 256 bytes, as allocators of devices place tensors."""
    size = t.numel() * t.element_size()
    memory = torch.empty(size + 256, dtype=torch.uint8)
    start = -memory.data_ptr() % 256
    return memory[start:start + size].view(t.dtype).view(t.shape).copy_(t)


def random(*shape, dtype=torch.bfloat16):
    return aligned(torch.randn(shape, generator=rng("truth", shape)).to(dtype))


def f32(*shape):
    return random(*shape, dtype=torch.float32)


def case(make, most=16):
    for T in (1, 4, 16):
        if T <= most:
            CASES[f"{make.__name__} T={T}"] = lambda T=T: make(T)
    return make


def case_of_pro(make):
    case(make)
    for T in (1, 4):
        CASES[f"{make.__name__} T={T} Pro"] = lambda T=T: make(T, PRO)
    return make


# Rules: a row or a weight counts once, but for what the kernel's own first lines say is read again, from the
# L2.
def site(T, d, columns, streams):
    """Of mhc_pre and its like: fn, base, scale, norm weight, y; `streams` readings or writings of hc * d elements."""
    return columns * HC * d * 4 + 4 * columns + 12 + 2 * d + 2 * T * d * (1 + streams * HC)


def mixers(T):
    return f32(T, HC), f32(T, HC, HC), 4 * T * (HC + HC * HC)


@case_of_pro
def mhc_post(T, d=D_MODEL):
    y, residual, out, (post, comb, small) = random(T, d), random(T, HC, d), random(T, HC, d), mixers(T)
    return (2 * T * d * (2 * HC + 1) + small, lambda: ops.mhc_post(y, residual, post, comb, out=out))


@case_of_pro
def mhc_pre(T, d=D_MODEL):  # on clusters: the streams once
    residual, y, (post, comb, small) = random(T, HC, d), random(T, d), mixers(T)
    fn = f32(24, HC * d), f32(24), f32(3)
    return (site(T, d, 24, 1) + small, lambda: ops.mhc_pre(
        residual, *fn, **SITE, sinkhorn_iters=20, norm_weight=random(d), out=(y, post, comb)))


@case_of_pro
def mhc_post_pre(T, d=D_MODEL):  # the old streams are read once, the new ones written once
    y, residual, out, (post, comb, small) = random(T, d), random(T, HC, d), random(T, HC, d), mixers(T)
    fn, after = (f32(24, HC * d), f32(24), f32(3)), mixers(T)[:2]
    return (site(T, d, 24, 2) + 2 * T * d + 2 * small, lambda: ops.mhc_post_pre(
        y, residual, post, comb, *fn, **SITE, sinkhorn_iters=20, norm_weight=random(d),
        out=(out, random(T, d), *after)))


@case_of_pro
def mhc_head(T, d=D_MODEL):  # the streams once
    residual, fn = random(T, HC, d), (f32(4, HC * d), f32(4), f32(1))
    return (site(T, d, 4, 1), lambda: ops.mhc_head(residual, *fn, **SITE, norm_weight=random(d), out=random(T, d)))


@case
def q_norm_rope(T):
    q, out, table = random(T, HEADS, HEAD), random(T, HEADS, HEAD), aligned(rope_table(300, ROPE, 1e4))
    return (T * (4 * HEADS * HEAD + 4 * ROPE + 8),
            lambda: ops.q_norm_rope(q, table, torch.arange(T) + 7, eps=1e-6, out=out))


@case
def swa_store_kv(T):  # the weight once a block of four tokens
    kv, weight, table, pages = random(T, HEAD), f32(HEAD), aligned(rope_table(300, ROPE, 1e4)), random(4, PAGE, HEAD)
    slots = aligned(torch.arange(T) + 3)
    return (T * (4 * HEAD + 4 * ROPE + 16) + 4 * HEAD * -(-T // 4),
            lambda: ops.swa_store_kv(kv, weight, table, aligned(torch.arange(T) + 7), slots, pages, eps=1e-6))


def attention(B, T, tree):
    """B requests of T rows: queries, results and keys once. (Clusters read a key once for at most 16 rows.)"""
    q, out, pages = random(B * T, HEADS, HEAD), random(B * T, HEADS, HEAD), random(4 * B, PAGE, HEAD)
    table, rows = aligned(torch.arange(4 * B).view(B, 4).int()), aligned(torch.arange(B + 1).int() * T)
    lens, turn = aligned(torch.full((B,), 200).int()), aligned(rope_table(300, ROPE, 1e4))
    mask = aligned(torch.tril(torch.ones(B, T, T, dtype=torch.uint8))).bool() if tree else None
    return (B * (2 * HEAD * (WINDOW + T - 1) + 4 * T * HEADS * HEAD), lambda: ops.swa_paged_attention(
        q, pages, table, rows, lens, window=WINDOW, scale=0.04, sink=f32(HEADS), cos_sin=turn, tree_mask=mask, out=out))


for shape in ((1, 1, False), (1, 4, False), (3, 4, False), (9, 4, False), (1, 16, True), (1, 32, False)):
    name = "swa_paged_attention B={} {}={}".format(shape[0], "nodes" if shape[2] else "rows", shape[1])
    CASES[name] = lambda shape=shape: attention(*shape)


def move_accepted_kv(M):
    pages = random(2 * -(-M // PAGE) + 1, PAGE, HEAD)
    src, dst = aligned(torch.arange(M) + 3), aligned(torch.arange(M) + M // 2)
    return M * (4 * HEAD + 16), lambda: ops.move_accepted_kv(pages, src, dst)


for M in (4, 16, 256):  # of 1 request, of 4 and of 64 with 4 rows each
    CASES[f"move_accepted_kv {M} rows"] = lambda M=M: move_accepted_kv(M)


KINDS = {"": (torch.bfloat16, None), " e4m3": (torch.float8_e4m3fn, (D_MODEL // 128,) * 2),
         " int8": (torch.int8, (D_MODEL,))}  # and the shape of the scales


@functools.cache
def projections(kind):
    """Weights and scales of two projections, and their bytes."""
    dtype, scales = KINDS[kind]
    weight = aligned((f32(D_MODEL, D_MODEL) * 40).to(dtype))
    scale = scales and aligned(torch.full(scales, 120, dtype=torch.uint8) if len(scales) == 2 else f32(*scales))
    both, scaled = [weight, aligned(weight)], [] if scale is None else [scale, aligned(scale)]
    return both, dict(zip(("e_proj_scale", "h_proj_scale"), scaled)), sum(t.nbytes for t in both + scaled)


def fuse(T, kind):  # up to 64 stream rows every byte once
    embeds, hidden, norms = random(T, D_MODEL), random(T, HC * D_MODEL), (random(D_MODEL), random(D_MODEL))
    weights, scales, needed = projections(kind)
    rows, out = 2 * D_MODEL * T * (1 + HC), 2 * D_MODEL * T * HC
    needed += rows + 4 * D_MODEL + out
    if T * HC > 64:  # every 128 channels have the rows and their norms again, and 4 parts of the sums, from the L2
        needed += D_MODEL // 128 * rows + (D_MODEL // 128 - 1) * 4 * D_MODEL + 2 * 4 * 2 * out
    return (needed, lambda: ops.nextn_fuse_hidden(
        embeds, hidden, *norms, *weights, eps=1e-6, **scales, out=random(T, HC, D_MODEL)))


for kind in KINDS:
    for T in (1, 2, 4, 8, 16):
        CASES[f"nextn_fuse_hidden T={T}{kind}"] = lambda T=T, kind=kind: fuse(T, kind)
CASES["nextn_fuse_hidden T=17 int8"] = lambda: fuse(17, " int8")


def figures(emulator: Emulator, name: str) -> dict:
    needed, call = CASES[name]()
    emulator.clear()
    with use_backend("cuda_emu"):
        call()
    kernels = emulator.counters().values()

    def total(key):
        return sum(k[kind][key] for k in kernels for kind in ("read", "write", "atomic"))

    conflicts, wavefronts = (sum(k["shared"][key] for k in kernels) for key in ("conflicts", "wavefronts"))
    return {"bytes": needed, "sectors": round(total("block_sectors") * 32 / needed, 3),
            "warp_sectors": round(total("sectors") * 32 / needed, 3),
            "bank_conflicts": round(conflicts / max(wavefronts, 1), 3)}


if __name__ == "__main__":
    shadow = Emulator(library("dsv4spec_cuda_emu", "shadow"))
    shadow.configure(races=0)
    for name in CASES:
        print(json.dumps({name: figures(shadow, name)}), flush=True)
