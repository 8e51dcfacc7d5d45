// SPDX-License-Identifier: Apache-2.0
#include "vector_math.h"

#include <algorithm>

#include "numbers.h"

half::half(float value) : bits(ascend_emu::half_bits(value, ascend_emu::kRint)) {}
half::operator float() const { return ascend_emu::half_float(bits); }

namespace ascend_emu {

bfloat16_t scalar_bf16(float value) { return bfloat16_t{bf16_bits(value, kRint)}; }
float scalar_float(bfloat16_t value) { return bf16_float(value.bits); }

namespace {

// Half arithmetic is float arithmetic, rounded once.
inline float load(float x) { return x; }
inline float load(half x) { return half_float(x.bits); }
template <class I>
inline I load(I x) { return x; }
template <class T, class V>
inline T store(V v) {
  if constexpr (__is_same(T, half)) {
    half h;
    h.bits = half_bits(v, kRint);
    return h;
  } else {
    return static_cast<T>(v);
  }
}
template <class T>
inline T scalar_of(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
// The documentation promises less than 1e-4 for these: twelve bits are kept.
inline float coarse(float x) {
  return std::isfinite(x) ? bit_cast<float>(round_bits(bit_cast<uint32_t>(x), 12, kTrunc)) : x;
}

template <Math op, class V>
inline V two(V a, V b) {
  if constexpr (op == Math::Add) return a + b;
  if constexpr (op == Math::Sub) return a - b;
  if constexpr (op == Math::Mul) return a * b;
  if constexpr (op == Math::Div) return a / b;
  if constexpr (op == Math::Max) return a != a || b != b ? a + b : a > b ? a : b;
  if constexpr (op == Math::Min) return a != a || b != b ? a + b : a < b ? a : b;
}
template <Math op, class V>
inline V one(V a) {
  if constexpr (op == Math::Abs) return std::fabs(a);
  if constexpr (op == Math::Exp) return std::exp(a);
  if constexpr (op == Math::Ln) return std::log(a);
  if constexpr (op == Math::Sqrt) return std::sqrt(a);
  if constexpr (op == Math::Rsqrt) return coarse(1 / std::sqrt(a));
  if constexpr (op == Math::Reciprocal) return coarse(1 / a);
  if constexpr (op == Math::Relu) return a > 0 || a != a ? a : V(0);
}
template <Math op, class V>
inline V with(V a, V s, V d) {
  if constexpr (op == Math::Adds) return a + s;
  if constexpr (op == Math::Muls) return a * s;
  if constexpr (op == Math::Maxs) return two<Math::Max>(a, s);
  if constexpr (op == Math::Mins) return two<Math::Min>(a, s);
  if constexpr (op == Math::LeakyRelu) return a >= 0 ? a : a * s;
  if constexpr (op == Math::Axpy) return a * s + d;
}

template <Math op, class T>
void flat_two(void* dst, const void* a, const void* b, uint64_t, uint32_t n) {
  T* d = static_cast<T*>(dst);
  const T *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
  for (uint32_t i = 0; i < n; ++i) d[i] = store<T>(two<op>(load(x[i]), load(y[i])));
}
template <Math op, class T>
void flat_bits(void* dst, const void* a, const void* b, uint64_t, uint32_t n) {
  T* d = static_cast<T*>(dst);
  const T *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
  for (uint32_t i = 0; i < n; ++i)
    d[i] = static_cast<T>(op == Math::And ? x[i] & y[i] : op == Math::Or ? x[i] | y[i] : ~x[i]);
}
template <class T>
void flat_mul_add_dst(void* dst, const void* a, const void* b, uint64_t, uint32_t n) {
  T* d = static_cast<T*>(dst);
  const T *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
  for (uint32_t i = 0; i < n; ++i) d[i] = store<T>(load(x[i]) * load(y[i]) + load(d[i]));
}
template <Math op, class T>
void flat_one(void* dst, const void* a, const void*, uint64_t, uint32_t n) {
  T* d = static_cast<T*>(dst);
  const T* x = static_cast<const T*>(a);
  for (uint32_t i = 0; i < n; ++i) d[i] = store<T>(one<op>(load(x[i])));
}
template <Math op, class T, class S>
void flat_scalar(void* dst, const void* a, const void*, uint64_t scalar, uint32_t n) {
  T* d = static_cast<T*>(dst);
  const S* x = static_cast<const S*>(a);
  const auto s = load(scalar_of<S>(scalar));
  for (uint32_t i = 0; i < n; ++i) {
    if constexpr (op == Math::Axpy) d[i] = store<T>(with<op, float>(load(x[i]), s, load(d[i])));
    else d[i] = store<T>(with<op>(load(x[i]), s, s));
  }
}
template <bool left, class T>
void flat_shift(void* dst, const void* a, const void*, uint64_t scalar, uint32_t n) {
  T* d = static_cast<T*>(dst);
  const T* x = static_cast<const T*>(a);
  const int s = static_cast<int>(scalar_of<T>(scalar));
  constexpr int width = sizeof(T) * 8;
  for (uint32_t i = 0; i < n; ++i) {
    if (left) d[i] = s >= width ? T(0) : static_cast<T>(static_cast<uint64_t>(x[i]) << s);
    else d[i] = static_cast<T>(x[i] >> (s >= width ? width - 1 : s)) & (s >= width && T(-1) > T(0) ? T(0) : T(-1));
  }
}
template <class T>
void flat_fill(void* dst, const void*, const void*, uint64_t scalar, uint32_t n) {
  T* d = static_cast<T*>(dst);
  const T value = scalar_of<T>(scalar);
  for (uint32_t i = 0; i < n; ++i) d[i] = value;
}
template <class T>
void flat_copy(void* dst, const void* a, const void*, uint64_t, uint32_t n) { std::memmove(dst, a, n * sizeof(T)); }

template <Math op>
Flat arithmetic_two(Type t, bool integers) {
  if (t == Type::f32) return &flat_two<op, float>;
  if (t == Type::f16) return &flat_two<op, half>;
  if constexpr (op != Math::Div) {
    if (integers && t == Type::i16) return &flat_two<op, int16_t>;
    if (integers && t == Type::i32) return &flat_two<op, int32_t>;
  }
  return nullptr;
}
template <Math op>
Flat arithmetic_one(Type t) {
  if (t == Type::f32) return &flat_one<op, float>;
  if (t == Type::f16) return &flat_one<op, half>;
  return nullptr;
}
template <Math op>
Flat arithmetic_scalar(Type t) {
  if (t == Type::f32) return &flat_scalar<op, float, float>;
  if (t == Type::f16) return &flat_scalar<op, half, half>;
  if (t == Type::i16) return &flat_scalar<op, int16_t, int16_t>;
  if (t == Type::i32) return &flat_scalar<op, int32_t, int32_t>;
  return nullptr;
}
template <bool left>
Flat shift(Type t) {
  if (t == Type::i16) return &flat_shift<left, int16_t>;
  if (t == Type::u16) return &flat_shift<left, uint16_t>;
  if (t == Type::i32) return &flat_shift<left, int32_t>;
  if (t == Type::u32) return &flat_shift<left, uint32_t>;
  return nullptr;
}

}  // namespace

Flat math_of(Math op, Type dst, Type src) {
  switch (op) {
    case Math::Add: return arithmetic_two<Math::Add>(dst, true);
    case Math::Sub: return arithmetic_two<Math::Sub>(dst, true);
    case Math::Mul: return arithmetic_two<Math::Mul>(dst, true);
    case Math::Div: return arithmetic_two<Math::Div>(dst, false);
    case Math::Max: return arithmetic_two<Math::Max>(dst, true);
    case Math::Min: return arithmetic_two<Math::Min>(dst, true);
    case Math::And: return &flat_bits<Math::And, uint16_t>;
    case Math::Or: return &flat_bits<Math::Or, uint16_t>;
    case Math::Not: return [](void* d, const void* a, const void*, uint64_t s, uint32_t n) {
      flat_bits<Math::Not, uint16_t>(d, a, a, s, n);
    };
    case Math::MulAddDst: return dst == Type::f32 ? &flat_mul_add_dst<float> : &flat_mul_add_dst<half>;
    case Math::Abs: return arithmetic_one<Math::Abs>(dst);
    case Math::Exp: return arithmetic_one<Math::Exp>(dst);
    case Math::Ln: return arithmetic_one<Math::Ln>(dst);
    case Math::Sqrt: return arithmetic_one<Math::Sqrt>(dst);
    case Math::Rsqrt: return arithmetic_one<Math::Rsqrt>(dst);
    case Math::Reciprocal: return arithmetic_one<Math::Reciprocal>(dst);
    case Math::Relu: return dst == Type::i32 ? &flat_one<Math::Relu, int32_t> : arithmetic_one<Math::Relu>(dst);
    case Math::Copy:
      return size_of(dst) == 4 ? &flat_copy<float> : size_of(dst) == 2 ? &flat_copy<uint16_t> : nullptr;
    case Math::Adds: return arithmetic_scalar<Math::Adds>(dst);
    case Math::Muls: return arithmetic_scalar<Math::Muls>(dst);
    case Math::Maxs: return arithmetic_scalar<Math::Maxs>(dst);
    case Math::Mins: return arithmetic_scalar<Math::Mins>(dst);
    case Math::LeakyRelu:
      return dst == Type::f32 ? &flat_scalar<Math::LeakyRelu, float, float>
                              : &flat_scalar<Math::LeakyRelu, half, half>;
    case Math::Axpy:
      return dst == Type::f16   ? &flat_scalar<Math::Axpy, half, half>
             : src == Type::f16 ? &flat_scalar<Math::Axpy, float, half>
                                : &flat_scalar<Math::Axpy, float, float>;
    case Math::ShiftLeft: return shift<true>(dst);
    case Math::ShiftRight: return shift<false>(dst);
    case Math::Duplicate:
      return size_of(dst) == 4 ? &flat_fill<uint32_t> : size_of(dst) == 2 ? &flat_fill<uint16_t> : nullptr;
  }
  return nullptr;
}

double value_of(Type t, const void* p) {
  const auto get = [p](auto zero) {
    std::memcpy(&zero, p, sizeof zero);
    return zero;
  };
  switch (t) {
    case Type::f32: return get(0.f);
    case Type::f16: return half_float(get(uint16_t{}));
    case Type::bf16: return bf16_float(get(uint16_t{}));
    case Type::i8: return get(int8_t{});
    case Type::u8: return get(uint8_t{});
    case Type::i16: return get(int16_t{});
    case Type::u16: return get(uint16_t{});
    case Type::i32: return get(int32_t{});
    case Type::u32: return get(uint32_t{});
    case Type::i64: return static_cast<double>(get(int64_t{}));
    default: return static_cast<double>(get(uint64_t{}));
  }
}
void store_value(Type t, void* p, double value) {
  const auto put = [p](auto v) { std::memcpy(p, &v, sizeof v); };
  switch (t) {
    case Type::f32: return put(static_cast<float>(value));
    case Type::f16: return put(half_bits(static_cast<float>(value), kRint));
    case Type::bf16: return put(bf16_bits(static_cast<float>(value), kRint));
    case Type::i8: case Type::u8: return put(static_cast<int8_t>(value));
    case Type::i16: case Type::u16: return put(static_cast<int16_t>(static_cast<int64_t>(value)));
    case Type::i32: case Type::u32: return put(static_cast<int32_t>(static_cast<int64_t>(value)));
    default: return put(static_cast<int64_t>(value));
  }
}

}  // namespace ascend_emu
