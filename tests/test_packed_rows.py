# SPDX-License-Identifier: Apache-2.0
"""Rows behind the last request (a batch padded to a fixed size) are padding in every op on packed rows: they are not
read, and change no other row."""
import pytest
import torch
from samples import SAMPLES
from util import BACKENDS, bits

from dsv4spec import ops, use_backend

ROW_ARGUMENTS = {"compress_kv": 2, "lightning_index": 2, "sparse_paged_attention": 1, "swa_paged_attention": 1}


def padded(t: torch.Tensor, rows: int) -> torch.Tensor:
    poison = torch.nan if t.dtype.is_floating_point else 0
    return torch.cat((t, torch.full((rows, *t.shape[1:]), poison, dtype=t.dtype)))


def call(name: str, rows: int):
    """Result and other arguments of the sample call with ``rows`` poisoned rows behind its last request."""
    args, keywords = SAMPLES[name]()
    leading = ROW_ARGUMENTS[name]
    keywords = {n: padded(t, rows) if n == "indices" else t for n, t in keywords.items()}
    result = getattr(ops, name)(*(padded(t, rows) for t in args[:leading]), *args[leading:], **keywords)
    return result, args[leading:]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ROW_ARGUMENTS)
def test_rows_behind_the_last_request_are_padding(backend, name):
    with use_backend(backend, missing="reference"):
        (want, arguments), (got, after) = call(name, 0), call(name, 3)
    for a, b in zip(arguments, after, strict=True):
        assert bits(a).equal(bits(b))
    if want is not None:
        assert torch.allclose(got[:-3].float(), want.float(), atol=1e-6)
        assert (got[-3:] == (-1 if name == "lightning_index" else 0)).all()
