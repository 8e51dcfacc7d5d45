# SPDX-License-Identifier: Apache-2.0
"""Muon for the hidden matrices (batched by shape), AdamW for everything else."""
import torch

MATRICES = ("wq_a", "wq_b", "wkv", "wgate", "wo_a", "wo_b", "w1", "w2", "w3", "e_proj", "h_proj")


@torch.no_grad()
def orthogonalise(g, steps=5):
    """Newton-Schulz iteration of Muon on [N, rows, cols]: all singular values towards one."""
    flip = g.shape[1] > g.shape[2]
    x = (g.transpose(1, 2) if flip else g).bfloat16()
    x = x / (x.float().flatten(1).norm(dim=1).clamp(min=1e-7)[:, None, None]).bfloat16()
    for _ in range(steps):
        a = x @ x.transpose(1, 2)
        x = 3.4445 * x + (2.0315 * (a @ a) - 4.7750 * a) @ x
    return (x.transpose(1, 2) if flip else x).float()


class Muon:
    def __init__(self, params, lr=0.02, momentum=0.95, decay=0.1):
        self.lr, self.momentum, self.decay, self.groups = lr, momentum, decay, {}
        for p in params:
            self.groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.state = {k: torch.zeros(sum(p.numel() for p in v) // (k[0] * k[1]), *k)
                      for k, v in self.groups.items()}

    @torch.no_grad()
    def step(self, scale):
        lr = self.lr * scale
        for shape, params in self.groups.items():
            grad = torch.cat([p.grad.view(-1, *shape) for p in params])
            buf = self.state[shape].lerp_(grad, 1 - self.momentum)
            update = orthogonalise(grad.lerp(buf, self.momentum))
            update = update * max(1, shape[0] / shape[1]) ** 0.5
            counts = [p.numel() // (shape[0] * shape[1]) for p in params]
            for p, u in zip(params, update.split(counts)):
                p.mul_(1 - lr * self.decay).add_(u.view_as(p), alpha=-lr)


class Optimizers:
    """Both optimizers over `named`, with the gradients clipped to a total norm of 1."""

    def __init__(self, named, lr_matrix, lr_other):
        named = [(n, p) for n, p in named if "indexer" not in n]
        self.params = [p for _, p in named]
        hidden = [n.rsplit(".", 1)[-1] in MATRICES for n, _ in named]
        self.muon = Muon([p for (_, p), h in zip(named, hidden) if h], lr_matrix)
        other = [(n, p) for (n, p), h in zip(named, hidden) if not h]
        tables = [p for n, p in other if n in ("embed", "head")]
        small = [p for n, p in other if n not in ("embed", "head")]
        self.base = [lr_other * 2, lr_other]
        groups = [{"params": tables, "weight_decay": 0.01}, {"params": small, "weight_decay": 0.0}]
        self.adam = torch.optim.AdamW(groups, lr=lr_other, betas=(0.9, 0.95), fused=True)

    def step(self, scale):
        torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        for group, lr in zip(self.adam.param_groups, self.base):
            group["lr"] = lr * scale
        self.adam.step()
        self.muon.step(scale)
        for p in self.params:
            p.grad = None

    def state_dict(self):
        return {"muon": self.muon.state, "adam": self.adam.state_dict()}

    def load_state_dict(self, state):
        self.muon.state = state["muon"]
        self.adam.load_state_dict(state["adam"])
