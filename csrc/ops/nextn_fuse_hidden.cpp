// SPDX-License-Identifier: Apache-2.0
#include "mhc_common.h"

namespace dsv4 {

using Args = dsv4_nextn_fuse_hidden_args;
using Params = NextnFuseHiddenParams;

static const Field kFields[] = {DSV4_IN(embeds), DSV4_IN(hidden), DSV4_IN(enorm_weight), DSV4_IN(hnorm_weight),
                                DSV4_IN(e_proj), DSV4_IN(h_proj), DSV4_OPTIONAL_IN(e_proj_scale),
                                DSV4_OPTIONAL_IN(h_proj_scale), DSV4_OUT(out), DSV4_DOUBLE(eps)};

static TensorView scale_of(Checker& c, const char* name, const DLTensor* t, Dtype weight, Dim& d) {
  if (weight == kF8E4M3) {
    Dim blocks("ceil(d/128)", ceil_div(d, 128));
    TensorView v = c.in(name, t, {kE8M0, kU8}, {blocks, blocks});
    v.dtype = kU8;  // launchers read the exponent byte
    return v;
  }
  if (weight == kI8) return c.in(name, t, {kF32}, {d});
  c.expect(!t, name, [&] { return std::string("None for ") + dtype_name(weight) + " weights"; }, "a tensor");
  return TensorView{};
}

static std::string shape_of(int64_t rows, int64_t columns) {
  return "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]";
}

static bool fill(Checker& c, const Args& a, Params& p) {
  Dim T("T"), hc("hc"), d("d"), width("hc*d");
  p.embeds = c.in("embeds", a.embeds, kStreams, {T, d});
  c.expect(d >= 8 && d <= 32768 && d % 8 == 0, "embeds", "a width d that is a multiple of 8 from 8 to 32768", d);
  p.hidden = c.in("hidden", a.hidden, {p.embeds.dtype}, {T, width});
  c.expect(width == d || width == 2 * d || width == 4 * d, "hidden",
           [&] {
             return "shape [T, hc*d] with hc 1, 2 or 4: " + shape_of(T, d) + ", " + shape_of(T, 2 * d) + " or " +
                    shape_of(T, 4 * d);
           },
           [&] { return shape_of(T, width); });
  p.enorm_weight = c.in("enorm_weight", a.enorm_weight, {kF32, kBF16}, {d});
  p.hnorm_weight = c.in("hnorm_weight", a.hnorm_weight, {kF32, kBF16}, {d});
  p.e_proj = c.in("e_proj", a.e_proj, {kF32, kBF16, kF16, kF8E4M3, kI8}, {d, d});
  p.h_proj = c.in("h_proj", a.h_proj, {p.e_proj.dtype}, {d, d});
  p.e_proj_scale = scale_of(c, "e_proj_scale", a.e_proj_scale, p.e_proj.dtype, d);
  p.h_proj_scale = scale_of(c, "h_proj_scale", a.h_proj_scale, p.e_proj.dtype, d);
  p.out = c.out("out", a.out, {p.embeds.dtype}, {T, hc, d});
  c.expect(width == hc * d, "hidden",
           [&] {
             return "shape [T, hc*d] = " + shape_of(T, hc * d) + " for the " + std::to_string(hc.value) + " streams of out";
           },
           [&] { return shape_of(T, width); });
  c.expect(a.eps >= 0 && a.eps < 1, "eps", "a value in [0, 1)", a.eps);
  c.finish();
  p.T = T, p.hc = hc, p.d = d, p.eps = a.eps;
  return T > 0;
}

DSV4_DEFINE_OP_WITH_WORKSPACE(nextn_fuse_hidden)

}  // namespace dsv4
