// What is done to people's gradients: products over the rows of each, and the weighted sum.

#pragma once

#include <cstdint>

#include "kernels_lanes.hpp"

namespace {

// The first `count` columns, row after row: their stride may be a power of two, whose lines few sets
// of the cache would have to hold.
void pack(int64_t depth, const float* from, int64_t stride, int64_t count, float* to) {
  for (int64_t k = 0; k < depth; k++, from += stride, to += count) {
    for (int64_t i = 0; i < count; i++) to[i] = from[i];
  }
}

// out[i][0..] = Σ_k left[k][i] · right[k][0..], both packed, for R columns of `left` and V vectors.
template <int R, int V>
void outer(int64_t depth, const float* left, const float* right, float* out, int64_t n) {
  Lane sum[R][V] = {};
  for (int64_t k = 0; k < depth; k++, left += R, right += V * LANES) {
    Lane row[V];
    for (int v = 0; v < V; v++) row[v] = load(right + v * LANES);
#pragma GCC unroll 6
    for (int i = 0; i < R; i++) {
      for (int v = 0; v < V; v++) sum[i][v] += left[i] * row[v];
    }
  }
  for (int i = 0; i < R; i++) {
    for (int v = 0; v < V; v++) store(out + i * n + v * LANES, sum[i][v]);
  }
}

template <int V>
void outer_panel(int64_t depth, int64_t m, const float* left, const float* right, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kRows <= m; i += kRows) outer<kRows, V>(depth, left + i * depth, right, out + i * n, n);
  left += i * depth;
  out += i * n;
  switch (m - i) {
    case 5: outer<5, V>(depth, left, right, out, n); break;
    case 4: outer<4, V>(depth, left, right, out, n); break;
    case 3: outer<3, V>(depth, left, right, out, n); break;
    case 2: outer<2, V>(depth, left, right, out, n); break;
    case 1: outer<1, V>(depth, left, right, out, n); break;
    default: break;
  }
}

// Adds P people's rows, `apart` numbers from each other, to `count` sums.
template <int P>
void add_people(int64_t count, int64_t apart, const float* row, const double* scale, double* total) {
  int64_t j = 0;
  for (; j + 2 * kHalf <= count; j += 2 * kHalf) {
    Wide left = wide(total + j), right = wide(total + j + kHalf);
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) {
      left += scale[p] * widen(row + p * apart + j);
      right += scale[p] * widen(row + p * apart + j + kHalf);
    }
    wide(total + j) = left;
    wide(total + j + kHalf) = right;
  }
  for (; j < count; j++) {
    for (int p = 0; p < P; p++) total[j] += scale[p] * row[p * apart + j];
  }
}

}  // namespace
