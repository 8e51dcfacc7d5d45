# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec bench worker``: what the worker itself costs a round, by batch size and context length.

Rounds are real ones, of the model's own forwards over the real caches. Each call of a model (``forward`` and ``logits``
of Target and NextN) is timed, and the rest of the round is the worker's: page tables and metadata, drafts, acceptance,
what requests carry on, counters. Contexts come from a prefill without a model (keys are zero, which changes no shape
and no step of the worker). The contexts of one batch size take turns, so that a change of the machine's speed meets all.
"""
from __future__ import annotations

import argparse
import statistics
import time

from ._files import check_writable, write_json
from .demo import ASSET
from .generate import log, logs_to_stderr, positive

BATCHES, CONTEXTS = (1, 8, 32), (256, 4096, 32768)
CHUNK = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="F", help="write the result to this file")
    parser.add_argument("--model", default=str(ASSET), metavar="DIR")
    parser.add_argument("--batches", type=positive, nargs="+", default=list(BATCHES), metavar="B")
    parser.add_argument("--contexts", type=positive, nargs="+", default=list(CONTEXTS), metavar="TOKENS",
                        help="committed tokens of each request before the first round")
    parser.add_argument("--num-steps", type=positive, default=3, metavar="N", help="draft tokens per round (3)")
    parser.add_argument("--rounds", type=positive, default=60, metavar="N", help="measured rounds of each case")


def run(args: argparse.Namespace) -> int:
    with logs_to_stderr():
        try:
            if args.json:
                check_writable(args.json)
            result = measure(args)
        except (ValueError, OSError, RuntimeError) as error:
            log.error("error: %s", error)
            return 1
    if args.json:
        write_json(args.json, result)
    print(format_result(result))
    return 0


def measure(args) -> dict:
    """``cases``: of each batch size and context the medians, 10th and 90th percentiles in microseconds of the worker's
    own time per round, and the medians of the models' time and of whole rounds."""
    import torch

    from .models import load_model
    from .ops import use_backend
    from .placement import torch_threads

    config, target, nextn = load_model(args.model, dtype=torch.float32, device="cpu", nextn=True)
    cases = []
    with use_backend(None, missing="reference"), torch.inference_mode(), torch_threads(config, torch.device("cpu")):
        for batch in args.batches:
            turns = [Case(config, target, nextn, batch, context, args.num_steps, args.rounds) for context in args.contexts]
            for case in turns * 5:
                case.round()  # warm-up
            for case in turns:
                case.worker_us, case.model_us = [], []
            for _ in range(args.rounds):
                for case in turns:
                    case.round()
            cases += [case.report() for case in turns]
    return {"cases": cases, "num_steps": args.num_steps, "rounds": args.rounds, "torch": torch.__version__}


class Case:
    """``batch`` requests of ``context`` committed tokens, on a worker of their own; :meth:`round` runs and times one."""

    def __init__(self, config, target, nextn, batch: int, context: int, num_steps: int, rounds: int):
        import torch

        from .cache import ForwardMode, KVCache
        from .spec.metrics import Metrics
        from .spec.options import SpeculativeConfig
        from .spec.worker import EagleWorker

        self.batch, self.context, self.worker_us, self.model_us = batch, context, [], []
        self.in_models = 0.0
        max_len = context + (rounds + 8) * (num_steps + 1)
        self.cache = KVCache(config, page_size=64, max_requests=batch, max_total_tokens=batch * (max_len + 64), max_len=max_len,
                             num_draft_tokens=num_steps + 1, prefill_chunk=CHUNK, draft=True)
        self.worker = EagleWorker(_Timed(self, target), _Timed(self, nextn), self.cache, SpeculativeConfig(num_steps),
                                  Metrics(num_steps), vocab_size=config.vocab_size, max_requests=batch, max_len=max_len)
        self.rows = [self.cache.open() for _ in range(batch)]
        for row in self.rows:
            for start in range(0, context, CHUNK):
                count = min(CHUNK, context - start)
                self.cache.batch(ForwardMode.TARGET_PREFILL, [row], torch.zeros(count, dtype=torch.int64), count)
                self.cache.commit([row], [count])
        self.worker.carry.put(self.rows, bonus=torch.zeros(batch, dtype=torch.int64), first=torch.zeros(batch, 1, dtype=torch.int64),
                              state=torch.ones(batch, config.nextn_hidden_size))

    def round(self) -> None:
        self.in_models, start = 0.0, time.perf_counter()
        self.worker.decode(self.rows)
        seconds = time.perf_counter() - start
        self.worker_us.append(1e6 * (seconds - self.in_models))
        self.model_us.append(1e6 * self.in_models)

    def report(self) -> dict:
        tenths = statistics.quantiles(self.worker_us, n=10) if len(self.worker_us) > 1 else self.worker_us * 9
        whole = [a + b for a, b in zip(self.worker_us, self.model_us)]
        return {"batch": self.batch, "context": self.context, "worker_us": statistics.median(self.worker_us),
                "worker_us_p10": tenths[0], "worker_us_p90": tenths[-1], "models_us": statistics.median(self.model_us),
                "round_us": statistics.median(whole), "tokens_per_round": self.worker.metrics.report()["accept_length"]}


class _Timed:
    """A model whose calls are timed."""

    def __init__(self, case: Case, model):
        self._case, self._model = case, model

    def forward(self, *args):
        return self._time(self._model.forward, args)

    def logits(self, hidden):
        return self._time(self._model.logits, (hidden,))

    def _time(self, function, args):
        start = time.perf_counter()
        result = function(*args)
        self._case.in_models += time.perf_counter() - start
        return result


def format_result(result: dict) -> str:
    lines = [f"{'batch':>6}{'context':>9}  {'worker us (p10-p90)':>22}{'models us':>12}{'round us':>11}"]
    for c in result["cases"]:
        spread = f"{c['worker_us']:.0f} ({c['worker_us_p10']:.0f}-{c['worker_us_p90']:.0f})"
        lines.append(f"{c['batch']:>6}{c['context']:>9}  {spread:>22}{c['models_us']:>12.0f}{c['round_us']:>11.0f}")
    return "\n".join(lines)
