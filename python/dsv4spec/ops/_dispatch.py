# SPDX-License-Identifier: Apache-2.0
"""How a call of ``dsv4spec.ops.<op>`` reaches a kernel.

Every op is one Python function (its *body*) that allocates outputs and hands all tensors to the C ABI by
:func:`kernel`. The :func:`op` decorator adds, once for all ops, the other three ways in:

- ``torch.library`` registration in the namespace ``dsv4spec``. The fake kernel *is* the body with the C call
  left out, so fake shapes, strides and dtypes are the real ones by construction.
- the backend route (:func:`use_backend`): kernels of the tensors' device, a named backend, or the reference.
  The reference runs behind the same contract checks (the C ABI checks and launches nothing).
- NumPy (or any DLPack) inputs, without torch.
"""
from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from dataclasses import dataclass, field

from dsv4spec import _C

from . import _device, _explain, _reference, _torch

BACKENDS = ("reference", "cpu", "cuda", "npu", "cuda_emu", "ascend_emu")


@dataclass
class _Route:
    """The process-wide route of ops. ``name`` None: the backend of the tensors' device."""

    name: str | None = None
    missing: str = "error"
    failed: Exception | None = None  # why the backend that DSV4SPEC_BACKEND names cannot be had: raised by every op
    direct: frozenset[str] = frozenset()  # ops that this route never sends to the reference: a call need not look
    lock: threading.Lock = field(default_factory=threading.Lock)  # of those who change it
    used_reference: set[str] = field(default_factory=set)


_route = _Route()


class _Thread(threading.local):
    """What one thread is at: others go on calling kernels while it runs a fake kernel."""

    faking = False  # inside a fake kernel: allocate, do not call


_thread = _Thread()
_SCALARS = frozenset((int, float, bool, str, type(None)))
_PLAIN = {*_SCALARS, tuple, list}  # argument types that need no look; torch's join at its import


def _compiling() -> bool:  # torch.compiler.is_dynamo_compiling once torch is there
    return False


def _recording() -> bool:  # torch.is_grad_enabled once torch is there
    return False


class _forward_ad:  # torch.autograd.forward_ad once torch is there
    _current_level = -1


_tensors: tuple[type, ...] = ()  # torch's, once it is there


def torch_is_there(torch) -> None:
    """Make calls watch for torch.compile, tensor subclasses and gradients."""
    global _compiling, _recording, _forward_ad, _tensors
    _compiling, _recording = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled
    _forward_ad = torch.autograd.forward_ad
    _tensors = (torch.Tensor, torch.nn.Parameter)
    _PLAIN.update(_tensors)


class MissingKernel(NotImplementedError):
    """A backend has no kernel for an op, and the caller did not ask for the reference by name."""


@functools.cache
def backend_ops(name: str) -> frozenset[str]:
    """Ops that backend ``name`` has kernels for."""
    if name == "reference":
        return frozenset(OPS)
    row = _C.backends()[name]
    if not row["loadable"]:
        raise RuntimeError(f"backend {name}: {row['why_not']}")
    return frozenset(row["ops"])


@contextlib.contextmanager
def use_backend(name: str | None, *, missing: str = "error", used: set[str] | None = None):
    """Route every op of the process to one backend inside a ``with`` block.

    Args:
        name: one of ``BACKENDS``, or None for the backend of the tensors' device.
        missing: ``"error"`` (an op without a kernel raises :class:`MissingKernel`) or ``"reference"`` (such
            an op runs its torch reference; ``used_reference()`` lists the ops that did).
        used: a set that takes the names of those ops instead of ``used_reference()``.

    Raises:
        ValueError: unknown name or policy. RuntimeError: the backend cannot be loaded; the text says why.
    """
    if missing not in ("error", "reference"):
        raise ValueError(f"use_backend: missing: expected 'error' or 'reference', got {missing!r}")
    before, list_before = (_route.name, _route.missing, _route.failed), _route.used_reference
    changes = before != (name, missing, None)  # a block inside a block of the same route costs next to nothing
    if changes:
        _set_route(name, missing)
    if used is not None:
        _route.used_reference = used
    try:
        yield
    finally:
        if changes:
            _set_route(*before)
        _route.used_reference = list_before


def _set_route(name: str | None, missing: str, failed: Exception | None = None) -> None:
    with _route.lock:
        # Not "reference", with which the C ABI launches nothing: a kernel that another thread's call is on its way to has
        # to run, or that call would return memory that nobody wrote. References check by check_only, of their thread.
        _C.use_backend(None if failed or name == "reference" else name)
        direct = frozenset() if failed else _direct_ops(name, missing)
        _route.name, _route.missing, _route.failed, _route.direct = name, missing, failed, direct


def _direct_ops(name: str | None, missing: str) -> frozenset[str]:
    """Ops whose body runs whatever the arguments are."""
    if name == "reference":
        return frozenset()
    return frozenset(OPS) if missing == "error" else _kernels_everywhere(name)


@functools.cache
def _kernels_everywhere(name: str | None) -> frozenset[str]:
    """Ops with a kernel in backend ``name``, or for None in every device backend that can be loaded."""
    if name is not None:
        return backend_ops(name)
    rows = _C.backends()
    return frozenset.intersection(*(frozenset(rows[b]["ops"]) for b in ("cpu", "cuda", "npu")
                                    if b in rows and rows[b]["loadable"]))


def use_native(device) -> bool:
    """May the host compute by itself what integer ops give for tensors of ``device``? Where no backend is asked for."""
    return device.type == "cpu" and _route.name is None


def current_backend() -> str | None:
    """The backend that :func:`use_backend` or DSV4SPEC_BACKEND chose; None: that of the tensors' device."""
    return _route.name


def used_reference() -> list[str]:
    """Ops that ran their reference for want of a kernel since :func:`clear_used_reference`."""
    return sorted(_route.used_reference)


def clear_used_reference() -> None:
    _route.used_reference.clear()


def kernel(name: str, *args) -> None:
    """Call op ``name`` of the C ABI with its arguments in struct order (nothing inside a fake kernel)."""
    if not _thread.faking:
        try:
            getattr(_C, name)(*args)
        except NotImplementedError as error:
            raise MissingKernel(str(error)) from None


# ---------------------------------------------------------------------------------------------- allocation
def is_torch(x) -> bool:
    return isinstance(x, _tensors[:1])  # of no type while another thread is at the import of torch


def new(like, shape, dtype: str | None = None):
    """Uninitialised C-contiguous array in the library, on the device and (unless ``dtype``) of the dtype of
    ``like``."""
    if is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype) if dtype else like.dtype, device=like.device)
    if type(like).__module__.startswith("cupy"):
        return _device.empty(like, shape, dtype or like.dtype)
    import numpy as np

    return np.empty(shape, dtype=dtype or like.dtype)


def full(like, shape, value, dtype: str | None = None):
    """As :func:`new`, filled with ``value``."""
    out = new(like, shape, dtype)
    if is_torch(out):
        out.fill_(value)
    else:
        out[...] = value
    return out


def zeros(like, shape, dtype: str | None = None):
    """As :func:`new`, filled with zeros."""
    return full(like, shape, 0, dtype)


# ------------------------------------------------------------------------------------------ the decorator
@dataclass(frozen=True)
class Op:
    """One row of the op table."""

    name: str
    family: str      # module under dsv4spec.ops and dsv4spec.reference
    schema: str      # torch.library schema without the name
    mutates: tuple[str, ...]  # arguments written in place besides `out`
    passes_through: dict[int, str]  # results that are the named argument itself, where that is given
    body: object
    public: object


OPS: dict[str, Op] = {}


def op(schema: str, *, mutates: tuple[str, ...] = (), passes_through: dict[int, str] | None = None):
    """Make a public op of a body ``f(*tensors, *, scalars, out=None)``; see the module docstring.

    ``schema`` follows ``torch.library`` and leaves ``out`` away; ``_torch`` derives from it the form that
    writes ``out``.
    ``passes_through[i] = "argument"``: result i is that argument itself, where it is given.
    """

    def decorate(body):
        name, family = body.__name__, body.__module__.rsplit(".", 1)[-1]

        @functools.wraps(body)
        def public(*args, **kwargs):
            if _compiling() or not _C.only_types(_PLAIN, args, kwargs):
                if _traced((*args, *kwargs.values())):
                    return _torch.call(OPS[name], args, kwargs)
            if _forward_ad._current_level >= 0 or _recording() and _wants_gradient((*args, *kwargs.values())):
                return _torch.call(OPS[name], args, kwargs)  # whose results know that there is no derivative
            try:
                if name in _route.direct:
                    return body(*args, **kwargs)
                return run(OPS[name], args, kwargs)
            except (AttributeError, IndexError, TypeError, RuntimeError, OverflowError, ValueError, MemoryError) as error:
                _explain.refuse(OPS[name], args, kwargs, error)
                raise

        # A code object per op: torch.compile counts its recompilations by code object, and all ops together
        # are many.
        public.__code__ = public.__code__.replace(co_name=name)
        OPS[name] = Op(name, family, schema, mutates, passes_through or {}, body, public)
        return public

    return decorate


def has_kernel(name: str, device_type: str) -> bool:
    """Would op ``name`` on tensors of that device run a kernel of its own (or what ``use_backend("reference")`` asks for)?"""
    _expect_a_route()
    return name in backend_ops(_route.name or _BACKEND_OF.get(device_type, "cpu"))


_BACKEND_OF = {"cpu": "cpu", "cuda": "cuda", "npu": "npu"}


def route_of_the_environment() -> None:
    """The first route, once all ops are defined. Where DSV4SPEC_BACKEND names a backend that cannot be had, importing goes
    on: ``dsv4spec info`` says why it is off."""
    name = os.environ.get("DSV4SPEC_BACKEND") or None
    try:
        _set_route(name, "error")
    except (ValueError, RuntimeError) as error:
        _set_route(name, "error", type(error)(f"DSV4SPEC_BACKEND={name}: {error}"))


def _expect_a_route() -> None:
    if _route.failed:
        raise _route.failed.with_traceback(None)


def _device_backend(args, kwargs) -> str:
    for a in (*args, *kwargs.values()):
        if is_torch(a):
            return _BACKEND_OF.get(a.device.type, "cpu")
    return "cpu"


def _wants_reference(name: str, args, kwargs) -> bool:
    if _route.name == "reference":
        return True
    if _route.missing != "reference" or name in backend_ops(_route.name or _device_backend(args, kwargs)):
        return False
    _route.used_reference.add(name)
    return True


def _traced(values) -> bool:
    """Is this call seen by torch.compile or under a tensor subclass (FakeTensor, ...)?"""
    return _compiling() or any(type(v) not in _PLAIN and is_torch(v) for v in values)


def _wants_gradient(values) -> bool:
    for v in values:
        if type(v) in _tensors:
            if v.requires_grad:
                return True
        elif type(v) not in _SCALARS:
            if _wants_gradient(v) if isinstance(v, (tuple, list)) else is_torch(v) and v.requires_grad:
                return True
    return False


def run(op_: Op, args, kwargs):
    """The call of real tensors, by the route in force; what ``torch.library`` runs."""
    _expect_a_route()
    if _wants_reference(op_.name, args, kwargs):
        return _reference.run(op_, args, kwargs)
    return op_.body(*args, **kwargs)


def fake(op_: Op, args, kwargs):
    """The call of fake tensors: the body allocates and launches nothing."""
    before, _thread.faking = _thread.faking, True
    try:
        return op_.body(*args, **kwargs)
    finally:
        _thread.faking = before
