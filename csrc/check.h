// SPDX-License-Identifier: Apache-2.0
// Contract checks, written once for all backends. A failed check throws Refusal with the text
// "op: argument: expected RULE, got VALUE"; nothing has been written by then and no tensor data was read.
#pragma once
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "dsv4spec/types.h"
#include "tensor_view.h"

namespace dsv4 {

struct Refusal : std::runtime_error {
  dsv4_status status;
  Refusal(dsv4_status s, const std::string& text) : std::runtime_error(text), status(s) {}
};

// A named size: the first tensor that uses it sets it, later ones must agree.
struct Dim {
  const char* name;
  int64_t value = -1;
  explicit Dim(const char* n, int64_t v = -1) : name(n), value(v) {}
  operator int64_t() const { return value; }
};

enum class Layout {
  kInnermost,   // innermost dimension contiguous, other strides free (>= 0)
  kContiguous,  // C-contiguous
};

struct DimRef {
  Dim* dim;
  int64_t fixed;
  DimRef(Dim& d) : dim(&d), fixed(-1) {}
  DimRef(int64_t n) : dim(nullptr), fixed(n) {}
};

using Shape = std::initializer_list<DimRef>;
using Dtypes = std::initializer_list<Dtype>;
// What hidden states, queries and pages may be. A backend's kernel takes the first two; float16 where it says so
// (BackendTable::takes_f16), which is checked at the launch.
inline constexpr Dtypes kStreams = {kF32, kBF16, kF16};

class Checker {
 public:
  explicit Checker(const char* op) : op_(op) {}

  TensorView in(const char* name, const DLTensor* t, Dtypes dtypes, Shape shape,
                Layout layout = Layout::kInnermost);
  // Absent (NULL) is legal: returns a view without data.
  TensorView optional_in(const char* name, const DLTensor* t, Dtypes dtypes, Shape shape,
                         Layout layout = Layout::kInnermost);
  // Written. `alias` names the one input it may be identical with (same memory, same strides).
  TensorView out(const char* name, const DLTensor* t, Dtypes dtypes, Shape shape,
                 const TensorView* alias = nullptr, Layout layout = Layout::kInnermost);

  // Scalars and relations: refuses with "expected RULE, got VALUE" unless ok. A template, so that a call that passes makes no
  // strings: those that are put together come as functions that return them.
  template <class Rule, class Got>
  void expect(bool ok, const char* name, const Rule& rule, const Got& got) const {
    if (!ok) refuse(name, text(rule), text(got));
  }

  // A scalar from `least` to 2^31 - 1: sums and products of a few such numbers do not overflow.
  void expect_from(int64_t least, const char* name, int64_t got) const;

  // After the last tensor: outputs overlap nothing they may not.
  void finish() const;

  const DLDevice& device() const { return device_; }
  // The first float16 tensor's name, or nullptr.
  const char* half_argument() const;
  [[noreturn]] void refuse(const char* name, const std::string& rule, const std::string& got) const;

 private:
  struct Seen {
    const char* name;
    TensorView view;
    bool written;
    const void* alias;
    const char *begin, *end;  // of its memory; nullptr if it has no elements
  };
  static std::string shown(int64_t value);
  static std::string shown(double value);
  static std::string shown(const std::string& value) { return value; }
  template <class T>
  static std::string text(const T& value) {
    if constexpr (std::is_invocable_v<const T&>) return value();
    else return shown(value);
  }
  TensorView view(const char* name, const DLTensor* t, Dtypes dtypes, Shape shape, Layout layout);
  void remember(const char* name, const TensorView& v, bool written, const TensorView* alias);

  const char* op_;
  DLDevice device_{kDLCPU, 0};
  bool has_device_ = false;
  Seen seen_[24];
  int seen_count_ = 0;
};

int64_t element_size(Dtype t);
const char* dtype_name(Dtype t);
std::string device_name(const DLDevice& d);
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace dsv4
