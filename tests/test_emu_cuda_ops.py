# SPDX-License-Identifier: Apache-2.0
"""Every op with a CUDA kernel, emulated on memory that ends at a page out of reach: the same bits in every order of
threads and blocks, on scratch that starts as NaN bytes, and a fault that reaches the caller as the op's error."""
import ctypes

import pytest
import torch
from emu_util import ORDERS
from graph_cases import CASES, LENGTHS
from graph_util import LIBRARY, Call, Emulated
from samples import SAMPLES
from util import bits

from dsv4spec import use_backend
from dsv4spec.ops import OPS
from dsv4spec.ops.table import NO_KERNEL

KERNELS = sorted(set(OPS) - NO_KERNEL["cuda"])
CALLS = {name: lambda name=name: (name, *SAMPLES[name]()) for name in KERNELS}
CALLS |= {f"{name}, batch": lambda name=name: CASES[name](LENGTHS["captured"]) for name in CASES}
INTERNAL_ERROR = 4


@pytest.fixture(scope="module")
def machine():
    machine = Emulated()
    with use_backend("cuda_emu"):
        yield machine


@pytest.mark.parametrize("name", CALLS)
def test_no_order_of_threads_changes_a_bit(machine, name):
    first = Call(machine, *CALLS[name]())
    before = {n: t.clone() for n, t in first.tensors.items()}
    first.run()
    after = {n: t.clone() for n, t in first.tensors.items()}
    assert any(not bits(after[n]).equal(bits(before[n])) for n in first.outputs), "the op wrote something"
    for order, seed in ORDERS:
        for threads in (1, 2):
            for n, t in first.tensors.items():
                t.copy_(before[n])
            with machine.emulator.settings(order=order, seed=seed, threads=threads):
                first.run()
            for n, t in first.tensors.items():
                assert bits(t).equal(bits(after[n])), (n, order, seed, threads)


@pytest.mark.parametrize("name", KERNELS)
def test_a_fault_in_a_kernel_is_the_op_s_error(machine, name):
    call = Call(machine, *CALLS[name]())
    t = max((t for t in call.tensors.values() if t.numel()), key=torch.Tensor.nelement)
    call.run()
    assert machine.emulator.lib.cuda_emu_free(ctypes.c_void_p(t.data_ptr())) == 0
    assert getattr(LIBRARY, "dsv4_" + name)(ctypes.byref(call.args), None) == INTERNAL_ERROR
    text = LIBRARY.dsv4_last_error().decode()
    assert text.startswith(f"{name}: CUDA: unspecified launch failure: ") and "block (" in text and "thread (" in text
    assert f"of a freed allocation of {t.numel() * t.element_size()} bytes" in text and ".cu" in text, text
    assert machine.emulator.lib.cudaPeekAtLastError() == 0, "the next launch would be blamed for it"
