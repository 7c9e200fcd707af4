// PanJoin's wide B+-tree: sub-windows whose partitions are the leaves of a tree, unsorted, split where they overflow.
//
// Problem: splitters that are fixed beforehand know nothing of keys that rise or jump. Idea: a B+-tree adapts while it
// is filled, and is made cheap for that: its leaves are wide and *unsorted*, so that an insertion appends one row; a
// leaf is partitioned around its median when it is split, and nothing else is ever sorted. Nothing is deleted, as the
// tree of a sub-window is dropped whole.
//
// A leaf is a chunk of the linked-list adaptive table (llat.hpp). It is split between distinct keys only, so that all
// rows of a key stand in one leaf; where more rows than a leaf holds have one key, they are a leaf of their own,
// and that is a chain of chunks. When a row comes that such a leaf cannot take, it begins a leaf beside it. So does a
// row beyond all others in the first or the last leaf: keys that rise or fall leave full leaves behind them.
//
// The inner structure has two levels: *blocks* of up to 64 leaves with their bounds, in order, and a table over the
// blocks' last bounds that is set anew when a block is split, which is once in some 400 rows.
//
// Cost: insert and probe O(log n), with two or three cache misses for each sub-window, whatever the keys are and
// however they move; a row is moved 1.5 times on average; some 27 bytes a row.
// Invariants: leaf i holds the keys above bound i - 1 up to bound i, inclusively; bounds ascend; the last is the
// greatest key there is. A leaf of more than one chunk holds one key. A leaf is empty only after an insertion failed.
// Where it loses: against `rap_table` on keys that stay as they were: two searches instead of one, and leaves that are
// filled to seven tenths and spread over memory. It begins each sub-window with nothing.
// Repaired against the paper: the number of leaves is not known beforehand and chains take chunks too, so there are as
// many chunks as needed, not 2P, and those that come free are taken again; the leaves at both ends of a range are
// filtered; leaves whose rows have one key are never split.
#pragma once

#include <algorithm>

#include "llat.hpp"
#include "sorted_keys.hpp"

namespace dovetail {

class WibTree {
 public:
  struct Options {
    explicit Options(const Settings& settings) : leaf(settings.count("leaf")) {}
    size_t leaf;
  };
  static std::vector<Parameter> parameters() {
    return {{"leaf", 26, 2, 1 << 16, "rows of a leaf; 10, 26 and 42 fill whole cache lines"}};
  }

  struct Spot {
    uint32_t rank, slot;  // the rank of a block, and a leaf in it
    uint32_t leaf;
  };

  WibTree(const Options& options, size_t rows, const WibTree*)
      : room_(options.leaf),
        capacity_(rows),
        chunks_(options.leaf, std::max<size_t>(1, rows / options.leaf / 4)),
        median_(options.leaf),
        top_(1) {
    blocks_.emplace_back();
    order_.push_back(0);
    blocks_[0].insert(0, kGreatest, chunks_.take());
    summarise(top_);
  }

  size_t rows() const { return rows_; }
  size_t capacity() const { return capacity_; }
  size_t nbytes() const {
    return chunks_.nbytes() + median_.nbytes() + blocks_.capacity() * sizeof(Block) +
           order_.capacity() * sizeof(uint32_t) + top_.nbytes();
  }

  void locate(const uint64_t* lo, const uint64_t* hi, size_t n, Spot* spots) const {
    find(lo, n, spots);
    for (size_t i = 0; i < n; ++i) {
      Spot next = spots[i];
      if (bound_of(next) < hi[i]) {
        step(next);
        chunks_.prefetch(chunks_.at(next.leaf));
      }
    }
  }

  void approach(const Spot* spots, size_t n) const {
    for (size_t i = 0; i < n; ++i) chunks_.prefetch_behind(chunks_.at(spots[i].leaf));
  }

  size_t collect(Spot spot, const Wanted& wanted, Growing<int64_t>& out, size_t found) const {
    const size_t before = found;
    for (bool first = true;; first = false) {
      const Chunk* leaf = chunks_.at(spot.leaf);
      const bool last = bound_of(spot) >= wanted.hi;
      if (!last) {
        step(spot);
        __builtin_prefetch(chunks_.at(spot.leaf));
      }
      found = chunks_.collect(leaf, !first && !last, wanted, out, found);
      if (last) return found - before;
    }
  }

  void insert(const uint64_t* keys, size_t n) {
    Spot spots[kGroup];
    for (size_t begin = 0; begin < n; begin += kGroup) {
      const size_t end = std::min(begin + kGroup, n), changes = changes_;
      find(keys + begin, end - begin, spots);
      for (size_t i = begin; i < end; ++i) {
        // Where keys belong has moved when a leaf was split.
        add(changes == changes_ ? spots[i - begin] : find(keys[i]), keys[i]);
      }
    }
  }

  void take_back(uint64_t key) {
    chunks_.pop(chunks_.at(find(key).leaf));
    --rows_;
  }

  void describe(Statistics& all) const {
    size_t leaves = 0;
    for (const Block& block : blocks_) leaves += block.leaves;
    all.emplace_back("leaves", static_cast<double>(leaves));
    all.emplace_back("blocks", static_cast<double>(blocks_.size()));
    all.emplace_back("chained_chunks", static_cast<double>(chunks_.taken() - leaves));
    all.emplace_back("rows_a_leaf", static_cast<double>(rows_) / static_cast<double>(leaves));
  }

  void check() const {
    demand(order_.size() == blocks_.size() && top_.size() == order_.size(), "wib: each block has a rank");
    top_.check();
    size_t held = 0, taken = 0;
    uint64_t below = 0;  // the bound of the leaf before
    bool leftmost = true;
    Vector<char> seen(rows_);
    for (size_t rank = 0; rank < order_.size(); ++rank) {
      const Block& block = blocks_[order_[rank]];
      demand(block.leaves > 0 && block.leaves <= kLeaves, "wib: a block holds leaves, and has room for them");
      for (size_t slot = block.leaves; slot < kLeaves; ++slot) {
        demand(block.bound[slot] == kGreatest, "wib: what is behind the leaves of a block does not end a search");
      }
      for (size_t slot = 0; slot < block.leaves; ++slot) {
        const Chunk* leaf = chunks_.at(block.leaf[slot]);
        const uint64_t bound = block.bound[slot];
        demand(leftmost || below < bound, "wib: bounds ascend");
        taken += 1 + chunks_.check(leaf);
        chunks_.each(leaf, [&](uint64_t key, uint32_t place) {
          demand(key <= bound && (leftmost || key > below), "wib: a key is in the range of its leaf");
          demand(leaf->next == kNoChunk || key == leaf->keys()[0], "wib: a chain holds one key");
          demand(place < rows_ && !seen[place], "wib: each place once");
          seen[place] = 1;
          ++held;
        });
        below = bound;
        leftmost = false;
      }
      demand(top_[rank] == below, "wib: the table has the last bound of each block");
    }
    demand(below == kGreatest, "wib: the last bound is the greatest key");
    demand(held == rows_, "wib: every row stands in a leaf");
    demand(taken == chunks_.taken(), "wib: a chunk belongs to one leaf");
  }

 private:
  static constexpr size_t kLeaves = 64;  // of a block: eight cache lines of bounds, asked for together

  struct Block {
    Block() { std::fill(bound, bound + kLeaves, kGreatest); }

    void insert(size_t slot, uint64_t upto, uint32_t number) {
      std::copy_backward(bound + slot, bound + leaves, bound + leaves + 1);
      std::copy_backward(leaf + slot, leaf + leaves, leaf + leaves + 1);
      bound[slot] = upto;
      leaf[slot] = number;
      ++leaves;
    }

    uint64_t bound[kLeaves];  // the greatest key of each leaf, then the greatest there is
    uint32_t leaf[kLeaves];
    size_t leaves = 0;
  };

  Spot find(uint64_t key) const {
    Spot spot;
    find(&key, 1, &spot);
    return spot;
  }

  // The leaf of each key, with its memory on the way. At most kGroup keys, which go down step by step together.
  void find(const uint64_t* keys, size_t n, Spot* spots) const {
    uint32_t ranks[kGroup];
    const Block* blocks[kGroup];
    top_.find(keys, n, ranks);
    for (size_t i = 0; i < n; ++i) {
      blocks[i] = &blocks_[order_[ranks[i]]];
      prefetch_lines(blocks[i]->bound, sizeof blocks[i]->bound);
      spots[i] = {ranks[i], 0, 0};
    }
    for (uint32_t half = kLeaves / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < n; ++i) {
        uint32_t& slot = spots[i].slot;
        slot += half & (0 - static_cast<uint32_t>(blocks[i]->bound[slot + half - 1] < keys[i]));  // without a branch
      }
    }
    for (size_t i = 0; i < n; ++i) {
      spots[i].leaf = blocks[i]->leaf[spots[i].slot];
      chunks_.prefetch(chunks_.at(spots[i].leaf));
    }
  }

  uint64_t bound_of(const Spot& spot) const { return blocks_[order_[spot.rank]].bound[spot.slot]; }

  // To the next leaf; there is one.
  void step(Spot& spot) const {
    if (++spot.slot == blocks_[order_[spot.rank]].leaves) {
      spot.slot = 0;
      ++spot.rank;
    }
    spot.leaf = blocks_[order_[spot.rank]].leaf[spot.slot];
  }

  // Strong guarantee: splits that were made stay.
  void add(Spot spot, uint64_t key) {
    while (!takes(*chunks_.at(spot.leaf), key)) {
      make_room(spot, key);
      spot = find(key);
    }
    chunks_.append(chunks_.at(spot.leaf), key, static_cast<uint32_t>(rows_));
    ++rows_;
  }

  bool takes(const Chunk& leaf, uint64_t key) const {
    return leaf.rows < room_ && (leaf.next == kNoChunk || leaf.keys()[0] == key);
  }

  // One step towards a leaf that takes the key; `spot` is where it belongs now.
  void make_room(const Spot& spot, uint64_t key) {
    Chunk* leaf = chunks_.at(spot.leaf);
    const auto [least, most] = std::minmax_element(leaf->keys(), leaf->keys() + leaf->rows);
    const bool one_key = *least == *most;
    if (one_key && key == *least) {
      chunks_.move_behind(leaf);
      return;
    }
    Block& block = blocks_[order_[spot.rank]];
    if (block.leaves == kLeaves) {
      split_block(spot.rank);
      return;
    }
    const bool leftmost = spot.rank == 0 && spot.slot == 0, rightmost = block.bound[spot.slot] == kGreatest;
    const uint32_t added = chunks_.take();
    ++changes_;
    if (key > *most && (one_key || rightmost)) {
      const uint64_t upto = block.bound[spot.slot];
      block.bound[spot.slot] = *most;
      block.insert(spot.slot + 1, upto, added);
    } else if (key < *least && (one_key || leftmost)) {
      block.insert(spot.slot, *least - 1, added);
    } else {
      block.insert(spot.slot, split_leaf(leaf, *most, chunks_.at(added)), spot.leaf);
      block.leaf[spot.slot + 1] = added;
    }
  }

  // Moves the rows above the median to an empty leaf; returns the greatest key that stays. The leaf has one chunk and
  // more than one key.
  uint64_t split_leaf(Chunk* leaf, uint64_t most, Chunk* right) {
    const size_t rows = leaf->rows;
    uint64_t* sample = median_.get();
    std::copy(leaf->keys(), leaf->keys() + rows, sample);
    std::nth_element(sample, sample + (rows - 1) / 2, sample + rows);
    uint64_t upto = sample[(rows - 1) / 2];
    if (upto == most) {  // then all keys behind the middle are equal, and the greatest below them is before it
      upto = 0;
      for (size_t i = 0; i < (rows - 1) / 2; ++i) upto = sample[i] < most ? std::max(upto, sample[i]) : upto;
    }
    leaf->rows = 0;
    for (size_t i = 0; i < rows; ++i) {
      const uint64_t key = leaf->keys()[i];
      chunks_.append(key <= upto ? leaf : right, key, chunks_.places(leaf)[i]);
    }
    return upto;
  }

  void split_block(size_t rank) {
    SortedKeys top(order_.size() + 1);
    order_.reserve(order_.size() + 1);
    blocks_.emplace_back();
    Block &left = blocks_[order_[rank]], &right = blocks_.back();
    for (size_t slot = kLeaves / 2; slot < kLeaves; ++slot) {
      right.insert(right.leaves, left.bound[slot], left.leaf[slot]);
      left.bound[slot] = kGreatest;
    }
    left.leaves = kLeaves / 2;
    order_.insert(order_.begin() + static_cast<std::ptrdiff_t>(rank) + 1, static_cast<uint32_t>(blocks_.size() - 1));
    summarise(top);
    top_ = std::move(top);
    ++changes_;
  }

  void summarise(SortedKeys& top) const {
    for (size_t rank = 0; rank < order_.size(); ++rank) {
      const Block& block = blocks_[order_[rank]];
      top.data()[rank] = block.bound[block.leaves - 1];
    }
    top.complete();
  }

  size_t room_, capacity_;
  Chunks chunks_;
  Array<uint64_t> median_;   // where the keys of a leaf are put to find their median
  Vector<Block> blocks_;
  Vector<uint32_t> order_;  // the blocks by rank, from the least keys to the greatest
  SortedKeys top_;             // the last bound of each
  size_t rows_ = 0;
  size_t changes_ = 0;  // splits; a Spot is good until the next one
};

using WibTreeStore = SubWindows<WibTree>;

}  // namespace dovetail
