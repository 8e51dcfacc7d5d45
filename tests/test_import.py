# SPDX-License-Identifier: Apache-2.0
"""Import on a bare, stale or mismatched machine: it works without drivers and without torch, and what does not belong
together says so in one line."""
import json
import os
import re
import shutil
import sys
from pathlib import Path

import dsv4spec
import pytest
from build_util import run, script
from dsv4spec import _C, cli

PACKAGE = Path(dsv4spec.__file__).parent
BUILT = [name for name, runs_here in _C.cpu_levels().items()
         if runs_here and (PACKAGE / "lib" / f"libdsv4spec_cpu_{name}.so").exists()]
CALL = """
import numpy as np, dsv4spec
out = dsv4spec.ops.mhc_post(np.ones((2, 20), np.float32), np.ones((2, 1, 20), np.float32),
                            np.ones((2, 1), np.float32), np.ones((2, 1, 1), np.float32))
assert (out == 2).all(), out
"""


def python(code: str, folder: Path = PACKAGE.parent, **environ):
    """Run ``code`` in a fresh interpreter that finds the package in ``folder``."""
    result = run(sys.executable, "-c", code, cwd="/", PYTHONPATH=folder,
                 PYTHONWARNINGS="ignore::RuntimeWarning",  # a checkout that was not built again: test_info.py
                 **{"DSV4SPEC_BACKEND": None, "DSV4SPEC_CPU_LEVEL": None, "DSV4SPEC_NUM_THREADS": None, **environ})
    return result.returncode, result.stdout


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of the installed package, to be broken."""
    skip = shutil.ignore_patterns("__pycache__", "*.safetensors")
    return Path(shutil.copytree(PACKAGE, tmp_path / "dsv4spec", ignore=skip))


def patch(library: Path, old: str, new: str) -> None:
    data = library.read_bytes()
    assert old.encode() in data and len(old) == len(new)
    library.write_bytes(data.replace(old.encode(), new.encode()))


# ------------------------------------------------------------------------------------------------ drivers and torch
def test_a28_no_library_needs_a_driver_or_torch():
    if not shutil.which("readelf"):
        pytest.skip("gate: readelf (binutils) is not installed")
    allowed = re.compile(r"libdsv4spec|libstdc\+\+|libgcc_s|libc\.|libm\.|libdl\.|libpthread\.|librt\.|ld-linux")
    libraries = [Path(_C.__file__), PACKAGE / "lib" / "libdsv4spec.so",
                 *(PACKAGE / "lib").glob("libdsv4spec_*.so")]
    assert len(libraries) >= 3
    for library in libraries:
        needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library).stdout)
        assert needed and all(allowed.match(name) for name in needed), f"{library.name} needs {needed}"


def test_a28_import_and_cpu_ops_load_no_driver():
    code, text = python(CALL + "print([line.split('/')[-1] for line in open('/proc/self/maps') if '.so' in line])")
    assert code == 0, text
    assert "libdsv4spec_cpu_" in text and not re.search("libcuda|libnvidia|libascendcl|libtorch", text)


def test_a28_backends_say_why_the_others_are_off():
    rows = dsv4spec.backends()
    assert rows["cpu"]["loadable"] and rows["cpu"]["ops"] and rows["cpu"]["why_not"] is None
    for name, row in rows.items():
        assert row["loadable"] or row["why_not"], name
    summary = _C.build_summary
    for name in ("cuda", "npu"):
        if f"{name}: not built" in summary:
            assert re.search(rf"^{name}: " + re.escape(rows[name]["why_not"]) + "$", summary, re.M)
            with pytest.raises(RuntimeError, match=f"use_backend: backend {name}: not built: "):
                with dsv4spec.use_backend(name):
                    pass


@pytest.mark.parametrize("name,why", [
    ("gpu", "ValueError: DSV4SPEC_BACKEND=gpu: use_backend: name: expected cpu, cuda, npu, "),
    ("npu", "RuntimeError: DSV4SPEC_BACKEND=npu: use_backend: backend npu: ")])
def test_a28_a_backend_of_the_environment_that_cannot_be_had_is_refused_by_the_ops(name, why):
    """Not by the import, or `dsv4spec info`, which says why it is off, could not run; and no other backend steps in."""
    if dsv4spec.backends().get(name, {}).get("loadable"):
        pytest.skip(f"{name} can be loaded here")
    code, text = python("""
import numpy as np, dsv4spec
arrays = [np.ones(shape, np.float32) for shape in ((2, 20), (2, 1, 20), (2, 1), (2, 1, 1))]
for call in 2 * (lambda: dsv4spec.ops.mhc_post(*arrays),):
    try: call()
    except Exception as error: print(type(error).__name__ + ":", error)
with dsv4spec.use_backend("cpu"): assert (dsv4spec.ops.mhc_post(*arrays) == 2).all()
try:
    with dsv4spec.use_backend(dsv4spec.ops._dispatch.current_backend()): pass
except Exception as error: print("again", error)
dsv4spec.ops.mhc_post(*arrays)
""", DSV4SPEC_BACKEND=name)
    lines = text.splitlines()
    assert code == 1 and lines[0] == lines[1] and lines[0].startswith(why) and lines[2].startswith("again use_backend: "), text
    assert lines[-1].endswith(lines[0]), text
    result = run(sys.executable, "-m", "dsv4spec", "info", cwd="/", PYTHONPATH=PACKAGE.parent, DSV4SPEC_BACKEND=name)
    assert result.returncode == 0 and f"DSV4SPEC_BACKEND={name}" in result.stdout, result.stdout


def test_a28_works_without_torch():
    hide = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Hide())
"""
    code, text = python(hide + CALL + "info = dsv4spec.build_info()\nassert info['torch'] is None, info\n"
                               "print(info['torch_why_not'])")
    assert code == 0 and "No module named 'torch'" in text, text


def test_import_does_not_import_torch():
    code, text = python(CALL + "import sys; assert 'torch' not in sys.modules")
    assert code == 0, text


# ------------------------------------------------------------------------------------------------- stale, mismatched
OTHER = "0123456789abcdef"


def test_a28_a_stale_cpu_plug_in_is_refused_with_both_hashes(copy):
    best = BUILT[0]
    patch(copy / "lib" / f"libdsv4spec_cpu_{best}.so", _C.source_hash, OTHER)
    code, text = python(CALL, copy.parent)
    assert code != 0
    assert re.search(rf"RuntimeError: mhc_post: backend cpu: .*libdsv4spec_cpu_{best}.so was built from sources "
                     rf"{OTHER}, this library from {_C.source_hash}; rebuild dsv4spec \(pip install \.\)", text), text


def test_a28_a_stale_library_is_refused_with_both_hashes(copy):
    patch(copy / "lib" / "libdsv4spec.so", _C.source_hash, OTHER)
    code, text = python("import dsv4spec", copy.parent)
    assert code != 0 and re.search(rf"ImportError: dsv4spec: the binding was built from sources {_C.source_hash}, "
                                   rf"libdsv4spec from {OTHER}; rebuild with: pip install \.", text), text


def test_a28_a_version_mismatch_is_refused_with_both_versions(copy):
    (copy / "_version.py").write_text('__version__ = "9.9.9"\n')
    code, text = python("import dsv4spec", copy.parent)
    assert code != 0 and "are of version 9.9.9, the compiled part" in text
    assert f"of version {_C.version}; rebuild with: pip install ." in text


def test_a28_a_missing_compiled_part_is_one_sentence(copy):
    (copy / Path(_C.__file__).name).unlink()
    code, text = python("import dsv4spec", copy.parent)
    assert code != 0
    assert re.search(r"ImportError: dsv4spec: .* has no compiled part for Python .*: pip install \.", text), text


def test_a28_a_file_that_is_no_plug_in_is_refused(copy):
    shutil.copy(copy / "lib" / "libdsv4spec.so", copy / "lib" / "libdsv4spec_cuda.so")
    script(copy / "lib" / "libdsv4spec_npu.so", "exit 0\n" * 100)
    code, text = python("import dsv4spec\nfor row in dsv4spec.backends().values(): print(row['why_not'])", copy.parent)
    assert code == 0 and "libdsv4spec_cuda.so speaks another plug-in ABI; rebuild dsv4spec" in text
    assert re.search("libdsv4spec_npu.so: .*ELF", text), text


# -------------------------------------------------------------------------------------------------------- CPU levels
SAMPLES_AGREE = """
import sys, torch
sys.path.insert(0, {tests!r})
import dsv4spec
from level_samples import check_all
level = dsv4spec.backends()["cpu"]["archs"]
assert level == {level!r}, level
print(check_all(), "ops agree")
"""


@pytest.mark.parametrize("level", BUILT)
def test_every_level_built_gives_the_reference_results(level):
    code, text = python(SAMPLES_AGREE.format(tests=str(Path(__file__).parent), level=level), DSV4SPEC_CPU_LEVEL=level)
    assert code == 0 and int(re.search(r"(\d+) ops agree", text)[1]) > 0, text


def test_the_best_level_built_is_chosen():
    code, text = python("import dsv4spec; print(dsv4spec.build_info()['cpu']['level'])")
    assert code == 0 and text.strip() == BUILT[0]


def test_an_unknown_or_unbuilt_level_is_refused(copy):
    code, text = python(CALL, DSV4SPEC_CPU_LEVEL="v9")
    assert code != 0 and "DSV4SPEC_CPU_LEVEL=v9 is not one of " + ", ".join(_C.cpu_levels()) in text
    (copy / "lib" / f"libdsv4spec_cpu_{BUILT[0]}.so").unlink()
    code, text = python(CALL, copy.parent, DSV4SPEC_CPU_LEVEL=BUILT[0])
    assert code != 0 and f"backend cpu: {BUILT[0]} libdsv4spec_cpu_{BUILT[0]}.so was built, but is missing" in text


@pytest.mark.parametrize("text", ["abc", "0", "-1", "5000", "2.5", "99999999999999999999"])
def test_a_thread_number_that_cannot_be_had_is_refused(text):
    code, output = python(CALL, DSV4SPEC_NUM_THREADS=text)
    assert code != 0 and f"backend cpu: DSV4SPEC_NUM_THREADS: expected 1 to 1024, got {text}\n" in output


@pytest.mark.parametrize("text", ["", "1", "3", "1024"])
def test_the_thread_number_of_the_environment_is_taken(text):
    code, output = python("from dsv4spec import _C; print(_C.get_num_threads())\n" + CALL, DSV4SPEC_NUM_THREADS=text)
    assert code == 0 and output.strip() == (text or str(len(os.sched_getaffinity(0))))


# -------------------------------------------------------------------------------------------------------------- info
def test_info_tells_all(capsys):
    assert cli.main(["info", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info == dsv4spec.build_info()
    assert info["version"] == dsv4spec.__version__ and re.fullmatch("[0-9a-f]{16}", info["source_hash"])
    for line in ("cpu: built for ", "cuda: ", "npu: "):
        assert re.search("^" + line, info["summary"], re.M)
    assert info["cpu"]["levels"][info["cpu"]["level"]] == {"built": True, "runs_here": True}
    assert info["backends"]["cpu"]["toolchain"] and info["backends"]["cpu"]["archs"] == info["cpu"]["level"]
    assert info["ops"]["mhc_post"]["cpu"] and set(info["ops"]) == set(dsv4spec.ops.OPS)
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    for wanted in (info["git_hash"], info["source_hash"], info["torch"], "chosen", "mhc_post", "cuda"):
        assert wanted in text
    for name, row in info["backends"].items():
        assert row["loadable"] or f"off: {row['why_not']}" in text


def test_an_unknown_command_is_an_error(capsys):
    with pytest.raises(SystemExit) as e:
        cli.main(["no-such-command"])
    assert e.value.code == 2 and "no-such-command" in capsys.readouterr().err
