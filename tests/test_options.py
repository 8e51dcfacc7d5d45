# SPDX-License-Identifier: Apache-2.0
"""Option rules (field report A13)."""
import warnings

import pytest

from dsv4spec.spec.options import SpeculativeConfig


def counts(config):
    return config.num_steps, config.eagle_topk, config.num_draft_tokens


@pytest.mark.parametrize("given, filled", [
    ({}, (3, 1, 4)),
    ({"num_steps": 1}, (1, 1, 2)),
    ({"num_steps": 5}, (5, 1, 6)),
    ({"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}, (3, 1, 4)),
    ({"num_steps": 0}, (0, 1, 1)),
    ({"num_steps": 2, "eagle_topk": 2}, (2, 2, 5)),
    ({"num_steps": 1, "eagle_topk": 3}, (1, 3, 4)),
    ({"num_steps": 2, "eagle_topk": 2, "num_draft_tokens": 7}, (2, 2, 7)),
    ({"num_steps": 63}, (63, 1, 64)),
    ({"num_steps": 5, "eagle_topk": 16}, (5, 16, 64)),
])
def test_a13_unset_counts_are_filled_without_a_warning(given, filled):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert counts(SpeculativeConfig(**given)) == filled


@pytest.mark.parametrize("nodes", [2, 3, 5, 7])
def test_a13_window_of_a_chain_is_corrected_with_a_warning(nodes):
    with pytest.warns(UserWarning, match="num_draft_tokens") as record:
        config = SpeculativeConfig(3, 1, nodes)
    assert counts(config) == (3, 1, 4) and len(record) == 1
    assert record[0].filename == __file__


@pytest.mark.parametrize("given, option", [
    ({"num_steps": -1}, "num_steps"),
    ({"num_steps": 2.0}, "num_steps"),
    ({"num_steps": True}, "num_steps"),
    ({"num_steps": "3"}, "num_steps"),
    ({"num_steps": 64}, "num_steps"),
    ({"num_steps": 34, "eagle_topk": 2}, "eagle_topk"),
    ({"num_steps": 6, "eagle_topk": 16}, "eagle_topk"),
    ({"eagle_topk": 1}, "num_steps"),
    ({"num_draft_tokens": 4}, "num_steps"),
    ({"num_steps": 3, "eagle_topk": 0}, "eagle_topk"),
    ({"num_steps": 3, "eagle_topk": 17}, "eagle_topk"),
    ({"num_steps": 0, "eagle_topk": 2}, "eagle_topk"),
    ({"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 0}, "num_draft_tokens"),
    ({"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 1}, "num_draft_tokens"),
    ({"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 1}, "num_draft_tokens"),
    ({"num_steps": 2, "eagle_topk": 2, "num_draft_tokens": 8}, "num_draft_tokens"),
    ({"num_steps": 9, "eagle_topk": 4, "num_draft_tokens": 65}, "num_draft_tokens"),
    ({"algorithm": "LOOKAHEAD"}, "algorithm"),
    ({"algorithm": None}, "algorithm"),
])
def test_a13_contradictions_name_the_option(given, option):
    with pytest.raises(ValueError, match=f"SpeculativeConfig: {option}: expected .*, got "):
        SpeculativeConfig(**given)


def test_a13_nextn_is_eagle():
    assert SpeculativeConfig(algorithm="NEXTN") == SpeculativeConfig(algorithm="EAGLE")
    assert SpeculativeConfig(2, 1, 3, algorithm="nextn").algorithm == "EAGLE"


def test_trees_are_for_window_only_targets():
    tree = SpeculativeConfig(2, 2, 5)
    tree.check_target([0, 1, 0])
    with pytest.raises(ValueError, match=r"eagle_topk: expected 1 .*\[4, 128\]\), got 2"):
        tree.check_target([0, 4, 128, 4])
    SpeculativeConfig(3, 1, 4).check_target([0, 4, 128])
