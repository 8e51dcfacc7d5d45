# SPDX-License-Identifier: Apache-2.0
# The flavour that sees every access: races, reads of what was never written, sectors, bank conflicts. Only
# the kernels are instrumented, and by clang whatever the compiler of the rest: g++ leaves out stores of what
# a function returns in memory. Sets `shadow` to the end of its line in the summary.
find_program(DSV4SPEC_CLANGXX NAMES clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14
  DOC "clang++ 14 or newer, for the shadow flavour of the CUDA emulator")
if(NOT DSV4SPEC_CLANGXX)
  set(shadow "not built: no clang++ (looked at PATH; DSV4SPEC_CLANGXX names one)")
  return()
endif()
execute_process(COMMAND "${DSV4SPEC_CLANGXX}" --version OUTPUT_VARIABLE out ERROR_VARIABLE out)
if(NOT out MATCHES "clang version ([0-9]+)(\\.[0-9.]+)?" OR CMAKE_MATCH_1 LESS 14)
  string(REGEX REPLACE "[\r\n]+" " " out "${out}")
  set(shadow "not built: ${DSV4SPEC_CLANGXX}: expected clang 14 or newer, got ${out}")
  return()
endif()
set(version "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")

# Inlined and unrolled as nvcc would, so that what is counted is what a device would do, but not vectorized.
set(flags -std=c++17 -O2 -Wno-pass-failed -fPIC -fvisibility=hidden ${DSV4_EMU_FLAGS} ${DSV4_EMU_KERNEL_FLAGS} -DNDEBUG
  -fno-vectorize -fno-slp-vectorize -fsanitize=thread -fsanitize-ignorelist=${CMAKE_CURRENT_SOURCE_DIR}/shadow.ignore
  -mllvm -tsan-instrument-func-entry-exit=0 -mllvm -tsan-instrument-read-before-write -mllvm -tsan-instrument-atomics=0 -mllvm -inline-threshold=2000
  -I${CMAKE_SOURCE_DIR}/include -I${CMAKE_SOURCE_DIR}/csrc -I${GENERATED} -I${CMAKE_CURRENT_SOURCE_DIR}
  -I${CMAKE_SOURCE_DIR}/kernels/cuda "-DDSV4_TOOLCHAIN=\"clang ${version}\"")
list(TRANSFORM DSV4_EMU_NAMES PREPEND -D OUTPUT_VARIABLE definitions)
foreach(folder IN LISTS DSV4_CUDA_INCLUDE)
  list(APPEND flags -isystem ${folder})
endforeach()

function(dsv4_shadow_objects result)
  set(objects "")
  foreach(source IN LISTS ARGN)
    get_filename_component(stem "${source}" NAME_WE)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/shadow/${stem}.o")
    # LLVM before 16 instruments memcpy by calling it: that name must lead to a hook.
    add_custom_command(OUTPUT "${object}" DEPENDS "${source}" "${CMAKE_CURRENT_SOURCE_DIR}/shadow.ignore"
      DEPFILE "${object}.d" VERBATIM COMMENT "clang++ -fsanitize=thread ${stem}.cu"
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${DSV4SPEC_CLANGXX} ${flags} ${definitions} -MD -MF "${object}.d" -MT "${object}"
              -c "${source}" -o "${object}"
      COMMAND ${CMAKE_OBJCOPY} --redefine-sym memcpy=__tsan_memcpy --redefine-sym memmove=__tsan_memmove
              --redefine-sym memset=__tsan_memset "${object}")
    list(APPEND objects "${object}")
  endforeach()
  set(${result} "${objects}" PARENT_SCOPE)
endfunction()

file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/shadow")
file(GLOB hooks CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/shadow*.cpp")
foreach(pair "dsv4spec_cuda_emu;kernels" "cuda_emu_selftest;selftest")
  list(GET pair 0 name)
  list(GET pair 1 sources)
  dsv4_shadow_objects(objects ${${sources}})
  dsv4_emu_library(${name} _shadow cuda_emu_runtime ${hooks} ${objects})
  target_compile_options(${name}_shadow PRIVATE -O2 ${DSV4_EMU_FLAGS})
  set_target_properties(${name}_shadow PROPERTIES LINKER_LANGUAGE CXX)
  add_dependencies(${name}_shadow dsv4_stamp)
endforeach()
set(shadow "built with clang ${version}")
