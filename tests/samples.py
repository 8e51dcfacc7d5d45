# SPDX-License-Identifier: Apache-2.0
"""One legal call of each op: SAMPLES[name]() gives (args, kwargs). Used by the torch.library checks and by the checks
of every CPU level. Sizes are odd on purpose, so that tails of vectors are run too."""
import torch
from util import rng

SAMPLES = {}


def values(name: str, *shape, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=rng("sample", name, shape)).to(dtype)


# mhc
SAMPLES["mhc_post"] = lambda: (
    (values("y", 5, 83), values("residual", 5, 4, 83), values("post", 5, 4), values("comb", 5, 4, 4)), {})
