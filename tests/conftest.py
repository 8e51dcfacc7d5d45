# SPDX-License-Identifier: Apache-2.0
"""Shared set-up, and the rule on gates: a test that cannot run for want of a tool of the machine skips with a reason
that starts with "gate:". Under CI=true that is a failure; elsewhere the summary at the end says what is missing."""
import os
import sys

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: threads that wait must not spin on shared cores
import torch  # noqa: E402

sys.path.insert(0, os.path.dirname(__file__))
torch.set_num_threads(min(2, torch.get_num_threads()))

# A test routes to such a backend with tensors in the CPU's memory. DSV4SPEC_TEST_BRIDGE=cpu tries the bridge itself, where
# there is no device: the backend cpu then works on copies.
named = [os.environ.get("DSV4SPEC_TEST_DEVICE", ""), *os.environ.get("DSV4SPEC_TEST_BACKENDS", "").split(",")]
for device in {"cuda", "npu"}.intersection(named):
    import device_bridge

    device_bridge.need(device)
    device_bridge.install(device)
if os.environ.get("DSV4SPEC_TEST_BRIDGE") == "cpu":
    import device_bridge

    device_bridge.install("cpu")

IN_CI = os.environ.get("CI", "").lower() == "true"
_gates: set[str] = set()


def _is_closed_gate(report) -> bool:
    if report.outcome != "skipped" or not isinstance(report.longrepr, tuple):
        return False
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if reason.startswith("gate:"):
        _gates.add(reason.removeprefix("gate:").strip())
        return True
    return False


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if _is_closed_gate(report) and IN_CI:
        report.outcome, report.longrepr = "failed", f"{item.nodeid}: {report.longrepr[2]} (a closed gate fails in CI)"


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector):
    _is_closed_gate((yield).get_result())


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    if _gates and IN_CI and session.exitstatus == pytest.ExitCode.OK:  # a whole module was skipped
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    for reason in sorted(_gates):
        terminalreporter.write_line(f"not tested here: {reason}" + (" (fails in CI)" if IN_CI else ""), yellow=True)
