# SPDX-License-Identifier: Apache-2.0
import json
import struct
import warnings
from pathlib import Path

import pytest
import torch

import tiny_checkpoints as tiny
from dsv4spec.models import Checkpoint, CheckpointError, load_model
from dsv4spec.models.checkpoint import listed
from dsv4spec.models.weights import Spec, Weights, nextn_tensors, target_tensors
from dsv4spec.reference import quant

RAW = tiny.raw_config()
TENSORS = tiny.random_tensors(RAW)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def parameters(model) -> dict:
    """Every tensor that a model holds, by the path to it."""
    found, seen = {}, set()

    def walk(path, thing):
        if isinstance(thing, torch.Tensor):
            found[path] = thing
        elif isinstance(thing, (list, tuple)):
            for i, x in enumerate(thing):
                walk(f"{path}.{i}", x)
        elif isinstance(thing, dict):
            for k, x in thing.items():
                walk(f"{path}.{k}", x)
        elif type(thing).__module__.startswith("dsv4spec.models") and id(thing) not in seen:
            seen.add(id(thing))
            names = vars(thing) if hasattr(thing, "__dict__") else {s: getattr(thing, s) for s in thing.__slots__}
            for k, x in dict(names).items():
                if k not in ("config", "c", "target"):
                    walk(f"{path}.{k}", x)

    walk("", model)
    return found


def equal(a, b):
    pa, pb = parameters(a), parameters(b)
    assert pa.keys() == pb.keys() and len(pa) > 20
    for name in pa:
        assert pa[name].dtype == pb[name].dtype and torch.equal(pa[name], pb[name]), name


def test_one_file_and_shards_load_the_same(tmp_path):
    config, one, draft_one = load_model(tiny.write(tmp_path / "one", RAW, TENSORS))
    _, many, draft_many = load_model(tiny.write(tmp_path / "many", RAW, TENSORS, shards=3))
    equal(one, many)
    equal(draft_one, draft_many)
    assert config.num_hidden_layers == 4 and not any(p.isnan().any() for p in parameters(one).values())


@pytest.mark.parametrize("experts", ["fp4", "fp8"])
def test_quantised_weights_stand_for_their_values(experts, tmp_path):
    """Cut FP8 blocks (matrices under and over 128), FP4 experts; the same parameters as from plain float32 files."""
    raw = tiny.raw_config(hidden_size=136, moe_intermediate_size=40, o_lora_rank=72)
    config, stored, plain = tiny.quantise(raw, tiny.random_tensors(raw), experts)
    assert stored["layers.0.attn.wo_b.scale"].shape == (2, 2)
    _, a, draft_a = load_model(tiny.write(tmp_path / "q", config, stored, shards=2))
    _, b, draft_b = load_model(tiny.write(tmp_path / "p", raw, plain))
    for model, dtype in ((a, torch.bfloat16), (b, torch.float32)):  # stays BF16 where that holds every value
        for layer in model.layers:
            moe = layer.moe
            assert moe.w13.dtype == moe.w2.dtype == dtype and all(w.dtype == dtype for w in moe.shared.values())
    for model in (a, draft_a):
        widen(model)
    equal(a, b)
    # the NextN projections stay FP8 for the op that reads them
    assert draft_a.e_proj.dtype == torch.float8_e4m3fn and draft_a.e_scale.shape == (2, 2)
    assert torch.equal(quant.fp8_block_dequant(draft_a.h_proj, draft_a.h_scale), draft_b.h_proj)
    for draft in (draft_a, draft_b):
        draft.e_proj = draft.h_proj = draft.e_scale = draft.h_scale = None
    equal(draft_a, draft_b)


def widen(model):
    for layer in getattr(model, "layers", None) or [model.layer]:
        moe = layer.moe
        moe.w13, moe.w2 = moe.w13.float(), moe.w2.float()
        moe.shared = {name: w.float() for name, w in moe.shared.items()}
        for linear in (layer.attention.w_in, layer.attention.wq_b, layer.attention.wq_b_index, layer.attention.wo_a,
                       layer.attention.wo_b, model._logits.head):
            linear.w = linear.w.float()


def test_a11_a_block_reads_back_with_the_scale_it_was_made_with(tmp_path):
    """A11: a block of 452.48 has the exact scale 1.01, the stored scale 2: it reads back 448, not 896."""
    raw = tiny.raw_config()
    tensors = {**TENSORS, "layers.0.attn.wq_a.weight": torch.full_like(TENSORS["layers.0.attn.wq_a.weight"], 452.48)}
    config, stored, _ = tiny.quantise(raw, tensors)
    _, target, _ = load_model(tiny.write(tmp_path, config, stored))
    assert (target.layers[0].attention.w_in.w[:, :raw["q_lora_rank"]] == 448).all()


def test_bfloat16_streams(tmp_path):
    _, target, draft = load_model(tiny.write(tmp_path, RAW, TENSORS, dtype=torch.bfloat16), dtype=torch.bfloat16)
    kinds = {name: p.dtype for name, p in parameters(target).items()}
    assert kinds[".embed"] == torch.bfloat16 and kinds[".layers.0.attention_site.fn"] == torch.float32
    assert kinds[".layers.1.attention.w_fp32.w"] == torch.float32 and draft.e_proj.dtype == torch.bfloat16


def test_a12a_embedding_and_head_are_the_targets(tmp_path):
    """A12 (a): no embedding and no head under mtp; the draft uses the Target's, the same memory."""
    assert not any(n.startswith("mtp.0.") and ("embed" in n or n.endswith("head.weight")) for n in TENSORS)
    _, target, draft = load_model(tiny.write(tmp_path, RAW, TENSORS))
    assert draft.embed.data_ptr() == target.embed.data_ptr() and draft._logits.head is target.head
    assert torch.equal(draft.embed, TENSORS["embed.weight"])


def test_a12b_no_mtp_tensors(tmp_path):
    """A12 (b): without mtp.* there is no draft; asking for it is one error that lists what is missing."""
    path = tiny.write(tmp_path, RAW, {n: t for n, t in TENSORS.items() if not n.startswith("mtp.")})
    assert load_model(path)[2] is None and load_model(path, nextn=False)[2] is None
    with pytest.raises(CheckpointError,
                       match=r"NextN layer \(mtp.0\): tensors missing: .*mtp.0.e_proj.weight") as error:
        load_model(path, nextn=True)
    text = str(error.value)
    assert "mtp.0.ffn.experts.*.w1.weight (6 of them)" in text and "mtp.0.norm.weight" in text and "more" not in text


def test_a12c_a_shard_that_is_not_on_disk(tmp_path):
    """A12 (c): the error names the file."""
    tiny.write(tmp_path, RAW, TENSORS, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="shards named but missing: model-00002-of-00003.safetensors"):
        load_model(tmp_path)


def test_nothing_is_loaded_halfway(tmp_path):
    """Missing and misshapen tensors come in one error, before any parameter is made."""
    tensors = dict(TENSORS)
    del tensors["layers.2.attn.compressor.ape"], tensors["layers.0.ffn.experts.3.w2.weight"]
    tensors["layers.1.attn.wq_b.weight"] = torch.zeros(5, 32)
    tensors["layers.0.ffn.gate.tid2eid"] = tensors["layers.0.ffn.gate.tid2eid"].float()
    with pytest.raises(CheckpointError) as error:
        load_model(tiny.write(tmp_path, RAW, tensors))
    text = str(error.value)
    for part in ("Target: tensors missing: layers.0.ffn.experts.*.w2.weight", "layers.2.attn.compressor.ape",
                 "layers.1.attn.wq_b.weight: expected shape [128, 32], got [5, 32] F32",
                 "layers.0.ffn.gate.tid2eid: expected dtype I64 or I32, got F32"):
        assert part in text


@pytest.mark.parametrize("change,message", [
    (lambda s: s.pop("layers.1.attn.wkv.scale"), "tensors missing: layers.1.attn.wkv.scale"),
    (lambda s: s.update({"layers.1.attn.wkv.scale": torch.ones(1, 2)}),
     r"layers.1.attn.wkv.scale: expected F8_E8M0 \[1, 1\], got F32 \[1, 2\]"),
    (lambda s: s.update({"layers.1.ffn.experts.0.w1.weight": torch.zeros(32, 64, dtype=torch.int8)}),
     r"experts.0.w1.weight: expected shape \[32, 32\], got \[32, 64\] I8"),
    (lambda s: s.update({"layers.1.attn_norm.weight": torch.zeros(64, dtype=torch.int32)}),
     "layers.1.attn_norm.weight: expected dtype F32 or BF16 or F16, got I32"),
])
def test_wrong_quantised_tensors(change, message, tmp_path):
    config, stored, _ = tiny.quantise(RAW, TENSORS)
    change(stored)
    with pytest.raises(CheckpointError, match=message):
        load_model(tiny.write(tmp_path, config, stored))


def test_unknown_tensors_are_listed(tmp_path):
    tensors = {**TENSORS, "layers.0.attn.rotary.inv_freq": torch.ones(3), "layers.0.attn.wkv.scale": torch.ones(1, 1)}
    with pytest.warns(UserWarning,
                      match="that no parameter takes: layers.0.attn.rotary.inv_freq, layers.0.attn.wkv.scale"):
        load_model(tiny.write(tmp_path, RAW, tensors))


def test_a_second_mtp_layer_is_refused(tmp_path):
    path = tiny.write(tmp_path, RAW, {**TENSORS, "mtp.1.norm.weight": torch.ones(64)})
    with pytest.raises(CheckpointError, match="expected exactly one MTP layer .mtp.0., got also mtp.1"):
        load_model(path)


@pytest.mark.parametrize("name", ["mtp.0.main_norm.weight", "mtp.2.markov_head.weight"])
def test_a_dspark_drafter_is_refused(name, tmp_path):
    with pytest.raises(CheckpointError, match=f"a DSpark checkpoint .{name}"):
        load_model(tiny.write(tmp_path, RAW, {**TENSORS, name: torch.ones(64)}))


TOP = {"embed.weight": "model.embed_tokens.weight", "head.weight": "lm_head.weight", "norm.weight": "model.norm.weight"}


@pytest.mark.parametrize("mtp", ["mtp.0.", "model.mtp.0.", "model.layers.4."])
def test_a12d_prefixes_of_other_writers(mtp, tmp_path):
    """A12 (d): files and quantisation descriptions that write mtp.0. or model.layers.N. and lm_head resolve to the same
    parameters; a description with a FLOAT lm_head loads (test_modelslim.py has the quantised ones)."""
    def theirs(name):
        if name.startswith("mtp.0."):
            return mtp + name.removeprefix("mtp.0.")
        return TOP.get(name, "model." + name if name.startswith("layers.") else name)

    one = load_model(tiny.write(tmp_path / "b", RAW, TENSORS))
    path = tiny.write(tmp_path / "a", RAW, {theirs(n): t for n, t in TENSORS.items()}, shards=2)
    description = path / "quant_model_description.json"
    schemes = {theirs(n): "FLOAT" for n in TENSORS}
    description.write_text(json.dumps({"model_quant_type": "W8A8_DYNAMIC", **schemes}))
    other = load_model(path)
    equal(one[1], other[1])
    equal(one[2], other[2])
    assert Checkpoint(path, 4).schemes["head.weight"] == "FLOAT"


def test_damaged_files(tmp_path):
    with pytest.raises(CheckpointError,
                       match="expected model.safetensors or model.safetensors.index.json, got no safe"):
        Checkpoint(tmp_path)
    file = tiny.write(tmp_path, RAW, TENSORS) / "model.safetensors"
    data = file.read_bytes()
    header = json.dumps({"x": dict(dtype="F32", shape=[2], data_offsets=[0, 4])}).encode()
    shape = struct.pack("<Q", len(header)) + header + bytes(4)
    for damaged in (data[:-1], data[:1000], data[:5], b"", struct.pack("<Q", 4) + b"oops" + data, shape):
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="model.safetensors: truncated, damaged, or not a safetensors file"):
            Checkpoint(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(CheckpointError, match="model.safetensors: cannot be read"):
        Checkpoint(tmp_path)


def mapped_file(address: int) -> str:
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        begin, end = (int(x, 16) for x in line.split()[0].split("-"))
        if begin <= address < end:
            return line.rpartition("/")[2]
    raise AssertionError("not mapped")


def test_tensors_are_views_of_the_mapped_file(tmp_path):
    """No copy, and nothing read before it is asked for: bytes changed after the header was read are seen."""
    path = tiny.write(tmp_path, RAW, {"embed.weight": torch.zeros(512, 512), "norm.weight": torch.zeros(3)}, shards=2)
    checkpoint = Checkpoint(path)
    shard = checkpoint.entries["embed.weight"].shard
    with (path / shard).open("r+b") as file:
        file.seek(-4, 2)
        file.write(struct.pack("<f", 7))
    tensor = checkpoint.tensor("embed.weight")
    assert tensor[-1, -1] == 7 and tensor.sum() == 7 and mapped_file(tensor.data_ptr()) == shard


def test_every_dtype_at_any_address(tmp_path):
    """Sizes and values by dtype; an address that the dtype cannot have is not handed out."""
    header, data, expected = {}, b"\x01", {}
    header["odd"] = dict(dtype="U8", shape=[1], data_offsets=[0, 1])
    for name, dtype in (("F8_E4M3", torch.float8_e4m3fn), ("F8_E8M0", torch.float8_e8m0fnu), ("BF16", torch.bfloat16),
                        ("F16", torch.float16), ("F32", torch.float32), ("I8", torch.int8), ("I32", torch.int32),
                        ("I64", torch.int64), ("BOOL", torch.bool)):
        values = torch.tensor([1, 2, 4], dtype=torch.float32).to(dtype)
        raw = bytes(values.view(torch.uint8).tolist())
        header[name] = dict(dtype=name, shape=[3, 1], data_offsets=[len(data), len(data) + len(raw)])
        data, expected[name] = data + raw, values.view(3, 1)
    header["none"] = dict(dtype="F32", shape=[0, 3], data_offsets=[len(data), len(data)])
    header["one"] = dict(dtype="F32", shape=[], data_offsets=[len(data), len(data) + 4])
    data, expected["none"], expected["one"] = data + struct.pack("<f", 5), torch.empty(0, 3), torch.tensor(5.0)
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    checkpoint = Checkpoint(tmp_path)
    assert sum(e.nbytes for e in checkpoint.entries.values()) == len(data)
    for name, want in expected.items():
        got = checkpoint.tensor(name)
        assert got.dtype == want.dtype and got.shape == want.shape and got.data_ptr() % got.dtype.itemsize == 0
        assert torch.equal(got.float(), want.float()), name


def test_damaged_index(tmp_path):
    tiny.write(tmp_path, RAW, TENSORS, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["layers.9.x"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="tensors that their shards lack: layers.9.x"):
        Checkpoint(tmp_path)
    for text in ("{", "[]", '{"weight_map": 3}', '{"weight_map": {"x": 3}}'):
        index.write_text(text)
        with pytest.raises(CheckpointError, match="expected JSON with a weight_map"):
            Checkpoint(tmp_path)


def test_a_tensor_in_two_shards(tmp_path):
    tiny.write(tmp_path, RAW, TENSORS, shards=2)
    shard = "model-00002-of-00002.safetensors"
    (tmp_path / shard).write_bytes((tmp_path / "model-00001-of-00002.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="is given twice, also by model-00001-of-00002.safetensors"):
        Checkpoint(tmp_path)


def test_every_parameter_is_taken_exactly_once(tmp_path):
    checkpoint = Checkpoint(tiny.write(tmp_path, RAW, TENSORS))
    specs = {"norm.weight": Spec((64,)), "embed.weight": Spec((96, 64))}
    weights = Weights(checkpoint, specs, block=128, dtype=torch.float32, device="cpu", what="test")
    weights("norm.weight")
    with pytest.raises(CheckpointError, match="norm.weight: not a parameter of this model, or taken twice"):
        weights("norm.weight")
    with pytest.raises(CheckpointError, match="parameters left unfilled: embed.weight"):
        weights.finish()
    config = load_model(tmp_path)[0]
    assert set(TENSORS) == set(target_tensors(config) | nextn_tensors(config))


def test_official_sizes_of_the_mtp_layer():
    """39 plain tensors and 256 * 3 experts, as the last shard of the Flash release counts them (with scales: 1575)."""
    from test_config import FLASH

    from dsv4spec.models import DeepseekV4Config

    specs = nextn_tensors(DeepseekV4Config.from_dict(FLASH))
    scaled = [n for n, s in specs.items() if s.kind in ("linear", "expert")]
    assert len(specs) + len(scaled) == 1575
    assert specs["mtp.0.attn.wo_a.weight"].shape == (8192, 4096)
    assert specs["mtp.0.attn.wq_b.weight"].shape == (32768, 1024)


def test_listed_folds_experts_and_cuts():
    assert listed(["a.experts.0.w", "a.experts.1.w", "b"]) == "a.experts.*.w (2 of them), b"
    assert listed(list("abcd"), 2) == "a, b, and 2 more"
