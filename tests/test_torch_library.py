# SPDX-License-Identifier: Apache-2.0
"""The ops as torch sees them: registration, fake kernels, declared mutation, torch.compile. All ops, by their samples."""
import dataclasses
import importlib
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
from samples import SAMPLES
from util import BACKENDS, bits

from dsv4spec import ops, use_backend
from dsv4spec.ops import OPS, _dispatch, _torch

NAMES = sorted(OPS)


def route(backend):
    """Ops that a backend has no kernel for run their reference here: this file is about what stands around kernels."""
    return use_backend(backend, missing="error" if backend == "reference" else "reference")


def tuple_of(result):
    return () if result is None else result if isinstance(result, tuple) else (result,)


def clone(x):
    return x.clone() if isinstance(x, torch.Tensor) else x


def tensors(args, kwargs):
    return [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]


def test_every_op_has_a_sample():
    assert sorted(SAMPLES) == NAMES


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_a25_opcheck(name, backend):
    args, kwargs = SAMPLES[name]()
    with route(backend):
        torch.library.opcheck(getattr(torch.ops.dsv4spec, name).default, args, kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_a25_fake_results_are_the_real_ones(name):
    """Shape, stride, dtype and device, with tensors given by position and by name."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    args, kwargs = SAMPLES[name]()
    with route("cpu"):
        real = tuple_of(OPS[name].public(*args, **kwargs))
    names = [a.name for a in getattr(torch.ops.dsv4spec, name).default._schema.arguments]
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
        keywords = {k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
        for fake in (OPS[name].public(*fakes, **keywords), OPS[name].public(**dict(zip(names, fakes)), **keywords)):
            fake = tuple_of(fake)
            assert len(real) == len(fake)
            for r, f in zip(real, fake):
                assert (r.shape, r.stride(), r.dtype, r.device) == (f.shape, f.stride(), f.dtype, f.device)


@pytest.mark.parametrize("name", NAMES)
def test_a25_exactly_the_declared_arguments_change(name):
    args, kwargs = SAMPLES[name]()
    before = [x.clone() for x in tensors(args, kwargs)]
    schema = getattr(torch.ops.dsv4spec, name).default._schema
    declared = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    assert declared == set(OPS[name].mutates)
    with route("cpu"):
        OPS[name].public(*args, **kwargs)
    named = dict(zip((a.name for a in schema.arguments), args)) | kwargs
    for (argument, value), old in zip(((k, v) for k, v in named.items() if isinstance(v, torch.Tensor)), before):
        if argument not in declared:
            assert bits(value).equal(bits(old)), argument


@pytest.mark.parametrize("name", NAMES)
def test_compiles_without_a_graph_break(name):
    """fullgraph=True, functional and with out=, equals eager bit for bit; mutated arguments included."""
    op = OPS[name]
    args, kwargs = SAMPLES[name]()
    mine, theirs = ([clone(a) for a in args], {k: clone(v) for k, v in kwargs.items()}), (args, kwargs)
    with route("cpu"):
        want = tuple_of(op.public(*mine[0], **mine[1]))
        got = tuple_of(torch.compile(op.public, fullgraph=True, backend="aot_eager")(*args, **kwargs))
        for a, b in zip((*want, *tensors(*mine)), (*got, *tensors(*theirs))):
            assert bits(a).equal(bits(b))
        if not want:
            return
        out = tuple(torch.full_like(w, 7) if w.dtype != torch.bool else torch.ones_like(w) for w in want)
        eager = tuple(o.clone() for o in out)
        op.public(*args, **kwargs, out=eager if len(want) > 1 else eager[0])
        into = torch.compile(op.public, fullgraph=True, backend="aot_eager")
        into(*args, **kwargs, out=out if len(want) > 1 else out[0])
    for a, b in zip(eager, out):  # rows of padding keep what they held
        assert bits(a).equal(bits(b))


def test_a25_writes_keep_their_order_under_compile():
    """Two stores to one slot, a read between them and one behind."""
    cos_sin = torch.cat([torch.ones(8, 4), torch.zeros(8, 4)], 1)
    weight, positions, slots = torch.ones(32), torch.zeros(1, dtype=torch.int64), torch.tensor([2])

    def step(pages, a, b):
        ops.swa_store_kv(a, weight, cos_sin, positions, slots, pages, eps=0.0)
        between = pages[0, 2].clone()
        ops.move_accepted_kv(pages, slots, slots + 1)
        ops.swa_store_kv(b, weight, cos_sin, positions, slots, pages, eps=0.0)
        return between, pages[0, 2] * 1

    a, b = torch.full((1, 32), 1.0), torch.full((1, 32), -1.0)
    with route("cpu"):
        for f in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
            pages = torch.zeros(1, 4, 32)
            between, after = f(pages, a, b)
            assert (between == 1).all() and (after == -1).all()
            assert pages[0, :, 0].tolist() == [0, 0, -1, 1]


def test_full_mask_is_the_callers_tensor_everywhere():
    args, kwargs = SAMPLES["build_tree"]()
    mask = torch.zeros(5 * 13 + 25 * 3, dtype=torch.bool)
    kwargs |= dict(mask_mode="full", tree_mask=mask)
    result = ops.build_tree(*args, **kwargs)
    want = mask.clone()
    assert result[5] is mask and want.any()
    assert torch.ops.dsv4spec.build_tree(*args, **kwargs)[5].shape == (0,)  # torch forbids a result that is an argument
    torch.library.opcheck(torch.ops.dsv4spec.build_tree.default, args, kwargs)

    def f(mask):
        return ops.build_tree(*args, **(kwargs | dict(tree_mask=mask)))[5] | False

    mask.zero_()
    assert torch.compile(f, fullgraph=True, backend="aot_eager")(mask).equal(want) and mask.equal(want)


def run(code, *arguments):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True,
                          env=None, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a25_registered_when_torch_comes_second():
    """(torch first: this very process.)"""
    run("""
        import dsv4spec, torch
        assert torch.ops.dsv4spec.mhc_post.default._schema.name == "dsv4spec::mhc_post"
        import sys
        assert not any(type(f).__name__ == "_AfterTorch" for f in sys.meta_path)
        """)


def test_a25_importing_does_not_import_torch():
    run("import dsv4spec, sys; assert 'torch' not in sys.modules")


def test_a25_next_to_a_package_that_owns__C(tmp_path):
    """A package whose extension is called _C and whose ops live in a torch namespace _C; in both import orders."""
    package = tmp_path / "neighbour"
    package.mkdir()
    (package / "__init__.py").write_text("from . import _C\n")
    (package / "_C.py").write_text(textwrap.dedent("""
        import torch
        library = torch.library.Library("_C", "DEF")
        library.define("mhc_post(Tensor x) -> Tensor")
        library.impl("mhc_post", lambda x: x + 1, "CPU")
        """))
    for order in ("neighbour, dsv4spec", "dsv4spec, neighbour"):
        run(f"""
            import sys
            sys.path.insert(0, sys.argv[1])
            import {order}
            import torch
            assert torch.ops._C.mhc_post(torch.zeros(1)).item() == 1
            y = torch.ones(1, 8)
            args = y, torch.zeros(1, 1, 8), torch.ones(1, 1), torch.zeros(1, 1, 1)
            assert torch.ops.dsv4spec.mhc_post(*args).equal(y[:, None])
            assert sys.modules["dsv4spec._C"] is not sys.modules["neighbour._C"]
            """, str(tmp_path))


def test_a25_a_second_registration_is_harmless_and_a_conflicting_one_is_an_error(monkeypatch):
    _torch.register(_dispatch)
    importlib.reload(_torch).register(_dispatch)
    other = dataclasses.replace(OPS["mhc_post"], schema="(Tensor y) -> Tensor")
    monkeypatch.setitem(_dispatch.OPS, "mhc_post", other)
    with pytest.raises(RuntimeError, match="another dsv4spec version; they differ in: mhc_post"):
        _torch.register(_dispatch)


def test_a25_importing_twice():
    """A fresh import of all modules in one process, as test runners and notebooks do it."""
    run("""
        import sys, torch, dsv4spec
        first = dsv4spec.ops.mhc_post
        for name in [n for n in sys.modules if n.split(".")[0] == "dsv4spec" and n != "dsv4spec._C"]:
            del sys.modules[name]
        import dsv4spec
        assert dsv4spec.ops.mhc_post is not first
        y = torch.ones(1, 8)
        args = y, torch.zeros(1, 1, 8), torch.ones(1, 1), torch.zeros(1, 1, 1)
        assert torch.ops.dsv4spec.mhc_post(*args).equal(y[:, None])
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode() as mode:
            assert dsv4spec.ops.mhc_post(*map(mode.from_tensor, args)).shape == (1, 1, 8)
        """)


def test_numpy_in_a_process_that_cannot_import_torch(tmp_path):
    """Every op with a kernel runs its sample as NumPy arrays; the results equal torch's."""
    kernels = sorted(ops._dispatch.backend_ops("cpu"))
    out = run("""
        import pickle, sys

        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "torch":
                    raise ImportError("torch is blocked here")

        sys.meta_path.insert(0, Blocked())
        import numpy as np
        from dsv4spec import ops

        for name, args, kwargs, want in pickle.load(open(sys.argv[1], "rb")):
            got = getattr(ops, name)(*args, **kwargs)
            got = () if got is None else got if isinstance(got, tuple) else (got,)
            changed = [x for x in (*args, *kwargs.values()) if isinstance(x, np.ndarray)]
            for g, w in zip((*got, *changed), want, strict=True):
                assert isinstance(g, np.ndarray) and g.dtype == w.dtype and np.array_equal(g, w), name
            print(name)
        assert not any(m.split(".")[0] == "torch" for m in sys.modules)
        """, _pickled_samples(tmp_path / "samples.pickle", kernels))
    assert out.split() == kernels


def _pickled_samples(path, names) -> str:
    """A file of (op, args, kwargs, results and arguments after the call); bfloat16, which NumPy lacks, as float32."""
    rows = []
    for name in names:
        args, kwargs = SAMPLES[name]()
        args = [x.float() if isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16 else x for x in args]
        kwargs = {k: x.float() if isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16 else x for k, x in kwargs.items()}
        before = [numpy_of(x) for x in args], {k: numpy_of(x) for k, x in kwargs.items()}
        result = tuple_of(OPS[name].public(*args, **kwargs))
        rows.append((name, *before, [x.numpy() for x in (*result, *tensors(args, kwargs))]))
    path.write_bytes(pickle.dumps(rows))
    return str(path)


def numpy_of(x):
    return x.numpy().copy() if isinstance(x, torch.Tensor) else x
