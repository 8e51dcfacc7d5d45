# SPDX-License-Identifier: Apache-2.0
"""Tensors in arguments and results, copies of them, and the comparison without which ``dsv4spec bench`` times nothing."""
from __future__ import annotations

import torch

TOLERANCE = {torch.bfloat16: 2 ** -6, torch.float32: 1e-4}  # of the largest value; four roundings of bfloat16


def tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in tensors(item)] if isinstance(value, (tuple, list)) else []


def copied(value):
    """Arguments in memory of their own."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return tuple(copied(item) for item in value) if isinstance(value, (tuple, list)) else value


def difference(got, want, factor: float = 1.0) -> str | None:
    """None if the results agree: integers exactly, floats within TOLERANCE (times ``factor``) of the largest value, and on
    average within an eighth of that of the average one. Else one sentence."""
    ours, theirs = tensors(got), tensors(want)
    if len(ours) != len(theirs):
        return f"{len(ours)} results, expected {len(theirs)}"
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {i} is {tuple(a.shape)} {a.dtype}, expected {tuple(b.shape)} {b.dtype}"
        if a.dtype not in TOLERANCE:
            a, b = (t if t.dtype == torch.bool else t.view(torch.uint8) for t in (a, b)) if a.element_size() == 1 else (a, b)
            wrong = int((a != b).sum())
            if wrong:
                return f"result {i} differs in {wrong} of {a.numel()} places"
            continue
        if a.numel() == 0:
            continue
        if not bool((torch.isfinite(a) == torch.isfinite(b)).all()):
            return f"result {i} has values that are not finite in other places"
        error, size = (a.float() - b.float()).abs().nan_to_num(0), b.float().abs().nan_to_num(0, 0, 0)
        allowed = TOLERANCE[a.dtype] * factor
        worst, mean = float(error.max() / size.max().clamp(min=1e-30)), float(error.mean() / size.mean().clamp(min=1e-30))
        if worst > allowed or a.numel() >= 64 and mean > allowed / 8:  # few numbers have no average to speak of
            return f"result {i} is off by {worst:.1e} of its largest value at worst, {mean:.1e} on average"
    return None
