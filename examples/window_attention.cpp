// SPDX-License-Identifier: Apache-2.0
// Sliding-window attention in C++17 over this program's own paged memory: one request verifies three rows, the other
// decodes one. The result is compared with a plain loop over the keys that each row may see. Build: CMakeLists.txt.
#include <dsv4spec/dsv4spec.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

namespace {

constexpr int64_t kHeads = 4, kDim = 64, kPage = 4, kPages = 12, kWindow = 6;
constexpr float kScale = 0.125f;

// A C-contiguous tensor that owns its memory.
template <class T, uint8_t code>
struct Tensor {
  std::vector<int64_t> shape;
  std::vector<T> data;
  DLTensor dl{};

  explicit Tensor(std::vector<int64_t> s) : shape(std::move(s)) {
    int64_t n = 1;
    for (int64_t size : shape) n *= size;
    data.resize(n);
    dl.data = data.data();
    dl.device = {kDLCPU, 0};
    dl.ndim = static_cast<int32_t>(shape.size());
    dl.dtype = {code, sizeof(T) * 8, 1};
    dl.shape = shape.data();
  }
  Tensor(const Tensor&) = delete;  // dl points into this
};
using Floats = Tensor<float, kDLFloat>;
using Ints = Tensor<int32_t, kDLInt>;

struct Request {
  int64_t rows, length;        // query rows; keys, those of the query rows included
  std::vector<int32_t> pages;  // page of positions 0..3, 4..7, ..; -1: given back, as below the window
};

// The key of a request at a position.
const float* key(const Floats& kv, const Request& r, int64_t position) {
  return &kv.data[(r.pages[position / kPage] * kPage + position % kPage) * kDim];
}

std::vector<float> plain_loop(const Floats& q, const Floats& kv, const Floats& sink, const std::vector<Request>& requests) {
  std::vector<float> out(q.data.size());
  int64_t row = 0;
  for (const Request& r : requests)
    for (int64_t j = 0; j < r.rows; ++j, ++row) {
      const int64_t position = r.length - r.rows + j;
      for (int64_t h = 0; h < kHeads; ++h) {
        const float* query = &q.data[(row * kHeads + h) * kDim];
        double sum = std::exp(static_cast<double>(sink.data[h]));  // of the denominator only
        std::vector<double> mix(kDim);
        for (int64_t x = std::max<int64_t>(0, position - kWindow + 1); x <= position; ++x) {
          const float* k = key(kv, r, x);
          double logit = 0;
          for (int64_t d = 0; d < kDim; ++d) logit += static_cast<double>(query[d]) * k[d];
          const double weight = std::exp(logit * kScale);
          sum += weight;
          for (int64_t d = 0; d < kDim; ++d) mix[d] += weight * k[d];
        }
        for (int64_t d = 0; d < kDim; ++d) out[(row * kHeads + h) * kDim + d] = static_cast<float>(mix[d] / sum);
      }
    }
  return out;
}

}  // namespace

int main() {
  // Pages lie in no order; the first request's page of positions 0..3 is below the window of all its rows.
  const std::vector<Request> requests = {{3, 14, {-1, 7, 2, 9}}, {1, 5, {11, 0, -1, -1}}};
  const int64_t B = static_cast<int64_t>(requests.size()), T = 4;
  Floats q({T, kHeads, kDim}), kv({kPages, kPage, kDim}), sink({kHeads}), out({T, kHeads, kDim});
  Ints table({B, 4}), starts({B + 1}), lengths({B});
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (auto* t : {&q, &kv, &sink}) std::generate(t->data.begin(), t->data.end(), [&] { return normal(random); });
  for (int64_t b = 0; b < B; ++b) {
    std::copy(requests[b].pages.begin(), requests[b].pages.end(), table.data.begin() + 4 * b);
    lengths.data[b] = static_cast<int32_t>(requests[b].length);
    starts.data[b + 1] = starts.data[b] + static_cast<int32_t>(requests[b].rows);
  }

  dsv4_swa_paged_attention_args args{};
  args.struct_size = sizeof args;
  args.q = &q.dl;
  args.kv_pages = &kv.dl;
  args.block_table = &table.dl;
  args.query_start_loc = &starts.dl;
  args.seq_lens = &lengths.dl;
  args.sink = &sink.dl;
  args.out = &out.dl;
  args.window = kWindow;
  args.scale = kScale;

  // The library never allocates: scratch is the caller's, and may be kept for later calls.
  uint64_t bytes = 0;
  if (dsv4_swa_paged_attention_workspace_size(&args, &bytes) != DSV4_OK) {
    std::printf("workspace_size: %s\n", dsv4_last_error());
    return 1;
  }
  std::unique_ptr<void, decltype(&std::free)> scratch(std::aligned_alloc(64, (bytes / 64 + 1) * 64), &std::free);
  args.workspace = scratch.get();
  args.workspace_size = bytes;
  if (dsv4_swa_paged_attention(&args, nullptr) != DSV4_OK) {
    std::printf("swa_paged_attention: %s\n", dsv4_last_error());
    return 1;
  }

  const std::vector<float> expected = plain_loop(q, kv, sink, requests);
  float worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const float error = std::fabs(out.data[i] - expected[i]);
    worst = error <= worst ? worst : error;  // NaN counts
  }
  std::printf("row 0, head 0: %.6f %.6f ..., largest difference from the plain loop %.1e\n", out.data[0], out.data[1], worst);
  if (!(worst < 2e-5f)) return 1;

  // A page that a row needs but does not have is refused before anything is written.
  table.data[2] = -1;
  const std::vector<float> before = out.data;
  if (dsv4_swa_paged_attention(&args, nullptr) != DSV4_INVALID_ARGUMENT || out.data != before) return 1;
  std::printf("refused: %s\n", dsv4_last_error());
  return 0;
}
