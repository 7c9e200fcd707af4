// The nested loop: no index at all, every row of the range is looked at.
//
// Idea: the keys stand in the order of their rows, so a probe is one scan over a stretch of memory, eight keys at
// a time where the machine can. It needs no upkeep, so for windows of up to about a hundred rows nothing is faster,
// and it is so simple that every other store is compared with it.
//
// Cost: insert O(1), probe O(rows in its row range) at less than 0.1 ns each, expire O(1); 16 bytes a row.
// Invariant: keys_ and rows_ have the same length, and rows_ ascends.
#pragma once

#include <algorithm>

#include "scan.hpp"
#include "store.hpp"

namespace dovetail {

class NestedStore final : public Store {
 public:
  static std::vector<Parameter> parameters() { return {}; }
  explicit NestedStore(const Settings&) {}

  void insert(const uint64_t* keys, const int64_t* rows, size_t n) override {
    uint64_t* key_place = keys_.grow(n);
    int64_t* row_place;
    try {
      row_place = rows_.grow(n);
    } catch (...) {
      keys_.shrink(n);
      throw;
    }
    if (n == 0) return;
    std::memcpy(key_place, keys, n * sizeof(uint64_t));
    std::memcpy(row_place, rows, n * sizeof(int64_t));
    if (rows[0] < bound_) expire(bound_);
  }

  size_t probe(const Probes& probes, size_t begin, size_t end, size_t limit, Pairs& out) override {
    const int64_t* rows = rows_.data();
    const size_t live = rows_.size();
    const bool consecutive =
        live && static_cast<uint64_t>(rows[live - 1]) - static_cast<uint64_t>(rows[0]) == live - 1;
    for (size_t p = begin; p < end; ++p) {
      if (probes.empty(p) || live == 0) continue;
      const size_t from = place_of(probes.row_lo[p], consecutive);
      const size_t to = place_of(probes.row_hi[p], consecutive);
      if (from >= to) continue;
      const KeyRange range{keys_.data() + from, probes.lo[p], probes.hi[p]};
      int64_t* place = out.row.reserve(to - from + 8);
      const int64_t first = consecutive ? rows[from] : static_cast<int64_t>(from);
      const size_t found = scan(&range, 1, to - from, first, place);
      if (!consecutive) {
        for (size_t i = 0; i < found; ++i) place[i] = rows[place[i]];
      }
      out.claim(static_cast<int64_t>(p), found);
      if (out.size() >= limit) return p + 1;
    }
    return end;
  }

  void expire(int64_t before_row) override {
    bound_ = std::max(bound_, before_row);
    const size_t n =
        static_cast<size_t>(std::lower_bound(rows_.data(), rows_.data() + rows_.size(), bound_) - rows_.data());
    keys_.drop_front(n);
    rows_.drop_front(n);
  }

  size_t size() const override { return rows_.size(); }
  size_t nbytes() const override { return keys_.nbytes() + rows_.nbytes(); }
  void check() const override {
    keys_.check();
    rows_.check();
    demand(keys_.size() == rows_.size(), "nested: as many keys as rows");
    for (size_t i = 1; i < rows_.size(); ++i) demand(rows_[i - 1] < rows_[i], "nested: rows ascend");
  }

 private:
  size_t place_of(int64_t row, bool consecutive) const {
    const int64_t* rows = rows_.data();
    const size_t live = rows_.size();
    if (!consecutive) return static_cast<size_t>(std::lower_bound(rows, rows + live, row) - rows);
    if (row <= rows[0]) return 0;
    return row > rows[live - 1] ? live : static_cast<size_t>(row - rows[0]);
  }

  RowVector<uint64_t> keys_;
  RowVector<int64_t> rows_;
  int64_t bound_ = INT64_MIN;
};

}  // namespace dovetail
