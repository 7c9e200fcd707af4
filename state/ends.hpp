// Ends of the ranges of keys that probing rows look for: the arithmetic of operators/ranges.py, a row at a time.
//
// Exact values are widened to 128 bits, in which a coefficient, a constant and a division neither wrap nor round.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "keys.hpp"

namespace dovetail {

__extension__ typedef __int128 Wide;

// A key k is looked for with `k * by op value * coefficient + constant`.
struct ExactRange {
  bool below, above;  // op bounds the key from above (<, <=, ==), from below (>, >=, ==)
  bool strict;
  int64_t coefficient, constant, by;  // by > 0, |coefficient| < 2^62: the sum stays within 127 bits
  bool is_unsigned;                   // the key's domain: uint64, or int64
  bool saturated;                     // the ends of the domain stand for everything beyond them as well
};

// Writes the range of each value; (1, 0) where no key fits.
template <typename T>
void exact_ends(const T* values, size_t n, const ExactRange& range, uint64_t* lo, uint64_t* hi) {
  const Wide least = range.is_unsigned ? 0 : std::numeric_limits<int64_t>::min();
  const Wide most = range.is_unsigned ? static_cast<Wide>(std::numeric_limits<uint64_t>::max())
                                      : static_cast<Wide>(std::numeric_limits<int64_t>::max());
  const auto key = [&](Wide value) {
    value = std::min(std::max(value, least), most);
    return range.is_unsigned ? key_of(static_cast<uint64_t>(value)) : key_of(static_cast<int64_t>(value));
  };
  for (size_t i = 0; i < n; ++i) {
    const Wide bound = static_cast<Wide>(values[i]) * range.coefficient + range.constant;
    Wide down = bound, up = bound;
    if (range.by != 1) {
      const Wide whole = bound / range.by, rest = bound % range.by;
      down = whole - (rest < 0);
      up = whole + (rest > 0);
    }
    bool nothing = false;
    Wide lower = least, upper = most;
    if (range.below) {
      upper = down - ((range.strict && down == up) ? 1 : 0);
      nothing = !range.saturated && upper < least;
    }
    if (range.above) {
      lower = up + ((range.strict && down == up) ? 1 : 0);
      nothing |= !range.saturated && lower > most;
    }
    nothing |= range.below && range.above && lower > upper;  // no whole multiple: equal to nothing
    lo[i] = nothing ? 1 : key(lower);
    hi[i] = nothing ? 0 : key(upper);
  }
}

// Float sums, each with the sum of its parts' absolute values: rounding moved it by less than `slack` times that.
struct Sums {
  const double *total, *size;
  size_t n;
  double slack;

  // The key of a sum that is moved past its rounding. One whose parts are too large to trust, or NaN, goes to infinity.
  uint64_t moved(size_t i, bool up) const {
    const double end = up ? HUGE_VAL : -HUGE_VAL, reach = size[i] * slack;
    const bool trusted = size[i] < 1e300;
    return key_of(trusted ? std::nextafter(up ? total[i] + reach : total[i] - reach, end) : end);
  }
};

inline void moved_keys(const Sums& sums, bool up, uint64_t* out) {
  for (size_t i = 0; i < sums.n; ++i) out[i] = sums.moved(i, up);
}

// The keys that may be below (or above) a sum; or, `sure`, that are whatever the rounding was.
inline void rounded_ends(const Sums& sums, bool below, bool sure, uint64_t* lo, uint64_t* hi) {
  const uint64_t lowest = key_of(-HUGE_VAL), highest = key_of(HUGE_VAL);
  for (size_t i = 0; i < sums.n; ++i) {
    const uint64_t end = sums.moved(i, below != sure);
    lo[i] = below ? lowest : end + sure;
    hi[i] = below ? end - sure : highest;
  }
}

}  // namespace dovetail
