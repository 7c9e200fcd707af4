// Which vector instructions this machine has: a wheel may assume no more than SSE2, so wider code is chosen when it
// runs. Tests and benchmarks can turn it off.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#define DOVETAIL_AVX512 1
#define DOVETAIL_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,bmi,bmi2,popcnt")))
#endif

// For what is written once and compiled for several targets: it takes the target of the function that it is part of.
#define DOVETAIL_INLINE inline __attribute__((always_inline))

namespace dovetail {

bool use_avx512();
bool use_avx512_bytes();  // besides, bytes can be compressed (VBMI2), which not every machine with the others can

// The widest instructions in use: "avx512" or "portable".
const char* instructions();

// Forces portable code; returns what was forced before.
bool force_portable(bool portable);

}  // namespace dovetail
