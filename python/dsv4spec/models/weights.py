# SPDX-License-Identifier: Apache-2.0
"""Which tensors a model has, and how they become parameters: dequantised, in the wanted dtype, each exactly once.

``target_tensors`` and ``nextn_tensors`` are the list of official names. :class:`Weights` checks the whole list
against the files' headers before it reads a byte, then hands tensors out and keeps account of them.
"""
from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..reference.quant import fp4_dequant, fp8_block_dequant
from . import modelslim
from .checkpoint import Checkpoint, CheckpointError, listed
from .config import DeepseekV4Config

_FLOATS = ("F32", "BF16", "F16")
_SCALES = ("F8_E8M0", "U8")
_EXACT_IN_BF16 = ("BF16", "F8_E4M3", "I8", "U8")  # I8 and U8: packed FP4
_DSPARK = ("main_norm", "main_proj", "markov", "confidence")  # parts of names that only a DSpark drafter has


@dataclass(frozen=True)
class Spec:
    """A parameter: logical shape, and what its file may hold ("float", "linear": also FP8, "expert": also packed FP4,
    "ids": integers)."""

    shape: tuple[int, ...]
    kind: str = "float"


def _layer_tensors(c: DeepseekV4Config, prefix: str, ratio: int, hashed: bool) -> dict[str, Spec]:
    d, hd, mix = c.hidden_size, c.num_attention_heads * c.head_dim, (2 + c.hc_mult) * c.hc_mult
    out = {
        "attn.wq_a.weight": Spec((c.q_lora_rank, d), "linear"), "attn.q_norm.weight": Spec((c.q_lora_rank,)),
        "attn.wq_b.weight": Spec((hd, c.q_lora_rank), "linear"), "attn.wkv.weight": Spec((c.head_dim, d), "linear"),
        "attn.kv_norm.weight": Spec((c.head_dim,)), "attn.attn_sink": Spec((c.num_attention_heads,)),
        "attn.wo_a.weight": Spec((c.o_groups * c.o_lora_rank, hd // c.o_groups), "linear"),
        "attn.wo_b.weight": Spec((d, c.o_groups * c.o_lora_rank), "linear"),
        "attn_norm.weight": Spec((d,)), "ffn_norm.weight": Spec((d,)),
    }
    for site in ("hc_attn", "hc_ffn"):
        out |= {f"{site}_fn": Spec((mix, c.hc_mult * d)), f"{site}_base": Spec((mix,)), f"{site}_scale": Spec((3,))}
    if ratio:
        out |= _compressor_tensors("attn.compressor", d, c.head_dim, ratio)
    if ratio == 4:
        heads = c.index_n_heads
        out |= {"attn.indexer.wq_b.weight": Spec((heads * c.index_head_dim, c.q_lora_rank), "linear"),
                "attn.indexer.weights_proj.weight": Spec((heads, d), "linear")}
        out |= _compressor_tensors("attn.indexer.compressor", d, c.index_head_dim, ratio)
    out["ffn.gate.weight"] = Spec((c.n_routed_experts, d))
    out |= ({"ffn.gate.tid2eid": Spec((c.vocab_size, c.num_experts_per_tok), "ids")} if hashed
            else {"ffn.gate.bias": Spec((c.n_routed_experts,))})
    groups = [(f"ffn.experts.{e}", c.moe_intermediate_size, "expert") for e in range(c.n_routed_experts)]
    if c.n_shared_experts:
        groups.append(("ffn.shared_experts", c.n_shared_experts * c.moe_intermediate_size, "linear"))
    for name, inter, kind in groups:
        out |= {f"{name}.w1.weight": Spec((inter, d), kind), f"{name}.w2.weight": Spec((d, inter), kind),
                f"{name}.w3.weight": Spec((inter, d), kind)}
    return {prefix + name: spec for name, spec in out.items()}


def _compressor_tensors(prefix: str, d: int, head: int, ratio: int) -> dict[str, Spec]:
    wide = (2 if ratio == 4 else 1) * head
    return {f"{prefix}.wkv.weight": Spec((wide, d), "linear"), f"{prefix}.wgate.weight": Spec((wide, d), "linear"),
            f"{prefix}.norm.weight": Spec((head,)), f"{prefix}.ape": Spec((ratio, wide))}


def _head_tensors(c: DeepseekV4Config, prefix: str) -> dict[str, Spec]:
    return {prefix + name: spec for name, spec in {
        "norm.weight": Spec((c.hidden_size,)), "hc_head_fn": Spec((c.hc_mult, c.hc_mult * c.hidden_size)),
        "hc_head_base": Spec((c.hc_mult,)), "hc_head_scale": Spec((1,))}.items()}


def target_tensors(c: DeepseekV4Config) -> dict[str, Spec]:
    """Every tensor of the Target by its official name."""
    out = {"embed.weight": Spec((c.vocab_size, c.hidden_size)), "head.weight": Spec((c.vocab_size, c.hidden_size))}
    out |= _head_tensors(c, "")
    for i, ratio in enumerate(c.compress_ratios):
        out |= _layer_tensors(c, f"layers.{i}.", ratio, i < c.num_hash_layers)
    return out


def nextn_tensors(c: DeepseekV4Config) -> dict[str, Spec]:
    """Every tensor of the NextN layer. It has no embedding and no head of its own: both are the Target's."""
    d = c.hidden_size
    out = _layer_tensors(c, "mtp.0.", 0, False) | _head_tensors(c, "mtp.0.")
    return out | {"mtp.0.e_proj.weight": Spec((d, d), "linear"), "mtp.0.h_proj.weight": Spec((d, d), "linear"),
                  "mtp.0.enorm.weight": Spec((d,)), "mtp.0.hnorm.weight": Spec((d,))}


def has_nextn(checkpoint: Checkpoint) -> bool:
    """Are there ``mtp.0.*`` tensors? CheckpointError for a DSpark drafter or for more than one MTP layer."""
    names = [n for n in checkpoint.entries if n.startswith("mtp.")]
    if dspark := [n for n in names if any(part in n for part in _DSPARK)]:
        raise CheckpointError(f"{checkpoint.directory}: a DSpark checkpoint ({listed(dspark, 3)}): its mtp.* tensors "
                              "are a DSpark drafter, not the NextN layer; use a release with the MTP layer")
    if others := sorted({n.split(".")[1] for n in names} - {"0"}):
        raise CheckpointError(f"{checkpoint.directory}: expected exactly one MTP layer (mtp.0), got also "
                              f"{', '.join('mtp.' + i for i in others)}")
    return bool(names)


def scale_name(name: str) -> str:
    return name.removesuffix(".weight") + ".scale"


def faults(checkpoint: Checkpoint, specs: dict[str, Spec], block: int) -> tuple[list[str], list[str]]:
    """(names missing, complaints about what is there), from the headers alone."""
    missing, wrong = [], []
    for name, spec in specs.items():
        entry = checkpoint.entries.get(name)
        if entry is None:
            missing.append(name)
            continue
        if spec.kind in ("linear", "expert") and checkpoint.quantised(name):
            more = modelslim.faults(checkpoint, name, spec.shape)
            missing += more[0]
            wrong += more[1]
            continue
        shape, scale, allowed = spec.shape, None, _FLOATS
        if spec.kind == "ids":
            allowed = ("I64", "I32")
        if spec.kind in ("linear", "expert") and entry.dtype == "F8_E4M3":
            allowed, scale = ("F8_E4M3",), (-(-shape[0] // block), -(-shape[1] // block))
        elif spec.kind == "expert" and entry.dtype in ("I8", "U8"):
            allowed, scale, shape = ("I8", "U8"), (shape[0], -(-shape[1] // 32)), (shape[0], -(-shape[1] // 2))
        if entry.dtype not in allowed:
            wrong.append(f"{name}: expected dtype {' or '.join(allowed)}, got {entry.dtype}")
        elif entry.shape != shape:
            wrong.append(f"{name}: expected shape {list(shape)}, got {list(entry.shape)} {entry.dtype}")
        if scale is None:
            continue
        entry = checkpoint.entries.get(scale_name(name))
        if entry is None:
            missing.append(scale_name(name))
        elif entry.dtype not in _SCALES or entry.shape != scale:
            wrong.append(f"{scale_name(name)}: expected F8_E8M0 {list(scale)}, got {entry.dtype} {list(entry.shape)}")
    return missing, wrong


class Weights:
    """Parameters of one model, taken by name.

    Raises:
        CheckpointError: on construction, all missing names and all wrong dtypes and shapes in one text.
    """

    def __init__(self, checkpoint: Checkpoint, specs: dict[str, Spec], *, block: int, dtype: torch.dtype, device,
                 what: str):
        missing, wrong = faults(checkpoint, specs, block)
        if missing or wrong:
            parts = [f"tensors missing: {listed(missing, 60)}"] if missing else []
            raise CheckpointError(f"{checkpoint.directory}: {what}: " + "; ".join(parts + wrong[:20]))
        self.checkpoint, self.block, self.dtype, self.device = checkpoint, block, dtype, torch.device(device)
        self._left = dict(specs)

    def __call__(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Parameter ``name``, dequantised, of the model's dtype (or ``dtype``; ids keep theirs). Once per name."""
        spec = self._left.pop(name, None)
        if spec is None:
            raise CheckpointError(f"{name}: not a parameter of this model, or taken twice")
        if self.checkpoint.quantised(name):
            return self._int8(modelslim.dequantised, name).to(self.device, dtype or self.dtype)
        value = self.checkpoint.tensor(name)
        if value.dtype == torch.float8_e4m3fn:
            value = fp8_block_dequant(value, self._scale(name), self.block)
        elif spec.kind == "expert" and value.dtype in (torch.int8, torch.uint8):
            value = fp4_dequant(value, self._scale(name))[..., :spec.shape[-1]]
        return value.to(self.device, torch.int64 if spec.kind == "ids" else dtype or self.dtype, copy=True)

    def narrow_dtype(self, names: Iterable[str]) -> torch.dtype:
        """bfloat16 where all of ``names`` are stored in a type that it holds without loss (BF16, FP8, FP4), else the
        model's dtype. Ops that take BF16 weights under fp32 activations then read half the bytes, of the same values."""
        exact = all(self.checkpoint.entries[n].dtype in _EXACT_IN_BF16 and not self.checkpoint.quantised(n)
                    for n in names)
        return torch.bfloat16 if exact else self.dtype

    def packed(self, names: list[str]) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """Parameters for an op that reads FP8 (in blocks of 128) and int8 weights itself, if all are of one such kind:
        (codes, scale grid) of each, or (codes, scale of each row); else (float weight, None) of each."""
        checkpoint = self.checkpoint
        if all(checkpoint.quantised(n) for n in names):
            rows = [self._int8(modelslim.codes_scale_offset, n) for n in names]
            if all(offset is None for _, _, offset in rows):
                return [self._taken(n, codes, scale) for n, (codes, scale, _) in zip(names, rows)]
        elif self.block == 128 and all(checkpoint.entries[n].dtype == "F8_E4M3" for n in names):
            return [self._taken(n, checkpoint.tensor(n), self._scale(n)) for n in names]
        return [(self(n), None) for n in names]

    def _taken(self, name: str, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        del self._left[name]
        return tuple(t.to(self.device, copy=True) for t in tensors)

    def _int8(self, read, name: str):
        try:
            return read(self.checkpoint, name)
        except ValueError as error:
            raise CheckpointError(f"{self.checkpoint.directory}: {error}") from error

    def _scale(self, name: str) -> torch.Tensor:
        return self.checkpoint.tensor(scale_name(name))

    def narrow(self, names: list[str]) -> torch.Tensor:
        """Several matrices as one, row-wise; in :meth:`narrow_dtype` on the CPU, whose products take it (dense.py)."""
        return self.stack(names, self.narrow_dtype(names) if self.device.type == "cpu" else None)

    def stack(self, names: Iterable[str], dtype: torch.dtype | None = None) -> torch.Tensor:
        """Several matrices as one, row-wise."""
        return torch.cat([self(n, dtype) for n in names])

    def finish(self) -> None:
        """Every parameter must have been taken."""
        if self._left:
            raise CheckpointError(f"parameters left unfilled: {listed(self._left)}")


def unknown(checkpoint: Checkpoint, specs: dict[str, Spec]) -> list[str]:
    """Names of the files that are no parameter and no scale of one."""
    known = set(specs) | {scale_name(n) for n, s in specs.items()
                          if n in checkpoint.entries and checkpoint.entries[n].dtype in ("F8_E4M3", "I8", "U8")}
    known |= {part for n in specs if checkpoint.quantised(n) for part in modelslim.parts(checkpoint, n)}
    return sorted(set(checkpoint.entries) - known)


def warn_unknown(checkpoint: Checkpoint, names: list[str]) -> None:
    if names:
        warnings.warn(f"{checkpoint.directory}: tensors that no parameter takes: {listed(names, 40)}", stacklevel=3)
