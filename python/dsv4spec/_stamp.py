# SPDX-License-Identifier: Apache-2.0
"""The source hash in Python: the same as cmake/stamp.cmake writes into every library. An installed package has no
sources to compare with; one that is imported from a checkout (an editable install) says so when its libraries were
built from other sources."""
from __future__ import annotations

import os

_FOLDERS = ("csrc", "include", "kernels")
_LEFT_OUT = ("~", ".swp", ".pyc", ".orig", ".rej")


def source_hash(root: str) -> str:
    """16 hex digits over the paths and contents of csrc/, include/ and kernels/ of the source tree ``root``."""
    import hashlib  # not at every import of the package

    names = []
    for top in _FOLDERS:
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
            names += [os.path.relpath(os.path.join(folder, name), root) for name in files
                      if not name.startswith(".") and not name.endswith(_LEFT_OUT)]
    lines = []
    for name in sorted(names):
        with open(os.path.join(root, name), "rb") as f:
            lines.append(f"{name} {hashlib.sha256(f.read()).hexdigest()}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def checkout_hash(package: str) -> str | None:
    """The source hash of the tree around ``package``, a python/dsv4spec of it; None for an installed package."""
    parent, root = os.path.dirname(package), os.path.dirname(os.path.dirname(package))
    if os.path.basename(parent) != "python" or not os.path.isfile(os.path.join(root, "csrc", "ops.def")):
        return None
    return source_hash(root)


def staleness(package: str, built_from: str) -> str | None:
    """One sentence if the libraries in ``package`` were built from other sources than stand around it."""
    here = checkout_hash(package)
    if here in (None, built_from):
        return None
    return (f"dsv4spec: the libraries in {package} were built from sources {built_from}, this checkout has {here}; "
            "rebuild with: pip install -e .")


def warn_if_stale(package: str, built_from: str) -> None:
    """RuntimeWarning by :func:`staleness`, at the import of the package."""
    if text := staleness(package, built_from):
        import warnings

        warnings.warn(text, RuntimeWarning, stacklevel=3)
