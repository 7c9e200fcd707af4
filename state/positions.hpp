// Probes of trees that hold *positions*, the 32-bit numbers of a row log, instead of rows.
//
// Problem: a tree whose entries are small finds more of them in a line, but a probe wants rows, in their order, and
// those that are too old or too new for it left out. Idea: a position less the first one that is wanted, without a
// sign, is below the number of wanted ones exactly if it is one of them, whatever 32 bits have wrapped around to. So
// finds are told apart in one comparison, written without a branch, sorted, and become rows at the end.
//
// Limit: positions are told apart while a store holds, with those that have expired, at most 2^31 of them.
#pragma once

#include <algorithm>

#include "row_log.hpp"
#include "row_sorter.hpp"
#include "search.hpp"
#include "store.hpp"

namespace dovetail {

constexpr size_t kMostPositions = size_t{1} << 31;

// The positions that one probe wants among those of its key range; they go behind the rows of `out`, unclaimed.
class PositionFilter {
 public:
  PositionFilter(const RowLog& rows, int64_t row_lo, int64_t row_hi, Growing<int64_t>& out) : rows_(rows), out_(out) {
    const int64_t from = rows.position_of(row_lo), to = rows.position_of(row_hi, from);
    from_ = static_cast<uint32_t>(from);
    length_ = static_cast<uint64_t>(std::max(from, to) - from);
    base_ = static_cast<uint64_t>(rows.consecutive() && from < rows.end() ? rows.row_at(from) : from);
  }

  size_t found() const { return found_; }

  // Of n positions, whose keys ascend from the low end of the range on, those whose keys are not above `hi`. Returns
  // whether that are all of them, so that more may follow.
  bool take_upto(const uint64_t* keys, const uint32_t* positions, size_t n, uint64_t hi) {
    int64_t* place = out_.reserve(found_ + n);
    size_t found = found_, i = 0;
    for (; i < n && keys[i] <= hi; ++i) {
      const uint32_t offset = positions[i] - from_;
      place[found] = static_cast<int64_t>(base_ + offset);
      found += offset < length_;
    }
    found_ = found;
    return i == n;
  }

  // Of n positions in any order, those whose keys are in [lo, hi]: few, as a rule, which a branch knows.
  void take(const uint64_t* keys, const uint32_t* positions, size_t n, uint64_t lo, uint64_t hi) {
    int64_t* place = out_.reserve(found_ + n);
    size_t found = found_;
    for (size_t i = 0; i < n; ++i) {
      if (keys[i] - lo > hi - lo) continue;
      const uint32_t offset = positions[i] - from_;
      place[found] = static_cast<int64_t>(base_ + offset);
      found += offset < length_;
    }
    found_ = found;
  }

  // Puts the finds into the order of rows.
  void finish(RowSorter& sorter) const {
    int64_t* place = out_.data() + out_.size();
    sorter.sort(place, found_);
    if (rows_.consecutive()) return;
    for (size_t i = 0; i < found_; ++i) place[i] = rows_.row_at(place[i]);
  }

 private:
  const RowLog& rows_;
  Growing<int64_t>& out_;
  uint32_t from_;
  uint64_t length_, base_;  // without a sign, as what is not wanted may lie anywhere
  size_t found_ = 0;
};

// Logs n rows of a store that holds so many already, with those that have expired, and has them put into its trees from
// a position on. If that fails, the log is as it was.
template <typename IntoTrees>
void insert_positions(RowLog& log, size_t held, const int64_t* rows, size_t n, IntoTrees into_trees) {
  demand(held + n <= kMostPositions, "a window of more than 2^31 rows does not fit one store");
  const auto position = static_cast<uint32_t>(log.end());
  log.append(rows, n);
  try {
    into_trees(position);
  } catch (...) {
    log.take_back(n);
    throw;
  }
}

// Answers probes as a store should (see store.hpp), in groups. `descend(lo, n)` looks up where n <= kGroup key ranges
// begin; `scan(g, lo, hi, filter)` gives the filter what there is in the range of the g-th of them.
template <typename Descend, typename Scan>
size_t probe_positions(const RowLog& rows, RowSorter& sorter, const Probes& probes, size_t begin, size_t end,
                       size_t limit, Pairs& out, Descend descend, Scan scan) {
  for (size_t p = begin; p < end;) {
    size_t asked[kGroup];
    uint64_t lo[kGroup];
    size_t group = 0;
    for (; p < end && group < kGroup; ++p) {
      if (probes.empty(p)) continue;
      asked[group] = p;
      lo[group++] = probes.lo[p];
    }
    descend(lo, group);
    for (size_t g = 0; g < group; ++g) {
      PositionFilter filter(rows, probes.row_lo[asked[g]], probes.row_hi[asked[g]], out.row);
      scan(g, lo[g], probes.hi[asked[g]], filter);
      if (filter.found() == 0) continue;
      filter.finish(sorter);
      out.claim(static_cast<int64_t>(asked[g]), filter.found());
      if (out.size() >= limit) return asked[g] + 1;
    }
  }
  return end;
}

}  // namespace dovetail
