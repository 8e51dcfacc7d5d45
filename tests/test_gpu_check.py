# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check.sh on a machine without a GPU: all its steps on the CPU, and what it says of a machine that lacks
something. The build for a GPU, and the clocks of one, are left to a machine that has it."""
import json
import os
import re
import shutil
import sys

import pytest
import torch
from build_util import ROOT, run, script

SCRIPT = ROOT / "scripts" / "gpu_check.sh"
pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")


def gpu_check(*arguments, **environ):
    return run("bash", SCRIPT, "--python", sys.executable, *arguments, cwd="/", DSV4SPEC_TEST_BACKENDS=None,
               PYTHONPATH=os.pathsep.join(path for path in sys.path if path), **environ)


def test_all_steps_run_on_the_cpu(tmp_path):
    result = gpu_check("--device", "cpu", "--no-build", "--out", tmp_path)
    assert result.returncode == 0, result.stdout[-6000:]
    for name in ("info", "tests", "samples", "bench"):
        assert f"=== {name}: exit 0 after " in result.stdout
        assert (tmp_path / f"{name}.log").read_text().strip()
    assert "gpu_check: all well after" in result.stdout
    measured = json.loads((tmp_path / "ops.json").read_text())
    assert measured["lines"] and not measured["refused"]


def test_a_failed_step_fails_the_whole_and_the_others_run(tmp_path):
    python = script(tmp_path / "python", f'case "$*" in *"-m pytest"*) echo no; exit 3;; *" bench "*) echo measured; exit 0;; esac\n'
                                         f'exec {sys.executable} "$@"\n')
    result = run("bash", SCRIPT, "--python", python, "--device", "cpu", "--no-build", "--out", tmp_path / "out", cwd="/",
                 PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    assert result.returncode == 1, result.stdout
    assert "=== tests: exit 3 after" in result.stdout and "measured" in result.stdout
    assert "gpu_check: FAILED: tests (logs in" in result.stdout


def test_all_steps_together_keep_to_the_time(tmp_path):
    """What steps may take is more than the whole may: the later ones get what is left, and are named if that is nothing."""
    python = script(tmp_path / "python", f'case "$*" in *"-m pytest"*) sleep 60;; *" info"*|*" bench "*) exit 0;; esac\n'
                                         f'exec {sys.executable} "$@"\n')
    result = run("bash", SCRIPT, "--python", python, "--device", "cpu", "--no-build", "--out", tmp_path / "out", cwd="/",
                 DSV4SPEC_GPU_CHECK_SECONDS="20", PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    assert result.returncode == 1, result.stdout
    assert "=== tests: stopped after " in result.stdout and "=== bench: not run, the 20 s are over" in result.stdout
    assert "gpu_check: FAILED: tests samples bench (logs in" in result.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_is_told_what_is_missing(tmp_path):
    result = gpu_check("--out", tmp_path)
    assert result.returncode == 2 and "gpu_check: missing: " in result.stdout
    assert result.stdout.rstrip().endswith("a GPU that torch sees")


def as_on_a_gpu(tmp_path, sees=True, **environ):
    """With tools that only say what the real ones would. The run, and how the tools and Python were called."""
    log, tools = tmp_path / "calls", tmp_path / "tools"
    tools.mkdir()
    script(tools / "nvcc", f'echo "nvcc $*" >> {log}')
    script(tools / "nvidia-smi", "echo GPU")
    finds = "echo hazard; exit 9" if sees else "exit 0"
    script(tools / "compute-sanitizer", f'echo "compute-sanitizer $*" >> {log}; case "$*" in *planted*) {finds};; esac')
    python = script(tools / "python", f'echo "python $*" >> {log}\n'
                                      'case "$*" in "- cuda 0"|*"-m pytest"*|*" info"*|*" bench "*) exit 0;; esac\n'
                                      f'exec {sys.executable} "$@"\n')
    result = run("bash", SCRIPT, "--python", python, "--device", "cuda", "--no-build", "--out", tmp_path / "out", cwd="/",
                 PATH=os.pathsep.join([str(tools), os.environ["PATH"]]), **environ)
    return result, log.read_text().splitlines()


@pytest.mark.parametrize("sees", [True, False])
def test_the_sanitizer_must_see_a_planted_bug(tmp_path, sees):
    """A sanitizer that finds nothing in the kernel with the bug is no sanitizer, and the names that it is given come
    through its filter."""
    result, calls = as_on_a_gpu(tmp_path, sees)
    assert result.returncode == (0 if sees else 1), result.stdout[-4000:]
    assert ("gpu_check: FAILED: planted-memcheck planted-racecheck (logs in" in result.stdout) == (not sees)
    assert ("memcheck did not see the planted bug (exit 0)" in result.stdout) == (not sees)
    calls = [line for line in calls if line.startswith("compute-sanitizer")]
    assert len(calls) == 4 and all("--error-exitcode 9 --kernel-name kns=dsv4 " in line for line in calls)
    assert [("racecheck" in line, "samples.py cuda" in line) for line in calls] == [
        (False, False), (False, True), (True, False), (True, True)]


def test_every_test_of_a_gpu_is_run(tmp_path):
    """Those that ask which backends to run on, and those that ask for a GPU."""
    _, calls = as_on_a_gpu(tmp_path)
    [call] = [line for line in calls if "-m pytest" in line]
    asks = re.compile(r"\bBACKENDS\b|\bMACHINES\b|skipif\(not GPU\b|skip\(\"no GPU\"\)")
    files = {path.name for path in (ROOT / "tests").glob("test_*.py") if path.name != "test_gpu_check.py"
             and asks.search(path.read_text())}
    assert {"test_cuda_graphs.py", "test_cuda_gpu.py", "test_ptx_conformance.py", "test_mhc_pre.py"} <= files
    assert files <= set(re.findall(r"tests/(\w+\.py)", call)), files - set(re.findall(r"tests/(\w+\.py)", call))


@pytest.mark.parametrize("seconds, least, most", [(100, 1, 60), (41, 1, 1), (470, 120, 120)])
def test_the_benchmarks_end_before_they_are_stopped(tmp_path, seconds, least, most):
    """One that is stopped writes no JSON."""
    _, calls = as_on_a_gpu(tmp_path, DSV4SPEC_GPU_CHECK_SECONDS=str(seconds))
    [call] = [line for line in calls if " bench " in line]
    assert least <= int(re.search(r"--budget (\d+) --json ", call)[1]) <= most
