// Ranges: an immutable tree whose nodes have a small growing tree each for what came last (PIM-Tree).
//
// Problem: the insertion part of an IM-Tree (see im_tree.hpp, which has all that is not said here) is a tree that both
// insertions and probes search from its root, after or before the other one; and it is one tree, which all threads want
// at once. Idea: it is cut into sub-indexes, one for each node of the search part at some depth. The way down to that
// node is common to both, and what remains is a sub-index of a few rows, most often one leaf. The nodes part the rows
// of the last merge evenly, so the cut adapts to the data at each merge.
//
// Invariants: sub-index i holds keys above bound i - 1 of its level and not above bound i; the last bound is infinity;
// see also the parts'. Before the first merge there is no search part, and one sub-index takes everything.
// A sub-index is an object on cache lines of its own, with its own memory, so that it can have a lock of its own.
// Cost: insert O(log w) and the copying of merges; probe one search and a sub-index, O(log w + rows in the key range);
// 64 bytes and a leaf (512 at a fan-out of 32) for each sub-index besides the 17 bytes a row of the search part.
// Standard values: sub-indexes are wanted that expect half a leaf when they are full. These are the deepest nodes: each
// stands for fanout * kBlock = 256 rows, hence 16 new ones at m = 1/16. At a fan-out of 32 these are at depth 3 for
// windows from 2^17 to 2^23 rows; one level higher is up to a tenth slower.
// Where it loses: where the IM-Tree does; and when keys drift, new ones fall into few sub-indexes, which are trees of
// several levels then, and are descended one key after the other: a tenth slower than the IM-Tree.
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
    return {{"insertion_depth", 3, 0, 40,
             "depth of the search part's nodes that have a sub-index each, from the root at 0; at most its deepest"}};
  }
  PartitionedInsertions(const Settings& settings, size_t fanout)
      : fanout_(fanout), wanted_depth_(settings.count("insertion_depth")) {
    parts_.emplace_back(fanout);
  }

  size_t size() const { return size_; }
  size_t nbytes() const {
    size_t bytes = parts_.capacity() * sizeof(InsertionTree);
    for (const InsertionTree& part : parts_) bytes += part.nbytes();
    return bytes;
  }
  Statistics statistics() const {
    size_t most = 0, height = 0;
    for (const InsertionTree& part : parts_) {
      most = std::max(most, part.size());
      height = std::max(height, part.height());
    }
    return {{"insertion_height", static_cast<double>(height)},
            {"sub_indexes", static_cast<double>(parts_.size())},
            {"largest_share", size_ ? static_cast<double>(most) / static_cast<double>(size_) : 0}};
  }

  void insert(const ImmutableTree& search, const uint64_t* keys, const int64_t* rows, size_t n) {
    size_t part[kGroup];
    for (size_t first = 0; first < n; first += kGroup) {
      const size_t group = std::min(kGroup, n - first);
      std::fill_n(part, group, 0);
      find_parts(search, keys + first, group, part);
      for (size_t i = 0; i < group; ++i) parts_[part[i]].prefetch_to_insert();
      for (size_t i = 0; i < group; ++i) {
        parts_[part[i]].insert(keys[first + i], rows[first + i]);
        ++size_;
      }
    }
  }

  void take_back(int64_t from_row) {
    size_ = 0;
    for (InsertionTree& part : parts_) {
      part.take_back(from_row);
      size_ += part.size();
    }
  }

  void find(const ImmutableTree& search, const uint64_t* keys, size_t n, Places& places) const {
    if (size_ == 0) {  // as always after a merge that took in a large batch
      search.descend(keys, n, 0, search.depth(), places.block);
      return;
    }
    find_parts(search, keys, n, places.block);
    std::copy_n(places.block, n, places.part);
    search.descend(keys, n, depth_, search.depth(), places.block);
    for (size_t i = 0; i < n; ++i) parts_[places.part[i]].prefetch_to_probe();
    for (size_t i = 0; i < n; ++i) parts_[places.part[i]].find(keys + i, 1, places.leaf + i);
  }

  size_t collect(const ImmutableTree& search, size_t part, uint32_t leaf, uint64_t lo, uint64_t hi, int64_t row_lo,
                 int64_t row_hi, size_t found, Growing<int64_t>& out) const {
    if (size_ == 0) return found;
    for (;;) {
      found = parts_[part].collect(leaf, lo, hi, row_lo, row_hi, found, out);
      // Equal keys go left, so nothing beyond a bound equals it; and the last bound is infinity.
      if (hi <= search.bound(depth_, part)) return found;
      leaf = parts_[++part].first_leaf();
    }
  }

  void drain(Entry* to) const {
    for (const InsertionTree& part : parts_) to = part.drain(to);
  }

  void restart(const ImmutableTree& search) {
    const size_t depth = search.depth() == 0 ? 0 : std::min(wanted_depth_, search.depth() - 1);
    const size_t count = search.nodes(depth);
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
    demand(parts_.size() == search.nodes(depth_), "pim tree: a sub-index for each node at the insertion depth");
    size_t entries = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].check();
      std::vector<Entry> held(parts_[i].size());
      parts_[i].drain(held.data());
      for (const Entry& entry : held) {
        demand(entry.key <= search.bound(depth_, i), "pim tree: no key of a sub-index is above its bound");
        demand(i == 0 || entry.key > search.bound(depth_, i - 1), "pim tree: all keys are above the bound before it");
      }
      entries += held.size();
    }
    demand(entries == size_, "pim tree: it counts what its sub-indexes hold");
  }

 private:
  // `parts` begin as 0, the root.
  void find_parts(const ImmutableTree& search, const uint64_t* keys, size_t n, size_t* parts) const {
    search.descend(keys, n, 0, depth_, parts);
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
