# SPDX-License-Identifier: Apache-2.0
"""What was wrong with the arguments of a call that failed before the contract checks could look at them, while its
outputs were allocated."""
import inspect
import re

from ._torch import result_count

_ARGUMENT = re.compile(r"(Tensor(?:\(\w!\))?\??|int|float|str) (\w+)")


def refuse(op_, args, kwargs, error: Exception) -> None:
    """Raise ValueError ``op: argument: expected RULE, got VALUE`` if an argument explains ``error``; else return."""
    if isinstance(error, ValueError) and str(error).startswith(f"{op_.name}: "):
        return  # of the checks themselves
    try:
        values = inspect.signature(op_.body).bind(*args, **kwargs).arguments
    except TypeError:
        return  # a call with other arguments than the op has: Python's own text says so
    tensors = []
    for kind, name in _ARGUMENT.findall(op_.schema.split("->")[0]):
        if name not in values:
            continue
        value, rule = values[name], None
        if kind.startswith("Tensor"):
            if value is None and kind.endswith("?"):
                continue
            if not hasattr(value, "__dlpack__"):
                rule = "a tensor (an object with __dlpack__)"
            else:
                tensors.append((name, value))
        elif kind == "int":
            rule = _integer_rule(value)
        elif kind == "float" and not isinstance(value, (int, float)):
            rule = "a number"
        if rule:
            got = repr(value) if isinstance(value, (int, float)) else type(value).__name__
            raise ValueError(f"{op_.name}: {name}: expected {rule}, got {got}") from error
    out, count = values.get("out"), result_count(op_.schema)
    if out is not None and count > 1:
        given = len(out) if isinstance(out, (tuple, list)) else type(out).__name__
        if given != count:
            raise ValueError(f"{op_.name}: out: expected a tuple of {count} tensors, got {given}") from error
    if isinstance(error, (IndexError, TypeError)):  # a shape that was read has too few dimensions
        for rank in (0, 1):
            for name, value in tensors:
                if len(value.shape) == rank:
                    raise ValueError(f"{op_.name}: {name}: expected at least {rank + 1} dimension{'s' * rank}, "
                                     f"got shape {list(value.shape)}") from error


def _integer_rule(value) -> str | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return "an integer"
    if value < 0:
        return "at least 0"
    return "at most 2147483647" if value >= 2**31 else None
