// A key with its row, and the two sortings that stores need: entries by key, and the rows of one probe's finds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "row_vector.hpp"

namespace dovetail {

struct Entry {
  uint64_t key;
  int64_t row;
  bool operator<(const Entry& other) const { return key != other.key ? key < other.key : row < other.row; }
};

// Sorts by what `key` says of an item, and keeps items of equal keys as they stand. `scratch` has room for n. Two
// passes deal items out by the highest bits in which keys differ, up to 22 of them: with evenly spread keys that leaves
// hardly two neighbours that agree in them all. Those that do, of keys however spread, are sorted in the same way by
// the bits that are left; a few are put in order by insertion.
template <typename T, typename Key>
void sort_by_bits(T* items, T* scratch, size_t n, Key key) {
  constexpr size_t kInsertion = 24;
  constexpr int kMostBits = 11;  // a pass: the places that it writes to by turns should stay in the first caches
  if (n <= kInsertion) {
    for (size_t i = 1; i < n; ++i) {
      const T item = items[i];
      size_t at = i;
      for (; at > 0 && key(items[at - 1]) > key(item); --at) items[at] = items[at - 1];
      items[at] = item;
    }
    return;
  }
  uint64_t differ = 0;
  bool ascends = true;
  for (size_t i = 1; i < n; ++i) {
    differ |= key(items[i]) ^ key(items[0]);
    ascends &= key(items[i - 1]) <= key(items[i]);
  }
  if (ascends) return;
  int bits = 5;
  while (bits < kMostBits && (n >> bits) > 1) ++bits;
  const int shift = std::max(0, 64 - __builtin_clzll(differ) - 2 * bits);
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  const auto low = [&](const T& item) { return (key(item) >> shift) & mask; };
  const auto high = [&](const T& item) { return (key(item) >> shift >> bits) & mask; };
  size_t low_at[size_t{1} << kMostBits], high_at[size_t{1} << kMostBits];
  std::fill(low_at, low_at + mask + 1, 0);
  std::fill(high_at, high_at + mask + 1, 0);
  for (size_t i = 0; i < n; ++i) {
    ++low_at[low(items[i])];
    ++high_at[high(items[i])];
  }
  size_t low_start = 0, high_start = 0;
  for (size_t d = 0; d <= mask; ++d) {
    low_start += std::exchange(low_at[d], low_start);
    high_start += std::exchange(high_at[d], high_start);
  }
  for (size_t i = 0; i < n; ++i) scratch[low_at[low(items[i])]++] = items[i];
  for (size_t i = 0; i < n; ++i) items[high_at[high(scratch[i])]++] = scratch[i];
  if (shift == 0) return;
  for (size_t start = 0, i = 1; i <= n; ++i) {
    if (i < n && (key(items[i]) ^ key(items[start])) >> shift == 0) continue;
    if (i - start > 1) sort_by_bits(items + start, scratch + start, i - start, key);
    start = i;
  }
}

// Entries in the order of rows end up by (key, row).
inline void sort_by_key(Entry* entries, Entry* scratch, size_t n) {
  sort_by_bits(entries, scratch, n, [](const Entry& entry) { return entry.key; });
}

// Numbers that differ, set in any order as bits of a range, and read in order.
//
// A second layer has a bit for each word of the first that is not zero, so that reading costs by what was set and not by
// the range; where there is about one for each word it is left out. A word mostly holds few bits, as many as cannot be
// guessed, so four are written for each and only those counted that were there.
class RowBits {
 public:
  size_t nbytes() const { return (bits_.capacity() + words_.capacity()) * sizeof(uint64_t); }

  // About `count` of the numbers below `range` are to be set. Strong guarantee.
  void begin(uint64_t range, size_t count) {
    range_ = range;
    sparse_ = count < range / 64;
    if (bits_.size() < range / 64 + 1) bits_.resize(range / 64 + 1, 0);
    if (words_.size() < range / 4096 + 1) words_.resize(range / 4096 + 1, 0);
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
    size_t next = 0;
    if (!sparse_) {
      for (uint64_t word = 0; word <= range_ / 64; ++word) next = take(word, first, out, next, n);
      return;
    }
    for (uint64_t w = 0; w <= range_ / 4096; ++w) {
      for (uint64_t some = std::exchange(words_[w], 0); some; some &= some - 1) {
        next = take(w * 64 + static_cast<uint64_t>(__builtin_ctzll(some)), first, out, next, n);
      }
    }
  }
  void check() const {
    for (const auto* layer : {&bits_, &words_}) {
      for (const uint64_t word : *layer) demand(word == 0, "row bits: none is set but in the midst of a probe");
    }
  }

 private:
  static constexpr uint64_t kLast = uint64_t{1} << 63;  // something to find where nothing is left

  size_t take(uint64_t word, int64_t first, int64_t* out, size_t next, size_t n) {
    uint64_t set = std::exchange(bits_[word], 0);
    first += static_cast<int64_t>(word * 64);
    while (next + 4 <= n) {
      size_t there = 0;
      for (size_t i = 0; i < 4; ++i) {
        out[next + i] = first + __builtin_ctzll(set | kLast);
        there += set != 0;
        set &= set - 1;
      }
      next += there;
      if (set == 0) return next;
    }
    for (; set; set &= set - 1) out[next++] = first + __builtin_ctzll(set);
    return next;
  }

  uint64_t range_ = 0;
  bool sparse_ = false;
  Vector<uint64_t> bits_, words_;
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
