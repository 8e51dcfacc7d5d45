# SPDX-License-Identifier: Apache-2.0
"""Ops on JAX arrays in the CPU's memory, by DLPack and without a copy of the inputs; also inside jit, by a callback. The
results are NumPy arrays, since JAX's own cannot be written. Exit code 77: JAX is not installed."""
import sys

import numpy as np

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    print("JAX is not installed: pip install jax")
    sys.exit(77)
from dsv4spec import ops

jax.config.update("jax_platforms", "cpu")


def composition(y, residual, post, comb):
    return post[:, :, None] * y[:, None] + jnp.einsum("tji,tjd->tid", comb, residual, precision="highest")


def compare(what, got, wanted):
    error = float(np.abs(np.asarray(got) - np.asarray(wanted)).max())
    print(f"{what}: largest difference from JAX's own {error:.1e}")
    if not error < 1e-5:
        sys.exit(f"{what}: expected at most 1e-5")


keys = jax.random.split(jax.random.key(0), 4)
arrays = [jax.random.normal(key, shape) for key, shape in zip(keys, ((5, 64), (5, 4, 64), (5, 4), (5, 4, 4)))]
compare("mhc_post", jnp.asarray(ops.mhc_post(*arrays)), composition(*arrays))


@jax.jit
def layer(y, residual, post, comb):
    closed = jax.pure_callback(lambda *given: ops.mhc_post(*map(np.asarray, given)),
                               jax.ShapeDtypeStruct(residual.shape, residual.dtype), y * 2, residual, post, comb)
    return closed + 1


compare("mhc_post in jit", layer(*arrays), composition(arrays[0] * 2, *arrays[1:]) + 1)

# JAX has handed out its memory for reading: an op that would write it is refused.
try:
    ops.mhc_post(*arrays, out=jnp.zeros_like(arrays[1]))
except ValueError as error:
    print("refused:", error)
else:
    sys.exit("mhc_post: expected a refusal to write a JAX array")
if "torch" in sys.modules:
    sys.exit("torch was imported")
