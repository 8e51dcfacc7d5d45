# SPDX-License-Identifier: Apache-2.0
"""What the headers say of the numbers in an op's struct is what is checked: values on both sides of each rule."""
import importlib
import math
import re

import pytest
from build_util import ROOT
from samples import SAMPLES

from dsv4spec import _C
from dsv4spec.ops import OPS, _dispatch

INTEGERS = (-1, 0, 1, 2, 3, 255, 256, 257, 1000, 1001)
NUMBERS = (-1.0, -1e-9, 0.0, 1e-30, 0.5, 1.0, 1.5, 1e30, math.inf, math.nan)
RULES = {  # how a comment begins: does the value comply?
    r">= (\d+), finite\b": lambda v, a: math.isfinite(v) and v >= int(a),
    r"> (\d+), finite\b": lambda v, a: math.isfinite(v) and v > int(a),
    r">= (\d+)": lambda v, a: v >= int(a),
    r"> (\d+)": lambda v, a: v > int(a),
    r"\[(\d+), (\d+)\)": lambda v, a, b: int(a) <= v < int(b),
    r"(\d+)\.\.(\d+)\b": lambda v, a, b: int(a) <= v <= int(b),
    r"(\d+)\.\.min\((\d+)": lambda v, a, b: int(a) <= v <= int(b),  # what else it says goes by other members
    r"finite\b": lambda v: math.isfinite(v),
    r"DSV4_TREE_MASK_\*": lambda v: v in (0, 1, 2),
    r"([01]): .*, ([01]): ": lambda v, a, b: v in (int(a), int(b)),
}


def comments(op: str) -> dict[str, str]:
    """The comment of each number in the struct of ``op``."""
    text = "".join(path.read_text() for path in (ROOT / "include" / "dsv4spec").glob("*.h"))
    struct = text[text.index(f"typedef struct dsv4_{op}_args"):text.index(f"}} dsv4_{op}_args;")]
    return dict(re.findall(r"^  (?:int64_t|double) (\w+);\s*/\* (.*) \*/$", struct, re.M))


def complies(comment: str, value) -> bool:
    for pattern, rule in RULES.items():
        if found := re.match(pattern, comment):
            return rule(value, *found.groups())
    raise AssertionError(f"no rule is known that begins as: {comment}")


@pytest.mark.parametrize("op", sorted(SAMPLES))
def test_every_number_has_the_rule_that_its_comment_states(op, monkeypatch):
    args, kwargs = SAMPLES[op]()
    calls = []
    monkeypatch.setattr(importlib.import_module(f"dsv4spec.ops.{OPS[op].family}"), "kernel", lambda *values: calls.append(values))
    OPS[op].public(*args, **kwargs)
    [(_, *values)] = calls
    fields = _C.op_fields()[op]
    numbers = {i: (name, kind) for i, (name, kind) in enumerate(fields) if kind in ("int", "double")}
    stated = comments(op)
    assert set(stated) == {name for name, _ in numbers.values()}
    before = _C.check_only(True)  # nothing is launched
    try:
        for i, (name, kind) in numbers.items():
            for value in INTEGERS if kind == "int" else NUMBERS:
                refused = ""
                try:
                    getattr(_dispatch._C, op)(*values[:i], value, *values[i + 1:])
                except ValueError as error:
                    refused = str(error)
                of_this = refused.startswith(f"{op}: {name}: ")
                if complies(stated[name], value):
                    assert not of_this or "min(" in stated[name], (value, stated[name], refused)
                else:
                    assert of_this, (name, value, stated[name], refused)
    finally:
        _C.check_only(before)
