# SPDX-License-Identifier: Apache-2.0
"""Every variable that dsv4spec reads, in one table. ``python -m dsv4spec.variables`` writes docs/environment.md from it;
the tests hold both against the sources, and ``dsv4spec info`` shows those that are set."""
from __future__ import annotations

import os
from typing import NamedTuple

KINDS = {  # heading of each in the document
    "build": "At build time: environment variables of pip, make or CMake, or `-D` of CMake",
    "cmake": "At build time, of CMake alone: `-D`, through pip `CMAKE_ARGS=\"-DNAME=VALUE\"`",
    "run": "At run time",
    "test": "Of the tests and scripts",
    "foreign": "Names of others that are followed",
}


class Variable(NamedTuple):
    """A row: ``read_in`` names the source files that read it, ``default`` is what an unset one means."""

    name: str
    kind: str
    default: str
    meaning: str
    read_in: tuple[str, ...]


TABLE = tuple(Variable(*row) for row in (
    ("DSV4SPEC_CUDA", "build", "`AUTO`", "CUDA kernels: `AUTO` builds them where there is an nvcc, and says so; `ON`: or "
     "fails with advice; `OFF`", ("CMakeLists.txt", "setup.py", "cmake/backends.cmake")),
    ("DSV4SPEC_ASCEND", "build", "`AUTO`", "AscendC kernels: the same, by CANN",
     ("CMakeLists.txt", "setup.py", "cmake/backends.cmake")),
    ("DSV4SPEC_CPU_LEVELS", "build", "all that the compiler can", "CPU levels to build: `v2`, `v3`, `v4`, `v4_bf16` "
     "(x86-64), `generic` (others); several with commas", ("setup.py", "cmake/cpu_levels.cmake")),
    ("DSV4SPEC_CUDA_ARCHS", "build", "`sm_80,sm_90a,sm_100`", "GPU architectures; `native`: those of this machine's GPUs",
     ("setup.py", "kernels/cuda/CMakeLists.txt")),
    ("DSV4SPEC_CUDA_FLAGS", "build", "none", "more flags of nvcc, such as `-lineinfo`",
     ("setup.py", "kernels/cuda/CMakeLists.txt")),
    ("DSV4SPEC_EMULATE", "build", "`OFF`", "`ON` adds the backends `cuda_emu` and `ascend_emu`, which run the device kernels "
     "on a CPU (x86-64 Linux)", ("CMakeLists.txt", "setup.py", "cmake/backends.cmake")),
    ("DSV4SPEC_BINDING", "cmake", "`ON`", "build the Python extension", ("CMakeLists.txt",)),
    ("DSV4SPEC_LIB_DIR", "cmake", "`python/dsv4spec/lib`", "where the libraries go; the extension goes into the folder above",
     ("CMakeLists.txt", "cmake/cpu_levels.cmake", "setup.py")),
    ("DSV4SPEC_CLANGXX", "cmake", "the newest on PATH", "the clang++ of the CUDA emulator's checked flavour",
     ("tests/emu/cuda/shadow.cmake",)),
    ("DSV4SPEC_BACKEND", "run", "the tensors' device", "route every op: `reference`, `cpu`, `cuda`, `npu`, `cuda_emu`, "
     "`ascend_emu`", ("python/dsv4spec/ops/_dispatch.py",)),
    ("DSV4SPEC_CPU_LEVEL", "run", "the best that runs here", "the CPU level to load", ("csrc/backends.cpp",)),
    ("DSV4SPEC_NUM_THREADS", "run", "usable cores", "threads of the CPU kernels", ("csrc/thread_pool.cpp",)),
    ("DSV4SPEC_EMU_FLAVOUR", "run", "none", "`asan` or `shadow`: the emulators' checked libraries", ("csrc/backends.cpp",)),
    ("DSV4SPEC_TEST_BACKENDS", "test", "`cpu,reference` and the emulators built", "backends of the op tests",
     ("tests/util.py", "tests/conftest.py")),
    ("DSV4SPEC_TEST_DEVICE", "test", "none", "`cuda` or `npu`: the op tests on that device as well",
     ("tests/util.py", "tests/conftest.py")),
    ("DSV4SPEC_TEST_BRIDGE", "test", "none", "`cpu`: try the device bridge of the tests without a device",
     ("tests/conftest.py",)),
    ("DSV4SPEC_CONFORMANCE_LIBRARY", "test", "built there", "a library of the PTX conformance test that was built elsewhere",
     ("tests/test_ptx_conformance.py",)),
    ("DSV4SPEC_GPU_CHECK_SECONDS", "test", "470", "how long `scripts/gpu_check.sh` may take", ("scripts/gpu_check.sh",)),
    ("MAX_JOBS", "foreign", "cores, as far as memory goes", "compile jobs at once", ("cmake/jobs.py",)),
    ("CMAKE_ARGS", "foreign", "none", "passed on to CMake by pip's builds", ("setup.py",)),
    ("CXX", "foreign", "`c++`", "the C++ compiler of the build", ("tools/check_machine.py",)),
    ("CUDACXX", "foreign", "none", "the nvcc to build with", ("cmake/backends.cmake",)),
    ("CUDA_HOME", "foreign", "none", "the toolkit whose nvcc to build with; after both, nvcc on PATH",
     ("cmake/backends.cmake",)),
    ("ASCEND_HOME_PATH", "foreign", "none", "the CANN toolkit, by its `set_env.sh`", ("cmake/backends.cmake",)),
    ("ASCEND_TOOLKIT_HOME", "foreign", "none", "the same, where `ASCEND_HOME_PATH` is not set", ("cmake/backends.cmake",)),
    ("SOC_VERSION", "foreign", "what `npu-smi` says", "the NPU's chip, for CANN 8", ("kernels/ascendc/CMakeLists.txt",)),
    ("OMP_WAIT_POLICY", "foreign", "`PASSIVE` in the commands", "torch's threads wait without spinning",
     ("python/dsv4spec/cli.py",)),
    ("CI", "foreign", "none", "`true`: a test that lacks a tool of the machine fails instead of being skipped",
     ("tests/conftest.py",)),
))


def unknown() -> list[str]:
    """Variables that are set and look like one of dsv4spec, but are none: misspelt ones."""
    return [name for name in settings() if name.startswith("DSV4SPEC_") and name not in {row.name for row in TABLE}]


def settings() -> dict[str, str]:
    """Those of the table, and the emulators' own (CUDA_EMU_..., ASCEND_EMU_...), that are set in this process."""
    names = {row.name for row in TABLE if row.kind != "cmake"}
    return {name: value for name, value in sorted(os.environ.items())
            if name in names or name.startswith(("DSV4SPEC_", "CUDA_EMU_", "ASCEND_EMU_"))}


def markdown() -> str:
    """The text of docs/environment.md."""
    lines = ["# Variables", "", "Written by `python -m dsv4spec.variables` from the table in `python/dsv4spec/variables.py`; "
             "a test compares both with the sources.", "An empty variable counts as unset."]
    for kind, text in KINDS.items():
        lines += ["", f"## {text}", "", "| variable | default | |", "| --- | --- | --- |",
                  *(f"| `{row.name}` | {row.default} | {row.meaning} |" for row in TABLE if row.kind == kind)]
    lines += ["", "The emulators' own, `CUDA_EMU_*` and `ASCEND_EMU_*`: [tests/emu/cuda](../tests/emu/cuda/README.md), "
              "[tests/emu/ascendc](../tests/emu/ascendc/README.md)."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
