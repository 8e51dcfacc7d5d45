# SPDX-License-Identifier: Apache-2.0
"""Config, weights and the two models: the Target and its NextN draft layer."""
