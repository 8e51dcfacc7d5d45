# SPDX-License-Identifier: Apache-2.0
"""Where a C or C++ build finds this installation: headers, library, CMake package, pkg-config file."""
from __future__ import annotations

import argparse
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def get_include() -> str:
    """The folder for ``-I``: ``#include <dsv4spec/dsv4spec.h>``."""
    return str(PACKAGE / "include")


def get_library() -> str:
    """The shared library with the C ABI, for ``dlopen``, ``ctypes.CDLL`` or a linker. Its backends stand beside it."""
    return str(PACKAGE / "lib" / "libdsv4spec.so")


def get_cmake_dir() -> str:
    """The folder for ``CMAKE_PREFIX_PATH`` or ``dsv4spec_DIR``: ``find_package(dsv4spec)``."""
    return str(PACKAGE / "lib" / "cmake" / "dsv4spec")


def get_pkgconfig_dir() -> str:
    """The folder for ``PKG_CONFIG_PATH``: ``pkg-config --cflags --libs dsv4spec``."""
    return str(PACKAGE / "lib" / "pkgconfig")


OPTIONS = {"--include-dir": get_include, "--library": get_library, "--cmake-dir": get_cmake_dir,
           "--pkgconfig-dir": get_pkgconfig_dir}


class _Print(argparse.Action):
    """Prints a path as it is, and ends the program."""

    def __init__(self, option_strings, dest, path, **kwargs):
        super().__init__(option_strings, dest, nargs=0, **kwargs)
        self.path = path

    def __call__(self, parser, namespace, values, option_string=None):
        print(self.path())
        parser.exit()


def add_options(parser) -> None:
    for option, path in OPTIONS.items():
        parser.add_argument(option, action=_Print, path=path, help=path.__doc__.replace("``", ""))
