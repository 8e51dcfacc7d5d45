# SPDX-License-Identifier: Apache-2.0
"""float16 streams: the contract takes them, a backend's kernel takes them where the backend says so, and everywhere
else the call is refused before any kernel could misread them."""
import pytest
import torch
from samples import SAMPLES, values
from util import BACKENDS, check_close

from dsv4spec import _C, ops, use_backend
from dsv4spec.ops._dispatch import MissingKernel

D = 136


def _half(name, streams):
    """The sample of ``name`` with float16 in the arguments ``streams``."""
    args, kwargs = SAMPLES[name]()
    return [a.half() if i in streams else a for i, a in enumerate(args)], kwargs


STREAMS = {"mhc_pre": (0,), "mhc_post": (0, 1), "mhc_post_pre": (0, 1), "mhc_head": (0,), "q_norm_rope": (0,),
           "swa_store_kv": (0, 5), "swa_paged_attention": (0, 1), "nextn_fuse_hidden": (0, 1), "move_accepted_kv": (0,)}
CASES = {name: lambda name=name, streams=streams: _half(name, streams) for name, streams in STREAMS.items()}
CASES["nextn_fuse_hidden float16 weights"] = lambda: (
    [values("e16", 3, D).half(), values("h16", 3, 4 * D).half(), values("enorm", D), values("hnorm", D),
     values("ep16", D, D).half(), values("hp16", D, D).half()], dict(eps=1e-6))


def results(name, args, kwargs):
    """What the op returns, or what it has changed."""
    out = getattr(ops, name)(*args, **kwargs)
    out = args[-1] if name == "swa_store_kv" else args[0] if name == "move_accepted_kv" else out
    return out if isinstance(out, tuple) else (out,)


def wide(case):
    args, kwargs = CASES[case]()
    return [a.float() if isinstance(a, torch.Tensor) and a.dtype == torch.float16 else a for a in args], kwargs


@pytest.mark.parametrize("backend", dict.fromkeys([*BACKENDS, "reference"]))
@pytest.mark.parametrize("case", CASES)
def test_float16_is_computed_or_refused(backend, case):
    name = case.split()[0]
    rows = _C.backends()
    with use_backend(backend):
        if backend != "reference" and name not in rows[backend]["float16"]:
            text = (rf"^{name}: \w+: expected dtype float32 or bfloat16 on backend {backend}, got float16"
                    if name in rows[backend]["ops"] else rf"^{name}: backend {backend} has no kernel")
            before, kwargs = CASES[case]()
            args = [a.clone() if isinstance(a, torch.Tensor) else a for a in before]
            with pytest.raises(MissingKernel, match=text):
                getattr(ops, name)(*args, **kwargs)
            assert all(torch.equal(a, b) for a, b in zip(args, before) if isinstance(a, torch.Tensor))
            return
        got = results(name, *CASES[case]())
    with use_backend("reference"):
        plain, exact = results(name, *CASES[case]()), results(name, *wide(case))
    for g, p, e in zip(got, plain, exact):
        assert g.dtype == p.dtype
        if g.dtype == torch.float16 or backend != "reference":
            # the reference's own fp32 error is no bound for fp32 outputs: 4 ulps, as in the tests of the op
            floor = 2 ** -21 * e.abs().max().item() if g.dtype == torch.float32 and e.numel() else None
            check_close(g, e, p, op=name, floor=floor)


def test_no_cpu_and_no_cuda_kernel_claims_float16():
    rows = _C.backends()
    assert rows["cpu"]["float16"] == []
    assert not rows["cuda_emu"]["loadable"] or rows["cuda_emu"]["float16"] == []
