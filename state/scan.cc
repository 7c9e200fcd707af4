// The scan in two builds, chosen when it is first called: a wheel may assume no more than SSE2, and eight lanes
// are worth 4 to 6 times one.
#include "scan.hpp"

#include "cpu.hpp"

#ifdef DOVETAIL_AVX512
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
struct Lanes {
  __m512i lo;
  __m512i span;
};

DOVETAIL_TARGET inline Lanes spread(const KeyRange& range) {
  return {_mm512_set1_epi64(static_cast<int64_t>(range.lo)), _mm512_set1_epi64(static_cast<int64_t>(range.hi - range.lo))};
}

DOVETAIL_TARGET inline __mmask8 inside(__mmask8 asked, const uint64_t* keys, const Lanes& range) {
  const __m512i key = _mm512_maskz_loadu_epi64(asked, keys);
  return _mm512_mask_cmple_epu64_mask(asked, _mm512_sub_epi64(key, range.lo), range.span);
}

// Compress in a register, store whole: the compressing store to memory is microcoded on several machines.
DOVETAIL_TARGET inline size_t put(__mmask8 found, int64_t first, int64_t* out) {
  const __m512i rows = _mm512_add_epi64(_mm512_set1_epi64(first), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
  _mm512_storeu_si512(out, _mm512_maskz_compress_epi64(found, rows));
  return static_cast<size_t>(__builtin_popcount(found));
}

// Four registers of keys at a time, so that where few rows match, one branch passes over 32 of them.
DOVETAIL_TARGET size_t scan_avx512(const KeyRange* ranges, size_t columns, size_t n, int64_t first, int64_t* out) {
  constexpr size_t kBlock = 32;
  const Lanes lead = spread(ranges[0]);
  size_t found = 0, i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    __mmask8 hits[4];
    for (size_t b = 0; b < 4; ++b) hits[b] = inside(0xFF, ranges[0].keys + i + 8 * b, lead);
    for (size_t c = 1; c < columns && (hits[0] | hits[1] | hits[2] | hits[3]); ++c) {
      const Lanes more = spread(ranges[c]);
      for (size_t b = 0; b < 4; ++b) hits[b] = inside(hits[b], ranges[c].keys + i + 8 * b, more);
    }
    if (!(hits[0] | hits[1] | hits[2] | hits[3])) continue;
    for (size_t b = 0; b < 4; ++b) found += put(hits[b], first + static_cast<int64_t>(i + 8 * b), out + found);
  }
  for (; i < n; i += 8) {
    __mmask8 hit = n - i >= 8 ? 0xFF : static_cast<__mmask8>((1u << (n - i)) - 1);
    for (size_t c = 0; c < columns && hit; ++c) hit = inside(hit, ranges[c].keys + i, spread(ranges[c]));
    found += put(hit, first + static_cast<int64_t>(i), out + found);
  }
  return found;
}
#endif

}  // namespace

size_t scan(const KeyRange* ranges, size_t columns, size_t n, int64_t first, int64_t* out) {
#ifdef DOVETAIL_AVX512
  if (use_avx512()) return scan_avx512(ranges, columns, n, first, out);
#endif
  return scan_portable(ranges, columns, n, first, out);
}

}  // namespace dovetail
