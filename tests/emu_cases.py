# SPDX-License-Identifier: Apache-2.0
"""Small calls with odd shapes of every op that has a kernel for a device: CASES[name]() gives (op, args, kwargs),
fresh tensors each time. Tails of vectors, tiles and warps, strides with poison in the gaps, padding, both dtypes. For
the checks that run each kernel many times or slowly, on the emulators of the devices (emu_runner.py)."""
import graph_cases
import torch
from samples import SAMPLES
from swa_util import Batch
from test_build_tree import full_size
from test_build_tree import inputs as tree_inputs
from test_float16 import STREAMS
from test_mhc_head import make_inputs as head_inputs
from test_mhc_pre import make_inputs as pre_inputs
from test_move_accepted_kv import make as moves
from test_nextn_fuse_hidden import make_inputs as fuse_inputs
from test_q_norm_rope import make_inputs as query_inputs
from test_select_draft_topk import make as draft_step
from test_swa_store_kv import make_inputs as store_inputs
from test_swa_tree_mask import random_tree
from test_verify_tree_greedy import make as greedy_inputs
from util import rng, strided

from dsv4spec.ops.table import NO_KERNEL

F32, BF16 = torch.float32, torch.bfloat16
CASES = {}
SITE = dict(rms_eps=1e-6, hc_eps=1e-6)


def add(op: str, label, make) -> None:
    assert f"{op} {label}" not in CASES
    CASES[f"{op} {label}"] = lambda: (op, *make())


def norm(d, dtype=BF16):
    return torch.rand(d, generator=rng("norm", d)).to(dtype) + 0.5


for op in sorted(set(SAMPLES) - (NO_KERNEL["cuda"] & NO_KERNEL["ascendc"])):
    add(op, "sample", SAMPLES[op])
for name, make in graph_cases.CASES.items():  # each with padding, at several lengths
    for lengths in ("captured", "more", "none"):
        CASES[f"{name} {lengths}"] = lambda make=make, live=graph_cases.LENGTHS[lengths]: make(live)

# ---------------------------------------------------------------------------------------------------------------- mhc
for T, hc, d, dtype in ((1, 4, 136, BF16), (3, 2, 264, F32), (5, 1, 1032, BF16), (17, 4, 8, F32), (2, 4, 520, BF16),
                          (66, 4, 136, BF16), (65, 2, 72, F32),  # more tokens than one AscendC launch takes
                          (9, 4, 4104, BF16)):  # CUDA: wide models' clusters
    for layout in (strided, torch.clone):
        label = f"{T}x{hc}x{d} {str(dtype)[6:]}{' strided' if layout is strided else ''}"

        def spread(*tensors, layout=layout):
            return tuple(layout(t) for t in tensors)

        def opened(T=T, hc=hc, d=d, dtype=dtype, spread=spread):
            return (spread(*pre_inputs(T, hc, d, dtype)), dict(SITE, sinkhorn_iters=3, norm_weight=norm(d)))

        def closing(T=T, hc=hc, d=d, dtype=dtype, spread=spread):
            g = rng("closing", T, hc, d)
            y = torch.randn(T, d, generator=g).to(dtype)
            return spread(y, pre_inputs(T, hc, d, dtype)[0], torch.rand(T, hc, generator=g), torch.rand(T, hc, hc, generator=g))

        add("mhc_pre", label, opened)
        if d > 4096 and layout is strided:
            continue  # one op shows it
        add("mhc_post", label, lambda closing=closing: (closing(), {}))
        add("mhc_post_pre", label, lambda opened=opened, closing=closing: (closing() + opened()[0][1:], opened()[1]))
        add("mhc_head", label, lambda T=T, hc=hc, d=d, dtype=dtype, spread=spread: (
            spread(*head_inputs(T, hc, d, dtype)), dict(SITE, norm_weight=norm(d, F32))))

for T, hc, d, dtype, kind in ((3, 4, 136, BF16, "bfloat16"), (1, 2, 8, F32, "float32"), (2, 1, 264, BF16, "fp8"),
                              (5, 4, 144, BF16, "int8"), (9, 4, 72, F32, "fp8_e8m0"), (2, 2, 1040, BF16, "bfloat16"),
                              (3, 2, 72, BF16, "float32"), (2, 4, 136, F32, "bfloat16"), (1, 4, 264, F32, "int8"),
                              (1, 4, 1040, BF16, "int8"), (16, 4, 144, BF16, "int8"), (9, 4, 1040, BF16, "bfloat16"),
                              (33, 2, 136, BF16, "bfloat16")):
    add("nextn_fuse_hidden", f"{T}x{hc}x{d} {str(dtype)[6:]} {kind}",
        lambda T=T, hc=hc, d=d, dtype=dtype, kind=kind: fuse_inputs(T, hc, d, dtype, kind))


def fuse_strided():
    tensors, keywords = fuse_inputs(3, 4, 136, BF16, "int8")
    return tuple(strided(t) for t in tensors), keywords


add("nextn_fuse_hidden", "strided", fuse_strided)

# ---------------------------------------------------------------------------------------------------------- attention
for T, H, D, R, dtype in ((5, 3, 48, 18, BF16), (1, 1, 32, 2, F32), (4, 5, 144, 30, BF16), (2, 3, 512, 64, BF16)):
    def query(T=T, H=H, D=D, R=R, dtype=dtype):
        q, table, positions = query_inputs(T, H, D, R, dtype)
        positions[1::3] = -1
        return (strided(q), strided(table), positions), dict(eps=1e-6)

    def stored(T=T, D=D, R=R, dtype=dtype):
        kv, weight, table, positions, slots, pages = store_inputs(T, D, R, 4, dtype)
        slots[1::3] = -1
        return (strided(kv), weight, strided(table), positions, slots, strided(pages)), dict(eps=1e-6)

    add("q_norm_rope", f"{T}x{H}x{D} R{R}", query)
    add("swa_store_kv", f"{T}x{D} R{R}", stored)

BATCHES = {
    "mixed": ([0, 12, 5, 0, 9], [2, 1, 5, 0, 3]), "chunk": ([40, 17], [13, 16]), "decode": ([1, 7, 30], [1] * 3)}
for name, (lens, rows) in BATCHES.items():
    for H, D, window, page, dtype in ((3, 32, 8, 4, F32), (18, 144, 13, 4, BF16), (4, 64, 1000, 8, BF16)):
        add("swa_paged_attention", f"{name} {H}x{D} window {window}", lambda lens=lens, rows=rows, H=H, D=D, w=window,
            page=page, dtype=dtype: Batch(lens, rows, H=H, D=D, window=w, page=page, dtype=dtype).args())
add("swa_paged_attention", "64x512", lambda: Batch([131, 20], [2, 1], H=64, D=512, window=128, page=16, dtype=BF16).args())
add("swa_paged_attention", "36x512, 8 rows", lambda: Batch([170], [8], H=36, D=512, window=160, page=16, dtype=BF16).args())
for dtype in (F32, BF16):
    add("swa_paged_attention", f"tree {dtype}", lambda dtype=dtype: Batch(
        [6, 7, 17, 72], [6] * 4, window=8, dtype=dtype, masks=[random_tree(6, rng("tree", i)) for i in range(4)]).args())
# CUDA: so many rows that a block takes 64 heads.
add("swa_paged_attention", "64x512 of many", lambda: Batch(
    [150, 20, 7] + [0] * 38, [1] * 41, H=64, D=512, window=96, page=16, dtype=BF16).args())

# ----------------------------------------------------------------------------------------------------------- integers
for pages, page, D, M in ((2, 4, 33, 3), (5, 16, 40, 40), (4, 4, 1, 8), (3, 64, 16, 100)):
    add("move_accepted_kv", f"{pages}x{page}x{D} {M}", lambda p=(pages, page, D, M, BF16): (moves(*p), {}))
    add("move_accepted_kv", f"{pages}x{page}x{D} {M} strided",
        lambda p=(pages, page, D, M, F32): ((strided(moves(*p)[0]), *moves(*p)[1:]), {}))
# More rows than shared memory, or a core's local memory, holds.
add("move_accepted_kv", "82000 rows", lambda: (moves(2000, 64, 1, 82000, BF16), {}))
for B, k, steps, n in ((1, 1, 1, 2), (3, 2, 3, 6), (5, 4, 3, 9), (3, 3, 5, 32), (2, 8, 5, 33), (2, 8, 4, 65)):
    for mode in ("qlen", "qlen_bits", "full"):
        def tree(B=B, k=k, steps=steps, n=n, mode=mode):
            args, mask = tree_inputs(B, k, steps, n), {}
            if mode == "full":
                mask = dict(tree_mask=torch.zeros(full_size(args[-1], n) + 3, dtype=torch.bool))
            return args, dict(topk=k, num_steps=steps, num_draft_tokens=n, mask_mode=mode,
                              status=torch.zeros(B, dtype=torch.int32)) | mask

        if n <= 32 or mode != "qlen_bits":
            add("build_tree", f"{B} {k} {steps} {n} {mode}", tree)
    add("verify_tree_greedy", f"{B} {k} {steps} {n}",
        lambda c=(B, k, steps, n): (tuple(strided(t) for t in greedy_inputs(*c)[1]), dict(num_steps=c[2])))
for B, k, step in ((1, 1, 0), (3, 5, 0), (3, 5, 2), (2, 16, 1), (33, 3, 1), (2, 40, 1), (1, 67, 2)):
    add("select_draft_topk", f"{B} {k} step {step}", lambda c=(B, k, step): (draft_step(*c), dict(step=c[2])))

# For a tool that is slow: each op's sample, and what launches the kernels that those leave out, on clusters too.
FEW = [f"{op} sample" for op in sorted(set(SAMPLES) - NO_KERNEL["cuda"])] + [
    "mhc_pre 2x4x520 bfloat16", "mhc_pre 9x4x4104 bfloat16 strided", "mhc_pre 5x1x1032 bfloat16", "mhc_post 1x4x136 bfloat16",
    "mhc_post_pre 2x4x520 bfloat16 strided", "mhc_post_pre 9x4x4104 bfloat16", "mhc_head 66x4x136 bfloat16",
    "mhc_head 9x4x4104 bfloat16", "nextn_fuse_hidden 1x4x1040 bfloat16 int8", "nextn_fuse_hidden 2x2x1040 bfloat16 bfloat16",
    "nextn_fuse_hidden 3x2x72 bfloat16 float32", "nextn_fuse_hidden 3x4x136 bfloat16 bfloat16",
    "nextn_fuse_hidden 5x4x144 bfloat16 int8", "nextn_fuse_hidden 16x4x144 bfloat16 int8",
    "nextn_fuse_hidden 33x2x136 bfloat16 bfloat16", "q_norm_rope 2x3x512 R64", "swa_store_kv 2x512 R64",
    "swa_paged_attention 64x512", "swa_paged_attention 36x512, 8 rows", "swa_paged_attention 64x512 of many",
    "swa_paged_attention mixed 18x144 window 13",
    "swa_paged_attention tree torch.bfloat16", "move_accepted_kv 3x64x16 100", "move_accepted_kv 82000 rows",
    "select_draft_topk 3 5 step 0", "select_draft_topk 2 40 step 1", "build_tree 2 8 5 33 qlen", "build_tree 2 8 4 65 full"]

# ------------------------------------------------------------------------------- float16, for the device that takes it
HALF = {}


def half_of(name: str):
    """The case with float16 where the contract has streams; strides stay odd."""
    op, args, kwargs = CASES[name]()

    def half(t):
        return t.half() if t.is_contiguous() else strided(t.half())

    return op, tuple(half(t) if i in STREAMS[op] else t for i, t in enumerate(args)), kwargs


for name in list(CASES):
    seen = name.rsplit(" ", 1)[0] in graph_cases.CASES or "82000" in name  # nothing new in another dtype
    if name.split()[0] in STREAMS and not seen:
        HALF[f"{name} as float16"] = lambda name=name: half_of(name)
for T, hc, d, dtype in ((3, 4, 136, torch.float16), (2, 4, 72, BF16), (1, 2, 264, F32)):
    HALF[f"nextn_fuse_hidden {T}x{hc}x{d} {str(dtype)[6:]} float16"] = (
        lambda c=(T, hc, d, dtype, "float16"): ("nextn_fuse_hidden", *fuse_inputs(*c)))


def of(op: str, cases=CASES) -> list[str]:
    return [name for name in cases if name.split()[0] == op]
