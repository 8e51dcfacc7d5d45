# SPDX-License-Identifier: Apache-2.0
"""Random checkpoints in the official format, small enough for tests: plain floats, or FP8 with FP4 experts, in one file
or in shards."""
from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from dsv4spec.models.config import DeepseekV4Config
from dsv4spec.models.weights import nextn_tensors, scale_name, target_tensors
from dsv4spec.reference import quant
from util import rng

BASE = dict(
    model_type="deepseek_v4", architectures=["DeepseekV4ForCausalLM"], vocab_size=96,
    hidden_size=64, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=1, head_dim=32, qk_rope_head_dim=16, q_lora_rank=32, o_groups=2,
    o_lora_rank=24, sliding_window=16, compress_ratios=[0, 4, 128, 4, 0], rope_theta=10000, compress_rope_theta=160000,
    rope_scaling=dict(type="yarn", factor=16, beta_fast=32, beta_slow=1, original_max_position_embeddings=64),
    index_n_heads=3, index_head_dim=24, index_topk=8, n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2,
    moe_intermediate_size=32, routed_scaling_factor=1.5, scoring_func="sqrtsoftplus", norm_topk_prob=True,
    topk_method="noaux_tc", swiglu_limit=10.0, hidden_act="silu", num_hash_layers=1, hc_mult=4, hc_sinkhorn_iters=20,
    hc_eps=1e-6, rms_norm_eps=1e-6, num_nextn_predict_layers=1, max_position_embeddings=4096, attention_bias=False,
    tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, torch_dtype="bfloat16")


def raw_config(**changes) -> dict:
    """config.json of a tiny model with every layer kind; ``compress_ratios`` sets the number of layers."""
    raw = {**BASE, **changes}
    if "num_hidden_layers" not in changes:
        raw["num_hidden_layers"] = len(raw["compress_ratios"]) - 1  # the last one is the MTP layer's
    return raw


def random_tensors(raw: dict, seed=0, nextn: bool = True) -> dict[str, torch.Tensor]:
    """float32 tensors by official name, drawn so that every part of the model matters."""
    config, g = DeepseekV4Config.from_dict(raw), rng("checkpoint", seed)
    out = {}
    for name, spec in (target_tensors(config) | (nextn_tensors(config) if nextn else {})).items():
        if spec.kind == "ids":
            out[name] = torch.stack([torch.randperm(config.n_routed_experts, generator=g)[:spec.shape[1]]
                                     for _ in range(spec.shape[0])])
            continue
        x = torch.randn(spec.shape, generator=g)
        leaf = name.rsplit(".", 2)[-2 if name.endswith(".weight") else -1]
        if leaf.endswith("norm"):
            x = 1 + 0.2 * x
        elif leaf == "embed":
            x = x * 0.8
        elif leaf.endswith("_scale"):
            x = 1 + 0.2 * x
        elif len(spec.shape) == 2 and leaf != "ape":
            gain = 2.5 if leaf in ("gate", "weights_proj") else 1.3
            x = x * gain * spec.shape[1] ** -0.5
        else:
            x = x * 0.5
        out[name] = x
    return out


def quantise(raw: dict, tensors: dict, experts: str = "fp4") -> tuple[dict, dict, dict]:
    """(config, tensors, plain): FP8 linears and FP4 (or FP8) experts with E8M0 scales, and the float32 tensors that
    they stand for."""
    specs = target_tensors(config := DeepseekV4Config.from_dict(raw)) | nextn_tensors(config)
    stored, plain = {}, {}
    for name, x in tensors.items():
        keep = any(part in name for part in ("compressor", "weights_proj"))  # BF16 in the releases
        kind = "float" if keep else specs[name].kind
        if kind == "expert" and experts == "fp4":
            stored[name], stored[scale_name(name)] = fp4_quant(x)
            plain[name] = quant.fp4_dequant(stored[name], stored[scale_name(name)])[:, :x.shape[1]]
        elif kind in ("linear", "expert"):
            stored[name], scale = quant.fp8_block_quant(x)
            stored[scale_name(name)] = scale.view(torch.float8_e8m0fnu)
            plain[name] = quant.fp8_block_dequant(stored[name], scale)
        else:
            wide = x.dtype == torch.float32 and ("hc_" in name or name.endswith(("bias", "ape", "attn_sink")))
            stored[name] = x if wide or not x.is_floating_point() else x.bfloat16()
            plain[name] = stored[name].float() if x.is_floating_point() else x
    config = {**raw, "expert_dtype": experts,
              "quantization_config": dict(quant_method="fp8", fmt="e4m3", scale_fmt="ue8m0",
                                          weight_block_size=[128, 128])}
    return config, stored, plain


def fp4_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed FP4 (int8, low nibble first) and E8M0 scales per 32 columns."""
    rows, columns = x.shape
    groups = torch.nn.functional.pad(x, (0, -columns % 32)).view(rows, -1, 32)
    scale = quant.e8m0_round_up(groups.abs().amax(-1).clamp_min(1e-9) / 6)
    values = groups / quant.e8m0_decode(scale)[..., None]
    levels = torch.tensor(quant.FP4_VALUES)
    code = (values.abs()[..., None] - levels).abs().argmin(-1) + 8 * (values < 0)
    code = code.view(rows, -1)[:, :columns + columns % 2].to(torch.uint8)
    return (code[:, ::2] | code[:, 1::2] << 4).view(torch.int8), scale.view(torch.float8_e8m0fnu)


def write(directory, raw: dict, tensors: dict, *, shards: int = 1, dtype=None) -> Path:
    """Write config.json and safetensors; ``dtype`` casts float32 matrices (not the hc weights)."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw))
    if dtype is not None:
        tensors = {n: t.to(dtype) if t.dtype == torch.float32 and "hc_" not in n and t.dim() == 2 else t
                   for n, t in tensors.items()}
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return directory
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: tensors[n] for n in names[i::shards]}
        save_file(part, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory
