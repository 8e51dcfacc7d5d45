# SPDX-License-Identifier: Apache-2.0
"""Engines whose decode steps are captured on tapes (graph_tape.py), for tests of graphs."""
import pytest
from graph_tape import Tape
from helped import Helped

import dsv4spec.engine
from dsv4spec import Engine, SpeculativeConfig
from dsv4spec.demo import ASSET
from dsv4spec.spec.graphs import Graphs, graphs_for

TEXT = "An exception is raised when the argument is not a string.  " * 30


def engine(taped=False, directory=ASSET, steps=3, helped=None, **options):
    """An engine whose rounds are taped (on ``engine.tape``), or unless ``taped`` run op by op.

    ``helped``: sequences of :class:`Helped`, which then takes NextN's place."""
    tape = Tape()

    def graphs(worker, wanted):
        if helped:
            worker.nextn = Helped(worker.nextn, helped)
        return Graphs(worker, wanted, tape) if taped else graphs_for(worker, wanted)

    options = {"max_running_requests": 4, "max_len": 512, **options}
    speculative = SpeculativeConfig(steps) if isinstance(steps, int) else steps
    with pytest.MonkeyPatch.context() as m:
        m.setattr(dsv4spec.engine, "graphs_for", graphs)
        made = Engine(directory, speculative=speculative, **options)
    made.tape = tape
    return made
