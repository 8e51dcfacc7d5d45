# SPDX-License-Identifier: Apache-2.0
"""The layers of DeepSeek-V4 as plain differentiable torch, arranged for training on a CPU.

Everything works on whole sequences [B, S]; S is a multiple of the sliding window. The window
attention is computed in blocks of one window (a block sees itself and the one before). All experts
are computed densely (they are tiny), the unchosen ones times zero: three matrix products per layer.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

from sinkhorn import EPS, sinkhorn


def rms_norm(x, weight=None):
    x = x.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    return x if weight is None else x * weight


def rope_table(cfg, compressed, positions):
    """cos and sin [len(positions), R / 2]; YaRN without magnitude factor for compressed layers."""
    dim = cfg["qk_rope_head_dim"]
    theta = cfg["compress_rope_theta"] if compressed else cfg["rope_theta"]
    freq = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if compressed:
        rs = cfg["rope_scaling"]
        length = rs["original_max_position_embeddings"]

        def corr(beta):
            return dim * math.log(length / (2 * math.pi * beta)) / (2 * math.log(theta))

        low = max(math.floor(corr(rs["beta_fast"])), 0)
        high = min(math.ceil(corr(rs["beta_slow"])), dim - 1)
        g = 1 - ((torch.arange(dim // 2) - low) / max(high - low, 1e-3)).clamp(0, 1)
        freq = freq / rs["factor"] * (1 - g) + freq * g
    angle = positions.double()[:, None] * freq[None]
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin):
    """Interleaved RoPE on the trailing dims. x [..., D], cos and sin broadcast to [..., R / 2]."""
    r = 2 * cos.shape[-1]
    head, pairs = x[..., :-r], x[..., -r:].unflatten(-1, (-1, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([head, turned], -1)


class HyperConnection(nn.Module):
    """One mHC site: coefficients and input of a sub-layer from the streams, and the closing mix."""

    def __init__(self, cfg, index):
        super().__init__()
        hc, d = cfg["hc_mult"], cfg["hidden_size"]
        self.hc, self.iters = hc, cfg["hc_sinkhorn_iters"]
        base = torch.zeros((2 + hc) * hc)
        base[:hc] = -2.0
        base[index % hc] = 2.0  # at the start every site reads mainly one stream, in turn
        base[hc:2 * hc] = torch.randn(hc) * 0.3
        base[2 * hc:] = (4.0 * torch.eye(hc)).flatten()
        self.fn = nn.Parameter(torch.randn((2 + hc) * hc, hc * d) * 0.02)
        self.base = nn.Parameter(base)
        self.scale = nn.Parameter(torch.full((3,), 0.1))

    def forward(self, res, norm_weight):
        """res [T, hc, d] -> normed sub-layer input [T, d], post [hc, T], comb [hc, hc, T]."""
        y, post, comb = self.mix(res, norm_weight)
        return y, post, sinkhorn(comb, self.iters)

    def mix(self, res, norm_weight):
        hc = self.hc
        flat = res.flatten(1)
        inv = torch.rsqrt(flat.square().mean(-1) + EPS)
        m = F.linear(flat, self.fn).float().t() * inv
        pre, post, comb = m.split([hc, hc, hc * hc])
        b = self.base[:, None].split([hc, hc, hc * hc])
        pre = torch.sigmoid(pre * self.scale[0] + b[0]) + EPS
        post = 2 * torch.sigmoid(post * self.scale[1] + b[1])
        comb = (comb * self.scale[2] + b[2]).unflatten(0, (hc, hc))
        y = (pre.t()[:, :, None] * res).sum(1)
        return rms_norm(y, norm_weight), post, comb


def mhc_post(y, res, post, comb):
    mixed = (comb.permute(2, 0, 1)[..., None] * res[:, :, None, :]).sum(1)
    return post.t()[:, :, None] * y.float()[:, None, :] + mixed


class HyperHead(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        hc, d = cfg["hc_mult"], cfg["hidden_size"]
        self.fn = nn.Parameter(torch.randn(hc, hc * d) * 0.02)
        self.base = nn.Parameter(torch.zeros(hc))
        self.scale = nn.Parameter(torch.full((1,), 0.1))
        self.norm = nn.Parameter(torch.ones(d))

    def forward(self, res):
        flat = res.flatten(1)
        inv = torch.rsqrt(flat.square().mean(-1, keepdim=True) + EPS)
        w = torch.sigmoid(F.linear(flat, self.fn).float() * inv * self.scale + self.base) + EPS
        return rms_norm((w[..., None] * res).sum(1), self.norm)


def matrix(*shape, gain=0.7):
    return nn.Parameter(torch.randn(*shape) * gain / shape[-1] ** 0.5)


class Compressor(nn.Module):
    """C4 (two overlapping series) or C128 entries: projections of [B, S, d] -> [B, S // r, D]."""

    def __init__(self, cfg, ratio, dim):
        super().__init__()
        self.ratio, self.dim, self.series = ratio, dim, 2 if ratio == 4 else 1
        d = cfg["hidden_size"]
        self.wkv, self.wgate = matrix(self.series * dim, d), matrix(self.series * dim, d, gain=0.2)
        self.ape = nn.Parameter(torch.zeros(ratio, self.series * dim))
        self.norm = nn.Parameter(torch.ones(dim))

    def forward(self, kv, gate, cos, sin):
        kv = kv.float().unflatten(1, (-1, self.ratio))
        gate = gate.float().unflatten(1, (-1, self.ratio)) + self.ape
        if self.series == 2:  # previous group's Ca, then this group's Cb
            pad, n = (0, 0, 0, 0, 1, 0), self.dim
            kv = torch.cat([F.pad(kv[:, :-1, :, :n], pad), kv[..., n:]], 2)
            gate = torch.cat([F.pad(gate[:, :-1, :, :n], pad, value=-1e30), gate[..., n:]], 2)
        entry = rms_norm((kv * gate.softmax(2)).sum(2), self.norm)
        return rotate(entry, cos[::self.ratio], sin[::self.ratio])


class Indexer(nn.Module):
    """Lightning indexer; matters only where more entries are visible than index_topk."""

    def __init__(self, cfg):
        super().__init__()
        self.heads, self.dim = cfg["index_n_heads"], cfg["index_head_dim"]
        self.wq_b = matrix(self.heads * self.dim, cfg["q_lora_rank"])
        self.weights_proj = matrix(self.heads, cfg["hidden_size"])
        self.compressor = Compressor(cfg, 4, self.dim)

    def forward(self, x, qr, cos, sin):
        """[B, S, d] -> scores [B, S, entries] (not yet masked)."""
        c = self.compressor
        keys = c(F.linear(x, c.wkv), F.linear(x, c.wgate), cos, sin)
        q = F.linear(qr, self.wq_b).float().unflatten(-1, (self.heads, self.dim))
        q = rotate(q, cos[:, None], sin[:, None])
        dots = torch.einsum("bshd,bed->bshe", q, keys).float().relu()
        w = F.linear(x, self.weights_proj).float() * (self.dim * self.heads) ** -0.5
        return (dots * w[..., None]).sum(2)


class Attention(nn.Module):
    def __init__(self, cfg, ratio):
        super().__init__()
        d, self.h, self.d = cfg["hidden_size"], cfg["num_attention_heads"], cfg["head_dim"]
        self.ratio, self.window, self.topk = ratio, cfg["sliding_window"], cfg["index_topk"]
        lora, self.groups, out = cfg["q_lora_rank"], cfg["o_groups"], cfg["o_lora_rank"]
        self.wq_a, self.wkv = matrix(lora, d), matrix(self.d, d)
        self.wq_b = matrix(self.h * self.d, lora)
        self.q_norm, self.kv_norm = nn.Parameter(torch.ones(lora)), nn.Parameter(torch.ones(self.d))
        self.wo_a = matrix(self.groups, out, self.h * self.d // self.groups)
        self.wo_b = matrix(d, self.groups * out, gain=0.2)
        self.attn_sink = nn.Parameter(torch.zeros(self.h))
        self.compressor = Compressor(cfg, ratio, self.d) if ratio else None
        self.indexer = Indexer(cfg) if ratio == 4 else None
        self.lesson = None  # a list: collects what the indexer should learn

    def window_mask(self, blocks, offset, device):
        """[blocks, W, 2W]: row w at position w + offset sees keys up to w, less than W back."""
        w = self.window
        row, col = torch.arange(w, device=device)[:, None], torch.arange(2 * w, device=device)[None]
        mask = (col - w <= row) & (col > row + offset)
        first = torch.arange(blocks, device=device)[:, None, None] == 0
        return mask[None] & ~(first & (col < w)[None])

    def visible(self, x, qr, entries, cos, sin):
        """Compressed entries each query sees: complete ones, in C4 at most index_topk of them."""
        complete = (torch.arange(1, x.shape[1] + 1, device=x.device) // self.ratio)[:, None]
        mask = (torch.arange(entries, device=x.device)[None] < complete)[:, None]
        if self.indexer is None or entries <= self.topk:
            return mask
        score = self.indexer(x, qr, cos, sin).masked_fill(~mask[:, 0], -math.inf)
        best = score.topk(self.topk).indices
        kept = torch.zeros_like(score, dtype=torch.bool).scatter(-1, best, True)
        return mask & kept[:, :, None]

    def forward(self, x, cos, sin, offset=0, keys=None, extra=()):
        """x [B, S, d]. For MTP step `offset` + 1, `keys` are step-1 keys [B, S, D], `extra` those
        of later steps, one per row; the row's own key follows them. Returns (output, own keys)."""
        b, s, _ = x.shape
        h = self.h
        c, w, blocks = self.compressor, self.window, s // self.window
        weights = [self.wq_a, self.wkv] + ([c.wkv, c.wgate] if c is not None else [])
        z = F.linear(x, torch.cat(weights)).split([p.shape[0] for p in weights], -1)
        qr = rms_norm(z[0], self.q_norm)
        q = rms_norm(F.linear(qr, self.wq_b).unflatten(-1, (self.h, self.d)))
        q = rotate(q, cos[:, None], sin[:, None]) * self.d ** -0.5
        kv = rotate(rms_norm(z[1], self.kv_norm), cos, sin)
        window_keys = (kv if keys is None else keys).unflatten(1, (blocks, w))
        before = F.pad(window_keys[:, :-1], (0, 0, 0, 0, 1, 0))
        both = torch.cat([before, window_keys], 2).flatten(0, 1)
        logits = q.reshape(b * blocks, w * self.h, self.d) @ both.transpose(1, 2)
        mask = self.window_mask(blocks, offset, x.device)[:, :, None]
        # |q| = 1 and keys are normed, so exp needs no maximum; the sink enters only the denominator
        p = torch.where(mask, logits.float().view(b, blocks, w, h, 2 * w), -1e30).exp()
        total = p.sum(-1).view(b, s, h) + self.attn_sink.exp()
        o = p.to(logits.dtype).view(b * blocks, w * h, 2 * w) @ both
        o = o.float().view(b, s, h, self.d)
        if c is not None:
            entries = c(z[2], z[3], cos, sin)
            visible = self.visible(x, qr, entries.shape[1], cos, sin)
            dots = q.reshape(b, s * h, self.d) @ entries.transpose(1, 2)
            dots = dots.view(b, s, h, -1)
            p = torch.where(visible, dots.float(), -1e30).exp()
            total = total + p.sum(-1)
            if self.lesson is not None:
                self.lesson.append((x, qr, p.sum(2)))
            part = p.to(dots.dtype).view(b, s * h, -1) @ entries
            o = o + part.float().view(b, s, h, self.d)
        for k in (*extra, kv) if keys is not None else ():
            p = (q * k[:, :, None]).sum(-1, keepdim=True).exp()
            total = total + p[..., 0]
            o = o + p * k[:, :, None]
        o = o / total[..., None]
        o = rotate(o, cos[:, None], -sin[:, None]).reshape(b * s, self.groups, -1)
        o = torch.bmm(o.transpose(0, 1), self.wo_a.transpose(1, 2)).transpose(0, 1)
        return F.linear(o.reshape(b, s, -1), self.wo_b), kv


class MoE(nn.Module):
    def __init__(self, cfg, tid2eid=None):
        super().__init__()
        d, inter = cfg["hidden_size"], cfg["moe_intermediate_size"]
        self.n, self.k = cfg["n_routed_experts"], cfg["num_experts_per_tok"]
        self.scaling, self.limit = cfg["routed_scaling_factor"], cfg["swiglu_limit"]
        self.gate = matrix(self.n, d)
        n = self.n + 1  # the last one is the shared expert
        self.w1, self.w3 = matrix(n, inter, d), matrix(n, inter, d)
        self.w2 = matrix(n, d, inter, gain=0.2)
        self.register_buffer("bias", torch.zeros(self.n))
        self.register_buffer("load", torch.zeros(self.n))
        self.register_buffer("tid2eid", tid2eid)

    def forward(self, x, ids):
        """x [T, d] -> ([T, d], tokens per expert)."""
        score = F.softplus(F.linear(x, self.gate).float()).sqrt()
        with torch.no_grad():
            if self.tid2eid is None:
                chosen = (score + self.bias).topk(self.k).indices
            else:
                chosen = self.tid2eid[ids]
            mask = torch.zeros_like(score).scatter(1, chosen, 1.0)
        score = score * mask
        weight = score / (score.sum(-1, keepdim=True) + 1e-20) * self.scaling
        weight = torch.cat([weight, torch.ones_like(weight[:, :1])], 1)
        gate = F.linear(x, self.w1.flatten(0, 1)).float().clamp(max=self.limit)
        up = F.linear(x, self.w3.flatten(0, 1)).float().clamp(-self.limit, self.limit)
        act = (F.silu(gate) * up).unflatten(1, (self.n + 1, -1)) * weight[..., None]
        return act.flatten(1) @ self.w2.transpose(1, 2).flatten(0, 1), mask.sum(0)


class Layer(nn.Module):
    def __init__(self, cfg, ratio, index, tid2eid=None):
        super().__init__()
        d = cfg["hidden_size"]
        self.attn_norm, self.ffn_norm = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.hc_attn = HyperConnection(cfg, 2 * index)
        self.hc_ffn = HyperConnection(cfg, 2 * index + 1)
        self.attn, self.ffn = Attention(cfg, ratio), MoE(cfg, tid2eid)
        self.post = mhc_post

    def forward(self, res, ids, cos, sin, **kwargs):
        b, s = ids.shape
        x, post, comb = self.hc_attn(res, self.attn_norm)
        y, kv = self.attn(x.view(b, s, -1), cos, sin, **kwargs)
        res = self.post(y.flatten(0, 1), res, post, comb)
        x, post, comb = self.hc_ffn(res, self.ffn_norm)
        y, load = self.ffn(x, ids.flatten())
        if self.training:
            self.ffn.load += load
        return self.post(y, res, post, comb), kv
