# SPDX-License-Identifier: Apache-2.0
"""The meaning of every op, in plain torch: same names and arguments as ``dsv4spec.ops``, fp32 arithmetic inside,
vectorised and free of host reads. Inputs of float64 are computed in float64 (for accuracy bounds)."""
