// Ranges: an immutable tree whose nodes have a small growing tree each for what came last (PIM-Tree).
//
// Problem: the insertion part of an IM-Tree (see im_tree.hpp, which has all that is not said here) is a tree that both
// insertions and probes search from its root, after or before the other one; and it is one tree, which all threads want
// at once. Idea: it is cut into sub-indexes, one for each node of the search part at some depth. The way down to that
// node is common to both, and what remains is a sub-index of a few rows, most often one leaf. The nodes part the rows
// of the last merge evenly, so the cut adapts to the data at each merge.
//
// Invariants: sub-index i holds keys above bound i - 1 of its level and not above bound i, the last of which is
// infinity; see also the parts'. Before the first merge there is no search part, and one sub-index takes everything. A
// sub-index is an object on cache lines of its own, with its own memory, so that it can have a lock of its own.
// Cost: insert O(log w) and the copying of merges; probe one search and a sub-index, O(log w + rows in the key range);
// 64 bytes and a leaf (384 at a fan-out of 30) for each sub-index besides the 12.5 bytes a row of the search part.
// Standard values: sub-indexes are wanted that expect half a leaf when they are full. These are the deepest nodes above
// the leaves, whatever the window: each stands for 16 leaves of 16 rows, hence 16 new ones at m = 1/16.
// Where it loses: where the IM-Tree does; and when keys drift or ascend, new ones fall into few sub-indexes, which are
// trees of several levels then, and are descended one key after the other: no faster than the IM-Tree where keys drift
// by the width of a window, and a tenth or two slower where they ascend.
// Deviations from the paper: it counts the insertion depth in two ways in its two algorithms, and its figure for the
// number of sub-indexes belongs to another depth: here the root is 0, insertions and probes use one descent, and the
// deepest inner level is the limit. The bounds of sub-indexes are an array (a level of the search part), not looked up
// in nodes where those of last children are missing. A probe goes on to the next sub-index while its end is above the
// bound, so it never asks for one after the last; leaves of different sub-indexes are not chained, which would be
// memory that two sub-indexes share. Rows are filtered in both parts.
#pragma once

#include "im_tree.hpp"

namespace dovetail {

// The insertion part of a PIM-Tree: a tree for each node of the search part at some depth.
class PartitionedInsertions {
 public:
  static std::vector<Parameter> parameters() {
    return {{"insertion_depth", SortedKeys::kMostDepth, 0, SortedKeys::kMostDepth,
             "depth of the search part's nodes that have a sub-index each, from the root at 0; at most its deepest"}};
  }
  explicit PartitionedInsertions(const Settings& settings)
      : fanout_(settings.count("fanout")), wanted_depth_(settings.count("insertion_depth")) {
    parts_.emplace_back(fanout_);
  }

  size_t size() const { return size_; }
  size_t nbytes() const {
    size_t bytes = parts_.capacity() * sizeof(InsertionTree);
    for (const InsertionTree& part : parts_) bytes += part.nbytes();
    return bytes;
  }
  Statistics statistics() const {
    size_t most = 0, height = 0, empty = 0;
    for (const InsertionTree& part : parts_) {
      most = std::max(most, part.size());
      empty += part.size() == 0;
      height = std::max(height, part.height());
    }
    return {{"insertion_height", static_cast<double>(height)},
            {"sub_indexes", static_cast<double>(parts_.size())},
            {"empty_sub_indexes", static_cast<double>(empty)},
            {"largest_share", size_ ? static_cast<double>(most) / static_cast<double>(size_) : 0}};
  }

  void insert(const ImmutableTree& search, const uint64_t* keys, uint32_t position, size_t n) {
    uint32_t part[kGroup];
    for (size_t first = 0; first < n; first += kGroup) {
      const size_t group = std::min(kGroup, n - first);
      find_parts(search, keys + first, group, part);
      for (size_t i = 0; i < group; ++i) parts_[part[i]].prefetch_to_insert();
      for (size_t i = 0; i < group; ++i) {
        parts_[part[i]].insert(keys[first + i], position + static_cast<uint32_t>(first + i));
        ++size_;
      }
    }
  }

  void take_back(uint32_t from) {
    size_ = 0;
    for (InsertionTree& part : parts_) {
      part.take_back(from);
      size_ += part.size();
    }
  }

  void find(const ImmutableTree& search, const uint64_t* keys, size_t n, Places& places) const {
    if (size_ == 0) {  // as always after a merge that took in a large batch
      search.descend(keys, n, places.leaf);
      return;
    }
    find_parts(search, keys, n, places.part);
    std::copy_n(places.part, n, places.leaf);
    search.descend_from(depth_, keys, n, places.leaf);
    for (size_t i = 0; i < n; ++i) parts_[places.part[i]].prefetch_to_probe();
    for (size_t i = 0; i < n; ++i) parts_[places.part[i]].find(keys + i, 1, places.leaf_of_part + i);
  }

  void scan(const ImmutableTree& search, const Places& places, size_t g, uint64_t lo, uint64_t hi,
            PositionFilter& filter) const {
    if (size_ == 0) return;
    uint32_t part = places.part[g], leaf = places.leaf_of_part[g];
    for (;;) {
      parts_[part].scan(leaf, lo, hi, filter);
      // Equal keys go left, so nothing beyond a bound equals it; and the last bound is the greatest key there is.
      if (hi <= search.keys().bound(depth_, part)) return;
      leaf = parts_[++part].first_leaf();
    }
  }

  void drain(Entry* to) const {
    for (const InsertionTree& part : parts_) to = part.drain(to);
  }

  void restart(const ImmutableTree& search) {
    const size_t depth = search.depth() == 0 ? 0 : std::min(wanted_depth_, search.depth() - 1);
    const size_t count = search.keys().nodes(depth);
    Vector<InsertionTree> parts;
    parts.reserve(count);
    for (size_t i = 0; i < std::min(count, parts_.size()); ++i) {
      parts_[i].clear();
      parts.push_back(std::move(parts_[i]));
    }
    while (parts.size() < count) parts.emplace_back(fanout_);
    parts_.swap(parts);
    depth_ = depth;
    size_ = 0;
  }

  void check(const ImmutableTree& search) const {
    const SortedKeys& bounds = search.keys();
    demand(parts_.size() == bounds.nodes(depth_), "pim tree: a sub-index for each node at the insertion depth");
    size_t entries = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].check();
      std::vector<Entry> held(parts_[i].size());
      parts_[i].drain(held.data());
      for (const Entry& entry : held) {
        demand(entry.key <= bounds.bound(depth_, i), "pim tree: no key of a sub-index is above its bound");
        demand(i == 0 || entry.key > bounds.bound(depth_, i - 1), "pim tree: all keys are above the bound before it");
      }
      entries += held.size();
    }
    demand(entries == size_, "pim tree: it counts what its sub-indexes hold");
  }

 private:
  void find_parts(const ImmutableTree& search, const uint64_t* keys, size_t n, uint32_t* parts) const {
    std::fill_n(parts, n, 0);
    search.keys().descend(keys, n, 0, depth_, parts);
    for (size_t i = 0; i < n; ++i) __builtin_prefetch(&parts_[parts[i]]);
  }

  const size_t fanout_;
  const size_t wanted_depth_;
  size_t depth_ = 0;
  size_t size_ = 0;
  Vector<InsertionTree> parts_;
};

using PimTreeStore = MergeTree<PartitionedInsertions>;

}  // namespace dovetail
