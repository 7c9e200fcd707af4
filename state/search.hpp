// What all searches of keys have in common: they ask for memory early, and never guess.
//
// A branch on a key is guessed wrong every other time, and a line of a large window is not in the cache. So keys are
// counted in always as many steps, and some searches go down together, each asking for its next line before any of
// them reads it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace dovetail {

constexpr uint64_t kGreatest = UINT64_MAX;  // of all keys

// Searches that go down together: as many misses as a core keeps in flight.
constexpr size_t kGroup = 16;

// The first of n ascending keys that is not below `key`, or else the last.
inline size_t first_not_below(const uint64_t* keys, size_t n, uint64_t key) {
  const uint64_t* from = keys;
  while (n > 1) {
    const size_t half = n / 2;
    from += half & (size_t{0} - (from[half - 1] < key));
    n -= half;
  }
  return static_cast<size_t>(from - keys);
}

// How many of n ascending keys are below `key`.
inline size_t below(const uint64_t* keys, size_t n, uint64_t key) {
  const size_t at = first_not_below(keys, n, key);
  return at + (n > 0 && keys[at] < key);
}

// The same, from the answer for a lower key, `near`, on: forwards in steps that double, then back in steps that halve.
inline size_t below_from(const uint64_t* keys, size_t n, uint64_t key, size_t near) {
  size_t step = 1;
  while (near + step <= n && keys[near + step - 1] < key) {
    near += step;
    step *= 2;
  }
  return near + below(keys + near, std::min(step, n - near), key);
}

// The same for one key in several arrays at once: `at` says where each begins, and then where its answer stands.
inline void below_each(const uint64_t** at, size_t* n, size_t arrays, uint64_t key) {
  size_t longest = 0;
  for (size_t i = 0; i < arrays; ++i) {
    longest = std::max(longest, n[i]);
    if (n[i]) __builtin_prefetch(at[i] + n[i] / 2);
  }
  for (; longest > 1; longest -= longest / 2) {
    for (size_t i = 0; i < arrays; ++i) {
      const size_t half = n[i] / 2;
      if (half == 0) continue;
      at[i] += half & (size_t{0} - (at[i][half - 1] < key));
      n[i] -= half;
      __builtin_prefetch(at[i] + n[i] / 2);
    }
  }
  for (size_t i = 0; i < arrays; ++i) at[i] += n[i] > 0 && *at[i] < key;
}

constexpr size_t kLine = 64;  // bytes of a cache line

inline size_t whole_lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

inline void prefetch_lines(const void* memory, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(static_cast<const char*>(memory) + at);
}

}  // namespace dovetail
