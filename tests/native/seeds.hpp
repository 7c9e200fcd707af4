// What the harnesses have in common: `program FIRST COUNT` compares so many seeds and says how many pairs were right.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

inline int run_seeds(char** argv, size_t (*compare)(uint64_t seed)) {
  size_t pairs = 0;
  const uint64_t first = std::strtoull(argv[1], nullptr, 10), count = std::strtoull(argv[2], nullptr, 10);
  for (uint64_t seed = first; seed < first + count; ++seed) pairs += compare(seed);
  std::printf("%zu pairs of %llu joins are right\n", pairs, static_cast<unsigned long long>(count));
  return 0;
}
