// Which runs a probe meets, in two builds (see scan.cc).
#include "zone_map.hpp"

#include "cpu.hpp"

#ifdef DOVETAIL_AVX512
#include <immintrin.h>
#endif

namespace dovetail {
namespace {

size_t met_runs_portable(const Zones& zones, const Box& box, size_t keys, uint32_t* out) {
  size_t met = 0;
  for (size_t r = 0; r < zones.runs; ++r) {
    bool meets = true;
    for (size_t k = 0; k < keys; ++k) {
      meets &= zones.least[k * zones.stride + r] <= box.hi[k] && zones.greatest[k * zones.stride + r] >= box.lo[k];
    }
    out[met] = static_cast<uint32_t>(r);
    met += meets;
  }
  return met;
}

#ifdef DOVETAIL_AVX512
DOVETAIL_TARGET size_t met_runs_avx512(const Zones& zones, const Box& box, size_t keys, uint32_t* out) {
  size_t met = 0;
  for (size_t r = 0; r < zones.runs; r += Zones::kLanes) {
    const size_t left = zones.runs - r;
    auto meets = static_cast<__mmask8>(left >= Zones::kLanes ? 0xff : (1u << left) - 1);
    for (size_t k = 0; k < keys && meets; ++k) {
      const __m512i least = _mm512_loadu_si512(zones.least.get() + k * zones.stride + r);
      const __m512i greatest = _mm512_loadu_si512(zones.greatest.get() + k * zones.stride + r);
      meets = _mm512_mask_cmple_epu64_mask(meets, least, _mm512_set1_epi64(static_cast<int64_t>(box.hi[k])));
      meets = _mm512_mask_cmpge_epu64_mask(meets, greatest, _mm512_set1_epi64(static_cast<int64_t>(box.lo[k])));
    }
    for (uint32_t bits = meets; bits; bits &= bits - 1) {
      out[met++] = static_cast<uint32_t>(r) + static_cast<uint32_t>(__builtin_ctz(bits));
    }
  }
  return met;
}
#endif

}  // namespace

size_t met_runs(const Zones& zones, const Box& box, size_t keys, uint32_t* out) {
#ifdef DOVETAIL_AVX512
  if (use_avx512()) return met_runs_avx512(zones, box, keys, out);
#endif
  return met_runs_portable(zones, box, keys, out);
}

}  // namespace dovetail
