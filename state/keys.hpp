// Every key becomes a 64-bit unsigned number in the same order, so that one kernel serves all types.
//
//   signed     flip the sign bit
//   unsigned   as it is
//   float      -0.0 becomes 0.0; then the sign bit is set on positive numbers and all bits flipped on negative
//              ones, so that -inf < … < -x < 0 < x < … < inf. NaN has no place in an order: callers keep it out.
//   bytes      a hash, for equality alone: equal values have equal keys, and the predicate tells the rest
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace dovetail {

inline uint64_t key_of(int64_t value) { return static_cast<uint64_t>(value) ^ (uint64_t{1} << 63); }
inline uint64_t key_of(uint64_t value) { return value; }
inline uint64_t key_of(double value) {
  value += 0.0;  // -0.0 + 0.0 is 0.0: the two meet
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits >> 63 ? ~bits : bits | (uint64_t{1} << 63);
}

// The finaliser of MurmurHash3: each bit of the input reaches each bit of the output.
inline uint64_t mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

inline uint64_t hash_bytes(const uint8_t* bytes, size_t n) {
  uint64_t hash = mix(n + 0x9e3779b97f4a7c15ULL);
  while (n >= 8) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    hash = mix(hash ^ word) + 0x9e3779b97f4a7c15ULL;
    bytes += 8;
    n -= 8;
  }
  uint64_t rest = 0;
  if (n) std::memcpy(&rest, bytes, n);
  return mix(hash ^ rest);
}

template <typename Offset>
void hash_strings(const Offset* offsets, const uint8_t* bytes, size_t n, uint64_t* out) {
  for (size_t i = 0; i < n; ++i) {
    out[i] = hash_bytes(bytes + offsets[i], static_cast<size_t>(offsets[i + 1] - offsets[i]));
  }
}

template <typename T>
void keys_of(const T* values, size_t n, uint64_t* out) {
  for (size_t i = 0; i < n; ++i) out[i] = key_of(values[i]);
}

}  // namespace dovetail
