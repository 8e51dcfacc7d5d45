# SPDX-License-Identifier: Apache-2.0
"""The C ABI as a C program meets it: exported symbols, and refusals of structs and tensors that no binding would make."""
import ctypes
import threading
from pathlib import Path

import pytest
import torch
from dsv4spec import _C

LIBRARY = ctypes.CDLL(str(Path(_C.__file__).parent / "lib" / "libdsv4spec.so"))
LIBRARY.dsv4_last_error.restype = ctypes.c_char_p
OPS = sorted(_C.op_fields())
INVALID = 1


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device_id", ctypes.c_int),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]


class PostArgs(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint64)] + [(n, ctypes.c_void_p) for n in ("y", "residual", "post", "comb", "out")]


class Post:
    """A legal call of dsv4_mhc_post, to be spoiled."""

    def __init__(self):
        self.tensors = [torch.randn(3, 16), torch.randn(3, 4, 16), torch.randn(3, 4), torch.randn(3, 4, 4),
                        torch.zeros(3, 4, 16)]
        self.shapes = [(ctypes.c_int64 * t.dim())(*t.shape) for t in self.tensors]
        self.dl = [DLTensor(t.data_ptr(), 1, 0, t.dim(), 2, 32, 1, ctypes.addressof(s), None, 0)
                   for t, s in zip(self.tensors, self.shapes)]

    def call(self, struct_size=ctypes.sizeof(PostArgs), absent=None):
        pointers = [None if i == absent else ctypes.addressof(d) for i, d in enumerate(self.dl)]
        status = LIBRARY.dsv4_mhc_post(ctypes.byref(PostArgs(struct_size, *pointers)), None)
        return status, LIBRARY.dsv4_last_error().decode()


@pytest.mark.parametrize("op", OPS)
def test_every_op_is_exported(op):
    call = getattr(LIBRARY, "dsv4_" + op)
    assert call(None, None) == INVALID
    assert LIBRARY.dsv4_last_error().decode() == f"{op}: args: expected a struct, got NULL"
    size = getattr(LIBRARY, f"dsv4_{op}_workspace_size", None)
    if size is not None:
        assert size(None, None) == INVALID
    wrong = (ctypes.c_uint64 * 1)(8)  # nothing behind the struct's size may be read
    assert call(wrong, None) == INVALID
    assert LIBRARY.dsv4_last_error().decode().startswith(f"{op}: struct_size: expected ")


def test_ops_with_scratch_export_its_size():
    for op in ("nextn_fuse_hidden", "mhc_pre", "mhc_post_pre", "mhc_head", "move_accepted_kv", "lightning_index",
               "moe_experts"):
        assert getattr(LIBRARY, f"dsv4_{op}_workspace_size")


def test_backends_can_be_asked_for_without_a_call():
    def ask(name, op):
        status = LIBRARY.dsv4_check_backend(name, op)
        return status, LIBRARY.dsv4_last_error().decode()

    rows = _C.backends()
    for name, row in rows.items():
        wanted = (0, "") if row["loadable"] else (3, f"check_backend: backend {name}: {row['why_not']}")
        assert ask(name.encode(), None) == wanted
        for op in OPS if row["loadable"] else ():
            there = op in row["ops"]
            assert ask(name.encode(), op.encode()) == (
                (0, "") if there else (2, f"check_backend: backend {name} has no kernel for {op}"))
    assert ask(b"reference", b"mhc_post") == (0, "")
    names = "check_backend: name: expected cpu, cuda, npu, cuda_emu, ascend_emu or reference, got "
    assert ask(b"gpu", None) == (INVALID, names + "gpu") and ask(None, None) == (INVALID, names + "NULL")
    assert ask(b"cpu", b"mhc") == (INVALID, "check_backend: op: expected the name of an op, got mhc")
    assert Post().call() == (0, "")  # no route was changed


def test_the_text_of_a_failure_is_the_threads_own():
    post, others = Post(), []

    def other():
        others.append(LIBRARY.dsv4_last_error().decode())  # of a thread that has called nothing
        others.append(post.call()[1])
        others.append(LIBRARY.dsv4_mhc_head(None, None) and LIBRARY.dsv4_last_error().decode())

    assert LIBRARY.dsv4_mhc_pre(None, None) == INVALID
    thread = threading.Thread(target=other)
    thread.start(), thread.join()
    assert others == ["", "", "mhc_head: args: expected a struct, got NULL"]
    assert LIBRARY.dsv4_last_error().decode() == "mhc_pre: args: expected a struct, got NULL"


def test_a_legal_call_without_strides():
    post = Post()
    assert post.call() == (0, "")
    y, r, p, c, out = post.tensors
    assert torch.allclose(out, p[..., None] * y[:, None] + torch.einsum("tji,tjd->tid", c, r), atol=1e-5)


def test_absent_tensors_and_struct_sizes():
    post = Post()
    assert post.call(absent=2) == (INVALID, "mhc_post: post: expected a tensor, got NULL")
    assert post.call(struct_size=40) == (INVALID, "mhc_post: struct_size: expected 48 to 4096, got 40")


@pytest.mark.parametrize("field,value,text", [
    ("ndim", -1, "got -1 dimensions"), ("ndim", 2**31 - 1, "got 2147483647 dimensions"), ("ndim", 3, "expected shape"),
    ("shape", None, "got a shape that is NULL"), ("code", 77, "got DLPack dtype"), ("bits", 0, "got DLPack dtype"),
    ("lanes", 2, "got DLPack dtype"), ("data", None, "expected data, got a null pointer"),
    ("byte_offset", 2, "expected data aligned to 4 bytes"), ("device_id", 5, "expected device"),
    ("device_type", 99, "expected device")])
def test_spoiled_tensors(field, value, text):
    post = Post()
    if field == "ndim" and value == 3:
        post.shapes[0] = (ctypes.c_int64 * 3)(3, 16, 1)
        post.dl[0].shape = ctypes.addressof(post.shapes[0])
    setattr(post.dl[0], field, value)
    status, error = post.call()
    assert status == INVALID and text in error and error.startswith("mhc_post: "), error


def test_a_null_pointer_with_an_offset_is_none_too():
    post = Post()
    post.dl[0].data, post.dl[0].byte_offset = None, 64
    assert post.call() == (INVALID, "mhc_post: y: expected data, got a null pointer")


@pytest.mark.parametrize("strides", [(0, 0, 0), (-64, 7, -1), (2**62, 2**62, 2**62)])
def test_strides_of_an_empty_tensor_mean_nothing(strides):
    post, numbers = Post(), (ctypes.c_int64 * 3)(*strides)
    for dl, shape in zip(post.dl, post.shapes):
        shape[0], dl.strides = 0, ctypes.addressof(numbers)
    assert post.call() == (0, "")


@pytest.mark.parametrize("shape,strides,text", [
    ((-3, 16), None, "expected sizes >= 0, got shape [-3, 16]"),
    ((2**62, 16), None, "expected at most 2^48 elements"),
    ((3, 16), (2**62, 1), "expected memory of at most 2^48 elements"),
    ((3, 16), (-16, 1), "expected strides >= 0, got stride -16")])
def test_sizes_and_strides(shape, strides, text):
    post = Post()
    numbers = (ctypes.c_int64 * 2)(*shape), (ctypes.c_int64 * 2)(*(strides or (0, 0)))
    post.dl[0].shape = ctypes.addressof(numbers[0])
    post.dl[0].strides = ctypes.addressof(numbers[1]) if strides else None
    status, error = post.call()
    assert status == INVALID and text in error, error
