# SPDX-License-Identifier: Apache-2.0
"""What requests carry between rounds survives every change of the batch."""
import random

import torch

from dsv4spec.spec.carry import Carry


def test_random_batches_get_what_was_put_last():
    draw, carry, held = random.Random(0), Carry(8), {}
    rows = [0]
    for step in range(400):
        if draw.random() < 0.5:
            rows = draw.sample(range(8), draw.randint(1, 8))
        if set(rows) <= set(held):
            got = carry.get(rows)
            assert got["a"].tolist() == [held[r] for r in rows]
            assert got["b"].tolist() == [[held[r] + 0.5, -held[r]] for r in rows]
        values = torch.tensor([100 * step + r for r in rows])
        carry.put(rows, a=values, b=torch.stack([values + 0.5, -values.float()], 1))
        held |= dict(zip(rows, values.tolist()))


def test_a_row_given_to_a_new_request_holds_the_new_one():
    carry = Carry(4)
    carry.put([0, 1], a=torch.tensor([10, 11]))
    carry.put([1], a=torch.tensor([21]))  # row 1 was freed, opened and prefilled again
    assert carry.get([1, 0])["a"].tolist() == [21, 10]


def test_an_unchanged_batch_is_not_copied():
    carry, values = Carry(4), torch.tensor([1, 2])
    carry.put([3, 1], a=values)
    assert carry.get([3, 1])["a"] is values
