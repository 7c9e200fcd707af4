#include "memory.hpp"

#include <malloc.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace dovetail {
namespace {

constexpr size_t kLine = 64, kPage = 4096, kLargePage = size_t{1} << 21;

std::atomic<size_t> in_use{0};
std::atomic<int64_t> failing_in{-1};

// Large blocks are mapped one by one, at a multiple of a large page and no longer than asked for: aligned by malloc they
// would hold, and count, up to a large page more.
//
// A few that were released are kept for the next of about that size: results and merges ask for the same again and
// again, and the kernel's clearing of pages costs more than writing them.
constexpr size_t kMostSpare = size_t{32} << 20;
struct Spare {
  void* memory;
  size_t bytes;
};
Spare spares[4] = {};
size_t next_spare = 0;

std::mutex large_mutex;
std::unordered_map<void*, size_t>& large_blocks() {
  static auto* blocks = new std::unordered_map<void*, size_t>;  // outlives every store
  return *blocks;
}

// A spare block that is at most a sixteenth longer than asked for; its length instead of `bytes`.
void* take_spare(size_t& bytes) {
  for (Spare& spare : spares) {
    if (spare.bytes < bytes || spare.bytes > bytes + bytes / 16) continue;
    bytes = spare.bytes;
    return std::exchange(spare, Spare{}).memory;
  }
  return nullptr;
}

void keep_or_unmap(void* memory, size_t bytes) {
  if (bytes > kMostSpare / std::size(spares)) {
    munmap(memory, bytes);
    return;
  }
  Spare& spare = spares[next_spare++ % std::size(spares)];
  if (spare.memory) munmap(spare.memory, spare.bytes);
  spare = {memory, bytes};
}

void* map_large(size_t bytes) {
  const size_t room = bytes + kLargePage;
  void* mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = (begin + kLargePage - 1) / kLargePage * kLargePage;
  if (aligned > begin) munmap(mapped, aligned - begin);
  munmap(reinterpret_cast<void*>(aligned + bytes), begin + room - (aligned + bytes));
  void* memory = reinterpret_cast<void*>(aligned);
#ifdef MADV_HUGEPAGE
  madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: where it is not granted, things are only slower
#endif
  return memory;
}

}  // namespace

void* allocate(size_t bytes) {
  if (failing_in.load(std::memory_order_relaxed) >= 0 && failing_in.fetch_sub(1) == 0) throw std::bad_alloc();
  if (bytes >= kLargePage) {
    if (bytes > SIZE_MAX - 2 * kLargePage) throw std::bad_alloc();
    bytes = (bytes + kPage - 1) / kPage * kPage;
    const std::lock_guard<std::mutex> lock(large_mutex);
    void* memory = take_spare(bytes);
    if (!memory) memory = map_large(bytes);
    try {
      large_blocks().emplace(memory, bytes);
    } catch (...) {
      munmap(memory, bytes);
      throw;
    }
    in_use.fetch_add(bytes, std::memory_order_relaxed);
    return memory;
  }
  void* memory = nullptr;
  if (posix_memalign(&memory, kLine, bytes) != 0) throw std::bad_alloc();
  in_use.fetch_add(malloc_usable_size(memory), std::memory_order_relaxed);
  return memory;
}

void release(void* memory) noexcept {
  if (!memory) return;
  if (reinterpret_cast<uintptr_t>(memory) % kLargePage == 0) {
    const std::lock_guard<std::mutex> lock(large_mutex);
    const auto block = large_blocks().find(memory);
    if (block != large_blocks().end()) {
      in_use.fetch_sub(block->second, std::memory_order_relaxed);
      keep_or_unmap(memory, block->second);
      large_blocks().erase(block);
      return;
    }
  }
  in_use.fetch_sub(malloc_usable_size(memory), std::memory_order_relaxed);
  std::free(memory);
}

size_t allocated_bytes() { return in_use.load(std::memory_order_relaxed); }

void fail_allocation(int64_t after) { failing_in.store(after); }

}  // namespace dovetail
