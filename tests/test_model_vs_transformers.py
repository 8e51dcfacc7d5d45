# SPDX-License-Identifier: Apache-2.0
"""The Target and the NextN layer against transformers' DeepSeek-V4, an independent implementation, in float32.

transformers runs one prompt at a time and in full; ours in chunks, token by token and in batches, over paged caches.
Inputs are drawn so that every choice (experts, indexed entries) has a gap of at least 1e-4: nearer ties may fall
differently in two right implementations.
"""
import functools

import pytest
import torch

import tiny_checkpoints as tiny
from dsv4spec.cache import ForwardMode, KVCache
from dsv4spec.models import load_model
from dsv4spec.ops import use_backend
from util import rng, transformers_or_gate

transformers = transformers_or_gate("transformers.models.deepseek_v4.modeling_deepseek_v4")

GAP, BOUND = 1e-4, 3e-4
BF16_BOUND = 0.06
KINDS = {
    "all": dict(),
    "pro": dict(compress_ratios=[128, 128, 4, 0], num_hash_layers=0, hc_mult=2, num_experts_per_tok=3, index_topk=5,
                sliding_window=24, o_groups=4, head_dim=48, qk_rope_head_dim=8, routed_scaling_factor=2.5),
    "c4": dict(compress_ratios=[4, 4, 0], num_hash_layers=2, index_topk=64, sliding_window=9, rope_scaling=None),
    "window": dict(compress_ratios=[0, 1, 0], num_hash_layers=0, sliding_window=33, hc_mult=1, swiglu_limit=0.5),
}


class Choices:
    """Records, per position, the smallest gap of any choice that transformers makes there."""

    def __init__(self, model):
        self.gaps = None
        for module in model.modules():
            if isinstance(module, transformers.DeepseekV4TopKRouter):
                module.register_forward_hook(self.router)
            elif isinstance(module, transformers.DeepseekV4IndexerScorer):
                module.register_forward_hook(functools.partial(self.index, model.config.index_topk))

    def note(self, scores, k):
        if scores.shape[-1] > k:
            best = scores.topk(k + 1, dim=-1).values
            gap = (best[..., k - 1] - best[..., k]).nan_to_num(torch.inf)
            self.gaps = gap if self.gaps is None else torch.minimum(self.gaps, gap)

    def router(self, module, args, output):
        self.note(module.score_fn(output[0]) + module.e_score_correction_bias, module.top_k)

    def index(self, topk, module, args, output):
        rows, entries = output.shape[1:]
        visible = torch.arange(entries) < (torch.arange(rows)[:, None] + 1) // 4
        self.note(output[0].masked_fill(~visible, -torch.inf), topk)

    def unclear(self, run):
        """The first position of ``run()`` that chooses by less than GAP, or None; and the result."""
        self.gaps = None
        result = run()
        near = [] if self.gaps is None else (self.gaps < GAP).nonzero().flatten()
        return (int(near[0]) if len(near) else None), result


def load_reference(directory):
    model = transformers.DeepseekV4ForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                               attn_implementation="eager")
    return model.eval()


@functools.cache
def pair(kind, tmp):
    raw = tiny.raw_config(**KINDS[kind])
    tensors = tiny.random_tensors(raw, kind)
    ours = tiny.write(tmp / kind, raw, tensors)
    as_theirs = {**raw, "compress_ratios": [0 if r == 1 else r for r in raw["compress_ratios"]]}
    theirs = load_reference(tiny.write(tmp / f"{kind}_theirs", as_theirs,
                                       {n: t for n, t in tensors.items() if not n.startswith("mtp.")}))
    return raw, tensors, load_model(ours), theirs, Choices(theirs)


@functools.cache
def prompt(kind, tmp, length, seed):
    _, _, _, theirs, choices = pair(kind, tmp)
    return draw(theirs, choices, length, seed)


@pytest.fixture(scope="module")
def tmp(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@torch.no_grad()
def draw(theirs, choices, length, seed):
    """A prompt whose choices are clear, and transformers' logits for it: tokens that make an unclear one are redrawn,
    which touches nothing before them."""
    g = rng(seed)
    ids = torch.randint(0, theirs.config.vocab_size, (length,), generator=g)
    for _ in range(300):
        where, logits = choices.unclear(lambda: theirs(input_ids=ids[None], use_cache=False).logits[0])
        if where is None:
            return ids, logits
        ids[where] = torch.randint(0, theirs.config.vocab_size, (), generator=g)
    raise AssertionError("no prompt with clear choices")


def new_cache(config, page_size=16, chunk=512, n=8, draft=True):
    return KVCache(config, page_size=page_size, max_requests=4, max_total_tokens=4 * 512, max_len=512,
                   num_draft_tokens=n, prefill_chunk=chunk, dtype=torch.float32, device="cpu", draft=draft)


def feed(target, cache, row, ids, cuts):
    """Logits of one request, fed in the pieces between ``cuts``."""
    out = []
    for a, b in zip(cuts, cuts[1:]):
        mode = ForwardMode.TARGET_PREFILL if b - a > 1 else ForwardMode.TARGET_DECODE
        batch = cache.batch(mode, [row], ids[a:b], b - a)
        out.append(target.logits(target.forward(batch, cache)))
        cache.commit([row], [b - a])
    return torch.cat(out)


def close(got, want):
    error = (got - want).abs().max().item() / want.std().item()
    assert error <= BOUND, f"largest error {error:.2e} of the standard deviation, bound {BOUND:.0e}"


LENGTH = {"all": 275, "pro": 275, "c4": 90, "window": 90}
WAYS = {
    "full": lambda n: [0, n],
    "chunks": lambda n: [0, *(c for c in (3, 4, 37, 64, 127, 128, 131, 255, 260) if c < n), n],
    "decode": lambda n: [0, *range(5, n + 1)],
    "verify": lambda n: [*range(0, n, 4), n],
}


@pytest.mark.parametrize("backend,way", [*(("cpu", way) for way in WAYS),
                                         ("reference", "chunks"), ("reference", "full")])
@pytest.mark.parametrize("kind", KINDS)
def test_target(kind, backend, way, tmp):
    config, target, _ = pair(kind, tmp)[2]
    ids, want = prompt(kind, tmp, LENGTH[kind], kind)
    cache = new_cache(config)
    with use_backend(backend):
        close(feed(target, cache, cache.open(), ids, WAYS[way](len(ids))), want)


def test_batch_of_unlike_requests(tmp):
    """Three prompts of different lengths decode together; each equals its own transformers run."""
    config, target, _ = pair("all", tmp)[2]
    prompts = [prompt("all", tmp, n, f"batch{n}") for n in (150, 41, 7)]
    cache = new_cache(config, page_size=64)
    rows = [cache.open() for _ in prompts]
    steps = 5
    with use_backend("cpu"):
        starts = [len(ids) - steps for ids, _ in prompts]
        batch = cache.batch(ForwardMode.TARGET_PREFILL, rows,
                            torch.cat([ids[:s] for (ids, _), s in zip(prompts, starts)]),
                            starts)
        hidden = target.forward(batch, cache)
        assert hidden.shape == (sum(starts), config.nextn_hidden_size)
        close(target.logits(hidden), torch.cat([w[:s] for (_, w), s in zip(prompts, starts)]))
        cache.commit(rows, starts)
        for i in range(steps):
            step = [-1, *rows]  # a padding request first
            ids = torch.stack([torch.tensor(-1), *(p[s + i] for (p, _), s in zip(prompts, starts))])
            batch = cache.batch(ForwardMode.TARGET_DECODE, step, ids, 1)
            close(target.logits(target.forward(batch, cache))[1:],
                  torch.stack([w[s + i] for (_, w), s in zip(prompts, starts)]))
            cache.commit(rows, [1] * 3)


@functools.cache
def nextn_reference(kind, tmp):
    """transformers' model of one window layer, filled with the MTP layer's weights under the main stack's names."""
    raw, tensors = pair(kind, tmp)[:2]
    one = {**raw, "num_hidden_layers": 1, "compress_ratios": [0], "num_hash_layers": 0}
    names = {"embed.weight": "embed.weight", "head.weight": "head.weight"}
    for n in tensors:
        leaf = n.removeprefix("mtp.0.")
        if leaf != n and leaf.split(".")[0] not in ("enorm", "hnorm", "e_proj", "h_proj"):
            names[n] = leaf if leaf.startswith(("norm", "hc_head")) else f"layers.0.{leaf}"
    return load_reference(tiny.write(tmp / f"{kind}_nextn", one, {new: tensors[n] for n, new in names.items()}))


@torch.no_grad()
def plain_nextn(kind, tmp, ids, previous):
    """(state before the hc head, logits) of the whole sequence at once."""
    raw, tensors = pair(kind, tmp)[:2]
    model, eps = nextn_reference(kind, tmp), raw["rms_norm_eps"]
    t = {n.removeprefix("mtp.0.").removesuffix(".weight"): x for n, x in tensors.items() if n.startswith("mtp.0.")}

    def norm(x, weight):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    T, hc = len(ids), raw["hc_mult"]
    e = norm(model.model.embed_tokens(ids), t["enorm"]) @ t["e_proj"].T
    x = e[:, None] + norm(previous.view(T, hc, -1), t["hnorm"]) @ t["h_proj"].T
    positions = torch.arange(T)
    seen = positions[:, None] - positions
    mask = torch.where((seen >= 0) & (seen < raw["sliding_window"]), 0.0, -torch.inf)[None, None]
    rope = {"main": model.model.rotary_emb(x, position_ids=positions[None], layer_type="main")}
    x = model.model.layers[0](x[None], input_ids=ids[None], position_embeddings=rope, position_ids=positions[None],
                              attention_mask=mask)
    return x[0].flatten(1), model.lm_head(model.model.norm(model.model.hc_head(x)))[0]


@pytest.mark.parametrize("cuts", [[0, 60], [0, 4, 30, 31, 32, 60], [0, *range(2, 61)]])
@pytest.mark.parametrize("kind", ["all", "pro"])
def test_nextn(kind, cuts, tmp):
    config, target, nextn = pair(kind, tmp)[2]
    assert nextn.embed is target.embed and nextn._logits.head is target.head
    model = nextn_reference(kind, tmp)
    gaps = Choices(model)
    g = rng(kind, "nextn")
    ids, previous = torch.randint(0, config.vocab_size, (60,), generator=g), torch.randn(60, config.nextn_hidden_size,
                                                                                         generator=g)
    while True:
        where, (state, logits) = gaps.unclear(lambda: plain_nextn(kind, tmp, ids, previous))
        if where is None:
            break
        previous[where] = torch.randn(config.nextn_hidden_size, generator=g)
    cache = new_cache(config)
    row, got = cache.open(), []
    with use_backend("cpu"):
        for a, b in zip(cuts, cuts[1:]):
            cache.reserve([row], b - a)
            batch = cache.batch(ForwardMode.NEXTN_EXTEND, [row], ids[a:b], b - a)
            got.append(nextn.forward(batch, cache, previous[a:b]))
            cache.commit([row], [b - a])
        close(torch.cat(got), state)
        close(nextn.logits(torch.cat(got)), logits)


def test_a3_the_state_has_every_stream(tmp):
    """A3: the draft takes [T, hc*d], refuses a collapsed state, and collapses streams only for the logits."""
    config, target, nextn = pair("all", tmp)[2]
    cache = new_cache(config)
    batch = cache.batch(ForwardMode.NEXTN_EXTEND, [cache.open()], torch.tensor([3, 4, 5]), 3)
    with use_backend("cpu"):
        out = nextn.forward(batch, cache, torch.randn(3, 4 * 64))
        assert out.shape == (3, 4 * 64) and nextn.logits(out).shape == (3, config.vocab_size)
    with pytest.raises(ValueError,
                       match=r"hidden: expected shape \[T=3, hc_mult\*hidden_size=256\].*got \[3, 64\]"):
        nextn.forward(batch, cache, torch.randn(3, 64))


def test_empty_forward(tmp):
    config, target, nextn = pair("all", tmp)[2]
    cache = new_cache(config)
    batch = cache.batch(ForwardMode.TARGET_DECODE, [], torch.zeros(0, dtype=torch.int64), 1)
    with use_backend("cpu"):
        hidden = target.forward(batch, cache)
        assert hidden.shape == (0, 256) and target.logits(hidden).shape == (0, config.vocab_size)
        batch = cache.batch(ForwardMode.NEXTN_DECODE, [], torch.zeros(0, dtype=torch.int64), 1)
        assert nextn.forward(batch, cache, hidden).shape == (0, 256)


@pytest.mark.parametrize("start,page_size", [(62, 16), (62, 64), (63, 16)])
def test_a16_a_verify_window_past_max_len(start, page_size, tmp):
    """A16: positions from max_len on are computed but never stored; the rows before them are right, also where max_len
    ends a page."""
    config, target, _ = pair("all", tmp)[2]
    ids, want = prompt("all", tmp, LENGTH["all"], "all")
    cache = KVCache(config, page_size=page_size, max_requests=1, max_total_tokens=64, max_len=64, num_draft_tokens=4,
                    prefill_chunk=64, dtype=torch.float32, device="cpu", draft=False)
    row = cache.open()
    with use_backend("cpu"):
        feed(target, cache, row, ids, [0, start])
        batch = cache.batch(ForwardMode.TARGET_VERIFY, [row], ids[start:start + 4], 4)
        assert batch.slots.tolist()[64 - start:] == [-1] * (start - 60)
        close(target.logits(target.forward(batch, cache))[:64 - start], want[start:64])


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_streams_stay_near(kind, tmp):
    """bf16 streams and weights over the same kernels: rounding only. (The mean, since a rounded router may choose
    another expert here and there.)"""
    ids, want = prompt(kind, tmp, LENGTH[kind], kind)  # writes the checkpoint
    config, target, _ = load_model(tmp / kind, dtype=torch.bfloat16)
    cache = KVCache(config, page_size=16, max_requests=1, max_total_tokens=512, max_len=512, num_draft_tokens=4,
                    prefill_chunk=512, dtype=torch.bfloat16, device="cpu", draft=False)
    with use_backend("cpu"):
        got = feed(target, cache, cache.open(), ids, [0, 61, *range(62, 70), len(ids)])
    error = ((got - want).abs().mean() / want.std()).item()
    assert 1e-4 < error < BF16_BOUND, error
