# SPDX-License-Identifier: Apache-2.0
"""Cycles of a call on one named device, modelled from what an emulator counted: no measurement, but good to compare
two versions of a kernel, and to see which resource one leans on. docs/benchmarks.md says where each constant is from,
and what no emulator sees.

A kernel takes what comes one after the other (``serial``) and besides it the longest of what goes on side by side
(``parallel``); a call takes the sum of its kernels. Resources of the cores are busy for amount / rate of the whole
device, times what the core with the most blocks has over an even share."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

SECTOR = 32  # bytes
MMA_FLOPS = 2 * 16 * 8 * 16
INTO, OUT_OF = ("MTE2",), ("MTE3", "FIX")  # pipes between global and local memory


@dataclass(frozen=True)
class Device:
    name: str
    clock: float        # Hz
    launch: float       # seconds
    memory: float       # bytes/s, read and written together, as the next
    cache: float        # bytes/s of the second-level cache
    products: float     # flop/s of the matrix units, bf16
    arithmetic: float   # flop/s of the others, fp32
    cores: int

    def __str__(self):
        return f"{self.name} at {self.clock / 1e9:.2f} GHz"

    def cycles(self, amount: float, rate: float) -> float:
        return amount / rate * self.clock


# 2/3 of the tensor cores' 989 TFLOP/s: what mma.sync gets of it.
H200 = Device("H200", 1.98e9, 3000 / 1.98e9, 4.8e12, 6.65e12, 2 / 3 * 989e12, 67e12, 132)
THREADS, SHARED, BLOCKS = 2048, 228 * 1024, 32  # of a multiprocessor; a block takes 1 KB of shared memory more
GLOBAL_CYCLES, SHARED_CYCLES, REMOTE_CYCLES = 472, 29, 180  # latency of memory, of shared memory, of another block's

# 24 cube cores of 16 x 16 x 16 multiply-adds a cycle, 48 vector cores of 64 lanes.
ATLAS_A2 = Device("Atlas A2", 1.8e9, 20e-6, 1.8e12, 7e12, 24 * 2 * 16 ** 3 * 1.8e9, 48 * 2 * 64 * 1.8e9, 24)
VECTOR_CORES = 48


@dataclass(frozen=True)
class Kernel:
    """All launches of one kernel in a call of an op."""

    name: str
    launches: int
    blocks: int
    read: float                   # bytes that leave the L1, or go from tensors to local memory
    written: float
    memory: float                 # bytes that the model has memory move, and the second-level cache
    cache: float
    serial: dict[str, float]      # cycles by cause
    parallel: dict[str, float]
    counts: dict                  # as the emulator gives them

    @property
    def parts(self) -> dict[str, float]:
        """Cycles by cause, but for what others hide: they add up to all of them."""
        longest = max(self.parallel, key=self.parallel.get)
        return self.serial | {longest: self.parallel[longest]}


@dataclass(frozen=True)
class Cost:
    device: Device
    kernels: list[Kernel]

    def total(self, name: str) -> float:
        return sum(getattr(kernel, name) for kernel in self.kernels)

    def cycles_of(self, *names: str) -> dict[str, float]:
        total = Counter()
        for kernel in self.kernels:
            for name in names:
                total.update(getattr(kernel, name))
        return dict(total)

    @property
    def cycles(self) -> float:
        return sum(self.cycles_of("parts").values())

    @property
    def us(self) -> float:
        return self.cycles / self.device.clock * 1e6

    @property
    def binds(self) -> str:
        parts = self.cycles_of("parts")
        return max(parts, key=parts.get)


def cuda(counters: dict, flops: int, fewest: tuple[int, int]) -> Cost:
    """Of what the CUDA emulator counted. What it does not see is the op's: of ``flops`` all that the products leave, and
    without the shadow flavour the bytes of ``fewest`` (read, written). Several kernels share it by their threads."""
    device = H200
    threads = {name: k["blocks"] * k["block"][0] * k["block"][1] * k["block"][2] for name, k in counters.items()}
    other = max(0, flops - MMA_FLOPS * sum(k["mma"] for k in counters.values()))

    def kernel(name, k):
        blocks, launches, share = k["blocks"], k["launches"], threads[name] / sum(threads.values())
        if sees := "read" in k:
            read = SECTOR * k["read"]["block_sectors"]
            written = SECTOR * (k["write"]["block_sectors"] + k["atomic"]["block_sectors"])
            memory = SECTOR * (k["read"]["touched_sectors"] + k["write"]["touched_sectors"])
        else:
            read, written, memory = (share * n for n in (*fewest, sum(fewest)))
        grid = blocks / launches
        busiest = device.cores * -(-grid // device.cores) / grid
        parallel = {"memory": device.cycles(memory, device.memory),
                    "L2": device.cycles(read + written, device.cache) * busiest,
                    "products": device.cycles(MMA_FLOPS * k["mma"], device.products) * busiest,
                    "arithmetic": device.cycles(share * other, device.arithmetic) * busiest}
        if sees:  # a pass over the banks, or a shuffle, a cycle
            passes = k["shared"]["wavefronts"] + k["collectives"] - k["mma"] - k["ldmatrix"]
            parallel["shared"] = passes / device.cores * busiest
        resident = min(BLOCKS, THREADS // (threads[name] // blocks), SHARED // (k["smem"] + 1024))
        waves = -(-grid // (resident * device.cores))
        chain = GLOBAL_CYCLES + (SHARED_CYCLES * k["barriers"] + REMOTE_CYCLES * k["cluster_barriers"]) / blocks
        serial = {"launch": launches * device.launch * device.clock, "latency": launches * waves * chain}
        return Kernel(name, launches, blocks, read, written, memory, read + written, serial, parallel, k)

    return Cost(device, [kernel(*item) for item in counters.items()])


def ascend(counters: dict) -> Cost:
    """Of what the AscendC emulator counted, which sees every instruction. A step of the cube is a cycle in 16 bit, two in
    fp32. Tensors come from memory each time, scratch from the second-level cache."""
    device = ATLAS_A2

    def kernel(name, k):
        launches, blocks, steps = k["launches"], k["blocks"], k["cube_steps"]
        read, written = (sum(k["bytes"][p] - k["scratch"][p] for p in pipes) for pipes in (INTO, OUT_OF))
        scratch = sum(k["scratch"][p] for p in INTO + OUT_OF)
        vectors = min(VECTOR_CORES, blocks * (2 if steps else 1))
        parallel = {"memory": device.cycles(read + written, device.memory), "L2": device.cycles(scratch, device.cache),
                    "products": steps * (2 if name.endswith("_f32") else 1) / min(device.cores, blocks),
                    "arithmetic": k["vector_cycles"] / vectors}
        serial = {"launch": launches * device.launch * device.clock}
        return Kernel(name, launches, launches * blocks, read, written, read + written, scratch, serial, parallel, k)

    return Cost(device, [kernel(*item) for item in counters.items()])
