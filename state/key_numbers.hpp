// Dense numbers for keys: what a grouping is made of.
//
// Problem: rows of one key are to be folded into one place, whatever the key is: a few words, a string, several columns.
// Idea: a table gives each key a number, from 0, in the order in which keys came first; then a fold is an array that is
// indexed by it. Keys are bytes, kept one behind the other, so that one table serves all types; a column of strings is
// numbered first, and its numbers are a word among others.
//
// Invariants: numbers are consecutive; key i stands in bytes [end of i − 1, end of i); a slot holds a number + 1 and 32
// bits of its key's hash, or 0; at most half of the slots are taken.
// Cost: O(1) a key, one or two misses, which are fetched ahead for the words of a batch; nothing is forgotten (who
// wants that numbers the keys that are left anew).
#pragma once

#include <cstring>

#include "keys.hpp"
#include "memory.hpp"

namespace dovetail {

class KeyNumbers {
 public:
  size_t size() const { return ends_.size(); }
  size_t nbytes() const { return bytes_.capacity() + ends_.capacity() * 8 + slots_.capacity() * 8; }

  // Numbers of n keys of `width` bytes each; in `first` the places of those that are new. Returns how many are. A lack
  // of memory leaves the keys before it numbered.
  size_t of_words(const uint8_t* keys, size_t n, size_t width, int64_t* out, int64_t* first) {
    constexpr size_t kAhead = 16;
    uint64_t hashes[kAhead];
    size_t fresh = 0;
    for (size_t begin = 0; begin < n; begin += kAhead) {
      const size_t end = begin + kAhead < n ? begin + kAhead : n;
      for (size_t i = begin; i < end; ++i) {
        hashes[i - begin] = hash_bytes(keys + i * width, width);
        if (!slots_.empty()) __builtin_prefetch(&slots_[hashes[i - begin] & mask_]);
      }
      for (size_t i = begin; i < end; ++i) {
        out[i] = number(keys + i * width, width, hashes[i - begin]);
        first[fresh] = static_cast<int64_t>(i);
        fresh += is_new_;
      }
    }
    return fresh;
  }

  // The same for strings of an Arrow array.
  template <typename Offset>
  size_t of_strings(const Offset* offsets, const uint8_t* bytes, size_t n, int64_t* out, int64_t* first) {
    size_t fresh = 0;
    for (size_t i = 0; i < n; ++i) {
      const auto length = static_cast<size_t>(offsets[i + 1] - offsets[i]);
      const uint8_t* key = length ? bytes + offsets[i] : nullptr;
      out[i] = number(key, length, hash_bytes(key, length));
      first[fresh] = static_cast<int64_t>(i);
      fresh += is_new_;
    }
    return fresh;
  }

 private:
  static constexpr uint64_t kNumber = 0xffffffff;

  int64_t number(const uint8_t* key, size_t length, uint64_t hash) {
    if (2 * (size() + 1) > slots_.size()) grow();
    size_t at = hash & mask_;
    for (; slots_[at]; at = (at + 1) & mask_) {
      const uint64_t found = (slots_[at] & kNumber) - 1;
      if (((slots_[at] ^ hash) & ~kNumber) == 0 && equals(found, key, length)) {
        is_new_ = false;
        return static_cast<int64_t>(found);
      }
    }
    if (size() >= kNumber - 1) throw std::bad_alloc();
    ends_.reserve_one();
    bytes_.insert(bytes_.end(), key, key + length);
    ends_.push_back(bytes_.size());
    slots_[at] = (hash & ~kNumber) | size();
    is_new_ = true;
    return static_cast<int64_t>(size() - 1);
  }

  bool equals(uint64_t number, const uint8_t* key, size_t length) const {
    const size_t begin = number ? ends_[number - 1] : 0;
    return ends_[number] - begin == length && (length == 0 || std::memcmp(bytes_.data() + begin, key, length) == 0);
  }

  void grow() {
    Vector<uint64_t> slots(slots_.empty() ? 64 : slots_.size() * 2, 0);
    const size_t mask = slots.size() - 1;
    for (size_t i = 0, begin = 0; i < size(); begin = ends_[i++]) {
      const uint64_t hash = hash_bytes(bytes_.data() + begin, ends_[i] - begin);
      size_t at = hash & mask;
      while (slots[at]) at = (at + 1) & mask;
      slots[at] = (hash & ~kNumber) | (i + 1);
    }
    slots_.swap(slots);
    mask_ = mask;
  }

  // A vector whose next push_back cannot fail.
  struct Ends : Vector<uint64_t> {
    void reserve_one() {
      if (size() == capacity()) reserve(size() ? size() * 2 : 64);
    }
  };

  Vector<uint8_t> bytes_;
  Ends ends_;
  Vector<uint64_t> slots_;
  size_t mask_ = 0;
  bool is_new_ = false;
};

}  // namespace dovetail
