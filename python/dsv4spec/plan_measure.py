# SPDX-License-Identifier: Apache-2.0
"""Acceptance and costs for ``dsv4spec plan``, counted and timed by the engine on the CPU, where a phase's host time is the
time of its forwards."""
from __future__ import annotations

import statistics
import time
from typing import Sequence

from .bench_e2e import PROMPTS
from .plan_model import conditional

REPEATS = 3


def measure(directory: str, batches: Sequence[int], steps: int, new_tokens: int) -> dict:
    """With 0 (plain) to ``steps`` drafts a round at each batch size, by turns, medians of REPEATS runs.

    Returns:
        ``accept`` per position over all runs; ``costs`` rows as plan_model.Costs; ``runs``: the speed-up of whole runs,
        prefill included; ``model``.

    Raises:
        ValueError: the checkpoint has no NextN layer, or cannot be loaded; fewer than two tokens. RuntimeError: a run's tokens are not those of
        plain decoding.
    """
    if new_tokens < 2:  # the first one comes from the prefill
        raise ValueError(f"--max-new-tokens: expected at least 2, so that there is a decode step to measure, got {new_tokens}")
    engines = {g: _engine(directory, g, max(batches), new_tokens) for g in range(steps + 1)}
    tokenizer = engines[0].tokenizer
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    drafted, accepted = [0] * steps, [0] * steps
    costs, runs = [], []
    for batch in batches:
        asked = [prompts[i % len(prompts)] for i in range(batch)]
        seen = {g: [] for g in engines}
        for repeat in range(REPEATS + 1):  # the first warms up
            want = None
            for g, engine in engines.items():
                tokens, figures = _run(engine, asked, new_tokens)
                want = want or tokens
                if tokens != want:
                    raise RuntimeError(f"--measure: with {g} drafts at batch {batch} the tokens are not those of plain "
                                       "decoding")
                seen[g] += [figures] if repeat else []
        for figures in seen[steps]:
            drafted = [a + b for a, b in zip(drafted, figures["drafted"])]
            accepted = [a + b for a, b in zip(accepted, figures["accepted"])]
        middle = lambda g, key: statistics.median(f[key] for f in seen[g])  # noqa: E731
        decode = middle(0, "decode")
        costs.append({"batch": batch, "draft": middle(steps, "draft") / decode,
                      "verify": [middle(g, "verify") / decode for g in range(1, steps + 1)], "decode_ms": 1e3 * decode})
        runs.append({"batch": batch, "speedups": [middle(0, "run") / middle(g, "run") for g in range(1, steps + 1)]})
    return {"model": str(directory), "accept": conditional(drafted, accepted) or [0.0], "costs": costs, "runs": runs}


def _engine(directory, steps: int, batch: int, new_tokens: int):
    from .engine import Engine
    from .spec.options import SpeculativeConfig

    return Engine(directory, speculative=SpeculativeConfig(steps) if steps else None, device="cpu",
                  max_running_requests=batch, max_len=new_tokens + 512)


def _run(engine, prompts, new_tokens: int) -> tuple[list, dict]:
    """Tokens, and seconds of a forward by kind."""
    from .request import SamplingParams

    engine.reset_metrics()
    start = time.perf_counter()
    outputs = engine.generate(prompts, SamplingParams(new_tokens, ignore_eos=True))
    seconds, metrics = time.perf_counter() - start, engine.metrics()
    spent, forwards = metrics["time_s"], metrics["forwards"]
    nextn = forwards["nextn_extend"] + forwards["nextn_decode"]
    return [o.token_ids for o in outputs], {
        "run": seconds, "decode": spent["decode"] / max(forwards["target_decode"], 1),
        "verify": spent["verify"] / max(forwards["target_verify"], 1),
        "draft": (spent["draft"] + spent["extend"]) / max(nextn, 1),
        "drafted": metrics["drafted_per_position"], "accepted": metrics["accepted_per_position"]}
