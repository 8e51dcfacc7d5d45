# SPDX-License-Identifier: Apache-2.0
"""The whole tiny model: configuration, Target, MTP chain."""
import torch
import torch.nn.functional as F
from torch import nn

from model import HyperHead, Layer, matrix, mhc_post, rms_norm, rope_table


def config(vocab_size=1024):
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "vocab_size": vocab_size,
        "hidden_size": 128,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "qk_rope_head_dim": 16,
        "q_lora_rank": 64,
        "o_groups": 2,
        "o_lora_rank": 64,
        "sliding_window": 64,
        "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 0],
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                         "original_max_position_embeddings": 256},
        "index_n_heads": 4,
        "index_head_dim": 32,
        "index_topk": 128,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": True,
        "topk_method": "noaux_tc",
        "swiglu_limit": 10.0,
        "hidden_act": "silu",
        "num_hash_layers": 3,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-6,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
    }


def hash_table(cfg, layer):
    """A fixed balanced token -> experts table: pairs of different experts in a shuffled round."""
    n, k = cfg["n_routed_experts"], cfg["num_experts_per_tok"]
    gen = torch.Generator().manual_seed(1000 + layer)
    rounds = range(-(-cfg["vocab_size"] * k // n))
    rows = [torch.randperm(n, generator=gen).view(-1, k) for _ in rounds]
    return torch.cat(rows)[:cfg["vocab_size"]].contiguous()


class Tiny(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        d, self.hc = cfg["hidden_size"], cfg["hc_mult"]
        n, hashed = cfg["num_hidden_layers"], cfg["num_hash_layers"]
        tables = [hash_table(cfg, i) if i < hashed else None for i in range(n)]
        self.embed = nn.Parameter(torch.randn(cfg["vocab_size"], d) * 0.5)
        self.head = matrix(cfg["vocab_size"], d, gain=0.1)
        self.layers = nn.ModuleList(
            Layer(cfg, cfg["compress_ratios"][i], i, tables[i]) for i in range(n))
        self.hc_head = HyperHead(cfg)
        self.mtp = MTP(cfg)

    def tables(self, s, compressed, offset=0):
        return rope_table(self.cfg, compressed, torch.arange(s) + offset)

    def target(self, ids):
        """ids [B, S] -> hidden streams before hc_head [B * S, hc, d]."""
        plain, yarn = self.tables(ids.shape[1], False), self.tables(ids.shape[1], True)
        res = F.embedding(ids.flatten(), self.embed)[:, None].expand(-1, self.hc, -1).contiguous()
        for layer in self.layers:
            res, _ = layer(res, ids, *(yarn if layer.attn.ratio else plain))
        return res

    def logits(self, res, head=None):
        return F.linear((head or self.hc_head)(res), self.head).float()

    def draft(self, hidden, steps_ids):
        """hidden [B * S, hc, d] of the Target; steps_ids[j] [B, S] = the token that step j of
        chain i reads, t_(i+1+j). Yields all streams; row i of step j predicts t_(i+2+j)."""
        keys, extra = None, []
        for j, ids in enumerate(steps_ids):
            x = self.mtp.fuse(F.embedding(ids.flatten(), self.embed), hidden)
            tables = self.tables(ids.shape[1], False, offset=j)
            hidden, kv = self.mtp.layer(x, ids, *tables, offset=j, keys=keys, extra=tuple(extra))
            if j == 0:
                keys = kv
            else:
                extra.append(kv)
            yield hidden


class MTP(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        d, n = cfg["hidden_size"], cfg["num_hidden_layers"]
        self.enorm, self.hnorm = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.e_proj, self.h_proj = matrix(d, d), matrix(d, d)
        self.layer = Layer(cfg, cfg["compress_ratios"][n], n)
        self.hc_head = HyperHead(cfg)

    def fuse(self, embedding, hidden):
        e = F.linear(rms_norm(embedding, self.enorm), self.e_proj).float()
        return e[:, None] + F.linear(rms_norm(hidden, self.hnorm), self.h_proj).float()


def compile_parts(model):
    """torch.compile of the hot pieces; instances of one kind share their code."""
    torch._dynamo.config.recompile_limit = 64
    post = torch.compile(mhc_post, dynamic=False)
    for layer in [*model.layers, model.mtp.layer]:
        layer.post = post
        layer.attn.compile(dynamic=False)
        layer.ffn.compile(dynamic=False)
        for site in (layer.hc_attn, layer.hc_ffn):
            site.mix = torch.compile(site.mix, dynamic=False)
    model.mtp.fuse = torch.compile(model.mtp.fuse, dynamic=False)
    model.hc_head.compile(dynamic=False)
    model.mtp.hc_head.compile(dynamic=False)
