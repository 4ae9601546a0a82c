// The weighted sum of people's gradients.

#pragma once

#include <cstdint>

#include "kernels_lanes.hpp"

namespace {

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
