# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/cpu_roofline.md shows is what the JSON files beside it hold."""
import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
FILES = [FOLDER / "results" / f"cpu_{cores}.json" for cores in ("one_core", "two_cores")]


def test_the_table_is_that_of_the_results():
    shown = subprocess.run([sys.executable, FOLDER / "table.py", *FILES], check=True, capture_output=True, text=True).stdout
    assert shown.count("\n") > 100 and shown in (FOLDER / "cpu_roofline.md").read_text()


def test_the_results_are_whole_and_of_one_version():
    one, two = (json.loads(file.read_text()) for file in FILES)
    assert one["dsv4spec"] == two["dsv4spec"] and not one["refused"] + two["refused"] + one["not_measured"] + two["not_measured"]
    assert [(line["op"], line["case"]) for line in one["lines"]] == [(line["op"], line["case"]) for line in two["lines"]]
    assert one["threads"]["dsv4spec"] == 1 and two["threads"]["dsv4spec"] == 2
