# SPDX-License-Identifier: Apache-2.0
"""Ops on clusters of blocks: one launch, and the bits of what devices without clusters do, whatever the number of
tokens."""
import pytest
import torch
from emu_util import Emulator, library
from test_mhc_head import make_inputs as head_inputs
from test_mhc_pre import make_inputs as pre_inputs
from test_move_accepted_kv import make as moves
from test_nextn_fuse_hidden import make_inputs as fuse_inputs
from util import bits, rng

from dsv4spec import ops, use_backend

SITE = dict(rms_eps=1e-6, hc_eps=1e-6)
# Tiles of 8, 16 and 32 tokens; clusters of 1, 2, 16 blocks; several tiles a cluster, so that coefficients wait.
SMALL = [(1, 136), (9, 264), (17, 1032), (70, 392)]
CALLS = [(op, *size) for op in ("mhc_pre", "mhc_post_pre", "mhc_head") for size in SMALL] + [
    ("mhc_pre", 300, 2184), ("mhc_post_pre", 4500, 8), ("mhc_post_pre", 3, 4096), ("mhc_head", 2, 4096)]
# Wide models: other blocks, tiles of 8 and 16 tokens, a last block with part of its channels or none; several tiles.
CALLS += [("mhc_pre", 1, 7168), ("mhc_post_pre", 20, 7168), ("mhc_head", 9, 7168), ("mhc_pre", 11, 4104),
          ("mhc_post_pre", 2, 8192), ("mhc_head", 150, 4104), ("mhc_pre", 150, 4104)]


@pytest.fixture(scope="module")
def emu():
    return Emulator(library("dsv4spec_cuda_emu"))


def arguments(op, T, d):
    if op == "mhc_head":
        return (*head_inputs(T, 4, d, torch.bfloat16),), dict(SITE)
    opened = pre_inputs(T, 4, d, torch.bfloat16)
    if op == "mhc_pre":
        return opened, dict(SITE, sinkhorn_iters=4)
    g = rng("clusters", T, d)
    y = torch.randn(T, d, generator=g).bfloat16()
    return (y, opened[0], torch.rand(T, 4, generator=g), torch.rand(T, 4, 4, generator=g), *opened[1:]), dict(SITE, sinkhorn_iters=4)


def run(emu, op, args, kwargs, **settings):
    """Results, and how often which kernel was launched."""
    emu.clear()
    with use_backend("cuda_emu"), emu.settings(**settings):
        out = getattr(ops, op)(*args, **kwargs)
    launches = {name.split("<")[0].split("::")[-1]: c["launches"] for name, c in emu.counters().items()}
    return out if isinstance(out, tuple) else (out,), launches


@pytest.mark.parametrize("op, T, d", CALLS)
def test_one_launch_with_the_bits_of_two(emu, op, T, d):
    args, kwargs = arguments(op, T, d)
    one, launches = run(emu, op, args, kwargs)
    assert launches == {"mhc_cluster": 1}
    two, launches = run(emu, op, args, kwargs, capability=80)
    pairs = -(-T // 4096)
    assert launches == {"mhc_project_bf16": pairs, "mhc_finish": pairs}
    for a, b in zip(one, two):
        assert torch.isfinite(a).all() and torch.equal(bits(a), bits(b))


@pytest.mark.parametrize("weight", ["inf", "nan"])
@pytest.mark.parametrize("op, d", [("mhc_pre", 264), ("mhc_pre", 4104), ("mhc_post_pre", 4104), ("mhc_head", 4104)])
def test_values_that_are_not_finite(emu, op, d, weight):
    """In weights of two columns, and in one token: what they give in two launches."""
    args, kwargs = arguments(op, 11, d)
    fn, rows = args[-3], args[1 if op == "mhc_post_pre" else 0]
    fn[0, 5], fn[1, d + 70], rows[9, 2, 7] = float(weight), -float(weight), float("nan")
    one, _ = run(emu, op, args, kwargs)
    two, _ = run(emu, op, args, kwargs, capability=80)
    for a, b in zip(one, two):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    y = one[op == "mhc_post_pre"]
    assert y[9].isnan().any() and y[[0, 8, 10]].isfinite().all() == (weight == "inf")


@pytest.mark.parametrize("d", [264, 4360])
@pytest.mark.parametrize("op", ["mhc_pre", "mhc_post_pre", "mhc_head"])
def test_a_row_does_not_depend_on_its_batch(emu, op, d):
    """With the norm, whose sum goes through the cluster too; tiles of every size."""
    T = 110
    args, kwargs = arguments(op, T, d)
    kwargs["norm_weight"] = torch.rand(d, generator=rng("norm", d)).bfloat16()
    rows = len(args) - 3  # arguments that have a row a token
    whole, _ = run(emu, op, args, kwargs)
    for first, last in ((0, 1), (3, 12), (100, 110), (20, 60)):
        part, _ = run(emu, op, (*(a[first:last] for a in args[:rows]), *args[rows:]), kwargs)
        for a, b in zip(part, whole):
            assert torch.equal(bits(a), bits(b[first:last])), (first, last)


@pytest.mark.parametrize("op", ["mhc_pre", "mhc_post_pre", "mhc_head"])
def test_code_of_an_older_gpu_on_a_newer_one_takes_two_launches(emu, op):
    """A build for sm_80 runs on sm_90 as PTX, in which kernels on clusters trap."""
    args, kwargs = arguments(op, 3, 136)
    one, _ = run(emu, op, args, kwargs)
    two, launches = run(emu, op, args, kwargs, code=80)
    assert launches == {"mhc_project_bf16": 1, "mhc_finish": 1} and emu.report() == ""
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(one, two))


def test_what_does_not_fit_takes_two_launches(emu):
    for T, hc, d, dtype in ((1, 4, 8200, torch.bfloat16), (2, 2, 136, torch.bfloat16), (2, 4, 136, torch.float32)):
        _, launches = run(emu, "mhc_pre", pre_inputs(T, hc, d, dtype), dict(SITE, sinkhorn_iters=2))
        assert sum(launches.values()) == 2 and "mhc_cluster" not in launches


# Parts of k 1 to 3, columns 1 to 8; few rows and many; a last column without channels; the most rows of each hc.
FUSED = [(2, 4, 2064, "int8", 6), (1, 4, 1032, "bfloat16", 2), (5, 1, 1040, "fp8", 4), (16, 4, 144, "int8", 1),
         (16, 4, 1168, "fp8", 16), (16, 4, 136, "bfloat16", 2), (8, 4, 272, "fp8", 4), (24, 2, 336, "int8", 2),
         (40, 1, 264, "bfloat16", 4), (11, 4, 1104, "int8", 16), (9, 4, 1040, "bfloat16", 8)]


@pytest.mark.parametrize("T, hc, d, kind, blocks", FUSED)
def test_fusing_few_tokens_in_one_launch(emu, T, hc, d, kind, blocks):
    """Parts of k meet in the cluster, in the order in which the last block adds them elsewhere, and in a large batch."""
    args, kwargs = fuse_inputs(T, hc, d, torch.bfloat16, kind)
    one, launches = run(emu, "nextn_fuse_hidden", args, kwargs)
    assert launches == {"fuse_cluster_kernel": 1}
    (counters,) = emu.counters().values()
    assert counters["cluster"] == blocks
    (two,), launches = run(emu, "nextn_fuse_hidden", args, kwargs, capability=80)
    assert "fuse_mma_kernel" in launches
    many = [torch.cat([a] * (-(-65 // (T * hc)) + 1)) for a in args[:2]]
    (wide,), launches = run(emu, "nextn_fuse_hidden", (*many, *args[2:]), kwargs)
    assert launches == {"fuse_rms_kernel": 1, "fuse_mma_kernel": 1}
    assert torch.equal(bits(one[0]), bits(two)) and torch.equal(bits(one[0]), bits(wide[:T]))


def test_fusing_on_smaller_clusters(emu):
    """Where the device has none of 16 blocks fewer columns share the rows; each reads them, for the same bits."""
    args, kwargs = fuse_inputs(7, 4, 1040, torch.bfloat16, "int8")
    one, _ = run(emu, "nextn_fuse_hidden", args, kwargs)
    two, launches = run(emu, "nextn_fuse_hidden", args, kwargs, cluster=8)
    assert launches == {"fuse_cluster_kernel": 1} and torch.equal(bits(one[0]), bits(two[0]))
    assert {c["cluster"] for c in emu.counters().values()} == {8}


@pytest.mark.parametrize("T, hc, d, change", [(17, 4, 144, None), (25, 2, 144, None), (41, 1, 144, None),
                                              (2, 4, 144, 0), (2, 4, 144, 1), (2, 4, 144, 2), (2, 4, 144, 3)])
def test_what_clusters_do_not_fuse(emu, T, hc, d, change):
    """More rows, and rows or norm weights that do not lie on 16 bytes."""
    args, kwargs = fuse_inputs(T, hc, d, torch.bfloat16, "int8")
    one, _ = run(emu, "nextn_fuse_hidden", args, kwargs)
    if change is not None:
        of = args[change]
        odd = torch.empty(of.numel() + 1, dtype=of.dtype)[1:].view(of.shape).copy_(of)
        args = (*args[:change], odd, *args[change + 1:])
    two, launches = run(emu, "nextn_fuse_hidden", args, kwargs)
    assert "fuse_cluster_kernel" not in launches and torch.equal(bits(one[0]), bits(two[0]))


def test_rows_are_moved_by_clusters(emu):
    """Slots are read once for 128 bytes of a row. Every source is read before any block writes."""
    for rows, clusters in ((32, {1: 8}), (33, {8: 64}), (250, {8: 64})):
        pool, src, dst = moves(9, 64, 512, rows, torch.bfloat16)
        want = pool.clone().flatten(0, 1)
        kept = (src >= 0) & (dst >= 0)
        want[dst[kept]] = pool.flatten(0, 1)[src[kept]]
        emu.clear()
        with use_backend("cuda_emu"):
            ops.move_accepted_kv(pool, src, dst)
        (counters,) = emu.counters().values()
        assert {counters.get("cluster", 1): counters["grid"][0]} == clusters
        assert torch.equal(bits(pool.flatten(0, 1)), bits(want))
