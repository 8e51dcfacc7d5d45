// SPDX-License-Identifier: Apache-2.0
// Cast: which round modes a pair of types takes (dav-2201), and the conversions.
#include "numbers.h"
#include "vector_math.h"

namespace ascend_emu {
namespace {

template <class T>
struct Bits16 {
  uint16_t bits;
};
using F16 = Bits16<half>;
using BF16 = Bits16<bfloat16_t>;

inline double widen(float x) { return x; }
inline double widen(F16 x) { return half_float(x.bits); }
inline double widen(BF16 x) { return bf16_float(x.bits); }
template <class I>
inline double widen(I x) { return static_cast<double>(x); }

// int32 and int64 to float: by the mode, not the processor's.
inline float float_of(double x, int mode) {
  const float nearest = static_cast<float>(x);
  const double error = static_cast<double>(nearest) - x;
  if (error == 0 || mode == kRint || mode == kNone) return nearest;
  const float up = error > 0 ? nearest : std::nextafter(nearest, INFINITY);
  const float down = error < 0 ? nearest : std::nextafter(nearest, -INFINITY);
  switch (mode) {
    case kFloor: return down;
    case kCeil: return up;
    case kTrunc: return x > 0 ? down : up;
    default: return static_cast<double>(up) - x == x - static_cast<double>(down) ? (x > 0 ? up : down) : nearest;
  }
}

template <class D, class S>
inline D convert(S x, int mode) {
  if constexpr (__is_same(D, F16)) return F16{half_bits(static_cast<float>(widen(x)), mode)};
  else if constexpr (__is_same(D, BF16)) return BF16{bf16_bits(static_cast<float>(widen(x)), mode)};
  else if constexpr (__is_same(D, float) && __is_same(S, float)) return static_cast<float>(round_integral(x, mode));
  else if constexpr (__is_same(D, float)) return float_of(widen(x), mode);
  else if constexpr (__is_same(S, int64_t) || (__is_same(S, int32_t) && sizeof(D) >= 2)) {
    const int64_t v = x, low = -(int64_t{1} << (sizeof(D) * 8 - 1)), high = -(low + 1);
    return static_cast<D>(v < low ? low : v > high ? high : v);
  } else return saturated<D>(round_integral(widen(x), mode));
}

template <class D, class S>
void flat_cast(void* dst, const void* a, const void*, uint64_t mode, uint32_t n) {
  D* d = static_cast<D*>(dst);
  const S* s = static_cast<const S*>(a);
  if (mode == kRint) {  // the usual one, without a choice in the loop
    for (uint32_t i = 0; i < n; ++i) d[i] = convert<D, S>(s[i], kRint);
    return;
  }
  for (uint32_t i = 0; i < n; ++i) d[i] = convert<D, S>(s[i], static_cast<int>(mode));
}

constexpr uint32_t bit(int mode) { return 1u << mode; }
constexpr uint32_t kDirected = bit(kRint) | bit(kFloor) | bit(kCeil) | bit(kRoundAway) | bit(kTrunc);

struct Pair {
  Type dst, src;
  uint32_t modes;
  Flat run;
};
const Pair kPairs[] = {
    {Type::f32, Type::f16, bit(kNone), &flat_cast<float, F16>},
    {Type::i32, Type::f16, kDirected, &flat_cast<int32_t, F16>},
    {Type::i16, Type::f16, kDirected, &flat_cast<int16_t, F16>},
    {Type::i8, Type::f16, kDirected | bit(kNone), &flat_cast<int8_t, F16>},
    {Type::u8, Type::f16, kDirected | bit(kNone), &flat_cast<uint8_t, F16>},
    {Type::f32, Type::bf16, bit(kNone), &flat_cast<float, BF16>},
    {Type::i32, Type::bf16, kDirected, &flat_cast<int32_t, BF16>},
    {Type::f32, Type::f32, kDirected, &flat_cast<float, float>},
    {Type::f16, Type::f32, kDirected | bit(kOdd) | bit(kNone), &flat_cast<F16, float>},
    {Type::bf16, Type::f32, kDirected, &flat_cast<BF16, float>},
    {Type::i16, Type::f32, kDirected, &flat_cast<int16_t, float>},
    {Type::i32, Type::f32, kDirected, &flat_cast<int32_t, float>},
    {Type::i64, Type::f32, kDirected, &flat_cast<int64_t, float>},
    {Type::f16, Type::i8, bit(kNone), &flat_cast<F16, int8_t>},
    {Type::f16, Type::u8, bit(kNone), &flat_cast<F16, uint8_t>},
    {Type::f16, Type::i16, kDirected | bit(kNone), &flat_cast<F16, int16_t>},
    {Type::f32, Type::i16, bit(kNone), &flat_cast<float, int16_t>},
    {Type::f32, Type::i32, kDirected | bit(kNone), &flat_cast<float, int32_t>},
    {Type::i16, Type::i32, bit(kNone), &flat_cast<int16_t, int32_t>},
    {Type::i64, Type::i32, bit(kNone), &flat_cast<int64_t, int32_t>},
    {Type::i32, Type::i64, bit(kNone), &flat_cast<int32_t, int64_t>},
    {Type::f32, Type::i64, kDirected, &flat_cast<float, int64_t>},
};

const Pair* pair_of(Type dst, Type src) {
  for (const Pair& p : kPairs)
    if (p.dst == dst && p.src == src) return &p;
  return nullptr;
}

}  // namespace

Flat cast_of(Type dst, Type src) {
  const Pair* p = pair_of(dst, src);
  return p ? p->run : nullptr;
}
bool cast_allows(Type dst, Type src, int mode) {
  const Pair* p = pair_of(dst, src);
  return p && mode >= 0 && mode < 8 && (p->modes >> mode & 1);
}

}  // namespace ascend_emu
