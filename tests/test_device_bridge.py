# SPDX-License-Identifier: Apache-2.0
"""The bridge that takes the op tests to a device, tried between one place of the CPU's memory and another."""
import importlib.util
import sys

import numpy as np
import pytest
import torch
from build_util import ROOT, run
from device_bridge import Moved, _bridged
from dsv4spec import use_backend
from util import Guarded, strided


def test_views_keep_offsets_strides_and_shared_memory():
    base = strided(torch.arange(24.0).view(4, 6))
    one, other, array = base[1:], base[:, 1:3], np.arange(5.0)
    moved = Moved("cpu")
    a, b, c = moved.view(one), moved.view(other), moved.view(array)
    assert a.stride() == one.stride() and a.storage_offset() == one.storage_offset() and torch.equal(a, one)
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != one.untyped_storage().data_ptr()
    b[2, 1] = -1
    c[0] = -2
    assert a[1, 2] == -1 and other[2, 1] == 14 and array[0] == 0
    moved.copy_back()
    assert other[2, 1] == -1 and array[0] == -2
    assert moved.view(None) is None and moved.view(3) == 3


def test_what_a_kernel_writes_beside_an_output_is_seen():
    def kernel(tensor):
        tensor.fill_(1)
        torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() - 1).fill_(2)

    out = Guarded((3, 4), torch.float32)
    _bridged(kernel, "reference", "cpu")(torch.zeros(2, 2)[1:])  # not routed there: called as it is
    with use_backend("reference"):
        _bridged(kernel, "reference", "cpu")(out.tensor)
    assert (out.tensor == 1).all()
    try:
        out.check()
    except AssertionError as error:
        assert "wrote outside its memory" in str(error)
    else:
        raise AssertionError("the write before the output was lost")


def test_bytes_of_an_odd_storage_and_of_every_width_are_reached():
    raw = torch.arange(15, dtype=torch.uint8)
    moved = Moved("cpu")
    words = raw[4:12].view(torch.int32)
    assert torch.equal(moved.view(words), words) and moved.view(words).storage_offset() == words.storage_offset()
    moved.view(raw)[14] = 99
    moved.view(torch.zeros(0, 3))
    moved.copy_back()
    assert raw[14] == 99 and raw[0] == 0


@pytest.mark.parametrize("variable", ["DSV4SPEC_TEST_DEVICE", "DSV4SPEC_TEST_BACKENDS"])
def test_a_device_that_is_not_there_ends_the_run_in_one_sentence(variable):
    if importlib.util.find_spec("torch_npu"):
        pytest.skip("torch_npu is there")
    result = run(sys.executable, "-m", "pytest", "-q", __file__, "-k", "views", cwd=ROOT / "tests", **{variable: "npu"})
    assert result.returncode != 0 and "tests on npu: torch_npu cannot be imported" in result.stdout
    assert "set_env.sh" in result.stdout and " passed" not in result.stdout
