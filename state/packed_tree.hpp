// A B+-tree that never changes: sorted entries, and above them bounds whose place says what they belong to.
//
// Problem: a tree that takes insertions keeps a third of its slots empty, and links between its nodes. Entries that
// are only looked up need neither. Idea: all keys stand in one sorted array, cut into leaves of 16 keys, two cache
// lines; above them lie levels of inner nodes of 16 keys, breadth-first, the root first. An inner node has a child more
// than it has keys, and child j of node i of a level is node 17 i + j of the level below, so no child is ever stored.
//
// Invariants: keys ascend, equal ones by age. Key j of an inner node is the greatest key below its child j, so equal
// keys lead to the left; the last node of a level has no such key in its parent, and slots without a child hold the
// greatest key there is, so no search leads to a child that does not exist. The last leaf is filled up with it too.
// Cost: built in O(n) from sorted entries; looked up in O(log n) without a branch, and a group of keys level by level,
// so that their cache misses overlap; 12.5 bytes an entry.
// Where it loses: against anything that must change.
//
// The paper builds its levels leaf by leaf and carries from node to node. As printed that never ends, takes lengths
// from the wrong level, rounds them down, gives nodes one key too many, reads past a last leaf that is not full, and
// gives the very last child a bound, beyond which a key greater than all others then finds no child. Here each bound
// is read from where it stands in the sorted keys.
#pragma once

#include <algorithm>

#include "positions.hpp"

namespace dovetail {

class PackedTree {
 public:
  PackedTree() = default;

  // entries.each(visit) calls visit(key, position) n times, keys ascending and equal ones by age.
  template <typename Entries>
  PackedTree(const Entries& entries, size_t n) : size_(n), positions_(n) {
    demand(n < UINT32_MAX, "packed tree: more entries than 32 bits can count");
    size_t widths[kMostLevels] = {nodes_for(n, kFanout)};  // nodes of each level, from the leaves up
    for (depth_ = 1; widths[depth_ - 1] > 1; ++depth_) widths[depth_] = nodes_for(widths[depth_ - 1], kFanout + 1);
    size_t slots = 0;
    for (size_t level = 0; level < depth_; ++level) {
      starts_[level] = slots;
      slots += widths[depth_ - 1 - level] * kFanout;
    }
    keys_ = Array<uint64_t>(slots);
    uint64_t* const sorted = keys_.get() + starts_[depth_ - 1];
    size_t at = 0;
    entries.each([&](uint64_t key, uint32_t position) {
      sorted[at] = key;
      positions_[at++] = position;
    });
    std::fill(sorted + n, keys_.get() + slots, kGreatest);
    size_t below = kFanout;  // entries below one child
    for (size_t level = depth_ - 1; level-- > 0; below *= kFanout + 1) {
      uint64_t* bound = keys_.get() + starts_[level];
      for (size_t node = 0; node < widths[depth_ - 1 - level]; ++node) {
        for (size_t j = 0; j < kFanout; ++j) {
          const size_t end = (node * (kFanout + 1) + j + 1) * below;
          *bound++ = end < n ? sorted[end - 1] : kGreatest;
        }
      }
    }
  }

  size_t size() const { return size_; }
  size_t depth() const { return depth_; }
  size_t nbytes() const { return keys_.nbytes() + positions_.nbytes(); }
  const uint64_t* keys() const { return keys_.get() + (depth_ ? starts_[depth_ - 1] : 0); }  // sorted
  const uint32_t* positions() const { return positions_.get(); }                             // of each key

  // For each of n keys the leaf where entries not below it begin, fetched ahead.
  void descend(const uint64_t* keys, size_t n, uint32_t* leaves) const {
    std::fill(leaves, leaves + n, 0);
    for (size_t level = 0; level + 1 < depth_; ++level) {
      const uint64_t* mine = keys_.get() + starts_[level];
      const uint64_t* next = keys_.get() + starts_[level + 1];
      const bool last = level + 2 == depth_;
      for (size_t g = 0; g < n; ++g) {
        const size_t child = leaves[g] * (kFanout + 1) + below(mine + leaves[g] * kFanout, keys[g]);
        leaves[g] = static_cast<uint32_t>(child);
        for (size_t i = 0; i < kFanout; i += kLine) __builtin_prefetch(next + child * kFanout + i);
        if (last) __builtin_prefetch(positions_.get() + child * kFanout);
      }
    }
  }

  // How many entries are below `key`; `leaf` is what descend said of it.
  size_t place(uint32_t leaf, uint64_t key) const {
    const size_t first = leaf * kFanout;
    return first + below(keys() + first, key);
  }

  // Gives the filter the positions of all keys in [lo, hi]; `leaf` is what descend said of lo.
  void scan(uint32_t leaf, uint64_t lo, uint64_t hi, PositionFilter& filter) const {
    if (size_ == 0) return;
    const uint64_t* sorted = keys();
    const size_t begin = place(leaf, lo);
    size_t end = begin;
    while (end < size_ && sorted[end] <= hi) ++end;
    filter.take(positions_.get() + begin, end - begin);
  }

  // Visits all (key, position), in the order of keys and then of age.
  template <typename Visit>
  void each(Visit visit) const {
    for (size_t i = 0; i < size_; ++i) visit(keys()[i], positions_[i]);
  }

  void check() const {
    if (depth_ == 0) return;
    for (size_t i = 1; i < size_; ++i) {
      demand(keys()[i - 1] < keys()[i] || (keys()[i - 1] == keys()[i] &&
                                           positions_[i] - positions_[i - 1] < UINT32_MAX / 2),
             "packed tree: entries ascend by key, then by age");
    }
    for (const uint64_t* key = keys() + size_; key < keys_.get() + keys_.size(); ++key) {
      demand(*key == kGreatest, "packed tree: leaves are filled up with the greatest key");
    }
    for (size_t i = 0; i < size_; ++i) {
      const size_t at = place_of(keys()[i]);
      demand(at <= i && keys()[at] == keys()[i] && (at == 0 || keys()[at - 1] < keys()[i]),
             "packed tree: the bounds lead to the first entry of each key");
    }
    const size_t end = place_of(kGreatest);
    demand(end == size_ || keys()[end] == kGreatest, "packed tree: a key above all others leads to the end");
  }

 private:
  static constexpr uint64_t kGreatest = UINT64_MAX;
  static constexpr size_t kFanout = 16;     // keys of a node
  static constexpr size_t kMostLevels = 9;  // one more than 2^32 entries need
  static constexpr size_t kLine = 64 / sizeof(uint64_t);

  static size_t nodes_for(size_t children, size_t each) { return std::max<size_t>(1, (children + each - 1) / each); }

  size_t place_of(uint64_t key) const {
    uint32_t leaf;
    descend(&key, 1, &leaf);
    return place(leaf, key);
  }

  // How many of a node's keys are below `key`: no branch, and always as many steps.
  static size_t below(const uint64_t* keys, uint64_t key) {
    size_t at = 0;
    at += size_t{8} & -static_cast<size_t>(keys[at + 7] < key);
    at += size_t{4} & -static_cast<size_t>(keys[at + 3] < key);
    at += size_t{2} & -static_cast<size_t>(keys[at + 1] < key);
    at += size_t{1} & -static_cast<size_t>(keys[at] < key);
    return at + (keys[at] < key);
  }

  size_t size_ = 0;
  size_t depth_ = 0;                 // levels, the leaves included; the root is level 0
  size_t starts_[kMostLevels] = {};  // where each level begins in keys_
  Array<uint64_t> keys_;
  Array<uint32_t> positions_;
};

}  // namespace dovetail
