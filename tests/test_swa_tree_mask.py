# SPDX-License-Identifier: Apache-2.0
"""swa_paged_attention with a tree mask."""
import pytest
import torch
from swa_util import Batch
from util import BACKENDS, Guarded, bits, check_close, rng

from dsv4spec import ops, use_backend
from dsv4spec.reference import attention as ref


def random_tree(n: int, g: torch.Generator) -> torch.Tensor:
    """QLEN rows of a random tree: a node sees itself and what its parent sees."""
    mask = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        if i:
            mask[i] = mask[int(torch.randint(0, i, (1,), generator=g))]
        mask[i, i] = True
    return mask


def chain(n: int) -> torch.Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n,window", [(1, 4), (6, 3), (6, 8), (20, 2), (33, 70)])
def test_matches_brute_force(backend, dtype, n, window):
    g = rng("tree", n, window, dtype)
    batch = Batch([n, n + 1, n + 11, n + 66, n + window - 1], [n] * 5, window=window, dtype=dtype,
                  masks=[random_tree(n, g) for _ in range(5)])
    tensors, options = batch.args()
    plain = ref.swa_paged_attention(*tensors, **options)
    out = Guarded(batch.q.shape, dtype)
    with use_backend(backend):
        ops.swa_paged_attention(*tensors, **options, out=out.tensor)
    check_close(out.tensor, batch.brute_force(), plain, op="swa_paged_attention")
    out.check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_worked_tree(backend):
    """Example 10.2, s = 7 and 3: positions 7,8,8,9,9,10 and 3,4,5,5,6,6; siblings do not see each other."""
    rows = [["100000", "110000", "101000", "110100", "101010", "110101"],
            ["100000", "110000", "111000", "110100", "111010", "110101"]]
    masks = [torch.tensor([[c == "1" for c in r] for r in m]) for m in rows]
    batch = Batch([13, 9], [6, 6], window=4, masks=masks)
    assert [batch.position(0, j) for j in range(6)] == [7, 8, 8, 9, 9, 10]
    assert [batch.position(1, j) for j in range(6)] == [3, 4, 5, 5, 6, 6]
    assert batch.visible(0, 4) == [6, 7, 9, 11]  # committed 6, then root, node 2, itself: three of four keys are nodes
    tensors, options = batch.args()
    with use_backend(backend):
        out = ops.swa_paged_attention(*tensors, **options)
    check_close(out, batch.brute_force(), op="swa_paged_attention", floor=1e-6)


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_chain_mask_is_bit_equal_to_no_mask(backend, dtype):
    batch = Batch([6, 70, 200], [6] * 3, H=5, D=64, window=40, page=8, dtype=dtype)
    tensors, options = batch.args()
    with use_backend(backend):
        want = ops.swa_paged_attention(*tensors, **options)
        masked = ops.swa_paged_attention(*tensors, **options | dict(tree_mask=chain(6).expand(3, 6, 6).contiguous()))
    assert bits(masked).equal(bits(want))


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_visible_key_gives_zero_and_padding_is_skipped(backend):
    masks = [torch.zeros(2, 2, dtype=torch.bool), chain(2), chain(2)]
    batch = Batch([2, 0, 7], [2, 2, 2], masks=masks)  # request 0: s = 0 and nodes that see nothing, not themselves
    tensors, options = batch.args()
    with use_backend(backend):
        out = ops.swa_paged_attention(*tensors, **options)
        given = ops.swa_paged_attention(*tensors, **options, out=torch.full_like(batch.q, 7.0))
    assert (out[:4] == 0).all() and (given[:2] == 0).all() and (given[2:4] == 7).all()
    check_close(out, batch.brute_force(), op="swa_paged_attention", floor=1e-6)


def test_refuses_other_row_counts():
    tensors, options = Batch([9, 12], [3, 3], masks=[chain(3)] * 2).args()
    tensors = list(tensors)
    tensors[3] = torch.tensor([0, 2, 5])
    with pytest.raises(ValueError, match="swa_paged_attention: query_start_loc: expected n=3 rows for request 0, got 2"):
        ops.swa_paged_attention(*tensors, **options)


def test_cos_sin_must_reach_the_deepest_node_only():
    """A wide tree of depth 2 at the end of the context needs two positions, not n."""
    wide = torch.eye(5, dtype=torch.bool)
    wide[:, 0] = True
    batch = Batch([15], [5], masks=[wide])
    tensors, options = batch.args()
    want = ops.swa_paged_attention(*tensors, **options)
    assert torch.equal(ops.swa_paged_attention(*tensors, **options | dict(cos_sin=batch.cos_sin[:12])), want)
    with pytest.raises(ValueError, match="cos_sin: expected at least 12 rows for request 0, got 11"):
        ops.swa_paged_attention(*tensors, **options | dict(cos_sin=batch.cos_sin[:11]))
