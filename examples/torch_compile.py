# SPDX-License-Identifier: Apache-2.0
"""A decoder sub-layer of dsv4spec's ops under torch.compile(fullgraph=True): mHC around sliding-window attention over a
paged cache that the compiled code writes. Compiled and uncompiled runs, and the ops' definitions in torch, must agree.

    python torch_compile.py [BACKEND OF torch.compile]"""
import sys

import torch
from dsv4spec import ops, use_backend

T, STREAMS, WIDTH, HEADS, DIM, ROPE, PAGE, WINDOW = 3, 4, 64, 4, 32, 16, 4, 6


class SubLayer(torch.nn.Module):
    """One request of T new rows at positions 9, 10, 11; its earlier keys are in the cache."""

    def __init__(self):
        super().__init__()
        mix = (2 + STREAMS) * STREAMS
        for name, shape, size in (("fn", (mix, STREAMS * WIDTH), 0.05), ("base", (mix,), 1), ("scale", (3,), 1),
                                  ("norm", (WIDTH,), 1), ("kv_norm", (DIM,), 1), ("sink", (HEADS,), 1)):
            self.register_buffer(name, torch.randn(shape) * size)
        self.q, self.kv, self.o = (torch.nn.Linear(i, o, bias=False) for i, o in
                                   ((WIDTH, HEADS * DIM), (WIDTH, DIM), (HEADS * DIM, WIDTH)))
        angle = torch.arange(64.)[:, None] / 100 ** (torch.arange(ROPE // 2) * 2 / ROPE)
        self.register_buffer("cos_sin", torch.cat([angle.cos(), angle.sin()], 1))

    def forward(self, residual, positions, slots, pages, table, starts, lengths):
        x, post, comb = ops.mhc_pre(residual, self.fn, self.base, self.scale, norm_weight=self.norm, rms_eps=1e-6,
                                    hc_eps=1e-6, sinkhorn_iters=4)
        ops.swa_store_kv(self.kv(x), self.kv_norm, self.cos_sin, positions, slots, pages, eps=1e-6)
        q = ops.q_norm_rope(self.q(x).view(T, HEADS, DIM), self.cos_sin, positions, eps=1e-6)
        mixed = ops.swa_paged_attention(q, pages, table, starts, lengths, sink=self.sink, cos_sin=self.cos_sin,
                                        window=WINDOW, scale=DIM ** -0.5)
        return ops.mhc_post(self.o(mixed.flatten(1)), residual, post, comb)


def main(backend: str) -> int:
    torch.manual_seed(0)
    layer, cache = SubLayer(), torch.randn(6, PAGE, DIM)
    residual, table = torch.randn(T, STREAMS, WIDTH), torch.tensor([[4, 0, 2]])
    positions = torch.arange(9, 9 + T)
    slots = table[0, positions // PAGE] * PAGE + positions % PAGE

    def run(function):
        pages = cache.clone()
        with torch.no_grad():
            return function(residual, positions, slots, pages, table, torch.tensor([0, T]), torch.tensor([12])), pages

    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    results = {"eager": run(layer), f"torch.compile({backend})": run(compiled)}
    with use_backend("reference"):
        wanted = run(layer)
    wrong = 0
    for name, got in results.items():
        error = max(float((a - b).abs().max()) for a, b in zip(got, wanted))
        print(f"{name}: largest difference of output and cache from the definitions {error:.1e}")
        wrong += not error < 1e-4
    changed = int((wanted[1] != cache).any(-1).sum())
    print(f"rows of the cache that were written: {changed}")
    return int(wrong > 0 or changed != T)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "inductor"))
