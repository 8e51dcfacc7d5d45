# SPDX-License-Identifier: Apache-2.0
"""Pictures of ``dsv4spec bench`` and ``dsv4spec plan`` as PNG, by matplotlib (the extra ``[plot]``)."""
from __future__ import annotations

from collections import defaultdict

AXES = (("T", "rows of a call (T)"), ("length", "committed tokens of a request (context)"), ("B", "requests (batch)"))


def pyplot():
    """matplotlib's pyplot, drawing to files. RuntimeError with advice if it is not installed."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise RuntimeError("--plot needs matplotlib: pip install 'dsv4spec[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot(result: dict, path: str) -> None:
    """The measured lines of a result of ``dsv4spec bench``: the roofline, and time against what varies."""
    if not result["lines"]:
        raise ValueError("--plot: nothing was measured")
    figure, panels = pyplot().subplots(2, 2, figsize=(15, 11), layout="constrained")
    colours = _colours(result["lines"])
    _roofline(panels[0][0], result, colours)
    for (name, label), panel in zip(AXES, (panels[0][1], panels[1][0], panels[1][1])):
        _against(panel, result["lines"], name, label, colours)
    device, version = result["machine"]["device"], result["dsv4spec"]["version"]
    figure.suptitle(f"dsv4spec {version} on {device}, backend {result['backend']}")
    save(figure, path)


def save(figure, path: str) -> None:
    figure.savefig(path, format="png", dpi=110)
    pyplot().close(figure)


def _colours(lines) -> dict[str, tuple]:
    names = sorted({line["op"] for line in lines})
    shades = pyplot().get_cmap("turbo", max(len(names), 2))
    return {name: shades(i) for i, name in enumerate(names)}


def _roofline(panel, result, colours) -> None:
    roofs, lines = result["roofs"], [line for line in result["lines"] if line["flops"]]
    panel.set(title="roofline", xlabel="floating-point operations a byte", ylabel="operations a second", xscale="log",
              yscale="log")
    if not lines:
        return
    intensity = [line["flops"] / (line["bytes_read"] + line["bytes_written"]) for line in lines]
    low, high = min(intensity) / 2, max(intensity) * 2
    for name, style in (("read", "-"), ("copy", "--")):
        for dtype in ("float32", "bfloat16"):
            rate, most = roofs[f"{name}_bytes_per_s"], roofs[f"{dtype}_flops_per_s"]
            knee = min(max(most / rate, low), high)
            panel.plot([low, knee, high], [min(low * rate, most), min(knee * rate, most), min(high * rate, most)], style,
                       color="grey", linewidth=1)
            panel.annotate(f"{dtype} product", (high, most), ha="right", va="bottom", fontsize=8, color="grey")
    for op, colour in colours.items():
        points = [(x, line["tflop_per_s"] * 1e12) for x, line in zip(intensity, lines) if line["op"] == op]
        if points:
            panel.scatter(*zip(*points), color=colour, s=18, label=op)
    panel.legend(fontsize=7, ncols=2)


def _against(panel, lines, name: str, label: str, colours) -> None:
    """Time of the cases that differ in ``name`` alone, a line for each such group of at least two."""
    groups = defaultdict(list)
    for line in lines:
        if name in line["params"]:
            rest = tuple(sorted((k, v) for k, v in line["params"].items() if k != name))
            groups[line["op"], line["size"], rest].append(line)
    panel.set(title=f"time against {label}", xlabel=label, ylabel="microseconds", xscale="log", yscale="log")
    shown = set()
    for (op, size, _), group in groups.items():
        group.sort(key=lambda line: line["params"][name])
        if len({line["params"][name] for line in group}) < 2:
            continue
        at = [line["params"][name] for line in group]
        panel.plot(at, [line["median_us"] for line in group], marker="o", markersize=3, linewidth=1, color=colours[op],
                   label=None if op in shown else op)
        panel.fill_between(at, [line["p10_us"] for line in group], [line["p90_us"] for line in group], color=colours[op],
                           alpha=0.12)
        shown.add(op)
    if shown:
        panel.legend(fontsize=7, ncols=2)
