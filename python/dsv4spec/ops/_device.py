# SPDX-License-Identifier: Apache-2.0
"""What the binding asks of a device tensor's own library: its current stream, and scratch memory for one call.

Scratch comes from the library's caching allocator, on its current stream: it may be given back when the call returns,
because whatever takes it next runs later on that stream; and in a graph capture it is part of the graph's own pool.
"""
from __future__ import annotations

import sys


def stream_of(tensor) -> int:
    """The handle of the stream that ``tensor``'s library now works on. torch's CUDA tensors tell it themselves, by DLPack;
    its NPU tensors are asked here.

    torch_npu launches from a queue that a thread of its own works off (TASK_QUEUE_ENABLE), so that a launch which goes
    straight to the stream could overtake what was called before it. ``npu_stream`` of a stream first waits until that
    queue is empty (for the host's launches, not for the device): all that was called before lies on the stream then,
    and all that is called later goes behind."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return torch.npu.current_stream(tensor.device).npu_stream
    cupy = _cupy(tensor)
    with tensor.device:
        return cupy.cuda.get_current_stream().ptr


def scratch(tensor, size: int) -> tuple[object, int]:
    """``size`` bytes on the device of ``tensor``: an owner to be kept until the call returns, and the address."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        owner = torch.empty(size, dtype=torch.uint8, device=tensor.device)
        return owner, owner.data_ptr()
    cupy = _cupy(tensor)
    with tensor.device:
        owner = cupy.cuda.alloc(size)
    return owner, owner.ptr


def empty(like, shape, dtype):
    """An uninitialised CuPy array on the device of the CuPy array ``like``."""
    with like.device:
        return _cupy(like).empty(shape, dtype)


def _cupy(tensor):
    module = type(tensor).__module__.partition(".")[0]
    if module != "cupy":
        raise TypeError(f"expected a tensor of torch or CuPy, got {type(tensor).__name__} of {module}, whose current "
                        "stream and memory are not known here")
    return sys.modules["cupy"]
