// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <cstdio>

namespace dsv4 {
namespace {

struct DtypeRow {
  Dtype dtype;
  uint8_t code, bits;
  const char* name;
};
constexpr DtypeRow kDtypes[] = {  // in the order of Dtype
    {kF32, kDLFloat, 32, "float32"},          {kBF16, kDLBfloat, 16, "bfloat16"},
    {kF8E4M3, kDLFloat8_e4m3fn, 8, "float8_e4m3fn"}, {kE8M0, kDLFloat8_e8m0fnu, 8, "float8_e8m0fnu"},
    {kI8, kDLInt, 8, "int8"},                 {kU8, kDLUInt, 8, "uint8"},
    {kU16, kDLUInt, 16, "uint16"},            {kU32, kDLUInt, 32, "uint32"},
    {kI32, kDLInt, 32, "int32"},              {kI64, kDLInt, 64, "int64"},
    {kBool, kDLBool, 8, "bool"},                {kF16, kDLFloat, 16, "float16"},
};
constexpr bool in_order() {
  int at = 0;
  for (const DtypeRow& r : kDtypes)
    if (r.dtype != at++) return false;
  return true;
}
static_assert(in_order());

std::string dl_dtype_name(const DLDataType& t) {
  for (const DtypeRow& r : kDtypes)
    if (r.code == t.code && r.bits == t.bits && t.lanes == 1) return r.name;
  return "DLPack dtype (code " + std::to_string(t.code) + ", bits " + std::to_string(t.bits) + ", lanes " +
         std::to_string(t.lanes) + ")";
}

// Bounds that no real tensor meets; within them no product of a few sizes overflows.
constexpr int64_t kMaxElements = int64_t{1} << 48;
constexpr int kMaxShownDims = 32;

std::string shape_text(const int64_t* shape, int n) {
  std::string s = "[";
  for (int i = 0; i < n; ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

std::string rule_text(Shape shape) {
  std::string s = "shape [";
  bool first = true;
  for (const DimRef& r : shape) {
    if (!first) s += ", ";
    first = false;
    if (!r.dim) s += std::to_string(r.fixed);
    else if (r.dim->value < 0) s += r.dim->name;
    else s += std::string(r.dim->name) + "=" + std::to_string(r.dim->value);
  }
  return s + "]";
}

bool empty(const TensorView& v) {
  for (int i = 0; i < v.ndim; ++i)
    if (v.shape[i] == 0) return true;
  return false;
}

// Bytes past the first element of the last byte of the view.
int64_t extent(const TensorView& v) {
  int64_t last = 0;
  for (int i = 0; i < v.ndim; ++i) last += (v.shape[i] - 1) * v.stride[i];
  return (last + 1) * element_size(v.dtype);
}

// Two views in rows of one common pitch (column slices of one buffer) overlap only if their columns do.
bool disjoint_columns(const TensorView& a, const TensorView& b) {
  if (a.ndim < 2 || b.ndim < 2) return false;
  const int64_t pitch = a.stride[0] * element_size(a.dtype);
  if (pitch <= 0 || pitch != b.stride[0] * element_size(b.dtype)) return false;
  auto width = [](TensorView v) { v.shape[0] = 1; return extent(v); };
  const int64_t wa = width(a), wb = width(b);
  int64_t gap = (static_cast<char*>(b.data) - static_cast<char*>(a.data)) % pitch;
  if (gap < 0) gap += pitch;
  return wa <= gap && gap + wb <= pitch;
}

// Distinct indices must reach distinct elements (sufficient test: strides nest).
bool overlaps_itself(const TensorView& v) {
  int64_t reach = 1;
  bool used[kMaxDims] = {};
  for (int round = 0; round < v.ndim; ++round) {
    int best = -1;
    for (int i = 0; i < v.ndim; ++i)
      if (!used[i] && v.shape[i] > 1 && (best < 0 || v.stride[i] < v.stride[best])) best = i;
    if (best < 0) return false;
    used[best] = true;
    if (v.stride[best] < reach) return true;
    reach = v.stride[best] * (v.shape[best] - 1) + reach;
  }
  return false;
}

}  // namespace

int64_t element_size(Dtype t) { return kDtypes[t].bits / 8; }
const char* dtype_name(Dtype t) { return kDtypes[t].name; }

std::string device_name(const DLDevice& d) {
  switch (d.device_type) {
    case kDLCPU: return "cpu";
    case kDLCUDA: return "cuda:" + std::to_string(d.device_id);
    case kDLExtDev: return "npu:" + std::to_string(d.device_id);
    default: return "DLPack device type " + std::to_string(static_cast<int>(d.device_type));
  }
}

void Checker::refuse(const char* name, const std::string& rule, const std::string& got) const {
  throw Refusal(DSV4_INVALID_ARGUMENT,
                std::string(op_) + ": " + name + ": expected " + rule + ", got " + got);
}
std::string Checker::shown(int64_t value) { return std::to_string(value); }
std::string Checker::shown(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}
void Checker::expect_from(int64_t least, const char* name, int64_t got) const {
  if (got < least) refuse(name, "at least " + std::to_string(least), shown(got));
  if (got > INT32_MAX) refuse(name, "at most " + std::to_string(INT32_MAX), shown(got));
}

TensorView Checker::view(const char* name, const DLTensor* t, Dtypes dtypes, Shape shape, Layout layout) {
  TensorView v{};
  if (!has_device_) {
    device_ = t->device;
    has_device_ = true;
  } else if (t->device.device_type != device_.device_type || t->device.device_id != device_.device_id) {
    refuse(name, "device " + device_name(device_), device_name(t->device));
  }

  bool known = false;
  for (Dtype d : dtypes)
    if (kDtypes[d].code == t->dtype.code && kDtypes[d].bits == t->dtype.bits && t->dtype.lanes == 1) v.dtype = d, known = true;
  if (!known) {
    std::string rule = "dtype ";
    bool first = true;
    for (Dtype d : dtypes) {
      rule += (first ? "" : " or ") + std::string(dtype_name(d));
      first = false;
    }
    refuse(name, rule, dl_dtype_name(t->dtype));
  }

  v.ndim = t->ndim;
  if (t->ndim < 0 || t->ndim > kMaxShownDims)
    refuse(name, rule_text(shape), std::to_string(t->ndim) + " dimensions");
  if (t->ndim > 0 && !t->shape) refuse(name, rule_text(shape), "a shape that is NULL");
  if (static_cast<size_t>(t->ndim) != shape.size() || t->ndim > kMaxDims)
    refuse(name, rule_text(shape), shape_text(t->shape, t->ndim));
  int64_t elements = 1;
  for (int k = 0; k < t->ndim; ++k) {
    if (t->shape[k] < 0) refuse(name, "sizes >= 0", "shape " + shape_text(t->shape, t->ndim));
    if (t->shape[k] > kMaxElements / elements)
      refuse(name, "at most 2^48 elements", "shape " + shape_text(t->shape, t->ndim));
    if (t->shape[k] > 0) elements *= t->shape[k];
  }
  int i = 0;
  for (const DimRef& r : shape) {
    const int64_t n = t->shape[i++];
    if (r.dim && r.dim->value < 0) r.dim->value = n;
    if (n != (r.dim ? r.dim->value : r.fixed)) refuse(name, rule_text(shape), shape_text(t->shape, t->ndim));
  }

  // Strides of size-1 dimensions carry no meaning, nor does any of an empty tensor (NumPy's are 0 there): normalise them,
  // then apply the layout rule.
  bool no_elements = false;
  for (i = 0; i < t->ndim; ++i) no_elements |= t->shape[i] == 0;
  int64_t packed = 1;
  for (i = t->ndim - 1; i >= 0; --i) {
    v.shape[i] = t->shape[i];
    v.stride[i] = t->strides && t->shape[i] != 1 && !no_elements ? t->strides[i] : packed;
    if (v.stride[i] < 0) refuse(name, "strides >= 0", "stride " + std::to_string(v.stride[i]));
    if (v.stride[i] > kMaxElements / (v.shape[i] > 0 ? v.shape[i] : 1))
      refuse(name, "memory of at most 2^48 elements", "stride " + std::to_string(v.stride[i]) + " in dimension " +
                                                          std::to_string(i));
    const bool must_pack = layout == Layout::kContiguous || i == t->ndim - 1;
    if (must_pack && v.stride[i] != packed && v.shape[i] > 1)
      refuse(name, layout == Layout::kContiguous ? "a contiguous tensor" : "a contiguous innermost dimension",
             "stride " + std::to_string(v.stride[i]) + " in dimension " + std::to_string(i));
    packed *= v.shape[i] > 0 ? v.shape[i] : 1;
  }

  if (!t->data) {  // whatever its byte_offset
    if (!empty(v)) refuse(name, "data", "a null pointer");
    static char nothing[8];
    v.data = nothing;  // an empty tensor is present, whatever its pointer
    return v;
  }
  v.data = static_cast<char*>(t->data) + t->byte_offset;
  const int64_t size = element_size(v.dtype);
  if (reinterpret_cast<uintptr_t>(v.data) % size)
    refuse(name, "data aligned to " + std::to_string(size) + " bytes",
           "address " + std::to_string(reinterpret_cast<uintptr_t>(v.data) % size) + " bytes past one");
  return v;
}

void Checker::remember(const char* name, const TensorView& v, bool written, const TensorView* alias) {
  if (seen_count_ == static_cast<int>(sizeof(seen_) / sizeof(seen_[0])))
    throw Refusal(DSV4_INTERNAL_ERROR, std::string(op_) + ": more tensors than Checker remembers");
  Seen& seen = seen_[seen_count_++];
  seen.name = name, seen.view = v, seen.written = written, seen.alias = alias ? alias->data : nullptr;
  seen.begin = empty(v) ? nullptr : static_cast<const char*>(v.data);
  seen.end = empty(v) ? nullptr : seen.begin + extent(v);
}

TensorView Checker::in(const char* name, const DLTensor* t, Dtypes dtypes, Shape shape, Layout layout) {
  if (!t) refuse(name, "a tensor", "NULL");
  TensorView v = view(name, t, dtypes, shape, layout);
  remember(name, v, false, nullptr);
  return v;
}

TensorView Checker::optional_in(const char* name, const DLTensor* t, Dtypes dtypes, Shape shape, Layout layout) {
  return t ? in(name, t, dtypes, shape, layout) : TensorView{};
}

TensorView Checker::out(const char* name, const DLTensor* t, Dtypes dtypes, Shape shape, const TensorView* alias,
                        Layout layout) {
  if (!t) refuse(name, "a tensor", "NULL");
  TensorView v = view(name, t, dtypes, shape, layout);
  if (!empty(v) && overlaps_itself(v)) refuse(name, "memory that does not overlap itself", "overlapping strides");
  remember(name, v, true, alias);
  return v;
}

const char* Checker::half_argument() const {
  for (int i = 0; i < seen_count_; ++i)
    if (seen_[i].view.dtype == kF16) return seen_[i].name;
  return nullptr;
}

void Checker::finish() const {
  for (int i = 0; i < seen_count_; ++i) {
    if (!seen_[i].written) continue;
    for (int j = 0; j < seen_count_; ++j) {
      if (i == j || seen_[i].begin >= seen_[j].end || seen_[j].begin >= seen_[i].end) continue;
      const TensorView &a = seen_[i].view, &b = seen_[j].view;
      if (disjoint_columns(a, b)) continue;
      bool same = seen_[i].alias == b.data && a.data == b.data && a.ndim == b.ndim;
      for (int k = 0; same && k < a.ndim; ++k) same = a.stride[k] == b.stride[k] || a.shape[k] == 1;
      if (!same && !(seen_[j].written && seen_[j].alias == a.data && a.data == b.data))
        refuse(seen_[i].name, "memory apart from the other arguments",
               std::string("an overlap with ") + seen_[j].name);
    }
  }
}

}  // namespace dsv4
