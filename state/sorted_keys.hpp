// Ascending keys that never change, and above them levels of bounds: a search tree whose links are arithmetic.
//
// Problem: a node of a changeable tree gives a third of its lines to links and another to free places, and a binary
// search of a plain array waits for memory at each step. Idea: the keys are cut into leaves of 16, two cache lines.
// Above them lie levels of nodes, breadth first, the root first. The children of node i of a level are the nodes 16 i
// to 16 i + 15 of the next one, so no child is ever stored, and several searches go down side by side, each asking for
// its next node while the others compute.
//
// A level holds one bound for each node of the level below: the greatest key in it. Equal keys go left: a key belongs
// to the first child whose bound is not below it. The last node of a level has no bound but the greatest key there is,
// and so have the places behind it: keys above all others, which drifting streams bring all the time, descend into the
// last child, and never into one that does not exist. So a level is also a list of partitions and where they end.
//
// Invariants: keys ascend, and behind the last one stands the greatest there is; bound i of a level is the greatest key
// of node i below it, but for the last one.
// Cost: built in O(n); search O(log n) without a branch, two lines a level; 8.5 bytes a key.
// Where it loses: against anything that must change.
#pragma once

#include <algorithm>

#include "row_vector.hpp"
#include "search.hpp"

namespace dovetail {

class SortedKeys {
 public:
  static constexpr size_t kNode = 16;  // keys of a leaf, and children of a node
  static constexpr size_t kMostDepth = 8;  // enough for 2^32 keys and more

  // Room for n keys. They are to be written at data(), ascending; then complete() raises the bounds. Until then one
  // place more may be written to: who copies without a branch does so before he knows that he should not.
  explicit SortedKeys(size_t n) : size_(n) {
    size_t nodes[kMostDepth + 1] = {nodes_for(n)};  // of each level, from the leaves up
    for (; nodes[depth_] > 1; ++depth_) nodes[depth_ + 1] = nodes_for(nodes[depth_]);
    size_t places = 0;
    for (size_t level = 0; level <= depth_; ++level) {
      starts_[level] = places;
      places += nodes[depth_ - level] * kNode;
    }
    all_ = Array<uint64_t>(places + 1);
  }

  void complete() {
    uint64_t* const keys = data();
    std::fill(keys + size_, all_.get() + all_.size(), kGreatest);
    size_t span = kNode;  // keys under one bound
    for (size_t level = depth_; level-- > 0; span *= kNode) {
      uint64_t* const bounds = all_.get() + starts_[level];
      const size_t places = starts_[level + 1] - starts_[level];
      for (size_t i = 0; i < places; ++i) bounds[i] = (i + 1) * span < size_ ? keys[(i + 1) * span - 1] : kGreatest;
    }
  }

  size_t size() const { return size_; }
  size_t nbytes() const { return all_.nbytes(); }
  size_t depth() const { return depth_; }  // of the leaves; the root is at 0
  uint64_t* data() { return all_.get() + starts_[depth_]; }
  const uint64_t* data() const { return all_.get() + starts_[depth_]; }
  uint64_t operator[](size_t i) const { return data()[i]; }

  // Nodes at a depth, and where each of them ends.
  size_t nodes(size_t depth) const {
    size_t nodes = nodes_for(size_);
    for (size_t level = depth_; level > depth; --level) nodes = nodes_for(nodes);
    return nodes;
  }
  uint64_t bound(size_t depth, size_t node) const { return depth ? all_[starts_[depth - 1] + node] : kGreatest; }

  // Follows n keys from one depth down to another, where their nodes are on their way then; `nodes` says where each is.
  void descend(const uint64_t* keys, size_t n, size_t from, size_t to, uint32_t* nodes) const {
    for (size_t depth = from; depth < to; ++depth) {
      const uint64_t* bounds = all_.get() + starts_[depth];
      const uint64_t* next = all_.get() + starts_[depth + 1];
      for (size_t i = 0; i < n; ++i) {
        const size_t first = size_t{nodes[i]} * kNode, child = first + first_not_below(bounds + first, keys[i]);
        nodes[i] = static_cast<uint32_t>(child);
        prefetch_lines(next + child * kNode, kNode * sizeof(uint64_t));
      }
    }
  }

  // How many keys are below `key`, which descend has led to `leaf`.
  size_t place(uint32_t leaf, uint64_t key) const {
    const size_t first = size_t{leaf} * kNode, at = first + first_not_below(data() + first, key);
    return at + (data()[at] < key);  // behind a last leaf that is full
  }

  // How many keys are below each of n <= kGroup others.
  void find(const uint64_t* keys, size_t n, uint32_t* places) const {
    std::fill(places, places + n, 0);
    descend(keys, n, 0, depth_, places);
    for (size_t i = 0; i < n; ++i) places[i] = static_cast<uint32_t>(place(places[i], keys[i]));
  }
  size_t find(uint64_t key) const {
    uint32_t place;
    find(&key, 1, &place);
    return place;
  }

  void check() const {
    demand(std::is_sorted(data(), data() + size_), "sorted keys: they ascend");
    for (const uint64_t* key = data() + size_; key < all_.get() + all_.size(); ++key) {
      demand(*key == kGreatest, "sorted keys: behind the last one stands the greatest there is");
    }
    for (size_t i = 0; i < size_; ++i) {
      const size_t at = find((*this)[i]);
      demand(at <= i && (*this)[at] == (*this)[i] && (at == 0 || (*this)[at - 1] < (*this)[i]),
             "sorted keys: the bounds lead to the first of equal keys");
    }
    const size_t end = find(kGreatest);
    demand(end == size_ || (*this)[end] == kGreatest, "sorted keys: a key above all others leads to the end");
  }

 private:
  static size_t nodes_for(size_t places) { return std::max<size_t>(1, (places + kNode - 1) / kNode); }

  // The first of 16 that is not below the key, or the last: two steps of three comparisons each, side by side.
  static size_t first_not_below(const uint64_t* keys, uint64_t key) {
    const size_t fours = size_t{keys[3] < key} + (keys[7] < key) + (keys[11] < key);
    keys += 4 * fours;
    return 4 * fours + (keys[0] < key) + (keys[1] < key) + (keys[2] < key);
  }

  size_t size_;
  size_t depth_ = 0;
  size_t starts_[kMostDepth + 1] = {};  // where each level begins in all_, the root first and the keys last
  Array<uint64_t> all_;
};

}  // namespace dovetail
