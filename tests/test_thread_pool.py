# SPDX-License-Identifier: Apache-2.0
"""The pool's threads (csrc/thread_pool.cpp)."""
from build_util import ROOT, cxx, run


def test_every_job_is_shared(tmp_path):
    """A worker that spins when the next job comes takes part in that job, not in the one after."""
    built = run(cxx(), "-std=c++17", "-O2", "-pthread", f"-I{ROOT}/csrc", ROOT / "tests" / "thread_pool_jobs.cpp",
                ROOT / "csrc" / "thread_pool.cpp", "-o", tmp_path / "jobs")
    assert built.returncode == 0, built.stdout
    assert run(tmp_path / "jobs").stdout == "2000 of 2000\n"
