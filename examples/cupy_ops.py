# SPDX-License-Identifier: Apache-2.0
"""Ops on CuPy arrays: they run on CuPy's current stream and take scratch from its memory pool. Exit code 77: no CuPy, no GPU,
or a dsv4spec that was built without the CUDA backend."""
import sys

import dsv4spec
from dsv4spec import ops

try:
    import cupy
except ImportError:
    print("CuPy is not installed")
    sys.exit(77)
if why := dsv4spec.backends()["cuda"]["why_not"]:
    print("backend cuda:", why)
    sys.exit(77)

y, residual, post, comb = (cupy.random.standard_normal(shape, dtype=cupy.float32)
                           for shape in ((5, 64), (5, 4, 64), (5, 4), (5, 4, 4)))
wanted = post[:, :, None] * y[:, None] + cupy.einsum("tji,tjd->tid", comb, residual)
cupy.cuda.get_current_stream().synchronize()
with cupy.cuda.Stream(non_blocking=True) as stream:
    out = ops.mhc_post(y, residual, post, comb)
    stream.synchronize()
error = float(cupy.abs(out - wanted).max())
print(f"mhc_post: largest difference from CuPy's {error:.1e}")
sys.exit(0 if error < 1e-4 else "mhc_post: expected at most 1e-4")
