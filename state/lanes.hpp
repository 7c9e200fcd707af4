// How the slots of a bucket are compared, and what is found in them brought into order: once for every machine, and
// once with AVX-512, where each step is a few instructions and none is a branch that depends on the data.
//
// Both have the same functions:
//   match     which slots a probe finds
//   store     how far behind the probe's first position these slots are, in the order of slots
//   give      the rows of the slots of one bucket in order, with the probe beside each
//   give_two  the same for two buckets that have at most 8 of them
//   sort      up to 32 of what store has written
//   count     how many slots these are
#pragma once

#include "buckets.hpp"
#include "entry.hpp"

#ifdef DOVETAIL_AVX512
#include <immintrin.h>
// GCC 12 takes the don't-care operands of its own intrinsics for uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace dovetail {

struct Portable {
  static Match match(const Bucket& bucket, uint16_t from, uint16_t to, uint32_t first, uint32_t count) {
    return match_portable(bucket, from, to, first, count);
  }
  // Writes how far behind `first` each of these slots is; `out` has room for 32.
  static size_t store(const Bucket& bucket, uint32_t slots, uint32_t first, uint32_t* out) {
    size_t n = 0;
    for (; slots; slots &= slots - 1) out[n++] = bucket.position[__builtin_ctz(slots)] - first;
    return n;
  }
  // Four at once, whether there are so many or not: how many there are is not to be guessed.
  static size_t give(const Bucket& bucket, uint32_t slots, uint32_t first, int64_t first_row, int64_t probe,
                     int64_t* rows, int64_t* probes) {
    constexpr uint64_t kSome = uint64_t{1} << (Bucket::kSlots - 1);  // a slot to read where none is left
    const uint32_t before = slots & ((uint32_t{1} << bucket.cursor) - 1);
    // Bits from the cursor on, and behind them those before it.
    uint64_t order = uint64_t{slots ^ before} >> bucket.cursor | uint64_t{before} << (Bucket::kSlots - bucket.cursor);
    const size_t n = count(slots);
    for (size_t done = 0; done < n; done += 4) {
      for (size_t i = done; i < done + 4; ++i, order &= order - 1) {
        const int slot = __builtin_ctzll(order | kSome) + bucket.cursor;
        rows[i] = first_row + (bucket.position[slot < Bucket::kSlots ? slot : slot - Bucket::kSlots] - first);
        probes[i] = probe;
      }
    }
    return n;
  }
  // Without the instruction, which not every machine has, the compiler would call a function.
  static size_t count(uint32_t slots) {
    slots -= slots >> 1 & 0x55555555;
    slots = (slots & 0x33333333) + (slots >> 2 & 0x33333333);
    return ((slots + (slots >> 4)) & 0x0f0f0f0f) * 0x01010101 >> 24;
  }
  static void sort(uint32_t* found, size_t n) { std::sort(found, found + n); }
  static size_t give_two(const Bucket& a, uint32_t slots, const Bucket& b, uint32_t others, uint32_t first,
                         int64_t first_row, int64_t probe, int64_t* rows, int64_t* probes) {
    size_t done = give(a, slots, first, first_row, probe, rows, probes);
    const size_t n = done + give(b, others, first, first_row, probe, rows + done, probes + done);
    for (done = std::max<size_t>(done, 1); done < n; ++done) {
      const int64_t one = rows[done];
      size_t at = done;
      for (; at > 0 && rows[at - 1] > one; --at) rows[at] = rows[at - 1];
      rows[at] = one;
    }
    return n;
  }
};

#ifdef DOVETAIL_AVX512
// Reads whole registers, but never past the bucket: lanes of the next one would fetch its line.
struct Avx512 {
  DOVETAIL_TARGET static inline size_t count(uint32_t slots) { return static_cast<size_t>(__builtin_popcount(slots)); }
  DOVETAIL_TARGET static inline Match match(const Bucket& bucket, uint16_t from, uint16_t to, uint32_t first,
                                            uint32_t count) {
    const __m512i fractions = _mm512_loadu_si512(&bucket);  // lanes 4 to 23
    const __m512i low = _mm512_set1_epi16(static_cast<int16_t>(from));
    const __m512i high = _mm512_set1_epi16(static_cast<int16_t>(to));
    const uint32_t inside = _mm512_cmpge_epu16_mask(fractions, low) & _mm512_cmple_epu16_mask(fractions, high);
    const uint32_t ends = _mm512_cmpeq_epi16_mask(fractions, low) | _mm512_cmpeq_epi16_mask(fractions, high);
    const auto start = static_cast<int>(first), most = static_cast<int>(count);
    const uint32_t rows = _mm512_cmplt_epu32_mask(lower(bucket, start), _mm512_set1_epi32(most)) |
                          static_cast<uint32_t>(_mm_cmplt_epu32_mask(upper(bucket, start), _mm_set1_epi32(most))) << 16;
    const uint32_t found = (inside >> 4) & rows;
    return {found, found & (ends >> 4)};
  }
  DOVETAIL_TARGET static inline size_t store(const Bucket& bucket, uint32_t slots, uint32_t first, uint32_t* out) {
    const auto start = static_cast<int>(first);
    const auto low = static_cast<__mmask16>(slots);
    const auto high = static_cast<__mmask8>(slots >> 16);
    const auto n = static_cast<size_t>(__builtin_popcount(low));
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(low, lower(bucket, start)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + n), _mm_maskz_compress_epi32(high, upper(bucket, start)));
    return n + static_cast<size_t>(__builtin_popcount(high));
  }

  // Writes the rows of these slots in the order of arrival, and the probe beside each; `rows` and `probes` have room for
  // 16, the most that there may be.
  DOVETAIL_TARGET static inline size_t give(const Bucket& bucket, uint32_t slots, uint32_t first, int64_t first_row,
                                            int64_t probe, int64_t* rows, int64_t* probes) {
    const __m512i found = in_order(bucket, slots, first);
    const __m512i base = _mm512_set1_epi64(first_row), p = _mm512_set1_epi64(probe);
    const auto n = static_cast<size_t>(__builtin_popcount(slots));
    _mm512_storeu_si512(rows, _mm512_add_epi64(base, eight(found)));
    _mm512_storeu_si512(probes, p);
    if (n > 8) {
      const __m256i more = _mm512_extracti64x4_epi64(found, 1);
      _mm512_storeu_si512(rows + 8, _mm512_add_epi64(base, _mm512_cvtepu32_epi64(more)));
      _mm512_storeu_si512(probes + 8, p);
    }
    return n;
  }

  // The same for two buckets, with at most 8 slots in all. The rows of one ascending and of the other descending behind
  // them are brought into order by comparing lanes 4, 2 and 1 apart, without a branch to guess.
  DOVETAIL_TARGET static inline size_t give_two(const Bucket& a, uint32_t slots, const Bucket& b, uint32_t others,
                                                uint32_t first, int64_t first_row, int64_t probe, int64_t* rows,
                                                int64_t* probes) {
    const int n = __builtin_popcount(slots), more = __builtin_popcount(others);
    const __m512i backwards = _mm512_set_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    const auto front = static_cast<__mmask8>((1u << n) - 1), back = static_cast<__mmask8>(0xff00u >> more);
    __m512i v = _mm512_mask_mov_epi64(_mm512_set1_epi64(INT64_MAX), front, eight(in_order(a, slots, first)));
    v = _mm512_mask_permutexvar_epi64(v, back, backwards, eight(in_order(b, others, first)));
    const auto compare = [&](__m512i other, __mmask8 upper) DOVETAIL_TARGET {
      v = _mm512_mask_max_epi64(_mm512_min_epi64(v, other), upper, v, other);
    };
    compare(_mm512_shuffle_i64x2(v, v, 0x4e), 0xf0);
    compare(_mm512_permutex_epi64(v, 0x4e), 0xcc);
    compare(_mm512_permutex_epi64(v, 0xb1), 0xaa);
    _mm512_storeu_si512(rows, _mm512_add_epi64(v, _mm512_set1_epi64(first_row)));
    _mm512_storeu_si512(probes, _mm512_set1_epi64(probe));
    return static_cast<size_t>(n + more);
  }

  // Sorts up to 32 numbers: a network of comparisons between lanes, without a branch to guess. `found` has room for 32.
  DOVETAIL_TARGET static inline void sort(uint32_t* found, size_t n) {
    __m512i a = _mm512_mask_loadu_epi32(_mm512_set1_epi32(-1), lanes_below(n), found);
    a = sorted(a);
    if (n > 16) {
      __m512i b = _mm512_mask_loadu_epi32(_mm512_set1_epi32(-1), lanes_below(n - 16), found + 16);
      // Ascending and then descending, as halves of one sequence, so that comparing 16 apart parts low from high.
      b = _mm512_permutexvar_epi32(_mm512_xor_si512(lanes(), _mm512_set1_epi32(15)), sorted(b));
      const __m512i low = _mm512_min_epu32(a, b), high = _mm512_max_epu32(a, b);
      a = merged(low);
      _mm512_storeu_si512(found + 16, merged(high));
    }
    _mm512_storeu_si512(found, a);
  }

  // Sorts few entries by a value that differs between them: each goes where as many lie before it as have less. False,
  // and nothing done, if there are more than 24, or values are equal.
  template <typename Value>
  DOVETAIL_TARGET static bool sort_distinct(Entry* entries, size_t n, Value value) {
    constexpr size_t kMost = 24;
    if (n > kMost) return false;
    uint64_t values[kMost];
    for (size_t i = 0; i < kMost; ++i) values[i] = i < n ? value(entries[i]) : UINT64_MAX;
    const __m512i a = _mm512_loadu_si512(values), b = _mm512_loadu_si512(values + 8), c = _mm512_loadu_si512(values + 16);
    Entry sorted[kMost];
    uint32_t taken = 0;
    for (size_t i = 0; i < n; ++i) {
      const __m512i mine = _mm512_set1_epi64(static_cast<int64_t>(values[i]));
      const uint32_t less = _mm512_cmplt_epu64_mask(a, mine) | uint32_t{_mm512_cmplt_epu64_mask(b, mine)} << 8 |
                            uint32_t{_mm512_cmplt_epu64_mask(c, mine)} << 16;
      const int place = __builtin_popcount(less);
      sorted[place] = entries[i];
      taken |= uint32_t{1} << place;
    }
    if (taken != (uint32_t{1} << n) - 1) return false;
    std::copy(sorted, sorted + n, entries);
    return true;
  }

 private:
  DOVETAIL_TARGET static inline __m512i lanes() {
    return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  }
  static __mmask16 lanes_below(size_t n) { return static_cast<__mmask16>(n < 16 ? (1u << n) - 1 : 0xffff); }

  // Compares lanes `apart` (a power of two) from each other; those in `upper` keep the greater.
  DOVETAIL_TARGET static inline __m512i compared(__m512i v, int apart, __mmask16 upper) {
    const __m512i other = _mm512_permutexvar_epi32(_mm512_xor_si512(lanes(), _mm512_set1_epi32(apart)), v);
    return _mm512_mask_max_epu32(_mm512_min_epu32(v, other), upper, v, other);
  }
  // Of a sequence that ascends and then descends, or the other way round.
  DOVETAIL_TARGET static inline __m512i merged(__m512i v) {
    v = compared(v, 8, 0xff00);
    v = compared(v, 4, 0xf0f0);
    v = compared(v, 2, 0xcccc);
    return compared(v, 1, 0xaaaa);
  }
  // Pairs, fours, eights: each ascends where its number is even and descends where it is odd.
  DOVETAIL_TARGET static inline __m512i sorted(__m512i v) {
    v = compared(v, 1, 0x6666);
    v = compared(v, 2, 0x3c3c);
    v = compared(v, 1, 0x5a5a);
    v = compared(v, 4, 0x0ff0);
    v = compared(v, 2, 0x33cc);
    v = compared(v, 1, 0x55aa);
    return merged(v);
  }

  // How far behind `first` the rows of these slots are, in the order of arrival: in a ring the slots from the cursor on
  // are the oldest, so what is found in the order of slots is turned around by as many as stand before the cursor.
  DOVETAIL_TARGET static inline __m512i in_order(const Bucket& bucket, uint32_t slots, uint32_t first) {
    const auto start = static_cast<int>(first);
    const auto low = static_cast<__mmask16>(slots);
    const auto n_low = __builtin_popcount(low);
    const auto turned = __builtin_popcount(slots & ((uint32_t{1} << bucket.cursor) - 1));
    const __m128i last = _mm_maskz_compress_epi32(static_cast<__mmask8>(slots >> 16), upper(bucket, start));
    const __m512i found = _mm512_mask_expand_epi32(_mm512_maskz_compress_epi32(low, lower(bucket, start)),
                                                   static_cast<__mmask16>(uint32_t{0xffff} << n_low),
                                                   _mm512_zextsi128_si512(last));
    const __m512i from = _mm512_add_epi32(lanes(), _mm512_set1_epi32(turned));
    const __m512i all = _mm512_set1_epi32(__builtin_popcount(slots));
    const __m512i around = _mm512_mask_sub_epi32(from, _mm512_cmpge_epi32_mask(from, all), from, all);
    return _mm512_permutexvar_epi32(around, found);
  }
  DOVETAIL_TARGET static inline __m512i eight(__m512i found) {
    return _mm512_cvtepu32_epi64(_mm512_castsi512_si256(found));
  }
  // How far behind `start` the first 16 positions, and the last 4, are.
  DOVETAIL_TARGET static inline __m512i lower(const Bucket& bucket, int start) {
    return _mm512_sub_epi32(_mm512_loadu_si512(bucket.position), _mm512_set1_epi32(start));
  }
  DOVETAIL_TARGET static inline __m128i upper(const Bucket& bucket, int start) {
    const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bucket.position + 16));
    return _mm_sub_epi32(four, _mm_set1_epi32(start));
  }
};
#endif

}  // namespace dovetail
