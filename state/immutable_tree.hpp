// The search part of a merge tree (T_S in the PIM-Tree paper): a sorted array under a tree of bounds, never changed.
//
// Problem: a node of a changeable tree gives half of its lines to pointers and a third to free places, and finding
// anything in it is a chain of dependent misses. Idea: what is never changed needs neither. The entries stand in one
// array in the order of keys, cut into blocks; above them lie levels of bounds, breadth first in one more array. The
// children of node i are the nodes i * fanout and on of the next level, so a child's place is arithmetic and several
// descents run side by side, each fetching its next node while the others compute.
//
// A level holds one bound for each node of the level below (for each block, at the deepest): the greatest key in it.
// Equal keys go left, for searches and insertions alike, so a key belongs to the first child whose bound is not below
// it. The last node of a level has no bound but +infinity, and so do the places after it: keys above all others, which
// drifting streams bring all the time, descend into the last child, and never into one that does not exist.
//
// Invariants: entries ascend by key; bounds ascend within a level; bound i of a level is the greatest key of node i
// below it, except for the last, which is +infinity; the root is one node.
// Cost: search O(log n), one or two lines a level and two of the array; 16 bytes an entry and 1 / kBlock bounds of 8.
// Deviations from the paper: a node is as many bounds as it has children, of which the search reads all but the last,
// so that nodes are whole cache lines and a level can be taken as the bounds of a partition (its printed form looks
// for these inside inner nodes, where those of last children are missing); the nodes of a level are rounded up.
#pragma once

#include <algorithm>

#include "entry.hpp"
#include "row_vector.hpp"
#include "search.hpp"

namespace dovetail {

// The first of fanout - 1 ascending bounds that is not below the key, without a branch. The fan-out is a power of two.
inline size_t child_of(const uint64_t* bounds, size_t fanout, uint64_t key) {
  size_t at = 0;
  for (size_t half = fanout / 2; half > 0; half /= 2) at += bounds[at + half - 1] < key ? half : 0;
  return at;
}

class ImmutableTree {
 public:
  static constexpr uint64_t kInfinity = UINT64_MAX;
  static constexpr size_t kBlock = 8;  // two lines; 4 and 16 measured no faster

  explicit ImmutableTree(size_t fanout) : fanout_(fanout) {}

  // The entries of an older tree and fresh ones, both ascending, without those below a row: `live` are left.
  ImmutableTree(const ImmutableTree& older, const Entry* fresh, size_t fresh_count, int64_t before_row, size_t live)
      : fanout_(older.fanout_), size_(live) {
    if (live == 0) return;
    lay_out();
    merge(older, fresh, fresh + fresh_count, before_row);
    raise_bounds();
  }

  size_t size() const { return size_; }
  size_t nbytes() const { return entries_.nbytes() + bounds_.nbytes(); }
  size_t depth() const { return depth_; }  // of the blocks; the root is at 0

  // Nodes at a depth, and the greatest key of each: an array of partition bounds.
  size_t nodes(size_t depth) const { return depth == 0 ? 1 : levels_[depth - 1].slots; }
  uint64_t bound(size_t depth, size_t node) const {
    return depth == 0 ? kInfinity : bounds_[levels_[depth - 1].begin + node];
  }

  // Follows n keys from one depth down to another; `nodes` says where each is at. At depth() nodes are blocks.
  void descend(const uint64_t* keys, size_t n, size_t from, size_t to, size_t* nodes) const {
    for (size_t depth = from; depth < to; ++depth) {
      const uint64_t* bounds = bounds_.get() + levels_[depth].begin;
      const bool deepest = depth + 1 == depth_;
      const uint64_t* below = deepest ? nullptr : bounds_.get() + levels_[depth + 1].begin;
      for (size_t i = 0; i < n; ++i) {
        const size_t first = nodes[i] * fanout_;
        nodes[i] = first + child_of(bounds + first, fanout_, keys[i]);
        if (deepest) {
          prefetch_lines(entries_.get() + nodes[i] * kBlock, kBlock * sizeof(Entry));
        } else {
          prefetch_lines(below + nodes[i] * fanout_, fanout_ * sizeof(uint64_t));
        }
      }
    }
  }

  // Writes the rows of a range of keys and of rows behind the `found` ones that a caller has written already.
  size_t collect(size_t block, uint64_t lo, uint64_t hi, int64_t row_lo, int64_t row_hi, size_t found,
                 Growing<int64_t>& out) const {
    if (size_ == 0) return found;
    constexpr size_t kAtOnce = 64;
    const Entry* at = entries_.get() + block * kBlock;
    const Entry* end = entries_.get() + size_;
    size_t below = 0;
    for (size_t i = 0; i < kBlock; ++i) below += at[i].key < lo;
    at += below;
    for (;;) {
      int64_t* place = out.reserve(found + kAtOnce);
      const Entry* pause = static_cast<size_t>(end - at) < kAtOnce ? end : at + kAtOnce;
      for (; at < pause && at->key <= hi; ++at) {
        place[found] = at->row;
        found += (at->row >= row_lo) & (at->row < row_hi);
      }
      if (at < pause || at == end) return found;
    }
  }

  const Entry* begin() const { return entries_.get(); }
  const Entry* end() const { return entries_.get() + size_; }

  void check() const {
    demand(std::is_sorted(begin(), end(), [](const Entry& a, const Entry& b) { return a.key < b.key; }),
           "immutable tree: entries ascend by key");
    demand((size_ == 0) == (depth_ == 0), "immutable tree: there are levels where there are entries");
    for (size_t i = size_; i < entries_.size(); ++i) {
      demand(entries_[i].key == kInfinity, "immutable tree: the places after the last entry are above all keys");
    }
    for (size_t depth = 0; depth < depth_; ++depth) {
      const Level& level = levels_[depth];
      const size_t span = span_of(depth + 1);
      demand(level.slots == (size_ + span - 1) / span, "immutable tree: a level has a bound for each node below it");
      for (size_t i = 0; i < level.places; ++i) {
        const bool last = i + 1 >= level.slots;
        demand(bounds_[level.begin + i] == (last ? kInfinity : entries_[(i + 1) * span - 1].key),
               "immutable tree: a bound is the greatest key of its node, the last one infinity");
      }
    }
    demand(depth_ == 0 || levels_[0].places == fanout_, "immutable tree: the root is one node");
  }

 private:
  static constexpr size_t kDeepest = 40;  // of fan-out 2, with more entries than an address space has bytes

  struct Level {
    size_t begin, slots, places;  // where it begins among the bounds, how many it has, rounded up to whole nodes
  };

  size_t span_of(size_t depth) const {  // entries under a node at a depth
    size_t span = kBlock;
    for (; depth < depth_; ++depth) span *= fanout_;
    return span;
  }

  void lay_out() {
    const size_t blocks = (size_ + kBlock - 1) / kBlock;
    size_t total = 0;
    for (size_t slots = blocks;;) {
      const size_t nodes = (slots + fanout_ - 1) / fanout_;
      levels_[depth_++] = {total, slots, nodes * fanout_};
      total += nodes * fanout_;
      if (nodes == 1) break;
      slots = nodes;
    }
    std::reverse(levels_, levels_ + depth_);
    bounds_ = Array<uint64_t>(total);
    entries_ = Array<Entry>(blocks * kBlock + 1);  // one more: a merge writes before it knows that it must not
  }

  // Old entries go before fresh ones of the same key. Each run of them is copied without a branch on what has expired.
  void merge(const ImmutableTree& older, const Entry* fresh, const Entry* fresh_end, int64_t before_row) {
    const Entry *old = older.begin(), *old_end = older.end();
    Entry* to = entries_.get();
    const auto copy = [&](const Entry& entry) {
      *to = entry;
      to += entry.row >= before_row;
    };
    for (; fresh < fresh_end; ++fresh) {
      for (; old < old_end && old->key <= fresh->key; ++old) copy(*old);
      copy(*fresh);
    }
    for (; old < old_end; ++old) copy(*old);
    demand(to == end(), "immutable tree: a merge finds each live row once");
    std::fill(to, entries_.get() + entries_.size(), Entry{kInfinity, INT64_MAX});
  }

  // From the deepest level to the root.
  void raise_bounds() {
    for (size_t depth = depth_; depth-- > 0;) {
      const Level& level = levels_[depth];
      uint64_t* bounds = bounds_.get() + level.begin;
      if (depth + 1 == depth_) {
        for (size_t i = 0; i + 1 < level.slots; ++i) bounds[i] = entries_[(i + 1) * kBlock - 1].key;
      } else {
        const uint64_t* below = bounds_.get() + levels_[depth + 1].begin;
        for (size_t i = 0; i + 1 < level.slots; ++i) bounds[i] = below[(i + 1) * fanout_ - 1];
      }
      std::fill(bounds + level.slots - 1, bounds + level.places, kInfinity);
    }
  }

  size_t fanout_;
  size_t size_ = 0;
  size_t depth_ = 0;
  Level levels_[kDeepest];
  Array<Entry> entries_;
  Array<uint64_t> bounds_;
};

}  // namespace dovetail
