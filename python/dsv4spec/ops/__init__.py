# SPDX-License-Identifier: Apache-2.0
"""The ops of dsv4spec: one function each, whose docstring is its contract. They take torch tensors, NumPy arrays or
any object with ``__dlpack__``."""
from ._dispatch import BACKENDS, OPS, MissingKernel, clear_used_reference, use_backend, used_reference
from .mhc import mhc_post

__all__ = [
    "BACKENDS", "OPS", "MissingKernel", "clear_used_reference", "use_backend", "used_reference",
    # mhc
    "mhc_post",
]
