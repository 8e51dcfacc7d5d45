# SPDX-License-Identifier: Apache-2.0
"""The ops have no derivative, and say so instead of losing a gradient: a functional form gives results that raise at the
backward pass, as torch's own ops without a derivative do; a form that writes into its arguments refuses at the call, as
torch's `out=` does. Where no gradient is recorded, tensors that require one are ordinary inputs."""
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from dsv4spec import ops, use_backend
from dsv4spec.ops import OPS
from samples import SAMPLES

NAMES = sorted(name for name in OPS if any(isinstance(a, torch.Tensor) and a.is_floating_point() for a in SAMPLES[name]()[0]))
FUNCTIONAL = [name for name in NAMES if not OPS[name].mutates]
WRITING = [name for name in NAMES if OPS[name].mutates]


def leaves(args):
    return [a.requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]


def route():
    return use_backend("cpu", missing="reference")


def floating(results):
    results = results if isinstance(results, tuple) else (results,)
    return [r for r in results if r.is_floating_point()]


def post(**kwargs):
    args, _ = SAMPLES["mhc_post"]()
    return leaves(args), kwargs


@pytest.mark.parametrize("way", ["ops", "torch.ops"])
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_results_raise_at_the_backward_pass(name, way):
    args, kwargs = SAMPLES[name]()
    call = OPS[name].public if way == "ops" else getattr(torch.ops.dsv4spec, name)
    with route():
        results = call(*leaves(args), **kwargs)
        wanted = OPS[name].public(*SAMPLES[name]()[0], **SAMPLES[name]()[1])
    for got, want in zip(floating(results), floating(wanted)):
        assert got.requires_grad and not want.requires_grad and got.detach().equal(want)
        with pytest.raises(RuntimeError, match=f"^{name}: no derivative is defined; detach its inputs, or call it under"):
            got.float().sum().backward(retain_graph=True)
    assert all(a.grad is None for a in args if isinstance(a, torch.Tensor))


@pytest.mark.parametrize("way", ["ops", "torch.ops"])
@pytest.mark.parametrize("name", NAMES)
def test_a_tangent_is_refused_at_the_call(name, way):
    args, kwargs = SAMPLES[name]()
    args = list(args)
    call = OPS[name].public if way == "ops" else getattr(torch.ops.dsv4spec, name)
    at = next(i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.is_floating_point())
    with route(), forward_ad.dual_level():
        call(*args, **kwargs)
        args[at] = forward_ad.make_dual(args[at], torch.ones_like(args[at]))
        for mode in (torch.enable_grad, torch.no_grad):
            with mode(), pytest.raises(RuntimeError, match=f"^{name}: no derivative is defined; detach its inputs"):
                call(*args, **kwargs)


@pytest.mark.parametrize("way", ["ops", "torch.ops"])
@pytest.mark.parametrize("name", WRITING)
def test_a_write_is_refused_where_a_gradient_would_be_lost(name, way):
    args, kwargs = SAMPLES[name]()
    names = [a.name for a in getattr(torch.ops.dsv4spec, name).default._schema.arguments]
    at = next(i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.is_floating_point())
    args[at].requires_grad_()
    call = OPS[name].public if way == "ops" else getattr(torch.ops.dsv4spec, name)
    with route(), pytest.raises(ValueError, match=f"^{name}: {names[at]}: expected a tensor that requires no gradient"):
        call(*args, **kwargs)
    with route(), torch.no_grad():
        call(*args, **kwargs)


def test_out_is_refused_where_a_gradient_would_be_lost():
    args, _ = post()
    out = torch.zeros_like(args[1])
    with route(), pytest.raises(ValueError, match="^mhc_post: y: expected a tensor that requires no gradient"):
        ops.mhc_post(*args, out=out)
    plain = [a.detach() for a in args]
    with route(), pytest.raises(ValueError, match="^mhc_post: out_0: expected a tensor that requires no gradient"):
        ops.mhc_post(*plain, out=torch.zeros_like(out, requires_grad=True))
    assert not out.any()
    with route(), torch.no_grad():
        ops.mhc_post(*args, out=out)
    assert out.any() and not out.requires_grad


class Results(tuple):
    """A tuple of a type of its own."""


class Subclass(torch.Tensor):
    """A tensor of a type of its own."""


@pytest.mark.parametrize("form", [tuple, list, Results])
@pytest.mark.parametrize("change", [lambda t: t, lambda t: t.as_subclass(Subclass)])
def test_results_in_any_container_are_refused_too(form, change):
    args, kwargs = SAMPLES["mhc_pre"]()
    with route():
        out = [change(r.zero_()).requires_grad_() for r in ops.mhc_pre(*args, **kwargs)]
        with pytest.raises(ValueError, match="^mhc_pre: out_0: expected a tensor that requires no gradient"):
            ops.mhc_pre(*args, **kwargs, out=form(out))
    assert not any(r.any() for r in out)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_gradient_is_recorded_in_these_modes(mode):
    args, _ = post()
    with route(), mode():
        assert not ops.mhc_post(*args).requires_grad and not torch.ops.dsv4spec.mhc_post(*args).requires_grad


def test_a_parameter_is_a_weight_like_any_other():
    y, residual, weight, comb = SAMPLES["mhc_post"]()[0]
    with route():
        out = ops.mhc_post(y, residual, torch.nn.Parameter(weight), comb)
        assert out.requires_grad and out.detach().equal(ops.mhc_post(y, residual, weight, comb))


@pytest.mark.filterwarnings("ignore:Error detected in NoDerivative")
def test_compiled_code_raises_too():
    args, _ = post()
    with route():
        compiled = torch.compile(ops.mhc_post, fullgraph=True, backend="aot_eager")
        with pytest.raises(RuntimeError, match="mhc_post: no derivative is defined"):
            compiled(*args).sum().backward()
        with torch.no_grad():
            assert compiled(*args).equal(ops.mhc_post(*args))
