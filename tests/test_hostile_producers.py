# SPDX-License-Identifier: Apache-2.0
"""NumPy, and objects of other libraries that fail, interrupt or run out of memory; routes that change during a call."""
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from samples import SAMPLES

from dsv4spec import ops, use_backend

FORM = r"^{}: [\w ]+: expected .+, got .+"
INTEGERS = [(name, key) for name in sorted(SAMPLES) for key, value in SAMPLES[name]()[1].items() if type(value) is int]


def numpy_sample(name):
    """The sample with NumPy's arrays; those of dtypes that NumPy lacks stay torch's."""
    def of(value):
        return value.numpy() if isinstance(value, torch.Tensor) and value.dtype not in (torch.bfloat16, torch.float8_e4m3fn,
                                                                                        torch.float8_e8m0fnu) else value

    args, kwargs = SAMPLES[name]()
    return [of(a) for a in args], {key: of(value) for key, value in kwargs.items()}


@pytest.mark.parametrize("name,scalar", INTEGERS)
def test_integers_that_numpy_cannot_allocate_for(name, scalar):
    for wrong in (-1, -2**62, 2**62, 2**63, -2**80, [1, 2], np.array([1, 2])):
        args, kwargs = numpy_sample(name)
        try:
            getattr(ops, name)(*args, **kwargs | {scalar: wrong})
        except ValueError as error:
            assert re.match(FORM.format(name), str(error), re.S), (wrong, str(error))


def test_a_bool_is_named_where_it_is_no_size():
    args, kwargs = numpy_sample("alloc_extend")
    with pytest.raises(ValueError, match="^alloc_extend: extend_num_tokens: expected an integer, got True"):
        ops.alloc_extend(*args, **kwargs | {"extend_num_tokens": True})


@pytest.mark.parametrize("name,count", [("build_tree", 6), ("verify_tree_greedy", 3), ("alloc_extend", 2)])
def test_another_number_of_results(name, count):
    for convert in (lambda args, kwargs: (args, kwargs), lambda *_: numpy_sample(name)):
        args, kwargs = convert(*SAMPLES[name]())
        results = getattr(ops, name)(*args, **kwargs)
        for wrong in (results[:-1], [*results, None], (), 5, results[0]):
            got = len(wrong) if isinstance(wrong, (tuple, list)) else type(wrong).__name__
            with pytest.raises(ValueError, match=f"^{name}: out: expected a tuple of {count} tensors, got {got}$"):
                getattr(ops, name)(*args, **kwargs, out=wrong)


class Producer:
    """An object whose protocol answers with ``device`` and ``tensor``, exceptions raised."""
    shape, dtype = (3,), np.float32

    def __init__(self, device, tensor):
        self.device, self.tensor = device, tensor

    def answer(self, value):
        if isinstance(value, BaseException):
            raise value
        return value

    def __dlpack_device__(self):
        return self.answer(self.device)

    def __dlpack__(self, **_):
        return self.answer(self.tensor)


@pytest.mark.parametrize("device,tensor", [
    (ValueError("lost"), None), (BufferError("lost"), None), (TypeError("lost"), None), ("cpu", None), (None, None),
    ((1,), None), ((1, 0), RuntimeError("lost")), ((1, 0), TypeError("lost")), ((1, 0), 5), ((2, 0), None)])
def test_producers_that_fail(device, tensor):
    args, _ = SAMPLES["mhc_post"]()
    with pytest.raises(ValueError, match=FORM.format("mhc_post")):
        ops.mhc_post(args[0], Producer(device, tensor), *args[2:])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_interrupts_are_no_refusals(error):
    args, _ = SAMPLES["mhc_post"]()
    for producer in (Producer(error(), None), Producer((1, 0), error())):
        with pytest.raises(error):
            ops.mhc_post(args[0], producer, *args[2:])


def test_negated_views_of_memory_that_is_not_torchs():
    """Their complex numbers need not lie at multiples of their size."""
    floats = np.zeros(66, np.float32)
    floats = floats[1 + floats.ctypes.data // 4 % 2:][:64]  # off 8 bytes
    post = torch.view_as_complex(torch.from_numpy(floats).view(32, 1, 2)).conj().imag[:5]
    assert post.is_neg() and post.data_ptr() % 8 == 0
    y, residual, comb = torch.zeros(5, 16), torch.zeros(5, 1, 16), torch.zeros(5, 1, 1)
    with pytest.raises(ValueError, match="^mhc_post: post: expected a tensor without the negative bit"):
        ops.mhc_post(y, residual, post, comb)


@pytest.mark.parametrize("name", ["nothing", "", 5, b"cpu", ["cpu"]])
def test_names_that_are_no_backend(name):
    with pytest.raises(ValueError, match="^use_backend: name: expected cpu, .* or reference, got "), use_backend(name):
        pass
    assert ops.current_backend() is None


def test_a_switch_to_the_reference_leaves_calls_on_their_way_alone():
    """A call that chose its kernel before another thread asked for the reference still runs it."""
    args, _ = SAMPLES["mhc_post"]()
    out = torch.full_like(args[1], float("nan"))
    with use_backend("reference"):
        ops.OPS["mhc_post"].body(*args, out=out)
    assert out.equal(ops.mhc_post(*args))


def test_calls_while_another_thread_imports_torch():
    code = """if True:
        import sys, types
        import numpy as np
        from dsv4spec import ops
        sys.modules["torch"] = types.ModuleType("torch")  # as it is in the midst of its import
        print(ops.assign_draft_slots(np.array([[3]]), np.array([1]), topk=1, num_steps=2, page_size=4).tolist())"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout == "[[13, 14]]\n", out.stdout + out.stderr


def test_daemon_threads_end_with_the_process():
    code = """if True:
        import threading, time
        import numpy as np
        from dsv4spec import ops
        table, lens = np.zeros((64, 2), np.int64), np.ones(64, np.int64)
        def work():
            while True:
                ops.assign_draft_slots(table, lens, topk=1, num_steps=2, page_size=4)
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)"""
    for _ in range(3):
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert (out.returncode, out.stderr) == (0, "")


def test_scratch_that_could_not_be_had_is_asked_for_again():
    code = """if True:
        import resource
        import numpy as np
        from dsv4spec import ops
        def move(pairs, pages):
            skipped = np.full(pairs, -1)
            ops.move_accepted_kv(pages, skipped, skipped)
        move(1, np.zeros((1, 1, 8), np.float32))
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30),) * 2)
        try:
            move(1 << 16, np.zeros((1, 1, 1 << 16), np.float32))  # 16 GiB
        except MemoryError:
            move(1, np.zeros((1, 1, 8), np.float32))
            print("moved again")"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout == "moved again\n", out.stdout + out.stderr
