# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec bench e2e``: tokens per second of the whole engine, on outputs that are checked to be equal.

Every repeat runs plain, speculative and (when installed) transformers' eager ``generate`` one after the other, so that
a change of the machine's speed meets all three; medians are reported. Rates include the prefill of a short prompt.
"""
from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import time

from ._files import check_writable, write_json
from .demo import ASSET, _first_difference
from .generate import add_backend_arguments, backend_options, log, logs_to_stderr, positive

PROMPTS = ("If the argument is", "An exception is raised when", "Return a list of", 'The "import" statement')
GAP = 1e-3  # two best logits nearer than this may fall either way in two right implementations (fp32)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="F", help="write the result to this file")
    parser.add_argument("--model", default=str(ASSET), metavar="DIR")
    parser.add_argument("--prompt", nargs="+", default=list(PROMPTS), metavar="TEXT", help="decoded one after the other")
    parser.add_argument("--max-new-tokens", type=int, default=96, metavar="N", help="for each prompt")
    parser.add_argument("--num-steps", type=int, default=3, metavar="N", help="most draft tokens per round (3)")
    parser.add_argument("--draft-p-min", type=float, default=0.0, metavar="P",
                        help="draft on while NextN gives its last draft at least this probability (0: always)")
    add_backend_arguments(parser)
    parser.add_argument("--repeats", type=positive, default=7, metavar="N", help="runs of each kind, by turns (7)")


def run(args: argparse.Namespace) -> int:
    with logs_to_stderr():
        try:
            if args.json:
                check_writable(args.json)
            result = measure(args)
        except (ValueError, OSError, RuntimeError) as error:
            log.error("error: %s", error)
            return 1
    print(json.dumps(result, indent=2))
    if args.json:
        write_json(args.json, result)
    return 0


def measure(args) -> dict:
    """All figures. RuntimeError if outputs differ: nothing is timed that is not right."""
    import torch

    from .bench_context import context_ratio
    from .engine import Engine
    from .placement import torch_threads
    from .request import SamplingParams
    from .spec.options import SpeculativeConfig
    from .text import Tokenizer

    params = SamplingParams(args.max_new_tokens, ignore_eos=True)
    options = dict(max_running_requests=1, **backend_options(args))
    plain = Engine(args.model, speculative=None, **options)
    drafted = Engine(args.model, speculative=SpeculativeConfig(args.num_steps, draft_p_min=args.draft_p_min), **options)
    tokenizer = Tokenizer(args.model)
    prompts = [tokenizer.encode(text) for text in args.prompt]

    def ours(engine):
        return lambda: [engine.generate([prompt], params)[0].token_ids for prompt in prompts]

    runs = {"plain": ours(plain), "speculative": ours(drafted)}
    if importlib.util.find_spec("transformers"):
        theirs = Transformers(args.model, args.max_new_tokens)
        runs["transformers"] = lambda: [theirs.generate(prompt) for prompt in prompts]
    else:
        log.info("transformers is not installed: its figures are null")
    tokens = {name: once() for name, once in runs.items()}  # warm-up
    _refuse_difference("speculative", tokens["speculative"], tokens["plain"])
    near = None
    if "transformers" in runs:
        near = sum(map(theirs.check, prompts, tokens["transformers"], tokens["plain"]))
    seconds = {name: [] for name in runs}
    drafted.reset_metrics()
    for _ in range(args.repeats):
        for name, once in runs.items():
            start = time.perf_counter()
            got = once()
            seconds[name].append(time.perf_counter() - start)
            _refuse_difference(f"{name}, repeated", got, tokens[name])
    total = args.max_new_tokens * len(prompts)
    rate = {name: total / statistics.median(s) for name, s in seconds.items()}
    metrics = drafted.metrics()
    with plain._routed(), torch_threads(plain.config, plain.device):
        ratio, threads = context_ratio(plain.config, plain.dtype, plain.device), torch.get_num_threads()
    return {
        "plain_tokens_per_s": rate["plain"],
        "speculative_tokens_per_s": rate["speculative"],
        "speculative_over_plain": rate["speculative"] / rate["plain"],
        "transformers_tokens_per_s": rate.get("transformers"),
        "plain_over_transformers": rate["plain"] / rate["transformers"] if "transformers" in rate else None,
        "tokens_per_round": metrics["accept_length"],
        "acceptance_per_position": metrics["acceptance_per_position"],
        "swa_decode_32k_over_1k": ratio,
        "seconds": seconds,
        "near_ties_against_transformers": near,
        "backend": plain.backend, "missing": plain.missing, "reference_ops": metrics["reference_ops"],
        "prompts": args.prompt, "new_tokens_each": args.max_new_tokens, "num_steps": args.num_steps,
        "draft_p_min": args.draft_p_min,
        "dtype": str(plain.dtype).removeprefix("torch."), "device": str(plain.device),
        "torch_threads": threads, "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
    }


def _refuse_difference(what: str, got: list[list[int]], want: list[list[int]]) -> None:
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if a != b:
            raise RuntimeError(f"bench e2e: {what}: tokens of prompt {i} differ from token {_first_difference(a, b)} on; "
                               "nothing is reported for outputs that are not equal")


class Transformers:
    """transformers' eager model on the same files, float32."""

    def __init__(self, directory: str, new_tokens: int):
        import torch
        import transformers

        from .models import DeepseekV4Config

        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                                       attn_implementation="eager").eval()
        self.new_tokens = new_tokens
        self.config = DeepseekV4Config.from_dir(directory)

    def generate(self, prompt: list[int]) -> list[int]:
        import torch

        from .placement import torch_threads

        ids = torch.tensor([prompt])
        with torch.inference_mode(), torch_threads(self.config, ids.device):  # as many threads as the engine has
            out = self.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                                      max_new_tokens=self.new_tokens, eos_token_id=None, pad_token_id=0)
        return out[0, len(prompt):].tolist()

    def check(self, prompt: list[int], theirs: list[int], ours: list[int]) -> int:
        """0 if the tokens are equal, 1 if they part at two nearly equal logits; RuntimeError otherwise."""
        import torch

        if theirs == ours:
            return 0
        at = _first_difference(theirs, ours)
        with torch.inference_mode():
            logits = self.model(input_ids=torch.tensor([prompt + theirs[:at]]), use_cache=False).logits[0, -1]
            best = logits.topk(2).values.tolist()
        if best[0] - best[1] >= GAP:
            _refuse_difference("transformers", [theirs], [ours])
        log.info("transformers parts from us at token %d, where the two best logits differ by %.1e", at,
                 best[0] - best[1])
        return 1
