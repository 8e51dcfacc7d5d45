# SPDX-License-Identifier: Apache-2.0
"""The model's sizes, read from the official config.json. Nothing is guessed: a key that changes the result must be in
the file, and values outside what the ops take are refused with the rule."""
from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

from .rope import Yarn


class ConfigError(ValueError):
    """config.json is not a DeepSeek-V4 model that this package runs; the text says why."""


@dataclass(frozen=True)
class DeepseekV4Config:
    """Sizes of a Target and its NextN layer. Attributes carry the names of config.json unless described here."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    compress_ratios: tuple[int, ...]  # of the main layers; 0 = window only (1 means the same and is stored as 0)
    rope_theta: float
    compress_rope_theta: float
    yarn: Yarn | None                 # rope_scaling, for compressed layers only
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    routed_scaling_factor: float
    swiglu_limit: float
    num_hash_layers: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    rms_norm_eps: float
    num_nextn_predict_layers: int
    max_position_embeddings: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]    # eos_token_id as a tuple, whatever its form
    torch_dtype: str                  # "bfloat16", "float32", ...
    expert_dtype: str | None          # "fp4", "fp8" or None
    block: int                        # edge of FP8 scale blocks

    @property
    def softmax_scale(self) -> float:
        return self.head_dim ** -0.5

    @property
    def nextn_hidden_size(self) -> int:
        """Width of the state that goes from the Target to the NextN layer: hc_mult streams of hidden_size."""
        return self.hc_mult * self.hidden_size

    @classmethod
    def from_dir(cls, directory) -> DeepseekV4Config:
        """Read ``directory/config.json``. ConfigError with the path if it is not there, not JSON, or refused."""
        path = Path(directory) / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path}: is not JSON: {error}") from error
        try:
            return cls.from_dict(raw)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def from_dict(cls, raw: dict) -> DeepseekV4Config:
        """Of the parsed config.json. ConfigError: not DeepSeek-V4, keys missing (all listed), values out of range."""
        _refuse_other_models(raw)
        ints = [f.name for f in fields(cls) if f.type == "int" and f.name not in ("num_nextn_predict_layers", "block")]
        floats = [f.name for f in fields(cls) if f.type == "float"]
        missing = [k for k in (*ints, "compress_ratios", *floats) if raw.get(k) is None]
        if missing:
            raise ConfigError(f"keys missing: {', '.join(missing)}")
        values = {k: _number(raw, k, int) for k in ints} | {k: _number(raw, k, float) for k in floats}
        quantization = raw.get("quantization_config") or {}
        block = quantization.get("weight_block_size") or [128, 128]
        if len(block) != 2 or block[0] != block[1] or block[0] < 1:
            raise ConfigError(f"weight_block_size: expected two equal edges, got {block}")
        eos = raw.get("eos_token_id")
        config = cls(
            **values, compress_ratios=_ratios(raw, values["num_hidden_layers"]), yarn=_yarn(raw), block=block[0],
            num_nextn_predict_layers=raw.get("num_nextn_predict_layers") or 0, bos_token_id=raw.get("bos_token_id"),
            eos_token_ids=tuple(eos) if isinstance(eos, (list, tuple)) else () if eos is None else (eos,),
            torch_dtype=raw.get("torch_dtype") or raw.get("dtype") or "bfloat16",
            expert_dtype=raw.get("expert_dtype") or quantization.get("expert_dtype"))
        config._check()
        return config

    def _check(self) -> None:
        def expect(ok: bool, name: str, rule: str) -> None:
            if not ok:
                raise ConfigError(f"{name}: expected {rule}, got {getattr(self, name)}")

        for f in fields(self):
            if f.type == "int" and f.name not in ("num_hash_layers", "n_shared_experts", "num_nextn_predict_layers"):
                expect(getattr(self, f.name) >= 1, f.name, "at least 1")
        d, head, rope = self.hidden_size, self.head_dim, self.qk_rope_head_dim
        expect(d % 8 == 0 and d <= 32768, "hidden_size", "a multiple of 8 up to 32768")
        expect(head % 16 == 0 and 32 <= head <= 512, "head_dim", "a multiple of 16 from 32 to 512")
        expect(rope % 2 == 0 and rope <= head, "qk_rope_head_dim", f"an even number up to head_dim {head}")
        expect(self.hc_mult in (1, 2, 4), "hc_mult", "1, 2 or 4")
        expect(self.num_attention_heads % self.o_groups == 0, "o_groups",
               f"a divisor of num_attention_heads {self.num_attention_heads}")
        if 4 in self.compress_ratios:
            expect(rope <= self.index_head_dim <= 512 and self.index_head_dim % 8 == 0, "index_head_dim",
                   f"a multiple of 8 from qk_rope_head_dim {rope} to 512")
        expect(self.num_experts_per_tok <= self.n_routed_experts, "num_experts_per_tok",
               f"at most n_routed_experts {self.n_routed_experts}")
        for name in ("num_hash_layers", "n_shared_experts", "num_nextn_predict_layers"):
            expect(getattr(self, name) >= 0, name, "at least 0")
        for name in ("hc_eps", "rms_norm_eps", "swiglu_limit"):
            expect(getattr(self, name) > 0, name, "a positive number")
        expect(all(isinstance(t, int) and 0 <= t < self.vocab_size for t in self.eos_token_ids), "eos_token_ids",
               f"token ids below vocab_size {self.vocab_size}")
        for name in ("rope_theta", "compress_rope_theta"):
            expect(getattr(self, name) > 1, name, "a number above 1")


def _refuse_other_models(raw: dict) -> None:
    kind = raw.get("model_type")
    if kind != "deepseek_v4":
        other = " (DeepSeek-V4.1 is another architecture)" if kind == "deepseek_v41" else ""
        raise ConfigError(f"model_type: expected deepseek_v4, got {kind}{other}")
    if dspark := sorted(k for k in raw if k.startswith("dspark")):
        raise ConfigError(f"a DSpark checkpoint ({', '.join(dspark)}): its mtp.* tensors are a DSpark drafter, not the "
                          "NextN layer; use a release with the MTP layer")
    fixed = dict(scoring_func="sqrtsoftplus", topk_method="noaux_tc", norm_topk_prob=True, num_key_value_heads=1,
                 hidden_act="silu", tie_word_embeddings=False, attention_bias=False)
    for key, value in fixed.items():
        if raw.get(key, value) != value:
            raise ConfigError(f"{key}: expected {value}, got {raw[key]}")


def _number(raw: dict, key: str, kind: type):
    value = raw[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != kind(value):
        raise ConfigError(f"{key}: expected {'an integer' if kind is int else 'a number'}, got {value!r}")
    return kind(value)


def _ratios(raw: dict, layers: int) -> tuple[int, ...]:
    """Of the main layers. What follows them belongs to MTP layers, and releases differ in how much does."""
    ratios = raw["compress_ratios"]
    if not isinstance(ratios, (list, tuple)) or len(ratios) < layers:
        got = len(ratios) if isinstance(ratios, (list, tuple)) else repr(ratios)
        raise ConfigError(f"compress_ratios: expected at least num_hidden_layers = {layers} entries, got {got}")
    for i, r in enumerate(ratios[:layers]):
        if r not in (0, 1, 4, 128):
            raise ConfigError(f"compress_ratios[{i}]: expected 0, 1, 4 or 128, got {r}")
    return tuple(0 if r == 1 else r for r in ratios[:layers])


def _yarn(raw: dict) -> Yarn | None:
    scaling = raw.get("rope_scaling")
    if not scaling:
        return None
    kind = scaling.get("type", scaling.get("rope_type"))
    if kind == "default":
        return None
    if kind != "yarn":
        raise ConfigError(f"rope_scaling.type: expected yarn, got {kind}")
    missing = [k for k in ("factor", "original_max_position_embeddings") if scaling.get(k) is None]
    if missing:
        raise ConfigError(f"keys missing: {', '.join('rope_scaling.' + k for k in missing)}")
    try:
        return Yarn(factor=float(scaling["factor"]), original_max_position=scaling["original_max_position_embeddings"],
                    beta_fast=float(scaling.get("beta_fast", 32)), beta_slow=float(scaling.get("beta_slow", 1)))
    except ValueError as error:
        raise ConfigError(f"rope_scaling: {error}") from error
