# SPDX-License-Identifier: Apache-2.0
"""Config, weights and the two models: the Target and its NextN draft layer."""
from __future__ import annotations

from .checkpoint import Checkpoint, CheckpointError
from .config import ConfigError, DeepseekV4Config

__all__ = ["Checkpoint", "CheckpointError", "ConfigError", "DeepseekV4Config", "load_model"]


def load_model(directory, *, dtype=None, device="cpu", nextn: bool | None = None):
    """Load a checkpoint of the official format.

    Args:
        directory: holds config.json and safetensors (one file, or shards with an index).
        dtype: torch dtype of the streams; None: float32 on the CPU, else the config's torch_dtype.
        device: where parameters go.
        nextn: load the NextN layer; None: if the checkpoint has one.

    Returns:
        ``(config, target, nextn layer or None)``. Tensors that no parameter takes are listed in one warning.

    Raises:
        ConfigError, CheckpointError (both ValueError): one text with everything that is missing or wrong.
    """
    import torch

    from . import weights
    from .deepseek_v4 import DeepseekV4Target
    from .nextn import DeepseekV4NextN

    config = DeepseekV4Config.from_dir(directory)
    checkpoint = Checkpoint(directory, config.num_hidden_layers)
    if dtype is None:
        dtype = torch.float32 if torch.device(device).type == "cpu" else getattr(torch, config.torch_dtype)
    there = weights.has_nextn(checkpoint)
    wanted = there if nextn is None else nextn
    specs = weights.target_tensors(config) | (weights.nextn_tensors(config) if wanted else {})
    extra = weights.unknown(checkpoint, specs)
    target = DeepseekV4Target.from_checkpoint(checkpoint, config, dtype=dtype, device=device)
    draft = DeepseekV4NextN.from_checkpoint(checkpoint, config, target=target) if wanted else None
    weights.warn_unknown(checkpoint, [n for n in extra if wanted or not n.startswith("mtp.")])
    return config, target, draft
