# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from util import BACKENDS, UNCHECKED, Guarded, bits, rng

from dsv4spec import ops, use_backend


def make(pages, page, D, M, dtype):
    """A pool with NaN in every row that is neither source nor destination, and slots that overlap."""
    g = rng("move", pages, page, D, M, dtype)
    order = torch.randperm(pages * page, generator=g)
    src, dst = order[:M].clone(), order[M // 2:M // 2 + M].clone()  # half of the destinations are sources
    src[2::5], dst[3::7] = -1, -1
    values = torch.randn(pages * page, D, generator=g).to(dtype)
    used = torch.zeros(pages * page, dtype=torch.bool)
    used[src[src >= 0]] = used[dst[dst >= 0]] = True
    values[~used] = float("nan")
    return values.view(pages, page, D), src, dst


def model(kv, src, dst):
    before, after = kv.flatten(0, 1), kv.flatten(0, 1).clone()
    for a, b in zip(src.tolist(), dst.tolist()):
        if a >= 0 and b >= 0:
            after[b] = before[a]
    return after.view_as(kv)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("pages,page,D,M", [(1, 4, 16, 0), (1, 4, 16, 1), (2, 4, 32, 3), (5, 16, 33, 40), (3, 64, 512, 100),
                                            (4, 4, 1, 8), (70, 64, 512, 2000)])
def test_matches_model(backend, dtype, pages, page, D, M):
    kv, src, dst = make(pages, page, D, M, dtype)
    want = model(kv, src, dst)
    pool = Guarded(kv.shape, dtype, values=kv)
    # A pool whose pages and rows are apart, with poison in the gaps.
    wide = torch.full((pages, page + 2, D + 3), float("nan"), dtype=dtype)
    wide[:, 1:-1, 2:D + 2] = kv
    around = wide.clone()
    with use_backend(backend):
        assert ops.move_accepted_kv(pool.tensor, src, dst) is None
        ops.move_accepted_kv(wide[:, 1:-1, 2:D + 2], src, dst)
    assert bits(pool.tensor).equal(bits(want))
    around[:, 1:-1, 2:D + 2] = want
    assert bits(wide).equal(bits(around))
    pool.check("kv_pages")


@pytest.mark.parametrize("backend", BACKENDS)
def test_sources_are_read_before_any_write(backend):
    """A chain of moves and a swap; -1 on either side skips; page 0 is an ordinary page."""
    kv = torch.arange(8.).view(2, 4, 1)
    src, dst = torch.tensor([1, 2, 3, 6, 7, -1, 5]), torch.tensor([0, 1, 2, 7, 6, 4, -1])
    with use_backend(backend):
        ops.move_accepted_kv(kv, src, dst)
    assert kv.flatten().tolist() == [1, 2, 3, 3, 4, 5, 7, 6]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a20_only_padding_changes_nothing(backend):
    kv = torch.randn(2, 4, 16)
    before = kv.clone()
    skip, some = torch.full((5,), -1), torch.arange(5)
    with use_backend(backend):
        ops.move_accepted_kv(kv, skip, some)
        ops.move_accepted_kv(kv, some, skip)
        ops.move_accepted_kv(kv, skip[:0], skip[:0])
    assert kv.equal(before)


def test_thread_count_changes_nothing():
    from dsv4spec import _C

    kv, src, dst = make(70, 64, 512, 2000, torch.float32)
    dst[1] = dst[0]  # equal destinations: the last wins, whatever the threads
    results, threads = [], _C.get_num_threads()
    try:
        for n in (1, 2, 3):
            _C.set_num_threads(n)
            pool = kv.clone()
            ops.move_accepted_kv(pool, src, dst)
            results.append(pool)
    finally:
        _C.set_num_threads(threads)
    assert all(bits(r).equal(bits(results[0])) for r in results)
    assert bits(results[0]).equal(bits(model(kv, src, dst)))


@pytest.mark.parametrize("src,dst,message", [
    ([0, 8], [1, 2], r"src_slots: expected -1 to 7, got 8"), ([0, -2], [1, 2], r"src_slots: expected -1 to 7, got -2"),
    ([0, 1], [1, 8], r"dst_slots: expected -1 to 7, got 8"), ([0, 1], [-9, 2], r"dst_slots: expected -1 to 7, got -9")])
def test_slots_outside_the_pool_are_refused_before_a_write(src, dst, message):
    kv = torch.arange(8.).view(2, 4, 1)
    with pytest.raises(ValueError, match=r"^move_accepted_kv: " + message):
        ops.move_accepted_kv(kv, torch.tensor(src), torch.tensor(dst))
    assert kv.flatten().tolist() == list(range(8))


@pytest.mark.parametrize("backend", UNCHECKED)
@pytest.mark.parametrize("D", [1, 6, 64])
def test_slots_outside_the_pool_are_skipped(backend, D):
    kv = torch.arange(8. * D).view(2, 4, D)
    pool = Guarded(kv.shape, kv.dtype, values=kv)
    src = torch.tensor([1, 8, -2, 2 ** 63 - 1, 3, 3, 3, 7])
    dst = torch.tensor([0, 2, 2, 2, 8, -2 ** 63, 2 ** 40, 6])
    with use_backend(backend):
        ops.move_accepted_kv(pool.tensor, src, dst)
    want = kv.clone().flatten(0, 1)
    want[0], want[6] = want[1], want[7]
    assert pool.tensor.flatten(0, 1).equal(want)
    pool.check("kv_pages")


@pytest.mark.parametrize("change,message", [
    (dict(kv=torch.zeros(2, 4, 8, dtype=torch.float64)),
     r"kv_pages: expected dtype float32 or bfloat16 or float16, got DLPack dtype"),
    (dict(kv=torch.zeros(8, 8)), r"kv_pages: expected shape \[pages, page, D\], got \[8, 8\]"),
    (dict(kv=torch.zeros(2, 4, 16)[..., ::2]), r"kv_pages: expected a contiguous innermost dimension, got stride 2"),
    (dict(kv=torch.zeros(1, 4, 8).expand(2, 4, 8)), r"kv_pages: expected memory that does not overlap itself"),
    (dict(src=torch.zeros(3, dtype=torch.int32)), r"src_slots: expected dtype int64, got int32"),
    (dict(dst=torch.zeros(2, dtype=torch.int64)), r"dst_slots: expected shape \[M=3\], got \[2\]"),
])
def test_refuses(change, message):
    args = dict(kv=torch.zeros(2, 4, 8), src=torch.zeros(3, dtype=torch.int64), dst=torch.zeros(3, dtype=torch.int64)) | change
    with pytest.raises(ValueError, match=r"^move_accepted_kv: " + message):
        ops.move_accepted_kv(*args.values())
