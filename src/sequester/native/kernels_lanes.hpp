// Vectors of the widest instruction set at hand, and exponentials on them.

#pragma once

#include <cstdint>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

namespace {

typedef float Lane __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Bits __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

constexpr int kPanel = 2 * LANES;  // columns computed together: two registers
constexpr int kRows = 6;           // rows computed together: twelve accumulators
constexpr int64_t kBlock = 8 * kRows;  // windows carried through time together

// Half a vector's numbers, of a sum that is kept in float64.
constexpr int kHalf = LANES / 2;
typedef double Wide __attribute__((vector_size(4 * LANES), aligned(8), may_alias));
typedef float Narrow __attribute__((vector_size(2 * LANES), aligned(4), may_alias));

// Compilers take four instructions and more for the conversion that is one.
inline Wide widen(const float* p) {
#if defined(__AVX512F__)
  return (Wide)_mm512_cvtps_pd(_mm256_loadu_ps(p));
#elif defined(__AVX__)
  return (Wide)_mm256_cvtps_pd(_mm_loadu_ps(p));
#else
  return __builtin_convertvector(*reinterpret_cast<const Narrow*>(p), Wide);
#endif
}
inline Wide& wide(double* p) { return *reinterpret_cast<Wide*>(p); }

inline Lane load(const float* p) { return *reinterpret_cast<const Lane*>(p); }
inline void store(float* p, Lane v) { *reinterpret_cast<Lane*>(p) = v; }
inline Lane fill(float x) { return x - Lane{}; }
inline Lane pick(Bits mask, Lane yes, Lane no) { return (Lane)((mask & (Bits)yes) | (~mask & (Bits)no)); }

// A vector of a row's numbers, read and written whole, or as far as the row goes: what lies after it
// is neither touched nor read. f(j, part) for each of a row's vectors.
struct Whole {
  Lane load(const float* p) const { return ::load(p); }
  void store(float* p, Lane v) const { ::store(p, v); }
};

#if defined(__AVX512F__)
struct Part {
  explicit Part(int64_t count) : mask((1u << count) - 1) {}
  Lane load(const float* p) const { return (Lane)_mm512_maskz_loadu_ps(mask, p); }
  void store(float* p, Lane v) const { _mm512_mask_storeu_ps(p, mask, (__m512)v); }
  __mmask16 mask;
};
#elif defined(__AVX__)
struct Part {
  explicit Part(int64_t count) {
    for (int i = 0; i < LANES; i++) mask[i] = i < count ? -1 : 0;
  }
  Lane load(const float* p) const { return (Lane)_mm256_maskload_ps(p, (__m256i)mask); }
  void store(float* p, Lane v) const { _mm256_maskstore_ps(p, (__m256i)mask, (__m256)v); }
  Bits mask;
};
#else
struct Part {
  explicit Part(int64_t count) : count(count) {}
  Lane load(const float* p) const {
    Lane v = {};
    for (int64_t i = 0; i < count; i++) v[i] = p[i];
    return v;
  }
  void store(float* p, Lane v) const {
    for (int64_t i = 0; i < count; i++) p[i] = v[i];
  }
  int64_t count;
};
#endif

template <typename F>
inline void each(int64_t size, F f) {
  int64_t j = 0;
  for (; j + LANES <= size; j += LANES) f(j, Whole{});
  if (j < size) f(j, Part(size - j));
}

// exp with a relative error below 2e-7 on [-87, 88]; infinite above and 0 below, so that a gate which
// is shut lets nothing through, however large; NaN stays NaN.
inline Lane vexp(Lane given) {
  const Bits above = given > 88.0f, below = given < -87.0f;
  const Lane x = pick(above | below, Lane{}, given);
  const float magic = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
  const Lane t = x * 1.44269504088896341f + magic;
  const Bits n = (Bits)t - 0x4B400000;
  const Lane k = t - magic;
  const Lane f = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  Lane p = f * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
  p = p * (Lane)((n + 127) << 23);
  return pick(above, fill(__builtin_inff()), pick(below, Lane{}, p));
}

inline Lane sigmoid(Lane x) { return 1.0f / (1.0f + vexp(-x)); }

// By a polynomial near zero, where 1 − 2/(…) would lose the digits of a small x.
inline Lane tanh_(Lane x) {
  const Lane square = x * x;
  Lane p = square * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  return pick(square < 0.390625f, p * square * x + x, 1.0f - 2.0f / (vexp(2.0f * x) + 1.0f));
}

}  // namespace
