# SPDX-License-Identifier: Apache-2.0
"""dsv4spec: kernels and a minimal worker for DeepSeek-V4 MTP / NextN speculative decoding."""
import importlib

from ._stamp import warn_if_stale
from ._version import __version__

try:
    _C = importlib.import_module("dsv4spec._C")
except ModuleNotFoundError as e:
    if e.name != "dsv4spec._C":
        raise
    import sys

    raise ImportError(f"dsv4spec: {__path__[0]} has no compiled part for Python {sys.version_info[0]}."
                      f"{sys.version_info[1]}; build it with: pip install .") from e
if _C.version != __version__:
    raise ImportError(f"dsv4spec: the Python files in {__path__[0]} are of version {__version__}, the compiled part "
                      f"({_C.__file__}) of version {_C.version}; rebuild with: pip install .")
warn_if_stale(__path__[0], _C.source_hash)

from . import ops
from .ops import use_backend

# Imported on first use, so that `import dsv4spec` stays quick and needs no torch.
_LAZY = {
    "backends": "info",
    "build_info": "info",
    "Engine": "engine",
    "GenerationError": "engine",
    "SamplingParams": "request",
    "SpeculativeConfig": "spec.options",
    "get_include": "paths",
    "get_library": "paths",
    "get_cmake_dir": "paths",
    "get_pkgconfig_dir": "paths",
}
__all__ = ["ops", "use_backend", "__version__", *_LAZY]


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module 'dsv4spec' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"dsv4spec.{_LAZY[name]}"), name)
    except ModuleNotFoundError as error:
        from ._extras import MODELS, needs

        if error.name not in MODELS:
            raise
        raise ModuleNotFoundError(needs(f"dsv4spec.{name}", error.name), name=error.name) from None
