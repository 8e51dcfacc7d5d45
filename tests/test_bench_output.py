# SPDX-License-Identifier: Apache-2.0
"""What ``dsv4spec bench`` prints of emulated backends, and its pictures."""
import json
import sys

import pytest
from bench_util import bench, short  # noqa: F401
from dsv4spec import _C, ops


def emulated(backend, *args):
    if not _C.backends()[backend]["loadable"]:
        pytest.skip(f"{backend} is not built")
    return bench(*args, "--shapes", "tiny", "--backend", backend)


def test_ops_without_a_kernel_are_named_and_wrong_results_refused(tmp_path, monkeypatch, capsys):
    file = tmp_path / "costs.json"
    assert emulated("ascend_emu", "mhc_post", "verify_tree_sampling", "--json", file) == 0
    assert {name.split()[0] for name in json.loads(file.read_text())["no_kernel"]} == {"verify_tree_sampling"}
    assert emulated("cuda_emu", "mhc_pre", "--json", file) == 0
    lines = json.loads(file.read_text())["lines"]
    assert [line["case"] for line in lines] == ["T=1", "T=20"]
    assert all(line["blocks"] >= line["launches"] >= 1 for line in lines)
    capsys.readouterr()
    right = ops.mhc_pre
    monkeypatch.setattr(ops, "mhc_pre", lambda *a, **k: tuple(t + 1 for t in right(*a, **k)))
    assert emulated("cuda_emu", "mhc_pre") == 1 and "REFUSED: result 0 is off by" in capsys.readouterr().out


def test_what_is_too_large_to_emulate_is_said(capsys):
    if not _C.backends()["ascend_emu"]["loadable"]:
        pytest.skip("ascend_emu is not built")
    assert bench("moe_experts", "mhc_post", "--cases", "T=4096", "--backend", "ascend_emu") == 0
    assert "1 too large to emulate in seconds" in capsys.readouterr().out


def test_plot_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="gate: matplotlib is not installed")
    file = tmp_path / "ops.png"
    assert bench("mhc_post", "lightning_index", "--shapes", "tiny", "--backend", "cpu", "--against", "none", "--plot",
                 file) == 0
    data = file.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) > 10000


def test_plot_without_matplotlib_or_times_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert bench("mhc_post", "--plot", tmp_path / "ops.png") == 1
    err = capsys.readouterr().err
    assert "--plot needs matplotlib: pip install 'dsv4spec[plot]'" in err and err.count("\n") == 1
    monkeypatch.undo()
    pytest.importorskip("matplotlib", reason="gate: matplotlib is not installed")
    assert bench("mhc_post", "--backend", "cuda_emu", "--plot", tmp_path / "ops.png") == 1
    assert "cuda_emu is emulated: there is no time to plot" in capsys.readouterr().err
