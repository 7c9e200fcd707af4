// Sorted keys with the position of each: what IM-Tree and PIM-Tree call T_S, and chained indexes IB+-Tree.
//
// Problem: most rows of a window lie in trees that take no more insertions, and still pay for links and free places.
// Idea: the keys stand in order under levels of bounds (see sorted_keys.hpp), and beside them, in an array of their
// own, their 32-bit positions in the order of arrival (see positions.hpp): a search reads keys alone, and a node of
// them and its positions are three cache lines.
//
// Invariant: those of the keys; there is a position for each.
// Cost: built in O(n) from sorted entries; search O(log n); 12.5 bytes an entry.
//
// Deviations from the papers: a node is as many bounds as it has children, of which a search reads all but the last, so
// that nodes are whole cache lines and a level can be taken as the ends of partitions (the printed form looks for these
// inside inner nodes, where those of last children are missing). Each bound is read from where it stands in the sorted
// keys; as printed, building from level to level never ends, takes lengths from the wrong level, rounds them down,
// reads past a last leaf that is not full, and gives the very last child a bound, beyond which a key above all others
// finds no child.
#pragma once

#include "positions.hpp"
#include "sorted_keys.hpp"

namespace dovetail {

class ImmutableTree {
 public:
  ImmutableTree() : ImmutableTree(0, [](uint64_t*, uint32_t*) {}) {}

  // n entries, ascending by key, as write(keys, positions) writes them; it may write to one place more than these.
  template <typename Write>
  ImmutableTree(size_t n, Write write) : keys_(n), positions_(n + 1) {
    demand(n <= kMostPositions, "immutable tree: more entries than positions can be told apart");
    write(keys_.data(), positions_.get());
    keys_.complete();
  }

  size_t size() const { return keys_.size(); }
  size_t nbytes() const { return keys_.nbytes() + positions_.nbytes(); }
  size_t depth() const { return keys_.depth(); }  // of the leaves; the root is at 0

  const SortedKeys& keys() const { return keys_; }
  const uint32_t* positions() const { return positions_.get(); }

  // For each of n keys the leaf where entries not below it begin, fetched ahead; the search goes on at some depth from
  // the nodes that `leaves` tells, or begins at the root.
  void descend_from(size_t depth, const uint64_t* keys, size_t n, uint32_t* leaves) const {
    keys_.descend(keys, n, depth, keys_.depth(), leaves);
    for (size_t i = 0; i < n; ++i) __builtin_prefetch(positions_.get() + size_t{leaves[i]} * SortedKeys::kNode);
  }
  void descend(const uint64_t* keys, size_t n, uint32_t* leaves) const {
    std::fill(leaves, leaves + n, 0);
    descend_from(0, keys, n, leaves);
  }

  // Gives the filter the positions of all keys in [lo, hi]; `leaf` is what descend said of lo.
  void scan(uint32_t leaf, uint64_t lo, uint64_t hi, PositionFilter& filter) const {
    constexpr size_t kAtOnce = 64;  // as room is made for all that are looked at
    for (size_t at = keys_.place(leaf, lo); at < size(); at += kAtOnce) {
      const size_t n = std::min(kAtOnce, size() - at);
      if (!filter.take_upto(keys_.data() + at, positions_.get() + at, n, hi)) return;
    }
  }

  // Visits all (key, position), in the order of keys.
  template <typename Visit>
  void each(Visit visit) const {
    for (size_t i = 0; i < size(); ++i) visit(keys_[i], positions_[i]);
  }

  void check() const { keys_.check(); }

 private:
  SortedKeys keys_;
  Array<uint32_t> positions_;
};

}  // namespace dovetail
