# SPDX-License-Identifier: Apache-2.0
"""The tape that stands for a graph capture finds what a CUDA graph would get wrong."""
import pytest
import torch
from graph_tape import HostAccess, Tape

from dsv4spec import ops

REFUSED = {
    "item": lambda x: x.sum().item(), "int": lambda x: int(x[0]), "branch": lambda x: x + 1 if x[0] > 0 else x,
    "tolist": lambda x: x.tolist(), "numpy": lambda x: x.numpy(), "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0], "list": lambda x: x + torch.tensor([1.0, 2.0]), "cpu": lambda x: x.cpu(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_host_read_or_copy_is_refused(name):
    x = torch.ones(2)
    for run in (Tape().capture, Tape().warm_up):
        with pytest.raises(HostAccess):
            run(lambda: REFUSED[name](x))
    assert x.tolist() == [1, 1] and torch.from_numpy(x.numpy()) is not None  # outside all is as before


def test_a_tensor_made_without_a_device_is_refused():
    x = torch.ones(2)
    with pytest.raises(HostAccess, match="made without a device"):
        Tape().capture(lambda: x + torch.arange(2))
    assert Tape().capture(lambda: x + torch.arange(2, device=x.device))[0].tolist() == [1, 2]


def test_a_replay_computes_from_new_inputs_into_the_same_memory():
    x = torch.tensor([1.0, 2.0])
    y, replay = Tape().capture(lambda: (x * 3).view(2, 1).add_(1))
    address = y.data_ptr()
    x.copy_(torch.tensor([5.0, 7.0]))
    replay()
    assert y.flatten().tolist() == [16, 22] and y.data_ptr() == address


def test_numbers_of_the_capture_run_are_frozen():
    x, count = torch.zeros(2), [1]
    y, replay = Tape().capture(lambda: x + count[0])
    count[0] = 5
    replay()
    assert y.tolist() == [1, 1]


def test_a_temporary_that_nobody_keeps_is_refused():
    def capture(kept):
        x = torch.ones(2)
        made = [torch.ones(2)]
        temporary = iter([torch.ones(2)])  # not reachable from the function as a value
        return Tape().capture((lambda: x + made[0]) if kept else lambda: x + next(temporary))

    capture(True)
    with pytest.raises(HostAccess, match="nobody keeps"):
        capture(False)


def test_calls_of_the_c_abi_are_on_the_tape():
    table, live = torch.tensor([[4, 5]], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)
    for backend in ("cpu", "reference"):
        with ops.use_backend(backend):
            live.fill_(3)
            slots, replay = Tape().capture(
                lambda: ops.assign_draft_slots(table, live, topk=1, num_steps=3, page_size=4) + 0)
            assert slots.tolist() == [[19, 20, 21]]
            live.fill_(1)
            replay()
            assert slots.tolist() == [[17, 18, 19]], backend


def test_memory_of_the_capture_run_is_poisoned():
    """A result that is left unwritten in a replay does not show the capture run's."""
    x, before = torch.ones(2), [torch.zeros(2)]
    y, replay = Tape().capture(lambda: torch.empty(2, device="cpu"))
    y.copy_(x)
    replay()
    assert y.isnan().all() and before[0].tolist() == [0, 0]
