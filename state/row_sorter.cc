// Bits that become row numbers, in two builds (see scan.cc).
#include "row_sorter.hpp"

#include "cpu.hpp"

#ifdef DOVETAIL_AVX512
#include <immintrin.h>
#define DOVETAIL_TARGET_BYTES __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi2,bmi,bmi2,popcnt")))
#endif

namespace dovetail {
namespace {

size_t word_at(const uint32_t* listed, size_t i) { return listed ? listed[i] : i; }

// A word mostly holds few bits, as many as cannot be guessed, so four are written for each and only those counted that
// were there.
size_t take_word(uint64_t set, int64_t first, int64_t* out, size_t next, size_t room) {
  constexpr uint64_t kLast = uint64_t{1} << 63;  // something to find where nothing is left
  while (next + 4 <= room) {
    size_t there = 0;
    for (size_t i = 0; i < 4; ++i) {
      out[next + i] = first + __builtin_ctzll(set | kLast);
      there += set != 0;
      set &= set - 1;
    }
    next += there;
    if (set == 0) return next;
  }
  for (; set; set &= set - 1) out[next++] = first + __builtin_ctzll(set);
  return next;
}

// From the i-th word on, of which `next` numbers are written.
size_t take_portable(uint64_t* bits, const uint32_t* listed, size_t i, size_t count, int64_t first, int64_t* out,
                     size_t next, size_t room) {
  for (; i < count; ++i) {
    const size_t word = word_at(listed, i);
    next = take_word(std::exchange(bits[word], 0), first + static_cast<int64_t>(word * 64), out, next, room);
  }
  return next;
}

#ifdef DOVETAIL_AVX512
// The bytes 0 to 63, of which those are kept whose bit is set, are the numbers themselves; eight become rows at a time.
DOVETAIL_TARGET_BYTES size_t take_avx512(uint64_t* bits, const uint32_t* listed, size_t count, int64_t first,
                                         int64_t* out, size_t room) {
  alignas(64) uint8_t numbers[64];
  for (uint8_t i = 0; i < 64; ++i) numbers[i] = i;
  const __m512i all = _mm512_load_si512(numbers);
  size_t next = 0, i = 0;
  for (; i < count && next + 64 <= room; ++i) {
    const size_t word = word_at(listed, i);
    const uint64_t set = std::exchange(bits[word], 0);
    const __m512i base = _mm512_set1_epi64(first + static_cast<int64_t>(word * 64));
    const auto there = static_cast<size_t>(__builtin_popcountll(set));
    const __m512i found = _mm512_maskz_compress_epi8(set, all);
    const __m128i few = _mm512_castsi512_si128(found);
    _mm512_storeu_si512(out + next, _mm512_add_epi64(base, _mm512_cvtepu8_epi64(few)));
    if (there > 8) {
      _mm512_storeu_si512(out + next + 8, _mm512_add_epi64(base, _mm512_cvtepu8_epi64(_mm_srli_si128(few, 8))));
      const __m128i more = _mm512_extracti32x4_epi32(found, 1);
      _mm512_storeu_si512(out + next + 16, _mm512_add_epi64(base, _mm512_cvtepu8_epi64(more)));
      if (there > 24) {
        _mm512_store_si512(numbers, found);
        for (size_t at = 24; at < there; at += 8) {
          const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(numbers + at));
          _mm512_storeu_si512(out + next + at, _mm512_add_epi64(base, _mm512_cvtepu8_epi64(eight)));
        }
      }
    }
    next += there;
  }
  return take_portable(bits, listed, i, count, first, out, next, room);
}
#endif

}  // namespace

size_t take_bits(uint64_t* bits, const uint32_t* listed, size_t count, int64_t first, int64_t* out, size_t room) {
#ifdef DOVETAIL_AVX512
  if (use_avx512_bytes()) return take_avx512(bits, listed, count, first, out, room);
#endif
  return take_portable(bits, listed, 0, count, first, out, 0, room);
}

}  // namespace dovetail
