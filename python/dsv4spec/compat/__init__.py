# SPDX-License-Identifier: Apache-2.0
"""The ops under the names, argument orders, dtypes and in-place behaviour that engines already call.

:mod:`dsv4spec.compat.sglang`: ``sgl_kernel``'s speculative ops and the helpers of SGLang's NPU path.
:mod:`dsv4spec.compat.vllm`: the mHC functions of vLLM and vLLM-Ascend. What maps to what: ``docs/compat.md``.
Both need torch, run on every backend that has the op (the route is that of the tensors' device), and give fresh
inference results: nothing here is differentiable.
"""
