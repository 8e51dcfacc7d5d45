# SPDX-License-Identifier: Apache-2.0
"""mHC (manifold hyper-connections) and the NextN input fusion."""
from ._dispatch import kernel, new, op


@op("(Tensor y, Tensor residual, Tensor post, Tensor comb) -> Tensor")
def mhc_post(y, residual, post, comb, *, out=None):
    """Close a sub-layer: ``out[t,i] = post[t,i] * y[t] + sum_j comb[t,j,i] * residual[t,j]``.

    The sum runs over the *first* index of ``comb``. fp32 arithmetic, one rounding to the stream dtype.
    Formula: DeepSeek-V4's mHC closing mix.

    Args:
        y: ``[T, d]`` float32 or bfloat16, the sub-layer's output.
        residual: ``[T, hc, d]`` of y's dtype; hc is 1, 2 or 4.
        post: ``[T, hc]`` float32.
        comb: ``[T, hc, hc]`` float32.
        out: ``[T, hc, d]`` of y's dtype, or None to allocate; may be ``residual`` itself.

    Returns:
        ``out``. T = 0 gives an empty result.

    Raises:
        ValueError: an argument outside this contract ("mhc_post: argument: expected RULE, got VALUE").
    """
    if out is None:
        out = new(residual, residual.shape)
    kernel("mhc_post", y, residual, post, comb, out)
    return out
