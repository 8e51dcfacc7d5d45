# SPDX-License-Identifier: Apache-2.0
"""How many launches a round takes, by part and by operator: counted while the worker's own parts run as they would be
captured (spec/captured.py), not estimated.

Launches depend on the layer kinds, the dtype and the widths of tables, not on the sizes of matrices: a model is
counted with its own layer list and small matrices of zeros.
"""
from __future__ import annotations

import dataclasses
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .cache import KVCache
from .models.checkpoint import Entry
from .models.config import DeepseekV4Config
from .models.deepseek_v4 import DeepseekV4Target
from .models.dense import few_rows
from .models.nextn import DeepseekV4NextN
from .models.weights import Weights, nextn_tensors, target_tensors
from .ops import _dispatch, use_backend
from .spec.captured import RoundGraph
from .spec.metrics import Metrics
from .spec.options import SpeculativeConfig
from .spec.tree import window_rows
from .spec.worker import EagleWorker

PARTS = ("draft", "verify", "extend")
FEW = 64  # stream rows up to which nextn_fuse_hidden is one CUDA launch (kernels/cuda/nextn_fuse_hidden.cu), else two


class Launches(TorchDispatchMode):
    """Counts, while active, the calls of ops of this package and the operators of torch that launch a kernel.

    Each op is one launch on a device with clusters, but for nextn_fuse_hidden of many rows.

    Attributes: ``ops``, ``torch``: name -> calls; ``norms``: launches for the norms of those many rows."""

    def __init__(self):
        super().__init__()
        self.ops, self.torch, self.norms = Counter(), Counter(), 0

    @property
    def kernels(self) -> int:
        """Launches of this package's CUDA kernels."""
        return sum(self.ops.values()) + self.norms

    @property
    def total(self) -> int:
        return self.kernels + sum(self.torch.values())

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        fresh = any(isinstance(t, torch.Tensor) and t.numel() and t.untyped_storage().data_ptr() not in given
                    for t in tree_leaves(results))
        name = function.overloadpacket.__name__  # what only looks at memory in another way, or takes it, launches nothing
        if (fresh and "empty" not in name) or function._schema.is_mutable:
            self.torch[name] += 1
        return results

    def __enter__(self):
        self._kernel, mine = _dispatch._C, self
        real = self._kernel

        class Counted:
            def __getattr__(self, name):
                if name in _dispatch.OPS:
                    mine.ops[name] += 1
                return getattr(real, name)

            def nextn_fuse_hidden(self, embeds, hidden, *more):
                mine.ops["nextn_fuse_hidden"] += 1
                mine.norms += hidden.numel() > FEW * embeds.shape[1]
                return real.nextn_fuse_hidden(embeds, hidden, *more)

        _dispatch._C = Counted()
        return super().__enter__()

    def __exit__(self, *error):
        _dispatch._C = self._kernel
        return super().__exit__(*error)


class Counting:
    """A capture (spec/captured.py) that runs once and counts."""

    def __init__(self):
        self.parts: list[Launches] = []

    def warm_up(self, function):
        return function()

    def capture(self, function):
        with Launches() as launches:
            result = function()
        self.parts.append(launches)
        return result, lambda: None


class _Blank:
    """A checkpoint of zeros."""

    directory = "(zeros)"

    def __init__(self, specs):
        self.entries = {name: Entry("", "I64" if spec.kind == "ids" else "BF16", spec.shape, name)
                        for name, spec in specs.items()}

    def quantised(self, name: str) -> bool:
        return False

    def tensor(self, name: str) -> torch.Tensor:
        entry = self.entries[name]
        return torch.zeros(entry.shape, dtype=torch.int64 if entry.dtype == "I64" else torch.bfloat16)


def count(config: DeepseekV4Config, speculative: SpeculativeConfig = SpeculativeConfig(), *, size: int = 1,
          dtype=torch.bfloat16, max_len: int = 8192, backend: str | None = None, capture=None) -> dict[str, Launches]:
    """Launches of a round of ``size`` requests by part, counted over padding on the CPU.

    Args:
        backend: see :func:`dsv4spec.use_backend`; ops without a kernel there run their reference, and count as one.
        capture: instead of the one that counts (tests).
    """
    counting = capture or Counting()
    # Of dense products those that a GPU runs: torch's. (Inference mode would show whole linears.)
    with torch.no_grad(), use_backend(backend, missing="reference"), few_rows(0):
        RoundGraph(_worker(_small(config), speculative, size, dtype, max_len), counting, size, speculative.num_steps)
    return dict(zip(PARTS, counting.parts))


def flash(config: DeepseekV4Config) -> DeepseekV4Config:
    """``config`` with the layer list of DeepSeek-V4-Flash: 2 window-only layers, 21 of ratio 4 and 20 of ratio 128."""
    ratios = (0, 0) + (4, 128) * 20 + (4,)
    return dataclasses.replace(config, compress_ratios=ratios, num_hidden_layers=len(ratios), index_topk=512,
                               num_hash_layers=3)


def _small(c: DeepseekV4Config) -> DeepseekV4Config:
    """The same layers with small matrices; index_topk stays, since it decides whether the indexer runs."""
    return dataclasses.replace(
        c, vocab_size=64, hidden_size=64, num_attention_heads=2, head_dim=32, qk_rope_head_dim=16, q_lora_rank=32,
        o_groups=2, o_lora_rank=32, index_n_heads=2, index_head_dim=32, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=32)


def _worker(c, speculative, size, dtype, max_len) -> EagleWorker:
    def weights(specs):
        return Weights(_Blank(specs), specs, block=c.block, dtype=dtype, device="cpu", what="zeros")

    target = DeepseekV4Target(c, weights(target_tensors(c)))
    nextn = DeepseekV4NextN(c, weights(nextn_tensors(c)), target)
    cache = KVCache(c, page_size=64, max_requests=size, max_total_tokens=128, max_len=max_len,
                    num_draft_tokens=window_rows(speculative), prefill_chunk=64, dtype=dtype, device="cpu", draft=True)
    return EagleWorker(target, nextn, cache, speculative, Metrics(speculative.num_steps), vocab_size=c.vocab_size,
                       max_requests=size, max_len=max_len)


# ---------------------------------------------------------------------------------------------------------- the table
def plan(directory) -> dict[str, dict[str, Launches]]:
    """The round of one request and 3 steps in bfloat16, of the layers in ``directory`` and of Flash's."""
    config = DeepseekV4Config.from_dir(directory)
    names = {f"{config.num_hidden_layers} layers": config, "Flash": flash(config)}
    return {name: count(c) for name, c in names.items()}


def format_plan(columns: dict[str, dict[str, Launches]]) -> str:
    """The table of ``dsv4spec info --launches``, as Markdown."""
    heads = [f"{name} {part}" for name in columns for part in PARTS]
    parts = [columns[name][part] for name in columns for part in PARTS]
    rows = [("launches", [p.total for p in parts]), ("of this package's kernels", [p.kernels for p in parts]),
            ("of torch", [sum(p.torch.values()) for p in parts])]
    for title, kind in (("`{}`", "ops"), ("torch `{}`", "torch")):
        names = sorted(set().union(*(getattr(p, kind) for p in parts)))
        rows += [(title.format(name), [getattr(p, kind)[name] for p in parts]) for name in names]
    lines = ["| calls of | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    return "\n".join(lines + [f"| {name} | " + " | ".join(str(n or "") for n in counts) + " |" for name, counts in rows])
