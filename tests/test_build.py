# SPDX-License-Identifier: Apache-2.0
"""The rules of the build: jobs within memory, toolchains found or refused with advice, no backend dropped silently."""
import os
import re
import shutil
import subprocess
import sys
import time

import pytest
from build_util import ROOT, copy_sources, cxx, fake_nvcc, run, script, tool

sys.path.insert(0, str(ROOT / "cmake"))
sys.path.insert(0, str(ROOT / "tools"))
import check_machine  # noqa: E402
import jobs  # noqa: E402

NO_TOOLCHAIN = dict(CUDACXX=None, CUDA_HOME=None, ASCEND_HOME_PATH=None, ASCEND_TOOLKIT_HOME=None,
                    DSV4SPEC_CUDA=None, DSV4SPEC_ASCEND=None, DSV4SPEC_EMULATE=None, DSV4SPEC_CPU_LEVELS=None,
                    DSV4SPEC_CUDA_ARCHS=None, DSV4SPEC_CUDA_FLAGS=None)
LEVEL = "v2" if os.uname().machine == "x86_64" else "generic"


# ------------------------------------------------------------------------------------------------------- A26: jobs
def test_a26_jobs_stay_within_memory():
    assert jobs.build_jobs({}, cores=96, memory=32e9) == 17  # 17 x 1.5 GB = 25.5 GB, 80% of 32 GB is 25.6
    for memory in (1e9, 4e9, 32e9, 512e9):
        n = jobs.build_jobs({}, cores=96, memory=memory)
        assert n == 1 or n * jobs.JOB_BYTES <= 0.8 * memory
    assert jobs.build_jobs({}, cores=2, memory=512e9) == 2


def test_a26_max_jobs_is_obeyed():
    assert jobs.build_jobs({"MAX_JOBS": "3"}, cores=96, memory=1e9) == 3
    for bad in ("0", "-1", "many"):
        with pytest.raises(SystemExit, match="MAX_JOBS: expected a positive integer, got '" + bad):
            jobs.build_jobs({"MAX_JOBS": bad})


def test_a26_memory_counts_control_groups(tmp_path):
    meminfo, cgroup, root = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "fs"
    meminfo.write_text("MemTotal: 64000000 kB\nMemAvailable: 32000000 kB\n")
    cgroup.write_text("0::/a/b\n")
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "memory.max").write_text("max\n")
    assert jobs.memory_available(meminfo, cgroup, root) == 32000000 * 1024
    (root / "a" / "memory.max").write_text("2000000000\n")  # a limit of the group around ours
    assert jobs.memory_available(meminfo, cgroup, root) == 2000000000
    cgroup.write_text("4:cpu,memory:/x\n")
    (root / "memory" / "x").mkdir(parents=True)
    (root / "memory" / "x" / "memory.limit_in_bytes").write_text("1000000000\n")
    assert jobs.memory_available(meminfo, cgroup, root) == 1000000000


# ------------------------------------------------------------------------------------------------- setup.py, Makefile
def _setup(tmp_path, *arguments, cmake_exit=0, ninja=False, **environ):
    """Run setup.py with a cmake that only writes down how it was called."""
    bin_dir, log = tmp_path / "bin", tmp_path / "log"
    script(bin_dir / "cmake", f'echo "$@" >> {log}\nexit {cmake_exit}\n')
    script(bin_dir / "c++", "exit 0\n")
    if ninja:
        script(bin_dir / "ninja", "exit 0\n")
    tree = copy_sources(tmp_path / "tree")
    result = run(sys.executable, "setup.py", "build_ext", *arguments, cwd=tree, PATH=str(bin_dir), **environ)
    return result, log.read_text().splitlines() if log.exists() else []


def test_a26_no_ninja_still_builds_and_options_reach_cmake(tmp_path):
    result, calls = _setup(tmp_path, MAX_JOBS="3", DSV4SPEC_CUDA="OFF", DSV4SPEC_CPU_LEVELS="v2;v3",
                           CMAKE_ARGS="-DA=1 '-DB=2 3'")
    assert result.returncode == 0, result.stdout
    configure, build = calls
    assert "-GUnix Makefiles" in configure and "-DB=2 3" in configure
    assert "-DDSV4SPEC_CUDA=OFF" in configure and "-DDSV4SPEC_ASCEND=AUTO" in configure
    assert "-DDSV4SPEC_CPU_LEVELS=v2;v3" in configure
    assert build.endswith("--parallel 3")


def test_an_isolated_build_of_the_emulator_gets_cuda_headers(tmp_path):
    """The header packages are asked for with DSV4SPEC_EMULATE=ON where no toolkit is, and only then."""
    code = ("import os; from setuptools import build_meta; "
            "print(*build_meta.get_requires_for_build_wheel(), sep='\\n')")
    tree, path = copy_sources(tmp_path / "tree"), os.pathsep.join([str(tmp_path / "bin"), "/usr/bin", "/bin"])
    for emulate, nvcc, wanted in (("ON", False, True), ("ON", True, False), ("OFF", False, False), (None, False, False)):
        if nvcc:
            fake_nvcc(tmp_path / "bin" / "nvcc", "13.0")
        else:
            shutil.rmtree(tmp_path / "bin", ignore_errors=True)
        result = run(sys.executable, "-c", code, cwd=tree, PATH=path, **{**NO_TOOLCHAIN, "DSV4SPEC_EMULATE": emulate})
        assert result.returncode == 0, result.stdout
        assert ("nvidia-cuda-runtime==13.0.*" in result.stdout) == wanted, (emulate, nvcc, result.stdout)


def test_ninja_is_used_and_an_editable_build_goes_into_the_sources(tmp_path):
    result, calls = _setup(tmp_path, "--inplace", ninja=True)
    assert result.returncode == 0, result.stdout
    assert "-GNinja" in calls[0] and f"-DDSV4SPEC_LIB_DIR={tmp_path / 'tree/python/dsv4spec/lib'} " in calls[0]


def test_a27_a_failed_build_fails_the_install(tmp_path):
    result, _ = _setup(tmp_path, cmake_exit=3)
    assert result.returncode != 0 and "failed with exit code 3" in result.stdout and "Traceback" not in result.stdout


def test_a26_a_missing_cmake_or_compiler_is_one_sentence(tmp_path):
    tree = copy_sources(tmp_path / "tree")
    result = run(sys.executable, "setup.py", "build_ext", cwd=tree, PATH=str(tmp_path), CXX=None)
    assert result.returncode != 0 and "dsv4spec: no C++17 compiler (looked for c++, g++, clang++)" in result.stdout
    assert "Traceback" not in result.stdout
    script(tmp_path / "c++", "exit 0\n")
    result = run(sys.executable, "setup.py", "build_ext", cwd=tree, PATH=str(tmp_path))
    assert result.returncode != 0 and "cmake is not installed: pip install cmake" in result.stdout


def test_makefile_installs_the_torch_pin_first_and_passes_pip_args(tmp_path):
    if not shutil.which("make"):
        pytest.skip("gate: make is not installed")

    def make(*arguments):  # not as a part of the make that may be running these tests
        return run("make", f"VENV={tmp_path / 'venv'}", *arguments, "test", cwd=ROOT, MAKEFLAGS=None, MFLAGS=None,
                   MAKELEVEL=None, MAKEOVERRIDES=None)

    result = make("-n", "PIP_ARGS=--index-url some-index")
    assert result.returncode == 0, result.stdout
    installs = [line for line in result.stdout.splitlines() if " install " in line]
    assert installs[0].endswith("install --index-url some-index torch==2.13.0")
    assert all("--index-url some-index" in line for line in installs)
    assert installs[-2].endswith('".[models]"') and installs[-1].endswith('"dsv4spec[test]"')
    assert make("PYTHON=no-such-python").stdout.startswith("dsv4spec: no-such-python is not installed")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the emulator is for x86-64")
def test_makefile_adds_the_emulator_for_the_tests_and_keeps_it(tmp_path):
    if not shutil.which("make"):
        pytest.skip("gate: make is not installed")
    venv, now = tmp_path / "venv", time.time()
    venv.mkdir()

    def stamp(name, at):
        (venv / f"{name}.stamp").touch()
        os.utime(venv / f"{name}.stamp", (now + at, now + at))

    def installs(goal):
        result = run("make", "-n", f"VENV={venv}", goal, cwd=ROOT, MAKEFLAGS=None, MFLAGS=None, MAKELEVEL=None,
                     MAKEOVERRIDES=None)
        assert result.returncode == 0, result.stdout
        return [line for line in result.stdout.splitlines() if ".[models]" in line]

    stamp("venv", 1), stamp("torch", 2)
    assert len(installs("demo")) == 1 and "DSV4SPEC_EMULATE=OFF" in installs("demo")[0]
    assert len(installs("test")) == 1 and "DSV4SPEC_EMULATE=ON" in installs("test")[0]
    stamp("package", 3), stamp("test", 4)  # after `make demo`
    assert installs("demo") == [] and "DSV4SPEC_EMULATE=ON" in installs("test")[0]
    stamp("emulator", 5), stamp("package", 6)  # after `make test`
    assert installs("demo") == installs("test") == []
    stamp("package", -1e6)  # something changed
    assert "DSV4SPEC_EMULATE=ON" in installs("demo")[0]


def test_a26_a_machine_that_lacks_something_gets_one_line_each(monkeypatch):
    assert check_machine.missing() == []
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    monkeypatch.setattr(check_machine.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(check_machine.os.path, "exists", lambda path: False)
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    version, venv, headers, compiler = check_machine.missing()
    assert "Python 3.10 or newer is needed" in version and "python3-venv" in venv
    assert "Python.h" in headers and "python3-dev" in headers and "CXX=no-such-compiler" in compiler


# -------------------------------------------------------------------------------------- A26, A27: device toolchains
@pytest.fixture(scope="module")
def plain_tree(tmp_path_factory):
    """The sources without device kernels."""
    return copy_sources(tmp_path_factory.mktemp("plain"), without=("kernels/cuda", "kernels/ascendc"))


def _look(tree, cuda="AUTO", ascend="AUTO", **environ):
    """The summary of cmake/backends.cmake alone, run as a script (a whole configuration takes a second)."""
    main = tree / "look.cmake"
    main.write_text("set(DSV4_SUMMARY)\ninclude(cmake/backends.cmake)\nmessage(STATUS \"${DSV4_SUMMARY}\")\n")
    result = run(tool("cmake"), f"-DDSV4SPEC_CUDA={cuda}", f"-DDSV4SPEC_ASCEND={ascend}",
                 "-DCMAKE_SYSTEM_PROCESSOR=" + os.uname().machine, "-P", main, cwd=tree,
                 **{**NO_TOOLCHAIN, **environ})
    return result.returncode, re.sub(r"\s+", " ", result.stdout)


def test_a26_no_nvcc_gives_a_cpu_build_that_says_so(plain_tree, tmp_path):
    code, text = _look(plain_tree, PATH=tmp_path)
    assert code == 0
    assert "cuda: not built: no nvcc (looked at CUDACXX, CUDA_HOME and PATH)" in text
    assert "npu: not built: no CANN (ASCEND_HOME_PATH and ASCEND_TOOLKIT_HOME are not set)" in text
    code, text = _look(plain_tree, CUDA_HOME=tmp_path / "none")
    assert code == 0 and f"cuda: not built: no nvcc (looked at CUDA_HOME={tmp_path / 'none'})" in text


def test_a26_asking_for_cuda_without_nvcc_fails_with_advice(plain_tree, tmp_path):
    code, text = _look(plain_tree, cuda="ON", PATH=tmp_path)
    assert code != 0 and "DSV4SPEC_CUDA=ON: no nvcc" in text and "Set CUDA_HOME" in text and "CUDACXX" in text
    code, text = _look(plain_tree, cuda="ON", CUDACXX=tmp_path / "none")
    assert code != 0 and f"CUDACXX={tmp_path / 'none'}" in text


def test_a26_nvcc_of_another_major_version_is_refused_with_both(plain_tree, tmp_path):
    nvcc = fake_nvcc(tmp_path / "bin" / "nvcc", "11.8")
    for cuda in ("AUTO", "ON"):
        code, text = _look(plain_tree, cuda=cuda, CUDA_HOME=tmp_path)
        assert (code != 0) == (cuda == "ON")
        assert f"nvcc 11.8 found at {nvcc}, expected CUDA 12 or 13" in text


def test_a27_an_nvcc_that_does_not_run_is_named(plain_tree, tmp_path):
    nvcc = script(tmp_path / "nvcc", "echo broken; exit 4\n")
    code, text = _look(plain_tree, cuda="ON", CUDACXX=nvcc)
    assert code != 0 and f"{nvcc} --version does not name a release (exit 4): broken" in text


def test_a27_a_backend_without_kernels_is_not_dropped_silently(plain_tree, tmp_path):
    nvcc = fake_nvcc(tmp_path / "nvcc", "13.0")
    code, text = _look(plain_tree, CUDACXX=nvcc)
    assert code == 0 and f"cuda: not built: nvcc 13.0 found at {nvcc}, but this source tree has no kernels" in text
    code, text = _look(plain_tree, cuda="ON", CUDACXX=nvcc)
    assert code != 0 and "DSV4SPEC_CUDA=ON: nvcc 13.0 found" in text and "no kernels in kernels/cuda" in text


def _headers(tree, tmp_path, **environ):
    main = tmp_path / "look.cmake"
    main.write_text(f'include("{tree}/cmake/cuda_headers.cmake")\ndsv4_cuda_headers(found why)\n'
                    'message(STATUS "[${found}] ${why}")\n')
    result = run(tool("cmake"), f"-DPython_EXECUTABLE={sys.executable}", "-P", main, **environ)
    assert result.returncode == 0, result.stdout
    return result.stdout


def test_cuda_headers_of_pip_packages_serve_without_a_toolkit(plain_tree, tmp_path):
    folder = tmp_path / "site" / "nvidia" / "cu13" / "include"
    names = ("cuda_runtime.h", "cuda_bf16.h", "cuda_fp8.h", "crt/host_config.h", "nv/target")
    for name in names:
        text = _headers(plain_tree, tmp_path, PYTHONPATH=tmp_path / "site")  # some are missing yet: another package's
        assert str(folder) not in text
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert f"[{folder}] headers of {folder}" in _headers(plain_tree, tmp_path, PYTHONPATH=tmp_path / "site")


def test_a26_cann_is_found_or_asked_for(plain_tree, tmp_path):
    code, text = _look(plain_tree, ascend="ON")
    assert code != 0 and "ASCEND_HOME_PATH" in text and "set_env.sh" in text
    code, text = _look(plain_tree, ascend="ON", ASCEND_HOME_PATH=tmp_path)
    assert code != 0 and f"no bisheng compiler under ASCEND_HOME_PATH={tmp_path}" in text and "set_env.sh" in text
    script(tmp_path / f"{os.uname().machine}-linux" / "ccec_compiler" / "bin" / "bisheng", "exit 0\n")
    (tmp_path / "version.cfg").write_text("# CANN\nruntime_running_version=[8.5.0:8.5.0.1]\n")
    for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        code, text = _look(plain_tree, **{variable: tmp_path})
        assert code == 0 and f"npu: not built: CANN 8.5.0 found at {tmp_path}, but this source tree has no" in text


def test_off_and_wrong_values(plain_tree, tmp_path):
    code, text = _look(plain_tree, cuda="OFF", ascend="OFF", CUDACXX=fake_nvcc(tmp_path / "nvcc", "13.0"))
    assert code == 0 and "cuda: not built: DSV4SPEC_CUDA=OFF npu: not built: DSV4SPEC_ASCEND=OFF" in text
    code, text = _look(plain_tree, cuda="maybe")
    assert code != 0 and "DSV4SPEC_CUDA: expected AUTO, ON or OFF, got maybe" in text


# ------------------------------------------------------------------------------------------ whole configurations
def _configure(tree, build, *arguments, **environ):
    return run(tool("cmake"), "-S", tree, "-B", build, "-GUnix Makefiles", "-DDSV4SPEC_BINDING=OFF",
               "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0", f"-DDSV4SPEC_LIB_DIR={build / 'lib'}",
               *arguments, **{**NO_TOOLCHAIN, **environ})


@pytest.mark.parametrize("asked", ["ON", "AUTO"])
def test_a27_a_backend_whose_compiler_fails_fails_the_build(tmp_path, asked):
    tree, build = copy_sources(tmp_path / "tree", without=("kernels/cuda",)), tmp_path / "build"
    folder = tree / "kernels" / "cuda"
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(
        "add_custom_command(OUTPUT op.o COMMAND ${DSV4_CUDA_COMPILER} -c ${CMAKE_CURRENT_SOURCE_DIR}/op.cu -o op.o)\n"
        "add_custom_target(dsv4spec_cuda ALL DEPENDS op.o)\n")
    nvcc = fake_nvcc(tmp_path / "nvcc", "13.0", compiles=False)
    result = _configure(tree, build, DSV4SPEC_CUDA=asked, CUDACXX=nvcc, DSV4SPEC_CPU_LEVELS=LEVEL)
    assert result.returncode == 0 and f"cuda: built with nvcc 13.0 ({nvcc})" in result.stdout, result.stdout
    result = run(tool("cmake"), "--build", build, "--target", "dsv4spec_cuda")
    assert result.returncode != 0 and "nvcc fatal" in result.stdout


@pytest.mark.skipif(LEVEL != "v2", reason="levels are of x86-64")
def test_a_level_that_the_compiler_cannot_do_is_left_out_with_a_line(plain_tree, tmp_path):
    compiler = script(tmp_path / "c++", 'case "$*" in *-mavx512bf16*) exit 1;; esac\n'
                                        f'exec {cxx()} "$@"\n')
    result = _configure(plain_tree, tmp_path / "b", f"-DCMAKE_CXX_COMPILER={compiler}")
    assert result.returncode == 0, result.stdout
    assert re.search(r"cpu: built for v2, v3, v4 with", result.stdout)
    assert re.search(r"cpu v4_bf16: not built: .* does not know one of .*-mavx512bf16", result.stdout)
    result = _configure(plain_tree, tmp_path / "b", "-DDSV4SPEC_CPU_LEVELS=v4_bf16")
    assert result.returncode != 0 and "cannot compile level v4_bf16" in result.stdout
    result = _configure(plain_tree, tmp_path / "b", "-DDSV4SPEC_CPU_LEVELS=v9")
    assert result.returncode != 0 and "got v9" in result.stdout


def test_builds_for_aarch64(plain_tree, tmp_path):
    compiler = shutil.which("aarch64-linux-gnu-g++")
    if not compiler:
        pytest.skip("gate: the aarch64 cross compiler (aarch64-linux-gnu-g++) is not installed")
    build = tmp_path / "build"
    result = _configure(plain_tree, build, f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_SYSTEM_NAME=Linux",
                        "-DCMAKE_SYSTEM_PROCESSOR=aarch64")
    assert result.returncode == 0 and "cpu: built for generic" in result.stdout, result.stdout
    result = run(tool("cmake"), "--build", build, "--parallel", jobs.build_jobs())
    assert result.returncode == 0, result.stdout[-4000:]
    for name in ("libdsv4spec.so", "libdsv4spec_cpu_generic.so"):
        assert (build / "lib" / name).read_bytes()[18:20] == b"\xb7\x00"  # ELF machine: AArch64


# --------------------------------------------------------------------------------------------------------- the stamp
def _stamp(tree, out):
    result = run(tool("cmake"), f"-DSOURCE={tree}", f"-DOUT={out}", "-P", ROOT / "cmake" / "stamp.cmake")
    assert result.returncode == 0, result.stdout
    return dict(re.findall(r'#define DSV4_(\w+) "(.*)"', out.read_text()))


def test_a28_the_stamp_follows_the_sources(tmp_path):
    tree, out = copy_sources(tmp_path / "tree"), tmp_path / "stamp.h"
    first = _stamp(tree, out)
    assert first["GIT_HASH"] == "unknown" and re.fullmatch("[0-9a-f]{16}", first["SOURCE_HASH"])
    os.utime(out, (1, 1))
    (tree / "csrc" / ".capi.cpp.swp").write_text("an editor's file")
    assert _stamp(tree, out) == first and out.stat().st_mtime == 1  # not written again: nothing is recompiled
    with open(tree / "kernels" / "cpu" / "plugin.cpp", "a") as f:
        f.write("//\n")
    assert _stamp(tree, out)["SOURCE_HASH"] != first["SOURCE_HASH"]
    (tree / "GIT_HASH").write_text("0123456789ab\n")
    assert _stamp(tree, out)["GIT_HASH"] == "0123456789ab"


def test_git_tree_is_stamped_with_its_commit(tmp_path):
    git = shutil.which("git")
    if not git or not (ROOT / ".git").exists():
        pytest.skip("not a git work tree")
    head = subprocess.run([git, "rev-parse", "--short=12", "HEAD"], cwd=ROOT, text=True, capture_output=True)
    assert _stamp(ROOT, tmp_path / "stamp.h")["GIT_HASH"].startswith(head.stdout.strip())
