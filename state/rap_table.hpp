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

namespace dovetail {

// A place in ascending bounds: the first bound that is not below a key. Every sixteenth bound is repeated one level up,
// and so on, so that a search compares sixteen neighbours on each level and never branches.
class Bounds {
 public:
  explicit Bounds(size_t n = 1) : n_(n) {
    size_t total = 0;
    for (size_t length = n; depth_ == 0 || length > 1; length = padded(length) / kFan) {
      level_[depth_++] = total;
      total += padded(length);
    }
    all_ = Array<uint64_t>(total);
    std::fill(all_.get(), all_.get() + total, UINT64_MAX);
  }

  size_t size() const { return n_; }
  size_t nbytes() const { return all_.nbytes(); }
  uint64_t operator[](size_t i) const { return all_[i]; }

  // To be set all in ascending order, but for the last, which is the greatest key; then the levels above follow.
  void set(size_t i, uint64_t bound) { all_[i] = bound; }
  void complete() {
    for (size_t above = 1; above < depth_; ++above) {
      const size_t end = (above + 1 < depth_ ? level_[above + 1] : all_.size()) - level_[above];
      const uint64_t* below = all_.get() + level_[above - 1];
      const size_t length = (level_[above] - level_[above - 1]) / kFan;
      for (size_t i = 0; i < end; ++i) all_[level_[above] + i] = i < length ? below[i * kFan + kFan - 1] : UINT64_MAX;
    }
  }

  size_t find(uint64_t key) const {
    uint32_t at;
    find(&key, 1, &at);
    return at;
  }

  // Several keys go down level by level, so that their misses overlap.
  void find(const uint64_t* keys, size_t n, uint32_t* at) const {
    std::fill(at, at + n, 0);
    for (size_t above = depth_; above-- > 0;) {
      const uint64_t* level = all_.get() + level_[above];
      for (size_t k = 0; k < n; ++k) {
        const uint64_t* node = level + at[k] * kFan;
        const uint32_t four = (node[3] < keys[k]) + (node[7] < keys[k]) + (node[11] < keys[k]);
        node += 4 * four;
        at[k] = at[k] * static_cast<uint32_t>(kFan) + 4 * four + (node[0] < keys[k]) + (node[1] < keys[k]) +
                (node[2] < keys[k]);
        if (above > 0) {
          const uint64_t* child = level_[above - 1] + all_.get() + at[k] * kFan;
          __builtin_prefetch(child);
          __builtin_prefetch(child + kFan / 2);
        }
      }
    }
  }

  // The same, from a bound on that is at or before the one that is looked for, with steps that double.
  size_t find_from(size_t at, uint64_t key) const {
    if (all_[at] >= key) return at;
    size_t step = 1, below = at;  // a bound that is below the key
    while (below + step < n_ && all_[below + step] < key) {
      below += step;
      step *= 2;
    }
    const uint64_t* end = all_.get() + std::min(below + step, n_ - 1);
    return static_cast<size_t>(std::lower_bound(all_.get() + below + 1, end, key) - all_.get());
  }

  void check() const {
    demand(all_[n_ - 1] == UINT64_MAX, "bounds: the last is the greatest key");
    for (size_t i = 1; i < n_; ++i) demand(all_[i - 1] <= all_[i], "bounds: they do not fall");
    for (size_t i = 0; i < n_; ++i) {
      const size_t found = find(all_[i]);
      demand(found <= i && all_[found] == all_[i], "bounds: each is found");
    }
  }

 private:
  static constexpr size_t kFan = 16;  // two cache lines
  static size_t padded(size_t n) { return (n + kFan - 1) / kFan * kFan; }

  size_t n_;
  size_t depth_ = 0;
  size_t level_[16] = {};  // where each level begins in all_; the bounds themselves are the first
  Array<uint64_t> all_;
};

// Takes what the partitions of a sub-window hold, from left to right, and sets the bounds that would have made them
// even.
class Adjustment {
 public:
  Adjustment(size_t rows, Bounds& bounds) : rows_(rows), bounds_(bounds) {}

  void take(size_t rows, uint64_t least, uint64_t most) {
    if (rows == 0) return;
    const size_t parts = bounds_.size();
    for (; next_ < parts && next_ * rows_ <= (before_ + rows) * parts; ++next_) {
      const size_t into = next_ * rows_ - before_ * parts;  // in 1/parts of a row; at most rows * parts
      bounds_.set(next_ - 1, least + share(most - least, into, rows * parts));
    }
    before_ += rows;
  }

 private:
  static uint64_t share(uint64_t width, size_t part, size_t whole) {
    __extension__ using Wide = unsigned __int128;  // both factors may have 60 bits and more
    return static_cast<uint64_t>(static_cast<Wide>(width) * part / whole);
  }

  size_t rows_;
  Bounds& bounds_;
  size_t next_ = 1;    // the bound that is looked for, counted from 1
  size_t before_ = 0;  // rows that were taken
};

class AdjustedCut {
 public:
  AdjustedCut() = default;
  AdjustedCut(size_t partitions, const LlatPart<AdjustedCut>& before) : bounds_(partitions) {
    if (partitions == 1) return;
    Adjustment adjustment(before.rows(), bounds_);
    if (before.table().partitions() == 1) {
      take_sample(before, adjustment);
    } else {
      for (size_t p = 0; p < before.table().partitions(); ++p) {
        uint64_t least = UINT64_MAX, most = 0;
        size_t rows = 0;
        before.table().each(p, [&](uint64_t key, uint32_t) {
          least = std::min(least, key);
          most = std::max(most, key);
          ++rows;
        });
        adjustment.take(rows, least, most);
      }
    }
    bounds_.complete();
  }

  size_t partition_of(uint64_t key) const { return bounds_.find(key); }
  void partitions_of(const uint64_t* keys, size_t n, uint32_t* partitions) const { bounds_.find(keys, n, partitions); }
  size_t partition_from(size_t first, uint64_t key) const { return bounds_.find_from(first, key); }
  size_t nbytes() const { return bounds_.nbytes(); }
  void check() const { bounds_.check(); }

 private:
  // One partition tells nothing about where its keys are: they are looked at themselves.
  static void take_sample(const LlatPart<AdjustedCut>& before, Adjustment& adjustment) {
    constexpr size_t kTogether = 8;
    Vector<uint64_t> keys;
    keys.reserve(before.rows());
    before.table().each(0, [&](uint64_t key, uint32_t) { keys.push_back(key); });
    std::sort(keys.begin(), keys.end());
    for (size_t i = 0; i < keys.size(); i += kTogether) {
      const size_t end = std::min(i + kTogether, keys.size());
      adjustment.take(end - i, keys[i], keys[end - 1]);
    }
  }

  Bounds bounds_;
};

using RapTableStore = SubWindows<LlatPart<AdjustedCut>>;

}  // namespace dovetail
