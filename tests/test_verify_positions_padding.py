# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from util import BACKENDS, UNCHECKED, Guarded, rng

from dsv4spec import ops, use_backend

UNREAD = -(2 ** 40)


def padded_size(T, B, ratio):
    return max(1, min(T, (T // ratio if ratio else 0) + B))


def model(positions, live, n, ratio):
    """The rule, one row at a time."""
    out = []
    for b, s in enumerate(live.tolist()):
        for j in range(n):
            if ratio > 1 and s > 0 and (s + j + 1) % ratio == 0:
                out.append(int(positions[b * n + j]) + 1 - ratio)
    size = padded_size(positions.shape[0], live.shape[0], ratio)
    assert len(out) <= size
    return torch.tensor(out + [0] * (size - len(out)))


def window(live, n):
    """Positions s + j; rows of padding requests hold a value that would show."""
    s = live.long()[:, None]
    return torch.where(s > 0, s + torch.arange(n), UNREAD).reshape(-1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("live,ratio,want", [
    ([126, 7, 0], 4, [124, 4, 0, 0, 0, 0]), ([126, 7, 0], 128, [0, 0, 0]), ([7], 4, [4, 0]), ([7], 128, [0]),
    ([3, 4, 5, 6], 4, [0, 4, 4, 4, 0, 0, 0, 0]), ([127, 255], 4, [124, 252, 0, 0]), ([127, 255], 128, [0, 128])])
def test_worked_numbers(backend, live, ratio, want):
    """Worked example 10.1; request 3 of the first case is padding although its positions 0..3 would emit."""
    live = torch.tensor(live)
    positions = (live[:, None] + torch.arange(4)).reshape(-1)
    with use_backend(backend):
        assert ops.verify_positions_padding(positions, live, num_draft_tokens=4, ratio=ratio).tolist() == want


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("ratio", [2, 4, 128])
@pytest.mark.parametrize("B,n", [(0, 4), (1, 1), (1, 4), (3, 5), (17, 3), (64, 129)])
def test_matches_model(backend, dtype, B, n, ratio):
    live = torch.randint(0, 300, (B,), generator=rng("positions", B, n, ratio)).to(dtype)
    live[1::3] = 0
    positions = window(live, n)
    want = model(positions, live, n, ratio)
    out = Guarded(want.shape, torch.int64)
    with use_backend(backend):
        for _ in range(2):
            ops.verify_positions_padding(positions, live, num_draft_tokens=n, ratio=ratio, out=out.tensor)
            assert out.tensor.equal(want)
        assert ops.verify_positions_padding(positions, live, num_draft_tokens=n, ratio=ratio).equal(want)
    out.check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_choice_by_lengths_value_by_positions(backend):
    """A tree: row 1 stands at position 8 like row 2; the row of length 12 emits, whatever its position."""
    positions = torch.tensor([7, 8, 8, 9, 9])
    with use_backend(backend):
        out = ops.verify_positions_padding(positions, torch.tensor([7]), num_draft_tokens=5, ratio=4)
    assert out.tolist() == [4, 6]  # lengths 8 and 12: rows 0 and 4, at positions 7 and 9


@pytest.mark.parametrize("backend", BACKENDS)
def test_a6_visible_groups_and_ratios_without_groups(backend):
    """Rows at positions 126..129: groups visible to each are (q+1)//r, and an entry is emitted exactly where that count
    rises. Ratios 0 and 1 mean "no compressed part": nothing is emitted."""
    positions = torch.arange(126, 130)
    for ratio, visible in ((4, [31, 32, 32, 32]), (128, [0, 1, 1, 1])):
        assert ((positions + 1) // ratio).tolist() == visible
        rises = [q for q in positions.tolist() if (q + 1) // ratio > q // ratio]
        with use_backend(backend):
            out = ops.verify_positions_padding(positions, torch.tensor([126]), num_draft_tokens=4, ratio=ratio)
        assert out[:len(rises)].tolist() == [q + 1 - ratio for q in rises] == [128 - ratio]
    for ratio in (0, 1):
        with use_backend(backend):
            out = ops.verify_positions_padding(positions, torch.tensor([126]), num_draft_tokens=4, ratio=ratio)
        assert out.shape == (padded_size(4, 1, ratio),) and not out.any()


@pytest.mark.parametrize("backend", UNCHECKED)
@pytest.mark.parametrize("ratio", [3, 4, 128])
def test_hostile_lengths_leave_the_other_rows_right(backend, ratio):
    """Lengths and positions at the ends of their types, between two good requests."""
    good = torch.tensor([126, 126])
    for hostile, dtype in (([-1, -2 ** 31, 2 ** 31 - 1], torch.int32), ([-2 ** 63, 2 ** 62, 2 ** 40 - 1], torch.int64)):
        live = torch.cat([good[:1], torch.tensor(hostile), good[1:]]).to(dtype)
        positions = torch.full((5 * 7,), -2 ** 63)
        positions[:7] = positions[-7:] = torch.arange(126, 133)
        alone = model(positions[:7], good[:1], 7, ratio)
        emitted = sum((126 + j + 1) % ratio == 0 for j in range(7))
        out = Guarded((padded_size(35, 5, ratio),), torch.int64)
        with use_backend(backend):
            ops.verify_positions_padding(positions, live, num_draft_tokens=7, ratio=ratio, out=out.tensor)
        assert out.tensor[:emitted].equal(alone[:emitted])
        count = 2 * emitted + sum((s + j + 1) % ratio == 0 for s in hostile if s > 0 for j in range(7))
        assert out.tensor[count - emitted:count].equal(alone[:emitted]) and not out.tensor[count:].any()
        out.check()


@pytest.mark.parametrize("change,message", [
    (dict(positions=torch.zeros(7, dtype=torch.int64)), r"positions: expected B\*n = 2\*4 rows, got 7"),
    (dict(positions=torch.zeros(8, dtype=torch.int32)), r"positions: expected dtype int64, got int32"),
    (dict(live=torch.zeros(2)), r"live_seq_lens: expected dtype int32 or int64, got float32"),
    (dict(n=0), r"num_draft_tokens: expected at least 1, got 0"),
    (dict(ratio=-4), r"ratio: expected at least 0, got -4"),
    (dict(out=torch.zeros(5, dtype=torch.int64)), r"out: expected shape \[N=4\], got \[5\]"),
    (dict(out=torch.zeros(4, dtype=torch.int32)), r"out: expected dtype int64, got int32"),
])
def test_refuses(change, message):
    a = dict(positions=torch.zeros(8, dtype=torch.int64), live=torch.ones(2, dtype=torch.int32), n=4, ratio=4,
             out=torch.zeros(4, dtype=torch.int64)) | change
    with pytest.raises(ValueError, match=r"^verify_positions_padding: " + message):
        ops.verify_positions_padding(a["positions"], a["live"], num_draft_tokens=a["n"], ratio=a["ratio"], out=a["out"])
