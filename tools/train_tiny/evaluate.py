# SPDX-License-Identifier: Apache-2.0
"""Bits per character on held-out text, and acceptance over real greedy draft / verify rounds."""
import math

import torch
import torch.nn.functional as F


def bits_per_character(model, held, length=512, stride=256):
    """All held-out documents as one stream (bos text eos bos text eos ...), in overlapping windows.
    Every token is scored once, with at least length - stride tokens of context (less at the start).
    Bits of all tokens, bos and eos included, over the characters of the texts."""
    stream = torch.tensor([t for _, _, ids in held for t in (0, *ids, 1)])
    chars, bits = sum(len(text) for _, text, _ in held), 0.0
    starts = list(range(0, len(stream) - 1, stride))
    with torch.no_grad():
        for at in range(0, len(starts), 8):
            part, back = starts[at:at + 8], length - stride
            chunk = [stream[max(s - back, 0):s + stride + 1] for s in part]
            new = [min(stride, len(stream) - 1 - s) for s in part]
            ids = torch.stack([F.pad(c, (0, length + 1 - len(c))) for c in chunk])
            logits = model.logits(model.target(ids[:, :-1])).view(len(chunk), length, -1)
            for row, c, n, out in zip(ids, chunk, new, logits):
                last = len(c) - 1
                bits += F.cross_entropy(out[last - n:last], row[1 + last - n:1 + last],
                                        reduction="sum").item() / math.log(2)
    return bits / chars


def _hidden(model, rows):
    """Target streams and greedy next tokens of ragged token rows: lists of [n, hc, d] and [n]."""
    width = -(-max(map(len, rows)) // 128) * 128
    ids = torch.tensor([r + [0] * (width - len(r)) for r in rows])
    res = model.target(ids)
    best = model.logits(res).argmax(-1).view(len(rows), width)
    return res.view(len(rows), width, *res.shape[1:]), best


def acceptance(model, prompts, new_tokens=64, steps=3):
    """Greedy draft / verify rounds by whole-sequence forwards. Returns (position rates, tokens per
    round, outputs). Rate j: rounds in which drafts 1..j were all accepted, over all rounds."""
    rows = [list(p) for p in prompts]
    start, counts, rounds, tokens = [len(r) for r in rows], [0] * steps, 0, 0
    with torch.no_grad():
        res, best = _hidden(model, rows)
        for i, r in enumerate(rows):
            r.append(best[i, len(r) - 1].item())
        while True:
            live = [i for i, r in enumerate(rows) if len(r) - start[i] < new_tokens]
            if not live:
                break
            drafts = _draft(model, res[live], [rows[i] for i in live], steps)
            for i, d in zip(live, drafts):
                rows[i] = rows[i] + d
            res_live, best = _hidden(model, [rows[i] for i in live])
            width = res_live.shape[1]
            if width != res.shape[1]:
                res = F.pad(res, (0, 0, 0, 0, 0, width - res.shape[1]))  # negative: cuts
            res[live] = res_live
            for k, i in enumerate(live):
                base = len(rows[i]) - steps  # the bonus token sits at base - 1
                n = 0
                while n < steps and rows[i][base + n] == best[k, base + n - 1].item():
                    counts[n] += 1
                    n += 1
                rows[i] = rows[i][:base + n] + [best[k, base + n - 1].item()]
                rounds, tokens = rounds + 1, tokens + n + 1
    return [c / rounds for c in counts], tokens / rounds, [r[s:] for r, s in zip(rows, start)]


def _draft(model, res, rows, steps):
    """Greedy drafts after rows whose last token (the bonus) has no Target row yet."""
    b, width = res.shape[:2]
    last = torch.tensor([len(r) - 2 for r in rows])
    line = torch.tensor([r[1:] + [0] * (width - len(r) + 1) for r in rows])
    ids, out = [line], []
    pick = torch.arange(b)
    chain = model.draft(res.flatten(0, 1), _Growing(ids))
    for step in range(steps):
        streams = next(chain).view(b, width, *res.shape[2:])[pick, last]
        token = model.logits(streams, model.mtp.hc_head).argmax(-1)
        out.append(token)
        ids.append(torch.zeros_like(line).index_put((pick, last), token))
    return torch.stack(out, 1).tolist()


class _Growing:
    """Iterates a list that its consumer is still appending to."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        at = 0
        while at < len(self.items):
            yield self.items[at]
            at += 1


def pick_prompts(held, count=24, length=48):
    """Starts of paragraphs of held-out documents, spread evenly over the held-out text."""
    stream = [t for _, _, ids in held for t in (0, *ids, 1)]
    step = (len(stream) - length) // count
    return [stream[i * step:i * step + length] for i in range(count)]
