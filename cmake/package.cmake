# SPDX-License-Identifier: Apache-2.0
# What a C or C++ program needs besides the libraries: the headers, a CMake package and a pkg-config file. They are written
# beside DSV4SPEC_LIB_DIR, so that a wheel and an editable install have them, and installed by `cmake --install`. All
# paths in them are relative to the file itself.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
get_filename_component(package_dir "${DSV4SPEC_LIB_DIR}" DIRECTORY)
file(STRINGS include/dsv4spec/types.h abi_line REGEX "^#define DSV4_ABI_VERSION ")
string(REGEX REPLACE "^#define DSV4_ABI_VERSION ([0-9]+)$" "\\1" DSV4_ABI_VERSION "${abi_line}")

set(written "")
file(GLOB headers CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}/include" include/dsv4spec/*.h)
foreach(header IN LISTS headers)
  add_custom_command(OUTPUT "${package_dir}/include/${header}" VERBATIM
    DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/include/${header}"
    COMMAND ${CMAKE_COMMAND} -E copy "${CMAKE_CURRENT_SOURCE_DIR}/include/${header}" "${package_dir}/include/${header}")
  list(APPEND written "${package_dir}/include/${header}")
endforeach()
add_custom_target(dsv4spec_headers ALL DEPENDS ${written})

# dsv4_package_files(FOLDER LIBDIR INCLUDEDIR): the two files for a prefix with these folders.
function(dsv4_package_files folder libdir includedir)
  file(RELATIVE_PATH DSV4_INCLUDE_FROM_LIB "${libdir}" "${includedir}")
  configure_file(cmake/dsv4specConfig.cmake.in "${folder}/cmake/dsv4spec/dsv4specConfig.cmake" @ONLY)
  write_basic_package_version_file("${folder}/cmake/dsv4spec/dsv4specConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
  configure_file(cmake/dsv4spec.pc.in "${folder}/pkgconfig/dsv4spec.pc" @ONLY)
endfunction()
dsv4_package_files("${DSV4SPEC_LIB_DIR}" "${DSV4SPEC_LIB_DIR}" "${package_dir}/include")
dsv4_package_files("${GENERATED}/install" "${CMAKE_INSTALL_FULL_LIBDIR}" "${CMAKE_INSTALL_FULL_INCLUDEDIR}")

set(libraries dsv4spec)
foreach(level IN LISTS built)  # of cmake/cpu_levels.cmake
  list(APPEND libraries dsv4spec_cpu_${level})
endforeach()
foreach(name cuda npu)  # the emulators are tests
  if(TARGET dsv4spec_${name})
    list(APPEND libraries dsv4spec_${name})
  endif()
endforeach()
foreach(library IN LISTS libraries)
  install(FILES "${DSV4SPEC_LIB_DIR}/lib${library}.so" DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
endforeach()
install(DIRECTORY include/dsv4spec DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(DIRECTORY "${GENERATED}/install/" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
