# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from dsv4spec.models.config import ConfigError, DeepseekV4Config
from dsv4spec.models.rope import Yarn

YARN = dict(type="yarn", factor=16, beta_fast=32, beta_slow=1, original_max_position_embeddings=65536)
FLASH = dict(
    model_type="deepseek_v4", vocab_size=129280, hidden_size=4096, num_hidden_layers=43, num_attention_heads=64,
    num_key_value_heads=1, head_dim=512, qk_rope_head_dim=64, q_lora_rank=1024, o_groups=8, o_lora_rank=1024,
    sliding_window=128, compress_ratios=[0, 0] + [4, 128] * 20 + [4, 0], rope_theta=10000, compress_rope_theta=160000,
    rope_scaling=YARN, index_n_heads=64, index_head_dim=128, index_topk=512, n_routed_experts=256, n_shared_experts=1,
    num_experts_per_tok=6, moe_intermediate_size=2048, routed_scaling_factor=1.5, scoring_func="sqrtsoftplus",
    norm_topk_prob=True, topk_method="noaux_tc", swiglu_limit=10.0, num_hash_layers=3, hc_mult=4, hc_sinkhorn_iters=20,
    hc_eps=1e-6, rms_norm_eps=1e-6, num_nextn_predict_layers=1, max_position_embeddings=1048576, bos_token_id=0,
    eos_token_id=1, torch_dtype="bfloat16", expert_dtype="fp4",
    quantization_config=dict(quant_method="fp8", fmt="e4m3", scale_fmt="ue8m0", weight_block_size=[128, 128]))
PRO = {**FLASH, **dict(
    hidden_size=7168, num_hidden_layers=61, num_attention_heads=128, q_lora_rank=1536, o_groups=16, index_topk=1024,
    compress_ratios=[128, 128] + [4, 128] * 29 + [4, 0], n_routed_experts=384, moe_intermediate_size=3072,
    routed_scaling_factor=2.5)}


def kinds(config):
    return [config.compress_ratios.count(r) for r in (0, 4, 128)]


def test_flash_and_pro(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(FLASH))
    flash = DeepseekV4Config.from_dir(tmp_path)
    assert kinds(flash) == [2, 21, 20] and flash.nextn_hidden_size == 16384
    assert flash.yarn == Yarn(16, 65536, 32, 1) and flash.eos_token_ids == (1,) and flash.expert_dtype == "fp4"
    pro = DeepseekV4Config.from_dict(PRO)
    assert kinds(pro) == [0, 30, 31] and pro.nextn_hidden_size == 28672


@pytest.mark.parametrize("extra", [[], [0], [0, 0, 0], [4]])
def test_what_follows_the_main_ratios_does_not_matter(extra):
    config = DeepseekV4Config.from_dict({**FLASH, "compress_ratios": FLASH["compress_ratios"][:43] + extra})
    assert len(config.compress_ratios) == 43


def test_a6_ratio_1_means_ratio_0():
    config = DeepseekV4Config.from_dict({**FLASH, "compress_ratios": [1, 0] + FLASH["compress_ratios"][2:]})
    assert config.compress_ratios[:2] == (0, 0)


def test_forms_of_eos_and_scaling():
    config = DeepseekV4Config.from_dict({**FLASH, "eos_token_id": [1, 7], "rope_scaling": None})
    assert config.eos_token_ids == (1, 7) and config.yarn is None
    assert DeepseekV4Config.from_dict({**FLASH, "eos_token_id": None}).eos_token_ids == ()


def test_missing_keys_are_listed_together():
    raw = {k: v for k, v in FLASH.items() if k not in ("hc_mult", "swiglu_limit", "compress_ratios")}
    with pytest.raises(ConfigError) as error:
        DeepseekV4Config.from_dict(raw)
    assert str(error.value) == "keys missing: hc_mult, compress_ratios, swiglu_limit"


@pytest.mark.parametrize("change,message", [
    (dict(model_type="deepseek_v41"), "model_type: expected deepseek_v4, got deepseek_v41 .DeepSeek-V4.1 is another"),
    (dict(model_type="llama"), "model_type: expected deepseek_v4, got llama$"),
    (dict(dspark_block_size=5), r"a DSpark checkpoint \(dspark_block_size\)"),
    (dict(scoring_func="sigmoid"), "scoring_func: expected sqrtsoftplus, got sigmoid"),
    (dict(num_key_value_heads=8), "num_key_value_heads: expected 1, got 8"),
    (dict(compress_ratios=[0, 4]), "compress_ratios: expected at least num_hidden_layers = 43 entries, got 2"),
    (dict(compress_ratios=[2] * 43), r"compress_ratios\[0\]: expected 0, 1, 4 or 128, got 2"),
    (dict(hidden_size=4100), "hidden_size: expected a multiple of 8 up to 32768, got 4100"),
    (dict(hidden_size="big"), "hidden_size: expected an integer, got 'big'"),
    (dict(head_dim=528), "head_dim: expected a multiple of 16 from 32 to 512, got 528"),
    (dict(qk_rope_head_dim=63), "qk_rope_head_dim: expected an even number up to head_dim 512, got 63"),
    (dict(index_head_dim=32), "index_head_dim: expected a multiple of 8 from qk_rope_head_dim 64 to 512, got 32"),
    (dict(hc_mult=3), "hc_mult: expected 1, 2 or 4, got 3"),
    (dict(o_groups=7), "o_groups: expected a divisor of num_attention_heads 64, got 7"),
    (dict(num_experts_per_tok=300), "num_experts_per_tok: expected at most n_routed_experts 256, got 300"),
    (dict(sliding_window=0), "sliding_window: expected at least 1, got 0"),
    (dict(hc_eps=0.0), "hc_eps: expected a positive number, got 0.0"),
    (dict(rope_scaling=dict(type="linear")), "rope_scaling.type: expected yarn, got linear"),
    (dict(rope_scaling=dict(type="yarn")), "keys missing: rope_scaling.factor, rope_scaling.original_max"),
    (dict(rope_scaling={**YARN, "factor": 0.5}), "rope_scaling: Yarn: factor: expected a number >= 1, got 0.5"),
])
def test_refuses(change, message):
    with pytest.raises(ConfigError, match="^" + message):
        DeepseekV4Config.from_dict({**FLASH, **change})


def test_names_the_file(tmp_path):
    with pytest.raises(ConfigError, match="config.json: cannot be read: No such file"):
        DeepseekV4Config.from_dir(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="config.json: is not JSON"):
        DeepseekV4Config.from_dir(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="config.json: model_type: expected deepseek_v4, got None"):
        DeepseekV4Config.from_dir(tmp_path)


@pytest.mark.parametrize("eos", ["</s>", [1, "2"], -1, [129280], 1.0])
def test_eos_ids_that_no_token_can_equal_are_refused(eos):
    with pytest.raises(ConfigError, match="eos_token_ids: expected token ids below vocab_size 129280"):
        DeepseekV4Config.from_dict({**FLASH, "eos_token_id": eos})
