# SPDX-License-Identifier: Apache-2.0
"""The speculative loop: options, the EAGLE state machine of one round, acceptance, counters."""
