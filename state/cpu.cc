#include "cpu.hpp"

#include <atomic>

namespace dovetail {
namespace {

std::atomic<bool> forced_portable{false};

bool has_avx512() {
#ifdef DOVETAIL_AVX512
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
  return has;
#else
  return false;
#endif
}

}  // namespace

bool use_avx512_bytes() {
#ifdef DOVETAIL_AVX512
  static const bool has = __builtin_cpu_supports("avx512vbmi2");
  return has && use_avx512();
#else
  return false;
#endif
}

bool use_avx512() { return has_avx512() && !forced_portable.load(std::memory_order_relaxed); }

const char* instructions() { return use_avx512() ? "avx512" : "portable"; }

bool force_portable(bool portable) { return forced_portable.exchange(portable); }

}  // namespace dovetail
