# SPDX-License-Identifier: Apache-2.0
"""mHC (manifold hyper-connections) and the NextN input fusion."""
from ._dispatch import kernel, new, op


@op("(Tensor embeds, Tensor hidden, Tensor enorm_weight, Tensor hnorm_weight, Tensor e_proj, Tensor h_proj, *, "
    "float eps, Tensor? e_proj_scale=None, Tensor? h_proj_scale=None) -> Tensor")
def nextn_fuse_hidden(embeds, hidden, enorm_weight, hnorm_weight, e_proj, h_proj, *, eps, e_proj_scale=None,
                      h_proj_scale=None, out=None):
    """The input of the NextN layer: ``out[t,i] = e_proj(enorm(embeds[t])) + h_proj(hnorm(hidden[t,i]))``.

    ``hidden`` holds hc streams of d channels, stream-major; ``hnorm`` is an RMSNorm over the d channels of each stream,
    and one ``h_proj`` serves all streams. Both normed inputs are rounded to the dtype of ``embeds`` before the products;
    products and sums are fp32, the two are added in fp32 and rounded once. Formula: DeepSeek-V4's MTP module.

    Args:
        embeds: ``[T, d]`` float32, bfloat16 or float16, embeddings of the *next* tokens; d a multiple of 8 up to 32768.
        hidden: ``[T, hc*d]`` of that dtype, the state before the hc head; hc is 1, 2 or 4.
        enorm_weight, hnorm_weight: ``[d]`` float32 or bfloat16.
        e_proj, h_proj: ``[d, d]`` (out, in), both float32, bfloat16, float8_e4m3fn or int8.
        eps: of both norms.
        e_proj_scale, h_proj_scale: for float8 weights ``[ceil(d/128), ceil(d/128)]`` float8_e8m0fnu or its uint8 bytes
            (a weight is ``w * 2^(byte - 127)``); for int8 weights ``[d]`` float32, per output channel; else None.
        out: ``[T, hc, d]`` of the dtype of embeds, or None to allocate.

    Returns:
        ``out``. T = 0 gives an empty result. A row's bits do not depend on the other rows.

    Raises:
        ValueError: an argument outside this contract, e.g. a width of ``hidden`` that is not d, 2d or 4d.
    """
    if out is None:
        d = embeds.shape[-1]
        out = new(embeds, (*embeds.shape[:-1], hidden.shape[-1] // d if d else 1, d))
    kernel("nextn_fuse_hidden", embeds, hidden, enorm_weight, hnorm_weight, e_proj, h_proj, e_proj_scale, h_proj_scale,
           out, eps)
    return out


@op("(Tensor residual, Tensor fn, Tensor base, Tensor scale, *, float rms_eps, float hc_eps, int sinkhorn_iters, "
    "Tensor? norm_weight=None) -> (Tensor, Tensor, Tensor)")
def mhc_pre(residual, fn, base, scale, *, rms_eps, hc_eps, sinkhorn_iters, norm_weight=None, out=None):
    """Open a sub-layer: its input ``y``, and the coefficients ``post`` and ``comb`` of the closing mix.

    With x the hc*d values of a row and ``m = (fn . x) / sqrt(mean(x^2) + rms_eps)``, split into hc | hc | hc*hc columns
    that go with ``scale[0..2]``:

    - ``pre = sigmoid(m*scale[0] + base) + hc_eps``, ``post = 2 * sigmoid(m*scale[1] + base)``
    - ``comb = softmax(m*scale[2] + base) + hc_eps`` over its second index, then divided by its column sums, then
      ``sinkhorn_iters - 1`` times by row sums and by column sums, each sum plus hc_eps. Columns sum over the first index.
    - ``y = sum_i pre[i] * residual[i]``, rounded to the stream dtype; with ``norm_weight``, then RMSNorm of that.

    fp32 arithmetic. Formula: DeepSeek-V4's manifold hyper-connections.

    Args:
        residual: ``[T, hc, d]`` float32, bfloat16 or float16; hc is 1, 2 or 4, d a multiple of 8 up to 32768.
        fn: ``[(2+hc)*hc, hc*d]`` float32. base: ``[(2+hc)*hc]`` float32. scale: ``[3]`` float32.
        rms_eps: of the statistics of x and of the norm of y. hc_eps: see above; both in [0, 1). sinkhorn_iters: 1 to 1000.
        norm_weight: ``[d]`` float32 or bfloat16 of the RMSNorm that follows, or None.
        out: the tuple that is returned, or None to allocate.

    Returns:
        ``(y [T, d] of residual's dtype, post [T, hc] float32, comb [T, hc, hc] float32)``; typed empties for T = 0.

    Raises:
        ValueError: an argument outside this contract ("mhc_pre: argument: expected RULE, got VALUE").
    """
    y, post, comb = out if out is not None else _new_pre(residual)
    kernel("mhc_pre", residual, fn, base, scale, norm_weight, y, post, comb, rms_eps, hc_eps, sinkhorn_iters)
    return y, post, comb


def _new_pre(residual):
    """Outputs of mhc_pre. Slices, so that a residual of a wrong rank reaches the contract check."""
    shape = residual.shape
    return (new(residual, (*shape[:-2], *shape[-1:])), new(residual, shape[:-1], "float32"),
            new(residual, (*shape[:-1], *shape[-2:-1]), "float32"))


@op("(Tensor y, Tensor residual, Tensor post, Tensor comb) -> Tensor")
def mhc_post(y, residual, post, comb, *, out=None):
    """Close a sub-layer: ``out[t,i] = post[t,i] * y[t] + sum_j comb[t,j,i] * residual[t,j]``.

    The sum runs over the *first* index of ``comb``. fp32 arithmetic, one rounding to the stream dtype.
    Formula: DeepSeek-V4's mHC closing mix.

    Args:
        y: ``[T, d]`` float32, bfloat16 or float16, the sub-layer's output.
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


@op("(Tensor y, Tensor residual, Tensor post, Tensor comb, Tensor fn, Tensor base, Tensor scale, *, float rms_eps, "
    "float hc_eps, int sinkhorn_iters, Tensor? norm_weight=None) -> (Tensor, Tensor, Tensor, Tensor)")
def mhc_post_pre(y, residual, post, comb, fn, base, scale, *, rms_eps, hc_eps, sinkhorn_iters, norm_weight=None,
                 out=None):
    """The boundary of two sub-layers in one pass: :func:`mhc_post` of the one that ends, :func:`mhc_pre` of the next.

    The new residual is rounded to the stream dtype before ``mhc_pre`` reads it, as in the two single ops.

    Args:
        y, residual, post, comb: as :func:`mhc_post`.
        fn, base, scale, rms_eps, hc_eps, sinkhorn_iters, norm_weight: as :func:`mhc_pre`, of the sub-layer that starts.
        out: the tuple that is returned, or None to allocate; its first tensor may be ``residual`` itself.

    Returns:
        ``(residual' [T, hc, d], y' [T, d], post' [T, hc] float32, comb' [T, hc, hc] float32)``.

    Raises:
        ValueError: an argument outside this contract ("mhc_post_pre: argument: expected RULE, got VALUE").
    """
    if out is None:
        out = (new(residual, residual.shape), *_new_pre(residual))
    after, y_out, post_out, comb_out = out
    kernel("mhc_post_pre", y, residual, post, comb, fn, base, scale, norm_weight, after, y_out, post_out, comb_out,
           rms_eps, hc_eps, sinkhorn_iters)
    return after, y_out, post_out, comb_out


@op("(Tensor residual, Tensor fn, Tensor base, Tensor scale, *, float rms_eps, float hc_eps, "
    "Tensor? norm_weight=None) -> Tensor")
def mhc_head(residual, fn, base, scale, *, rms_eps, hc_eps, norm_weight=None, out=None):
    """Join the streams after the last layer: ``y = sum_i w[i] * residual[i]``.

    ``w = sigmoid(m*scale + base) + hc_eps`` with ``m`` as in :func:`mhc_pre`. y is rounded to the stream dtype; with ``norm_weight``, then RMSNorm of that.
    Formula: DeepSeek-V4's hc head.

    Args:
        residual: ``[T, hc, d]`` float32, bfloat16 or float16; hc is 1, 2 or 4, d a multiple of 8 up to 32768.
        fn: ``[hc, hc*d]`` float32. base: ``[hc]`` float32. scale: ``[1]`` float32.
        norm_weight: ``[d]`` float32 or bfloat16 of the final norm, or None.
        rms_eps, hc_eps: as in :func:`mhc_pre`.
        out: ``[T, d]`` of residual's dtype, or None to allocate.

    Returns:
        ``out``. T = 0 gives an empty result.

    Raises:
        ValueError: an argument outside this contract ("mhc_head: argument: expected RULE, got VALUE").
    """
    if out is None:
        out = new(residual, (*residual.shape[:-2], *residual.shape[-1:]))
    kernel("mhc_head", residual, fn, base, scale, norm_weight, out, rms_eps, hc_eps)
    return out
