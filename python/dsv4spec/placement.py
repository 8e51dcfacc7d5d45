# SPDX-License-Identifier: Apache-2.0
"""Where a model runs and in which dtype."""
from __future__ import annotations

import contextlib
import importlib.util
import logging

import torch

from . import _C
from .models.config import DeepseekV4Config

log = logging.getLogger("dsv4spec")
_SMALL_MATRIX = 1 << 20  # weights that one core reads in the time it takes to wake a second one, some times over
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_AVAILABLE = {"cuda": lambda: torch.cuda.is_available(), "npu": lambda: _npu_available()}


def _npu_available() -> bool:
    if importlib.util.find_spec("torch_npu") is None:
        return False
    importlib.import_module("torch_npu")
    return torch.npu.is_available()


def resolve_device(name) -> torch.device:
    """"auto", "cpu", "cuda" or "npu" (also with an index, or a torch.device).

    "auto" takes a device that torch sees and that a backend was built for, and says so when it leaves one out.
    Raises ValueError if the named device is not there."""
    if name == "auto":
        for kind, available in _AVAILABLE.items():
            if available():
                row = _C.backends()[kind]
                if row["loadable"]:
                    return torch.device(kind)
                log.warning("device auto: %s is there but not used: backend %s: %s", kind, kind, row["why_not"])
        return torch.device("cpu")
    kind = str(name).partition(":")[0]
    if kind not in ("cpu", *_AVAILABLE):
        raise ValueError(f"device: expected auto, cpu, cuda or npu, got {name}")
    if kind != "cpu" and not _AVAILABLE[kind]():
        raise ValueError(f"device: expected a device that torch can see, got {name}, which is not available here")
    return torch.device(name)


def resolve_dtype(name, device: torch.device, directory) -> torch.dtype:
    """float32 or bfloat16. "auto": float32 on the CPU (the exact path), the checkpoint's torch_dtype on devices."""
    if name == "auto":
        name = "float32" if device.type == "cpu" else DeepseekV4Config.from_dir(directory).torch_dtype
    dtype = DTYPES.get(name, name)
    if dtype not in DTYPES.values():
        raise ValueError(f"dtype: expected auto, {' or '.join(DTYPES)}, got {name}")
    return dtype


@contextlib.contextmanager
def torch_threads(config: DeepseekV4Config, device: torch.device):
    """Inside, a small model on the CPU runs torch's products on one thread; torch's setting is restored after.

    Torch splits even products of a few microseconds, and its threads wait for each other by spinning: on a machine
    whose cores have other work, that costs time slices (measured on two busy cores at width 128: 16 times the CPU time
    and the run time). The ops' own threads take ranges when they have time, and are not limited here.
    """
    c = config
    largest = max(c.vocab_size * c.hidden_size, c.num_attention_heads * c.head_dim * c.q_lora_rank,
                  c.o_groups * c.o_lora_rank * c.hidden_size)
    before = torch.get_num_threads()
    if device.type != "cpu" or largest > _SMALL_MATRIX or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
