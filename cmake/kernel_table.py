# SPDX-License-Identifier: Apache-2.0
"""What ptxas says of each kernel. Two steps of the build:

kernel_table.py compile LOG NVCC ARG...   runs nvcc with -Xptxas=-v; its remarks on kernels go to LOG, the rest is shown
kernel_table.py table JSON LOG...         makes one table of all logs
kernel_table.py markdown JSON             prints it in short, one row a file, as in kernels/cuda/README.md
"""
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

REMARK = re.compile(r"ptxas info\s+: |\s+\d+ bytes stack frame, ")
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def compile_file(log, *command):
    """The exit code of nvcc."""
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = result.stdout.splitlines(keepends=True)
    Path(log).write_text("".join(line for line in lines if REMARK.match(line)))
    sys.stderr.write("".join(line for line in lines if not REMARK.match(line)))
    return result.returncode


def rows(log):
    """One row per kernel and architecture. Dynamic shared memory is chosen at launch; ptxas does not see it."""
    found, row = [], None
    for line in Path(log).read_text().splitlines():
        if match := ENTRY.search(line):
            row = {"file": Path(log).stem + ".cu", "kernel": match[1], "arch": match[2]}
            found.append(row)
        elif row is not None and "local_bytes" not in row and (match := STACK.search(line)):
            row.update(local_bytes=int(match[1]), spill_store_bytes=int(match[2]), spill_load_bytes=int(match[3]))
        elif row is not None and "registers" not in row and (match := USED.search(line)):
            shared = SHARED.search(line)
            row.update(registers=int(match[1]), static_smem_bytes=int(shared[1]) if shared else 0)
    for row in found:
        if "registers" not in row or "local_bytes" not in row:
            raise SystemExit(f"kernel_table.py: {log}: ptxas gave no figures for {row['kernel']}; is its text another one?")
    return found


def demangled(names):
    """Readable names by c++filt of binutils, as far as it is there."""
    tool = shutil.which("c++filt")
    if not tool or not names:
        return names
    out = subprocess.run([tool, "-p"], input="\n".join(names), text=True, capture_output=True, check=True).stdout
    short = [re.sub(r"dsv4::cuda::|\(anonymous namespace\)::|^void ", "", line) for line in out.splitlines()]
    return [re.sub(r"\((?:bool|int|unsigned int)\)", "", name) for name in short]


def markdown(table):
    """The most that the kernels of a file take, per architecture."""
    archs = sorted({row["arch"] for row in table}, key=lambda arch: int(re.sub(r"\D", "", arch)))
    yield f"| file | kernels | {' | '.join(f'registers {arch}' for arch in archs)} | static smem | spills, local |"
    yield "| --- " * (len(archs) + 4) + "|"
    for file in sorted({row["file"] for row in table}):
        of_file = [row for row in table if row["file"] == file]
        registers = [max(row["registers"] for row in of_file if row["arch"] == arch) for arch in archs]
        waste = max(row[key] for row in of_file for key in ("spill_store_bytes", "spill_load_bytes", "local_bytes"))
        cells = [f"`{file}`", len({row["symbol"] for row in of_file}), *registers,
                 max(row["static_smem_bytes"] for row in of_file), waste]
        yield f"| {' | '.join(map(str, cells))} |"


def main(step, out, *rest):
    if step == "compile":
        return compile_file(out, *rest)
    if step == "markdown":
        print("\n".join(markdown(json.loads(Path(out).read_text()))))
        return 0
    table = [row for log in rest for row in rows(log)]
    for row, name in zip(table, demangled([row["kernel"] for row in table])):
        row["symbol"], row["kernel"] = row["kernel"], name
    table.sort(key=lambda row: (row["file"], row["kernel"], int(re.sub(r"\D", "", row["arch"]))))
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
