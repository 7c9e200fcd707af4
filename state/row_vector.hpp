// One value for each row of a window, contiguous, first in first out.
//
// Problem: a window needs a few numbers for each of its rows (a time, a key) so that a range of rows is a range
// of memory. Idea: one buffer whose live part slides to the right; when it reaches the end it moves back to the
// front, or into a larger buffer. Each value is moved at most once for each time the window is replaced, so an
// append costs O(1) amortised, and memory follows the window down again as well as up.
//
// Invariants: rows [first_row(), end_row()) are live and stand at data()[row - first_row()];
// head_ + count_ <= capacity_; after expire() capacity_ <= max(kSmallest, 4 * count_).
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "memory.hpp"

namespace dovetail {

inline void demand(bool holds, const char* sentence) {
  if (!holds) throw std::logic_error(sentence);
}

template <typename T>
class RowVector {
 public:
  static constexpr size_t kSmallest = 64;  // below this, giving memory back costs more than it returns

  int64_t first_row() const { return first_row_; }
  int64_t end_row() const { return first_row_ + static_cast<int64_t>(count_); }
  size_t size() const { return count_; }
  size_t nbytes() const { return capacity_ * sizeof(T); }
  const T* data() const { return buffer_.get() + head_; }
  T* data() { return buffer_.get() + head_; }
  const T& back() const { return data()[count_ - 1]; }
  const T& operator[](size_t i) const { return data()[i]; }

  // Makes room for n more values and returns where they go; they count from now on. Strong guarantee: when
  // memory is short this throws std::bad_alloc and nothing has changed.
  T* grow(size_t n) {
    if (head_ + count_ + n > capacity_) {
      if (count_ + n <= capacity_ / 2) {
        slide_to_front();
      } else {
        reallocate((count_ + n) * 3 / 2 + kSmallest);
      }
    }
    T* place = data() + count_;
    count_ += n;
    return place;
  }

  void append(const T* values, size_t n) {
    T* place = grow(n);
    if (n) std::memcpy(place, values, n * sizeof(T));
  }

  // Takes back the last n values, for an insertion that cannot be completed.
  void shrink(size_t n) { count_ -= n; }

  // Drops the values below `row`. Rows that were never here are simply passed over.
  void expire(int64_t row) {
    if (row <= first_row_) return;
    const auto n = static_cast<uint64_t>(row - first_row_);
    drop_front(n < count_ ? static_cast<size_t>(n) : count_);
    first_row_ = row;
  }

  // Drops the first n values, which need not be of consecutive rows.
  void drop_front(size_t n) {
    head_ += n;
    count_ -= n;
    first_row_ += static_cast<int64_t>(n);
    if (count_ == 0) head_ = 0;
    if (capacity_ > kSmallest && capacity_ > 4 * count_) {
      try {
        reallocate(count_ * 2 < kSmallest ? kSmallest : count_ * 2);
      } catch (const std::bad_alloc&) {
        // Returning memory needs a little of it first. There is none: keep what we have, nothing is wrong.
      }
    }
  }

  // Starts anew at `row`; only when empty.
  void start_at(int64_t row) {
    demand(count_ == 0, "a row vector that holds rows cannot be moved to another first row");
    first_row_ = row;
  }

  void check() const { demand(head_ + count_ <= capacity_, "a row vector reaches past its buffer"); }

 private:
  void slide_to_front() {
    if (count_) std::memmove(buffer_.get(), data(), count_ * sizeof(T));
    head_ = 0;
  }

  void reallocate(size_t capacity) {
    Array<T> wider(capacity);
    if (count_) std::memcpy(wider.get(), data(), count_ * sizeof(T));
    buffer_ = std::move(wider);
    capacity_ = capacity;
    head_ = 0;
  }

  Array<T> buffer_;
  size_t capacity_ = 0;
  size_t head_ = 0;
  size_t count_ = 0;
  int64_t first_row_ = 0;
};

// A plain growing array whose memory can be handed to somebody else. Unlike std::vector it does not clear what
// it reserves, which for result pairs would be a second pass over memory.
template <typename T>
class Growing {
 public:
  size_t size() const { return size_; }
  size_t nbytes() const { return capacity_ * sizeof(T); }
  T* data() { return buffer_.get(); }
  const T* data() const { return buffer_.get(); }
  void clear() { size_ = 0; }

  // Room for n more values behind the last one; `advance` then says how many of them count.
  T* reserve(size_t n) {
    if (size_ + n > capacity_) {
      const size_t capacity = (size_ + n) * 3 / 2 + 64;
      Array<T> wider(capacity);
      // All of it, not only what counts: a caller may have written into what it reserved before.
      if (capacity_) std::memcpy(wider.get(), buffer_.get(), capacity_ * sizeof(T));
      buffer_ = std::move(wider);
      capacity_ = capacity;
    }
    return buffer_.get() + size_;
  }
  void advance(size_t n) { size_ += n; }
  T* give_away() { return buffer_.give_away(); }  // to be given to release() some day

 private:
  Array<T> buffer_;
  size_t capacity_ = 0;
  size_t size_ = 0;
};

}  // namespace dovetail
