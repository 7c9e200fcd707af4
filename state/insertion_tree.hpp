// A B+-tree that only grows: the insertion part of an IM-Tree, or a sub-index of a PIM-Tree's (T_I in the paper).
//
// Problem: what takes every new row, and is emptied before it is large, needs no deletion and should cost little to
// insert into; and there may be thousands of them. Idea: a leaf is not sorted. An insertion is an append, a probe looks
// at all of its keys, which are a few lines anyway, and only a split or a merge puts them in order.
//
// A node is a head, `fanout` keys and as many links: positions in a leaf, children in an inner node, whose keys are the
// greatest of each child, with the greatest there is for the last one and for the places behind it. Nodes have numbers
// and stand in one array of the tree's own: it shares nothing with others of its kind. A full node is split on the way
// down, so that a split finds room in the parent, and a tree is whole before and after each of them, whatever memory
// there is.
//
// Invariants: a node has no more entries than places; the keys of a child are above the bound before it and not above
// its own, but that equal keys may stand on both sides of one; leaves are chained in the order of keys, and each knows
// its bound.
// Cost: insert O(log n); probe O(log n + leaves of the range); 16 to 25 bytes an entry, and a node for the first.
// Where it loses: against one that is sorted, where a range has many leaves and few rows of them are wanted.
#pragma once

#include <algorithm>
#include <cstring>

#include "positions.hpp"

namespace dovetail {

class alignas(64) InsertionTree {
 public:
  // Half of a narrower node would be one child: keys that ascend would leave a tree as high as it has leaves.
  static constexpr size_t kLeastFanout = 4, kMostFanout = 256;

  explicit InsertionTree(size_t fanout)
      : fanout_(fanout), stride_(whole_lines(sizeof(Head) + fanout * (sizeof(uint64_t) + sizeof(uint32_t)))) {}

  size_t size() const { return size_; }
  size_t height() const { return height_; }  // levels above the leaves
  size_t nbytes() const { return memory_.nbytes(); }
  uint32_t nodes() const { return used_; }  // while it stays the same, so does the leaf of each key

  void insert(uint64_t key, uint32_t position) {
    if (used_ == 0) root_ = add_node(0);
    if (head(root_).count == fanout_) grow_root();
    uint32_t node = root_;
    for (uint32_t level = height_; level > 0; --level) {
      size_t at = first_not_below(keys_of(node), fanout_, key);
      if (head(links(node)[at]).count == fanout_) {
        split(node, at, level == 1);
        at += keys_of(node)[at] < key;
      }
      node = links(node)[at];
    }
    append(node, key, position);
  }

  // The leaf to which each of n keys belongs. Its head and keys are on their way, for a probe.
  void find(const uint64_t* wanted, size_t n, uint32_t* leaves) const {
    for (size_t i = 0; i < n; ++i) leaves[i] = root_;
    for (uint32_t level = height_; level > 0; --level) {
      for (size_t i = 0; i < n; ++i) {
        leaves[i] = links(leaves[i])[first_not_below(keys_of(leaves[i]), fanout_, wanted[i])];
        prefetch_lines(place(leaves[i]), sizeof(Head) + fanout_ * sizeof(uint64_t));
      }
    }
  }

  uint32_t first_leaf() const {
    uint32_t leaf = root_;
    for (uint32_t level = height_; level > 0; --level) leaf = links(leaf)[0];
    return leaf;
  }

  // While a tree is one leaf, what a probe will read of it, and what the next insertion will write.
  void prefetch_to_probe() const {
    if (size_ < fanout_) prefetch_lines(memory_.get(), sizeof(Head) + size_ * sizeof(uint64_t));
  }
  void prefetch_to_insert() const {
    if (used_ == 0 || size_ >= fanout_) return;
    __builtin_prefetch(&head(0), 1);
    __builtin_prefetch(keys_of(0) + size_, 1);
    __builtin_prefetch(links(0) + size_, 1);
  }

  // Inserts where `find` has led, unless that leaf is full.
  bool insert_at(uint32_t leaf, uint64_t key, uint32_t position) {
    if (used_ == 0 || head(leaf).count == fanout_) return false;
    append(leaf, key, position);
    return true;
  }

  // Gives the filter the entries from the leaf of the range's low end on.
  void scan(uint32_t leaf, uint64_t lo, uint64_t hi, PositionFilter& filter) const {
    if (size_ == 0) return;
    for (;;) {
      const Head& at = head(leaf);
      filter.take(keys_of(leaf), links(leaf), at.count, lo, hi);
      // Equal keys may stand on both sides of a split, so a bound that is reached does not end the search.
      if (hi < at.bound || at.next == kNone) return;
      leaf = at.next;
    }
  }

  // All entries in the order of keys, with positions for rows; returns the end.
  Entry* drain(Entry* to) const {
    for_each_leaf([&](uint32_t leaf) { to = sorted(leaf, to); });
    return to;
  }

  // Forgets the positions from one on, for an insertion that cannot be completed. Splits remain.
  void take_back(uint32_t from) {
    for_each_leaf([&](uint32_t leaf) {
      size_t kept = 0;
      for (size_t i = 0; i < head(leaf).count; ++i) {
        const uint32_t position = links(leaf)[i];
        keys_of(leaf)[kept] = keys_of(leaf)[i];
        links(leaf)[kept] = position;
        kept += from - position - 1 < kMostPositions;
      }
      size_ -= head(leaf).count - kept;
      head(leaf).count = static_cast<uint32_t>(kept);
    });
  }

  // Empty again, with the memory of one leaf at most.
  void clear() {
    if (memory_.nbytes() > stride_) memory_ = Array<unsigned char>();
    used_ = root_ = height_ = 0;
    size_ = 0;
  }

  void check() const {
    demand(used_ * stride_ <= memory_.nbytes(), "insertion tree: nodes stand in its memory");
    if (used_ == 0) {
      demand(size_ == 0 && height_ == 0, "insertion tree: without a node it is empty");
      return;
    }
    uint32_t next_leaf = first_leaf(), nodes = 0;
    size_t entries = 0;
    check(root_, height_, 0, kGreatest, next_leaf, nodes, entries);
    demand(next_leaf == kNone, "insertion tree: the chain of leaves ends with the last");
    demand(nodes == used_, "insertion tree: each node has one parent");
    demand(entries == size_, "insertion tree: it counts its entries");
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Head {
    uint32_t count;
    uint32_t next;   // of a leaf: the next one
    uint64_t bound;  // of a leaf: no key is above it, and none of the next leaf below
  };

  template <typename Visit>
  void for_each_leaf(Visit visit) const {
    if (used_ == 0) return;
    for (uint32_t leaf = first_leaf(); leaf != kNone; leaf = head(leaf).next) visit(leaf);
  }

  // A node whose keys are from `least` to `bound`, and all below it, in the order of keys.
  void check(uint32_t node, uint32_t level, uint64_t least, uint64_t bound, uint32_t& next_leaf, uint32_t& nodes,
             size_t& entries) const {
    const size_t count = head(node).count;
    ++nodes;
    demand(count <= fanout_, "insertion tree: a node has no more entries than places");
    if (level == 0) {
      demand(node == next_leaf, "insertion tree: leaves are chained in the order of keys");
      demand(head(node).bound == bound, "insertion tree: a leaf knows its bound");
      for (size_t i = 0; i < count; ++i) {
        const uint64_t key = keys_of(node)[i];
        demand(least <= key && key <= bound, "insertion tree: a leaf's keys are within its bounds");
      }
      next_leaf = head(node).next;
      entries += count;
      return;
    }
    demand(count > 0, "insertion tree: an inner node has children");
    for (size_t i = count - 1; i < fanout_; ++i) {
      demand(keys_of(node)[i] == kGreatest, "insertion tree: the last child has no bound of its own");
    }
    for (size_t i = 0; i < count; ++i) {
      const uint64_t upto = i + 1 < count ? keys_of(node)[i] : bound;
      demand(least <= upto && upto <= bound, "insertion tree: bounds ascend");
      check(links(node)[i], level - 1, least, upto, next_leaf, nodes, entries);
      least = upto;
    }
  }

  // A node in memory: its head, `fanout` keys, as many links. Of a constant tree as well: those who only read share
  // these accessors.
  unsigned char* place(uint32_t node) const { return const_cast<unsigned char*>(memory_.get()) + node * stride_; }
  Head& head(uint32_t node) const { return *reinterpret_cast<Head*>(place(node)); }
  uint64_t* keys_of(uint32_t node) const { return reinterpret_cast<uint64_t*>(place(node) + sizeof(Head)); }
  uint32_t* links(uint32_t node) const { return reinterpret_cast<uint32_t*>(keys_of(node) + fanout_); }

  void append(uint32_t leaf, uint64_t key, uint32_t position) {
    const uint32_t i = head(leaf).count++;
    keys_of(leaf)[i] = key;
    links(leaf)[i] = position;
    ++size_;
  }

  uint32_t add_node(uint32_t count) {
    if ((used_ + 1) * stride_ > memory_.nbytes()) {
      Array<unsigned char> wider(stride_ * (size_t{used_} + used_ / 2 + 1));
      if (used_) std::memcpy(wider.get(), memory_.get(), used_ * stride_);
      memory_ = std::move(wider);
    }
    head(used_) = {count, kNone, kGreatest};
    return used_++;
  }

  void grow_root() {
    const uint32_t root = add_node(1);
    std::fill_n(keys_of(root), fanout_, kGreatest);
    links(root)[0] = root_;
    root_ = root;
    ++height_;
  }

  // Moves the upper half of a parent's child i, which is full, into a new node behind it. Not to be inlined: it is
  // rare, and would drive the loops of insertion apart.
  __attribute__((noinline)) void split(uint32_t parent, size_t i, bool leaf) {
    const uint32_t right = add_node(0), left = links(parent)[i];
    const size_t kept = fanout_ / 2, moved = fanout_ - kept;
    if (leaf) {
      Entry entries[kMostFanout];
      sorted(left, entries);
      write(entries, kept, left);
      write(entries + kept, moved, right);
      head(right) = {0, head(left).next, head(left).bound};
      head(left).next = right;
      head(left).bound = entries[kept - 1].key;
    } else {
      std::fill_n(keys_of(right), fanout_, kGreatest);
      std::copy_n(keys_of(left) + kept, moved, keys_of(right));
      std::copy_n(links(left) + kept, moved, links(right));
    }
    const uint64_t bound = keys_of(left)[kept - 1];
    if (!leaf) std::fill_n(keys_of(left) + kept - 1, moved + 1, kGreatest);
    head(left).count = static_cast<uint32_t>(kept);
    head(right).count = static_cast<uint32_t>(moved);
    const size_t count = head(parent).count++;
    std::copy_backward(keys_of(parent) + i, keys_of(parent) + count, keys_of(parent) + count + 1);
    std::copy_backward(links(parent) + i + 1, links(parent) + count, links(parent) + count + 1);
    keys_of(parent)[i] = bound;
    links(parent)[i + 1] = right;
  }

  void write(const Entry* entries, size_t n, uint32_t leaf) {
    for (size_t i = 0; i < n; ++i) {
      keys_of(leaf)[i] = entries[i].key;
      links(leaf)[i] = static_cast<uint32_t>(entries[i].row);
    }
  }

  Entry* sorted(uint32_t leaf, Entry* to) const {
    const size_t count = head(leaf).count;
    for (size_t i = 0; i < count; ++i) to[i] = {keys_of(leaf)[i], links(leaf)[i]};
    std::sort(to, to + count);
    return to + count;
  }

  size_t fanout_, stride_;
  Array<unsigned char> memory_;
  uint32_t used_ = 0;
  uint32_t root_ = 0;
  uint32_t height_ = 0;
  size_t size_ = 0;
};

}  // namespace dovetail
