// A key with its row, and entries sorted by key.
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

}  // namespace dovetail
