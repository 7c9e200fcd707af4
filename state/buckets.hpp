// Cache lines of slots, for carousel.hpp: what a bucket is, how one is searched, and where buckets come from.
#pragma once

#include <algorithm>

#include "cpu.hpp"
#include "memory.hpp"
#include "row_vector.hpp"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace dovetail {

// Twenty rows of a narrow range of keys, in the order of arrival from `cursor` on, around in a ring: the slot under
// the cursor is the oldest, and the next to be written. A slot is its row's position (the low 32 bits) and where in
// the bucket's range of keys its key lies. A slot whose position has expired is as good as empty.
struct Bucket {
  static constexpr int kSlots = 20;

  uint8_t cursor;
  uint8_t unused[3];
  uint32_t overflow;  // one more bucket for the same keys; 0: none
  uint16_t fraction[kSlots];
  uint32_t position[kSlots];

  void write(uint16_t at, uint32_t row) {
    fraction[cursor] = at;
    position[cursor] = row;
    cursor = static_cast<uint8_t>(cursor + 1 == kSlots ? 0 : cursor + 1);
  }
  void clear(uint32_t dead) {
    cursor = 0;
    overflow = 0;
    for (int i = 0; i < kSlots; ++i) {
      fraction[i] = 0;
      position[i] = dead;
    }
  }
};
static_assert(sizeof(Bucket) == 128, "a bucket is two cache lines");

// Which slots a probe finds in a bucket: those with a fraction in [from, to] and a position in [first, first + count).
// Of those in `edge` the fraction equals an end, so that only the key itself can tell.
struct Match {
  uint32_t found, edge;
};

#ifdef __SSE2__
inline Match match_portable(const Bucket& bucket, uint16_t from, uint16_t to, uint32_t first, uint32_t count) {
  const auto load = [](const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); };
  const __m128i zero = _mm_setzero_si128(), sign = _mm_set1_epi32(INT32_MIN);
  const __m128i low = _mm_set1_epi16(static_cast<int16_t>(from)), high = _mm_set1_epi16(static_cast<int16_t>(to));
  const __m128i start = _mm_set1_epi32(static_cast<int>(first));
  const __m128i most = _mm_xor_si128(_mm_set1_epi32(static_cast<int>(count)), sign);
  const __m128i fractions[3] = {load(bucket.fraction), load(bucket.fraction + 8),
                                _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bucket.fraction + 16))};
  __m128i rows[6];
  for (int i = 0; i < 5; ++i) {  // there is no unsigned comparison: both sides are moved by half the range
    const __m128i behind = _mm_sub_epi32(load(bucket.position + 4 * i), start);
    rows[i] = _mm_cmpgt_epi32(most, _mm_xor_si128(behind, sign));
  }
  rows[5] = zero;
  __m128i found[3], edge[3];
  for (int i = 0; i < 3; ++i) {
    const __m128i outside = _mm_or_si128(_mm_subs_epu16(low, fractions[i]), _mm_subs_epu16(fractions[i], high));
    const __m128i inside = _mm_cmpeq_epi16(outside, zero);
    found[i] = _mm_and_si128(inside, _mm_packs_epi32(rows[2 * i], rows[2 * i + 1]));
    const __m128i ends = _mm_or_si128(_mm_cmpeq_epi16(fractions[i], low), _mm_cmpeq_epi16(fractions[i], high));
    edge[i] = _mm_and_si128(found[i], ends);
  }
  const auto bits = [&](const __m128i* lanes) {
    return static_cast<uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(lanes[0], lanes[1]))) |
           static_cast<uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(lanes[2], zero))) << 16;
  };
  return {bits(found), bits(edge)};
}
#else
inline Match match_portable(const Bucket& bucket, uint16_t from, uint16_t to, uint32_t first, uint32_t count) {
  uint32_t found = 0, edge = 0;
  for (int i = 0; i < Bucket::kSlots; ++i) {
    const uint16_t fraction = bucket.fraction[i];
    const bool inside = (fraction >= from) & (fraction <= to) & (bucket.position[i] - first < count);
    found |= static_cast<uint32_t>(inside) << i;
    edge |= static_cast<uint32_t>((fraction == from) | (fraction == to)) << i;
  }
  return {found, found & edge};
}
#endif

// Buckets in blocks of a power of two, by number: number 0 is nobody's.
class BucketPool {
 public:
  static constexpr int kOrders = 9;  // blocks of 1 to 256
  static constexpr int kChunkBits = 14;

  Bucket* at(uint32_t number) {
    return chunks_[number >> kChunkBits].get() + (number & ((uint32_t{1} << kChunkBits) - 1));
  }
  const Bucket* at(uint32_t number) const { return const_cast<BucketPool*>(this)->at(number); }

  // So many buckets will be asked for: begin with chunks that are large enough for large pages.
  void expect(size_t buckets) { wanted_ = buckets; }

  size_t used() const { return used_; }  // buckets given out
  size_t held() const { return held_; }
  size_t nbytes() const {
    size_t bytes = held_ * sizeof(Bucket) + chunks_.capacity() * sizeof(chunks_[0]);
    for (const auto& list : free_) bytes += list.capacity() * sizeof(uint32_t);
    return bytes;
  }

  // 2^order buckets, not cleared. Strong guarantee.
  uint32_t take(int order) {
    int from = order;
    while (from < kOrders && free_[from].empty()) ++from;
    if (from == kOrders && (next_ + (uint32_t{1} << order)) > chunk_end_) add_chunk(order);
    uint32_t number;
    if (from < kOrders) {
      for (int k = order; k < from; ++k) make_room(free_[k]);
      number = free_[from].back();
      free_[from].pop_back();
      for (int k = from; k-- > order;) free_[k].push_back(number + (uint32_t{1} << k));
    } else {
      number = next_;
      next_ += uint32_t{1} << order;
    }
    used_ += size_t{1} << order;
    return number;
  }

  // Never fails: a block that cannot be noted is lost until the pool is built anew.
  void give_back(uint32_t number, int order) noexcept {
    used_ -= size_t{1} << order;
    try {
      free_[order].push_back(number);
    } catch (const std::bad_alloc&) {
    }
  }

 private:
  void add_chunk(int order) {
    // What is left of the last chunk goes to the lists, in blocks as large as fit.
    for (int k = 0; k < kOrders; ++k) make_room(free_[k]);
    if (chunks_.size() == chunks_.capacity()) chunks_.reserve(chunks_.size() * 2 + 4);
    const size_t grown = std::min(std::max({held_, wanted_, size_t{32}}), size_t{1} << kChunkBits);
    const size_t count = std::max(grown, (size_t{1} << order) + 1);
    Array<Bucket> chunk(count);
    demand(chunks_.size() < (size_t{1} << (32 - kChunkBits)), "carousel: more than 2^32 buckets");
    for (int k = kOrders; k-- > 0;) {
      while (next_ + (uint32_t{1} << k) <= chunk_end_) {
        free_[k].push_back(next_);
        next_ += uint32_t{1} << k;
      }
    }
    next_ = static_cast<uint32_t>(chunks_.size() << kChunkBits) + (chunks_.empty() ? 1 : 0);
    chunk_end_ = static_cast<uint32_t>((chunks_.size() << kChunkBits) + count);
    held_ += count;
    chunks_.push_back(std::move(chunk));
  }

  static void make_room(Vector<uint32_t>& list) {
    if (list.size() + kOrders > list.capacity()) list.reserve(list.size() * 2 + 16);
  }

  Vector<Array<Bucket>> chunks_;
  Vector<uint32_t> free_[kOrders];
  uint32_t next_ = 0;
  uint32_t chunk_end_ = 0;
  size_t used_ = 0;
  size_t held_ = 0;
  size_t wanted_ = 0;
};

}  // namespace dovetail
