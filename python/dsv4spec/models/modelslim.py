# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that ModelSlim has quantised ("AscendV1"): a description names each tensor's scheme, and int8 weights
``[out, in]`` have their scales beside them, one a row.

- W8A8_DYNAMIC: ``X.weight_scale`` and ``X.weight_offset`` (0 where symmetric): w = (code - offset) * scale.
- W8A8: ``X.deq_scale`` = input_scale * weight_scale (float32, or its bits in an int64), ``X.input_scale``,
  ``X.input_offset``, and ``X.quant_bias``, which undoes input_offset and holds the linear's bias. DeepSeek-V4's linears
  have none.

Weights stand for the values they dequantise to; activations are not quantised here, whatever the scheme says of them.
"""
from __future__ import annotations

import json
from pathlib import Path

import torch

DESCRIPTION, FILES = "quant_model_description", "quant_model_weight"
FLOAT, STATIC, DYNAMIC = "FLOAT", "W8A8", "W8A8_DYNAMIC"
_PARTS = {STATIC: ("deq_scale", "input_scale", "input_offset", "quant_bias"),
          DYNAMIC: ("weight_scale", "weight_offset")}
_OPTIONAL = {STATIC: ("weight_scale", "weight_offset", "bias"), DYNAMIC: ("bias",)}
_NUMBERS = ("F32", "BF16", "F16")
_DTYPES = {"deq_scale": ("F32", "I64"), "quant_bias": ("I32",)}


def description_of(directory: Path) -> Path | None:
    """The description's path, or None. ValueError if there are several."""
    found = sorted(directory.glob(DESCRIPTION + "*.json"))
    if len(found) > 1:
        raise ValueError(f"{directory}: expected one {DESCRIPTION}.json, got {', '.join(p.name for p in found)}")
    return found[0] if found else None


def weight_files(directory: Path) -> tuple[Path | None, Path | None]:
    """(index, single file) under ModelSlim's names. ValueError if several could be meant."""
    kinds = [sorted(directory.glob(FILES + "*" + end)) for end in (".safetensors.index.json", ".safetensors")]
    if kinds[0]:
        kinds[1] = []  # its shards
    for found in kinds:
        if len(found) > 1:
            raise ValueError(f"{directory}: expected one set of weights, got {', '.join(p.name for p in found)}")
    return tuple(found[0] if found else None for found in kinds)


def schemes(path: Path, official_name) -> dict[str, str]:
    """Official name of a weight -> scheme. ValueError, by name, for what this project does not read."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        found = {official_name(n): s for n, s in rows.items() if n.endswith(".weight")}
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: expected a JSON object of tensor names: {error}") from error
    foreign: dict[str, list[str]] = {}
    for name, scheme in found.items():
        if scheme not in (FLOAT, STATIC, DYNAMIC):
            foreign.setdefault(str(scheme), []).append(name)
    if foreign:
        what = "; ".join(f"{s}: {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
                         for s, names in sorted(foreign.items()))
        raise ValueError(f"{path}: expected weights of scheme {FLOAT}, {STATIC} or {DYNAMIC}, got {what}")
    for key in ("kv_quant_type", "kv_cache_type", "fa_quant_type"):
        if rows.get(key) not in (None, "", FLOAT):
            raise ValueError(f"{path}: {key}: expected {FLOAT}, got {rows[key]}: the cache is not quantised here")
    if isinstance(rows.get("metadata"), dict) and rows["metadata"].get("quarot"):
        raise ValueError(f"{path}: metadata.quarot: expected no rotations at run time, got "
                         f"{list(rows['metadata']['quarot'])}")
    return found


def _part(name: str, part: str) -> str:
    return f"{name.removesuffix('.weight')}.{part}"


def parts(checkpoint, name: str) -> list[str]:
    """The tensors beside the quantised weight ``name`` that its scheme knows, those that are there."""
    scheme = checkpoint.schemes[name]
    return [p for p in (_part(name, x) for x in _PARTS[scheme] + _OPTIONAL[scheme]) if p in checkpoint.entries]


def faults(checkpoint, name: str, shape: tuple[int, ...]) -> tuple[list[str], list[str]]:
    """(names missing, complaints), from the headers, of the quantised weight ``name``."""
    missing, wrong = [], []
    scheme, entry = checkpoint.schemes[name], checkpoint.entries[name]
    if entry.dtype != "I8" or entry.shape != shape:
        wrong.append(f"{name}: expected I8 {list(shape)} for {scheme}, got {entry.dtype} {list(entry.shape)}")
    for x in _PARTS[scheme] + _OPTIONAL[scheme]:
        entry = checkpoint.entries.get(_part(name, x))
        if entry is None:
            if x in _PARTS[scheme]:
                missing.append(_part(name, x))
            continue
        shapes = [(1,), ()] if x.startswith("input_") else [(shape[0],), (shape[0], 1)]
        dtypes = _DTYPES.get(x, _NUMBERS)
        if entry.dtype not in dtypes or entry.shape not in shapes:
            wrong.append(f"{_part(name, x)}: expected {' or '.join(dtypes)} {list(shapes[0])}, got {entry.dtype} "
                         f"{list(entry.shape)}")
    return missing, wrong


def _rows(checkpoint, name: str, part: str) -> torch.Tensor | None:
    if _part(name, part) not in checkpoint.entries:
        return None
    value = checkpoint.tensor(_part(name, part)).reshape(-1)
    if value.dtype == torch.int64:  # deq_scale: the bits of a float32
        value = value.to(torch.int32).view(torch.float32)
    return value.float()


def codes_scale_offset(checkpoint, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """(int8 codes, float32 scale of each row, float32 offset of each row or None for 0). ValueError for a bias."""
    codes, offset = checkpoint.tensor(name), _rows(checkpoint, name, "weight_offset")
    scale, bias = _rows(checkpoint, name, "weight_scale"), _rows(checkpoint, name, "bias")
    if checkpoint.schemes[name] == STATIC:
        if scale is None:
            scale = _rows(checkpoint, name, "deq_scale") / _rows(checkpoint, name, "input_scale")
        if bias is None:  # rounding leaves up to half a unit of a linear without one
            bias = _rows(checkpoint, name, "quant_bias") + codes.sum(1).float() * _rows(checkpoint, name, "input_offset")
            bias = torch.where(bias.abs() <= 1, 0, bias)
    if bias is not None and bias.any():
        raise ValueError(f"{name}: expected a linear without a bias, got one (of {int(bias.count_nonzero())} outputs)")
    return codes, scale, offset if offset is not None and offset.any() else None


def dequantised(checkpoint, name: str) -> torch.Tensor:
    """The weight in float32."""
    codes, scale, offset = codes_scale_offset(checkpoint, name)
    value = codes.float() if offset is None else codes.float() - offset[:, None]
    return value * scale[:, None]
