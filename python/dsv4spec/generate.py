# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec generate``: decode prompts with a checkpoint."""
from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import warnings

log = logging.getLogger("dsv4spec")
MOST_AT_ONCE = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="DIR",
                        help="checkpoint folder: config.json, *.safetensors, and tokenizer.json for text")
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", nargs="+", metavar="TEXT", help="one text or more, decoded as one batch")
    prompts.add_argument("--prompt-ids", metavar="FILE", help="JSON list of token-id lists (needs no tokenizer)")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda", "npu"))
    add_backend_arguments(parser)
    parser.add_argument("--speculative-algorithm", choices=("NEXTN", "EAGLE", "none"),
                        help="default: NEXTN if the checkpoint has mtp.0, else none")
    parser.add_argument("--speculative-num-steps", type=int, metavar="N", help="draft tokens per round (3)")
    parser.add_argument("--speculative-eagle-topk", type=int, metavar="N", help="branches of the draft tree (1)")
    parser.add_argument("--speculative-num-draft-tokens", type=int, metavar="N",
                        help="rows of the verify window, root included (4)")
    parser.add_argument("--speculative-draft-p-min", type=float, metavar="P",
                        help="draft on while NextN gives its last draft at least this probability (0: always)")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"),
                        help="auto: float32 on the CPU, the checkpoint's on devices")
    parser.add_argument("--page-size", type=int, default=64, metavar="N", help="tokens of a window page")
    parser.add_argument("--ignore-eos", action="store_true")
    parser.add_argument("--stream", action="store_true", help="write tokens as they are confirmed")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (a stream then goes to stderr)")


def add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", metavar="NAME", help="run every op on this backend (see: dsv4spec info)")
    parser.add_argument("--missing", choices=("error", "reference"), default="error",
                        help="an op without a kernel raises (error), or runs its reference, and is listed")
    parser.add_argument("--disable-cuda-graph", action="store_true", help="run every round op by op on a CUDA device")
    parser.add_argument("--cuda-graph-max-bs", type=positive, metavar="N", help="largest batch captured as CUDA graphs")
    parser.add_argument("--cuda-graph-bs", type=positive, nargs="+", metavar="N", help="batch sizes to capture")
    parser.add_argument("--disable-cuda-graph-padding", action="store_true", help="replay for captured sizes only")


def backend_options(args: argparse.Namespace) -> dict:
    """The Engine options that :func:`add_backend_arguments` reads."""
    return {name: getattr(args, name) for name in ("backend", "missing", "disable_cuda_graph", "cuda_graph_max_bs",
                                                   "cuda_graph_bs", "disable_cuda_graph_padding")}


def positive(text: str) -> int:
    """argparse type: an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


@contextlib.contextmanager
def logs_to_stderr():
    """Log lines and warnings as one line each on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("dsv4spec: %(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = lambda message, *_, **__: log.warning("warning: %s", message)
            yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def run(args: argparse.Namespace) -> int:
    with logs_to_stderr():
        try:
            return _run(args)
        except (ValueError, OSError, NotImplementedError, RuntimeError) as error:
            log.error("error: %s", error)
            return 1


def _run(args) -> int:
    from .engine import Engine, GenerationError
    from .request import SamplingParams

    params = SamplingParams(args.max_new_tokens, ignore_eos=args.ignore_eos)
    prompts = read_prompts(args)
    speculative = speculative_config(args)
    engine = Engine(args.model, speculative=speculative, dtype=args.dtype, device=args.device,
                    page_size=args.page_size, max_len=_max_len(args, prompts),
                    max_running_requests=min(len(prompts), MOST_AT_ONCE), **backend_options(args))
    if args.speculative_algorithm is None:
        log.info("speculative algorithm: %s", "NEXTN (the checkpoint has mtp.0)" if engine.speculative else
                 "none (the checkpoint has no mtp.0)")
    code, error = 0, None
    try:
        outputs = _stream(engine, prompts, params, args) if args.stream else engine.generate(prompts, params)
    except GenerationError as failed:
        outputs, error, code = failed.outputs, failed, 1
    metrics = engine.metrics()
    if args.json:
        json.dump(report(engine, outputs, metrics), sys.stdout)
        print()
    else:
        _print_human(engine, prompts, outputs, metrics, streamed=args.stream)
    if error:
        log.error("error: %s", error)
    return code


def read_prompts(args) -> list[list[int]]:
    """Token ids of all prompts. ValueError naming the option."""
    if args.prompt is not None:
        from .text import Tokenizer

        tokenizer = Tokenizer(args.model)
        return [tokenizer.encode(text) for text in args.prompt]
    try:
        with open(args.prompt_ids, encoding="utf-8") as file:
            prompts = json.load(file)
    except ValueError as error:
        raise ValueError(f"--prompt-ids: {args.prompt_ids}: is not JSON: {error}") from error
    good = isinstance(prompts, list) and prompts and all(
        isinstance(p, list) and p and all(isinstance(t, int) and not isinstance(t, bool) for t in p) for p in prompts)
    if not good:
        raise ValueError(f"--prompt-ids: {args.prompt_ids}: expected a JSON list of non-empty lists of token ids")
    return prompts


def speculative_config(args):
    """What Engine takes as ``speculative``: counts and algorithm of the options, checked in spec/options.py."""
    from .spec.options import SpeculativeConfig

    counts = {"num_steps": args.speculative_num_steps, "eagle_topk": args.speculative_eagle_topk,
              "num_draft_tokens": args.speculative_num_draft_tokens, "draft_p_min": args.speculative_draft_p_min}
    counts = {name: value for name, value in counts.items() if value is not None}
    given = [f"--speculative-{name.replace('_', '-')}" for name in counts]
    if args.speculative_algorithm == "none":
        if given:
            raise ValueError(f"{given[0]}: expected none with --speculative-algorithm none, got a count")
        return None
    if args.speculative_algorithm is None:
        if not _has_nextn(args.model):
            if given:
                log.warning("warning: %s has no effect: the checkpoint has no mtp.0", ", ".join(given))
            return None
        return SpeculativeConfig(**counts)
    return SpeculativeConfig(**counts, algorithm=args.speculative_algorithm)


def _has_nextn(directory: str) -> bool:
    from .models import Checkpoint
    from .models.weights import has_nextn

    return has_nextn(Checkpoint(directory))


def _max_len(args, prompts) -> int:
    from .models import DeepseekV4Config

    wanted = max(len(p) for p in prompts) + args.max_new_tokens
    return min(wanted, DeepseekV4Config.from_dir(args.model).max_position_embeddings)


def _stream(engine, prompts, params, args):
    """Write tokens as they come: one prompt's text as it grows, of several prompts one line a chunk."""
    from .render import Marker

    out = sys.stderr if args.json else sys.stdout
    markers = [Marker(out, engine.tokenizer) for _ in prompts]
    outputs = [None] * len(prompts)
    for chunk in engine.stream(prompts, params):
        if len(prompts) > 1:
            out.write(f"{chunk.index}: ")
        markers[chunk.index].write(chunk.token_ids, chunk.from_draft)
        if len(prompts) > 1 or chunk.output is not None:
            markers[chunk.index].end()
        if chunk.output is not None:
            outputs[chunk.index] = chunk.output
    from .engine import raise_errors

    return raise_errors(outputs)


def report(engine, outputs, metrics: dict) -> dict:
    """The object that ``--json`` prints."""
    spec = engine.speculative
    return {
        "outputs": [{"token_ids": o.token_ids, "text": o.text, "finish_reason": o.finish_reason,
                     "accept_lengths": o.accept_lengths, "from_draft": o.from_draft,
                     **({"error": o.error} if o.error else {})} for o in outputs],
        "metrics": metrics,
        "speculative": {"algorithm": spec.algorithm, "num_steps": spec.num_steps, "eagle_topk": spec.eagle_topk,
                        "num_draft_tokens": spec.num_draft_tokens, "draft_p_min": spec.draft_p_min} if spec else None,
        "backend": engine.backend, "missing": engine.missing, "device": str(engine.device),
        "dtype": str(engine.dtype).removeprefix("torch."),
    }


def _print_human(engine, prompts, outputs, metrics, *, streamed: bool) -> None:
    from .render import Marker, metric_rows, table

    marker = Marker(sys.stdout, engine.tokenizer)
    for i, (prompt, output) in enumerate(zip(prompts, outputs)):
        if not streamed:
            marker = Marker(sys.stdout, engine.tokenizer)
            shown = engine.tokenizer.decode(prompt) if engine.tokenizer is not None else " ".join(map(str, prompt))
            print(f"prompt {i}: {shown}")
            marker.write(output.token_ids, output.from_draft)
            marker.end()
        print(f"({output.finish_reason}, {len(output.token_ids)} tokens)")
    if engine.speculative:
        print(marker.legend)
    print(table(metric_rows(metrics)))
