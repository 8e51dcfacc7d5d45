# SPDX-License-Identifier: Apache-2.0
"""The cases of ``dsv4spec bench --shapes FILE``, and wrong options."""
import importlib.util
import json

import pytest
import torch
from bench_util import bench, short  # noqa: F401


def test_what_is_named_twice_is_measured_once(capsys):
    assert bench("alloc_extend", "--shapes", "tiny,tiny", "--backend", "cpu", "--against", "torch,torch") == 0
    twice = capsys.readouterr().out
    assert twice.count("x torch") == 1
    assert bench("alloc_extend", "--shapes", "tiny", "--backend", "cpu", "--against", "none") == 0
    assert twice.count("alloc_extend tiny") == capsys.readouterr().out.count("alloc_extend tiny") > 0


def test_shapes_from_a_file(tmp_path):
    shapes, file = tmp_path / "mine.json", tmp_path / "out.json"
    shapes.write_text(json.dumps([{"op": "mhc_post", "T": 5, "d": 72}, {"op": "alloc_extend", "size": "tiny", "B": 3, "n": 2},
                                  {"op": "q_norm_rope", "T": 2, "H": 3, "D": 32, "R": 8, "dtype": "float32"}]))
    assert bench("--shapes", shapes, "--backend", "cpu", "--against", "none", "--json", file) == 0
    lines = json.loads(file.read_text())["lines"]
    assert [line["op"] for line in lines] == ["mhc_post", "alloc_extend", "q_norm_rope"]
    assert lines[0]["params"] == {"T": 5, "d": 72, "hc": 4, "dtype": "bfloat16"} and lines[0]["size"] == "file"
    assert lines[0]["case"] == "T=5 d=72" and lines[2]["params"]["dtype"] == "float32"


@pytest.mark.parametrize("text, sentence", [
    ("{", "is not JSON"),
    ('{"op": "mhc_post"}', "expected a list of cases, got dict"),
    ("[3]", "case 0: case: expected an object, got 3"),
    ('[{"op": "mhc_pots"}]', 'case 0: op: expected one of alloc_extend, '),
    ('[{"op": "mhc_post", "T": 1}, {"op": "mhc_post", "size": "big", "T": 1}]',
     'case 1: size: expected one of flash, pro, tiny, got "big"'),
    ('[{"op": "mhc_post", "T": 1, "width": 5}]', 'case 0: width: expected one of T, d, hc, dtype, got "width"'),
    ('[{"op": "mhc_post", "T": 0}]', "case 0: T: expected an integer of at least 1, got 0"),
    ('[{"op": "mhc_post", "T": 1, "dtype": "half"}]', 'case 0: dtype: expected one of bfloat16, float32, got "half"'),
    ('[{"op": "mhc_post"}]', "case 0: T: expected a value (it has no default), got null"),
])
def test_shapes_that_are_wrong_are_one_sentence(text, sentence, tmp_path, capsys):
    shapes = tmp_path / "mine.json"
    shapes.write_text(text)
    assert bench("--shapes", shapes) == 1
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1


def test_a_case_outside_its_ops_contract_is_refused_and_the_others_are_measured(tmp_path, capsys):
    shapes, file = tmp_path / "mine.json", tmp_path / "out.json"
    shapes.write_text(json.dumps([{"op": "mhc_post", "T": 2, "d": 8, "hc": 3}, {"op": "mhc_post", "T": 10 ** 12},
                                  {"op": "mhc_post", "T": 5, "d": 72}]))
    assert bench("--shapes", shapes, "--backend", "cpu", "--against", "none", "--json", file) == 1
    result, printed = json.loads(file.read_text()), capsys.readouterr().out
    assert [line["case"] for line in result["lines"]] == ["T=5 d=72"]
    assert [row["case"] for row in result["refused"]] == ["mhc_post file T=2 d=8 hc=3", f"mhc_post file T={10 ** 12}"]
    assert "hc=3: REFUSED: mhc_post: residual: expected 1, 2 or 4 streams, got 3" in printed
    assert "allocate" in result["refused"][1]["why"] and "1 measured, 2 refused" in printed


def test_wrong_options_are_one_line(capsys, tmp_path):
    for args, sentence in ((["--shapes", "huge"], "--shapes: expected some of flash, pro, tiny or a .json file, got huge"),
                           (["mhc_pots"], "OP: expected some of alloc_extend, "),
                           (["--against", "jax"], "--against: expected some of torch, compile, "),
                           (["--against", "jax", "--backend", "cuda_emu"], "--against: expected some of torch, compile, "),
                           (["--baseline", "f.json", "--backend", "cuda_emu"], "is emulated: there is no time to compare"),
                           (["mhc_pots", "--json", str(tmp_path / "left.json")], "OP: expected some of alloc_extend, "),
                           (["mhc_post", "--cases", "T=5000"], "no case is left"),
                           (["--shapes", str(tmp_path / "no.json")], "No such file"),
                           (["--json", str(tmp_path / "nowhere" / "f.json")], "nowhere")):
        assert bench(*args) == 1
        err = capsys.readouterr().err
        assert sentence in err and err.count("\n") == 1
    if not torch.cuda.is_available():
        assert bench("--backend", "cuda") == 1 and "torch sees no GPU" in capsys.readouterr().err
    if importlib.util.find_spec("torch_npu") is None:
        assert bench("--backend", "npu") == 1 and "got npu, which is not available here" in capsys.readouterr().err
    assert bench("mhc_post", "--list", "--json", tmp_path / "left.json") == 0
    assert not list(tmp_path.iterdir()), "a run that measures nothing leaves no empty file"
