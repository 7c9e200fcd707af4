// Which of n consecutive rows have every key inside its range: the inner loop of the nested store, and of every
// predicate of several comparisons.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dovetail {

// A closed range of keys in one column of n consecutive rows.
struct KeyRange {
  const uint64_t* keys;
  uint64_t lo;
  uint64_t hi;  // lo <= hi: a range that matches nothing is left out by the caller
};

// Writes first + i for each i in [0, n) where keys[i] is inside its range for every column, ascending. `out` has
// room for n + 8 values: vector code stores whole registers. Returns how many there are.
size_t scan(const KeyRange* ranges, size_t columns, size_t n, int64_t first, int64_t* out);

}  // namespace dovetail
