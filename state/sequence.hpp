// What a window means, as two numbers for each tuple; and which tuples of a source are late.
//
// Problem: a tuple may meet those tuples of the other stream that came before it in the total order and are inside
// their window. Idea: both are bounds on the other stream's *row numbers*, [row_lo, row_hi), and as tuples ascend
// neither bound ever falls. So one sweep over both inputs, with two cursors that only move forward, merges the
// streams and finds all bounds: O(1) a tuple, whatever the window.
//
// Times are int64 in one unit for both sides; all arithmetic on them is exact (128 bits where 64 could overflow).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "row_vector.hpp"

namespace dovetail {

enum class WindowKind : int { kAll = 0, kCount = 1, kTime = 2 };

// size and slide count rows or units of time; slide 0 is a window that moves with each tuple.
struct Window {
  WindowKind kind;
  int64_t size;
  int64_t slide;
};

using Wide = __int128;

inline Wide ceil_to_multiple(Wide x, Wide step) {
  const Wide rest = x % step;  // has the sign of x
  return rest > 0 ? x + (step - rest) : x - rest;
}

// The least row that a tuple may meet when `before` rows of the other stream came before it.
inline int64_t count_bound(int64_t before, const Window& window) {
  Wide bound = static_cast<Wide>(before) - window.size;
  if (window.slide) bound = ceil_to_multiple(bound, window.slide);
  return bound < 0 ? 0 : static_cast<int64_t>(bound);
}

// The least time that a tuple at `time` may meet. Outside of int64 it is beyond, or below, every time there is.
inline Wide time_bound(int64_t time, const Window& window) {
  const Wide bound = static_cast<Wide>(time) - window.size;
  return window.slide ? ceil_to_multiple(bound, window.slide) : bound;
}

// The first row of `times` (the other stream's retained times, ascending) at or after a bound.
inline int64_t row_at(const RowVector<int64_t>& times, Wide bound) {
  const int64_t* data = times.data();
  const int64_t* at =
      std::lower_bound(data, data + times.size(), bound, [](int64_t time, Wide b) { return time < b; });
  return times.first_row() + (at - data);
}

// The same for n bounds, which ascend for the most part: each is looked for from where the last one was found, in steps
// that grow.
inline void rows_at(const RowVector<int64_t>& times, const int64_t* bounds, size_t n, int64_t* rows) {
  const int64_t* data = times.data();
  const size_t size = times.size();
  size_t at = 0;
  for (size_t i = 0; i < n; ++i) {
    const int64_t bound = bounds[i];
    if (at > 0 && data[at - 1] >= bound) at = 0;  // it fell
    size_t step = 1, low = at;
    while (at < size && data[at] < bound) {
      low = at + 1;
      at += step;
      step *= 2;
    }
    at = static_cast<size_t>(std::lower_bound(data + low, data + std::min(at, size), bound) - data);
    rows[i] = times.first_row() + static_cast<int64_t>(at);
  }
}

// The least row that any tuple from now on may meet: what is below can go. `time` is the last released time.
inline int64_t expiry_bound(const Window& window, int64_t rows, bool has_time, int64_t time,
                            const RowVector<int64_t>& times) {
  switch (window.kind) {
    case WindowKind::kAll:
      return 0;
    case WindowKind::kCount:
      return count_bound(rows, window);
    case WindowKind::kTime:
      return has_time ? row_at(times, time_bound(time, window)) : 0;
  }
  return 0;
}

// Bounds for the n new tuples of one side into the other side's rows.
//
//   own          times of the new tuples, ascending
//   other        times of the other side's new tuples, ascending (m of them)
//   other_first  row number of the first of those
//   ties_before  does the other side's tuple come first when times are equal?
//   retained     times of the other side that are still held, the new ones included (time windows only)
inline void row_bounds(const int64_t* own, size_t n, const int64_t* other, size_t m, int64_t other_first,
                       bool ties_before, const Window& window, const RowVector<int64_t>& retained, int64_t* row_lo,
                       int64_t* row_hi) {
  size_t before = 0;
  for (size_t i = 0; i < n; ++i) {
    if (ties_before) {
      while (before < m && other[before] <= own[i]) ++before;
    } else {
      while (before < m && other[before] < own[i]) ++before;
    }
    row_hi[i] = other_first + static_cast<int64_t>(before);
  }
  if (window.kind == WindowKind::kAll) {
    std::fill(row_lo, row_lo + n, int64_t{0});
  } else if (window.kind == WindowKind::kCount) {
    for (size_t i = 0; i < n; ++i) row_lo[i] = count_bound(row_hi[i], window);
  } else if (n) {
    const int64_t* times = retained.data();
    const size_t held = retained.size();
    size_t at = static_cast<size_t>(row_at(retained, time_bound(own[0], window)) - retained.first_row());
    int64_t last = own[0];
    Wide bound = time_bound(last, window);
    for (size_t i = 0; i < n; ++i) {
      if (own[i] != last) {
        last = own[i];
        bound = time_bound(last, window);
        while (at < held && times[at] < bound) ++at;
      }
      row_lo[i] = retained.first_row() + static_cast<int64_t>(at);
    }
  }
}

// Bounds in a self-join: tuple i has row first + i, and meets the older rows of its own stream.
inline void own_bounds(const int64_t* own, size_t n, int64_t first, const Window& window,
                       const RowVector<int64_t>& retained, int64_t* row_lo, int64_t* row_hi) {
  for (size_t i = 0; i < n; ++i) {
    row_hi[i] = first + static_cast<int64_t>(i);
    row_lo[i] = window.kind == WindowKind::kCount  ? count_bound(row_hi[i], window)
                : window.kind == WindowKind::kTime ? row_at(retained, time_bound(own[i], window))
                                                   : 0;
  }
}

// Lateness, tuple by tuple: late[i] = times[i] < (greatest time before it) - delay. `greatest` is the source's so
// far and is moved on; `any` says whether there was one. Returns how many are late; `ascending` tells whether the
// others are in order.
inline size_t find_late(const int64_t* times, size_t n, uint64_t delay, bool& any, int64_t& greatest, uint8_t* late,
                        bool& ascending) {
  size_t count = 0;
  ascending = true;
  for (size_t i = 0; i < n; ++i) {
    const bool is_late = any && static_cast<Wide>(times[i]) < static_cast<Wide>(greatest) - delay;
    late[i] = is_late;
    count += is_late;
    if (is_late) continue;
    if (!any || times[i] >= greatest) {
      greatest = times[i];
      any = true;
    } else {
      ascending = false;
    }
  }
  return count;
}

}  // namespace dovetail
