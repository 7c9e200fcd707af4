// The scan in two builds, chosen when it is first called: a wheel may assume no more than SSE2, and eight lanes
// are worth 4 to 6 times one.
#include "scan.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#define DOVETAIL_AVX512 1
#include <immintrin.h>
#endif

namespace dovetail {
namespace {

// Branch-free: every index is stored, and the place moves on only when it counts.
size_t scan_portable(const KeyRange* ranges, size_t columns, size_t n, int64_t first, int64_t* out) {
  size_t found = 0;
  const KeyRange a = ranges[0];
  const uint64_t span = a.hi - a.lo;
  if (columns == 1) {
    for (size_t i = 0; i < n; ++i) {
      out[found] = first + static_cast<int64_t>(i);
      found += (a.keys[i] - a.lo) <= span;
    }
    return found;
  }
  const KeyRange b = ranges[1];
  const uint64_t span_b = b.hi - b.lo;
  for (size_t i = 0; i < n; ++i) {
    bool inside = ((a.keys[i] - a.lo) <= span) & ((b.keys[i] - b.lo) <= span_b);
    for (size_t c = 2; c < columns; ++c) {
      inside &= (ranges[c].keys[i] - ranges[c].lo) <= (ranges[c].hi - ranges[c].lo);
    }
    out[found] = first + static_cast<int64_t>(i);
    found += inside;
  }
  return found;
}

#ifdef DOVETAIL_AVX512
__attribute__((target("avx512f,popcnt"))) size_t scan_avx512(const KeyRange* ranges, size_t columns, size_t n,
                                                             int64_t first, int64_t* out) {
  size_t found = 0;
  const __m512i lo = _mm512_set1_epi64(static_cast<int64_t>(ranges[0].lo));
  const __m512i span = _mm512_set1_epi64(static_cast<int64_t>(ranges[0].hi - ranges[0].lo));
  __m512i rows = _mm512_add_epi64(_mm512_set1_epi64(first), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
  const __m512i eight = _mm512_set1_epi64(8);
  for (size_t i = 0; i < n; i += 8) {
    __mmask8 inside = n - i >= 8 ? 0xFF : static_cast<__mmask8>((1u << (n - i)) - 1);
    const __m512i keys = _mm512_maskz_loadu_epi64(inside, ranges[0].keys + i);
    inside = _mm512_mask_cmple_epu64_mask(inside, _mm512_sub_epi64(keys, lo), span);
    for (size_t c = 1; c < columns && inside; ++c) {
      const __m512i more = _mm512_maskz_loadu_epi64(inside, ranges[c].keys + i);
      const __m512i low = _mm512_set1_epi64(static_cast<int64_t>(ranges[c].lo));
      const __m512i wide = _mm512_set1_epi64(static_cast<int64_t>(ranges[c].hi - ranges[c].lo));
      inside = _mm512_mask_cmple_epu64_mask(inside, _mm512_sub_epi64(more, low), wide);
    }
    // Compress in a register, store whole: the compressing store to memory is microcoded on several machines.
    _mm512_storeu_si512(out + found, _mm512_maskz_compress_epi64(inside, rows));
    found += static_cast<size_t>(__builtin_popcount(inside));
    rows = _mm512_add_epi64(rows, eight);
  }
  return found;
}
#endif

bool has_avx512() {
#ifdef DOVETAIL_AVX512
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("popcnt");
  return has;
#else
  return false;
#endif
}

bool forced_portable = false;

}  // namespace

size_t scan(const KeyRange* ranges, size_t columns, size_t n, int64_t first, int64_t* out) {
#ifdef DOVETAIL_AVX512
  if (has_avx512() && !forced_portable) return scan_avx512(ranges, columns, n, first, out);
#endif
  return scan_portable(ranges, columns, n, first, out);
}

const char* scan_instructions() { return has_avx512() && !forced_portable ? "avx512" : "portable"; }

bool force_portable_scan(bool portable) {
  const bool before = forced_portable;
  forced_portable = portable;
  return before;
}

}  // namespace dovetail
