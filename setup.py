# SPDX-License-Identifier: Apache-2.0
"""Runs CMake for the compiled part. Metadata: pyproject.toml. Variables that it reads: DSV4SPEC_CUDA, DSV4SPEC_ASCEND,
DSV4SPEC_EMULATE, DSV4SPEC_CPU_LEVELS, DSV4SPEC_CUDA_ARCHS (CMakeLists.txt), MAX_JOBS (parallel compiles), CMAKE_ARGS
(passed on to CMake); docs/environment.md has them all."""
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "cmake"), str(ROOT / "tools")]
from check_machine import no_compiler  # noqa: E402
from jobs import build_jobs  # noqa: E402


def run(*command):
    try:
        subprocess.run([str(c) for c in command], check=True)
    except FileNotFoundError:
        raise SystemExit(f"dsv4spec: {command[0]} is not installed: pip install {command[0]}") from None
    except subprocess.CalledProcessError as e:
        raise SystemExit(f"dsv4spec: {shlex.join(map(str, command))} failed with exit code {e.returncode}; "
                         "its own message stands above") from None


def build_requires():
    """What an isolated build needs besides pyproject.toml: the emulator's CUDA headers where there is no toolkit."""
    emulate = os.environ.get("DSV4SPEC_EMULATE", "").upper() in ("ON", "1", "TRUE", "YES")
    if not emulate or any(map(os.environ.get, ("CUDACXX", "CUDA_HOME"))) or shutil.which("nvcc"):
        return []
    lines = (ROOT / "cmake" / "cuda_headers.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


class CMakeBuild(build_ext):
    def run(self):
        self.in_sources = bool(self.inplace)  # an editable install; setuptools clears `inplace` while it builds
        super().run()

    def copy_extensions_to_source(self):
        pass  # CMake has put them there

    def build_extension(self, ext):
        import pybind11

        arguments = shlex.split(os.environ.get("CMAKE_ARGS", ""))
        if not any(a.startswith(("-DCMAKE_CXX_COMPILER=", "-DCMAKE_TOOLCHAIN_FILE=", "--toolchain")) for a in arguments):
            for line in no_compiler():  # CMake would say it on a page
                raise SystemExit(f"dsv4spec: {line}")
        built = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        package = ROOT / "python" / "dsv4spec" if self.in_sources else built
        ninja = shutil.which("ninja")
        tree = ROOT / "build" / f"{sys.implementation.cache_tag}-{'ninja' if ninja else 'make'}"
        generator = ("-GNinja", f"-DCMAKE_MAKE_PROGRAM={ninja}") if ninja else ("-GUnix Makefiles",)
        options = [f"-D{name}={os.environ.get(name) or default}" for name, default in
                   (("DSV4SPEC_CUDA", "AUTO"), ("DSV4SPEC_ASCEND", "AUTO"), ("DSV4SPEC_EMULATE", "OFF"),
                    ("DSV4SPEC_CPU_LEVELS", ""), ("DSV4SPEC_CUDA_ARCHS", ""), ("DSV4SPEC_CUDA_FLAGS", ""))]
        run("cmake", "-S", ROOT, "-B", tree, *generator, f"-DDSV4SPEC_LIB_DIR={package / 'lib'}",
            f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}", *options,
            *arguments)
        run("cmake", "--build", tree, "--parallel", build_jobs())


class FreshBuildPy(build_py):
    def run(self):
        if not self.editable_mode:  # else modules and libraries that are gone from the sources would be packed again
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class StampedSdist(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        if (ROOT / ".git").exists():  # else GIT_HASH is there already, from the archive that this tree came from
            git = subprocess.run(["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"], cwd=ROOT,
                                 capture_output=True, text=True)
            Path(base_dir, "GIT_HASH").write_text((git.stdout.strip() or "unknown") + "\n")


setup(setup_requires=build_requires(), ext_modules=[Extension("dsv4spec._C", [])],
      cmdclass={"build_ext": CMakeBuild, "build_py": FreshBuildPy, "sdist": StampedSdist})
