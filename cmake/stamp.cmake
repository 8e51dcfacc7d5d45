# SPDX-License-Identifier: Apache-2.0
# Run at every build: cmake -DSOURCE=... -DOUT=... -P stamp.cmake. Writes the header with the source hash (sha256 over
# the paths and contents of csrc/, include/ and kernels/) and the git hash, and leaves it alone if neither changed.
file(GLOB_RECURSE files RELATIVE "${SOURCE}" "${SOURCE}/csrc/*" "${SOURCE}/include/*" "${SOURCE}/kernels/*")
list(FILTER files EXCLUDE REGEX "(^|/)(\\.|__pycache__/)|(~|\\.swp|\\.pyc|\\.orig|\\.rej)$")
list(SORT files)
set(all "")
foreach(f IN LISTS files)
  file(SHA256 "${SOURCE}/${f}" hash)
  string(APPEND all "${f} ${hash}\n")
endforeach()
string(SHA256 source_hash "${all}")
string(SUBSTRING "${source_hash}" 0 16 source_hash)

set(git_hash "unknown")
if(EXISTS "${SOURCE}/.git")
  execute_process(COMMAND git describe --always --abbrev=12 --exclude=* --dirty
    WORKING_DIRECTORY "${SOURCE}" RESULT_VARIABLE failed OUTPUT_VARIABLE out ERROR_QUIET
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT failed)
    set(git_hash "${out}")
  endif()
elseif(EXISTS "${SOURCE}/GIT_HASH")  # a source archive
  file(STRINGS "${SOURCE}/GIT_HASH" git_hash LIMIT_COUNT 1)
endif()

set(text "// Written by cmake/stamp.cmake.\n#pragma once\n")
string(APPEND text "#define DSV4_SOURCE_HASH \"${source_hash}\"\n#define DSV4_GIT_HASH \"${git_hash}\"\n")
set(before "")
if(EXISTS "${OUT}")
  file(READ "${OUT}" before)
endif()
if(NOT text STREQUAL before)
  file(WRITE "${OUT}" "${text}")
endif()
