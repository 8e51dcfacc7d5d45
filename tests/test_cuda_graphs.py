# SPDX-License-Identifier: Apache-2.0
"""A20 and A21: every op that has a CUDA kernel can be captured, and a replay goes by the values that lie in the captured
memory by then: lengths, tables, slots, and which requests are padding. On the emulator, and on a GPU where there is one."""
import pytest
import torch
from graph_cases import B, CASES, LENGTHS, N, table, window
from graph_util import MACHINES, Call
from util import bits, rng

from dsv4spec import use_backend
from dsv4spec.ops import OPS
from dsv4spec.ops.table import NO_KERNEL

ONE_LAUNCH = {"verify_positions_padding", "verify_metadata", "select_draft_topk", "build_tree", "verify_tree_greedy",
              "alloc_extend", "assign_draft_slots", "move_accepted_kv", "mhc_post"}


@pytest.fixture(scope="module", params=MACHINES, ids=lambda m: m.name)
def machine(request):
    """Where the graphs run; its backend is the route of all calls here."""
    machine = request.param()
    with use_backend(machine.backend):
        yield machine


def test_every_kernel_has_a_case():
    assert {name.split()[0] for name in CASES} == set(OPS) - NO_KERNEL["cuda"]


@pytest.mark.parametrize("name", CASES)
def test_a21_a_replay_reads_what_lies_there_now(machine, name):
    """Captured at lengths 10, 20 and 5 of 8 requests; nothing runs in the capture. Replays at other lengths, tables and
    numbers of requests equal eager calls on fresh memory, also when an earlier set of values comes back."""
    calls = {key: Call(machine, *CASES[name](live)) for key, live in LENGTHS.items()}
    held = Call(machine, *CASES[name](LENGTHS["captured"]))
    graph = machine.capture([held])
    held.same(calls["captured"])  # nothing was written
    if machine.name == "emulated":
        assert graph.nodes == 1 or held.op not in ONE_LAUNCH
    fresh = {key: {n: t.clone() for n, t in call.tensors.items()} for key, call in calls.items()}
    for call in calls.values():
        call.run()
    changed = 0
    for key in ("captured", "others", "fewer", "none", "more", "all", "captured", "others"):
        for n, t in held.tensors.items():
            t.copy_(fresh[key][n])
        graph.replay()
        held.same(calls[key])
        changed += any(not bits(held.tensors[n]).equal(bits(calls["captured"].tensors[n])) for n in held.outputs)
    assert changed >= 5  # the values that came back apart, every replay gave something else


def test_a20_a_graph_of_a_verify_step(machine):
    """Ops that hand tensors to each other: metadata, slots, tree and walk of a step, in one graph."""
    def step(live):
        args = {name: CASES[name](live) for name in ("verify_metadata", "alloc_extend", "build_tree qlen")}
        calls = [Call(machine, *a) for a in args.values()]
        built = calls[2].tensors
        target = torch.randint(0, 99, (B, 9), generator=rng("target", *live))
        walk = Call(machine, "verify_tree_greedy", (built["tokens"].cpu(), *(torch.zeros(B, 9, dtype=torch.int64),) * 3, target),
                    dict(num_steps=2))
        return [*calls, walk.reading(candidates=built["tokens"], retrieve_index=built["retrieve_index"],
                                     next_token=built["next_token"], next_sibling=built["next_sibling"])]

    def zero_links(calls):
        calls[2].tensors["next_token"].zero_()  # what tells padding to the walk

    held = step(LENGTHS["captured"])
    zero_links(held)
    graph = machine.capture(held)
    for key in ("captured", "others", "none", "more", "fewer", "all"):
        eager = step(LENGTHS[key])
        zero_links(eager)
        for mine, other in zip(held, eager):
            mine.load(other)
        graph.replay()
        for call in eager:
            call.run()
        for mine, other in zip(held, eager):
            mine.same(other)
        live = torch.tensor(LENGTHS[key]) > 0
        count = held[3].tensors["accept_token_num"].cpu()
        assert ((count >= 0) == live).all()  # padding keeps its poison


def test_the_cases_leave_room_for_padding():
    """What the cases promise: shapes do not depend on lengths, padding has neither positions nor pages."""
    for make in CASES.values():
        _, args, kwargs = make(LENGTHS["captured"])
        for live in LENGTHS.values():
            for a, b in zip((*args, *kwargs.values()), (*make(live)[1], *make(live)[2].values())):
                assert a.shape == b.shape and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b
    live = torch.tensor(LENGTHS["more"])
    assert (window(live).view(B, N)[live == 0] == -1).all() and (table(live, rng("x"), 4)[live == 0] == -1).all()
