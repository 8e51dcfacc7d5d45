# SPDX-License-Identifier: Apache-2.0
"""Every sample call, by the CPU kernel that is in force and by the reference: results and written arguments agree."""
import copy
import dataclasses

import torch
from samples import SAMPLES

import dsv4spec
from dsv4spec.ops import use_backend


def _tensors(x):
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, (tuple, list)):
        for item in x:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(x):
        yield from _tensors([getattr(x, f.name) for f in dataclasses.fields(x)])


def _run(backend, name, args, kwargs):
    args, kwargs = copy.deepcopy((args, kwargs))
    with use_backend(backend):
        result = getattr(dsv4spec.ops, name)(*args, **kwargs)
    return [*_tensors(result), *_tensors(args), *_tensors(list(kwargs.values()))]


def check_all() -> int:
    """The number of ops compared."""
    names = [name for name in dsv4spec.backends()["cpu"]["ops"] if name in SAMPLES]
    for name in names:
        args, kwargs = SAMPLES[name]()
        for got, wanted in zip(_run("cpu", name, args, kwargs), _run("reference", name, args, kwargs), strict=True):
            assert got.dtype == wanted.dtype and got.shape == wanted.shape, name
            if not got.dtype.is_floating_point:
                assert torch.equal(got, wanted), f"{name}: integers differ"
                continue
            got, wanted = got.double(), wanted.double()
            finite = torch.isfinite(wanted)
            assert torch.equal(got[~finite].nan_to_num(), wanted[~finite].nan_to_num()), f"{name}: other NaN or inf"
            if finite.any():
                error = (got - wanted)[finite].abs().max().item()
                bound = (1e-5 if args_are_float32(args) else 1.6e-2) * max(1.0, wanted[finite].abs().max().item())
                assert error <= bound, f"{name}: differs by {error:.3g}, allowed {bound:.3g}"
    return len(names)


def args_are_float32(args) -> bool:
    return not any(t.dtype.is_floating_point and t.element_size() < 4 for t in _tensors(args))
