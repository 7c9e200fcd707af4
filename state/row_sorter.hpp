// The rows of one probe's finds in ascending order.
//
// Problem: an index finds rows in the order of keys, results are in the order of rows, and where a probe finds many of
// them, sorting is most of its work. Idea: rows differ and lie in a window, so each is a bit, and reading the bits is
// reading the rows in order: no comparison, and no branch that depends on the data.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "entry.hpp"
#include "row_vector.hpp"

namespace dovetail {

// Writes the number of each bit that is set in some words, ascending, with `first` added, and clears them: of the
// `count` words that are `listed`, ascending, or, without a list, of as many first ones. Returns how many they were;
// `out` has `room` for all, and what is behind them there may be written over.
size_t take_bits(uint64_t* bits, const uint32_t* listed, size_t count, int64_t first, int64_t* out, size_t room);

// Numbers that differ, set in any order as bits of a range, and read in order.
//
// A second layer has a bit for each word of the first that is not zero, so that reading costs by what was set and not by
// the range; where there is about one for each word it is left out.
class RowBits {
 public:
  size_t nbytes() const {
    return (bits_.capacity() + words_.capacity()) * sizeof(uint64_t) + listed_.capacity() * sizeof(uint32_t);
  }

  // At most `count` of the numbers up to `range` are to be set. Strong guarantee.
  void begin(uint64_t range, size_t count) {
    range_ = range;
    sparse_ = count < range / 64;
    if (bits_.size() < range / 64 + 1) bits_.resize(range / 64 + 1, 0);
    if (words_.size() < range / 4096 + 1) words_.resize(range / 4096 + 1, 0);
    if (sparse_ && listed_.size() < count) listed_.resize(count);
  }
  // Sets n numbers, as `number(i)` tells them. Between reading and the next beginning all bits are zero.
  template <typename Number>
  void set(size_t n, Number number) {
    uint64_t* const bits = bits_.data();
    if (!sparse_) {
      for (size_t i = 0; i < n; ++i) {
        const uint64_t at = number(i);
        bits[at / 64] |= uint64_t{1} << (at % 64);
      }
      return;
    }
    uint64_t* const words = words_.data();
    for (size_t i = 0; i < n; ++i) {
      const uint64_t at = number(i);
      bits[at / 64] |= uint64_t{1} << (at % 64);
      words[at / 4096] |= uint64_t{1} << (at / 64 % 64);
    }
  }
  // Writes the n numbers that were set, each with `first` added.
  void read(int64_t first, int64_t* out, size_t n) {
    if (!sparse_) {
      take_bits(bits_.data(), nullptr, range_ / 64 + 1, first, out, n);
      return;
    }
    size_t count = 0;
    for (uint64_t w = 0; w <= range_ / 4096; ++w) {
      for (uint64_t some = std::exchange(words_[w], 0); some; some &= some - 1) {
        listed_[count++] = static_cast<uint32_t>(w * 64) + static_cast<uint32_t>(__builtin_ctzll(some));
      }
    }
    take_bits(bits_.data(), listed_.data(), count, first, out, n);
  }
  void check() const {
    for (const auto* layer : {&bits_, &words_}) {
      for (const uint64_t word : *layer) demand(word == 0, "row bits: none is set but in the midst of a probe");
    }
  }

 private:
  uint64_t range_ = 0;
  bool sparse_ = false;
  Vector<uint64_t> bits_, words_;
  Vector<uint32_t> listed_;  // words of the first layer that are not zero
};

// Puts rows into ascending order, with memory that is kept from one probe to the next: as bits, or, where they lie so far
// apart that most bits would be in a line of their own, dealt out by their digits.
class RowSorter {
 public:
  size_t nbytes() const { return bits_.nbytes() + scratch_.capacity() * sizeof(uint64_t); }

  void sort(int64_t* rows, size_t n) {
    if (n <= kInsertion) {
      for (size_t i = 1; i < n; ++i) {
        const int64_t row = rows[i];
        size_t at = i;
        for (; at > 0 && rows[at - 1] > row; --at) rows[at] = rows[at - 1];
        rows[at] = row;
      }
      return;
    }
    int64_t least = rows[0], most = rows[0];
    bool ascends = true;
    for (size_t i = 1; i < n; ++i) {
      ascends &= rows[i - 1] < rows[i];
      least = std::min(least, rows[i]);
      most = std::max(most, rows[i]);
    }
    if (ascends) return;
    const uint64_t span = static_cast<uint64_t>(most - least);
    if (span / kSparse < n) {
      bits_.begin(span, n);
      bits_.set(n, [&](size_t i) { return static_cast<uint64_t>(rows[i] - least); });
      bits_.read(least, rows, n);
    } else {
      if (scratch_.size() < n) scratch_.resize(n);
      // As distances from the least, which have fewer bits: nothing is below it.
      for (size_t i = 0; i < n; ++i) rows[i] -= least;
      sort_by_bits(rows, reinterpret_cast<int64_t*>(scratch_.data()), n,
                   [](int64_t distance) { return static_cast<uint64_t>(distance); });
      for (size_t i = 0; i < n; ++i) rows[i] += least;
    }
  }

 private:
  static constexpr size_t kInsertion = 24;
  static constexpr uint64_t kSparse = 1 << 15;  // rows of the range for one that is there

  RowBits bits_;
  Vector<uint64_t> scratch_;
};

}  // namespace dovetail
