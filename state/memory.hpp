// Where the memory of stores comes from: one place that counts it, gives large pages, and can run out on purpose.
//
// Problem: a window lives in memory, so its owner must be able to say how much it holds, and to survive that there
// is no more; and an index that is looked into at random spends its time on the machine's page tables. Idea: every
// array of a store is allocated here. The bytes that the allocator gave are counted (tests hold `nbytes()` of each
// store to that), arrays of 2 MB and more ask for large pages, and a test can make any one allocation fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace dovetail {

void* allocate(size_t bytes);  // at a multiple of 64; throws std::bad_alloc
void release(void* memory) noexcept;

size_t allocated_bytes();                    // given and not yet released, by all stores of this process
void fail_allocation(int64_t after);         // the allocation after so many fails, once; -1: none does

template <typename T>
struct Allocator {
  using value_type = T;
  Allocator() = default;
  template <typename U>
  Allocator(const Allocator<U>&) {}  // NOLINT: containers convert allocators
  T* allocate(size_t n) { return static_cast<T*>(dovetail::allocate(n * sizeof(T))); }
  void deallocate(T* memory, size_t) noexcept { release(memory); }
  bool operator==(const Allocator&) const { return true; }
  bool operator!=(const Allocator&) const { return false; }
};

template <typename T>
using Vector = std::vector<T, Allocator<T>>;

// An array of plain values that is not cleared: for what is written whole before it is read.
template <typename T>
class Array {
 public:
  Array() = default;
  explicit Array(size_t n) : data_(n ? static_cast<T*>(allocate(n * sizeof(T))) : nullptr), size_(n) {}
  static Array zeros(size_t n) {
    Array array(n);
    if (n) std::memset(static_cast<void*>(array.data_), 0, n * sizeof(T));
    return array;
  }
  Array(Array&& other) noexcept : data_(other.data_), size_(other.size_) { other.forget(); }
  Array& operator=(Array&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Array() { release(data_); }

  T* get() { return data_; }
  const T* get() const { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  size_t size() const { return size_; }
  size_t nbytes() const { return size_ * sizeof(T); }
  T* give_away() {  // to be given to release() some day
    T* data = data_;
    forget();
    return data;
  }

 private:
  void forget() {
    data_ = nullptr;
    size_ = 0;
  }
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace dovetail
