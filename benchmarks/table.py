# SPDX-License-Identifier: Apache-2.0
"""The table of cpu_roofline.md: ``python benchmarks/table.py one.json two.json``, what ``dsv4spec bench --json`` wrote with one
thread and with all. (u): the two halves of the samples differ."""
import json
import sys


def lines(path: str) -> dict:
    with open(path, encoding="utf-8") as file:
        return {(line["op"], line["case"]): line for line in json.load(file)["lines"]}


def cells(line: dict | None) -> list[str]:
    if line is None:
        return ["-", "-", "-"]
    mark = " (u)" if line["unstable"] else ""
    call, kernel = (f"{us:.3g}" if us < 1000 else f"{us:.0f}" for us in (line["median_us"], line["kernel_us"]))
    return [call + mark, kernel, f"{100 * line['fraction_of_roof']:.0f}% {line['roof']}"]


def against(line: dict | None, name: str) -> str:
    times = (line or {}).get("against", {}).get(name, {}).get("times_ours")
    return f"{times:.1f}" if times else "-"


def main(one_path: str, two_path: str) -> None:
    one, two = lines(one_path), lines(two_path)
    print("| op | case | us, one core | kernel | of its roof | us, two cores | kernel | of their roof | x torch | x compile |")
    print("| --- " * 10 + "|")
    ops = dict.fromkeys(op for op, _ in two)
    for op, case in sorted(two, key=lambda key: list(ops).index(key[0])):
        pair = one.get((op, case)), two[op, case]
        row = [f"`{op}`", case, *cells(pair[0]), *cells(pair[1]), against(pair[1], "torch"), against(pair[1], "compile")]
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
