# SPDX-License-Identifier: Apache-2.0
"""docs/ascend_costs.md says what the AscendC kernels move and count: no kernel moves more than is written there, of tensors
or through its scratch, and those that move each byte once stay within a tenth of the fewest. After a change that lowers them run
scripts/ascend_costs.py."""
import importlib.util
import re
import sys

import pytest
from build_util import ROOT
from emu_util import library

from dsv4spec import _C
from dsv4spec.ops.table import NO_KERNEL

SLOW = {("nextn_fuse_hidden", "T=16 bf16"), ("nextn_fuse_hidden", "T=64 bf16"),
        ("swa_paged_attention", "extend B=1 rows=64")}
WITHIN_A_TENTH = SLOW | {("nextn_fuse_hidden", "T=1 bf16"), ("swa_store_kv", "T=16"), ("move_accepted_kv", "B=64"),
                         ("swa_paged_attention", "decode B=1 rows=1"), ("swa_paged_attention", "verify B=1 rows=4")} | {
    (op, f"T={T}") for op in ("mhc_pre", "mhc_post", "mhc_post_pre", "mhc_head", "q_norm_rope") for T in (1, 16)}
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| (\d+), (\d+) \| (\d+) \| (-|[\d.]+) \| (\d+) \| ", re.M)


@pytest.fixture(scope="module")
def costs():
    library("dsv4spec_ascend_emu")
    spec = importlib.util.spec_from_file_location("ascend_costs", ROOT / "scripts" / "ascend_costs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["ascend_costs"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["ascend_costs"]


def written():
    return {(op, label): (int(launches), int(moved), None if ratio == "-" else float(ratio), int(scratch))
            for op, label, launches, _, moved, ratio, scratch in ROW.findall((ROOT / "docs" / "ascend_costs.md").read_text())}


def test_every_kernel_is_in_the_table(costs):
    ops = {name for name in _C.op_fields()} - NO_KERNEL["ascendc"]
    assert {op for op, _ in written()} == ops
    assert set(written()) == {(c.op, c.label) for c in costs.wanted()} and WITHIN_A_TENTH <= set(written())
    assert all(written()[key][2] <= 1.10 for key in WITHIN_A_TENTH)  # the slow ones are not counted below


def test_no_kernel_moves_more_than_is_written(costs):
    lib, rows = costs.emulator(), written()
    for case in costs.wanted():
        key = case.op, case.label
        if key in SLOW:
            continue
        got, (launches, moved, _, scratch) = costs.measure(case, lib), rows[key]
        assert got.moved <= moved, f"{key}: {got.moved} bytes, {moved} are written in docs/ascend_costs.md"
        assert got.scratch <= scratch, f"{key}: {got.scratch} bytes of scratch, {scratch} are written there"
        assert got.launches <= launches, key
        if key in WITHIN_A_TENTH:
            assert got.ratio <= 1.105, f"{key}: {got.ratio:.3f} times the fewest bytes"
