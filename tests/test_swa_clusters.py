# SPDX-License-Identifier: Apache-2.0
"""swa_paged_attention on clusters of blocks, whose keys are read once: the bits of blocks that each read their keys, which
devices without clusters take, whatever rows and requests share a cluster."""
import pytest
import torch
from emu_util import ORDERS, Emulator, library
from swa_util import Batch
from test_swa_tree_mask import random_tree
from util import BACKENDS, bits, rng

from dsv4spec import ops, use_backend

BF16 = torch.bfloat16


@pytest.fixture(scope="module")
def emu():
    return Emulator(library("dsv4spec_cuda_emu"))


def batch(lens, rows, **sizes):
    return Batch(lens, rows, **dict(H=64, D=512, window=128, page=16, dtype=BF16, key="clusters") | sizes)


def tree(lens, rows, **sizes):
    return batch(lens, rows, masks=[random_tree(rows[0], rng("clusters", i)) for i in range(len(lens))], **sizes)


# Call, then the kernel's pairs of row and head a block and the blocks of a cluster (0: it is not launched in clusters).
CALLS = {
    "decode": (lambda: batch([200], [1]), 16, 4),
    "decode, first keys": (lambda: batch([1, 2, 33], [1] * 3), 16, 4),
    "decode, many": (lambda: batch([40 + i for i in range(41)], [1] * 41), 64, 0),
    "decode of 16 heads": (lambda: batch([70], [1], H=16), 16, 0),
    "decode of 128 heads, many": (lambda: batch([40 + i for i in range(21)], [1] * 21, H=128), 64, 2),
    "verify": (lambda: batch([131, 300], [4, 4]), 16, 16),
    "verify, more than at once": (lambda: batch([51 + i for i in range(9)], [4] * 9), 64, 4),
    "verify of 5 rows": (lambda: batch([71] * 7, [5] * 7), 64, 5),
    "tree": (lambda: tree([150, 16], [16, 16]), 64, 16),
    "extend": (lambda: batch([300], [20]), 64, 10),
    "rows of several requests": (lambda: batch([0, 140, 5, 0, 9, 200], [2, 1, 5, 0, 3, 7]), 16, 12),
    "a unit of padding": (lambda: batch([0, 40, 0], [2, 2, 2]), 16, 8),
    "small heads": (lambda: batch([40, 17], [13, 13], H=3, D=48, window=9, page=4), 16, 3),
    "many tiles": (lambda: batch([700, 650], [3, 3], H=18, D=144, window=600), 16, 4),
    "more heads than a cluster holds": (lambda: batch([30], [1], H=260, D=32), 16, 0),
}


def run(emu, args, **settings):
    """The result, and of each kernel its pairs a block and blocks a cluster."""
    (q, *rest), options = args
    emu.clear()
    with use_backend("cuda_emu"), emu.settings(**settings):
        out = ops.swa_paged_attention(q, *rest, **options)
    [(name, counters)] = emu.counters().items()
    assert counters["launches"] == 1
    return out, int(name.split("<")[1].split(",")[0]), counters.get("cluster", 0)


@pytest.mark.parametrize("name", CALLS)
def test_same_bits_with_and_without_clusters(emu, name):
    make, pairs, blocks = CALLS[name]
    args = make().args()
    shared, *shape = run(emu, args)
    assert shape == [pairs, blocks]
    assert torch.isfinite(shared).all()
    alone, _, clusters = run(emu, args, capability=80)
    assert clusters == 0 and torch.equal(bits(shared), bits(alone))


@pytest.mark.parametrize("name", ["decode", "small heads", "many tiles"])
def test_copies_land_whenever_they_like(emu, name):
    args = CALLS[name][0]().args()
    want, *_ = run(emu, args)
    for settings in (*(dict(order=o, seed=s) for o, s in ORDERS[1:]), dict(defer=0)):
        assert torch.equal(bits(want), bits(run(emu, args, **settings)[0])), settings


@pytest.mark.parametrize("name", ["verify", "tree"])
def test_a_device_with_room_for_8_blocks_takes_smaller_units(emu, name):
    args = CALLS[name][0]().args()
    want, *_ = run(emu, args)
    got, *shape = run(emu, args, cluster=8)
    assert shape == [64, 4 if name == "verify" else 8] and torch.equal(bits(got), bits(want))


def test_code_of_an_older_gpu_on_a_newer_one_needs_no_clusters(emu):
    args = CALLS["decode"][0]().args()
    want, *_ = run(emu, args)
    got, _, clusters = run(emu, args, code=80)
    assert clusters == 0 and torch.equal(bits(got), bits(want)) and emu.report() == ""


@pytest.mark.parametrize("name", ["decode", "verify", "extend", "tree"])
def test_a_key_that_is_not_a_number_stays_with_the_rows_that_see_it(emu, name):
    """Blocks of a cluster clean their own tiles."""
    b = CALLS[name][0]()
    (q, pages, table, starts, lens), options = b.args()
    clean, *_ = run(emu, ((q, pages, table, starts, lens), options))
    x = b.lens[0] - b.rows[0] - 100 if name != "extend" else b.lens[0] - b.rows[0] - 120  # seen by the first rows alone
    pages[table[0, x // b.page], x % b.page, 7] = float("nan")
    got, _, blocks = run(emu, ((q, pages, table, starts, lens), options))
    alone, *_ = run(emu, ((q, pages, table, starts, lens), options), capability=80)
    assert blocks and torch.equal(bits(got), bits(alone))
    sees = torch.zeros(len(q), dtype=torch.bool)
    sees[:b.rows[0]] = torch.tensor([x in b.visible(0, j) for j in range(b.rows[0])])
    assert sees.any() and torch.isnan(got[sees]).all()
    assert torch.equal(bits(got[~sees]), bits(clean[~sees]))


def test_a_row_does_not_depend_on_its_cluster(emu):
    b = batch([150], [40])
    (q, pages, table, _, lens), options = b.args()
    whole, *shape = run(emu, b.args())
    assert shape == [64, 10]
    for first, rows in ((0, 1), (7, 4), (30, 10), (3, 37)):
        last = first + rows
        part, *_ = run(emu, ((q[first:last], pages, table, torch.tensor([0, rows]), lens - 40 + last), options))
        assert torch.equal(bits(part), bits(whole[first:last])), (first, rows)


def off_16_bytes(pages):
    """The same keys, an element further than a multiple of 16 bytes, and with rows that are 8 bytes more than one apart."""
    memory = torch.full((pages.numel() + 1,), float("nan"), dtype=BF16)
    spread = torch.full((*pages.shape[:2], pages.shape[2] + 4), float("nan"), dtype=BF16)
    return memory[1:].view(pages.shape).copy_(pages), spread[..., :pages.shape[2]].copy_(pages)


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b in ("cuda", "cuda_emu")])
@pytest.mark.parametrize("name", ["decode", "verify", "tree", "rows of several requests", "small heads"])
def test_rows_off_16_bytes_give_the_same_bits(backend, name):
    """Each block reads its own keys then, on every device."""
    (q, pages, *rest), options = CALLS[name][0]().args()
    with use_backend(backend):
        want = ops.swa_paged_attention(q, pages, *rest, **options)
        for other in off_16_bytes(pages):
            assert torch.equal(bits(ops.swa_paged_attention(q, other, *rest, **options)), bits(want))


def test_rows_off_16_bytes_need_no_clusters(emu):
    (q, pages, *rest), options = CALLS["decode"][0]().args()
    for other in off_16_bytes(pages):
        assert run(emu, ((q, other, *rest), options))[2] == 0


def test_a_launch_on_clusters_leaves_later_ones_their_shared_memory(emu):
    """Its own size must not become the kernel's limit."""
    small, large = batch([20], [9], H=3, D=32, page=4), batch([20], [1], H=1, D=64, page=4)
    for b, blocks in ((small, 2), (large, 0)):
        out, _, clusters = run(emu, b.args())
        assert clusters == blocks and torch.isfinite(out).all()
