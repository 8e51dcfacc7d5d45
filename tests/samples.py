# SPDX-License-Identifier: Apache-2.0
"""One legal call of each op: SAMPLES[name]() gives (args, kwargs), fresh tensors each time. Used by the torch.library checks and by the checks
of every CPU level. Sizes are odd on purpose, so that tails of vectors are run too."""
import torch
from util import rng

SAMPLES = {}


def values(name: str, *shape, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=rng("sample", name, shape)).to(dtype)


def sample(make):
    SAMPLES[make.__name__] = make
    return make


def chances(*shape) -> torch.Tensor:
    return torch.rand(shape, generator=rng("chances", shape))


def _i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def _i64(*values):
    return torch.tensor(values, dtype=torch.int64)


def _cos_sin(positions=64, R=8):
    angle = torch.arange(positions)[:, None] * 0.1 ** torch.arange(R // 2)
    return torch.cat([angle.cos(), angle.sin()], 1)


# mhc
SAMPLES["mhc_post"] = lambda: (
    (values("y", 5, 83), values("residual", 5, 4, 83), values("post", 5, 4), values("comb", 5, 4, 4)), {})

_SITE = dict(rms_eps=1e-6, hc_eps=1e-6)
_D = 136


def _fn(columns: int):
    return values("fn", columns, 4 * _D) / 20, values("base", columns)


SAMPLES["mhc_pre"] = lambda: (
    (values("residual", 5, 4, _D), *_fn(24), values("scale", 3)),
    dict(_SITE, sinkhorn_iters=20, norm_weight=values("norm", _D, dtype=torch.bfloat16)))
SAMPLES["mhc_post_pre"] = lambda: (
    (values("y", 5, _D, dtype=torch.bfloat16), values("residual", 5, 4, _D, dtype=torch.bfloat16), values("post", 5, 4),
     values("comb", 5, 4, 4), *_fn(24), values("scale", 3)), dict(_SITE, sinkhorn_iters=20))
SAMPLES["mhc_head"] = lambda: (
    (values("residual", 5, 4, _D), *_fn(4), values("scale", 1)), dict(_SITE, norm_weight=values("norm", _D)))
SAMPLES["nextn_fuse_hidden"] = lambda: (
    (values("embeds", 3, _D, dtype=torch.bfloat16), values("hidden", 3, 4 * _D, dtype=torch.bfloat16), values("enorm", _D),
     values("hnorm", _D), (values("e_proj", _D, _D) * 40).to(torch.int8), (values("h_proj", _D, _D) * 40).to(torch.int8)),
    dict(eps=1e-6, e_proj_scale=values("e_scale", _D) / 40, h_proj_scale=values("h_scale", _D) / 40))

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


# dense
SAMPLES["linear"] = lambda: (
    (values("lx", 5, 74), values("lw", 74, 22, dtype=torch.bfloat16)), dict(groups=2, norm_weight=values("ln", 74), eps=1e-6))
SAMPLES["route_experts"] = lambda: (
    (values("rx", 5, 43), values("rgate", 43, 9)), dict(topk=3, scaling=1.5, bias=values("rbias", 9)))


# attention
@sample
def q_norm_rope():
    return (values("q", 5, 3, 48), _cos_sin(), _i64(3, 4, 5, 0, 1)), dict(eps=1e-6)


@sample
def swa_store_kv():
    return ((values("kv", 3, 48), values("kv_norm", 48), _cos_sin(), _i64(3, 4, 5), _i64(3, -1, 8),
             values("kv_pages", 3, 4, 48)), dict(eps=1e-6))


@sample
def swa_paged_attention():
    start, lens = _i32(0, 2, 4, 5), _i32(6, 3, 0)  # two requests of two rows, and a padding row
    table = _i32(0, 2, 1, -1, -1, -1).view(3, 2)
    return ((values("q", 5, 3, 48), values("kv_pages", 3, 4, 48), table, start, lens),
            dict(window=4, scale=0.2, sink=values("sink", 3), cos_sin=_cos_sin()))


# verify
@sample
def verify_positions_padding():
    return (torch.arange(12), _i32(126, 7, 0)), dict(num_draft_tokens=4, ratio=4)


@sample
def verify_metadata():
    c4, c128 = _i32(1, 5, 6, -1, -1, -1).view(3, 2), _i32(9, -1, -1).view(3, 1)
    return (torch.arange(12), _i32(126, 7, 0), c4, c128, 4), dict(c4_page=16, c128_page=2)


# tree
def _tree():
    return (_i64(100, 200, 0), _i64(-1, 0, 1).repeat(3, 1), _i64(0, 1, 2, 4).repeat(3, 1),
            _i64(20, 21, 22, 24).repeat(3, 1), _i32(10, 3, 0))


TREE_SCALARS = dict(topk=2, num_steps=2, num_draft_tokens=5)


@sample
def select_draft_topk():
    return (chances(4, 2), torch.arange(8).view(4, 2), chances(2, 2)), dict(step=1)


@sample
def build_tree():
    return _tree(), TREE_SCALARS | dict(status=torch.zeros(3, dtype=torch.int32))


def _links():
    """What build_tree gives for these requests, the third one padding."""
    tokens = torch.cat([_i64(100, 200, 0)[:, None], _i64(20, 21, 22, 24).repeat(3, 1)], 1)
    next_token, sibling = _i64(1, 3, 4, -1, -1).repeat(3, 1), _i64(-1, 2, -1, -1, -1).repeat(3, 1)
    next_token[2] = 0
    return tokens, torch.arange(15).view(3, 5), next_token, sibling


@sample
def verify_tree_greedy():
    return (*_links(), _i64(21, 9, 24, 9, 9).repeat(3, 1)), dict(num_steps=2)


@sample
def verify_tree_sampling():
    probs = chances(3, 5, 30)
    coins = chances(3, 5)
    return (*_links(), probs / probs.sum(-1, keepdim=True), coins, coins[:, 0].clone()), dict(num_steps=2)


# paging
@sample
def alloc_extend():
    return ((_i32(5, 8, 0), _i32(11, 9, 0), _i64(12, 11, -1), _i64(5, 6, 9)),
            dict(extend_num_tokens=7, page_size=4, status=torch.zeros(1, dtype=torch.int32)))


@sample
def assign_draft_slots():
    return (_i32(0, 2, 1, -1, -1, -1).view(3, 2), _i32(3, 2, 0)), dict(topk=1, num_steps=3, page_size=4)


@sample
def move_accepted_kv():
    return (values("?", 3, 4, 16), _i64(1, 5, -1), _i64(5, 6, 0)), {}
