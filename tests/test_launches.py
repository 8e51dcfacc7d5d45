# SPDX-License-Identifier: Apache-2.0
"""The launch plan: what a round launches is what the document says, and does not rise."""
import functools
import sys
from pathlib import Path

import pytest
import torch
from emu_util import Emulator, library

from dsv4spec import SpeculativeConfig, ops
from dsv4spec.cli import main
from dsv4spec.demo import ASSET
from dsv4spec.launches import PARTS, Counting, Launches, count, flash, format_plan, plan
from dsv4spec.models.config import DeepseekV4Config
from dsv4spec.ops.table import NO_KERNEL

DOCUMENT = Path(__file__).parent.parent / "docs" / "launch_plan.md"
BUDGET = {"7 layers": dict(draft=67, verify=208, extend=41), "Flash": dict(draft=67, verify=1252, extend=41)}


@functools.cache
def config():
    return DeepseekV4Config.from_dir(ASSET)


@functools.cache
def measured():
    return plan(ASSET)


def test_launches_do_not_rise():
    assert set(measured()) == set(BUDGET)
    for name, parts in measured().items():
        for part, launches in parts.items():
            assert launches.total <= BUDGET[name][part], f"{name} {part}: {launches.ops} {launches.torch}"


def test_the_document_holds_the_table(capsys):
    assert format_plan(measured()) in DOCUMENT.read_text(), "write the output of `dsv4spec info --launches` into it"
    assert main(["info", "--launches"]) == 0
    assert capsys.readouterr().out.strip() == format_plan(measured())


def test_what_is_counted():
    x, table = torch.ones(4), torch.zeros(1, 2, dtype=torch.int32)
    with torch.inference_mode(), Launches() as launches:
        y = (x * 2).view(2, 2)[0] + torch.empty(2)
        y.add_(1)
        y.float(), y.t(), y.double()  # the first two give the same memory
        ops.assign_draft_slots(table, torch.ones(1, dtype=torch.int32), topk=1, num_steps=2, page_size=4)
    assert launches.torch == {"mul": 1, "add": 1, "add_": 1, "to": 1, "ones": 1}
    assert launches.ops == {"assign_draft_slots": 1} and launches.total == 6
    x * 2
    ops.assign_draft_slots(table, torch.ones(1, dtype=torch.int32), topk=1, num_steps=2, page_size=4)
    assert launches.total == 6


def test_a_step_more_is_a_nextn_forward_more_and_a_batch_costs_four_copies():
    three, four = (count(config(), SpeculativeConfig(n)) for n in (3, 4))
    more = four["draft"].ops - three["draft"].ops
    assert set(more.values()) == {1} and more["nextn_fuse_hidden"] == 1 and "verify_metadata" not in more
    assert [four[p].total - three[p].total for p in ("verify", "extend")] == [0, 0]
    batch, many = count(config(), size=8), count(config(), size=17)
    for of in (batch, many):
        assert sum(of[p].total - of[p].norms - three[p].total for p in PARTS) <= 4
    assert many["draft"].norms == many["draft"].ops["nextn_fuse_hidden"] == 2
    assert three["draft"].norms == three["extend"].norms == batch["draft"].norms == 0 and batch["extend"].norms == 1


def test_one_call_of_an_op_is_as_many_kernels_as_the_plan_says():
    """Counted by the emulator, in bfloat16: the ops of each part that have a CUDA kernel."""
    emu = Emulator(library("dsv4spec_cuda_emu"))

    class Both(Counting):
        launched = []

        def capture(self, function):
            emu.clear()
            result = super().capture(function)
            self.launched.append(sum(row["launches"] for row in emu.counters().values()))
            return result

    capture = Both()
    parts = count(flash(config()), dtype=torch.bfloat16, backend="cuda_emu", capture=capture)
    for (name, part), launched in zip(parts.items(), capture.launched, strict=True):
        assert part.norms == 0
        for missing in NO_KERNEL["cuda"]:
            del part.ops[missing]
        assert launched == part.kernels, part.ops


def test_the_plan_needs_the_models_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "dsv4spec.launches", None)
    with pytest.raises(ModuleNotFoundError):
        main(["info", "--launches"])
