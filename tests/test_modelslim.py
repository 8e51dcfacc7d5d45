# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that ModelSlim has quantised, of the tests' own making, after the format's page: names, dtypes and shapes
of W8A8 and W8A8_DYNAMIC, files under ModelSlim's names. They load as the values that they stand for."""
import json
import warnings

import pytest
import tiny_checkpoints as tiny
import torch
from safetensors.torch import save_file
from test_checkpoint import equal

from dsv4spec import ops
from dsv4spec.models import Checkpoint, CheckpointError, load_model
from dsv4spec.models.config import DeepseekV4Config
from dsv4spec.models.weights import nextn_tensors, target_tensors
from dsv4spec.ops import use_backend

RAW = tiny.raw_config()
TENSORS = tiny.random_tensors(RAW)
SPECS = target_tensors(DeepseekV4Config.from_dict(RAW)) | nextn_tensors(DeepseekV4Config.from_dict(RAW))
FLOATS = ("compressor", "weights_proj", "wo_a")  # what the recipes leave in BF16


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def codes_of(x: torch.Tensor, offset: torch.Tensor | None = None):
    scale = x.abs().amax(1, keepdim=True) / 100
    codes = (x / scale).round()
    codes = codes if offset is None else codes + offset
    return codes.clamp(-128, 127).to(torch.int8), scale


def dynamic(name: str, x: torch.Tensor, offset: float = 0.0):
    """(tensors, the matrix they stand for)."""
    offsets = torch.full((x.shape[0], 1), offset)
    codes, scale = codes_of(x, offsets)
    return ({name: codes, name + "_scale": scale, name + "_offset": offsets}, (codes.float() - offsets) * scale)


def static(name: str, x: torch.Tensor, *, bits: bool = False, bias: float = 0.0):
    prefix = name.removesuffix("weight")
    codes, scale = codes_of(x)
    input_scale, input_offset = torch.tensor([0.0625]), torch.tensor([7.0])
    deq = input_scale * scale[:, 0]
    quant_bias = (bias / deq - codes.sum(1) * input_offset).round().to(torch.int32)
    tensors = {name: codes, prefix + "input_scale": input_scale, prefix + "input_offset": input_offset,
               prefix + "quant_bias": quant_bias, prefix + "deq_scale": deq.view(torch.int32).long() if bits else deq}
    return tensors, codes.float() * (deq / input_scale)[:, None]


def quantise(scheme_of=lambda name: "W8A8_DYNAMIC", **options):
    """(tensors, description, the float32 tensors they stand for)."""
    stored, schemes, plain = {}, {}, {}
    for name, x in TENSORS.items():
        scheme = "FLOAT"
        if SPECS[name].kind in ("linear", "expert") and not any(part in name for part in FLOATS):
            scheme = scheme_of(name)
        tensors, plain[name] = {name: x}, x
        if scheme != "FLOAT":
            tensors, plain[name] = {"W8A8": static, "W8A8_DYNAMIC": dynamic}[scheme](name, x, **options)
        stored |= tensors
        schemes |= dict.fromkeys(tensors, scheme)
    return stored, schemes, plain


def write(directory, stored, schemes, *, shards: int = 1, **more):
    """Under ModelSlim's file names."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(RAW))
    description = {"model_quant_type": "W8A8_DYNAMIC", "version": "1.0.0", "group_size": 0, **schemes, **more}
    (directory / "quant_model_description.json").write_text(json.dumps(description))
    names, weight_map = sorted(stored), {}
    for i in range(shards):
        file = "quant_model_weights" + (f"-{i + 1:05d}-of-{shards:05d}" if shards > 1 else "") + ".safetensors"
        part = {n: stored[n].contiguous() for n in names[i::shards]}
        save_file(part, directory / file)
        weight_map |= dict.fromkeys(part, file)
    if shards > 1:
        index = directory / "quant_model_weights.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def same_model(path, plain, tmp_path):
    _, target, draft = load_model(path)
    _, want, want_draft = load_model(tiny.write(tmp_path / "plain", RAW, plain))
    equal(target, want)
    for d in (draft, want_draft):
        d.e_proj = d.h_proj = d.e_scale = d.h_scale = None
    equal(draft, want_draft)


def mixed(name):
    """As the recipes are: attention static, the rest dynamic."""
    return "W8A8" if ".attn." in name else "W8A8_DYNAMIC"


@pytest.mark.parametrize("shards", [1, 3])
def test_dynamic_weights_load_as_their_values(tmp_path, shards):
    stored, schemes, plain = quantise()
    same_model(write(tmp_path / "q", stored, schemes, shards=shards), plain, tmp_path)


@pytest.mark.parametrize("bits", [False, True])
def test_static_weights_load_as_their_values(tmp_path, bits):
    """deq_scale as float32, and as the bits of a float32 in an int64."""
    stored, schemes, plain = quantise(lambda name: "W8A8", bits=bits)
    same_model(write(tmp_path / "q", stored, schemes), plain, tmp_path)


def test_offsets_are_taken_off_before_the_scale(tmp_path):
    stored, schemes, plain = quantise(offset=5.0)
    _, _, draft = load_model(write(tmp_path / "q", stored, schemes))
    assert draft.e_scale is None and torch.equal(draft.e_proj, plain["mtp.0.e_proj.weight"])  # no kernel has offsets
    same_model(tmp_path / "q", plain, tmp_path)


def test_schemes_may_be_mixed_and_other_prefixes_be_in_front(tmp_path):
    stored, schemes, plain = quantise(lambda name: "FLOAT" if "shared" in name else mixed(name)
                                      if "layers.1" in name else "W8A8_DYNAMIC")
    theirs = {n: "model." + n if n.startswith(("layers.", "mtp.0.")) else n for n in stored}
    stored, schemes = {theirs[n]: t for n, t in stored.items()}, {theirs[n]: s for n, s in schemes.items()}
    path = write(tmp_path / "q", stored, schemes)
    assert Checkpoint(path, 4).schemes["mtp.0.e_proj.weight"] == "W8A8_DYNAMIC"
    same_model(path, plain, tmp_path)


@pytest.mark.parametrize("scheme", ["W8A8", "W8A8_DYNAMIC"])
def test_projections_stay_packed_for_the_op_that_reads_them(tmp_path, scheme):
    stored, schemes, plain = quantise(lambda name: scheme)
    _, _, draft = load_model(write(tmp_path / "q", stored, schemes))
    assert draft.e_proj.dtype == draft.h_proj.dtype == torch.int8
    assert draft.e_scale.dtype == torch.float32 and draft.e_scale.shape == (RAW["hidden_size"],)
    assert torch.equal(draft.h_proj * draft.h_scale[:, None], plain["mtp.0.h_proj.weight"])
    d = RAW["hidden_size"]
    x = torch.randn(3, 5 * d, generator=torch.Generator().manual_seed(0))
    args = x[:, :d].contiguous(), x[:, d:].contiguous(), draft.enorm, draft.hnorm
    for backend in ("cpu", "reference"):
        with use_backend(backend):
            got = ops.nextn_fuse_hidden(*args, draft.e_proj, draft.h_proj, eps=1e-6, e_proj_scale=draft.e_scale,
                                        h_proj_scale=draft.h_scale)
            want = ops.nextn_fuse_hidden(*args, plain["mtp.0.e_proj.weight"], plain["mtp.0.h_proj.weight"], eps=1e-6)
        assert torch.allclose(got, want, atol=1e-4)


def test_experts_in_int8_are_not_taken_for_packed_fp4_nor_for_bfloat16(tmp_path):
    """Both are I8 files. Their values are not bfloat16's, so that the experts keep the model's dtype."""
    stored, schemes, plain = quantise()
    _, target, _ = load_model(write(tmp_path / "q", stored, schemes))
    w13 = target.layers[0].moe.w13
    assert w13.dtype == torch.float32
    name = "layers.0.ffn.experts.2.w1.weight"
    assert torch.equal(w13[2, :RAW["moe_intermediate_size"]], plain[name])


# -------------------------------------------------------------------------------------------------------------- refusals
NAME = "mtp.0.attn.wq_a.weight"


@pytest.mark.parametrize("scheme", ["W4A8_DYNAMIC", "W8A8_MXFP8", "W8A16", "W4A4_MXFP4"])
def test_other_schemes_are_refused_by_name(tmp_path, scheme):
    stored, schemes, _ = quantise()
    schemes[NAME] = scheme
    message = rf"expected weights of scheme FLOAT, W8A8 or W8A8_DYNAMIC, got {scheme}: {NAME}"
    with pytest.raises(CheckpointError, match=message):
        load_model(write(tmp_path, stored, schemes))


@pytest.mark.parametrize("change,message", [
    (lambda s: s.pop(NAME + "_scale"), rf"tensors missing: {NAME}_scale"),
    (lambda s: s.update({NAME: s[NAME].float()}), rf"{NAME}: expected I8 \[32, 64\] for W8A8_DYNAMIC, got F32"),
    (lambda s: s.update({NAME: s[NAME][:, :32]}), rf"{NAME}: expected I8 \[32, 64\] .*, got I8 \[32, 32\]"),
    (lambda s: s.update({NAME + "_scale": torch.ones(32, 2)}),
     rf"{NAME}_scale: expected F32 or BF16 or F16 \[32\], got F32 \[32, 2\]"),
    (lambda s: s.update({"mtp.0.attn.wq_a.bias": torch.ones(32)}), rf"{NAME}: expected a linear without a bias, got one"),
])
def test_what_is_wrong_is_said(tmp_path, change, message):
    stored, schemes, _ = quantise()
    change(stored)
    with pytest.raises(CheckpointError, match=message):
        load_model(write(tmp_path, stored, schemes))


def test_a_quant_bias_that_holds_a_bias_is_refused(tmp_path):
    stored, schemes, _ = quantise(lambda name: "W8A8")
    stored |= static(NAME, TENSORS[NAME], bias=0.5)[0]
    with pytest.raises(CheckpointError, match=rf"{NAME}: expected a linear without a bias, got one .of 32 outputs."):
        load_model(write(tmp_path, stored, schemes))


@pytest.mark.parametrize("key,value,message", [
    ("kv_quant_type", "C8", "kv_quant_type: expected FLOAT, got C8"),
    ("fa_quant_type", "FAQuant", "fa_quant_type: expected FLOAT, got FAQuant"),
    ("metadata", {"quarot": {"heads_rotation": {"layers": []}}}, "metadata.quarot: expected no rotations at run time"),
])
def test_what_needs_more_than_weights_is_refused(tmp_path, key, value, message):
    stored, schemes, _ = quantise()
    with pytest.raises(CheckpointError, match=message):
        load_model(write(tmp_path, stored, schemes, **{key: value}))


def test_two_descriptions_or_two_sets_of_weights_are_refused(tmp_path):
    stored, schemes, _ = quantise()
    path = write(tmp_path, stored, schemes)
    (path / "quant_model_weight_w8a8.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="expected one set of weights, got quant_model_weight_w8a8.safe"):
        load_model(path)
    (path / "quant_model_description_w8a8.json").write_text("{}")
    with pytest.raises(CheckpointError, match="expected one quant_model_description.json, got"):
        load_model(path)
