# SPDX-License-Identifier: Apache-2.0
"""Each planted bug of the emulators' self-tests is one bug, and the tables of their tests name all of them and no other."""
from collections import Counter

import planted
import test_emu_ascend_asan as ascend_asan
import test_emu_ascend_cube as ascend_cube
import test_emu_ascendc as ascend
import test_emu_cuda as cuda
import test_emu_cuda_shadow as shadow


def seen_twice(names) -> list:
    return [name for name, times in Counter(names).items() if times > 1]


def expect_tables(tables: dict, planted_bugs: list) -> None:
    """Every planted bug stands in exactly one of the tables, and no table has another."""
    sources, twice = dict(planted_bugs), seen_twice(name for name, _ in planted_bugs)
    assert not twice, f"for two bugs each: {[bug for bug in planted_bugs if bug[0] in twice]}"
    assert len(sources) > 40, sources
    listed = [name for table in tables.values() for name in table]
    assert not seen_twice(listed), f"in several of {list(tables)}: {seen_twice(listed)}"
    nowhere = {name: file for name, file in sources.items() if name not in listed}
    assert not nowhere, f"in none of {list(tables)}: {nowhere}"
    unknown = {table: names for table, row in tables.items() if (names := sorted(set(row) - set(sources)))}
    assert not unknown, f"no source has {unknown}"


def test_cuda_bugs_and_the_functional_flavour():
    expect_tables({"FOUND": cuda.FOUND, "ONLY_OTHER_ORDERS": cuda.ONLY_OTHER_ORDERS, "OTHER_FLAVOURS": cuda.OTHER_FLAVOURS},
                  planted.cuda())


def test_cuda_bugs_and_the_checking_flavours():
    only_sanitizers = set(shadow.SANITIZERS) - set(shadow.SHADOW) - set(shadow.ALSO)
    expect_tables({"SHADOW": shadow.SHADOW, "ALSO": shadow.ALSO, "SANITIZERS": only_sanitizers}, planted.cuda())
    assert set(shadow.SANITIZERS) <= set(dict(planted.cuda()))
    files = {number: f"{row[0]}.cu" for table in (shadow.SHADOW, shadow.SANITIZERS) for number, row in table.items()}
    assert files.items() <= dict(planted.cuda()).items()
    assert set(cuda.OTHER_FLAVOURS) <= set(shadow.SHADOW) | set(shadow.SANITIZERS)


def test_ascendc_mistakes():
    expect_tables({"rules": ascend.PLANTED, "cube": ascend_cube.PLANTED, "sanitizers": ascend_asan.FOUND}, planted.ascend())


def test_mistakes_are_planted_where_they_are_collected():
    """PLANTED in selftest/planted_*.cu; what reads ``plant`` of an AscendC case in selftest/planted_*.cpp."""
    for path in planted.SOURCES:
        text, here = path.read_text(), path.match("selftest/planted_*")
        assert here or "\nPLANTED(" not in text, path
        assert here or "ascendc" not in path.parts or "g.plant" not in text, path
    # Nor in another form than the one that is collected.
    macros = sum(path.read_text().count("PLANTED(") for path in planted.SOURCES if path.suffix == ".cu")
    assert macros == len(planted.cuda())
