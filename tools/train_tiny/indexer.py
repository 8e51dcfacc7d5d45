# SPDX-License-Identifier: Apache-2.0
"""Last small phase: the C4 layers' indexers learn where their attention looks, the rest is frozen.

Choosing the top entries has no gradient, so that the language model loss never reaches the indexer.
As in the published recipe, its scores are fitted to the attention mass that all heads together give
to every entry.
"""
import torch


def train(model, batches, steps=100, length=1024, lr=4e-3):
    layers = [layer.attn for layer in model.layers if layer.attn.indexer is not None]
    params = [p for attn in layers for p in attn.indexer.parameters()]
    opt = torch.optim.Adam(params, lr=lr, betas=(0.9, 0.95))
    kept = [attn.topk for attn in layers]
    for attn in layers:
        attn.topk = length  # while learning, all entries stay visible
    tables = model.tables(length, True)
    complete = (torch.arange(1, length + 1) // 4)[:, None]
    hidden = torch.arange(length // 4)[None] >= complete
    rows = complete[:, 0] >= 2
    for step in range(steps):
        ids = torch.from_numpy(batches.next(1, length))[:, :length].contiguous()
        for attn in layers:
            attn.lesson = []
        with torch.no_grad():
            model.target(ids)
        loss = 0.0
        for attn in layers:
            (x, qr, mass), = attn.lesson
            score = attn.indexer(x, qr, *tables).masked_fill(hidden, -1e30)[:, rows].log_softmax(-1)
            mass = mass[:, rows] / mass[:, rows].sum(-1, keepdim=True)
            gap = mass.clamp(min=1e-20).log() - score
            loss = loss + (mass * gap).sum(-1).mean()
        loss.backward()
        for group in opt.param_groups:
            group["lr"] = lr * min(1.0, 2 * (1 - step / steps))
        opt.step()
        opt.zero_grad()
        if step % 20 == 0 or step == steps - 1:
            mean = loss.item() / len(layers)
            print(f"indexer step {step}: divergence per layer {mean:.4f}", flush=True)
    for attn, topk in zip(layers, kept):
        attn.topk, attn.lesson = topk, None
