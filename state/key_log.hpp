// The keys of a store's rows by position (see row_log.hpp): what a compressed slot is checked against.
//
// Problem: one key a row, appended in order, read at random, dropped from the front, with no copying and no more
// memory than there are rows. Idea: blocks of a fixed number of keys; one empty block is kept for the next.
//
// Invariant: positions [begin_, end_) can be read; the block of position p is blocks_[p / kBlock - first_].
// Cost: O(1) each; 8 bytes a row and at most two blocks besides.
#pragma once

#include <algorithm>

#include "row_vector.hpp"

namespace dovetail {

class KeyLog {
 public:
  static constexpr int kBits = 12;
  static constexpr int64_t kBlock = int64_t{1} << kBits;

  uint64_t operator[](int64_t position) const { return *place(position); }
  const uint64_t* place(int64_t position) const {
    return blocks_[static_cast<size_t>((position >> kBits) - first_)].get() + (position & (kBlock - 1));
  }

  // Strong guarantee.
  void append(const uint64_t* keys, size_t n) {
    if (n == 1 && static_cast<size_t>((end_ >> kBits) - first_) < blocks_.size()) {
      blocks_[static_cast<size_t>((end_ >> kBits) - first_)][static_cast<size_t>(end_ & (kBlock - 1))] = *keys;
      ++end_;
      return;
    }
    const auto needed = static_cast<size_t>((end_ + static_cast<int64_t>(n) + kBlock - 1) / kBlock - first_);
    const size_t held = blocks_.size();
    if (needed > blocks_.capacity()) blocks_.reserve(needed * 2);
    try {
      while (blocks_.size() < needed) {
        blocks_.push_back(spare_.size() ? std::move(spare_) : Array<uint64_t>(kBlock));
        spare_ = Array<uint64_t>();
      }
    } catch (...) {
      while (blocks_.size() > held) blocks_.pop_back();
      throw;
    }
    while (n) {
      const int64_t at = end_ % kBlock;
      const size_t some = std::min(n, static_cast<size_t>(kBlock - at));
      std::memcpy(blocks_[static_cast<size_t>(end_ / kBlock - first_)].get() + at, keys, some * sizeof(uint64_t));
      keys += some;
      n -= some;
      end_ += static_cast<int64_t>(some);
    }
  }

  // Takes back the last n.
  void take_back(size_t n) { end_ -= static_cast<int64_t>(n); }

  void expire(int64_t before) {
    if (before >> kBits <= first_) return;
    const auto gone = std::min(blocks_.size(), static_cast<size_t>((before >> kBits) - first_));
    if (gone == 0) return;
    spare_ = std::move(blocks_[gone - 1]);
    blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(gone));
    first_ += static_cast<int64_t>(gone);
  }

  size_t nbytes() const {
    return (blocks_.size() + (spare_.size() ? 1 : 0)) * kBlock * sizeof(uint64_t) +
           blocks_.capacity() * sizeof(blocks_[0]);
  }

 private:
  Vector<Array<uint64_t>> blocks_;
  Array<uint64_t> spare_;
  int64_t first_ = 0;  // number of the first block
  int64_t end_ = 0;
};

}  // namespace dovetail
