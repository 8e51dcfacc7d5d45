# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec bench NAME``: a table of benchmarks, each a module with ``add_arguments(parser)`` and ``run(args)``."""
from __future__ import annotations

import argparse
import importlib

# name: (module, one line of help)
BENCHES = {
    "e2e": ("dsv4spec.bench_e2e", "the model plain and speculative, against transformers on the same weights"),
    "ops": ("dsv4spec.bench_ops", "every op at the sizes of Flash and Pro, against the roofs of the machine and torch"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    benches = parser.add_subparsers(dest="bench", required=True, metavar="NAME")
    for name, (module_name, text) in BENCHES.items():
        bench = benches.add_parser(name, help=text, description=text[:1].upper() + text[1:] + ".")
        importlib.import_module(module_name).add_arguments(bench)


def run(args: argparse.Namespace) -> int:
    return importlib.import_module(BENCHES[args.bench][0]).run(args)
