// Folding the values of rows into the place of their group. Every loop goes through the rows in order, so that a sum of
// floats does not depend on how a stream was cut into batches.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dovetail {

// `valid`: which values count; nullptr: all do.
inline void fold_counts(const int64_t* group, const uint8_t* valid, size_t n, int64_t* count) {
  for (size_t i = 0; i < n; ++i) count[group[i]] += valid ? valid[i] : 1;
}

inline void fold_floats(const int64_t* group, const double* value, const uint8_t* valid, size_t n, double* sum) {
  for (size_t i = 0; i < n; ++i) {
    if (!valid || valid[i]) sum[group[i]] += value[i];
  }
}

// Sums of 128 bits, as two words: no sum of 64-bit numbers that fits a memory can overflow them. `high` of the values
// is nullptr where they are of 64 bits, and `is_signed` tells how those continue.
inline void fold_integers(const int64_t* group, const uint64_t* low, const int64_t* high, bool is_signed,
                          const uint8_t* valid, size_t n, uint64_t* sum_low, int64_t* sum_high) {
  for (size_t i = 0; i < n; ++i) {
    if (valid && !valid[i]) continue;
    const int64_t above = high ? high[i] : is_signed ? static_cast<int64_t>(low[i]) >> 63 : 0;
    uint64_t& sum = sum_low[group[i]];
    const bool carry = __builtin_add_overflow(sum, low[i], &sum);
    int64_t& upper = sum_high[group[i]];
    upper = static_cast<int64_t>(static_cast<uint64_t>(upper) + static_cast<uint64_t>(above) + carry);
  }
}

// The least key of each group (keys.hpp), or the greatest. What a group begins with is the other end of all keys, and
// `some` tells whether it has had one. Keys of 128 bits have their lower halves in `below`, others nullptr there.
inline void fold_ends(const int64_t* group, const uint64_t* key, const uint64_t* below, const uint8_t* valid,
                      bool greatest, size_t n, uint64_t* end, uint64_t* end_below, uint8_t* some) {
  for (size_t i = 0; i < n; ++i) {
    if (valid && !valid[i]) continue;
    const int64_t g = group[i];
    bool beyond = greatest ? key[i] > end[g] : key[i] < end[g];
    if (below && key[i] == end[g]) beyond = greatest ? below[i] > end_below[g] : below[i] < end_below[g];
    if (beyond) {
      end[g] = key[i];
      if (below) end_below[g] = below[i];
    }
    some[g] = 1;
  }
}

}  // namespace dovetail
