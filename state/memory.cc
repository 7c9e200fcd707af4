#include "memory.hpp"

#include <malloc.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>

namespace dovetail {
namespace {

constexpr size_t kLine = 64, kLargePage = size_t{1} << 21;

std::atomic<size_t> in_use{0};
std::atomic<int64_t> failing_in{-1};

}  // namespace

void* allocate(size_t bytes) {
  if (failing_in.load(std::memory_order_relaxed) >= 0 && failing_in.fetch_sub(1) == 0) throw std::bad_alloc();
  const bool large = bytes >= kLargePage;
  void* memory = nullptr;
  if (posix_memalign(&memory, large ? kLargePage : kLine, bytes) != 0) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (large) madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: where it is not granted, things are only slower
#endif
  in_use.fetch_add(malloc_usable_size(memory), std::memory_order_relaxed);
  return memory;
}

void release(void* memory) noexcept {
  if (!memory) return;
  in_use.fetch_sub(malloc_usable_size(memory), std::memory_order_relaxed);
  std::free(memory);
}

size_t allocated_bytes() { return in_use.load(std::memory_order_relaxed); }

void fail_allocation(int64_t after) { failing_in.store(after); }

}  // namespace dovetail
