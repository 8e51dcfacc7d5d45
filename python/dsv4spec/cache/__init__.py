# SPDX-License-Identifier: Apache-2.0
"""Paged KV caches, compressor state and the metadata of a forward."""
from .batch import CompressedView, ForwardBatch, ForwardMode
from .compressor_state import CompressorState
from .kv_cache import KVCache, LayerCache
from .pages import CacheFull
from .window import StaticWindow, Window

__all__ = ["CacheFull", "CompressedView", "CompressorState", "ForwardBatch", "ForwardMode", "KVCache",
           "LayerCache", "StaticWindow", "Window"]
