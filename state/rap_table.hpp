// PanJoin's RaP-Table: sub-windows cut into partitions of a key range each, by splitters that adjust to the keys.
//
// Problem: partitions should hold equally many rows, whatever the keys are and however they move. Idea: a sub-window
// never changes its splitters, but the next one gets new ones. For each partition three numbers are taken of the one
// before: how many rows, their least and their greatest key. Splitter j of P should have j/P of the N rows at or below
// it; that is inside the partition i in which the running sum of rows reaches j·N/P, and there, as if keys were even,
//   splitter j = min_i + (j·N/P - rows before i) / rows in i · (max_i - min_i)
// Where that is wrong the next adjustment sees a smaller partition: a few of them suffice for any distribution. The
// rows stand in a linked-list adaptive table (llat.hpp).
//
// The first sub-window is one partition; its rows are sorted and eight at a time taken for a partition. The numbers
// are gathered once, in one pass when the next sub-window is opened, rather than kept up at each insertion.
//
// Cost: insert and probe O(log P) over splitters that stay in the cache, and four to five cache lines for each
// sub-window; some 5 ns a row for the adjustment; some 37 bytes a row. All arithmetic is in integers.
// Invariants: partition i holds the keys above bound i - 1 up to bound i, inclusively; bounds do not fall; the last is
// the greatest key there is. Equal bounds mean empty partitions between them: that is what a key with more rows
// than a share leads to.
// Where it loses: keys that only rise (or only fall): whatever is above the predecessor's keys goes into the last
// partition, which then is a list. `wib_tree` is for those. Drift costs what it moves within one sub-window: there more
// `parts` help.
// Repaired against the paper: the formula has min_i in it; the loop runs over splitters 1 … P - 1 and compares j·N with
// sum·P, exactly; empty partitions have no least and greatest key and are passed over; insert and probe look on
// the same side of equal splitters; N is the rows counted, and N and P may differ between predecessor and successor.
#pragma once

#include <algorithm>

#include "llat.hpp"
#include "sorted_keys.hpp"

namespace dovetail {

// Takes what the partitions of a sub-window hold, from left to right, and sets the bounds that would have made them
// even.
class Adjustment {
 public:
  Adjustment(size_t rows, SortedKeys& bounds) : rows_(rows), bounds_(bounds) {}

  void take(const Extent& extent) {
    if (extent.rows == 0) return;
    const size_t parts = bounds_.size();
    for (; next_ < parts && next_ * rows_ <= (before_ + extent.rows) * parts; ++next_) {
      const size_t into = next_ * rows_ - before_ * parts;  // in 1/parts of a row; at most extent.rows * parts
      bounds_.data()[next_ - 1] = extent.least + share(extent.most - extent.least, into, extent.rows * parts);
    }
    before_ += extent.rows;
  }

 private:
  static uint64_t share(uint64_t width, size_t part, size_t whole) {
    __extension__ using Wide = unsigned __int128;  // both factors may have 60 bits and more
    return static_cast<uint64_t>(static_cast<Wide>(width) * part / whole);
  }

  size_t rows_;
  SortedKeys& bounds_;
  size_t next_ = 1;    // the bound that is looked for, counted from 1
  size_t before_ = 0;  // rows that were taken
};

class AdjustedCut {
 public:
  AdjustedCut() : bounds_(1) { complete(); }
  AdjustedCut(size_t partitions, const LlatPart<AdjustedCut>& before) : bounds_(partitions) {
    Adjustment adjustment(before.rows(), bounds_);
    if (before.table().partitions() == 1) {
      take_sample(before, adjustment);
    } else {
      for (size_t p = 0; p < before.table().partitions(); ++p) {
        adjustment.take(before.table().extent(p));
      }
    }
    complete();
  }

  size_t partition_of(uint64_t key) const { return bounds_.find(key); }
  void partitions_of(const uint64_t* keys, size_t n, uint32_t* partitions) const { bounds_.find(keys, n, partitions); }
  size_t partition_from(size_t first, uint64_t key) const {
    return below_from(bounds_.data(), bounds_.size(), key, first);
  }
  size_t nbytes() const { return bounds_.nbytes(); }
  void check() const { bounds_.check(); }

 private:
  void complete() {
    bounds_.data()[bounds_.size() - 1] = kGreatest;
    bounds_.complete();
  }

  // One partition tells nothing about where its keys are: they are looked at themselves.
  static void take_sample(const LlatPart<AdjustedCut>& before, Adjustment& adjustment) {
    constexpr size_t kTogether = 8;
    Vector<uint64_t> keys;
    keys.reserve(before.rows());
    before.table().each(0, [&](uint64_t key, uint32_t) { keys.push_back(key); });
    std::sort(keys.begin(), keys.end());
    for (size_t i = 0; i < keys.size(); i += kTogether) {
      const size_t end = std::min(i + kTogether, keys.size());
      adjustment.take({end - i, keys[i], keys[end - 1]});
    }
  }

  SortedKeys bounds_;
};

using RapTableStore = SubWindows<LlatPart<AdjustedCut>>;

}  // namespace dovetail
