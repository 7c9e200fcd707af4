// Equality: a hash table whose chains run from the newest row to the oldest.
//
// Problem: rows leave a window in the order in which they came, and searching a table to delete each of them costs
// as much as inserting it. Idea: entries stand in a ring in the order of arrival; a bucket holds the number of its
// newest entry, and each entry tells how far back the next older one of its bucket stands. Expiry is then one
// number: a chain ends at the first entry that is below it. Nothing is ever deleted from a chain.
//
// Cost: insert O(1); probe O(matches + rows of the chain that are too new + collisions); expire O(1);
// 20 bytes an entry and 8 a bucket, for a ring that is at most 4 times as long as the window.
// Invariants: entries [head_, tail_) are live and stand at number & mask_; an entry's chain holds exactly the older
// entries of its bucket; rows ascend with numbers.
// Where it loses: one key that most rows share, probed with row bounds far in the past (the newer rows of the chain
// are walked over).
#pragma once

#include <algorithm>

#include "entry.hpp"
#include "keys.hpp"
#include "store.hpp"

namespace dovetail {

class HashStore final : public Store {
 public:
  static std::vector<Parameter> parameters() {
    return {{"smallest", 64, 1, 1 << 30, "entries of the smallest table"}};
  }
  explicit HashStore(const Settings& settings) : smallest_(power_of_two(settings.count("smallest"))) {}

  void insert(const uint64_t* keys, const int64_t* rows, size_t n) override {
    if (size() + n > capacity_) rebuild(power_of_two(std::max(smallest_, (size() + n) * 3 / 2)));
    for (size_t i = 0; i < n; ++i) {
      if (i + kAhead < n) __builtin_prefetch(&newest_[bucket_of(keys[i + kAhead])], 1);
      place(keys[i], rows[i]);
    }
    if (n && rows[0] < bound_) expire(bound_);
  }

  size_t probe(const Probes& probes, size_t begin, size_t end, size_t limit, Pairs& out) override {
    if (size() == 0) return end;
    for (size_t p = begin; p < end; ++p) {
      if (p + kAhead < end) __builtin_prefetch(&newest_[bucket_of(probes.lo[p + kAhead])]);
      if (probes.empty(p)) continue;
      demand(probes.lo[p] == probes.hi[p], "hash: a probe is one key, not a range");
      const size_t found = walk(probes.lo[p], probes.row_lo[p], probes.row_hi[p], out);
      if (found == 0) continue;
      int64_t* rows = out.row.data() + out.row.size();
      std::reverse(rows, rows + found);
      out.claim(static_cast<int64_t>(p), found);
      if (out.size() >= limit) return p + 1;
    }
    return end;
  }

  void expire(int64_t before_row) override {
    bound_ = std::max(bound_, before_row);
    while (head_ < tail_ && entries_[head_ & mask_].row < bound_) ++head_;
    if (capacity_ > smallest_ && size() < capacity_ / 4) {
      try {
        rebuild(power_of_two(std::max(smallest_, size() * 3 / 2)));
      } catch (const std::bad_alloc&) {
        // A smaller table needs memory before it gives any back; there is none, so this one stays.
      }
    }
  }

  size_t size() const override { return static_cast<size_t>(tail_ - head_); }
  size_t nbytes() const override { return capacity_ * (sizeof(Entry) + sizeof(uint32_t) + sizeof(uint64_t)); }

  void check() const override {
    demand(size() <= capacity_, "hash: no more entries than places");
    size_t chained = 0;
    for (size_t b = 0; b < capacity_; ++b) {
      uint64_t number = newest_[b];
      while (number > head_) {  // numbers are stored plus one, so that 0 means none
        const Entry& entry = entries_[(number - 1) & mask_];
        demand(bucket_of(entry.key) == b, "hash: an entry stands in its own bucket's chain");
        ++chained;
        const uint32_t back = back_[(number - 1) & mask_];
        number = back ? number - back : 0;
      }
    }
    demand(chained == size(), "hash: the chains hold each live entry once");
    for (uint64_t i = head_; i + 1 < tail_; ++i) {
      demand(entries_[i & mask_].row < entries_[(i + 1) & mask_].row, "hash: rows ascend");
    }
  }

 private:
  static constexpr size_t kAhead = 12;  // enough independent misses in flight to hide one of them

  static size_t power_of_two(size_t n) {
    size_t power = 1;
    while (power < n) power *= 2;
    return power;
  }

  size_t bucket_of(uint64_t key) const { return static_cast<size_t>(mix(key)) & mask_; }

  void place(uint64_t key, int64_t row) {
    const uint64_t number = tail_ + 1;
    uint64_t& newest = newest_[bucket_of(key)];
    const bool linked = newest > head_;
    entries_[tail_ & mask_] = {key, row};
    back_[tail_ & mask_] = linked ? static_cast<uint32_t>(number - newest) : 0;
    newest = number;
    ++tail_;
  }

  size_t walk(uint64_t key, int64_t row_lo, int64_t row_hi, Pairs& out) const {
    size_t found = 0;
    uint64_t number = newest_[bucket_of(key)];
    while (number > head_) {
      const size_t at = static_cast<size_t>(number - 1) & mask_;
      const Entry& entry = entries_[at];
      if (entry.row < row_lo) break;
      if (entry.key == key && entry.row < row_hi) {
        out.row.reserve(found + 1)[found] = entry.row;
        ++found;
      }
      if (back_[at] == 0) break;
      number -= back_[at];
    }
    return found;
  }

  void rebuild(size_t capacity) {
    demand(capacity <= (size_t{1} << 31), "hash: a window of more than 2^31 rows does not fit one store");
    Array<Entry> entries(capacity);
    Array<uint32_t> back(capacity);
    Array<uint64_t> newest = Array<uint64_t>::zeros(capacity);
    std::swap(entries_, entries);
    std::swap(back_, back);
    std::swap(newest_, newest);
    const uint64_t from = head_, to = tail_, old_mask = mask_;
    capacity_ = capacity;
    mask_ = capacity - 1;
    head_ = tail_ = 0;
    for (uint64_t i = from; i < to; ++i) place(entries[i & old_mask].key, entries[i & old_mask].row);
  }

  const size_t smallest_;
  Array<Entry> entries_;
  Array<uint32_t> back_;
  Array<uint64_t> newest_;
  size_t capacity_ = 0;
  uint64_t mask_ = 0;
  int64_t bound_ = INT64_MIN;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
};

}  // namespace dovetail
