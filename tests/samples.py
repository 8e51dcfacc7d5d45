# SPDX-License-Identifier: Apache-2.0
"""One legal call of each op: SAMPLES[name]() gives (args, kwargs). Used by the torch.library checks and by the checks
of every CPU level. Sizes are odd on purpose, so that tails of vectors are run too."""
import torch
from util import rng

SAMPLES = {}


def values(name: str, *shape, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=rng("sample", name, shape)).to(dtype)


# mhc
SAMPLES["mhc_post"] = lambda: (
    (values("y", 5, 83), values("residual", 5, 4, 83), values("post", 5, 4), values("comb", 5, 4, 4)), {})

# target
_I32 = torch.int32


def _rows(*lengths_and_rows):
    """query_start_loc and seq_lens of (committed length, rows) pairs."""
    rows = torch.tensor([0] + [n for _, n in lengths_and_rows]).cumsum(0).to(_I32)
    return rows, torch.tensor([s + n for s, n in lengths_and_rows], dtype=_I32)


def _compress_kv():
    qsl, lens = _rows((5, 3), (0, 4))
    state = torch.cat((torch.zeros(2, 16, 64), torch.full((2, 16, 64), -torch.inf)), -1)
    return ((values("ckv", 7, 64), values("cgate", 7, 64), values("ape", 4, 64), values("cnorm", 32), values("ctab", 40, 6),
             state, torch.tensor([1, 0]), qsl, lens, torch.tensor([4, 0, 0]), torch.tensor([9, 2, -1]),
             torch.zeros(4, 4, 32)), dict(ratio=4, eps=1e-6))


def _lightning_index():
    qsl, lens = _rows((37, 3), (3, 2))
    return ((values("iq", 5, 3, 24), values("iw", 5, 3), values("ik", 6, 4, 24),
             torch.tensor([[4, 0, 2], [1, -1, -1]], dtype=_I32), qsl, lens),
            dict(ratio=4, topk=5, cos_sin=values("itab", 64, 6)))


def _sparse_paged_attention():
    qsl, lens = _rows((37, 3), (3, 2))
    return ((values("sq", 5, 3, 48), values("skv", 9, 8, 48), torch.tensor([[-1, 3, 0, 7, 2], [1, -1, -1, -1, -1]], dtype=_I32),
             values("sc", 6, 4, 48), torch.tensor([[4, 0, 2], [1, -1, -1]], dtype=_I32), qsl, lens),
            dict(window=12, scale=48 ** -0.5, ratio=4, sink=values("ssink", 3), cos_sin=values("stab", 64, 10),
                 indices=torch.tensor([[0, 2, 7, -1]] * 4 + [[0, -1, -1, -1]], dtype=_I32)))


SAMPLES["compress_kv"] = _compress_kv
SAMPLES["lightning_index"] = _lightning_index
SAMPLES["sparse_paged_attention"] = _sparse_paged_attention
SAMPLES["moe_experts"] = lambda: (
    (values("mx", 5, 40), torch.tensor([[0, 2], [1, 0], [2, 1], [-1, 2], [0, 1]]), values("mw", 5, 2).abs(),
     values("w13", 3, 34, 40), values("w2", 3, 40, 17)),
    dict(limit=10.0, shared_w13=values("sw13", 22, 40), shared_w2=values("sw2", 40, 11)))
