# SPDX-License-Identifier: Apache-2.0
"""Integers on a device that lead nowhere, which nobody can refuse there: no kernel leaves the tensors for them. On the
emulator, with every tensor at the end of its memory (A16)."""
import random

import pytest
import torch
from cuda_flavours import cuda_runner

MOST = 2 ** 63 - 1
WILD = (-1, -2, 0, 1, 3, -MOST - 1, MOST, 2 ** 31 - 1, 2 ** 31, -2 ** 31, 2 ** 40)


@pytest.fixture(scope="module")
def runner():
    return cuda_runner()


def integers(rnd, count, most):
    """Mostly 0 to ``most``, one in five anything."""
    dtype = rnd.choice([torch.int32, torch.int64])
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    values = [rnd.choice(WILD) if rnd.random() < 0.2 else rnd.randint(-1, most) for _ in range(count)]
    return torch.tensor([min(max(v, low), high) for v in values], dtype=dtype)


def attention(rnd, tree):
    B, H, D = rnd.randint(1, 6), rnd.choice([1, 3, 17]), 32
    page, maxp, P, n = rnd.choice([4, 8]), rnd.randint(0, 4), rnd.randint(1, 5), rnd.choice([1, 4, 6])
    T, dtype = B * n + rnd.randint(0, 3), rnd.choice([torch.float32, torch.bfloat16])
    starts = torch.arange(B + 1) * n
    for _ in range(rnd.randint(0, 3)):
        starts[rnd.randint(0, B)] = rnd.choice(WILD + (5, 9))
    tensors = (torch.ones(T, H, D, dtype=dtype), torch.ones(P, page, D, dtype=dtype), integers(rnd, B * maxp, P).view(B, maxp),
               starts, integers(rnd, B, maxp * page + 9))
    mask = torch.ones(B, n, n, dtype=torch.bool) if tree else None
    return tensors, dict(window=rnd.choice([1, 8, MOST]), scale=0.2, tree_mask=mask, cos_sin=torch.ones(rnd.choice([1, 50]), 8))


def starts_of(*starts, lens, n, window=8, maxp=5, tree=True, T=27):
    B = len(lens)
    return ((torch.ones(T, 17, 32), torch.ones(2, 4, 32), torch.zeros(B, maxp, dtype=torch.int32), torch.tensor(starts),
             torch.tensor(lens)), dict(window=window, scale=0.2, tree_mask=torch.ones(B, n, n, dtype=torch.bool) if tree else None))


@pytest.mark.parametrize("case", [
    # Row 24 finds the last request, whose rows end at 24: row 6 of 6 of the mask.
    starts_of(0, 2 ** 31, 12, 18, 24, lens=[25, 0, 9, 2 ** 31], n=6),
    # Row 9 is row 3 of 3 at the last position there can be: behind it they start again from the lowest.
    starts_of(0, 2 ** 31, 6, 9, lens=[5, 3, MOST], n=3, window=1, maxp=0, tree=False, T=10),
    starts_of(-MOST - 1, 4, 8, lens=[MOST, 9], n=4, tree=False, T=8),
])
def test_starts_that_do_not_rise(runner, case):
    for runner.memory.exact in (False, True):
        runner.once("swa_paged_attention", *case)


@pytest.mark.parametrize("tree", [False, True])
def test_attention(runner, tree):
    for seed in range(200):
        rnd = random.Random(seed)
        runner.memory.exact = seed % 2 == 0
        runner.once("swa_paged_attention", *attention(rnd, tree))
