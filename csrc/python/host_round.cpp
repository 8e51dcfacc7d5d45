// SPDX-License-Identifier: Apache-2.0
// The host's part of a decode round, one call where Python takes ten: between two forwards of a model all code and data
// are out of the near caches, and then a call of NumPy or torch costs 5 us whatever it computes. The Python code beside
// each caller is the definition (devices and captured rounds use it): what these functions take on is equal to it bit for
// bit, and what they do not (errors, pages to be taken) they hand back to it.
#include "host_round.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "argmax.h"
#include "host_memory.h"

namespace py = pybind11;

namespace dsv4 {
namespace {

void argmax_rows(const char* op, py::handle logits, int64_t* out, int64_t rows) {
  const Tensor<float> x(logits, op, "logits");
  const int64_t V = rows ? x.count / rows : 0;
  if (x.count != rows * V || (rows && !V))
    throw py::value_error(std::string(op) + ": logits: expected " + std::to_string(rows) + " rows, got " +
                          std::to_string(x.count) + " values");
  for (int64_t r = 0; r < rows; ++r) out[r] = argmax(x.data + r * V, V);
}

struct Pool {
  Array<int32_t> table;  // [rows + 1, columns], -1 = no page
  int64_t page;          // units a page

  int64_t slot(int64_t row, int64_t unit) const {
    const int64_t column = unit / page, id = column < table.columns ? table.data[row * table.columns + column] : -1;
    return id < 0 ? -1 : id * page + unit % page;
  }
};

// Committed lengths and page tables of a cache (cache/allocation.py).
struct HostPages {
  Array<int64_t> length, ready;  // [rows + 1]; positions below `ready` have their pages in every pool
  int64_t max_len;
  Pool swa;

  int64_t limit(int64_t row) const { return std::min(ready.data[row], max_len); }

  // Allocation.commit; false, and nothing done, where that would raise.
  bool commit(const py::tuple& rows_, const py::list& counts_) {
    const std::vector<int64_t> rows = integers(rows_), counts = integers(counts_);
    if (rows.size() != counts.size()) return false;
    for (size_t b = 0; b < rows.size(); ++b)
      if (rows[b] >= 0 && (counts[b] < 0 || length.data[rows[b]] + counts[b] > limit(rows[b]))) return false;
    for (size_t b = 0; b < rows.size(); ++b)
      if (rows[b] >= 0) length.data[rows[b]] += counts[b];
    return true;
  }
};

// Compressed entries that a window may complete, as ops.verify_metadata lists them.
struct Entries {
  int64_t ratio;
  Pool pool;
  Array<int64_t> positions, locs;
};

// Memory of verify windows of n rows of B requests (cache/window_room.py).
struct HostWindow {
  HostPages* pages;
  Array<int64_t> positions, positions_by_step, slots, slots_by_step;
  Array<int32_t> live, lens;
  Array<int64_t> tokens, ids, predict, picked;  // of the verify forward, and of the draft extend
  std::vector<Entries> entries;

  // Describes the windows of open rows. None, and what was written means nothing, for padding, lengths 0, windows past
  // max_len and pages not there yet; else (largest end, whether anything is completed, of each ratio).
  py::object fill(const py::tuple& rows_) {
    const std::vector<int64_t> rows = integers(rows_);
    const int64_t B = live.count, n = B ? positions.count / B : 0;
    if (static_cast<int64_t>(rows.size()) != B) return py::none();
    int64_t last = 0;
    std::vector<int64_t> found(entries.size(), 0);
    for (int64_t b = 0; b < B; ++b) {
      const int64_t row = rows[b], begin = row < 0 ? 0 : pages->length.data[row], end = begin + n;
      if (begin < 1 || end > pages->limit(row)) return py::none();
      last = std::max(last, end);
      live.data[b] = static_cast<int32_t>(begin);
      for (int64_t i = 0; i < n; ++i) {
        positions.data[b * n + i] = positions_by_step.data[i * B + b] = begin + i;
        slots.data[b * n + i] = slots_by_step.data[i * B + b] = pages->swa.slot(row, begin + i);
        lens.data[i * B + b] = static_cast<int32_t>(begin + i + 1);
      }
      for (size_t k = 0; k < entries.size(); ++k) {
        const Entries& e = entries[k];
        for (int64_t w = begin / e.ratio; w < end / e.ratio; ++w) {
          const int64_t loc = e.pool.slot(row, w);
          if (loc < 0) return py::none();
          e.positions.data[found[k]] = w * e.ratio;
          e.locs.data[found[k]++] = loc;
        }
      }
    }
    py::tuple result(1 + entries.size());
    result[0] = last;
    for (size_t k = 0; k < entries.size(); ++k) {
      const Entries& e = entries[k];
      std::fill(e.positions.data + found[k], e.positions.data + e.positions.count, 0);
      std::fill(e.locs.data + found[k], e.locs.data + e.locs.count, -1);
      result[k + 1] = found[k] > 0;
    }
    return std::move(result);
  }

  // accept.window_candidates and accept.embeddable of rows that all fit: bonus [B], drafts (a list of n - 1 times [B]).
  void candidates(py::handle bonus, const py::list& drafts, int64_t vocab) {
    const int64_t B = live.count, n = 1 + drafts.size();
    if (n * B != tokens.count) throw py::value_error("candidates: drafts: expected one of each step");
    for (int64_t i = 0; i < n; ++i) {
      const Tensor<int64_t> column(i ? py::handle(drafts[i - 1]) : bonus, "candidates", "tokens", B);
      for (int64_t b = 0; b < B; ++b) {
        const int64_t value = column.data[b];
        const bool good = value >= 0 && value < vocab;
        tokens.data[b * n + i] = good ? value : -1;
        ids.data[b * n + i] = good ? value : 0;
      }
    }
  }

  // `predict`: argmax of logits [B * n, V]; and the walk of ops.verify_tree_greedy along chains: of each request the list of
  // its n predictions and the count of accepted drafts.
  py::list accept(py::handle logits) {
    argmax_rows("accept", logits, predict.data, predict.count);
    const int64_t B = live.count, n = B ? predict.count / B : 1;
    py::list result(B);
    for (int64_t b = 0; b < B; ++b) {
      const int64_t *want = predict.data + b * n, *given = tokens.data + b * n;
      int64_t accepted = 0;
      while (accepted + 1 < n && given[accepted + 1] == want[accepted]) ++accepted;
      py::list row(n + 1);
      for (int64_t i = 0; i < n; ++i) row[i] = want[i];
      row[n] = accepted;
      result[b] = std::move(row);
    }
    return result;
  }

  // round.picked_rows.
  void pick(const py::list& kept_) {
    const std::vector<int64_t> kept = integers(kept_);
    const int64_t B = live.count, n = B ? positions.count / B : 0;
    if (static_cast<int64_t>(kept.size()) != B) throw py::value_error("pick: kept: expected one of each request");
    for (int64_t b = 0; b < B; ++b) picked.data[b] = b * n + kept[b] - 1;
  }
};

}  // namespace

void add_host_round(py::module_& m) {
  using I64 = Array<int64_t>;
  using I32 = Array<int32_t>;
  py::class_<HostPages>(m, "HostPages")
      .def(py::init([](py::handle length, py::handle ready, int64_t max_len, py::handle table, int64_t page) {
        return new HostPages{I64(length), I64(ready), max_len, {I32(table), page}};
      }))
      .def("commit", &HostPages::commit);
  py::class_<HostWindow>(m, "HostWindow")  // entries: (ratio, table, page, positions, locs) each
      .def(py::init([](HostPages& pages, py::handle positions, py::handle by_step, py::handle slots, py::handle slots_by_step,
                       py::handle live, py::handle lens, py::handle tokens, py::handle ids, py::handle predict,
                       py::handle picked, const py::list& entries) {
             auto w = std::unique_ptr<HostWindow>(new HostWindow{
                 &pages, I64(positions), I64(by_step), I64(slots), I64(slots_by_step), I32(live), I32(lens), I64(tokens),
                 I64(ids), I64(predict), I64(picked), {}});
             for (py::handle e : entries) {
               const py::tuple t = py::reinterpret_borrow<py::tuple>(e);
               w->entries.push_back({t[0].cast<int64_t>(), {I32(t[1]), t[2].cast<int64_t>()}, I64(t[3]), I64(t[4])});
             }
             return w;
           }), py::keep_alive<1, 2>())
      .def("fill", &HostWindow::fill)
      .def("candidates", &HostWindow::candidates)
      .def("accept", &HostWindow::accept)
      .def("pick", &HostWindow::pick);
  m.def("argmax_rows", [](py::handle logits, py::handle out) {
    const Tensor<int64_t> found(out, "argmax_rows", "out");
    argmax_rows("argmax_rows", logits, found.data, found.count);
  });
}

}  // namespace dsv4
