# SPDX-License-Identifier: Apache-2.0
"""What nvcc made of the CUDA kernels: every architecture, no spills, the instructions that the design rests on; and a
library that loads where there is no driver. Without nvcc there is nothing to look at, and the build has said so."""
import ctypes
import functools
import json
import os
import re
import shutil
import sys
from pathlib import Path

import dsv4spec
import pytest
from build_util import ROOT, copy_sources, run, tool
from dsv4spec import _C, cli, info
from dsv4spec.ops.table import NO_KERNEL
from test_build import NO_TOOLCHAIN

sys.path.insert(0, str(ROOT / "cmake"))
import kernel_table  # noqa: E402

LIBRARY = Path(dsv4spec.__file__).parent / "lib" / "libdsv4spec_cuda.so"
SUMMARY = re.search(r"^cuda: built with nvcc (\d+)\.(\d+) \((.*)\) for (.*)$", _C.build_summary, re.M)
needs_nvcc = pytest.mark.skipif(not SUMMARY, reason="no nvcc when this package was built: no CUDA kernels to look at")

# Kernel files on the way of every token.
HOT = {"nextn_fuse_hidden", "swa_paged_attention", "mhc_pre", "mhc_post", "mhc_post_pre", "mhc_head", "q_norm_rope", "swa_store_kv",
       "move_accepted_kv"}
# Their kernels, by the start of the name, and what the code of each one must contain: an instruction of each pattern.
HMMA, LDGSTS, LDSM = r"HMMA\.16816\.F32\.BF16", r"LDGSTS\.E\S*\.128", r"LDSM\.16"
LOAD, STORE = r"LDG\.E\S*\.128|LDGSTS\.E\S*\.128", r"STG\.E\S*\.128"
CLUSTER, MULTICAST = r"UCGABAR_WAIT", r"UBLKCP\.S\.G\.MULTICAST"
CODE = {
    r"fuse_mma_kernel<": (HMMA, LDGSTS),
    r"fuse_cluster_kernel<": (HMMA, LDGSTS, CLUSTER, MULTICAST),
    r"fuse_rms_kernel<__nv_bfloat16>": (LOAD,),
    r"swa_paged_attention_bf16_kernel<": (HMMA, LDGSTS, LDSM, STORE),
    r"mhc_cluster<": (HMMA, LOAD, STORE, CLUSTER),
    r"mhc_project_bf16<\d, \d+, \d, true>": (HMMA, LOAD, STORE),
    r"mhc_project_bf16<\d, \d+, \d, false>": (HMMA, LOAD),
    r"mhc_finish<__nv_bfloat16,": (LOAD, STORE),
    r"mhc_post_kernel<__nv_bfloat16,": (LOAD, STORE),
    r"q_norm_rope_kernel<__nv_bfloat16>": (LOAD, STORE),
    r"swa_store_kv_kernel<__nv_bfloat16>": (LOAD, STORE),
    r"move_kernel<uint4": (LOAD, STORE),
}
# What sm_90 and newer have besides.
CLUSTERED = {r"swa_paged_attention_bf16_kernel<": (CLUSTER, MULTICAST)}
TRAPS = {r"mhc_cluster<", r"fuse_cluster_kernel<"}  # below, they only trap
# The exact paths of fp32, and moves of rows that do not lie on 16 bytes.
UNTUNED = r"\w+<float|mhc_project_f32<|fuse_exact_kernel<|swa_paged_attention_f32_kernel|" \
          r"move_kernel<(uint2|unsigned)"


# ---------------------------------------------------------------------------------------------- what ptxas said
@needs_nvcc
def test_every_kernel_is_built_for_every_architecture():
    archs = SUMMARY[4].split(",")
    if not os.environ.get("DSV4SPEC_CUDA_ARCHS") and (int(SUMMARY[1]), int(SUMMARY[2])) >= (12, 8):
        assert archs == ["sm_80", "sm_90a", "sm_100"]
    built = {}
    for row in info.kernels():
        built.setdefault((row["file"], row["symbol"]), set()).add(row["arch"])
    assert built and all(found == set(archs) for found in built.values())
    sources = {path.name for path in (ROOT / "kernels" / "cuda").glob("*.cu")} - {"plugin.cu"}
    assert {file for file, _ in built} == sources


@needs_nvcc
def test_no_kernel_spills_and_no_hot_kernel_uses_local_memory():
    bad = [row for row in info.kernels() if row["spill_store_bytes"] or row["spill_load_bytes"]
           or row["local_bytes"] and row["file"].removesuffix(".cu") in HOT]
    assert not bad, info.format_kernels(bad)


def test_info_shows_the_table(capsys):
    for as_json in (False, True):
        code = cli.main(["info", "--kernels", *(["--json"] if as_json else [])])
        out, err = capsys.readouterr()
        if not SUMMARY:
            assert code == 1 and "no table of CUDA kernels: cuda: not built" in err
        elif as_json:
            assert code == 0 and json.loads(out) == info.kernels()
        else:
            assert code == 0 and re.search(r"mhc_post\.cu: mhc_post_kernel<__nv_bfloat16, 4> +sm_\d+a? +\d+ +\d+ +0 +0\n", out)


# -------------------------------------------------------------------------------------------------------- the code
def binary_tool(name: str) -> str:
    """cuobjdump and nvdisasm: of the pip packages, else of a toolkit."""
    folders = [str(Path(path) / "nvidia" / "cu13" / "bin") for path in sys.path]
    path = shutil.which(name, path=os.pathsep.join([*folders, os.environ["PATH"]]))
    if not path:
        pytest.skip(f"gate: {name} is not installed (pip install nvidia-{'cuda-' + name})")
    return path


@functools.cache
def code(arch: str) -> dict[str, list[str]]:
    """Per kernel symbol its instructions (opcodes with modifiers)."""
    cuobjdump, nvdisasm = binary_tool("cuobjdump"), binary_tool("nvdisasm")
    result = run(cuobjdump, "-sass", "-arch", arch, LIBRARY,
                 PATH=os.pathsep.join([str(Path(nvdisasm).parent), os.environ["PATH"]]))
    assert result.returncode == 0, result.stdout[-2000:]
    kernels, current = {}, []
    for line in result.stdout.splitlines():
        if match := re.search(r"Function : (\S+)", line):
            current = kernels.setdefault(match[1], [])
        elif match := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ +)?([A-Z][\w.]*)", line):
            current.append(match[1])
    return kernels


def name_of(row: dict) -> str:
    return row["kernel"].split("::", 1)[1] if row["kernel"].startswith("mhc::") else row["kernel"]


def lacking(rows: list[dict], instructions: dict[str, list[str]], patterns) -> list[str]:
    """What is missing, or of local memory, in each kernel alone."""
    found = []
    for row in rows:
        mine = instructions[row["symbol"]]
        found += [f"{name_of(row)} for {row['arch']}: no {p}" for p in patterns if not any(re.match(p, i) for i in mine)]
        found += [f"{name_of(row)} for {row['arch']}: {i}" for i in mine if re.match(r"(LDL|STL)\b", i)][:1]
    return found


def test_one_kernel_without_its_instruction_is_found():
    rows = [{"kernel": f"mhc::mhc_cluster<{i}>", "symbol": f"s{i}", "arch": "sm_90a"} for i in range(3)]
    full = ["HMMA.16816.F32.BF16", "LDG.E.CONSTANT.128", "STG.E.128", "UCGABAR_WAIT"]
    instructions = {"s0": full, "s1": full[1:], "s2": [*full[:2], "STG.E", "UCGABAR_WAIT", "STL.64"]}
    assert lacking(rows, instructions, CODE["mhc_cluster<"]) == [
        f"mhc_cluster<1> for sm_90a: no {HMMA}", f"mhc_cluster<2> for sm_90a: no {STORE}", "mhc_cluster<2> for sm_90a: STL.64"]


@needs_nvcc
@pytest.mark.parametrize("pattern", CODE)
def test_each_hot_kernel_contains_what_it_is_built_on(pattern):
    if not shutil.which("c++filt"):
        pytest.skip("gate: c++filt (binutils) is not installed: kernels have no readable names")
    for arch in SUMMARY[4].split(","):
        clusters = int(re.search(r"\d+", arch)[0]) >= 90
        if pattern in TRAPS and not clusters:
            continue
        rows = [row for row in info.kernels() if row["arch"] == arch and re.match(pattern, name_of(row))]
        assert rows, f"{pattern}: no such kernel for {arch}"
        wanted = CODE[pattern] + (CLUSTERED.get(pattern, ()) if clusters else ())
        assert not (found := lacking(rows, code(arch), wanted)), "\n".join(found)


@needs_nvcc
def test_every_kernel_of_the_hot_files_is_listed_once():
    if not shutil.which("c++filt"):
        pytest.skip("gate: c++filt (binutils) is not installed: kernels have no readable names")
    assert HOT.isdisjoint(NO_KERNEL["cuda"])
    for row in info.kernels():
        if row["file"].removesuffix(".cu") in HOT:
            lists = [p for p in (*CODE, UNTUNED) if re.match(p, name_of(row))]
            assert len(lists) == 1, f"{row['file']}: {name_of(row)} matches {lists}"


@needs_nvcc
def test_the_sanitizers_filter_takes_every_kernel():
    """scripts/gpu_check.sh gives compute-sanitizer kns=dsv4: a part of the mangled name."""
    assert all("dsv4" in row["symbol"] for row in info.kernels())


# -------------------------------------------------------------------------------------------------- the library
@needs_nvcc
def test_a28_the_library_needs_no_driver_and_shows_its_entry_only():
    if not shutil.which("readelf"):
        pytest.skip("gate: readelf (binutils) is not installed")
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", LIBRARY).stdout)
    assert needed and not re.search("cuda|nvidia|torch", " ".join(needed))
    symbols = run("readelf", "--dyn-syms", "-W", LIBRARY).stdout
    shown = [line.split()[-1] for line in symbols.splitlines() if re.search(r"GLOBAL DEFAULT +\d+ ", line)]
    assert shown == ["dsv4_backend_entry"]


@needs_nvcc
def test_a28_without_a_driver_cuda_is_off_and_says_so():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        row = dsv4spec.backends()["cuda"]
        assert not row["loadable"] and row["why_not"].startswith("no driver: libcuda.so.1 was not found")
        assert f"  cuda       off: {row['why_not']}" in info.format_info(info.build_info())
        with pytest.raises(RuntimeError, match="^use_backend: backend cuda: no driver: libcuda.so.1 was not found"):
            with dsv4spec.use_backend("cuda"):
                pass
    else:
        row = dsv4spec.backends()["cuda"]
        assert row["loadable"] or re.match("no GPU|driver too old", row["why_not"])


# ---------------------------------------------------------------------------------------------------- the build's rules
@pytest.fixture
def kernel_free(tmp_path):
    """The source tree with no kernel but those that a test writes; where nvcc is."""
    if not SUMMARY or not Path(SUMMARY[3]).exists():
        pytest.skip("no nvcc here")
    tree = copy_sources(tmp_path / "tree")
    for path in (tree / "kernels" / "cuda").glob("*.cu"):
        if path.name != "plugin.cu":
            path.unlink()
    return tree


def configure(tree, **environ):
    return run(tool("cmake"), "-S", tree, "-B", tree / "b", "-GUnix Makefiles", "-DDSV4SPEC_BINDING=OFF",
               f"-DDSV4SPEC_LIB_DIR={tree / 'lib'}", f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Debug",
               "-U", "DSV4SPEC_CUDA_ARCHS", **{**NO_TOOLCHAIN, "CUDACXX": SUMMARY[3], "DSV4SPEC_CUDA": "ON", **environ})


def test_a_warning_in_a_kernel_fails_the_build(kernel_free):
    source = kernel_free / "kernels" / "cuda" / "one.cu"
    kernel = "__global__ void one(int* p) {{ {} p[threadIdx.x] = 1; }}\n"
    result = configure(kernel_free, DSV4SPEC_CUDA_ARCHS="80")
    assert result.returncode == 0 and "for sm_80" in result.stdout, result.stdout
    for body, fails in (("int unused = 0;", True), ("", False)):
        source.write_text(kernel.format(body))
        result = run(tool("cmake"), "--build", kernel_free / "b", "--target", "dsv4spec_cuda", "--parallel", 2)
        assert (result.returncode != 0) == fails, result.stdout
        assert ("never referenced" in result.stdout) == fails, result.stdout
        assert "ptxas info" not in result.stdout  # that goes into the table
    [row] = json.loads((kernel_free / "lib" / "dsv4spec_cuda_kernels.json").read_text())
    assert (row["kernel"], row["arch"], row["file"]) == ("one", "sm_80", "one.cu") and row["registers"] > 0


def test_architectures_are_checked(kernel_free):
    result = configure(kernel_free, DSV4SPEC_CUDA_ARCHS="sm_90a,sm_7")
    assert result.returncode != 0 and "or native, got sm_7 " in re.sub(r"\s+", " ", result.stdout)
    result = configure(kernel_free, DSV4SPEC_CUDA_ARCHS="native")
    if not shutil.which("nvidia-smi"):
        assert result.returncode != 0 and "DSV4SPEC_CUDA_ARCHS=native: nvidia-smi names no GPU" in result.stdout


LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3onePi' for 'sm_80'
ptxas info    : Function properties for _Z3onePi
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 1024 bytes smem, 360 bytes cmem[0]
ptxas info    : Compiling entry function '_Z3onePi' for 'sm_90a'
ptxas info    : Function properties for _Z3onePi
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
"""


def test_the_table_reads_what_ptxas_writes(tmp_path):
    (tmp_path / "one.ptxas").write_text(LOG)
    first, second = kernel_table.rows(tmp_path / "one.ptxas")
    assert first == dict(file="one.cu", kernel="_Z3onePi", arch="sm_80", registers=12, static_smem_bytes=1024,
                         local_bytes=16, spill_store_bytes=4, spill_load_bytes=8)
    assert (second["arch"], second["registers"], second["static_smem_bytes"], second["local_bytes"]) == ("sm_90a", 10, 0, 0)
    (tmp_path / "two.ptxas").write_text(LOG.replace("Used", "Needs"))
    with pytest.raises(SystemExit, match="ptxas gave no figures for _Z3onePi"):
        kernel_table.rows(tmp_path / "two.ptxas")
