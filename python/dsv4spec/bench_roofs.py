# SPDX-License-Identifier: Apache-2.0
"""What the machine can do, measured in the process and minute of the benchmark, and which of it binds a case."""
from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import torch

from . import ops
from .bench_timing import Clock

MIXED = "bf16+f32"  # the roof of products of which some are bfloat16, some float32


@dataclass(frozen=True)
class Roofs:
    """Rates of the fastest sample: what else runs on the machine only lowers them."""

    copy_bytes_per_s: float     # read and written together
    read_bytes_per_s: float
    float32_flops_per_s: float  # of a square matrix product
    bfloat16_flops_per_s: float
    call_s: float               # a call from Python of an op that has nothing to do

    def report(self) -> dict:
        return asdict(self)

    def floors(self, case) -> dict[str, float]:
        """Seconds that the case takes at each roof. Bytes go at the rate of reading if less than a quarter as many are
        written as read, else at that of a copy. Operations of two dtypes take their times one after the other."""
        memory = "read" if case.write < case.read / 4 else "copy"
        rate = self.read_bytes_per_s if memory == "read" else self.copy_bytes_per_s
        flops = {"bfloat16": self.bfloat16_flops_per_s, "float32": self.float32_flops_per_s}
        products = {dtype: count / flops[dtype] for dtype, count in case.flops_of.items()}
        name = next(iter(products)) if len(products) == 1 else MIXED
        return {memory: case.bytes / rate, name: sum(products.values()), "call": self.call_s}

    def binds(self, case) -> tuple[str, float]:
        """The roof that binds and its seconds."""
        floors = self.floors(case)
        name = max(floors, key=floors.get)
        return name, floors[name]

    def __str__(self) -> str:
        return (f"copy {self.copy_bytes_per_s / 1e9:.4g} GB/s, read {self.read_bytes_per_s / 1e9:.4g} GB/s, matrix product "
                f"{self.float32_flops_per_s / 1e12:.3g} TFLOP/s float32, {self.bfloat16_flops_per_s / 1e12:.3g} bfloat16, "
                f"call {1e6 * self.call_s:.2g} us")


def measure(clock: Clock, small: bool = False) -> Roofs:
    device = clock.device
    # Float32 values of four times the caches; on a CPU no larger than must be, so that a sample fits between other work.
    count = 1 << 20 if small else 1 << 28 if clock.cuda else clock.cache
    n = 256 if small else 8192 if clock.cuda else 768
    source = torch.ones(count, device=device)
    target = torch.empty_like(source)
    best = lambda call: min(clock.times({"": [call]})[""].seconds)  # noqa: E731
    copy = best(lambda: target.copy_(source))
    if device.type == "cpu":  # memcpy writes past the caches, which torch's copy does not
        threads = torch.get_num_threads()
        with ThreadPoolExecutor(threads) as pool:
            copy = min(copy, best(lambda: _memcpy(target, source, pool, threads)))
    read = min(best(lambda: source.sum()), best(lambda: torch.dot(source, source)), best(lambda: source.amax()))
    del source, target
    products = {}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(n, n, device=device).to(dtype)
        out = torch.empty_like(a)
        products[dtype] = 2 * n ** 3 / best(lambda: torch.mm(a, a, out=out))
    pages, none = torch.zeros(1, 1, 8, device=device), torch.zeros(0, dtype=torch.int64, device=device)
    call = best(lambda: ops.OPS["move_accepted_kv"].public(pages, none, none))
    return Roofs(8 * count / copy, 4 * count / read, products[torch.float32], products[torch.bfloat16], call)


def _memcpy(target: torch.Tensor, source: torch.Tensor, pool: ThreadPoolExecutor, parts: int) -> None:
    size = source.numel() * source.element_size()
    step = -(-size // parts // 64) * 64

    def part(start: int) -> None:  # ctypes lets other threads run meanwhile
        ctypes.memmove(target.data_ptr() + start, source.data_ptr() + start, min(step, size - start))

    list(pool.map(part, range(0, size, step)))
