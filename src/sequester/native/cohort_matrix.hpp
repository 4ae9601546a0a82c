// Vectors of the widest instruction set at hand, and products of small matrices in cache.
//
// Included by kernels; plain C++17 with GCC's and Clang's vector extension.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16, MR = 8, NR = 3;
#else
constexpr int W = 8, MR = 4, NR = 3;  // 12 accumulators of the 16 AVX2 registers
#endif

typedef float Vec __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(W * 4), aligned(4), may_alias));

inline Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
inline Vec all(float x) { return x - Vec{}; }

// exp to about 2 ulp; NaN stays NaN, so that a diverged client is seen as one.
inline Vec exponential(Vec x) {
  x = x > 88.0f ? all(88.0f) : x;
  x = x < -87.0f ? all(-87.0f) : x;
  const Vec magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = x * 1.44269504f + magic;
  const Vec n = shifted - magic;
  Vec r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Ints scale = ((Ints)shifted << 23) + 0x3f800000;
  return p * (Vec)scale;
}
inline Vec sigmoid(Vec x) { return 1.0f / (1.0f + exponential(-x)); }
inline Vec hyperbolic_tangent(Vec x) { return 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f); }

// ---- C (rows x columns) += A B, where A's element (i, k) lies at A[i * ai + k * ak] ---------

template <int R, int C>
inline void tile(int depth, const float* A, long ai, long ak, const float* B, long bs, float* out,
                 long os) {
  Vec c[R][C];
  for (int i = 0; i < R; i++)
    for (int j = 0; j < C; j++) c[i][j] = load(out + i * os + j * W);
  for (int k = 0; k < depth; k++) {
    Vec b[C];
    for (int j = 0; j < C; j++) b[j] = load(B + k * bs + j * W);
    for (int i = 0; i < R; i++) {
      const Vec a = all(A[i * ai + k * ak]);
      for (int j = 0; j < C; j++) c[i][j] += a * b[j];
    }
  }
  for (int i = 0; i < R; i++)
    for (int j = 0; j < C; j++) store(out + i * os + j * W, c[i][j]);
}

template <int C>
void column(int rows, int depth, const float* A, long ai, long ak, const float* B, long bs,
            float* out, long os) {
  int i = 0;
  for (; i + MR <= rows; i += MR) tile<MR, C>(depth, A + i * ai, ai, ak, B, bs, out + i * os, os);
  if (MR > 4)
    for (; i + 4 <= rows; i += 4) tile<4, C>(depth, A + i * ai, ai, ak, B, bs, out + i * os, os);
  for (; i + 2 <= rows; i += 2) tile<2, C>(depth, A + i * ai, ai, ak, B, bs, out + i * os, os);
  if (i < rows) tile<1, C>(depth, A + i * ai, ai, ak, B, bs, out + i * os, os);
}

// B's panels of NR vectors: panel p, row k lies at B + p * bp + k * bs. Panels go outside, so
// that one stays in the first cache level while all rows pass.
void multiply(int rows, int columns, int depth, const float* A, long ai, long ak, const float* B,
              long bs, long bp, float* out, long os) {
  const int vectors = columns / W;
  int j = 0;
  for (; j + NR <= vectors; j += NR, B += bp, out += NR * W)
    column<NR>(rows, depth, A, ai, ak, B, bs, out, os);
  if (vectors - j == 2) column<2>(rows, depth, A, ai, ak, B, bs, out, os);
  if (vectors - j == 1) column<1>(rows, depth, A, ai, ak, B, bs, out, os);
}

// out += Aᵀ B over `depth` rows, in slices that stay in the first cache level.
void multiply_transposed(int rows, int columns, int depth, const float* A, long as, const float* B,
                         long bs, float* out, long os) {
  constexpr int slice = 64;
  for (int k = 0; k < depth; k += slice)
    multiply(rows, columns, std::min(slice, depth - k), A + k * as, 1, as, B + k * bs, bs, NR * W, out, os);
}

// A weight matrix used at every step, copied once into contiguous panels: rows at a power-of-two
// distance would share a few cache sets. `at(k, j)` gives its elements.
struct Panels {
  std::vector<float> data;
  int rows, columns;
  static constexpr int width = NR * W;

  Panels(int rows, int columns)
      : data(static_cast<size_t>((columns + width - 1) / width) * rows * width), rows(rows), columns(columns) {}
  template <class F> void fill(F at) {
    for (int j = 0; j < columns; j++) {
      float* to = &data[static_cast<size_t>(j / width) * rows * width + j % width];
      for (int k = 0; k < rows; k++) to[k * width] = at(k, j);
    }
  }
  void apply(int count, const float* A, long ai, float* out, long os) const {
    multiply(count, columns, rows, A, ai, 1, data.data(), width, static_cast<long>(rows) * width, out, os);
  }
};

}  // namespace
