# SPDX-License-Identifier: Apache-2.0
"""CANN toolkit trees that hold nothing but what a build looks for: a bisheng that writes down its arguments, and CMake
files of the test's own with the entry points of the real ones."""
from __future__ import annotations

import os
from pathlib import Path

from build_util import script

MACHINE = os.uname().machine
BISHENG = """
[ "$1" = --version ] && echo "bisheng of a test" && exit
echo "$0 $*" >> "$(dirname "$0")/calls"
while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done
"""
CONFIG = """
if(NOT DEFINED ENV{ASCEND_HOME_PATH})
  message(FATAL_ERROR "not sourced")
endif()
set(CMAKE_CXX_FLAGS_RELEASE "")
list(APPEND CMAKE_MODULE_PATH "$ENV{ASCEND_HOME_PATH}/compiler/tikcpp/ascendc_kernel_cmake/asc_modules")
"""
DETERMINE = """
set(target "$ENV{ASCEND_HOME_PATH}/${CMAKE_SYSTEM_PROCESSOR}-linux")
find_program(CMAKE_ASC_COMPILER bisheng PATHS "${target}/ccec_compiler/bin")
set(CMAKE_ASC_SOURCE_FILE_EXTENSIONS asc)
set(CMAKE_ASC_COMPILER_ENV_VAR ASC)
configure_file(${CMAKE_CURRENT_LIST_DIR}/CMakeASCCompiler.cmake.in
  ${CMAKE_PLATFORM_INFO_DIR}/CMakeASCCompiler.cmake @ONLY)
"""
COMPILER = """
set(CMAKE_ASC_COMPILER "@CMAKE_ASC_COMPILER@")
set(CMAKE_ASC_SOURCE_FILE_EXTENSIONS asc)
set(CMAKE_ASC_COMPILER_ENV_VAR ASC)
set(CMAKE_ASC_COMPILER_LOADED 1)
"""
INFORMATION = """
include(CMakeCommonLanguageInclude)
set(CMAKE_ASC_OUTPUT_EXTENSION .o)
set(CMAKE_INCLUDE_FLAG_ASC "-I")
set(CMAKE_ASC_COMPILE_OPTIONS_PIC "-fPIC")
set(CMAKE_ASC_COMPILE_OBJECT
  "<CMAKE_ASC_COMPILER> <DEFINES> <INCLUDES> <FLAGS> -o <OBJECT> -c --asc-aicore-lang <SOURCE>")
set(CMAKE_ASC_CREATE_SHARED_LIBRARY "<CMAKE_ASC_COMPILER> -shared -o <TARGET> <OBJECTS> <LINK_LIBRARIES>")
set(CMAKE_ASC_INFORMATION_LOADED 1)
"""
LEGACY = """
file(WRITE "${CMAKE_BINARY_DIR}/legacy.txt"
  "${CMAKE_CURRENT_LIST_DIR} ${SOC_VERSION} ${RUN_MODE} ${ASCEND_CANN_PACKAGE_PATH}")
function(ascendc_library name type)
  file(APPEND "${CMAKE_BINARY_DIR}/legacy.txt" " ${name} ${type} ${ARGN}")
  add_library(${name} INTERFACE)
endfunction()
function(ascendc_include_directories name scope)
  file(APPEND "${CMAKE_BINARY_DIR}/legacy.txt" " includes ${ARGN}")
endfunction()
"""
ACL = """
#pragma once
#include <cstdint>
typedef int aclError;
typedef void* aclrtStream;
enum { ACL_SUCCESS = 0, ACL_RT_THREAD_LEVEL = 0 };
enum aclrtDevAttr { ACL_DEV_ATTR_AICORE_CORE_NUM = 101, ACL_DEV_ATTR_VECTOR_CORE_NUM = 201 };
extern "C" {
aclError aclrtGetDeviceCount(uint32_t* count);
aclError aclrtGetDevice(int32_t* device);
aclError aclrtSetDevice(int32_t device);
aclError aclrtGetDeviceInfo(uint32_t device, aclrtDevAttr attr, int64_t* value);
aclError aclrtGetLastError(int level);
}
"""


def _write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _common(home: Path, bisheng: Path, version: str) -> Path:
    script(bisheng, BISHENG)
    _write(home / "version.cfg", f"# CANN\nruntime_running_version=[{version}:{version}.1]\n")
    _write(home / "lib64" / "libascendcl.so")
    _write(home / "include" / "acl" / "acl.h", ACL)
    return home


def new_toolkit(home: Path, machine: str = MACHINE, version: str = "9.1.0") -> Path:
    """A toolkit with asc-config.cmake."""
    modules = home / "compiler" / "tikcpp" / "ascendc_kernel_cmake" / "asc_modules"
    for name, text in (("CMakeDetermineASCCompiler.cmake", DETERMINE), ("CMakeASCCompiler.cmake.in", COMPILER),
                       ("CMakeASCInformation.cmake", INFORMATION),
                       ("CMakeTestASCCompiler.cmake", "set(CMAKE_ASC_COMPILER_WORKS 1 CACHE INTERNAL \"\")\n")):
        _write(modules / name, text)
    _write(home / f"{machine}-linux" / "lib64" / "cmake" / "asc-config.cmake", CONFIG)
    return _common(home, home / f"{machine}-linux" / "ccec_compiler" / "bin" / "bisheng", version)


OLD_FOLDERS = ("tools/tikcpp/ascendc_kernel_cmake", "compiler/tikcpp/ascendc_kernel_cmake",
               "ascendc_devkit/tikcpp/samples/cmake")


def old_toolkit(home: Path, folder: str = OLD_FOLDERS[1], version: str = "8.2.RC1") -> Path:
    """A toolkit of CANN 8: ascendc.cmake in one of three places."""
    _write(home / folder / "ascendc.cmake", LEGACY)
    return _common(home, home / "compiler" / "ccec_compiler" / "bin" / "bisheng", version)
