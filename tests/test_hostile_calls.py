# SPDX-License-Identifier: Apache-2.0
"""Calls that no contract allows, of every op: each is refused in the one form, and none ends the process."""
import re
import threading

import numpy as np
import pytest
import torch
from samples import SAMPLES

from dsv4spec import ops
from dsv4spec.ops import use_backend

FORM = r"^{}: [\w ]+: expected .+, got .+"
INT_MAX, INT_MIN = 2**63 - 1, -2**63


def i64(*values):
    return torch.tensor(values, dtype=torch.int64)


def refused(name, args, kwargs, match=r"^\w+: "):
    with pytest.raises(ValueError, match=match) as caught:
        getattr(ops, name)(*args, **kwargs)
    assert re.match(FORM.format(name), str(caught.value), re.S), str(caught.value)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_things_that_are_no_tensors(name):
    count = len(SAMPLES[name]()[0])
    for at in range(count):
        for wrong in (5, "abc", [1, 2], np.array([object()])):
            args, kwargs = SAMPLES[name]()
            if not isinstance(args[at], torch.Tensor):
                continue
            refused(name, (*args[:at], wrong, *args[at + 1:]), kwargs)


@pytest.mark.parametrize("name", sorted(SAMPLES))
@pytest.mark.parametrize("change", [
    lambda t: t.reshape(t.shape + (1,) * (5 - t.dim())), lambda t: t.to(torch.complex64), lambda t: torch.tensor(1.0),
    lambda t: t.to("meta")])
def test_tensors_of_another_kind(name, change):
    for at in range(len(SAMPLES[name]()[0])):
        args, kwargs = SAMPLES[name]()
        if isinstance(args[at], torch.Tensor):
            refused(name, (*args[:at], change(args[at]), *args[at + 1:]), kwargs)


def negated(t):
    """Equal to ``t``, by torch's negative bit: in memory stands the opposite."""
    view = torch.complex(torch.zeros_like(t), -t).conj().imag
    assert view.is_neg() and view.equal(t)
    return view


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_lazily_negated_tensors(name):
    """DLPack does not show the bit: they would be read without their sign."""
    args, kwargs = SAMPLES[name]()
    for key in (*range(len(args)), *kwargs):
        args, kwargs = SAMPLES[name]()
        given = dict(enumerate(args)) | kwargs
        if isinstance(given[key], torch.Tensor) and given[key].dtype == torch.float32:
            given[key] = negated(given[key])
            refused(name, [given[i] for i in range(len(args))], {k: given[k] for k in kwargs},
                    r": expected a tensor without the negative bit \(resolve_neg\(\)\), got one with it$")


def test_lazily_negated_views_in_every_form():
    """Rows, transposed, single elements; as ``out``; torch.ops, which resolves them; float16."""
    args, _ = SAMPLES["mhc_post"]()
    y, residual, post, comb = (t.float() for t in args)
    for bad in ((y, residual, negated(post.T).T, comb), (y[:1], residual[:1], negated(post)[:1], comb[:1]),
                (y[:1], residual[:1, :1], negated(post)[0, 0].reshape(1, 1), comb[:1, :1, :1])):
        assert bad[2].is_neg()
        refused("mhc_post", bad, {}, "^mhc_post: post: .*negative bit")
    refused("mhc_post", (y, residual, post, comb), dict(out=negated(residual)), "^mhc_post: out: .*negative bit")
    half = torch.view_as_complex(torch.ones(*y.shape, 2, dtype=torch.float16)).conj().imag
    refused("mhc_post", (half, residual.half(), post, comb), {}, "^mhc_post: y: .*negative bit")
    expected = ops.mhc_post(y, residual, post, comb)
    assert torch.ops.dsv4spec.mhc_post(negated(y), residual, negated(post), comb).equal(expected)
    assert ops.mhc_post(negated(y).resolve_neg(), residual, post, comb).equal(expected)


@pytest.mark.parametrize("name,scalar,wrong,text", [
    ("alloc_extend", "extend_num_tokens", -1, "at least 0, got -1"),
    ("alloc_extend", "extend_num_tokens", None, "an integer, got NoneType"),
    ("alloc_extend", "extend_num_tokens", INT_MAX, "at most 2147483647"),
    ("alloc_extend", "page_size", INT_MAX, "at most 2147483647"),
    ("alloc_extend", "page_size", 2**70, "an integer of 64 bits"),
    ("alloc_extend", "page_size", 1.5, "an integer of 64 bits, got float"),
    ("assign_draft_slots", "topk", -1, "at least 0, got -1"),
    ("assign_draft_slots", "topk", INT_MAX, "at most 2147483647"),
    ("build_tree", "num_draft_tokens", -1, "at least 0, got -1"),
    ("verify_tree_greedy", "num_steps", -2, "at least 0, got -2"),
    ("verify_tree_greedy", "num_steps", INT_MAX, "at most 2147483647"),
    ("verify_positions_padding", "ratio", INT_MAX, "at most 2147483647"),
    ("select_draft_topk", "step", INT_MAX, "at most 2147483647"),
    ("q_norm_rope", "eps", -1e-9, "got -1e-09"),  # the value, not -0.000000
    ("q_norm_rope", "eps", "small", "a number, got str"),
])
def test_scalars(name, scalar, wrong, text):
    args, kwargs = SAMPLES[name]()
    refused(name, args, kwargs | {scalar: wrong}, f"{scalar}: expected .*{re.escape(text)}")


def test_sizes_whose_products_overflow():
    _, links, next_token, sibling = SAMPLES["verify_tree_greedy"]()[0][:4]
    huge = [t[:1, :4].expand(2**60, 4) for t in (links, links, next_token, sibling, links)]
    out = tuple(torch.zeros(s, dtype=torch.int32) for s in ((0,), (1, 3), (1,)))
    refused("verify_tree_greedy", huge, dict(num_steps=2, out=out), r"candidates: expected at most 2\^48 elements")


# ------------------------------------------------------------------ integers in tensors, at the edge of 64 bits
def test_alloc_extend_sums_do_not_wrap():
    quarter = i64(*[2**62] * 4)  # their sum is 0 in 64 bits
    args = (torch.zeros(4, dtype=torch.int64), quarter, i64(-1, -1, -1, -1), i64(1, 2))
    refused("alloc_extend", args, dict(extend_num_tokens=4, page_size=1), "free_pages: expected at least")
    status = torch.zeros(1, dtype=torch.int32)
    ops.alloc_extend(*args, extend_num_tokens=4, page_size=1, status=status)
    assert status.item() == 1
    for seq in (INT_MAX, INT_MAX - 1):
        refused("alloc_extend", (i64(0), i64(seq), i64(-1), i64(1)), dict(extend_num_tokens=4, page_size=4))
    refused("alloc_extend", (i64(0), i64(1), i64(-1), i64(INT_MAX)), dict(extend_num_tokens=1, page_size=4), "free_pages")
    refused("alloc_extend", (i64(3), i64(4), i64(INT_MAX), i64(1)), dict(extend_num_tokens=1, page_size=4), "last_slots")


@pytest.mark.parametrize("s", [INT_MAX, INT_MAX - 1, 2**62])
def test_assign_draft_slots_far_beyond_the_table(s):
    slots = ops.assign_draft_slots(i64(3, 4, 3, 4).view(2, 2), i64(s, 1), topk=1, num_steps=3, page_size=1)
    assert slots.tolist() == [[-1] * 3, [4, -1, -1]]
    slots = ops.assign_draft_slots(i64(3, 4).view(1, 2), i64(s), topk=2, num_steps=3, page_size=4)
    assert slots.tolist() == [[-1] * 6]
    refused("assign_draft_slots", (i64(INT_MAX).view(1, 1), i64(1)), dict(topk=1, num_steps=1, page_size=4), "block_table")


def test_links_and_rows_at_the_ends_of_64_bits():
    args, kwargs = SAMPLES["verify_tree_greedy"]()
    for at, name in ((1, "retrieve_index"), (2, "next_token"), (3, "next_sibling")):
        for wrong in (INT_MIN, INT_MIN + 1, INT_MAX):
            hostile = [a.clone() for a in args]
            hostile[at][0, -1] = wrong
            refused("verify_tree_greedy", hostile, kwargs, f"{name}: expected .*, got {wrong}")


def test_build_tree_full_mask_size_does_not_wrap():
    (bonus, parents, selected, drafts, _), scalars = SAMPLES["build_tree"]()
    mask = torch.zeros(200, dtype=torch.bool)
    for lens in (i64(2**62, 2**62, 2**62), i64(INT_MAX, 1, 1), i64(2**60, 2**60, 2**60)):
        refused("build_tree", (bonus, parents, selected, drafts, lens),
                scalars | dict(mask_mode="full", tree_mask=mask), "tree_mask: expected at least")
    assert not mask.any()
    refused("build_tree", (bonus, parents, selected, drafts, i64(INT_MAX, 1, 1)), scalars, "live_seq_lens")


def test_verify_rows_do_not_wrap():
    out = ops.verify_positions_padding(torch.arange(4), i64(2**31 - 4), num_draft_tokens=4, ratio=2**31 - 1)
    assert out.tolist() == [2 + 1 - (2**31 - 1)]
    table = torch.zeros(1, 1, dtype=torch.int32)
    for s in (INT_MAX, INT_MAX - 1, 2**31):  # start_pos is int32
        refused("verify_metadata", (torch.arange(8), i64(s), table, table, 8), dict(c4_page=0, c128_page=0), "live_seq_lens")


@pytest.mark.parametrize("name", ["compress_kv", "lightning_index", "sparse_paged_attention", "swa_paged_attention"])
def test_query_start_loc_far_below_zero(name):
    args, kwargs = SAMPLES[name]()
    at = next(i for i, (_, a) in enumerate(zip(range(99), args))
              if a is not None and a.dtype == torch.int32 and a.dim() == 1 and a[0] == 0)
    start, lens = args[at], args[at + 1]
    for wrong in (i64(0, 1, INT_MIN), i64(0, INT_MIN, 2), i64(0, INT_MAX, 2), i64(INT_MIN, 0, 1), i64(0, 2, 1)):
        wrong = torch.cat([wrong, wrong[-1:].expand(len(start) - 3)])
        for zeroed in (0, 1):
            hostile = [*args[:at], wrong, lens * zeroed, *args[at + 2:]]
            refused(name, hostile, kwargs, "query_start_loc")


def test_sparse_attention_with_endless_windows():
    """Nothing that lies beyond the tables is walked: this would take years."""
    args, kwargs = SAMPLES["sparse_paged_attention"]()
    args, kwargs = list(args), dict(kwargs, cos_sin=None, indices=None)
    args[6] = i64(2**62, 2**62)
    out = ops.sparse_paged_attention(*args, **dict(kwargs, window=2**62))
    assert out.isfinite().all()
    assert ops.sparse_paged_attention(*args, **kwargs).isfinite().all()


# --------------------------------------------------------------------------------------------------- threads
def test_a_reference_on_one_thread_leaves_the_kernels_of_others_alone():
    """The contract check of a reference launches nothing; that must not reach other threads."""
    args, _ = SAMPLES["move_accepted_kv"]()
    wrong, stop = [], threading.Event()

    def kernels():
        while not stop.is_set() and not wrong:
            pool = args[0].clone()
            ops._dispatch._C.move_accepted_kv(pool, args[1], args[2])
            if torch.equal(pool, args[0]):
                wrong.append("a kernel did not run")

    thread = threading.Thread(target=kernels)
    thread.start()
    try:
        for _ in range(300):
            ops._dispatch._reference.run(ops._dispatch.OPS["mhc_post"], *SAMPLES["mhc_post"]())
    finally:
        stop.set()
        thread.join()
    assert not wrong


def test_a_fake_call_on_one_thread_leaves_the_kernels_of_others_alone():
    inside, done = threading.Event(), threading.Event()
    op_ = ops._dispatch.OPS["mhc_post"]

    class Waiting:
        name = "waiting"

        @staticmethod
        def body():
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=ops._dispatch.fake, args=(Waiting, (), {}))
    thread.start()
    inside.wait(10)
    try:
        args, _ = SAMPLES["mhc_post"]()
        out = torch.full_like(args[1], float("nan"))
        op_.body(*args, out=out)
    finally:
        done.set()
        thread.join()
    assert not out.isnan().any()


def test_check_only_is_of_the_thread_and_nests():
    args, _ = SAMPLES["mhc_post"]()
    out = torch.full_like(args[1], float("nan"))
    with use_backend("reference"):
        ops.mhc_post(*args, out=out)
    assert not out.isnan().any()
    assert ops._dispatch._C.check_only(False) is False  # the call put back what it found


def test_a_call_without_rows_from_numpy():
    """NumPy gives an array without elements strides of 0, as it does for the results that are made here."""
    empty = [np.empty(shape, np.float32) for shape in ((0, 16), (0, 4, 16), (0, 4), (0, 4, 4))]
    assert not any(empty[1].strides)
    out = ops.mhc_post(*empty)
    assert isinstance(out, np.ndarray) and out.shape == (0, 4, 16)
