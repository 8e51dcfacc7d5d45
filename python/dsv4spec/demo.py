# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec demo``: the small trained model in the box decodes a prompt plainly and speculatively: the same text, in
fewer Target forwards."""
from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from .generate import add_backend_arguments, backend_options, log, logs_to_stderr, positive

ASSET = Path(__file__).parent / "assets" / "tiny"
PROMPT = 'def read(self, size=-1):\n    """'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=str(ASSET), metavar="DIR", help="another checkpoint with mtp.0 and a tokenizer")
    parser.add_argument("--prompt", default=PROMPT, metavar="TEXT")
    parser.add_argument("--max-new-tokens", type=int, default=160, metavar="N")
    parser.add_argument("--num-steps", type=int, default=3, metavar="N", help="most draft tokens per round (3)")
    parser.add_argument("--draft-p-min", type=float, default=0.0, metavar="P",
                        help="draft on while NextN gives its last draft at least this probability (0: always)")
    add_backend_arguments(parser)
    parser.add_argument("--repeats", type=positive, default=5, metavar="N", help="timed runs of each kind (the median counts)")


def run(args: argparse.Namespace) -> int:
    with logs_to_stderr():
        try:
            return _run(args)
        except (ValueError, OSError, RuntimeError) as error:
            log.error("error: %s", error)
            return 1


def timed(engine, prompts, params) -> tuple[float, list]:
    """Seconds and outputs of one run, counters starting at zero."""
    engine.reset_metrics()
    start = time.perf_counter()
    outputs = engine.generate(prompts, params)
    return time.perf_counter() - start, outputs


def _run(args) -> int:
    from .engine import Engine
    from .render import Marker, metric_rows, number, table
    from .request import SamplingParams
    from .spec.options import SpeculativeConfig

    params = SamplingParams(args.max_new_tokens)
    options = dict(max_running_requests=1, **backend_options(args))
    engines = {"plain": Engine(args.model, speculative=None, **options),
               "speculative": Engine(args.model, speculative=SpeculativeConfig(args.num_steps, draft_p_min=args.draft_p_min), **options)}
    seconds = {name: [] for name in engines}
    outputs = {}
    for repeat in range(args.repeats + 1):  # the first run of each warms up
        for name, engine in engines.items():
            took, (outputs[name],) = timed(engine, [args.prompt], params)
            seconds[name] += [took] if repeat else []
    plain, drafted = outputs["plain"], outputs["speculative"]
    marker = Marker(sys.stdout, engines["plain"].tokenizer)
    print(f"prompt:\n{args.prompt}\n")
    for name, output in outputs.items():
        print(f"{name} decoding:")
        marker.write(output.token_ids, output.from_draft)
        marker.end()
        marker = Marker(sys.stdout, engines["plain"].tokenizer)
        print()
    print(f"{marker.legend} of the NextN layer; the rest are the Target's own tokens\n")
    for name, engine in engines.items():
        print(f"{name}:\n{table(metric_rows(engine.metrics()))}\n")
    rate = {name: len(outputs[name].token_ids) / statistics.median(s) for name, s in seconds.items()}
    print(f"plain {number(rate['plain'], 1)} tokens/s, speculative {number(rate['speculative'], 1)} tokens/s: speed-up "
          f"{number(rate['speculative'] / rate['plain'])} (medians of {args.repeats} runs each, prefill included)")
    if plain.token_ids != drafted.token_ids:
        log.error("error: the two texts differ from token %d on", _first_difference(plain.token_ids, drafted.token_ids))
        return 1
    print(f"same text: yes, {len(plain.token_ids)} tokens")
    return 0


def _first_difference(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
