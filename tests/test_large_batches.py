# SPDX-License-Identifier: Apache-2.0
"""The integer ops at 1024 requests and at one more, which is where a kernel's blocks meet: bit-equal to the reference."""
import pytest
import torch
from util import BACKENDS, Guarded, bits, rng

from dsv4spec import ops, use_backend

SIZES = [1024, 1025]


def check(backend, op, args, kwargs, shapes):
    """Run ``op`` into guarded outputs that start as poison; compare with the reference on the same poison. Outputs begin at
    a cache line, then in the middle of one, where a device must split its work elsewhere."""
    for offset in (0, 3):
        outs = [Guarded(shape, dtype, offset=offset) for shape, dtype in shapes]
        want = tuple(o.tensor.clone() for o in outs)
        with use_backend("reference"):
            getattr(ops, op)(*args, **kwargs, out=want if len(want) > 1 else want[0])
        with use_backend(backend):
            getattr(ops, op)(*args, **kwargs, out=tuple(o.tensor for o in outs) if len(outs) > 1 else outs[0].tensor)
        for i, (o, w) in enumerate(zip(outs, want)):
            assert bits(o.tensor).equal(bits(w)), f"{op}: output {i}, offset {offset}"
            o.check(f"{op}: output {i}")
    return want


def lengths(B, most, dtype=torch.int32):
    live = torch.randint(1, most, (B,), generator=rng("large", B, most))
    live[3::5] = 0
    return live.to(dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("B", SIZES)
def test_verify_window(backend, B):
    n, live = 7, lengths(B, 5000)
    positions = (live.long()[:, None] + torch.arange(n)).reshape(-1)
    sizes = [max(1, min(B * n, B * n // r + B)) for r in (4, 128)]
    check(backend, "verify_positions_padding", (positions, live), dict(num_draft_tokens=n, ratio=4), [((sizes[0],), torch.int64)])
    tables = [torch.randint(0, 99, (B, w), generator=rng("table", B, w)).int() for w in (80, 6)]
    check(backend, "verify_metadata", (positions, live, *tables, n), dict(c4_page=16, c128_page=8),
          [((s,), t) for s, t in zip((*sizes, B, B, *sizes), [torch.int64] * 2 + [torch.int32] * 2 + [torch.int64] * 2)])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("B", SIZES)
def test_draft_and_tree(backend, B):
    k, n, g = 4, 16, rng("large tree", B)
    live = lengths(B, 40)
    steps, i64 = [], torch.int64
    for step in range(2):
        M = B * k if step else B
        args = torch.rand(M, k, generator=g), torch.randint(0, 9, (M, k), generator=g), steps[-1][1] if step else None
        shapes = [((B * k,), i64), ((B, k), torch.float32), ((B, k + (step == 0)), i64), ((B * k,), i64),
                  ((B, k if step else 1, k), torch.float32), ((B, k * k if step else k), i64)]
        steps.append(check(backend, "select_draft_topk", args, dict(step=step), shapes))
    drafts = ops.organize_draft(*([s[i] for s in steps] for i in (4, 5, 2)), num_draft_tokens=n)
    bonus = torch.randint(0, 9, (B,), generator=g)
    scalars = dict(topk=k, num_steps=2, num_draft_tokens=n)
    mask = torch.zeros(int((n * live + n * n).sum()), dtype=torch.bool)
    shapes = [((B, n), i64), ((B * n,), i64)] + [((B, n), i64)] * 3
    tree = check(backend, "build_tree", (bonus, *drafts, live), scalars, [*shapes, ((B, n, n), torch.bool)])
    check(backend, "build_tree", (bonus, *drafts, live), dict(scalars, mask_mode="qlen_bits"), [*shapes, ((B, n), torch.uint16)])
    masks = []
    for name in ("reference", backend):
        masks.append(mask.clone())
        with use_backend(name):
            ops.build_tree(bonus, *drafts, live, **scalars, mask_mode="full", tree_mask=masks[-1])
    assert masks[0].equal(masks[1])
    links = [torch.where(live[:, None] > 0, t, 0) for t in (tree[0], tree[2], tree[3], tree[4])]
    target = torch.randint(0, 9, (B, n), generator=g)
    got = check(backend, "verify_tree_greedy", (*links, target), dict(num_steps=3),
                [((B * n,), torch.int32), ((B, 4), torch.int32), ((B,), torch.int32)])
    assert set(got[2][live > 0].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("B", SIZES)
@pytest.mark.parametrize("page", [4, 48, 64])
def test_slots(backend, B, page):
    prefix = lengths(B, 9 * page, torch.int64)
    seq = torch.where(torch.arange(B) % 7 == 2, 0, prefix + torch.arange(B) % 90)
    last = torch.where(prefix % page == 0, -1, 100 * page + prefix % page - 1)
    extend = int((seq - prefix)[seq > 0].sum()) + 3
    free = torch.randperm(30 * B, generator=rng("free", B)).int()
    check(backend, "alloc_extend", (prefix, seq, last, free), dict(extend_num_tokens=extend, page_size=page),
          [((extend,), torch.int64), ((1,), torch.int32)])
    table = torch.randint(-1, 999, (B, 12), generator=rng("draft table", B))
    check(backend, "assign_draft_slots", (table, prefix), dict(topk=3, num_steps=5, page_size=page), [((B, 15), torch.int64)])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("M,D,dtype", [(4096, 64, torch.bfloat16), (20000, 8, torch.bfloat16), (30000, 3, torch.float32),
                                       (41000, 4, torch.float32)], ids=str)
def test_moves_of_many_rows(backend, M, D, dtype):
    """More rows than a block of a device holds 16 bytes of, then 8, 4, and more than it holds at all."""
    g = rng("many moves", M)
    pool = torch.randn(-(-M // 32) * 2, 32, D, generator=g).to(dtype)
    order = torch.randperm(pool.shape[0] * 32, generator=g)
    src, dst = order[:M].clone(), order[M // 2:M // 2 + M].clone()
    src[::5], dst[::7] = -1, -1
    moved = Guarded(pool.shape, dtype, values=pool)
    with use_backend(backend):
        ops.move_accepted_kv(moved.tensor, src, dst)
    with use_backend("reference"):
        ops.move_accepted_kv(pool, src, dst)
    assert bits(moved.tensor).equal(bits(pool))
    moved.check()
