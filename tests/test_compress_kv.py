# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from dsv4spec import ops
from dsv4spec.models.rope import rope_table
from util import BACKENDS, Guarded, check_close, rng

RATIO, COFF = {"c4": 4, "c128": 128}, {"c4": 2, "c128": 1}


def with_kernel(backend):
    """Backends that have the op; a backend without a kernel for it says so when it is called."""
    if backend != "reference" and "compress_kv" not in ops._dispatch.backend_ops(backend):
        pytest.skip(f"{backend} has no compress_kv kernel")
    return ops.use_backend(backend)


class Stream:
    """One request's projections for all positions, its state row and its pages, fed call by call."""

    def __init__(self, kind, length, D=32, R=8, ring=None, page=4, dtype=torch.float32, row=1, S=3, max_pos=2048):
        g = rng(kind, length, D)
        self.ratio, C = RATIO[kind], COFF[kind] * D
        self.kv, self.gate = (torch.randn(length, C, generator=g) for _ in range(2))
        self.ape = torch.randn(self.ratio, C, generator=g)
        self.norm = torch.rand(D, generator=g) + 0.5
        self.cos_sin = rope_table(max_pos, R, 10000.0)
        ring = ring or 4 * self.ratio
        self.state = torch.full((S, ring, 2 * C), float("nan"))
        self.state[row, :, :C], self.state[row, :, C:] = 0, -torch.inf
        self.row, self.page = row, page
        self.guard = Guarded((length // self.ratio // page + 3, page, D), dtype)
        self.pages = self.guard.tensor

    def slot(self, w):
        return w + self.page  # page 0 stays unused

    def call(self, start, stop, kv=None, gate=None, extra=1):
        groups = range(start // self.ratio, stop // self.ratio)
        positions = torch.tensor([w * self.ratio for w in groups] + [0] * extra, dtype=torch.int64)
        locs = torch.tensor([self.slot(w) for w in groups] + [-1] * extra, dtype=torch.int64)
        ops.compress_kv(self.kv[start:stop] if kv is None else kv, self.gate[start:stop] if gate is None else gate,
                        self.ape, self.norm, self.cos_sin, self.state, torch.tensor([self.row]),
                        torch.tensor([0, stop - start], dtype=torch.int32), torch.tensor([stop], dtype=torch.int32),
                        positions, locs, self.pages, ratio=self.ratio, eps=1e-6)

    def entries(self, count):
        return self.pages.flatten(0, 1)[self.page:self.page + count]

    def exact(self, count):
        """Entries by the formula, group by group, in float64."""
        D, r, out = self.pages.shape[2], self.ratio, []
        coff = self.kv.shape[1] // D
        kv, gate = self.kv.double(), self.gate.double()
        score = gate + self.ape.double().repeat(len(gate) // r + 1, 1)[:len(gate)]
        for w in range(count):
            own = slice(r * w, r * w + r)
            k, s = kv[own, -D:], score[own, -D:]
            if coff == 2 and w > 0:
                before = slice(r * w - r, r * w)
                k, s = torch.cat((kv[before, :D], k)), torch.cat((score[before, :D], s))
            e = (k * s.softmax(0)).sum(0)
            e = e * torch.rsqrt(e.square().mean() + 1e-6) * self.norm.double()
            R = self.cos_sin.shape[1]
            cos, sin = self.cos_sin[r * w].double().chunk(2)
            a, b = e[-R::2].clone(), e[D - R + 1::2].clone()
            e[-R::2], e[D - R + 1::2] = a * cos - b * sin, b * cos + a * sin
            out.append(e)
        return torch.stack(out) if out else torch.zeros(0, D, dtype=torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind,cuts", [
    ("c4", [0, 6, 7, 13, 16, 17, 40]), ("c4", [0, 40]), ("c4", [0, 3, 4, 8, 9]),
    ("c128", [0, 127, 128, 129, 260, 300]), ("c128", [0, 600]), ("c128", [0, 100, 200, 256, 257]),
])
def test_chunks_make_the_same_entries(backend, dtype, kind, cuts):
    stream = Stream(kind, cuts[-1], dtype=dtype)
    with with_kernel(backend):
        for a, b in zip(cuts, cuts[1:]):
            stream.call(a, b)
    n = cuts[-1] // stream.ratio
    check_close(stream.entries(n), stream.exact(n), op="compress_kv", floor=1e-5 if dtype == torch.float32 else 0.03)
    rest = stream.pages.flatten(0, 1)
    assert rest[:stream.page].isnan().all() and rest[stream.page + n:].isnan().all()
    assert stream.state[[0, 2]].isnan().all()
    stream.guard.check()


@pytest.mark.parametrize("kind,length", [("c4", 43), ("c128", 515)])
@pytest.mark.parametrize("D", [32, 72])
def test_cuts_change_no_bit(kind, length, D):
    """An entry is the same whether its rows come from the call, from the state or from both."""
    found = []
    for step in (1, 3, 40, length):
        stream = Stream(kind, length, D=D)
        with with_kernel("cpu"):
            for a in range(0, length, step):
                stream.call(a, min(a + step, length))
        found.append(stream.entries(length // stream.ratio).clone())
    assert all(f.equal(found[0]) for f in found)


WORKED = [23.276039, 34.706185, 54.912422, 77.381755]


def worked(length=16, ring=8):
    """One channel, no norm, no RoPE: the weighted sums are read back through the norm's weight and a second channel
    of known size, so that the op's own arithmetic is tested."""
    p = torch.arange(length, dtype=torch.float32)
    stream = Stream("c4", length, D=32, R=2, ring=ring, page=4)
    # channel 0 carries the value, channel 1 a constant 1 and the rest 0, so the RMS cancels in their quotient
    stream.kv, stream.gate = torch.zeros(length, 64), torch.zeros(length, 64)
    stream.ape = torch.zeros(4, 64)
    stream.kv[:, 0], stream.kv[:, 32] = p + 1, 10 * (p + 1)
    stream.kv[:, 1] = stream.kv[:, 33] = 1
    stream.gate[:, 0], stream.gate[:, 32] = 0.1 * (p % 5), 0.2 * ((p + 1) % 3)
    stream.ape[:, 0], stream.ape[:, 32] = torch.tensor([0, .1, .2, .3]), torch.tensor([.3, .2, .1, 0])
    stream.norm = torch.ones(32)
    return stream


def values(stream, count):
    e = stream.entries(count)
    return (e[:, 0] / e[:, 1]).tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_worked_numbers_of_the_state_carry(backend):
    for cuts in ([0, 16], [0, 6, 7, 13, 16]):
        stream = worked()
        with with_kernel(backend):
            for a, b in zip(cuts, cuts[1:]):
                stream.call(a, b)
        assert values(stream, 4) == pytest.approx(WORKED, rel=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ring,value", [(8, 50.448830), (16, 34.706185)])
def test_worked_numbers_of_a_rejection(backend, ring, value):
    """Six rows committed, verify rows 6..9 of which 7..9 are wrong, accept 1, verify again from 7: a ring of 8 has lost
    rows 0 and 1, a ring of 16 has them."""
    stream = worked(ring=ring)
    with with_kernel(backend):
        stream.call(0, 6)
        kv, gate = stream.kv[6:10].clone(), stream.gate[6:10].clone()
        kv[1:, 0] += 50
        kv[1:, 32] += 500
        gate[1:, 0] += 1
        gate[1:, 32] += 1
        stream.call(6, 10, kv=kv, gate=gate)
        assert values(stream, 2)[1] == pytest.approx(185.931601, rel=1e-5)
        stream.call(7, 11)
    assert values(stream, 2) == pytest.approx([WORKED[0], value], rel=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a1_verify_wider_than_the_group(backend):
    """A1: commit 0..10, verify positions 11..15, keep one, decode 12..15 one by one: entry 3 equals the serial run."""
    serial, spec = Stream("c4", 16, ring=16), Stream("c4", 16, ring=16)
    with with_kernel(backend):
        for p in range(16):
            serial.call(p, p + 1)
        for p in range(11):
            spec.call(p, p + 1)
        wrong = spec.kv[11:16].clone()
        wrong[1:] += 7
        spec.call(11, 16, kv=wrong)
        for p in range(12, 16):
            spec.call(p, p + 1)
    assert torch.equal(serial.entries(4), spec.entries(4))
    assert torch.equal(serial.state[1], spec.state[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_batch_equals_single_and_padding_is_not_data(backend):
    """Three requests of different lengths in one call, with a padding request (lengths 0, rows NaN) between them."""
    cases = [(5, 13), (0, 9), (11, 12)]  # committed length, length after the call
    singles = []
    with with_kernel(backend):
        for i, (s, e) in enumerate(cases):
            one = Stream("c4", 16 + i, row=i, S=3)
            if s:
                one.call(0, s)
            singles.append(one)
        state = torch.stack([one.state[i] for i, one in enumerate(singles)])
        base = singles[0]
        pages = Guarded((20, 4, 32), torch.float32)
        kv, gate, qsl, lens, rows, positions, locs = [], [], [0], [], [], [], []
        for i, ((s, e), one) in enumerate(zip(cases, singles)):
            kv.append(one.kv[s:e]), gate.append(one.gate[s:e])
            qsl.append(qsl[-1] + e - s), lens.append(e), rows.append(i)
            positions += [w * 4 for w in range(s // 4, e // 4)]
            locs += [16 * i + w for w in range(s // 4, e // 4)]
            if i == 0:
                kv.append(torch.full((4, 64), torch.nan)), gate.append(torch.full((4, 64), torch.nan))
                qsl.append(qsl[-1] + 4), lens.append(0), rows.append(-1)
        before = state.clone()
        ops.compress_kv(torch.cat(kv), torch.cat(gate), base.ape, base.norm, base.cos_sin, state, torch.tensor(rows),
                        torch.tensor(qsl, dtype=torch.int32), torch.tensor(lens, dtype=torch.int32),
                        torch.tensor(positions + [0, 0]), torch.tensor(locs + [-1, -1]), pages.tensor,
                        ratio=4, eps=1e-6)
        flat, used = pages.tensor.flatten(0, 1), set(locs)
        for i, ((s, e), one) in enumerate(zip(cases, singles)):
            one.ape, one.norm = base.ape, base.norm
            fresh = Stream("c4", 16 + i, row=i, S=3)
            fresh.state[i] = before[i]
            fresh.ape, fresh.norm = base.ape, base.norm
            fresh.call(s, e)
            for w in range(s // 4, e // 4):
                assert torch.equal(flat[16 * i + w], fresh.entries(w + 1)[w])
            assert torch.equal(state[i], fresh.state[i])
    assert flat[[i for i in range(80) if i not in used]].isnan().all()
    pages.check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(backend):
    stream = Stream("c4", 8)
    with with_kernel(backend):
        stream.call(0, 0)
        stream.call(3, 3, extra=0)
        only_padding = torch.zeros(1, dtype=torch.int32)
        ops.compress_kv(stream.kv[:2], stream.gate[:2], stream.ape, stream.norm, stream.cos_sin, stream.state,
                        torch.tensor([1]), torch.tensor([0, 2], dtype=torch.int32), only_padding, torch.tensor([0]),
                        torch.tensor([0]), stream.pages, ratio=4, eps=1e-6)
    assert stream.pages.isnan().all()
    assert (stream.state[1, :, :64] == 0).all() and (stream.state[1, :, 64:] == -torch.inf).all()


def arguments():
    i32 = torch.int32
    return dict(kv=torch.zeros(3, 64), gate=torch.zeros(3, 64), ape=torch.zeros(4, 64), norm_weight=torch.zeros(32),
                cos_sin=torch.zeros(9, 8), state=torch.zeros(2, 16, 128), rows=torch.zeros(1, dtype=torch.int64),
                query_start_loc=torch.tensor([0, 3], dtype=i32), seq_lens=torch.tensor([3], dtype=i32),
                positions=torch.zeros(1, dtype=torch.int64), locs=torch.zeros(1, dtype=torch.int64),
                pages=torch.zeros(2, 4, 32), ratio=4, eps=1e-6)


@pytest.mark.parametrize("change,message", [
    (dict(kv=torch.zeros(3, 96), gate=torch.zeros(3, 96), ape=torch.zeros(4, 96)),
     r"kv: expected D or 2\*D columns for D=32, got 96"),
    (dict(gate=torch.zeros(2, 64)), r"gate: expected shape \[T=3, coff\*D=64\], got \[2, 64\]"),
    (dict(kv=torch.zeros(3, 64).bfloat16()), "kv: expected dtype float32, got bfloat16"),
    (dict(ape=torch.zeros(8, 64)), r"ape: expected shape \[ratio=4"),
    (dict(norm_weight=torch.zeros(2, 32)), "norm_weight: expected shape"),
    (dict(cos_sin=torch.zeros(9, 34)), "cos_sin: expected an even number of columns, at most D=32, got 34"),
    (dict(cos_sin=torch.zeros(9, 7)), "cos_sin: expected an even number of columns, at most D=32, got 7"),
    (dict(state=torch.zeros(2, 7, 128)), r"state: expected a ring of at least coff\*ratio=8 rows, got 7"),
    (dict(rows=torch.zeros(2, dtype=torch.int64)), "query_start_loc: expected shape"),
    (dict(seq_lens=torch.zeros(2, dtype=torch.int32)), "seq_lens: expected shape"),
    (dict(locs=torch.zeros(2, dtype=torch.int64)), "locs: expected shape"),
    (dict(positions=torch.zeros(1, dtype=torch.int32)), "positions: expected dtype int64, got int32"),
    (dict(pages=torch.zeros(2, 4, 16)), "pages: expected shape"),
    (dict(ratio=1), "ratio: expected at least 2, got 1"),
    (dict(eps=0.0), "eps: expected a finite number > 0, got 0"),
])
def test_refuses(change, message):
    args = {**arguments(), **change}
    scalars = {k: args.pop(k) for k in ("ratio", "eps")}
    with pytest.raises(ValueError, match="compress_kv: " + message), ops.use_backend("reference"):
        ops.compress_kv(*args.values(), **scalars)


@pytest.mark.parametrize("change,message", [
    (dict(rows=torch.tensor([2])), r"rows: expected a row of state \[0, 2\) for request 0, got 2"),
    (dict(locs=torch.tensor([8])), r"locs: expected -1 or a slot in \[0, 8\) at entry 0, got 8"),
    (dict(locs=torch.tensor([-2])), r"locs: expected -1 or a slot in \[0, 8\) at entry 0, got -2"),
    (dict(positions=torch.tensor([9])), r"positions: expected a row of cos_sin \[0, 9\) at entry 0, got 9"),
    (dict(query_start_loc=torch.tensor([0, 4], dtype=torch.int32)),
     "query_start_loc: expected values rising to at most T=3"),
])
def test_cpu_refuses_integers_that_lead_nowhere(change, message):
    args = {**arguments(), **change}
    before = args["state"].clone(), args["pages"].clone()
    scalars = {k: args.pop(k) for k in ("ratio", "eps")}
    with pytest.raises(ValueError, match="compress_kv: " + message), ops.use_backend("cpu"):
        ops.compress_kv(*args.values(), **scalars)
    assert torch.equal(args["state"], before[0]) and torch.equal(args["pages"], before[1])
