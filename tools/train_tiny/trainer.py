# SPDX-License-Identifier: Apache-2.0
"""The training loop: losses, schedule, checkpoints, reports."""
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

import card
import data
import evaluate
import export
import own_text
import tiny
from optim import Optimizers


def token_loss(normed, head, targets):
    return F.cross_entropy(F.linear(normed, head).float(), targets)


def soft_loss(normed, head, teacher, weight):
    """Cross-entropy against the Target's distribution; rows of weight 0 have no teacher."""
    logp = F.linear(normed, head).float().log_softmax(-1)
    return -((teacher * logp).sum(-1) * weight).sum() / weight.sum()


class Trainer:
    def __init__(self, args):
        self.args, self.work = args, Path(args.work)
        self.rank = int(os.environ.get("RANK", 0))
        self.world = int(os.environ.get("WORLD_SIZE", 1))
        if self.world > 1:
            dist.init_process_group("gloo")
        self.work.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(args.seed)
        self.tok, train, self.held = data.prepare(self.work, 1024)
        print(f"training tokens {sum(map(len, train))}, held-out {len(self.held)} documents of "
              f"{sum(len(t) for _, t, _ in self.held)} characters", flush=True)
        self.model = tiny.Tiny(tiny.config())
        named = list(self.model.named_parameters())
        if args.phase == "mtp":
            named = [(n, p) for n, p in named if n.startswith("mtp.")]
        self.opt = Optimizers(named, args.lr_matrix, args.lr_other)
        self.step_no, self.seconds, self.tokens, self.history = 0, 0.0, 0, []
        self.resume()
        seed = args.seed + 7 * self.step_no + 1000003 * self.rank
        self.batches = self.own_text(train, seed) if args.own_tokens else data.Batches(train, seed)
        self.ce, self.soft = token_loss, soft_loss
        if not args.eager:
            tiny.compile_parts(self.model)
            self.ce = torch.compile(token_loss, dynamic=False)
            self.soft = torch.compile(soft_loss, dynamic=False)

    def resume(self):
        names = ["joint"] if self.args.phase == "joint" else ["mtp", "joint"]
        found = [self.work / f"{n}.pt" for n in names if (self.work / f"{n}.pt").exists()]
        if not found:
            return
        state = torch.load(found[0])
        self.model.load_state_dict(state["model"])
        self.history = state.get("history", [])
        if found[0].stem == self.args.phase:
            self.history = self.history[:-1]
            self.opt.load_state_dict(state["opt"])
            self.step_no, self.seconds, self.tokens = state["at"]
        side = self.work / "indexer.pt"
        if side.exists():
            self.model.load_state_dict(torch.load(side), strict=False)
        print(f"resumed at step {self.step_no}, {self.seconds / 60:.1f} min", flush=True)

    def own_text(self, train, seed):
        """Batches of what the Target, as it ships, writes itself (rank 0 makes the text)."""
        if self.args.phase != "mtp":
            raise ValueError("--own-tokens is for --phase mtp: the Target must be finished")
        if self.rank == 0:
            export.save(self.model, self.work / "target", self.tok)
            own_text.prepare(self.work, self.work / "target", train, self.args.own_tokens)
        if self.world > 1:
            dist.barrier()
        rows = own_text.prepare(self.work, self.work / "target", train, self.args.own_tokens)
        return own_text.Rows(rows, seed)

    def seen(self):
        """Tokens and minutes of each training phase so far."""
        now = f"{self.tokens / 1e6:.1f} M in {self.seconds / 60:.0f} minutes"
        return [*self.history, now] if self.step_no else self.history

    def checkpoint(self):
        state = {"model": self.model.state_dict(), "opt": self.opt.state_dict(),
                 "at": (self.step_no, self.seconds, self.tokens), "history": self.seen()}
        torch.save(state, self.work / "tmp.pt")
        (self.work / "tmp.pt").replace(self.work / f"{self.args.phase}.pt")

    def draft_losses(self, res, logits, rows, length):
        """Three recursive steps; the teacher of step j is the Target row j + 1 further on."""
        b = rows.shape[0]
        teacher = (self.args.teacher_power * logits).softmax(-1).view(b, length, -1)
        steps = [rows[:, 1 + j:1 + j + length] for j in range(3)]
        head, losses = self.model.head.detach(), []
        for j, streams in enumerate(self.model.draft(res, steps)):
            shifted = F.pad(teacher[:, 1 + j:], (0, 0, 0, 1 + j)).flatten(0, 1)
            weight = torch.ones(b, length)
            weight[:, length - 1 - j:] = 0
            normed = self.model.mtp.hc_head(streams)
            losses.append(self.soft(normed, head, shifted, weight.flatten()))
        return losses

    def train_step(self, scale):
        a, model = self.args, self.model
        rows = torch.from_numpy(self.batches.next(a.batch, a.length))
        with torch.autocast("cpu", torch.bfloat16):
            # with gradients in both phases, so that one set of compiled graphs serves both
            res = model.target(rows[:, :a.length].contiguous())
            normed = model.hc_head(res)
            loss = self.ce(normed, model.head, rows[:, 1:a.length + 1].flatten())
            res = (res.detach() if a.phase == "mtp" else res).unflatten(0, (a.batch, a.length))
            normed = normed.detach().unflatten(0, (a.batch, a.length))
            drafts, starts = [0.0] * 3, range(0, a.mtp_rows, a.mtp_chunk)
            for at in starts:
                part = slice(at, at + a.mtp_chunk)
                with torch.no_grad():
                    logits = F.linear(normed[part], model.head).float()
                losses = self.draft_losses(res[part].flatten(0, 1), logits, rows[part], a.length)
                drafts = [d + x / len(starts) for d, x in zip(drafts, losses)]
        total = sum(drafts) / 3
        (total if a.phase == "mtp" else loss + a.mtp_weight * total).backward()
        if self.world > 1:
            self.average([p.grad for p in self.opt.params] + [m.load for m in self.moving()])
        self.opt.step(scale)
        self.balance()
        return [loss.item(), *(d.item() for d in drafts)]

    def average(self, tensors):
        flat = torch.cat([t.flatten() for t in tensors])
        dist.all_reduce(flat)
        for t, f in zip(tensors, (flat / self.world).split([t.numel() for t in tensors])):
            t.copy_(f.view_as(t))

    def moving(self):
        """The MoE blocks that this phase trains."""
        target = [] if self.args.phase == "mtp" else list(self.model.layers)
        return [layer.ffn for layer in (*target, self.model.mtp.layer)]

    def balance(self):
        """Auxiliary-free balancing: the correction bias of under-used experts grows."""
        for moe in self.moving():
            if moe.tid2eid is None:
                moe.bias.add_(torch.sign(moe.load.mean() - moe.load), alpha=1e-3)
            moe.load.zero_()

    def schedule(self):
        a = self.args
        progress = self.step_no / a.steps if a.steps else self.seconds / (60 * a.minutes)
        warm = min(1.0, (self.step_no + 1) / 60)
        scale = warm * min(1.0, max(0.0, (1 - progress) / a.decay))
        if self.world > 1:  # the clocks of the processes differ
            common = torch.tensor([progress, scale])
            dist.broadcast(common, 0)
            progress, scale = common.tolist()
        return progress, scale

    def run(self):
        a, mean, first = self.args, None, self.step_no
        self.model.train()
        saved = tested = mark = time.time()
        while True:
            progress, scale = self.schedule()
            if progress >= 1:
                break
            values = self.train_step(scale)
            now = time.time()
            self.step_no += 1
            self.tokens += a.batch * a.length * self.world
            if self.step_no > first + 3:  # compilation is not training time
                self.seconds += min(now - mark, 20)
            mark = now
            mean = values if mean is None else [0.98 * m + 0.02 * v for m, v in zip(mean, values)]
            if self.rank == 0:
                if self.step_no % 50 == 0:
                    self.show(scale, mean)
                if now - saved > 180:
                    self.checkpoint()
                    saved = time.time()
                if now - tested > a.test_every * 60:
                    self.report(quick=True)
                    tested = time.time()
                mark += time.time() - now
        if self.rank == 0:
            self.checkpoint()

    def show(self, scale, mean):
        print(f"{self.step_no} {self.seconds / 60:.1f} min {self.tokens / 1e6:.2f} M tokens "
              f"{self.tokens / max(self.seconds, 1):.0f}/s pass {self.batches.passes} "
              f"scale {scale:.3f} loss " + " ".join(f"{m:.4f}" for m in mean), flush=True)

    def report(self, quick=False):
        """Numbers of the model after rounding to the shipped dtypes."""
        export.save(self.model, self.args.out, self.tok)
        model = tiny.Tiny(tiny.config()).eval()
        export.load(model, self.args.out)
        held = self.held[::2] if quick else self.held
        bits = evaluate.bits_per_character(model, held, 512, 512 if quick else 256)
        note = " (half of the text)" if quick else ""
        print(f"held-out bits per character {bits:.4f}{note}", flush=True)
        if quick:
            return
        prompts, new = evaluate.pick_prompts(self.held, 24), 64
        rates, per_round, texts = evaluate.acceptance(model, prompts, new)
        rates = " ".join(f"{r:.3f}" for r in rates)
        print(f"acceptance by position {rates}; tokens per round {per_round:.3f} "
              f"({len(prompts)} prompts)", flush=True)
        card.write(self.args.out, model, ", then ".join(self.seen()), self.held, bits=bits,
                   rates=rates, per_round=per_round, prompts=len(prompts),
                   prompt_tokens=len(prompts[0]), new_tokens=new)
        for p, t in list(zip(prompts, texts))[:8]:
            print(f"PROMPT {self.tok.decode(p)!r}\n  -> {self.tok.decode(t)!r}", flush=True)
