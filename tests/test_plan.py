# SPDX-License-Identifier: Apache-2.0
"""``dsv4spec plan``: the formula at published points and limits, the plan it gives, what it measures and refuses."""
import json
import math

import byte_tokenizer
import pytest
import tiny_checkpoints as tiny

from dsv4spec import plan_measure, plan_model
from dsv4spec.cli import main
from dsv4spec.plan_model import Costs, conditional, expected_tokens, knee_costs, plan, speedup, stops_paying


def run(*args, code=0):
    assert main(["plan", *map(str, args)]) == code


@pytest.mark.parametrize("a, g, b, printed", plan_model.PUBLISHED)
def test_published_points(a, g, b, printed):
    closed = (1 - a ** (g + 1)) / ((1 - a) * (g * b + 1))
    assert math.isclose(speedup([a] * g, b), closed)
    assert abs(closed - float(printed)) <= 0.5 * 10.0 ** -len(printed.split(".")[1])


def test_limits():
    for g, b in ((1, 0.02), (4, 0.1), (7, 0.0)):
        assert math.isclose(speedup([1.0] * g, b), (g + 1) / (g * b + 1))  # every draft accepted
        assert math.isclose(speedup([0.0] * g, b), 1 / (g * b + 1))        # none
        assert math.isclose(speedup([1 - 1e-9] * g, b), (g + 1) / (g * b + 1), rel_tol=1e-6)
    assert speedup([], 0.5) == 1.0
    assert math.isclose(speedup([0.9, 0.5], 0.1, 1.5), (1 + 0.9 + 0.45) / (0.2 + 1.5))


def test_a_wrong_formula_is_found(monkeypatch):
    assert plan_model.check_published() == len(plan_model.PUBLISHED)
    monkeypatch.setattr(plan_model, "expected_tokens", lambda accept: 1 + sum(accept))  # as if each were independent
    with pytest.raises(RuntimeError, match="a=0.6 g=2 b=0.0 gives 2.200, published is 1.96"):
        plan_model.check_published()


def test_acceptance_per_position_from_counts():
    """A30: 43 steps of 3 drafts, of which [39, 1, 0, 3] had 0, 1, 2, 3 accepted: mean length 1.2326."""
    accept = conditional([43] * 3, [4, 3, 3])
    assert [round(a, 4) for a in accept] == [0.0930, 0.75, 1.0]
    assert round(expected_tokens(accept), 4) == 1.2326
    assert conditional([10, 10, 10], [5, 0, 0]) == [0.5, 0.0] and conditional([0, 0], [0, 0]) == []
    assert conditional([10, 4], [8, 2]) == [0.8, 0.625]  # fewer offered: shares, not counts, are compared


def test_the_best_number_of_drafts_and_where_it_stops():
    rows = plan([0.8], knee_costs([1, 16, 64], 0.05, 6, knee=64))
    assert [row.best for row in rows] == [6, 3, 0] and rows[2].speedup == 1.0 and rows[2].tokens == 1.0
    for row in rows:
        for g, s in enumerate(row.speedups, 1):
            verify = max(1, row.batch * (g + 1) / 64) / max(1, row.batch / 64)
            assert math.isclose(s, (1 - 0.8 ** (g + 1)) / (0.2 * (g * 0.05 + verify)))
    assert rows[0].speedup == max(rows[0].speedups) and math.isclose(rows[0].tokens, (1 - 0.8 ** 7) / 0.2)
    assert stops_paying(rows) == 64 and stops_paying(rows[:2]) is None
    assert stops_paying(plan([0.0], knee_costs([1, 2], 0.05, 2, None))) == 1
    uneven = plan([0.8], [Costs(1, 0.1, (5.0,)), Costs(2, 0.1, (1.0,)), Costs(4, 0.1, (5.0,))])
    assert stops_paying(uneven) == 4  # a dip at 1 is not the end
    assert plan([0.9, 0.1], knee_costs([1], 0.1, 3, None))[0].best == 1  # per position: the second is worth less
    assert plan([1.0], [Costs(1, 1.0, (1.0, 1.0))])[0].best == 0  # ties: fewer


def test_table_json_and_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="gate: matplotlib is not installed")
    file, picture = tmp_path / "plan.json", tmp_path / "plan.png"
    run("--accept", 0.87, "--draft-cost", 0.02, "--max-steps", 1, "--batch", 1, 64, "--verify-knee", 64, "--json", file,
        "--plot", picture)
    text, result = capsys.readouterr().out, json.loads(file.read_text())
    assert "1.83*" in text and "speculation does not pay from batch 64 on" in text and f"{len(plan_model.PUBLISHED)} published points" in text
    assert [row["best"] for row in result["rows"]] == [1, 0] and result["stops_paying_at_batch"] == 64
    assert round(result["rows"][0]["speedup"], 2) == 1.83
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    run("--accept", 0.87, "--costs", file, "--batch", 1)  # what it wrote can be read
    text = capsys.readouterr().out
    assert "1.83*" in text and "speculation pays at every batch size above" in text
    file.write_text('[{"batch": 1, "draft": 0, "verify": [2]}, {"batch": 2, "draft": 0, "verify": [1]}]')
    run("--accept", 0.5, "--costs", file)
    assert "speculation does not pay at batch 1, but at larger ones" in capsys.readouterr().out


@pytest.mark.parametrize("text, sentence", [
    ("{", "is not JSON"), ("[]", "expected a list of objects with batch, draft and verify"),
    ('[{"batch": 1, "draft": 0.1}]', "row 0: verify: expected a list of numbers, got null"),
    ('[{"batch": 0, "draft": 0.1, "verify": [1]}]', "row 0: batch: expected an integer of at least 1, got 0"),
    ('[{"batch": 1.5, "draft": 0.1, "verify": [1]}]', "row 0: batch: expected an integer of at least 1, got 1.5"),
    ('[{"batch": 1, "draft": NaN, "verify": [1]}]', "row 0: draft: expected a number of at least 0, got NaN"),
    ('[{"batch": 1, "draft": 0, "verify": [0]}]', "row 0: verify: expected a number above 0, got 0"),
    ('[{"batch": 1, "draft": "x", "verify": [1]}]', 'row 0: draft: expected a number of at least 0, got "x"'),
    ('[{"batch": 1, "draft": 0, "verify": [-1]}]', "row 0: verify: expected a number above 0, got -1"),
])
def test_costs_that_are_wrong_are_one_sentence(text, sentence, tmp_path, capsys):
    file = tmp_path / "costs.json"
    file.write_text(text)
    run("--costs", file, code=1)
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1


def test_wrong_options(capsys, tmp_path):
    for args in (["--accept", 1.2], ["--draft-cost", -1], ["--verify-knee", 4, "--costs", "x.json"], ["--max-steps", 256],
                 ["--accept", "nan"], ["--draft-cost", "inf"], ["--batch", 0]):
        with pytest.raises(SystemExit):
            run(*args)
    run("--json", tmp_path / "nowhere" / "x.json", code=1)
    run("--measure", tmp_path / "no model", code=1)
    assert "no model" in capsys.readouterr().err
    run("--measure", "--max-new-tokens", 1, code=1)
    assert "--max-new-tokens: expected at least 2, so that there is a decode step" in capsys.readouterr().err
    run("--draft-cost", 0.5, "--costs", tmp_path / "x.json", code=1)
    assert "--draft-cost: expected nothing beside --costs, got 0.5" in capsys.readouterr().err
    run("--verify-knee", 4, "--batch", 10 ** 400, code=1)
    assert capsys.readouterr().err.count("\n") == 1
    run("--costs", tmp_path / "x.json", "--json", tmp_path / "left.json", code=1)
    assert not list(tmp_path.iterdir()), "a run that fails leaves no empty file"


@pytest.mark.filterwarnings("ignore:no draft token accepted")
def test_measured_on_a_checkpoint(tmp_path, capsys, monkeypatch):
    """The costs are the engine's own seconds over its own forwards, and tokens that differ are refused."""
    raw = tiny.raw_config(vocab_size=byte_tokenizer.SIZE, index_topk=64)
    folder = tiny.write(tmp_path / "model", raw, tiny.random_tensors(raw, "plan"))
    byte_tokenizer.write(folder)
    monkeypatch.setattr(plan_measure, "REPEATS", 1)
    file = tmp_path / "plan.json"
    run("--measure", folder, "--batch", 2, "--max-steps", 2, "--max-new-tokens", 6, "--json", file)
    result = json.loads(file.read_text())
    measured = result["measured"]
    assert measured["accept"] == result["accept"] and len(measured["costs"][0]["verify"]) == 2
    assert result["costs"] == [{key: row[key] for key in ("batch", "draft", "verify")} for row in measured["costs"]]
    assert len(measured["runs"][0]["speedups"]) == 2 and "measured on this machine" in capsys.readouterr().out
    right = plan_measure._run
    monkeypatch.setattr(plan_measure, "_run", lambda engine, *a: (
        right(engine, *a) if not engine.speculative else ([[0]], right(engine, *a)[1])))
    run("--measure", folder, "--batch", 1, "--max-steps", 1, "--max-new-tokens", 4, code=1)
    assert "with 1 drafts at batch 1 the tokens are not those of plain decoding" in capsys.readouterr().err


def test_seconds_of_a_forward(monkeypatch):
    class Engine:
        def reset_metrics(self):
            pass

        def generate(self, prompts, params):
            return []

        def metrics(self):
            return {"time_s": {"decode": 0.0, "verify": 6.0, "draft": 1.0, "extend": 2.0},
                    "forwards": {"target_decode": 0, "target_verify": 3, "nextn_extend": 4, "nextn_decode": 2},
                    "drafted_per_position": [3], "accepted_per_position": [1]}

    _, figures = plan_measure._run(Engine(), [], 4)
    assert figures["verify"] == 2.0 and figures["draft"] == 0.5 and figures["decode"] == 0.0
