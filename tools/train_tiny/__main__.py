# SPDX-License-Identifier: Apache-2.0
"""Trains the tiny DeepSeek-V4 model with its MTP layer and writes it in the official format.

    python tools/train_tiny --work DIR --out DIR --minutes 70      # Target and MTP layer together
    python tools/train_tiny --work DIR --out DIR --phase indexer   # then the C4 layers' indexers
    python tools/train_tiny --work DIR --out DIR --minutes 30 --phase mtp --own-tokens 1000000 \
        --length 128 --batch 16 --mtp-rows 16 --mtp-chunk 4   # MTP layer only, on the Target's own text
    python tools/train_tiny --work DIR --out DIR --phase eval      # write and measure

Each call resumes from the checkpoint of its phase in the work directory if there is one.
`torchrun --nproc-per-node 2 tools/train_tiny ...` trains with two single-threaded processes, each
on its own batches. Needs torch, safetensors, tokenizers, numpy and a C++ compiler; --own-tokens needs dsv4spec itself.
"""
import argparse

import torch

import indexer
from trainer import Trainer


def arguments():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--work", required=True, help="checkpoints and caches")
    p.add_argument("--out", required=True, help="where the model directory is written")
    p.add_argument("--phase", choices=("joint", "mtp", "indexer", "eval"), default="joint")
    p.add_argument("--minutes", type=float, default=70)
    p.add_argument("--steps", type=int, default=0, help="instead of --minutes")
    p.add_argument("--batch", type=int, default=4, help="windows per process and step")
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--mtp-rows", type=int, default=4, help="windows that also train the MTP layer")
    p.add_argument("--mtp-chunk", type=int, default=1, help="windows per MTP pass")
    p.add_argument("--mtp-weight", type=float, default=0.7, help="of the mean draft loss")
    p.add_argument("--own-tokens", type=int, default=0,
                   help="phase mtp: train on this many tokens of the Target's own greedy text")
    p.add_argument("--teacher-power", type=float, default=1.0,
                   help="the drafts' teacher is the Target's distribution to this power")
    p.add_argument("--lr-matrix", type=float, default=0.03)
    p.add_argument("--lr-other", type=float, default=3e-3)
    p.add_argument("--decay", type=float, default=0.6, help="share with a falling learning rate")
    p.add_argument("--test-every", type=float, default=10, help="minutes")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--eager", action="store_true", help="no torch.compile")
    args = p.parse_args()
    args.eager |= args.phase in ("indexer", "eval")
    return args


def main():
    args = arguments()
    trainer = Trainer(args)
    if args.phase == "indexer":
        indexer.train(trainer.model, trainer.batches)
        state = {k: v for k, v in trainer.model.state_dict().items() if ".indexer." in k}
        torch.save(state, trainer.work / "indexer.pt")
        return
    if args.phase != "eval":
        trainer.run()
    if trainer.rank == 0:
        trainer.report()


if __name__ == "__main__":
    main()
