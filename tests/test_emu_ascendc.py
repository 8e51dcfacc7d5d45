# SPDX-License-Identifier: Apache-2.0
"""The AscendC emulator itself: every numbered rule of tests/emu/ascendc/README.md has a planted mistake that is caught
by its name, in every order of execution; the same kernel without the mistake is clean."""
import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from ascend_util import LAZY, ORDERS, AscendEmulator
from build_util import cxx

HERE = Path(__file__).parent / "emu" / "ascendc"
ELEMENTS = 5120  # floats of every buffer

# case -> (number of the rule, its name, what else the report says).
PLANTED = {
    "align_ub": (1, "alignment", r"Adds: src: expected an address aligned to 32 bytes, got UB\+16 .*"
                                 r"planted_memory.cpp:\d+"),
    "align_gm": (1, "alignment", r"DataCopyPad: global memory: .* aligned to 4 bytes"),
    "reduce_align": (1, "alignment", r"dst: expected an address aligned to 8 bytes"),
    "copy_count": (2, "DataCopy", r"count \* 4 to be a multiple of 32 bytes, got 12 \* 4"),
    "copy_blocks": (2, "DataCopy", r"blockCount: expected 0 to 4095, got 4096"),
    "pad_elements": (3, "DataCopyPad", r"blockLen is in bytes: expected a multiple of 4, got 10"),
    "pad_value": (3, "DataCopyPad", r"paddings without isPad"),
    "pad_wide": (3, "DataCopyPad", r"at most 32 bytes each, got 0 and 34"),
    "budget": (4, "memory budget", r"UB: 0 bytes are taken; 188416 more exceed the usable 188160"),
    "queue_full": (5, "queues", r"AllocTensor: all 1 buffers are in use"),
    "queue_empty": (5, "queues", r"DeQue: the queue is empty"),
    "queue_depth": (5, "queues", r"EnQue: 1 tensors are in a queue of depth 1"),
    "queue_freed": (5, "queues", r"Adds: a LocalTensor after its FreeTensor"),
    "queue_early": (5, "queues", r"Adds: a LocalTensor between EnQue and DeQue"),
    "queue_left": (5, "queues", r"TPipe: a tensor is left in a queue"),
    "queue_buffers": (5, "queues", r"at most 8 buffers at a position .*, got 10"),
    "two_pipes": (5, "queues", r"another TPipe of this core is alive"),
    "many_buffers": (5, "queues", r"at most 64 buffers"),
    "pool_held": (5, "queues", r"InitBuffer: another pool's buffers are in this memory: its Reset comes first"),
    "pool_busy": (5, "queues", r"Reset: instructions of pipe MTE2 may still use the pool: PipeBarrier<PIPE_ALL>"),
    "pool_full": (4, "memory budget", r"the pool has 512 bytes, of which 288 are taken; got 256 more"),
    "pool_length": (5, "queues", r"InitBufPool: len: expected at most the 512 bytes of shareBuf, got 544"),
    "pool_buffers": (5, "queues", r"InitBuffer: expected at most 4 buffers in this pool"),
    "pool_stale": (5, "queues", r"Duplicate: a LocalTensor after its"),
    "block_stride": (6, "vector iteration", r"block stride of 0 is undefined"),
    "brcb_stride": (6, "vector iteration", r"Brcb: dstBlkStride: a block stride of 0 is undefined"),
    "mask_range": (6, "vector iteration", r"mask: expected 1 to 64 for elements of 4 bytes, got 65"),
    "overlap_part": (6, "vector iteration", r"dst and src overlap in part within a repeat"),
    "overlap_next": (6, "vector iteration", r"dst of repeat 0 is src of repeat 1"),
    "accumulate": (6, "vector iteration", r"dst of repeat 0 is src0 of repeat 1"),
    "brcb_in_place": (6, "vector iteration", r"Brcb: dst lies in src"),
    "compare_in_place": (6, "vector iteration", r"Compare: dst of repeat 0 lies in src0 of repeat 1"),
    "reduce_in_place": (6, "vector iteration", r"dst of repeat 0 lies in src of repeat 0"),
    "reduce_into_next": (6, "vector iteration", r"dst of repeat 0 lies in src of repeat 1"),
    "reduce_work_in_source": (6, "vector iteration", r"lies in src of repeat 1"),
    "compare_count": (6, "vector iteration", r"a multiple of 256 bytes, got 96 \* 4"),
    "compare_integers": (7, "data types", r"int32_t: expected CMPMODE::EQ"),
    "reduce_work": (19, "bounds", r"sharedTmpBuffer: bytes 0 to 352 of a buffer of 320"),
    "cast_mode": (9, "Cast", r"round mode 0 is not one"),
    "v_after_v": (10, "pipes and flags", r"read after write .* Adds \(V\) .* Muls \(V\) .* needs PipeBarrier<PIPE_V>"),
    "v_after_mte2": (10, "pipes and flags", r"read after write hazard on UB\+0: DataCopy \(MTE2\) at planted_order.cpp:"
                                            r"\d+.* and Adds \(V\) at planted_order.cpp:\d+.*; needs MTE2_V"),
    "mte3_after_v": (10, "pipes and flags", r"read after write .* needs V_MTE3"),
    "mte2_after_v": (10, "pipes and flags", r"write after read .* needs V_MTE2"),
    "v_after_mte3": (10, "pipes and flags", r"write after read .* needs MTE3_V"),
    "s_after_v": (10, "pipes and flags", r"read after write .* GetValue \(S\) .* needs V_S"),
    "v_after_s": (10, "pipes and flags", r"read after write .* SetValue \(S\) .* needs S_V"),
    "mte3_after_s": (10, "pipes and flags", r"read after write .* needs S_MTE3"),
    "mte2_after_mte2": (10, "pipes and flags", r"write after write .* needs PipeBarrier<PIPE_MTE2>"),
    "mte3_after_mte3": (10, "pipes and flags", r"write after write hazard on global memory"),
    "mte2_after_mte3": (10, "pipes and flags", r"read after write hazard on global memory"),
    "set_twice": (10, "pipes and flags", r"SetFlag: event V_S 0 is already set \(planted_order.cpp:\d+"),
    "wait_alone": (10, "pipes and flags", r"WaitFlag: event V_S 1 is not set"),
    "set_left": (10, "pipes and flags", r"event V_S 2 was set and never waited for"),
    "event_range": (10, "pipes and flags", r"event id: expected 0 to 7, got 8"),
    "event_of_queue": (10, "pipes and flags", r"event V_MTE2 0 is already set \(by a queue"),
    "cache_dirty": (11, "data cache", r"stays in the data cache"),
    "cache_line": (11, "data cache", r"two cores write to one line of 64 bytes"),
    "cache_load": (11, "data cache", r"DataCopy \(MTE2\) .* it is in a data cache, not cleaned"),
    "cache_stale": (11, "data cache", r"its data cache still has it"),
    "sync_hard": (12, "cross-core", r"hazard on global memory .* of vector core"),
    "sync_one_missing": (12, "cross-core", r"deadlock: vector core 0 waits for SyncAll"),
    "sync_type": (12, "cross-core", r"the hard form needs a kernel of type MIX_AIV_1_0"),
    "sync_blocks": (12, "cross-core", r"5 blocks wait for each other on a device of 4 cores"),
    "sync_soft": (12, "cross-core", r"gmWorkspace: expected zeros"),
    "cross_flag": (12, "cross-core", r"read after write hazard on global memory"),
    "cross_id": (12, "cross-core", r"flagId: expected 0 to 15, got 16"),
    "cross_reserved": (12, "cross-core", r"flag 12 is one of the ids 11 to 14 that SyncAll"),
    "cross_order": (12, "cross-core", r"flag 5 of pipe MTE3 is still on its way, and flags keep no order: pipe V needs"),
    "cross_two_ways": (12, "cross-core", r"flag 6 of mode 1 is still on its way; mode 2 may use the id after its waits"),
    "cross_left": (12, "cross-core", r"end: flag 7 of vector core 0 was set and never waited for"),
    "cross_some": (12, "cross-core", r"end: flag 7 of vector core 0 was set by this core, but not by all of its group"),
    "cross_type": (12, "cross-core", r"AIV_ONLY or AIC_ONLY have no cross-core flags"),
    "cross_mode": (12, "cross-core", r"mode 2: expected a kernel of type MIX_AIC_1_1 or MIX_AIC_1_2"),
    "cross_count": (12, "cross-core", r"flag 1 of vector core 0 counts more than 15"),
    "mixed_groups": (12, "cross-core", r"hazard on global memory"),
    "one_line": (12, "cross-core", r"write after write hazard on global memory"),
    "vector_on_cube": (13, "kernel type", r"vector instructions run on vector cores"),
    "type_twice": (13, "kernel type", r"another type was set before"),
    "no_type": (13, "kernel type", r"expected KERNEL_TASK_TYPE_DEFAULT"),
    "never_written": (18, "never written", r"Add reads UB\+\d+, byte 252 of 256"),
    "stale_buffer": (18, "never written", r"DataCopy reads UB\+\d+, byte 0 of 256"),
    "bounds_local": (19, "bounds", r"Duplicate: dst: bytes 0 to 260 of a buffer of 256"),
    "bounds_gm": (19, "bounds", r"a write of 36 bytes: bytes 20448 to 20484 of an allocation of 20480"),
    "no_memory": (19, "bounds", r"DataCopy at planted_memory.cpp:\d+.*: a read from address 0x\w+, where no memory is"),
    "tails_of_a_line": (10, "pipes and flags", r"hazard on global memory"),
    "gather_bounds": (19, "bounds", r"offset 20480 of element 0 leaves the buffer"),
}
BLOCKS = dict.fromkeys(("sync_hard", "sync_one_missing", "sync_soft", "cross_flag", "cross_id", "cross_some",
                        "mixed_groups", "one_line", "cache_line", "vector_on_cube"), 2) | {"sync_blocks": 5}
# Rules that the compiler enforces: what a kernel writes -> what the compiler says.
REFUSED = {
    "Add(b, b, b, 64);": "rule 7: Add of dav-2201",                      # no bf16 arithmetic
    "Exp(i, i, 64);": "rule 7: Exp of dav-2201",
    "ReduceSum(i, i, i, 64);": "rule 7: ReduceSum of dav-2201",
    "Select(i, u, i, i, SELMODE::VSEL_TENSOR_TENSOR_MODE, 64);": "rule 7: Select of dav-2201",
    "Cast(h, b, RoundMode::CAST_RINT, 64u);": "rule 9: dav-2201 has no Cast",
    "TQue<TPosition::VECCALC, 1> q;": "rule 5: a queue hands over between pipes",
    "TQue<TPosition::VECIN, 9> q;": "rule 5: the depth of a queue",
    "PipeBarrier<PIPE_S>();": "rule 10: the scalar pipe orders itself",
    "CrossCoreSetFlag<4, PIPE_MTE3>(0);": "rule 12: dav-2201 has the modes 0, 1 and 2",
    "CrossCoreSetFlag<0, PIPE_ALL>(0);": "rule 12: CrossCoreSetFlag takes no",
    "auto x = b.GetValue(0) + b.GetValue(1);": "no match for .operator\\+|invalid operands",
}
SNIPPET = """#include "kernel_operator.h"
using namespace AscendC;
void f(LocalTensor<float> x, LocalTensor<bfloat16_t> b, LocalTensor<half> h, LocalTensor<int32_t> i,
       LocalTensor<uint8_t> u) {{ {} }}
"""


@pytest.fixture(scope="module")
def emu():
    return AscendEmulator()


@pytest.fixture(autouse=True)
def fresh(emu):
    emu.clear()


def run(emu, case, plant):
    arrays = [np.zeros(ELEMENTS, np.float32) for _ in range(4)]
    a, b, out, work = (emu.array(ELEMENTS, np.float32) for _ in arrays)
    a[:], b[:], out[:], work[:] = 1, 2, 3, 0
    return emu.run(case, plant=plant, a=a, b=b, out=out, work=work, n=ELEMENTS, blocks=BLOCKS.get(case, 1))


@pytest.mark.parametrize("case", PLANTED)
def test_the_correct_kernel_is_clean_in_every_order(emu, case):
    for order, seed in ORDERS:
        with emu.settings(order=order, seed=seed):
            assert run(emu, case, 0) == 0, (order, seed, emu.report())
    assert emu.report() == ""


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_mistake_is_caught_by_the_name_of_its_rule(emu, case):
    number, name, text = PLANTED[case]
    for order, seed in ORDERS:
        with emu.settings(order=order, seed=seed):
            assert run(emu, case, 1) == 1, (order, seed)
        assert re.search(rf"^rule {number} \({name}\): .*{text}", emu.report(), re.M), emu.report()
        assert case in emu.report(), "the kernel's name"
        emu.clear()


def test_a_rule_a_report_and_a_page(emu):
    """README.md lists every rule, by the number and the name that reports carry."""
    rows = dict(re.findall(r"^\| (\d+) \| ([^|]+?) \|", (HERE / "README.md").read_text(), re.M))
    source = (HERE / "report.cpp").read_text()
    block = source[source.index("names[] = {"):]
    names = re.findall(r'"([^"]*)"', block[:block.index("};")])
    assert rows == {str(i): name for i, name in enumerate(names) if name}
    assert {number for number, _, _ in PLANTED.values()} <= {int(n) for n in rows}


@pytest.mark.parametrize("line", REFUSED)
def test_what_the_types_refuse_does_not_compile(tmp_path, line):
    compiler = cxx()

    def compiled(body):
        source = tmp_path / "snippet.cpp"
        source.write_text(SNIPPET.format(body))
        return subprocess.run([compiler, "-std=c++17", "-fsyntax-only", f"-I{HERE}", str(source)],
                              capture_output=True, text=True)

    assert compiled("Add(x, x, x, 64);").returncode == 0
    result = compiled(line)
    assert result.returncode and re.search(REFUSED[line], result.stderr), result.stderr


def test_wrong_values_without_a_check(emu):
    """With the hazards unchecked, lazy pipes still turn a missing flag into wrong values."""
    def first(plant, **settings):
        a, b, out, work = (emu.array(ELEMENTS, np.float32) for _ in range(4))
        a[:], b[:], out[:], work[:] = 1, 2, 3, 0
        with emu.settings(check=0, **settings):
            assert emu.run("v_after_mte2", plant=plant, a=a, b=b, out=out, work=work, n=ELEMENTS) == 0
        return out[0]

    assert first(0, order=LAZY) == 2 and first(1) == 2  # eager order hides it
    assert not first(1, order=LAZY) == 2


def test_a_number_of_blocks_that_no_device_takes(emu):
    assert emu.run("sync_type", blocks=0) == 1
    assert "rule 15 (entry): launch: blocks: expected 1 to 1024, got 0" in emu.report()


def test_a_mixed_kernel_needs_scratch(emu):
    assert emu.run("mixed_groups") == 1  # no `work`
    assert "rule 13 (kernel type)" in emu.report() and "needs a workspace" in emu.report()


def test_a_failed_launch_leaves_the_next_alone(emu):
    for _ in range(3):
        assert run(emu, "no_memory", 1) == 1 and run(emu, "sync_one_missing", 1) == 1 and run(emu, "queue_freed", 1) == 1
        assert run(emu, "sync_hard", 0) == 0
    assert run(emu, "v_after_v", 0) == 0


def test_settings_out_of_range_are_refused(emu):
    for key, value in (("order", 3), ("cores", 0), ("check", 2), ("colour", 1)):
        assert emu.lib.ascend_emu_configure(key.encode(), value) == -1


def test_memory_between_guard_zones(emu):
    memory = emu.lib.ascend_emu_malloc(33)
    assert memory % 512 == 0
    assert bytes((ctypes.c_uint8 * 33).from_address(memory)) == b"\xff" * 33
    assert emu.lib.ascend_emu_free(memory) == 0
    assert emu.lib.ascend_emu_free(memory) == -1


def test_counters(emu):
    a, b, out, work = (emu.array(ELEMENTS, np.float32) for _ in range(4))
    a[:] = 1
    assert emu.run("v_after_v", a=a, b=b, out=out, work=work) == 0
    counters = emu.counters()["v_after_v"]
    assert counters["launches"] == 1 and counters["bytes"]["MTE2"] == counters["bytes"]["MTE3"] == 256
    assert counters["vector_repeats"] == 2 and counters["instructions"]["V"] == 2 and counters["barriers"] == 1
    # Cycles by the documentation's table: one a repeat, 7 to reduce it, 5 elements of Gather each.
    for case, cycles in {"v_after_v": 2, "brcb_in_place": 1, "reduce_in_place": 7, "gather_bounds": 14}.items():
        emu.clear()
        assert run(emu, case, 0) == 0 and emu.counters()[case]["vector_cycles"] == cycles, case
    emu.clear()
    assert emu.counters() == {}
