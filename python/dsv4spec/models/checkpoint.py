# SPDX-License-Identifier: Apache-2.0
"""Safetensors files of a checkpoint, memory-mapped by the safetensors library: names, dtypes, shapes, and the bytes on
demand.

One file ``model.safetensors``, or shards named by ``model.safetensors.index.json``, or either under ModelSlim's names.
Every fault of the files is a :class:`CheckpointError` that names the file; nothing of a tensor is read before it is asked
for.
"""
from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from . import modelslim

PLAIN, INDEX = "model.safetensors", "model.safetensors.index.json"


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded; the text says which file or tensor and why."""


@dataclass(frozen=True)
class Entry:
    """One tensor of a file."""

    shard: str
    dtype: str               # as safetensors writes it, e.g. "F8_E4M3"
    shape: tuple[int, ...]
    stored_name: str         # the name in the file

    @property
    def nbytes(self) -> int:
        """Bytes in the file. The first number in a dtype's name is its width in bits; BOOL has none and is a byte."""
        width = re.search(r"\d+", self.dtype)
        return math.prod(self.shape) * (int(width[0]) if width else 8) // 8


_TOP = {"model.embed_tokens.weight": "embed.weight", "lm_head.weight": "head.weight",
        "model.norm.weight": "norm.weight"}


def official_name(name: str, main_layers: int | None = None) -> str:
    """The official name of a tensor of a file or of a quantisation description: the one place where other writers'
    prefixes are undone. ``layers.N`` with N = ``main_layers`` (the config's num_hidden_layers) is the MTP layer."""
    name = _TOP.get(name, name)
    if name.startswith(("model.layers.", "model.mtp.")):
        name = name.removeprefix("model.")
    if main_layers is not None and name.startswith(prefix := f"layers.{main_layers}."):
        name = "mtp.0." + name.removeprefix(prefix)
    return name


class Checkpoint:
    """The tensors of a directory by their official names.

    Args:
        main_layers: num_hidden_layers, for files that number the MTP layer behind the main ones.

    Attributes: ``directory``; ``entries``: name -> :class:`Entry`; ``schemes``: name of a weight -> ModelSlim's scheme
    ("FLOAT", "W8A8", "W8A8_DYNAMIC"), empty without a description.

    Raises:
        CheckpointError: no weights, a shard named but missing, a truncated or damaged file, a tensor given twice, a
            tensor that the index names but its shard lacks.
    """

    def __init__(self, directory, main_layers: int | None = None):
        self.directory, self.main_layers = Path(directory), main_layers
        self.entries: dict[str, Entry] = {}
        self._files: dict[str, safe_open] = {}  # by shard, kept open
        try:
            description = modelslim.description_of(self.directory)
            self.schemes = modelslim.schemes(description, self._official) if description else {}
            index, single = modelslim.weight_files(self.directory) if description else (None, None)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        if (self.directory / INDEX).exists() or index:
            self._read_index(index or self.directory / INDEX)
        elif (self.directory / PLAIN).exists() or single:
            self._read_header(single.name if single else PLAIN)
        else:
            found = sorted(p.name for p in self.directory.glob("*.safetensors"))
            raise CheckpointError(f"{self.directory}: expected {PLAIN} or {INDEX}, got "
                                  f"{', '.join(found) if found else 'no safetensors files'}")

    def _official(self, name: str) -> str:
        return official_name(name, self.main_layers)

    def quantised(self, name: str) -> bool:
        """Is ``name`` a weight that ModelSlim has quantised to int8?"""
        return self.schemes.get(name, modelslim.FLOAT) != modelslim.FLOAT

    def _read_index(self, path: Path) -> None:
        try:
            weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
            shards = sorted(set(weight_map.values()))
            missing = [s for s in shards if not (self.directory / s).is_file()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path}: expected JSON with a weight_map: {error}") from error
        if missing:
            raise CheckpointError(f"{path}: shards named but missing: {', '.join(missing)}")
        for shard in shards:
            self._read_header(shard)
        lost = [n for n, s in weight_map.items()
                if (e := self.entries.get(official_name(n, self.main_layers))) is None or e.shard != s]
        if lost:
            raise CheckpointError(f"{path}: tensors that their shards lack: {listed(lost)}")

    def _read_header(self, shard: str) -> None:
        path = self.directory / shard
        try:
            file = self._files[shard] = safe_open(path, framework="pt")
        except SafetensorError as error:
            raise CheckpointError(f"{path}: truncated, damaged, or not a safetensors file: {error}") from error
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        for stored in file.keys():
            row, name = file.get_slice(stored), official_name(stored, self.main_layers)
            if name in self.entries:
                raise CheckpointError(f"{path}: {name} is given twice, also by {self.entries[name].shard}")
            self.entries[name] = Entry(shard, row.get_dtype(), tuple(row.get_shape()), stored)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor as stored: a view of the mapped file (copy before writing), or a copy if the file packs it at an
        address that its dtype cannot have."""
        entry = self.entries[name]
        try:
            value = self._files[entry.shard].get_tensor(entry.stored_name)
        except SafetensorError as error:
            raise CheckpointError(f"{self.directory / entry.shard}: {name} cannot be read: {error}") from error
        if value.data_ptr() % value.dtype.itemsize:
            value = value.reshape(-1).view(torch.uint8).clone().view(value.dtype).view(value.shape)
        return value


def listed(names, most: int = 12) -> str:
    """Names for an error text; expert numbers are folded, and a long list is cut with its count."""
    folded: dict[str, int] = {}
    for name in names:
        parts = name.split(".")
        if "experts" in parts:
            parts[parts.index("experts") + 1] = "*"
        key = ".".join(parts)
        folded[key] = folded.get(key, 0) + 1
    shown = [f"{k} ({n} of them)" if n > 1 else k for k, n in folded.items()]
    more = f", and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more
