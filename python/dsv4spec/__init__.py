# SPDX-License-Identifier: Apache-2.0
"""dsv4spec: kernels and a minimal worker for DeepSeek-V4 MTP / NextN speculative decoding."""
from . import ops
from .ops import use_backend

__version__ = ops._dispatch._C.version
__all__ = ["ops", "use_backend", "__version__"]
