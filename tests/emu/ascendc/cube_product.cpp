// SPDX-License-Identifier: Apache-2.0
// Products and their way out. Pages of the documentation, under "matrix computation (ISASI)": Mmad, GEMV,
// alignment of the K direction, Fixpipe (L0C to GM), NZ2ND.
#include <cstring>

#include "core.h"
#include "cube_shadow.h"
#include "numbers.h"

namespace ascend_emu {
namespace {

constexpr uint32_t kMost = 4095;

struct Multiply {
  char *c;
  const char *a, *b;
  Product p;
  Type input;
};

template <class T>
T value_at(const char* at, Type type);
template <>
float value_at<float>(const char* at, Type type) {
  if (type == Type::f32) return bit_cast<float>(*reinterpret_cast<const uint32_t*>(at));
  const uint16_t bits = *reinterpret_cast<const uint16_t*>(at);
  return type == Type::bf16 ? bf16_float(bits) : half_float(bits);
}
template <>
int32_t value_at<int32_t>(const char* at, Type) { return *reinterpret_cast<const int8_t*>(at); }

uint32_t size_of(Type type) { return type == Type::f32 ? 4 : type == Type::i8 ? 1 : 2; }

// Fractals along k as they lie in L0A (with kDirectionAlign an even number of them).
uint32_t depth_of(const Product& p, uint32_t c0) {
  const uint32_t fractals = (p.k + c0 - 1) / c0;
  return p.k_by_16 && c0 == 8 ? (fractals + 1) / 2 * 2 : fractals;
}

// The page of Mmad (under "special values"): "Mmad should avoid NaN inputs, else an execution error may be
// reported"; of both matrices and any type of float. Infinity is an input like others there.
void report_nan(const char* matrix, uint32_t row, uint32_t k) {
  if (core->nan_reported) return;
  core->nan_reported = true;
  const bool later = core->running.name != nullptr;
  add_report("rule 17 (" + std::string(rule_name(17)) + "): NaN into Mmad" +
             where(later ? core->running.pc : core->op_pc) + ": " + matrix + " row " + std::to_string(row) + ", k " +
             std::to_string(k) + " [" + describe_core() + "]");
}

// A step of the cube adds the products of one fractal's depth; where the sums of steps are kept is a value of
// C.
template <class T>
void run_product(const Multiply& x) {
  const uint32_t element = size_of(x.input), c0 = kBlockBytes / element, step = c0 < 16 ? 16 : c0;
  const Product& p = x.p;
  const uint32_t depth = depth_of(p, c0), wide = (p.n + 15) / 16, tall = (p.m + 15) / 16 * 16;
  static thread_local T a[4096], b[4096][16];
  for (uint32_t column = 0; column < wide; ++column) {
    const uint32_t here = p.n - column * 16 < 16 ? p.n - column * 16 : 16;
    for (uint32_t k = 0; k < p.k; ++k) {
      const char* at = x.b + (k / c0 * wide + column) * kFractalBytes + k % c0 * element;
      for (uint32_t n = 0; n < 16; ++n) {
        b[k][n] = n < here ? value_at<T>(at + n * kBlockBytes, x.input) : T(0);
        if (b[k][n] != b[k][n]) report_nan("filter", column * 16 + n, k);
      }
    }
    for (uint32_t m = 0; m < p.m; ++m) {
      for (uint32_t k = 0; k < p.k; ++k) {
        const uint32_t fractal = p.m == 1 ? k / c0 * kBlockBytes : (m / 16 * depth + k / c0) * kFractalBytes;
        a[k] = value_at<T>(x.a + fractal + m % 16 * kBlockBytes + k % c0 * element, x.input);
        if (column == 0 && a[k] != a[k]) report_nan("fm", m, k);
      }
      T* to = reinterpret_cast<T*>(x.c) + (uint64_t{column} * tall + m) * 16;
      T sum[16];
      for (uint32_t n = 0; n < 16; ++n) sum[n] = p.from_zero ? T(0) : to[n];
      for (uint32_t first = 0; first < p.k; first += step) {
        const uint32_t end = first + step < p.k ? first + step : p.k;
        T part[16] = {};
        for (uint32_t k = first; k < end; ++k)
          for (uint32_t n = 0; n < 16; ++n) part[n] += a[k] * b[k][n];
        for (uint32_t n = 0; n < 16; ++n) sum[n] += part[n];
      }
      std::memcpy(to, sum, here * sizeof(T));
      if (p.from_zero) std::memset(to + here, 0xff, (16 - here) * sizeof(T));  // anything may stand there
    }
  }
}

void run_multiply(const void* payload) {
  const Multiply& x = *static_cast<const Multiply*>(payload);
  x.input == Type::i8 ? run_product<int32_t>(x) : run_product<float>(x);
}

// Rows of `bytes` valid bytes, 32 apart, of the fractal at `address`.
void touch_rows(Space space, uint32_t address, uint32_t rows, uint32_t bytes) {
  if (bytes == kBlockBytes) return core->touch(space, address, rows * kBlockBytes, false);
  for (uint32_t row = 0; row < rows; ++row) core->touch(space, address + row * kBlockBytes, bytes, false);
}

// The bytes that count. Others of the fractals are ignored.
void touch_operands(const Slice& a, const Slice& b, const Product& p, uint32_t element) {
  const uint32_t c0 = kBlockBytes / element, depth = depth_of(p, c0), wide = (p.n + 15) / 16;
  if (p.m == 1) core->touch(kL0A, a.address, p.k * element, false);
  for (uint32_t k = 0; k < p.k; k += c0) {
    const uint32_t bytes = (p.k - k < c0 ? p.k - k : c0) * element;
    for (uint32_t m = 0; p.m > 1 && m < p.m; m += 16)
      touch_rows(kL0A, a.address + (m / 16 * depth + k / c0) * kFractalBytes, p.m - m < 16 ? p.m - m : 16, bytes);
    for (uint32_t n = 0; n < p.n; n += 16)
      touch_rows(kL0B, b.address + (k / c0 * wide + n / 16) * kFractalBytes, p.n - n < 16 ? p.n - n : 16, bytes);
  }
}

void touch_result(const Slice& c, const Product& p) {
  const uint32_t tall = (p.m + 15) / 16 * 16;
  for (uint32_t n = 0; n < p.n; n += 16) {
    const uint32_t at = c.address + n / 16 * tall * 64;
    if (!p.from_zero) core->touch(kL0C, at, p.m * 64, false);
    core->touch(kL0C, at, p.m * 64, true);
  }
}

struct Store {
  char* dst;
  const char* c;
  Result r;
  Type type;
};
void run_store(const void* payload) {
  const Store& s = *static_cast<const Store*>(payload);
  const uint32_t element = s.type == Type::f32 || s.type == Type::i32 ? 4 : 2;
  for (uint32_t row = 0; row < s.r.rows; ++row)
    for (uint32_t column = 0; column < s.r.columns; column += 16) {
      const char* from = s.c + (uint64_t{column} / 16 * s.r.src_stride + row) * 64;
      char* to = s.dst + (uint64_t{row} * s.r.dst_stride + column) * element;
      if (element == 4) {
        std::memcpy(to, from, 64);
        continue;
      }
      uint16_t out[16];
      for (uint32_t i = 0; i < 16; ++i) {
        const float value = reinterpret_cast<const float*>(from)[i];
        out[i] = s.type == Type::bf16 ? bf16_bits(value, kRint) : half_bits(value, kRint);
      }
      std::memcpy(to, out, sizeof out);
    }
}

}  // namespace

void check_unit_flag(const char* api, uint32_t flag) {
  if (flag) violate(17, api, "unitFlag: expected 0 (order the pipes by M_FIX and FIX_M), got %u", flag);
}

void multiply(const Slice& c, const Slice& a, const Slice& b, Type input, const Product& p) {
  static const char api[] = "Mmad";
  need_cube(api);
  if (a.space != kL0A) violate(17, api, "fm: expected L0A (A2), got %s", kSpaceNames[a.space]);
  if (b.space != kL0B) violate(17, api, "filter: expected L0B (B2), got %s", kSpaceNames[b.space]);
  if (c.space != kL0C) violate(17, api, "dst: expected L0C (CO1), got %s", kSpaceNames[c.space]);
  core->begin_op(kM, api, __builtin_return_address(0));
  if (p.m > kMost || p.n > kMost || p.k > kMost)
    violate(17, api, "m, n, k: expected at most 4095, got %u, %u, %u", p.m, p.n, p.k);
  if (!p.m || !p.n || !p.k) return;
  const uint32_t element = size_of(input), c0 = kBlockBytes / element;
  if (p.k_by_16 && element != 4) violate(17, api, "kDirectionAlign is for float");
  check_aligned(api, "fm", a, 512);
  check_aligned(api, "filter", b, 512);
  check_aligned(api, "dst", c, 1024);
  const uint32_t tall = (p.m + 15) / 16, wide = (p.n + 15) / 16;
  const uint64_t a_bytes = p.m == 1 ? uint64_t{p.k} * element : uint64_t{tall} * depth_of(p, c0) * kFractalBytes;
  check_inside(api, "fm", a, 0, a_bytes);
  check_inside(api, "filter", b, 0, uint64_t{(p.k + c0 - 1) / c0} * wide * kFractalBytes);
  check_inside(api, "dst", c, 0, uint64_t{tall} * wide * 1024);
  // The page: successive products into L0C are ordered by themselves when (m / 16) * (n / 16) is 10 or more;
  // smaller ones need PipeBarrier<PIPE_M>.
  PipeState& pipe = core->pipes[kM];
  if ((p.m / 16) * (p.n / 16) < 10)
    core->last_small_product = pipe.seq;
  else if (core->last_small_product <= pipe.know.own[kM])
    pipe.know.own[kM] = pipe.seq - 1;
  touch_operands(a, b, p, element);
  touch_result(c, p);
  core->counters.cube_macs += uint64_t{p.m} * p.n * p.k;
  core->counters.cube_steps += uint64_t{tall} * wide * ((p.k + c0 - 1) / c0);
  core->submit(&run_multiply, Multiply{local(c), local(a), local(b), p, input});
}

void check_result_params(uint32_t matrices, bool relu, bool channel_split, Type dst, Type src, int quant) {
  static const char api[] = "Fixpipe";
  if (matrices != 1) violate(17, api, "ndNum: expected 1, got %u", matrices);
  if (relu || channel_split) violate(17, api, "expected neither reluEn nor isChannelSplit");
  const int expected = dst == src ? 0 : dst == Type::f16 ? 1 : 2;  // NoQuant, F322F16, F322BF16
  if (quant != expected)
    violate(17, api, "quantPre does not fit the type of dst: expected %d, got %d", expected, quant);
}

void store_result(void* dst, Type dst_type, const Slice& c, Type, const Result& r) {
  static const char api[] = "Fixpipe";
  need_cube(api);
  if (c.space != kL0C) violate(17, api, "src: expected L0C (CO1), got %s", kSpaceNames[c.space]);
  core->begin_op(kFix, api, __builtin_return_address(0));
  if (r.columns > kMost || r.columns % 16)
    violate(17, api, "nSize: expected a multiple of 16 up to 4095, got %u", r.columns);
  if (r.rows > 8192) violate(17, api, "mSize: expected 0 to 8192, got %u", r.rows);
  if (!r.rows || !r.columns) return;
  if (r.src_stride % 16 || r.src_stride < r.rows)
    violate(17, api, "srcStride: expected the rows of L0C's matrix rounded up to 16, at least mSize %u, got %u", r.rows,
            r.src_stride);
  if (r.dst_stride < r.columns && r.rows > 1)
    violate(17, api, "dstStride: expected at least nSize %u (rows must not overlap), got %u", r.columns, r.dst_stride);
  const uint32_t element = dst_type == Type::f32 || dst_type == Type::i32 ? 4 : 2;
  if (reinterpret_cast<uintptr_t>(dst) % element)
    violate(1, api, "global memory: expected an address aligned to %u bytes, got %p", element, dst);
  check_aligned(api, "src", c, 64);
  check_inside(api, "src", c, 0, (uint64_t{r.columns / 16 - 1} * r.src_stride + r.rows) * 64);
  for (uint32_t n = 0; n < r.columns / 16; ++n)
    core->touch(kL0C, c.address + n * r.src_stride * 64, r.rows * 64, false);
  if (r.dst_stride == r.columns)
    core->touch_global(dst, uint64_t{r.rows} * r.columns * element, true);
  else
    for (uint32_t row = 0; row < r.rows; ++row)
      core->touch_global(static_cast<char*>(dst) + uint64_t{row} * r.dst_stride * element,
                         uint64_t{r.columns} * element, true);
  core->count(kFix, dst, uint64_t{r.rows} * r.columns * element);
  core->submit(&run_store, Store{static_cast<char*>(dst), local(c), r, dst_type});
}

}  // namespace ascend_emu
