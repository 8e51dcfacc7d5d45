# SPDX-License-Identifier: Apache-2.0
"""What `make` needs before it can set up .venv; one line for each thing that is missing. Runs on any Python 3."""
import importlib.util
import os
import shutil
import sys
import sysconfig


def no_compiler():
    """A list with the line that says so, or an empty one. setup.py asks too."""
    compiler = os.environ.get("CXX")
    if any(shutil.which(c.split()[0]) for c in ([compiler] if compiler else ["c++", "g++", "clang++"])):
        return []
    return ["no C++17 compiler (%s); install g++, or set CXX"
            % ("CXX=" + compiler if compiler else "looked for c++, g++, clang++")]


def missing():
    found = []
    if sys.version_info < (3, 10):
        found.append("Python 3.10 or newer is needed, %s is %s; name another: make PYTHON=python3.12"
                     % (sys.executable, sys.version.split()[0]))
    if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        found.append("Python's venv module is incomplete; install python3-venv (Debian, Ubuntu)")
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        found.append("Python's headers are missing (%s/Python.h); install python3-dev (Debian, Ubuntu) or "
                     "python3-devel" % sysconfig.get_paths()["include"])
    found += no_compiler()
    return found


if __name__ == "__main__":
    lines = missing()
    sys.stderr.write("".join("dsv4spec: %s\n" % line for line in lines))
    sys.exit(1 if lines else 0)
