// SPDX-License-Identifier: Apache-2.0
#include "instructions.h"

#include <cstring>

namespace cuda_emu {
namespace {

constexpr uint32_t kAll = 0xffffffffu;

float low(uint32_t pair) {
  pair <<= 16;
  float f;
  std::memcpy(&f, &pair, sizeof f);
  return f;
}
float high(uint32_t pair) {
  pair &= 0xffff0000u;
  float f;
  std::memcpy(&f, &pair, sizeof f);
  return f;
}

struct MmaSlot {
  uint32_t a[4], b[2];
  float d[4];
};

// D += A B with A 16x16, B 16x8. Fragments as in the PTX ISA: lane = 4 * row + column pair. Products of bf16 are exact
// in float; the sum over k is rounded at each step, while a device adds several products at once: bits differ there.
void multiply(void* const* slots, uint32_t) {
  float a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const MmaSlot& s = *static_cast<const MmaSlot*>(slots[lane]);
    const int g = lane / 4, t = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {  // registers 0, 1: columns t, t + 1; registers 2, 3: eight further
      a[g][t + 8 * half] = low(s.a[2 * half]);
      a[g][t + 8 * half + 1] = high(s.a[2 * half]);
      a[g + 8][t + 8 * half] = low(s.a[2 * half + 1]);
      a[g + 8][t + 8 * half + 1] = high(s.a[2 * half + 1]);
      b[t + 8 * half][g] = low(s.b[half]);
      b[t + 8 * half + 1][g] = high(s.b[half]);
    }
    d[g][t] = s.d[0], d[g][t + 1] = s.d[1], d[g + 8][t] = s.d[2], d[g + 8][t + 1] = s.d[3];
  }
  for (int i = 0; i < 16; ++i) {
    float sum[8] = {};
    for (int k = 0; k < 16; ++k)
      for (int j = 0; j < 8; ++j) sum[j] += a[i][k] * b[k][j];
    for (int j = 0; j < 8; ++j) d[i][j] += sum[j];
  }
  for (int lane = 0; lane < 32; ++lane) {
    MmaSlot& s = *static_cast<MmaSlot*>(slots[lane]);
    const int g = lane / 4, t = lane % 4 * 2;
    s.d[0] = d[g][t], s.d[1] = d[g][t + 1], s.d[2] = d[g + 8][t], s.d[3] = d[g + 8][t + 1];
  }
}

struct MatrixSlot {
  uint16_t row[8];    // of matrix lane / 8, row lane % 8
  uint32_t result[4];
};

template <bool transposed>
void distribute(void* const* slots, uint32_t) {
  const auto element = [&](int matrix, int row, int column) {
    return static_cast<const MatrixSlot*>(slots[matrix * 8 + row])->row[column];
  };
  for (int lane = 0; lane < 32; ++lane)
    for (int m = 0; m < 4; ++m) {
      const int g = lane / 4, t = lane % 4 * 2;
      const uint32_t first = transposed ? element(m, t, g) : element(m, g, t);
      const uint32_t second = transposed ? element(m, t + 1, g) : element(m, g, t + 1);
      static_cast<MatrixSlot*>(slots[lane])->result[m] = first | second << 16;
    }
}

}  // namespace

void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Site site) {
  MmaSlot slot;
  std::memcpy(slot.a, a, sizeof slot.a);
  std::memcpy(slot.b, b, sizeof slot.b);
  std::memcpy(slot.d, d, sizeof slot.d);
  current_block().events.mma += current().lane == 0;
  rendezvous("mma.m16n8k16", kAll, &slot, &multiply, site);
  std::memcpy(d, slot.d, sizeof slot.d);
}

__attribute__((noinline)) void ldmatrix_x4(uint32_t (&r)[4], const void* row, bool transposed, Site site) {
  if (reinterpret_cast<uintptr_t>(row) % 16)
    fail("ldmatrix (%s:%d): row address %p, expected a multiple of 16", site.name(), site.line, row);
  const Block& block = current_block();
  const char* p = static_cast<const char*>(row);
  const bool shared = (p >= block.dynamic && p + 16 <= block.dynamic + block.dynamic_size) ||
                      (p >= block.statics && p + 16 <= block.statics + block.statics_size);
  if (!shared)
    fail("ldmatrix (%s:%d): row address %p, offset %td of %zu bytes of dynamic shared memory, expected an address in "
         "shared memory", site.name(), site.line, row, p - block.dynamic, block.dynamic_size);
  note_access(row, 16, Access::kRead, __builtin_return_address(0));
  current_block().events.ldmatrix += current().lane == 0;
  MatrixSlot slot;
  std::memcpy(slot.row, row, sizeof slot.row);
  rendezvous(transposed ? "ldmatrix.x4.trans" : "ldmatrix.x4", kAll, &slot,
             transposed ? &distribute<true> : &distribute<false>, site);
  std::memcpy(r, slot.result, sizeof slot.result);
}

}  // namespace cuda_emu
