# SPDX-License-Identifier: Apache-2.0
"""One list of ops, whatever place it is written down in."""
import importlib
import inspect
import re
from pathlib import Path

import pytest
from samples import SAMPLES

from dsv4spec import _C, ops
from dsv4spec.ops import OPS
from dsv4spec.ops.table import NO_KERNEL

ROOT = Path(__file__).parents[1]
OUTPUT_ONLY = {"lightning_index": {"topk"}, "route_experts": {"topk"}}  # scalars that the C ABI reads off the output's shape


def stems(folder: str, pattern: str, prefix: str = "") -> set[str]:
    return {p.stem.removeprefix(prefix) for p in (ROOT / folder).glob(pattern)}


def defined() -> list[str]:
    return re.findall(r"^DSV4_OP\((\w+)\)", (ROOT / "csrc/ops.def").read_text(), re.M)


def header_structs() -> dict[str, list[tuple[str, str]]]:
    """op -> (type, member) of its args struct, from the public headers."""
    found = {}
    for header in (ROOT / "include/dsv4spec").glob("*.h"):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
        for name, body, closing in re.findall(r"typedef struct dsv4_(\w+)_args \{(.*?)\} dsv4_(\w+)_args;", text, re.S):
            assert name == closing
            found[name] = re.findall(r"(\S[^;]*?[\s*])(\w+);", body)
    return found


ALL = defined()


def test_every_list_names_the_same_ops():
    assert len(ALL) == len(set(ALL))
    want = set(ALL)
    assert set(_C.op_fields()) == want, "csrc/ops.def against the library"
    assert set(header_structs()) == want, "csrc/ops.def against the headers"
    assert set(OPS) == want, "csrc/ops.def against dsv4spec.ops"
    assert stems("csrc/ops", "*.cpp") == want, "csrc/ops.def against csrc/ops"
    assert set(SAMPLES) == want, "csrc/ops.def against tests/samples.py"
    assert want <= stems("tests", "test_*.py", "test_"), "every op has a test file of its name"
    assert want <= set(ops.__all__) and all(getattr(ops, name) is OPS[name].public for name in want)


def test_every_missing_kernel_is_declared():
    assert set(NO_KERNEL) == {p.name for p in (ROOT / "kernels").iterdir() if p.is_dir()}
    for folder, missing in NO_KERNEL.items():
        assert missing <= set(ALL)
        present = stems(f"kernels/{folder}", "*.c*") & set(ALL)
        assert present == set(ALL) - missing, f"kernels/{folder} against ops/table.py"
    for backend, row in _C.backends().items():
        if row["loadable"] and backend in NO_KERNEL:
            assert set(row["ops"]) == set(ALL) - NO_KERNEL[backend], f"{backend} as loaded against ops/table.py"


def test_the_page_of_the_cuda_kernels_names_every_op():
    """With what it costs, or among those that have no kernel."""
    page = (ROOT / "kernels" / "cuda" / "README.md").read_text()
    table, rest = page.split("## What an op costs")[1].split("No kernel:")
    assert set(re.findall(r"`(\w+)`", rest.split("(")[0])) == NO_KERNEL["cuda"]
    first = re.findall(r"^\| ([^|]+) \|", table, re.M)
    assert {name for cell in first for name in re.findall(r"`(\w+)`", cell)} == set(ALL) - NO_KERNEL["cuda"]


@pytest.mark.parametrize("name", ALL)
def test_struct_binding_and_schema_agree(name):
    members = [(kind.strip(), member) for kind, member in header_structs()[name]]
    assert members[0] == ("uint64_t", "struct_size")
    workspace = [("void*", "workspace"), ("uint64_t", "workspace_size")]
    body = members[1:-2] if members[-1][1] == "workspace_size" else members[1:]
    assert body == members[1:] or [(k.replace(" ", ""), m) for k, m in members[-2:]] == workspace
    kinds = {"int64_t": {"int"}, "double": {"double"},
             "const DLTensor*": {"in", "optional_in", "out", "optional_out"}}
    fields = _C.op_fields()[name]
    assert [m for _, m in body] == [f for f, _ in fields]
    for (kind, member), (_, field_kind) in zip(body, fields):
        assert field_kind in kinds[kind], f"{name}.{member}: {kind} in the header, {field_kind} in the binding"
    tensors = [kind == "const DLTensor*" for kind, _ in body]
    assert tensors == sorted(tensors, reverse=True), "tensors first, then scalars"


@pytest.mark.parametrize("name", ALL)
def test_python_arguments_agree(name):
    """Body, reference, torch schema and C struct have the same arguments, in the same order."""
    op = OPS[name]
    body = inspect.signature(op.body).parameters
    reference = inspect.signature(getattr(importlib.import_module(f"dsv4spec.reference.{op.family}"), name)).parameters
    without_out = [p for p in body if p != "out"]
    assert [p for p in reference if p != "out"] == without_out
    for p in without_out:
        assert body[p].kind == reference[p].kind and body[p].default == reference[p].default, p
    schema = op.schema.rsplit("->", 1)[0].strip()[1:-1]
    in_schema = [part.split("=")[0].split()[-1] for part in schema.split(",") if part.strip() != "*"]
    assert in_schema == without_out
    positional = [part.split("=")[0].split()[-1] for part in schema.split("*,")[0].split(",") if part.strip()]
    assert positional == [p for p in without_out if body[p].kind is not inspect.Parameter.KEYWORD_ONLY]
    has_results = op.schema.rsplit("->", 1)[1].count("Tensor") > 0
    assert ("out" in body) == has_results, "an op with results takes out="
    fields = [f for f, _ in _C.op_fields()[name]]
    assert set(without_out) - OUTPUT_ONLY.get(name, set()) <= set(fields)
    kinds = dict(_C.op_fields()[name])
    for p in op.mutates:
        assert kinds[p] in ("out", "optional_out"), f"{p} is mutated, but an input of the C struct"
    for p in without_out:
        if p in kinds and kinds[p] in ("out", "optional_out"):
            assert p in op.mutates, f"{p} is written by the C op, but not declared as mutated"


@pytest.mark.parametrize("name", ALL)
def test_docstrings_are_contracts(name):
    text = OPS[name].public.__doc__
    assert "Args:" in text and "Raises:" in text
    for p in inspect.signature(OPS[name].body).parameters:
        assert re.search(rf"\b{p}\b", text), f"{name}: the docstring does not name {p}"
