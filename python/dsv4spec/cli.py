# SPDX-License-Identifier: Apache-2.0
"""The command ``dsv4spec``: a table of subcommands. A module has ``add_arguments(parser)`` and ``run(args) -> int``
(the exit code), and is imported only when its command is called."""
from __future__ import annotations

import argparse
import importlib
import os
import sys

from . import paths
from ._extras import MODELS, needs
from ._version import __version__

# name: (module, one line of help)
COMMANDS = {
    "generate": ("dsv4spec.generate", "decode prompts with a checkpoint, speculatively if it has a NextN layer"),
    "demo": ("dsv4spec.demo", "decode a prompt with the small model in the box, plain and speculative"),
    "bench": ("dsv4spec.bench", "time ops against the roofs of the machine, torch and other implementations"),
    "bench e2e": ("dsv4spec.bench_e2e", "the model plain and speculative, against transformers on the same weights"),
    "bench worker": ("dsv4spec.bench_worker", "what the worker itself costs a round, by batch size and context length"),
    "plan": ("dsv4spec.plan", "how many drafts a round should have at each batch size, and where speculation stops paying"),
    "info": ("dsv4spec.info", "version, backends built and loadable, CPU level, toolchains, ops per backend"),
    "inspect": ("dsv4spec.inspect_cmd", "layers, dtypes and sizes of a checkpoint, and what is missing"),
}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if " ".join(argv[:2]) in COMMANDS:  # a command of two words
        argv = [" ".join(argv[:2]), *argv[2:]]
    # Before torch is loaded: its threads must not spin while they wait. On cores shared with anything else (this
    # package's own threads, other processes) that made a step of the small model 20 times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    parser = argparse.ArgumentParser(prog="dsv4spec", description="DeepSeek-V4 MTP / NextN speculative decoding.")
    parser.add_argument("--version", action="version", version=f"dsv4spec {__version__}")
    paths.add_options(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module_name, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[:1].upper() + text[1:] + ".")
        if argv[:1] == [name]:
            module = importlib.import_module(module_name)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    args = parser.parse_args(argv)
    try:
        code = args.run(args)
        sys.stdout.flush()  # what cannot be written is said here, not when the interpreter ends
        return code
    except ModuleNotFoundError as error:
        if error.name not in MODELS:
            raise
        print(f"dsv4spec: error: {needs(args.command, error.name)}", file=sys.stderr)
    except OSError as error:  # a full disk, a reader that is gone
        print(f"dsv4spec: error: {error}", file=sys.stderr)
        _drop_output()
    return 1


def _drop_output() -> None:
    """What is left in the buffer has nowhere to go, and the interpreter would try again when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
