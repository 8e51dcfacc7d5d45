// SPDX-License-Identifier: Apache-2.0
// Internal parameters of every op, filled by csrc/ops/<op>.cpp after its checks and read by the launchers of
// all backends. Members carry the names and meaning of the public args structs (include/dsv4spec/*.h).
#pragma once
#include "params/attention.h"
#include "params/dense.h"
#include "params/mhc.h"
#include "params/paging.h"
#include "params/target.h"
#include "params/tree.h"
#include "params/verify.h"
