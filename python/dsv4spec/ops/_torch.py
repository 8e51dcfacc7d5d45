# SPDX-License-Identifier: Apache-2.0
"""Registration of the ops with ``torch.library``, namespace ``dsv4spec``, without making torch a dependency.

Per op two overloads: the functional one (``torch.ops.dsv4spec.mhc_post``), and ``into``, which writes the
outputs given as ``out=`` (rows of padding stay untouched there, which a copy of results could not promise).
Fake kernels are the op bodies with the C call left out, so fake shapes, strides and dtypes are the real ones
by construction.
"""
from __future__ import annotations

import importlib.abc
import importlib.util
import sys

# The registrations live as long as the Library object. It is kept at torch, not here: a second import of this
# package (a reload, a second copy on the path) then finds it, and an identical registration is harmless.
_HELD_AS = "_dsv4spec_library"


def register_when_torch_is_there(dispatch) -> None:
    """Register the ops of module ``dispatch`` now if torch is imported, else right after its import, whenever
    that is."""
    if "torch" in sys.modules:
        register(dispatch)
    else:
        sys.meta_path.insert(0, _AfterTorch(dispatch))


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch as the other finders do, and adds the registration to the end of its import."""

    def __init__(self, dispatch):
        self.dispatch, self.searching = dispatch, False

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            register(self.dispatch)

        spec.loader.exec_module = exec_module
        return spec


def register(dispatch) -> None:
    """Define all ops of ``dispatch`` with torch; a second, identical registration in one process changes
    nothing.

    Raises:
        RuntimeError: another dsv4spec, with other schemas, is registered in this process.
    """
    import torch

    dispatch.torch_is_there(torch)
    schemas = {op_.name: op_.schema for op_ in dispatch.OPS.values()}
    held = getattr(torch.library, _HELD_AS, None)
    if held is not None:
        if held[1] != schemas:
            differing = sorted(n for n in held[1].keys() | schemas.keys() if held[1].get(n) != schemas.get(n))
            raise RuntimeError("dsv4spec: torch already holds ops of another dsv4spec version; they differ in: "
                               + ", ".join(differing))
        return
    library = torch.library.Library("dsv4spec", "FRAGMENT")
    for op_ in dispatch.OPS.values():
        overloads = [(op_.name, op_.schema, _functional)]
        if into := _into_schema(op_.schema, op_.passes_through):
            overloads.append((op_.name + ".into", into, _into))
        for name, schema, make in overloads:
            library.define(name + schema, tags=(torch.Tag.needs_exact_strides,))
            library.impl(name, make(op_, dispatch.run), "CompositeExplicitAutograd")
            torch.library.register_fake("dsv4spec::" + name, make(op_, dispatch.fake), lib=library)
            _no_derivative(torch, library, op_.name, name)
    setattr(torch.library, _HELD_AS, (library, schemas))


def _no_derivative(torch, library, op_name: str, name: str) -> None:
    """No gradient gets lost in silence: the results of a functional form raise at the backward pass, as torch's own ops
    without a derivative do; a form that writes into its arguments refuses, as torch's ``out=`` does. (Not by
    ``register_autograd``, which takes no tensors by keyword.) A tangent of forward mode is refused at the call."""
    packet, _, overload = name.partition(".")
    form = getattr(getattr(torch.ops.dsv4spec, packet), overload or "default")
    names, writes = [a.name for a in form._schema.arguments], form._schema.is_mutable
    none = f"{op_name}: no derivative is defined; detach its inputs, or call it under torch.no_grad()"
    duals = torch.autograd.forward_ad

    class NoDerivative(torch.autograd.Function):
        @staticmethod
        def forward(ctx, compute, *inputs):
            with torch._C._AutoDispatchBelowAutograd():
                return compute()

        @staticmethod
        def backward(ctx, *gradients):
            raise RuntimeError(none)

    def autograd(keyset, *args, **kwargs):
        def compute():
            return form.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)

        if duals._current_level >= 0 and any(duals.unpack_dual(v).tangent is not None for v in (*args, *kwargs.values())
                                             if isinstance(v, torch.Tensor)):
            raise RuntimeError(none.replace("no_grad", "inference_mode"))  # no_grad lets forward mode go on
        if not torch.is_grad_enabled():
            return compute()
        wanting = {argument: value for argument, value in (*zip(names, args), *kwargs.items())
                   if isinstance(value, torch.Tensor) and value.requires_grad}
        if not wanting:
            return compute()
        if writes:
            raise ValueError(f"{op_name}: {next(iter(wanting))}: expected a tensor that requires no gradient where the op "
                             "writes into its arguments (it has no derivative), got one that does; call it under "
                             "torch.no_grad()")
        return NoDerivative.apply(compute, *wanting.values())

    library.impl(name, autograd, "Autograd", with_keyset=True)


def call(op_, args, kwargs):
    """The call as torch sees it (torch.compile, FakeTensor, other tensor subclasses, gradients)."""
    import torch

    packet = getattr(torch.ops.dsv4spec, op_.name)
    out = kwargs.pop("out", None)
    if out is not None:
        outputs = out if isinstance(out, (tuple, list)) else (out,)
        named = {f"out_{i}": o for i, o in enumerate(outputs) if i not in _given(op_, kwargs)}
        packet.into(*args, **kwargs, **named)
        return out
    result = packet.default(*args, **kwargs)
    if given := _given(op_, kwargs):
        return tuple(kwargs[given[i]] if i in given else r for i, r in enumerate(result))
    return result


def _given(op_, kwargs) -> dict[int, str]:
    return {i: name for i, name in op_.passes_through.items() if kwargs.get(name) is not None}


def _functional(op_, invoke):
    """The op as a function; ``invoke(op, args, kwargs)`` computes or fakes it."""

    def functional(*args, **kwargs):
        from ._dispatch import new

        result = invoke(op_, args, kwargs)
        if given := _given(op_, kwargs):  # torch forbids a result that is an argument
            return tuple(new(r, (0,)) if i in given else r for i, r in enumerate(result))
        return result

    return functional


def _into(op_, invoke):
    """The op writing into its arguments ``out_0``, ``out_1``, ..."""
    count = result_count(op_.schema)

    def into(*args, **kwargs):
        out = tuple(kwargs.pop(f"out_{i}", None) for i in range(count))
        given = _given(op_, kwargs)
        out = tuple(kwargs[given[i]] if i in given else o for i, o in enumerate(out))
        invoke(op_, args, kwargs | {"out": out if count > 1 else out[0]})

    return into


def result_count(schema: str) -> int:
    return schema.rsplit("->", 1)[1].count("Tensor")


def _into_schema(schema: str, passes_through: dict) -> str | None:
    """``(Tensor x, *, int n) -> Tensor`` becomes ``(Tensor x, *, int n, Tensor(o0!) out_0) -> ()``."""
    count = result_count(schema)
    if count == 0:
        return None
    arguments = schema.rsplit("->", 1)[0].strip()[1:-1]
    outs = ", ".join(f"Tensor(o{i}!){'? out_%d=None' % i if i in passes_through else ' out_%d' % i}" for i in range(count))
    return f"({arguments}, {'' if '*,' in arguments else '*, '}{outs}) -> ()"
