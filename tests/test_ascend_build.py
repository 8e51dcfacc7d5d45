# SPDX-License-Identifier: Apache-2.0
"""The build with CANN (A29), against toolkit trees of the test's own: the right compiler line, or one sentence of
advice. What a real toolkit makes of the sources is not seen here."""
import json
import os
import re
import shutil

import pytest
from build_util import ROOT, copy_sources, cxx, run, script, tool
from fake_cann import MACHINE, OLD_FOLDERS, new_toolkit, old_toolkit

CLEAN = {name: None for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_CANN_PACKAGE_PATH", "SOC_VERSION",
                                 "DSV4SPEC_ASCEND", "DSV4SPEC_CUDA", "DSV4SPEC_EMULATE")}
# What the project's own CMakeLists.txt does for a backend, without the rest of the project.
PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(test LANGUAGES CXX)
set(CMAKE_BUILD_TYPE Release)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
add_compile_options(-Wno-psabi)
set(GENERATED "${CMAKE_BINARY_DIR}/generated")
set(DSV4SPEC_LIB_DIR "${CMAKE_BINARY_DIR}/lib")
include_directories(include csrc "${GENERATED}")
file(WRITE "${CMAKE_BINARY_DIR}/info.cpp" "")
add_library(dsv4_build_info OBJECT "${CMAKE_BINARY_DIR}/info.cpp")
include(cmake/backends.cmake)
message(STATUS "${DSV4_SUMMARY}")
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    tree = copy_sources(tmp_path_factory.mktemp("tree"), without=("kernels/cuda", "kernels/cpu", "tests/emu"))
    (tree / "CMakeLists.txt").write_text(PROJECT)
    return tree


def configure(tree, build, *arguments, ascend="ON", **environ):
    result = run(tool("cmake"), "-S", tree, "-B", build, "-GUnix Makefiles", "-DDSV4SPEC_CUDA=OFF",
                 "-DDSV4SPEC_EMULATE=OFF", f"-DDSV4SPEC_ASCEND={ascend}", *arguments, **{**CLEAN, **environ})
    return result.returncode, re.sub(r"\s+", " ", result.stdout)


def look(tree, tmp_path, machine, code):
    """What a piece of CMake says after cmake/ascend_toolkit.cmake."""
    main = tmp_path / "look.cmake"
    main.write_text(f'include("{tree}/cmake/ascend_toolkit.cmake")\n{code}\n')
    result = run(tool("cmake"), f"-DCMAKE_SYSTEM_PROCESSOR={machine}", "-P", main, **CLEAN)
    assert result.returncode == 0, result.stdout
    return re.sub(r"\s+", " ", result.stdout).removeprefix("-- ").strip()


# ------------------------------------------------------------------------------------------------------ nothing there
def test_a29_nothing_sourced_names_set_env(tree, tmp_path):
    code, text = configure(tree, tmp_path / "b")
    assert code != 0 and "DSV4SPEC_ASCEND=ON: no CANN (ASCEND_HOME_PATH and ASCEND_TOOLKIT_HOME are not set)" in text
    assert "Source set_env.sh of the CANN toolkit, which sets ASCEND_HOME_PATH." in text
    code, text = configure(tree, tmp_path / "b", ascend="AUTO")
    assert code == 0 and "npu: not built: no CANN" in text


@pytest.mark.parametrize("gone,advice", [
    (["{m}-linux/lib64/cmake"], "no asc-config.cmake and no ascendc.cmake in {home}"),
    (["lib64"], "no libascendcl.so (looked at {home}/lib64, {home}/{m}-linux/lib64, {home}/runtime/lib64)"),
    (["{m}-linux/ccec_compiler"], "no bisheng compiler under ASCEND_HOME_PATH={home}")])
def test_a29_a_toolkit_that_lacks_a_part_is_named_with_what_to_do(tree, tmp_path, gone, advice):
    home = new_toolkit(tmp_path / "cann")
    for folder in gone:
        shutil.rmtree(home / folder.format(m=MACHINE))
    code, text = configure(tree, tmp_path / "b", ASCEND_HOME_PATH=home)
    assert code != 0 and advice.format(home=home, m=MACHINE) in text and "set_env.sh" in text, text


# ---------------------------------------------------------------------------------------------------------- the new way
def test_a29_new_way_compiles_every_op_with_the_toolkits_own_bisheng(tree, tmp_path):
    """Another bisheng stands on PATH, another toolkit in ASCEND_TOOLKIT_HOME: ASCEND_HOME_PATH wins over both."""
    home, other, build = new_toolkit(tmp_path / "cann"), new_toolkit(tmp_path / "other"), tmp_path / "b"
    elsewhere = other / f"{MACHINE}-linux" / "ccec_compiler" / "bin"
    environ = dict(ASCEND_HOME_PATH=home, ASCEND_TOOLKIT_HOME=other, PATH=f"{elsewhere}:{os.environ['PATH']}")
    code, text = configure(tree, build, **environ)
    assert code == 0 and f"npu: built with CANN 9.1.0 ({home}) for dav-2201 by asc" in text, text
    result = run(tool("cmake"), "--build", build, "--target", "dsv4spec_npu", **{**CLEAN, **environ})
    assert result.returncode == 0, result.stdout[-3000:]
    assert not (elsewhere / "calls").exists()
    bisheng = home / f"{MACHINE}-linux" / "ccec_compiler" / "bin"
    *compiles, link = (bisheng / "calls").read_text().splitlines()
    ops = {p.stem for p in (ROOT / "kernels" / "ascendc" / "host").glob("*.cpp")}
    assert {re.search(r"--asc-aicore-lang \S+/(\w+)\.asc$", line)[1] for line in compiles} == ops
    for line in compiles:
        assert line.startswith(f"{bisheng}/bisheng ") and " --npu-arch=dav-2201 " in line and " -fPIC " in line
        assert f"-I{home}/include " in line and f"-I{tree}/include " in line and "psabi" not in line
        assert " -fvisibility=hidden" in line and "torch" not in line
    assert " -shared " in link and "plugin.cpp.o" in link and f"-L{home}/lib64 " in link and " -lascendcl " in link
    source = (build / "kernels" / "ascendc" / "mhc_post.asc").read_text()
    assert source.startswith("#define DSV4_ASCEND_ASC 1\n")  # kernel types as specifiers
    assert source.index("/ascendc/mhc_post.cpp") < source.index("/ascendc/host/mhc_post.cpp")
    included = "".join(path.read_text() for path in (build / "kernels" / "ascendc").glob("*.asc"))
    files = {path.name for path in (ROOT / "kernels" / "ascendc").glob("*.cpp")} - {"plugin.cpp"}
    assert all(included.count(f"/ascendc/{name}\"") == 1 for name in files)  # every kernel is in one source
    rows = json.loads((build / "compile_commands.json").read_text())
    plugin = next(r["command"] for r in rows if r["file"].endswith("plugin.cpp"))
    assert "-O3 -DNDEBUG" in plugin  # the toolkit's config has cleared them


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a29_both_machines_layouts_resolve(tree, tmp_path, machine):
    home = new_toolkit(tmp_path / "new", machine)
    code = 'dsv4_ascend_way("{}" way folder why)\nmessage(STATUS "${{way}} ${{folder}} ${{why}}")'
    assert look(tree, tmp_path, machine, code.format(home)) == f"asc {home}/{machine}-linux/lib64/cmake"
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[machine]  # a toolkit for another machine's host
    assert look(tree, tmp_path, other, code.format(home)).startswith("no asc-config.cmake and no ascendc.cmake in")
    for folder in OLD_FOLDERS:
        home = old_toolkit(tmp_path / folder.replace("/", "_"), folder)
        assert look(tree, tmp_path, machine, code.format(home)) == f"ascendc_library {home}/{folder}"
    arguments = ("-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={machine}")
    home = tmp_path / "new"
    status, text = configure(tree, tmp_path / "b", *arguments, ASCEND_HOME_PATH=home)
    assert status == 0 and "for dav-2201 by asc" in text
    makefile = (tmp_path / "b/kernels/ascendc/CMakeFiles/dsv4spec_npu.dir/build.make").read_text()
    assert f"{home}/{machine}-linux/ccec_compiler/bin/bisheng" in makefile


def test_a29_two_toolkits_at_once_are_refused(tree, tmp_path):
    home, other = new_toolkit(tmp_path / "cann"), old_toolkit(tmp_path / "other")
    code, text = configure(tree, tmp_path / "b", ASCEND_HOME_PATH=home, ASCEND_CANN_PACKAGE_PATH=other)
    assert code != 0 and f"ASCEND_CANN_PACKAGE_PATH={other} and ASCEND_HOME_PATH={home} name two toolkits." in text
    (tmp_path / "latest").symlink_to(home)
    code, text = configure(tree, tmp_path / "b", ASCEND_HOME_PATH=home, ASCEND_CANN_PACKAGE_PATH=tmp_path / "latest")
    assert code == 0, text


# ---------------------------------------------------------------------------------------------------------- the old way
def test_a29_old_way_hands_the_kernels_to_the_toolkit_and_compiles_the_host_side(tree, tmp_path):
    home, build = old_toolkit(tmp_path / "cann"), tmp_path / "b"
    code, text = configure(tree, build, ASCEND_HOME_PATH=home, SOC_VERSION="ascend910b3")
    assert code == 0 and f"npu: built with CANN 8.2.RC1 ({home}) for Ascend910B3 by ascendc_library" in text, text
    where, soc, mode, package, name, kind, rest = (build / "legacy.txt").read_text().split(" ", 6)
    assert (where, soc, mode, package) == (f"{home}/{OLD_FOLDERS[1]}", "Ascend910B3", "npu", str(home))
    kernels, includes = rest.split(" includes ")
    assert kind == "STATIC" and f"{tree}/kernels/ascendc/mhc_post.cpp" in kernels.split(";")
    assert "plugin.cpp" not in kernels and "/host/" not in kernels and includes == f"{tree}/kernels/ascendc"
    lines = {r["file"].removeprefix(f"{tree}/kernels/ascendc/"): r["command"]
             for r in json.loads((build / "compile_commands.json").read_text())}
    for file in ("host/mhc_post.cpp", "plugin.cpp"):
        assert "-DDSV4_ASCEND_ACLRT=1" in lines[file] and f"-I{home}/include" in lines[file]


def test_a29_no_chip_named_lists_the_names(tree, tmp_path):
    home, build = old_toolkit(tmp_path / "cann"), tmp_path / "b"
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("c++", "make", "ld", "as", "ar", "ranlib", "sh", "uname", "dirname"):
        if found := shutil.which(name):
            (bare / name).symlink_to(found)
    code, text = configure(tree, build, ASCEND_HOME_PATH=home, PATH=bare)
    assert code != 0 and "SOC_VERSION is not set and npu-smi names no chip: set SOC_VERSION to one of" in text
    assert "Ascend910B1, " in text and "Ascend910_9392" in text and "or set DSV4SPEC_ASCEND=OFF." in text
    code, text = configure(tree, build, ASCEND_HOME_PATH=home, SOC_VERSION="Ascend310P3")
    assert code != 0 and "SOC_VERSION: expected one of Ascend910B1," in text and "got Ascend310P3" in text
    script(bare / "npu-smi", "echo '| 0     910B3               | OK    | 95.5   47 |'\n")
    code, text = configure(tree, build, ASCEND_HOME_PATH=home, PATH=bare)
    assert code == 0 and "for Ascend910B3 by ascendc_library" in text
    code, text = configure(tree, tmp_path / "c", "-DSOC_VERSION=Ascend910_9392", ASCEND_HOME_PATH=home, PATH=bare)
    assert code == 0 and "for Ascend910_9392" in text  # what the user says counts more


# ------------------------------------------------------------------------------------------------ the launch's forms
INCLUDES = [f"-I{ROOT / folder}" for folder in ("tests/emu/ascendc", "kernels/ascendc", "include", "csrc")]


@pytest.mark.parametrize("op", sorted(p.stem for p in (ROOT / "kernels/ascendc/host").glob("*.cpp")))
def test_a_kernel_and_its_host_file_are_one_source(tmp_path, op):
    """As bisheng compiles them in the new way, here with the emulator's launch; and the host file alone, as in the old."""
    source = tmp_path / "both.cpp"
    folder = ROOT / "kernels" / "ascendc"
    source.write_text(f'#include "{folder}/{op}.cpp"\n#include "{folder}/host/{op}.cpp"\n')
    result = run(cxx(), "-std=c++17", "-fsyntax-only", "-DASCEND_EMU=1", *INCLUDES, source)
    assert result.returncode == 0, result.stdout[-3000:]
    home = old_toolkit(tmp_path / "cann")
    result = run(cxx(), "-std=c++17", "-fsyntax-only", "-Wall", "-Werror", "-DDSV4_ASCEND_ACLRT=1", *INCLUDES[1:],
                 f"-I{home}/include", folder / "host" / f"{op}.cpp")
    assert result.returncode == 0, result.stdout[-3000:]


SPECIFIERS = {"VECTOR_KERNEL": "__global__ __vector__", "MIXED_KERNEL": "__global__ __mix__(1, 2)",
              "VECTOR_MEETING": "__schedmode__(1) __global__ __mix__(0, 1)"}


def test_every_entry_has_its_kernel_type_for_both_ways(tmp_path):
    """The toolkit's macro is nothing in language ASC; specifiers are nothing to ascendc_library. Kernels whose cores wait
    for other blocks' are started all at once."""
    types = {"VECTOR_KERNEL": "AIV_ONLY", "VECTOR_MEETING": "MIX_AIV_1_0", "MIXED_KERNEL": "MIX_AIC_1_2"}
    for path in (ROOT / "kernels" / "ascendc").glob("*.cpp"):
        text = path.read_text()
        entries = re.findall(r'extern "C" DSV4_(\w+) void\s+dsv4_.*?KERNEL_TASK_TYPE_DEFAULT\(KERNEL_TYPE_(\w+)\)', text, re.S)
        assert len(entries) == text.count("KERNEL_TASK_TYPE_DEFAULT(") == text.count('extern "C" DSV4_') - \
            text.count('extern "C" DSV4_API'), path
        assert "__global__" not in text, path
        names = [path.parent / name for name in re.findall(r'#include "(\w+\.h)"', text)]
        headers = "".join(name.read_text() for name in names if name.exists())
        meets = "SyncAll<" in text + headers or "CrossCoreSetFlag<0," in text + headers
        assert all(types[kind] == type_ for kind, type_ in entries), path
        assert len({type_ for _, type_ in entries}) <= 1, f"{path}: ascendc_library takes the first type for the whole file"
        assert any("MEETING" in kind for kind, _ in entries) == meets, path
    source = tmp_path / "entries.cpp"
    source.write_text('#include "kernel.h"\n#undef __global__\n' + "".join(f"{n}: DSV4_{n}\n" for n in SPECIFIERS))
    result = run(cxx(), "-E", "-P", "-DDSV4_ASCEND_ASC=1", *INCLUDES, source)
    lines = [re.sub(r" +", " ", line) for line in result.stdout.splitlines()]
    assert all(f"{name}: {specifiers}" in lines for name, specifiers in SPECIFIERS.items())


def test_generated_launchers_get_the_tiling_by_address(tmp_path):
    """The old way's aclrtlaunch_<kernel>(blocks, stream, pointers..., Tiling*, scalars...)."""
    source = tmp_path / "launch.cpp"
    source.write_text("""
#include <cassert>
#include "launch.h"
struct Tiling { int64_t a, b, c; };
DSV4_ASCEND_DECLARE(kernel, GM_ADDR, int32_t, Tiling);
static int g_device = 1;
extern "C" {
aclError aclrtGetDevice(int32_t* d) { *d = g_device; return 0; }
aclError aclrtSetDevice(int32_t d) { g_device = d; return 0; }
uint32_t aclrtlaunch_kernel(uint32_t blocks, aclrtStream stream, void* data, int32_t n, Tiling* t) {
  assert(blocks == 7 && stream == reinterpret_cast<void*>(0x50) && data == reinterpret_cast<void*>(0x60) && n == -3);
  assert(t->a == 1 && t->b == 2 && t->c == 3 && g_device == 4);
  return n == -3 && g_device == 4 ? 0 : 1;
}
}
namespace dsv4::ascend {
bool add_kernel(OpId, LaunchFn, WorkspaceFn) { return true; }
int32_t launch(const MhcPostParams& p, const Launch& l) {
  return DSV4_ASCEND_LAUNCH(kernel, int64_t{7}, l, address(p.y), -3, Tiling{1, 2, 3});
}
}
int main() {
  dsv4::MhcPostParams p{};
  p.y.data = reinterpret_cast<void*>(0x60);
  char text[64];
  const dsv4::Launch l{reinterpret_cast<void*>(0x50), 4, nullptr, text, sizeof text};
  const int status = dsv4::ascend::launch_op<dsv4::MhcPostParams, dsv4::ascend::launch>(&p, &l);
  return status != DSV4_OK || g_device != 1;  // the caller's device is the current one again
}
""")
    home = old_toolkit(tmp_path / "cann")
    program = tmp_path / "launch"
    result = run(cxx(), "-std=c++17", "-DDSV4_ASCEND_ACLRT=1", *INCLUDES[1:], f"-I{home}/include", source, "-o",
                 program)
    assert result.returncode == 0, result.stdout[-3000:]
    assert run(program).returncode == 0


def test_a29_another_cann_than_that_of_the_build_is_named_at_load(tmp_path):
    source, program = tmp_path / "version.cpp", tmp_path / "version"
    source.write_text("""
#include "cann_version.h"
int main(int, char** v) {
  char text[512];
  if (dsv4::ascend::other_cann_version(v[1], text, sizeof text)) std::puts(text);
}
""")
    result = run(cxx(), "-std=c++17", f"-I{ROOT}/kernels/ascendc", source, "-o", program)
    assert result.returncode == 0, result.stdout
    home = new_toolkit(tmp_path / "cann", version="9.1.0")

    def say(built, where=home):
        return run(program, built, ASCEND_HOME_PATH=where).stdout.strip()

    assert say("CANN 9.1.0") == say("CANN 9.1.RC2") == say("CANN of unknown version") == say("CANN 8.5.0", None) == ""
    assert say("CANN 8.5.0", tmp_path / "nowhere") == ""
    assert say("CANN 8.5.0") == (f"built with CANN 8.5.0, but ASCEND_HOME_PATH={home} is CANN 9.1; source the set_env.sh "
                                 "of the former, or rebuild dsv4spec (pip install .)")
