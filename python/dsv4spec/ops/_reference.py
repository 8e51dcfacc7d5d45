# SPDX-License-Identifier: Apache-2.0
"""Running the torch reference of an op behind the same contract as its kernels."""
from __future__ import annotations

import importlib
import inspect

from dsv4spec import _C
from dsv4spec._extras import needs


def run(op_, args, kwargs):
    """Check the contract by the C ABI (which launches nothing), then run the reference into the outputs. A
    reference that takes ``out`` gets the caller's, to read there what padding rows keep."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(needs(f"{op_.name}: the reference", "torch"), name="torch") from None

    before = _C.check_only(True)  # of this thread: calls of others go on launching
    try:
        outputs = op_.body(*args, **kwargs)
    finally:
        _C.check_only(before)
    reference = getattr(importlib.import_module(f"dsv4spec.reference.{op_.family}"), op_.name)
    keywords = {k: _to_torch(v) for k, v in kwargs.items() if k != "out"}
    if kwargs.get("out") is not None and "out" in inspect.signature(reference).parameters:
        keywords["out"] = _to_torch(outputs)
    with torch.no_grad():
        result = reference(*_to_torch(args), **keywords)
        if outputs is None:
            return None
        for o, r in zip(_as_tuple(_to_torch(outputs)), _as_tuple(result)):
            if o is not r:
                o.copy_(r)
    return outputs


def _as_tuple(x):
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _to_torch(x):
    import torch

    if isinstance(x, (tuple, list)):
        return tuple(_to_torch(item) for item in x)
    return torch.from_dlpack(x) if not isinstance(x, torch.Tensor) and hasattr(x, "__dlpack__") else x
