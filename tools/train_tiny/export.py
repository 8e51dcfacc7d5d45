# SPDX-License-Identifier: Apache-2.0
"""Official tensor names and dtypes: BF16 matrices and norms, F32 mHC and biases, I64 tables."""
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def _attention(prefix, attn):
    a = prefix + "attn."
    for name in ("wq_a", "q_norm", "wq_b", "wkv", "kv_norm", "wo_b"):
        yield f"{a}{name}.weight", getattr(attn, name)
    yield a + "wo_a.weight", attn.wo_a.flatten(0, 1)
    yield a + "attn_sink", attn.attn_sink
    if attn.compressor is not None:
        yield from _compressor(a + "compressor.", attn.compressor)
    if attn.indexer is not None:
        yield a + "indexer.wq_b.weight", attn.indexer.wq_b
        yield a + "indexer.weights_proj.weight", attn.indexer.weights_proj
        yield from _compressor(a + "indexer.compressor.", attn.indexer.compressor)


def _compressor(prefix, c):
    for name in ("wkv", "wgate", "norm"):
        yield f"{prefix}{name}.weight", getattr(c, name)
    yield prefix + "ape", c.ape


def _moe(prefix, moe):
    yield prefix + "gate.weight", moe.gate
    if moe.tid2eid is None:
        yield prefix + "gate.bias", moe.bias
    else:
        yield prefix + "gate.tid2eid", moe.tid2eid
    for e in range(moe.n + 1):
        where = f"experts.{e}" if e < moe.n else "shared_experts"
        for name in ("w1", "w2", "w3"):
            yield f"{prefix}{where}.{name}.weight", getattr(moe, name)[e]


def _hyper(prefix, site):
    for name in ("fn", "base", "scale"):
        yield f"{prefix}_{name}", getattr(site, name)


def _layer(prefix, layer):
    yield prefix + "attn_norm.weight", layer.attn_norm
    yield prefix + "ffn_norm.weight", layer.ffn_norm
    yield from _hyper(prefix + "hc_attn", layer.hc_attn)
    yield from _hyper(prefix + "hc_ffn", layer.hc_ffn)
    yield from _attention(prefix, layer.attn)
    yield from _moe(prefix + "ffn.", layer.ffn)


def official(model):
    """(official name, view of the live tensor) for everything that ships."""
    yield "embed.weight", model.embed
    yield "head.weight", model.head
    yield "norm.weight", model.hc_head.norm
    yield from _hyper("hc_head", model.hc_head)
    for i, layer in enumerate(model.layers):
        yield from _layer(f"layers.{i}.", layer)
    mtp = model.mtp
    yield from _layer("mtp.0.", mtp.layer)
    for name in ("enorm", "hnorm", "e_proj", "h_proj"):
        yield f"mtp.0.{name}.weight", getattr(mtp, name)
    yield "mtp.0.norm.weight", mtp.hc_head.norm
    yield from _hyper("mtp.0.hc_head", mtp.hc_head)


def save(model, out, tokenizer):
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, t in official(model):
        t = t.detach()
        bf16 = name.endswith(".weight")
        tensors[name] = (t.bfloat16() if bf16 else t).clone().contiguous()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(model.cfg, indent=2) + "\n")
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)


@torch.no_grad()
def load(model, directory):
    tensors = load_file(Path(directory) / "model.safetensors")
    for name, t in official(model):
        t.copy_(tensors.pop(name).view_as(t))
    assert not tensors, sorted(tensors)
