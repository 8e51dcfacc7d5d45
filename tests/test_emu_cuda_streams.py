# SPDX-License-Identifier: Apache-2.0
"""Streams and graphs of the emulated CUDA run time: what a capture records, and what it refuses."""
import ctypes

import numpy as np
import pytest
from emu_util import Emulator, library, pointer

OK, INVALID_VALUE, INVALID_HANDLE, ILLEGAL_STATE = 0, 1, 400, 401
UNSUPPORTED, INVALIDATED, IMPLICIT, CAPTURED_EVENT = 900, 901, 906, 907
GLOBAL, RELAXED = 0, 2
TO_DEVICE = 1
Handle = ctypes.c_void_p


class Runtime:
    """The functions of the CUDA run time that the emulator exports; each call returns its error code."""

    def __init__(self):
        self.emulator = Emulator(library("cuda_emu_selftest"))
        self.lib = self.emulator.lib
        self.lib.cudaGetErrorName.restype = ctypes.c_char_p

    def stream(self, flags=0) -> Handle:
        s = Handle()
        assert self.lib.cudaStreamCreateWithFlags(ctypes.byref(s), flags) == OK
        return s

    def begin(self, s, mode=GLOBAL):
        return self.lib.cudaStreamBeginCapture(s, mode)

    def end(self, s):
        graph = Handle()
        return self.lib.cudaStreamEndCapture(s, ctypes.byref(graph)), graph

    def add(self, x, value, s):
        return self.lib.selftest_add(pointer(x), ctypes.c_float(value), x.size, s)

    def fill(self, x, byte, s):
        return self.lib.cudaMemsetAsync(pointer(x), byte, ctypes.c_size_t(x.nbytes), s)

    def copy(self, to, source, s):
        return self.lib.cudaMemcpyAsync(pointer(to), pointer(source), ctypes.c_size_t(to.nbytes), TO_DEVICE, s)


@pytest.fixture
def cuda():
    runtime = Runtime()
    yield runtime
    runtime.lib.cudaGetLastError()


def test_a_captured_stream_runs_when_its_graph_does(cuda):
    s, x, y = cuda.stream(), np.zeros(100, np.float32), np.full(100, 7, np.float32)
    assert cuda.begin(s) == OK and cuda.begin(s) == ILLEGAL_STATE
    assert cuda.copy(x, y, s) == OK
    assert cuda.add(x, 2, s) == OK
    assert cuda.fill(y, 0, s) == OK
    assert (x == 0).all() and (y == 7).all(), "nothing has run yet"
    error, graph = cuda.end(s)
    assert error == OK
    count = ctypes.c_size_t()
    assert cuda.lib.cudaGraphGetNodes(graph, None, ctypes.byref(count)) == OK and count.value == 3
    run = Handle()
    assert cuda.lib.cudaGraphInstantiate(ctypes.byref(run), graph, ctypes.c_ulonglong(0)) == OK
    assert cuda.lib.cudaGraphDestroy(graph) == OK
    assert cuda.lib.cudaGraphLaunch(run, s) == OK
    assert (x == 9).all() and (y == 0).all()
    y[:] = 1  # a replay reads memory anew, with the arguments of the capture
    assert cuda.lib.cudaGraphLaunch(run, None) == OK
    assert (x == 3).all() and (y == 0).all()
    assert cuda.lib.cudaGraphExecDestroy(run) == OK
    assert cuda.add(x, 1, s) == OK and (x == 4).all(), "after the capture the stream runs at once again"
    assert cuda.lib.cudaStreamDestroy(s) == OK and cuda.add(x, 1, s) == INVALID_HANDLE


def test_a_launch_that_fails_in_a_graph_fails_the_graph(cuda):
    s = cuda.stream()
    assert cuda.begin(s) == OK
    assert cuda.lib.selftest_add(Handle(64), ctypes.c_float(1), 1, s) == OK
    _, graph = cuda.end(s)
    run = Handle()
    assert cuda.lib.cudaGraphInstantiate(ctypes.byref(run), graph, ctypes.c_ulonglong(0)) == OK
    assert cuda.lib.cudaGraphLaunch(run, s) == 719 and "add: block (0,0,0) thread (0,0,0)" in cuda.emulator.report()


def _malloc(cuda, s):
    return cuda.lib.cudaMalloc(ctypes.byref(Handle()), ctypes.c_size_t(64))


def _copy_and_wait(cuda, s):
    x = np.zeros(4, np.float32)
    return cuda.lib.cudaMemcpy(pointer(x), pointer(x), ctypes.c_size_t(x.nbytes), TO_DEVICE)


FORBIDDEN = {
    "malloc": _malloc,
    "free": lambda cuda, s: cuda.lib.cudaFree(None),
    "malloc async": lambda cuda, s: cuda.lib.cudaMallocAsync(ctypes.byref(Handle()), ctypes.c_size_t(64), s),
    "device sync": lambda cuda, s: cuda.lib.cudaDeviceSynchronize(),
    "stream sync": lambda cuda, s: cuda.lib.cudaStreamSynchronize(s),
    "stream query": lambda cuda, s: cuda.lib.cudaStreamQuery(s),
    "memcpy": _copy_and_wait,
}


@pytest.mark.parametrize("call", FORBIDDEN)
def test_what_a_capture_forbids_spoils_it(cuda, call):
    s, x = cuda.stream(), np.zeros(8, np.float32)
    assert FORBIDDEN[call](cuda, s) == OK, "outside a capture"
    assert cuda.begin(s) == OK and cuda.add(x, 1, s) == OK
    assert FORBIDDEN[call](cuda, s) == UNSUPPORTED
    assert cuda.lib.cudaGetErrorName(UNSUPPORTED) == b"cudaErrorStreamCaptureUnsupported"
    status = ctypes.c_int()
    assert cuda.lib.cudaStreamIsCapturing(s, ctypes.byref(status)) == OK and status.value == 2
    assert cuda.add(x, 1, s) == INVALIDATED
    error, graph = cuda.end(s)
    assert error == INVALIDATED and not graph.value
    assert FORBIDDEN[call](cuda, s) == OK and cuda.add(x, 1, s) == OK and (x == 1).all(), "the stream is free again"


def test_a_relaxed_capture_allows_calls_that_touch_no_stream(cuda):
    s = cuda.stream()
    assert cuda.begin(s, RELAXED) == OK
    assert _malloc(cuda, s) == OK
    assert cuda.end(s)[0] == OK


def test_work_on_the_legacy_stream_spoils_a_capture(cuda):
    s, other, x = cuda.stream(), cuda.stream(flags=1), np.zeros(8, np.float32)
    assert cuda.begin(s) == OK
    assert cuda.add(x, 1, other) == OK and (x == 1).all(), "another stream is not concerned"
    assert cuda.add(x, 1, None) == IMPLICIT and (x == 1).all()
    assert cuda.end(s)[0] == INVALIDATED
    assert cuda.begin(other) == OK
    assert cuda.add(x, 1, None) == OK and (x == 2).all(), "a non-blocking stream does not wait for the legacy one"
    assert cuda.end(other)[0] == OK
    assert cuda.begin(None) == UNSUPPORTED


def test_events_of_a_capture_cannot_be_waited_for(cuda):
    s, event = cuda.stream(), Handle()
    assert cuda.lib.cudaEventCreate(ctypes.byref(event)) == OK
    assert cuda.lib.cudaEventRecord(event, s) == OK and cuda.lib.cudaEventSynchronize(event) == OK
    assert cuda.begin(s) == OK
    assert cuda.lib.cudaEventRecord(event, s) == OK
    assert cuda.lib.cudaEventSynchronize(event) == CAPTURED_EVENT == cuda.lib.cudaEventQuery(event)
    assert cuda.end(s)[0] == OK
    assert cuda.lib.cudaEventDestroy(event) == OK and cuda.lib.cudaEventDestroy(event) == INVALID_HANDLE


def test_the_last_error_stays_until_it_is_read(cuda):
    assert cuda.lib.cudaSetDevice(1) == 101
    assert cuda.lib.cudaPeekAtLastError() == 101 == cuda.lib.cudaGetLastError()
    assert cuda.lib.cudaGetLastError() == OK


def test_device_memory(cuda):
    memory, n = Handle(), ctypes.c_size_t(64)
    assert cuda.lib.cudaMalloc(ctypes.byref(memory), n) == OK and memory.value % 256 == 0
    out = np.zeros(16, np.float32)
    assert cuda.lib.cudaMemcpy(pointer(out), memory, n, 2) == OK
    assert np.isnan(out).all(), "fresh memory is poison"
    assert cuda.lib.cudaMemset(memory, 0, n) == OK and cuda.lib.cudaMemcpy(pointer(out), memory, n, 2) == OK
    assert (out == 0).all()
    assert cuda.lib.cudaFree(memory) == OK and cuda.lib.cudaFree(memory) == INVALID_VALUE


def test_device_attributes(cuda):
    value = ctypes.c_int()
    for attribute, expected in ((16, 132), (75, 9), (76, 0), (97, 227 * 1024), (10, 32), (1, 1024)):
        assert cuda.lib.cudaDeviceGetAttribute(ctypes.byref(value), attribute, 0) == OK and value.value == expected
    assert cuda.lib.cudaDeviceGetAttribute(ctypes.byref(value), 16, 1) == 101
