# SPDX-License-Identifier: Apache-2.0
"""What the tests of ``dsv4spec bench`` share: a run as short as can be, against roofs that are given."""
import pytest
from dsv4spec import bench_cases, bench_measure, bench_roofs, bench_timing
from dsv4spec.bench_roofs import Roofs
from dsv4spec.cli import main

ROOFS = Roofs(copy_bytes_per_s=1e10, read_bytes_per_s=2e10, float32_flops_per_s=1e11, bfloat16_flops_per_s=4e11, call_s=1e-6)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Two samples of a call each over two sets of arguments, and roofs that are given."""
    monkeypatch.setattr(bench_timing, "SECONDS", 1e-6)
    monkeypatch.setattr(bench_timing, "SAMPLE", 1e-9)
    monkeypatch.setattr(bench_timing, "LEAST", 2)
    monkeypatch.setattr(bench_timing, "FEWEST", 2)
    monkeypatch.setitem(bench_measure.MOST_SETS, "cpu", 3)
    monkeypatch.setattr(bench_roofs, "measure", lambda clock, small: ROOFS)


def bench(*args):
    return main(["bench", *map(str, args)])


def first_case(name):
    return next(c for c in bench_cases.cases("tiny") if c.op == name)
