# SPDX-License-Identifier: Apache-2.0
"""The integer ops at their largest, 1024 requests of 256 nodes or rows: one launch each on the CUDA emulator, with and
without clusters, and what the CPU gives."""
import pytest
import torch
from emu_util import Emulator, library
from test_build_tree import full_size
from test_move_accepted_kv import make as moves
from test_select_draft_topk import make as draft_step
from tree_model import random_draft
from util import bits, rng

from dsv4spec import ops, use_backend

B, N, TOPK, STEPS = 1024, 256, 8, 5
SCALARS = dict(topk=TOPK, num_steps=STEPS, num_draft_tokens=N)
CALLS = {}


def call(make):
    CALLS[make.__name__] = make
    return make


def live(most=600):
    lengths = torch.randint(1, most, (B,), generator=rng("one launch", most))
    lengths[3::5] = 0
    return lengths


def positions():
    return (live()[:, None] + torch.arange(N)).reshape(-1)


@call
def verify_positions_padding():
    return (positions(), live().int()), dict(num_draft_tokens=N, ratio=4)


@call
def verify_metadata():
    tables = [torch.randint(0, 99, (B, w), generator=rng("one launch", w)).int() for w in (16, 2)]
    return (positions(), live().int(), *tables, N), dict(c4_page=16, c128_page=8)


@call
def select_draft_topk():
    return draft_step(B, 16, 1), dict(step=1)


@call
def select_draft_topk_of_many():
    return draft_step(B, 20, 1), dict(step=1)


def draft():
    return [t.repeat(B // 4, 1) for t in random_draft(4, TOPK, STEPS, N)]


@call
def build_tree():
    return (torch.arange(B), *draft(), live()), SCALARS


@call
def build_tree_full():
    mask = torch.zeros(full_size(live(40), N), dtype=torch.bool)
    return (torch.arange(B), *draft(), live(40)), dict(SCALARS, mask_mode="full", tree_mask=mask)


@call
def verify_tree_greedy():
    tokens, _, index, following, sibling, _ = ops.build_tree(torch.arange(B), *draft(), live(), **SCALARS)
    target = torch.where(following >= 0, tokens.gather(1, following.clamp(min=0)), 0)  # first children all the way
    return (tokens, index, following, sibling, target), dict(num_steps=STEPS)


@call
def alloc_extend():
    prefix = live()
    seq = torch.where(prefix > 0, prefix + N, 0)
    last = torch.where(prefix % 64 == 0, -1, 64 * torch.arange(B) + prefix % 64 - 1)
    return (prefix, seq, last, torch.randperm(6 * B).int()), dict(extend_num_tokens=int((seq - prefix).sum()), page_size=64)


@call
def assign_draft_slots():
    table = torch.randint(-1, 999, (B, 24), generator=rng("one launch table"))
    return (table, live()), dict(topk=16, num_steps=N // 16, page_size=64)


@call
def move_accepted_kv():
    return moves(6400, 64, 4, B * N, torch.bfloat16), {}


@call
def move_accepted_kv_of_many_pieces():
    return moves(500, 64, 144, 20000, torch.bfloat16), {}


@pytest.fixture(scope="module")
def emu():
    return Emulator(library("dsv4spec_cuda_emu"))


def tensors(out, args, kwargs):
    out = out if isinstance(out, tuple) else (out,)
    return [t for t in (*out, *args, *kwargs.values()) if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize("name", CALLS)
def test_one_launch(emu, name):
    op = getattr(ops, name.split("_of_")[0].removesuffix("_full"))
    torch.manual_seed(1)
    args, kwargs = CALLS[name]()

    def own(value):
        return value.clone() if isinstance(value, torch.Tensor) else value

    def copied():
        return tuple(map(own, args)), {name: own(value) for name, value in kwargs.items()}

    mine, options = copied()
    with use_backend("cpu"):
        want = tensors(op(*mine, **options), mine, options)
    for capability in (90, 80):
        mine, options = copied()
        emu.clear()
        with use_backend("cuda_emu"), emu.settings(capability=capability):
            got = tensors(op(*mine, **options), mine, options)
        assert [row["launches"] for row in emu.counters().values()] == [1], emu.counters()
        assert all(bits(a).equal(bits(b)) for a, b in zip(got, want, strict=True)), capability
