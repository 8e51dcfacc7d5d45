// SPDX-License-Identifier: Apache-2.0
// The cube core: matrices into L1 and the L0 buffers, products, and results out of L0C.
//
// A fractal is 512 bytes: 16 rows of 32 bytes, so of c0 = 32 / sizeof(T) elements. Where matrices lie
// (dav-2201):
//   L1    NZ  column blocks of c0; in each, all rows one after another
//   L0A   ZZ  fractal (m / 16, k / c0) at index row * ceil(K / c0) + column; rows of m inside
//   L0B   ZN  fractal (k / c0, n / 16) at index row * ceil(N / 16) + column; rows of n inside, so c0 k's stand together
//   L0C   NZ  column blocks of 16 values of 4 bytes; in each, ceil(M / 16) * 16 rows
// So B given as [n, k] in memory (k inside) is ZN as soon as it is NZ; B given as [k, n] has every fractal
// transposed.
#pragma once
#include "copy.h"

namespace ascend_emu {

struct NzShape {
  uint32_t matrices, rows, columns, src_matrix, src_row, dst_column, dst_row, dst_matrix;  // as Nd2NzParams
};
void copy_nd_to_nz(const Slice& dst, const void* src, const NzShape& shape, uint32_t element);

struct FractalShape {
  uint32_t start, repeat, src_stride, dst_gap, dst_fractal_gap;  // squares where transposed by squares, else fractals
};
void load_fractals(const Slice& dst, const Slice& src, const FractalShape& shape, uint32_t element, bool transpose);
void load_squares(const Slice& dst, const Slice& src, const FractalShape& shape, uint32_t element);
void check_address_mode(const char* api, uint32_t mode);

struct Product {
  uint32_t m, n, k;
  bool from_zero, k_by_16;
};
void multiply(const Slice& c, const Slice& a, const Slice& b, Type input, const Product& product);
void check_unit_flag(const char* api, uint32_t flag);

struct Result {
  uint32_t rows, columns, src_stride, dst_stride;
};
void store_result(void* dst, Type dst_type, const Slice& c, Type c_type, const Result& result);
void check_result_params(uint32_t matrices, bool relu, bool channel_split, Type dst, Type src, int quant);

}  // namespace ascend_emu

namespace AscendC {

struct Nd2NzParams {
  uint16_t ndNum = 0, nValue = 0, dValue = 0, srcNdMatrixStride = 0, srcDValue = 0;
  uint16_t dstNzC0Stride = 0, dstNzNStride = 0, dstNzMatrixStride = 0;
  Nd2NzParams() = default;
  Nd2NzParams(uint16_t matrices, uint16_t rows, uint16_t columns, uint16_t src_matrix, uint16_t src_row,
              uint16_t dst_column, uint16_t dst_row, uint16_t dst_matrix)
      : ndNum(matrices), nValue(rows), dValue(columns), srcNdMatrixStride(src_matrix), srcDValue(src_row),
        dstNzC0Stride(dst_column), dstNzNStride(dst_row), dstNzMatrixStride(dst_matrix) {}
};

struct LoadData2DParams {
  uint16_t startIndex = 0, dstGap = 0, srcStride = 0;
  bool ifTranspose = false;
  uint8_t repeatTimes = 0, sid = 0, addrMode = 0;
  LoadData2DParams() = default;
  LoadData2DParams(uint16_t start, uint8_t repeat, uint16_t src_stride, uint8_t id, uint16_t dst_gap, bool transpose,
                   uint8_t mode)
      : startIndex(start), dstGap(dst_gap), srcStride(src_stride), ifTranspose(transpose), repeatTimes(repeat), sid(id),
        addrMode(mode) {}
};
using LoadData2dParams = LoadData2DParams;

struct LoadData2dTransposeParams {
  uint16_t startIndex = 0;
  uint8_t repeatTimes = 0;
  uint16_t srcStride = 0, dstGap = 0, dstFracGap = 0;
  uint8_t addrMode = 0;
  LoadData2dTransposeParams() = default;
  LoadData2dTransposeParams(uint16_t start, uint8_t repeat, uint16_t src_stride, uint16_t dst_gap,
                            uint16_t dst_fractal_gap, uint8_t mode = 0)
      : startIndex(start), repeatTimes(repeat), srcStride(src_stride), dstGap(dst_gap), dstFracGap(dst_fractal_gap),
        addrMode(mode) {}
};

struct MmadParams {
  uint16_t m = 0, n = 0, k = 0;
  bool isBias = false;
  int32_t fmOffset = 0;
  bool enSsparse = false, enWinogradA = false, enWinogradB = false;
  uint8_t unitFlag = 0;
  bool kDirectionAlign = false, cmatrixSource = false, cmatrixInitVal = true;
  MmadParams() = default;
  MmadParams(uint16_t rows, uint16_t columns, uint16_t depth, uint8_t unit, bool from_bias, bool from_zero)
      : m(rows), n(columns), k(depth), unitFlag(unit), cmatrixSource(from_bias), cmatrixInitVal(from_zero) {}
};

enum class CO2Layout : uint8_t { NZ, ROW_MAJOR, COLUMN_MAJOR };
struct FixpipeConfig {
  CO2Layout format;
};
constexpr FixpipeConfig CFG_NZ = {CO2Layout::NZ};
constexpr FixpipeConfig CFG_ROW_MAJOR = {CO2Layout::ROW_MAJOR};
constexpr FixpipeConfig CFG_COLUMN_MAJOR = {CO2Layout::COLUMN_MAJOR};

}  // namespace AscendC

enum QuantMode_t { NoQuant, F322F16, F322BF16, DEQF16, VDEQF16, QF322B8_PRE, VQF322B8_PRE, REQ8, VREQ8 };

namespace AscendC {

struct FixpipeParamsV220 {
  uint16_t nSize = 0, mSize = 0, srcStride = 0;
  uint32_t dstStride = 0;
  QuantMode_t quantPre = QuantMode_t::NoQuant;
  uint64_t deqScalar = 0;
  uint16_t ndNum = 1, srcNdStride = 0, dstNdStride = 0;
  bool reluEn = false;
  uint8_t unitFlag = 0;
  bool isChannelSplit = false;
  FixpipeParamsV220() = default;
  FixpipeParamsV220(uint16_t columns, uint16_t rows, uint16_t src_stride, uint32_t dst_stride, bool relu)
      : nSize(columns), mSize(rows), srcStride(src_stride), dstStride(dst_stride), reluEn(relu) {}
};

// ---- global memory -> L1, rows become NZ
template <class T>
ASCEND_EMU_API void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const Nd2NzParams& p) {
  static_assert(sizeof(T) <= 4, "rule 17: Nd2Nz takes elements of 1, 2 or 4 bytes");
  ascend_emu::copy_nd_to_nz(dst.emu_slice(), src.emu_address(),
                            {p.ndNum, p.nValue, p.dValue, p.srcNdMatrixStride, p.srcDValue, p.dstNzC0Stride,
                             p.dstNzNStride, p.dstNzMatrixStride}, sizeof(T));
}

// ---- L1 -> L0A, L0B
template <class T>
ASCEND_EMU_API void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData2DParams& p) {
  static_assert(ascend_emu::one_of<T, int8_t, uint8_t, int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float>,
                "rule 17: LoadData takes elements of 1, 2 or 4 bytes");
  ascend_emu::check_address_mode("LoadData", p.addrMode);
  ascend_emu::load_fractals(dst.emu_slice(), src.emu_slice(),
                            {p.startIndex, p.repeatTimes, p.srcStride, p.dstGap, 0}, sizeof(T), p.ifTranspose);
}
template <class T>
ASCEND_EMU_API void LoadDataWithTranspose(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                          const LoadData2dTransposeParams& p) {
  static_assert(ascend_emu::one_of<T, int8_t, uint8_t, half, bfloat16_t, int32_t, uint32_t, float>,
                "rule 17: LoadDataWithTranspose: int8, uint8, half, bfloat16, int32, uint32, float");
  ascend_emu::check_address_mode("LoadDataWithTranspose", p.addrMode);
  ascend_emu::load_squares(dst.emu_slice(), src.emu_slice(),
                           {p.startIndex, p.repeatTimes, p.srcStride, p.dstGap, p.dstFracGap}, sizeof(T));
}

// ---- products
template <class T, class U, class S>
ASCEND_EMU_API void Mmad(const LocalTensor<T>& dst, const LocalTensor<U>& fm, const LocalTensor<S>& filter,
                         const MmadParams& p) {
  static_assert(__is_same(U, S), "rule 17: Mmad: both matrices are of one type");
  static_assert((ascend_emu::one_of<U, half, bfloat16_t, float> && __is_same(T, float)) ||
                (__is_same(U, int8_t) && __is_same(T, int32_t)),
                "rule 17: Mmad: half, bfloat16 and float give float; int8 gives int32");
  if (p.cmatrixSource || p.isBias) ascend_emu::violate(17, "Mmad", "no bias here: cmatrixSource and isBias are false");
  ascend_emu::check_unit_flag("Mmad", p.unitFlag);
  ascend_emu::multiply(dst.emu_slice(), fm.emu_slice(), filter.emu_slice(), ascend_emu::type_of<U>,
                       {p.m, p.n, p.k, p.cmatrixInitVal, p.kDirectionAlign});
}

// ---- L0C -> global memory, NZ becomes rows
template <class T, class U, const FixpipeConfig& config = CFG_ROW_MAJOR>
ASCEND_EMU_API void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsV220& p) {
  static_assert(config.format == CO2Layout::ROW_MAJOR, "rule 17: Fixpipe: CFG_ROW_MAJOR only, here");
  static_assert((__is_same(U, float) && ascend_emu::one_of<T, half, bfloat16_t, float>) ||
                (__is_same(U, int32_t) && __is_same(T, int32_t)),
                "rule 17: Fixpipe: float to half, bfloat16 or float; int32 to int32");
  ascend_emu::check_unit_flag("Fixpipe", p.unitFlag);
  ascend_emu::check_result_params(p.ndNum, p.reluEn, p.isChannelSplit, ascend_emu::type_of<T>, ascend_emu::type_of<U>,
                                  p.quantPre);
  ascend_emu::store_result(dst.emu_address(), ascend_emu::type_of<T>, src.emu_slice(), ascend_emu::type_of<U>,
                           {p.mSize, p.nSize, p.srcStride, p.dstStride});
}

}  // namespace AscendC
