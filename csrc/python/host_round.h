// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <pybind11/pybind11.h>

namespace dsv4 {

// Adds HostPages, HostWindow and argmax_rows (host_round.cpp) to the module.
void add_host_round(pybind11::module_& m);

}  // namespace dsv4
