// A key with its row, and the two sortings that stores need: entries by key, and the rows of one probe's finds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "memory.hpp"

namespace dovetail {

struct Entry {
  uint64_t key;
  int64_t row;
  bool operator<(const Entry& other) const { return key != other.key ? key < other.key : row < other.row; }
};

// Sorts by key and keeps equal keys as they stand, so that entries in the order of rows end up by (key, row): a byte
// at a time from the lowest, without the bytes in which all keys agree. `scratch` has room for n.
inline void sort_by_key(Entry* entries, Entry* scratch, size_t n) {
  const auto by_key = [](const Entry& a, const Entry& b) { return a.key < b.key; };
  if (n <= 256) {
    std::stable_sort(entries, entries + n, by_key);
    return;
  }
  uint64_t differ = 0;
  bool ascends = true;
  for (size_t i = 1; i < n; ++i) {
    differ |= entries[i].key ^ entries[0].key;
    ascends &= entries[i - 1].key <= entries[i].key;
  }
  if (ascends) return;
  Entry *from = entries, *to = scratch;
  for (int shift = 0; shift < 64; shift += 8) {
    if (((differ >> shift) & 255) == 0) continue;
    size_t starts[257] = {};
    for (size_t i = 0; i < n; ++i) ++starts[((from[i].key >> shift) & 255) + 1];
    for (int b = 0; b < 256; ++b) starts[b + 1] += starts[b];
    for (size_t i = 0; i < n; ++i) to[starts[(from[i].key >> shift) & 255]++] = from[i];
    std::swap(from, to);
  }
  if (from != entries) std::copy(from, from + n, entries);
}

// Puts rows into ascending order, with memory that is kept from one probe to the next.
class RowSorter {
 public:
  size_t nbytes() const { return seen_.capacity() * sizeof(uint64_t); }

  void sort(int64_t* rows, size_t n) {
    if (n <= 24) {
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
    if (span / 64 < n * 4) {
      by_bits(rows, n, least, span / 64 + 1);
    } else if (n < 128) {
      std::sort(rows, rows + n);
    } else {
      by_bytes(rows, n, least, span);
    }
  }

 private:
  // Where rows are dense, a bit for each row of their range is faster than comparing.
  void by_bits(int64_t* rows, size_t n, int64_t least, size_t words) {
    seen_.assign(words, 0);
    for (size_t i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(rows[i] - least);
      seen_[at / 64] |= uint64_t{1} << (at % 64);
    }
    size_t next = 0;
    for (size_t w = 0; w < words; ++w) {
      for (uint64_t bits = seen_[w]; bits; bits &= bits - 1) {
        rows[next++] = least + static_cast<int64_t>(w * 64) + __builtin_ctzll(bits);
      }
    }
  }

  void by_bytes(int64_t* rows, size_t n, int64_t least, uint64_t span) {
    if (seen_.size() < n) seen_.resize(n);
    int64_t* from = rows;
    int64_t* to = reinterpret_cast<int64_t*>(seen_.data());
    for (int shift = 0; shift < 64 && (span >> shift); shift += 8) {
      size_t starts[257] = {};
      const auto byte = [&](int64_t row) { return (static_cast<uint64_t>(row - least) >> shift) & 255; };
      for (size_t i = 0; i < n; ++i) ++starts[byte(from[i]) + 1];
      for (int b = 0; b < 256; ++b) starts[b + 1] += starts[b];
      for (size_t i = 0; i < n; ++i) to[starts[byte(from[i])]++] = from[i];
      std::swap(from, to);
    }
    if (from != rows) std::copy(from, from + n, rows);
  }

  Vector<uint64_t> seen_;
};

}  // namespace dovetail
