# SPDX-License-Identifier: Apache-2.0
"""What a C or C++ build gets with the package: headers that stand alone, libraries that export the ABI and nothing else, a
CMake package and a pkg-config file that may be moved anywhere, and the rule of struct_size."""
import ctypes
import re
import shutil
import sys
from pathlib import Path

import dsv4spec
import pytest
import torch
from build_util import ROOT, copy_sources, cxx, run, tool
from dsv4spec import _C
from test_build import LEVEL, _configure
from test_c_abi import INVALID, LIBRARY, OPS, Post, PostArgs

HEADERS = sorted(Path(dsv4spec.get_include(), "dsv4spec").glob("*.h"))
LIBRARIES = sorted(Path(dsv4spec.get_library()).parent.rglob("libdsv4spec*.so"))
# Members only come behind these: a size that a released header had is never refused.
FIRST_SIZES = {
    "alloc_extend": 80, "assign_draft_slots": 56, "build_tree": 136, "compress_kv": 120, "lightning_index": 96,
    "linear": 72, "mhc_head": 88, "mhc_post": 48, "mhc_post_pre": 144, "mhc_pre": 112, "moe_experts": 96, "move_accepted_kv": 48,
    "nextn_fuse_hidden": 104, "q_norm_rope": 56, "route_experts": 88, "select_draft_topk": 88, "sparse_paged_attention": 128,
    "swa_paged_attention": 120, "swa_store_kv": 64, "verify_metadata": 112, "verify_positions_padding": 48,
    "verify_tree_greedy": 80, "verify_tree_sampling": 112}


def asked(option: str) -> str:
    """What `python -m dsv4spec OPTION` prints."""
    result = run(sys.executable, "-m", "dsv4spec", option, cwd="/", PYTHONPATH=Path(dsv4spec.__file__).parents[1])
    assert result.returncode == 0, result.stdout
    return result.stdout.removesuffix("\n")


def test_the_paths_are_those_of_the_installation():
    assert HEADERS and {h.name for h in HEADERS} == {h.name for h in (ROOT / "include" / "dsv4spec").glob("*.h")}
    for option, path in (("--include-dir", dsv4spec.get_include()), ("--library", dsv4spec.get_library()),
                         ("--cmake-dir", dsv4spec.get_cmake_dir()), ("--pkgconfig-dir", dsv4spec.get_pkgconfig_dir())):
        assert asked(option) == path and Path(path).exists()
    for header in HEADERS:
        assert header.read_bytes() == (ROOT / "include" / "dsv4spec" / header.name).read_bytes()


@pytest.mark.parametrize("language,standard,names", [("c", "c99", ("gcc", "cc", "clang")),
                                                     ("c++", "c++17", ("g++", "c++", "clang++"))])
def test_every_header_compiles_alone(language, standard, names, tmp_path):
    for header in HEADERS:
        result = run(tool(*names), "-x", language, f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror",
                     "-fsyntax-only", f"-I{dsv4spec.get_include()}", "-include", f"dsv4spec/{header.name}", "/dev/null")
        assert result.returncode == 0, result.stdout


def test_the_dlpack_header_stands_for_any_other(tmp_path):
    """Every name of the dlpack.h that torch brings is in ours, with its value or its place: it may come first."""
    torchs = Path(torch.__file__).parent / "include" / "ATen" / "dlpack.h"
    text = torchs.read_text()
    numbers = re.findall(r"^\s+(kDL\w+) = ", text, re.M) + re.findall(r"#define (DLPACK_FLAG_\w+)", text)
    types = re.findall(r"^} (DL\w+);", text, re.M)
    functions = re.findall(r"^typedef int \(\*(DL\w+)\)", text, re.M)
    members = [(struct, name) for body, struct in re.findall(r"^typedef struct \w*\s?{(.*?)^} (\w+);", text, re.M | re.S)
               for name in re.findall(r"^  [\w ]+?[ *](?:\(\*)?(\w+)(?:\)\(.*\))?;", body, re.M)]
    assert len(numbers) > 30 and len(types) >= 9 and len(functions) >= 5 and ("DLTensor", "byte_offset") in members
    lines = [f'printf("{n} %lu\\n", (unsigned long){n});' for n in numbers]
    lines += [f'printf("{t} %zu\\n", sizeof({t}));' for t in types + functions]
    lines += [f'printf("{s}.{m} %zu\\n", offsetof({s}, {m}));' for s, m in members]
    said = []
    for header in ("ATen/dlpack.h", "dsv4spec/dlpack_abi.h"):
        (tmp_path / "names.cpp").write_text("#include <cstddef>\n#include <cstdio>\n#ifdef DLPACK_EXTERN_C\n#error\n#endif\n"
                                            f"#include <{header}>\nDLPACK_EXTERN_C DLPACK_DLL int f();\nint main() {{\n"
                                            + "\n".join(lines) + "\n}\n")
        result = run(cxx(), "-std=c++17", f"-I{torchs.parents[1]}", f"-I{dsv4spec.get_include()}",
                     tmp_path / "names.cpp", "-o", tmp_path / "names")
        assert result.returncode == 0, result.stdout
        said.append(run(tmp_path / "names").stdout)
    assert said[0] == said[1] and len(said[0].splitlines()) == len(lines)


def _declared() -> set[str]:
    return {name for header in HEADERS for name in re.findall(r"^DSV4_API [\w* ]*?\b(dsv4_\w+)\(", header.read_text(), re.M)}


def _exported(library) -> set[str]:
    if not shutil.which("nm"):
        pytest.skip("gate: nm (binutils) is not installed")
    lines = run("nm", "-D", "--defined-only", library).stdout.splitlines()
    return {name for kind, name in (line.split()[-2:] for line in lines) if kind != "A"}  # A: a version's own name


def test_every_function_is_declared_and_nothing_else_is_exported():
    declared = _declared()
    assert len(declared) >= len(OPS) + 6 and {f"dsv4_{op}" for op in OPS} < declared
    [library] = [path for path in LIBRARIES if path.name == "libdsv4spec.so"]
    exported = _exported(library)
    assert {name.removesuffix("@@dsv4spec_1") for name in exported if name.endswith("@@dsv4spec_1")} == declared
    assert exported - {f"{name}@@dsv4spec_1" for name in declared} == {"dsv4_reflection@@dsv4spec_private"}


def test_a_backend_exports_its_table_only():
    plugins = [path for path in LIBRARIES if path.name != "libdsv4spec.so"]
    assert plugins
    for path in plugins:
        hooks = r"|cuda[A-Z]\w*|(cuda_emu|ascend_emu|selftest)_\w+" if "_emu" in path.name else ""  # the tests call them
        odd = [name for name in _exported(path) if not re.fullmatch("dsv4_backend_entry" + hooks, name)]
        assert odd == [], path
    assert _exported(_C.__file__) == {"PyInit__C"}


def test_the_lists_of_ops_are_whole():
    """The index in dsv4spec.h and the table in docs/abi.md name every op, and those that take scratch."""
    scratch = {op for op in OPS if f"dsv4_{op}_workspace_size" in _declared()}
    index = Path(dsv4spec.get_include(), "dsv4spec", "dsv4spec.h").read_text()
    listed = re.findall(r"\b([a-z]+(?:_[a-z]+)*)( \[w\])?[, ]", index[index.index("*   mhc.h"):index.index("*/\n#ifndef")])
    listed = {op: mark != "" for op, mark in listed if op in OPS}
    assert listed == {op: op in scratch for op in OPS}
    rows = re.findall(r"^\| (`[^|]*`) \| (yes|no) \|", (ROOT / "docs" / "abi.md").read_text(), re.M)
    table = {op: mark == "yes" for names, mark in rows for op in re.findall(r"`(\w+)`", names)}
    assert table == {op: op in scratch for op in OPS}


def test_the_headers_say_the_versions_of_the_library():
    LIBRARY.dsv4_version.restype = ctypes.c_char_p
    assert LIBRARY.dsv4_version().decode() == dsv4spec.__version__
    text = Path(dsv4spec.get_include(), "dsv4spec", "types.h").read_text()
    assert int(re.search(r"#define DSV4_ABI_VERSION (\d+)", text)[1]) == LIBRARY.dsv4_abi_version() == _C.abi_version


# ------------------------------------------------------------------------------------------------------- struct_size
@pytest.mark.parametrize("op", OPS)
def test_the_first_published_size_is_always_taken(op):
    size = FIRST_SIZES[op]
    args = (ctypes.c_uint64 * (size // 8))(size)
    assert getattr(LIBRARY, "dsv4_" + op)(args, None) == INVALID
    assert re.fullmatch(rf"{op}: \w+: expected .*, got .*", text := LIBRARY.dsv4_last_error().decode())
    assert not text.startswith(f"{op}: struct_size"), text
    args[0] = size - 8
    assert getattr(LIBRARY, "dsv4_" + op)(args, None) == INVALID
    assert LIBRARY.dsv4_last_error().decode() == f"{op}: struct_size: expected {size} to 4096, got {size - 8}"


def test_a_longer_struct_is_taken_if_the_rest_is_zero():
    post = Post()
    pointers = [ctypes.addressof(d) for d in post.dl]

    def call(size, rest):
        args = (ctypes.c_uint64 * 512)(size, *pointers, *rest)
        status = LIBRARY.dsv4_mhc_post(args, None)
        return status, LIBRARY.dsv4_last_error().decode()

    known = ctypes.sizeof(PostArgs)
    assert call(known + 16, [0, 0]) == call(4096, []) == (0, "")
    assert call(known, [7]) == (0, "")  # behind the struct: not looked at
    assert call(known + 16, [0, 256]) == (INVALID, "mhc_post: struct_size: expected 48 or zeros from there on (this library "
                                                   "is of ABI version 1), got 64 with something at byte 57")
    assert call(2**60, [])[0] == INVALID


GROWN = """
#include <cstdio>
#include <stdexcept>
#include "op.h"
struct First { uint64_t struct_size; int64_t a; };
struct Grown { uint64_t struct_size; int64_t a, added; };
template <> constexpr uint64_t dsv4::kFirstSize<Grown> = sizeof(First);
int main() {
  First old{sizeof(First), 5};
  Grown now{sizeof(Grown), 6, 7}, room{};
  const Grown& whole = dsv4::whole_args("op", reinterpret_cast<const Grown*>(&old), room);
  const Grown& same = dsv4::whole_args("op", &now, room);
  return !(whole.a == 5 && whole.added == 0 && &same == &now && same.added == 7);
}
"""


def test_a_struct_from_before_a_member_was_added_has_zero_there(tmp_path):
    (tmp_path / "grown.cpp").write_text(GROWN)
    result = run(cxx(), "-std=c++17", "-Wall", "-Werror", f"-I{ROOT}/include", f"-I{ROOT}/csrc",
                 tmp_path / "grown.cpp", "-o", tmp_path / "grown")
    assert result.returncode == 0, result.stdout
    assert run(tmp_path / "grown").returncode == 0


# ------------------------------------------------------------------------------------------------------- relocation
USE = """cmake_minimum_required(VERSION 3.20)
project(use LANGUAGES NONE)
find_package(dsv4spec REQUIRED)
get_target_property(library dsv4spec::dsv4spec IMPORTED_LOCATION)
get_target_property(include dsv4spec::dsv4spec INTERFACE_INCLUDE_DIRECTORIES)
message(STATUS "[${library}|${include}|${dsv4spec_VERSION}|${dsv4spec_ABI_VERSION}]")
"""


def _found(tmp_path, prefix):
    (tmp_path / "use").mkdir(exist_ok=True)
    (tmp_path / "use" / "CMakeLists.txt").write_text(USE)
    return run(tool("cmake"), "--fresh", "-S", tmp_path / "use", "-B", tmp_path / "found", "-GUnix Makefiles",
               f"-DCMAKE_PREFIX_PATH={prefix}")


def test_a_package_that_was_moved_is_found_where_it_is(tmp_path):
    package = tmp_path / "a moved place" / "dsv4spec"
    skip = shutil.ignore_patterns("*_emu*", "*selftest*")
    shutil.copytree(Path(dsv4spec.get_library()).parent, package / "lib", ignore=skip)
    shutil.copytree(dsv4spec.get_include(), package / "include")
    wanted = f"[{package}/lib/libdsv4spec.so|{package}/include|{dsv4spec.__version__}|1]"
    for prefix in (package, package / "lib" / "cmake" / "dsv4spec"):
        result = _found(tmp_path, prefix)
        assert result.returncode == 0 and wanted in result.stdout, result.stdout
    (package / "lib" / "libdsv4spec.so").unlink()
    result = _found(tmp_path, package)
    assert result.returncode and re.search(r"libdsv4spec\.so\s+is\s+missing;\s+install\s+dsv4spec\s+again", result.stdout)


def test_nothing_in_the_package_names_the_place_of_its_build():
    texts = [*HEADERS, *Path(dsv4spec.get_cmake_dir()).iterdir(), *Path(dsv4spec.get_pkgconfig_dir()).iterdir(),
             *Path(dsv4spec.get_library()).parent.glob("*.json")]
    binaries = [path for path in LIBRARIES if "_emu" not in path.name] + [Path(_C.__file__)]
    assert len(texts) >= 12 and len(binaries) >= 3
    for path in texts + binaries:
        for place in (ROOT / "csrc", ROOT / "include", ROOT / "kernels", ROOT / "build", ROOT / "python"):
            assert f"{place}/".encode() not in path.read_bytes(), (path, place)
    if not shutil.which("readelf"):
        pytest.skip("gate: readelf (binutils) is not installed")
    for path in binaries:
        for entry in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", run("readelf", "-d", path).stdout):
            assert entry.startswith("$ORIGIN") or "npu" in path.name, (path, entry)  # CANN's own place


def test_headers_beside_libraries_in_the_build_folder(tmp_path):
    """DSV4SPEC_LIB_DIR may be lib/ of the build folder: a header's copy there is not what it is made from."""
    tree, build = copy_sources(tmp_path / "tree", without=("kernels/cuda", "kernels/ascendc")), tmp_path / "b"
    result = _configure(tree, build, DSV4SPEC_CPU_LEVELS=LEVEL)  # with -DDSV4SPEC_LIB_DIR=b/lib
    assert result.returncode == 0, result.stdout
    result = run(tool("cmake"), "--build", build, "--target", "dsv4spec_headers")
    assert result.returncode == 0 and "Circular" not in result.stdout, result.stdout
    assert {h.name for h in (build / "include" / "dsv4spec").glob("*.h")} == {h.name for h in HEADERS}
    (tree / "include" / "dsv4spec" / "tree.h").write_text("changed")
    assert run(tool("cmake"), "--build", build, "--target", "dsv4spec_headers").returncode == 0
    assert (build / "include" / "dsv4spec" / "tree.h").read_text() == "changed"


@pytest.mark.package
def test_cmake_install_gives_a_prefix_that_works(tmp_path):
    tree = copy_sources(tmp_path / "tree", without=("kernels/cuda", "kernels/ascendc"))
    build, prefix = tmp_path / "b", tmp_path / "p"
    result = _configure(tree, build, "-DCMAKE_INSTALL_LIBDIR=lib/multi", DSV4SPEC_CPU_LEVELS=LEVEL)
    assert result.returncode == 0, result.stdout
    for step in (("--build", build, "--parallel", "2"), ("--install", build, "--prefix", prefix)):
        result = run(tool("cmake"), *step)
        assert result.returncode == 0, result.stdout[-3000:]
    shutil.rmtree(tree), shutil.rmtree(build)
    prefix = prefix.rename(tmp_path / "elsewhere")
    result = _found(tmp_path, prefix / "lib" / "multi" / "cmake" / "dsv4spec")
    assert f"[{prefix}/lib/multi/libdsv4spec.so|{prefix}/include|" in result.stdout, result.stdout
    shutil.copy(ROOT / "examples" / "tree_verify.c", tmp_path)
    result = run("sh", "-c", f"{tool('cc', 'gcc')} tree_verify.c $(pkg-config --cflags --libs dsv4spec) -o t && ./t",
                 cwd=tmp_path, PKG_CONFIG_PATH=prefix / "lib" / "multi" / "pkgconfig")
    assert result.returncode == 0 and "all as expected" in result.stdout, result.stdout
