# SPDX-License-Identifier: Apache-2.0
"""Every CUDA kernel on the emulator, on small odd shapes, with all tensors at the end of their memory: equal to the
reference, the same bits in every order of threads, and without a report from the sanitizers and the shadow."""
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_flavours import ORDERS, WITHOUT_CLUSTERS, cuda_runner, on_clusters
from emu_cases import CASES, FEW, of
from emu_util import LIFO, RANDOM, WARP_PRIORITY, flavour_environment

from dsv4spec.ops import OPS
from dsv4spec.ops.table import NO_KERNEL

KERNELS = sorted(set(OPS) - NO_KERNEL["cuda"])


@functools.cache
def runner():
    return cuda_runner()


def test_every_kernel_has_cases_and_every_order_is_run():
    assert {name.split()[0] for name in CASES} == set(KERNELS)
    assert all(len(of(op)) >= 3 for op in KERNELS)
    assert dict(order=LIFO, seed=1) in ORDERS and sum(o["order"] in (RANDOM, WARP_PRIORITY) for o in ORDERS) == 4


@pytest.mark.parametrize("op", KERNELS)
def test_same_bits_in_every_order(op):
    for name in of(op):
        runner().case(name)


def test_same_bits_in_every_order_without_clusters():
    names = [name for name in CASES if on_clusters(name)]
    assert len(names) > 20
    with runner().emulator.settings(**WITHOUT_CLUSTERS):
        for name in names:
            runner().case(name)


def test_every_kernel_function_is_launched():
    """By some case: a branch of a launcher that none takes is one that nothing here has seen."""
    functions = set()
    for path in (Path(__file__).parent.parent / "kernels" / "cuda").glob("*.cu*"):
        for head in re.findall(r"__global__ void([^{;]*)\{", path.read_text()):
            head = re.sub(r"__launch_bounds__\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", "", head)
            functions.add(re.search(r"(\w+)\(", head)[1])
    launched, in_clusters = launched_by(CASES)
    assert len(functions) > 15 and functions == launched, functions ^ launched
    few, few_in_clusters = launched_by(FEW)  # what compute-sanitizer sees (scripts/gpu_check.sh)
    assert few == launched and few_in_clusters == in_clusters, (launched - few, in_clusters - few_in_clusters)


def launched_by(names):
    """Kernel functions, and those that were launched in clusters."""
    runner().emulator.clear()
    for name in names:
        runner().once(*CASES[name]())
    found = {True: set(), False: set()}
    for name, counters in runner().emulator.counters().items():
        found["cluster" in counters].add(re.sub(r"<.*", "", name).split("::")[-1])
    return found[True] | found[False], found[True]


@functools.cache
def run_of(flavour: str) -> tuple[str, str, int]:
    """One process for all cases of a flavour: it loads torch once."""
    script = Path(__file__).with_name("cuda_flavours.py")
    out = subprocess.run([sys.executable, str(script), flavour], env=flavour_environment(flavour), text=True,
                         capture_output=True)
    return out.stdout, out.stderr, out.returncode


@pytest.mark.parametrize("op", KERNELS)
@pytest.mark.parametrize("flavour", ["asan", "shadow"])
def test_no_report(flavour, op):
    out, errors, code = run_of(flavour)
    ok = {line[3:] for line in out.splitlines() if line.startswith("ok ")}
    ended_in = [line[5:] for line in out.splitlines() if line.startswith("case ")][-1:] if code < 0 or code > 1 else []
    for name in of(op):
        at = out.find(f"failed {name}:")
        assert at < 0, out[at:at + 3000]
        assert name in ok, f"{name}: the process ended in {ended_in} ({code})\n{errors[-6000:]}"


@pytest.mark.parametrize("flavour", ["asan", "shadow"])
def test_the_whole_run_went_well(flavour):
    out, errors, code = run_of(flavour)
    assert code == 0, out[-1500:] + errors[-1500:]
