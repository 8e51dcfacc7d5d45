# SPDX-License-Identifier: Apache-2.0
"""The way of a device tensor to a launch, on a machine without a device: the stream is the tensors' library's current
one, scratch comes from its allocator, and what cannot be done is refused in one sentence (A22). What a real stream does
is tested on a GPU, in test_cuda_gpu.py."""
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import dsv4spec
import pytest
import torch
from build_util import ROOT, cxx, run
from dsv4spec import _C
from dsv4spec.ops import _device

PACKAGE = Path(dsv4spec.__file__).parent
SETUP = """
import ctypes, sys
sys.path.insert(0, TESTS)
import fake_device as fake
import torch, dsv4spec
from dsv4spec import _C
class Launch(ctypes.Structure):
    _fields_ = [("stream", ctypes.c_void_p), ("device", ctypes.c_int32), ("workspace", ctypes.c_void_p)]
def pre(wrap, stream=None):
    T, hc, d = 3, 4, 32
    args = [torch.ones(T, hc, d), torch.ones(24, hc * d), torch.ones(24), torch.ones(3)]
    outs = {"y": torch.ones(T, d), "post": torch.ones(T, hc), "comb": torch.ones(T, hc, hc)}
    values = []
    for name, kind in _C.op_fields()["mhc_pre"]:
        if kind == "in": values.append(wrap(args.pop(0)))
        elif kind == "out": values.append(wrap(outs.pop(name)))
        elif kind in ("int", "double"): values.append(1 if kind == "int" else 1e-6)
        else: values.append(None)
    _C.mhc_pre(*values)
    return seen()
def seen():
    function = ctypes.CDLL(PLUGIN).seen
    function.restype = ctypes.POINTER(Launch)
    return function().contents
"""


def _package(folder: Path, name: str, device: str) -> Path:
    """A copy of the package with the test's own backend ``name``."""
    skip = shutil.ignore_patterns("__pycache__", "*.safetensors", "*cuda*", "*_emu*")
    folder = Path(shutil.copytree(PACKAGE, folder / "dsv4spec", ignore=skip))
    result = run(cxx(), "-std=c++17", "-shared", "-fPIC", f"-I{ROOT}/csrc", f"-I{ROOT}/include",
                 f'-DSOURCE_HASH="{_C.source_hash}"', f'-DNAME="{name}"', f"-DDEVICE={device}",
                 ROOT / "tests" / "fake_cuda.cpp", "-o", folder / "lib" / f"libdsv4spec_{name}.so")
    assert result.returncode == 0, result.stdout
    return folder


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    return _package(tmp_path_factory.mktemp("fake"), "cuda", "kDLCUDA")


def python(package, code, backend="cuda"):
    head = f"TESTS, PLUGIN = {str(ROOT / 'tests')!r}, {str(package / 'lib' / f'libdsv4spec_{backend}.so')!r}\n"
    result = run(sys.executable, "-c", head + SETUP + code, cwd="/", PYTHONPATH=package.parent, DSV4SPEC_BACKEND=None)
    return result.returncode, result.stdout


def test_a22_launches_on_the_current_stream_of_the_exchange_api(package):
    """Such a tensor is not torch's own, so that its scratch is the part that is refused, and no launch is made."""
    code, text = python(package, """
try: pre(fake.Tensor)
except ValueError as e: print(e)
assert seen().stream is None
from dsv4spec.ops import _device
kept = []
def scratch(tensor, size):
    kept.append(torch.empty(size, dtype=torch.uint8))
    return kept[-1], kept[-1].data_ptr()
_device.scratch = scratch
for fake.stream in (0x5150, 0x6160):
    launch = pre(fake.Tensor)
    assert (launch.stream, launch.device, launch.workspace) == (fake.stream, 3, kept[-1].data_ptr())
    assert kept[-1].tolist() == [7] * 640
""")
    assert code == 0, text
    assert text.startswith("mhc_pre: residual: expected a tensor of torch or CuPy, got Tensor of fake_device, whose")


def test_a22_cupy_gives_its_stream_and_memory(package):
    code, text = python(package, """
fake.install_cupy()
launch = pre(fake.Array)
assert launch.stream == fake.stream and launch.device == 3 and launch.workspace
assert fake.Memory.freed == 1             # kept to the end of the call, not longer
assert set(fake.Array.asked) == {-1}      # launched on the producer's own stream: nothing to wait for
""")
    assert code == 0, text


def test_a22_two_libraries_on_one_stream_may_share_a_call(package):
    """Arguments of two libraries, whose current streams differ: one of them would be read too early, or late."""
    code, text = python(package, """
fake.install_cupy()
cupy = sys.modules["cupy"]
def mixed():
    kinds = iter([fake.Array] + [fake.Tensor] * 6)
    return lambda t: next(kinds)(t)
for first, other, fits in ((0x7170, 0x5150, False), (0, 1, True), (1, 0, True), (2, 0, False)):
    cupy.cuda.get_current_stream, fake.stream = lambda: fake.types.SimpleNamespace(ptr=first), other
    try:
        assert pre(mixed()).stream == (first or None) and fits
    except ValueError as e:
        assert not fits
        print(e)
""")
    assert code == 0, text
    rule = "mhc_pre: fn: expected a tensor whose library works on stream {}, as that of the first, got Tensor on {}"
    assert text.splitlines() == [rule.format("0x7170", "0x5150"), rule.format("0x2", "0x0")], text


class Foreign:
    """A CPU array of another library, with the protocol of before DLPack 1.0 and no streams."""

    def __init__(self, inner):
        self.inner = inner

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self):
        return self.inner.__dlpack__()


def test_a22_arrays_of_other_libraries_on_the_cpu(monkeypatch):
    """They are asked for no stream. JAX's may be read, but cannot say that they must not be written; NumPy's can."""
    y, residual, post, comb = torch.ones(3, 16), torch.ones(3, 4, 16), torch.ones(3, 4), torch.ones(3, 4, 4)
    out = torch.zeros(3, 4, 16)
    _C.mhc_post(*map(Foreign, (y, residual, post, comb, out)))
    assert (out == 5).all()
    locked = out.numpy()
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="^mhc_post: out: "):
        _C.mhc_post(y, residual, post, comb, locked)
    monkeypatch.setattr(Foreign, "__module__", "jaxlib._jax")
    out.zero_()
    _C.mhc_post(*map(Foreign, (y, residual, post, comb)), out)
    with pytest.raises(ValueError, match="^mhc_post: out: expected writable memory, got a JAX array, which cannot be changed"):
        _C.mhc_post(y, residual, post, comb, Foreign(out))


def test_a22_a_used_capsule_is_refused(monkeypatch):
    y, residual, post, comb = torch.ones(3, 16), torch.ones(3, 4, 16), torch.ones(3, 4), torch.ones(3, 4, 4)
    capsule = y.__dlpack__()
    monkeypatch.setattr(Foreign, "__dlpack__", lambda self: capsule)
    out = torch.zeros(3, 4, 16)
    _C.mhc_post(Foreign(y), residual, post, comb, out)
    with pytest.raises(ValueError, match="^mhc_post: y: expected an unused DLPack capsule, got PyCapsule"):
        _C.mhc_post(Foreign(y), residual, post, comb, out)


def test_other_libraries_are_refused_by_name(package):
    code, text = python(package, """
try: pre(fake.Array)
except ValueError as e: print(e)
""")
    assert code == 0 and "mhc_pre: residual: expected a tensor of torch or CuPy, got Array of fake_device" in text, text


def test_memory_of_another_device_is_refused(package):
    """A routed backend never gets addresses that are not its own: a kernel would read wild memory."""
    code, text = python(package, """
for backend, wrap in (("cuda", lambda t: t), ("cpu", fake.Tensor)):
    try:
        with dsv4spec.use_backend(backend): pre(wrap)
    except ValueError as e: print(e)
""")
    assert code == 0, text
    assert "mhc_pre: device: expected cuda:0 for backend cuda, got cpu" in text
    assert "mhc_pre: device: expected cpu for backend cpu, got cuda:3" in text


def test_scratch_of_torch_is_its_own_allocation():
    owner, address = _device.scratch(torch.ones(3), 640)
    assert owner.numel() == 640 and owner.dtype == torch.uint8 and address == owner.data_ptr() and address % 64 == 0


# ------------------------------------------------------------------------------------------------------------ NPU
def test_a22_an_npu_is_never_launched_on_past_its_queue(tmp_path):
    """The stream of NPU tensors comes from ops._device, which empties torch_npu's queue; not from the exchange API."""
    code, text = python(_package(tmp_path, "npu", "kDLExtDev"), """
from dsv4spec.ops import _device
fake.kind = fake.NPU
memory = torch.empty(640, dtype=torch.uint8)
_device.scratch = lambda tensor, size: (memory, memory.data_ptr())
try: pre(fake.Tensor)
except ValueError as e: print(e)
_device.stream_of = lambda tensor: 0x7170
launch = pre(fake.Tensor)
assert (launch.stream, launch.device) == (0x7170, 3)
""", backend="npu")
    assert code == 0, text
    assert text.startswith("mhc_pre: residual: expected a tensor of torch or CuPy, got Tensor of fake_device, whose")


def test_the_queue_of_torch_npu_is_emptied_when_its_stream_is_asked_for(monkeypatch):
    asked = []

    class Stream:
        @property
        def npu_stream(self):
            asked.append("empty the queue")
            return 0x7170

    def current_stream(device):
        asked.append(device)
        return Stream()

    monkeypatch.setattr(torch, "npu", SimpleNamespace(current_stream=current_stream), raising=False)
    tensor = torch.ones(1)
    assert _device.stream_of(tensor) == 0x7170 and asked == [tensor.device, "empty the queue"]
