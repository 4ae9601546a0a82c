// Recurrences and softmax for the gradient engine, behind a plain C interface over raw pointers.
//
// Layouts are those of gradients/recurrence.py. All numbers are float32, the last dimension is
// contiguous, and every function runs on the thread that calls it.
//
//   h      [windows][steps + 1][size]      h[:, 0] is the initial state
//   gates  [windows][steps + 1][k * size]  activations (forward), their gradients (backward)
//   cells  [windows][steps + 1][size]      LSTM only
//
// `running[t]` is how many windows, counted from the first, have step t; null means all.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels_lanes.hpp"
#include "kernels_people.hpp"

namespace {

// A matrix cut into panels of kPanel columns, padded with zeros: [panel][depth][kPanel].
class Packed {
 public:
  // Element (k, j) of the matrix is at source[k * row + j * column].
  Packed(const float* source, int64_t depth, int64_t columns, int64_t row, int64_t column)
      : depth_(depth), columns_(columns), data_(panels() * depth * kPanel, 0.0f) {
    for (int64_t j = 0; j < columns; j++) {
      float* to = data_.data() + (j / kPanel) * depth * kPanel + j % kPanel;
      for (int64_t k = 0; k < depth; k++) to[k * kPanel] = source[k * row + j * column];
    }
  }

  int64_t panels() const { return (columns_ + kPanel - 1) / kPanel; }
  int64_t width() const { return panels() * kPanel; }

  // out[rows][width()] = a[rows][depth] · this (+ out if `add`); a's rows are `stride` apart.
  void multiply(const float* a, int64_t stride, int64_t rows, float* out, bool add) const {
    for (int64_t p = 0; p < panels(); p++) {
      const float* panel = data_.data() + p * depth_ * kPanel;
      int64_t i = 0;
      for (; i + kRows <= rows; i += kRows) tile<kRows>(a + i * stride, stride, panel, out + i * width() + p * kPanel, add);
      const float* rest = a + i * stride;
      float* to = out + i * width() + p * kPanel;
      switch (rows - i) {
        case 5: tile<5>(rest, stride, panel, to, add); break;
        case 4: tile<4>(rest, stride, panel, to, add); break;
        case 3: tile<3>(rest, stride, panel, to, add); break;
        case 2: tile<2>(rest, stride, panel, to, add); break;
        case 1: tile<1>(rest, stride, panel, to, add); break;
        default: break;
      }
    }
  }

 private:
  template <int R>
  void tile(const float* a, int64_t stride, const float* panel, float* out, bool add) const {
    Lane sum[R][2];
    for (int r = 0; r < R; r++) {
      sum[r][0] = add ? load(out + r * width()) : Lane{};
      sum[r][1] = add ? load(out + r * width() + LANES) : Lane{};
    }
    for (int64_t k = 0; k < depth_; k++, panel += kPanel) {
      const Lane left = load(panel), right = load(panel + LANES);
#pragma GCC unroll 6
      for (int r = 0; r < R; r++) {
        const float value = a[r * stride + k];
        sum[r][0] += value * left;
        sum[r][1] += value * right;
      }
    }
    for (int r = 0; r < R; r++) {
      store(out + r * width(), sum[r][0]);
      store(out + r * width() + LANES, sum[r][1]);
    }
  }

  int64_t depth_, columns_;
  std::vector<float> data_;
};

struct Shape {
  int64_t windows, steps, size;
  const int64_t* running;

  int64_t at(int64_t t, int64_t first, int64_t count) const {
    if (running == nullptr) return count;
    return std::max<int64_t>(0, std::min(count, running[t] - first));
  }
};

void copy_state(float* state, int64_t size, int64_t stride, int64_t from, int64_t to, int64_t t) {
  for (int64_t i = from; i < to; i++) {
    float* row = state + i * stride + t * size;
    std::memcpy(row + size, row, 4 * size);
  }
}

}  // namespace

extern "C" {

int32_t sequester_kernels_version(void) { return 7; }

// Inputs enter a step at a time, from x [windows][steps + 1][features] and w_ih [k * size][features],
// biases among them. Sizes may be any.

void sequester_gru_forward(int64_t windows, int64_t steps, int64_t size, float* h, float* gates,
                           const float* w_hh, const float* b_hh, const int64_t* running,
                           int64_t features, const float* x, const float* w_ih) {
  const Shape shape{windows, steps, size, running};
  const Packed weights(w_hh, size, 3 * size, 1, size), inputs(w_ih, features, 3 * size, 1, features);
  const int64_t hs = (steps + 1) * size, gs = (steps + 1) * 4 * size, wide = weights.width();
  const int64_t xs = (steps + 1) * features;
  std::vector<float> over(kBlock * wide), into(kBlock * wide);
  for (int64_t first = 0; first < windows; first += kBlock) {
    const int64_t count = std::min(kBlock, windows - first);
    for (int64_t t = 0; t < steps; t++) {
      const int64_t b = shape.at(t, first, count);
      float* before = h + first * hs + t * size;
      weights.multiply(before, hs, b, over.data(), false);
      inputs.multiply(x + first * xs + t * features, xs, b, into.data(), false);
      for (int64_t i = 0; i < b; i++) {
        float* g = gates + (first + i) * gs + t * 4 * size;
        const float* o = over.data() + i * wide;
        const float* in = into.data() + i * wide;
        float* h0 = before + i * hs;
        each(size, [&](int64_t j, auto part) {
          const Lane r = sigmoid(part.load(in + j) + part.load(o + j) + part.load(b_hh + j));
          const Lane z = sigmoid(part.load(in + size + j) + part.load(o + size + j) +
                                 part.load(b_hh + size + j));
          const Lane hn = part.load(o + 2 * size + j) + part.load(b_hh + 2 * size + j);
          const Lane n = tanh_(part.load(in + 2 * size + j) + r * hn);
          part.store(g + j, n);
          part.store(g + size + j, r);
          part.store(g + 2 * size + j, z);
          part.store(g + 3 * size + j, hn);
          part.store(h0 + size + j, n + z * (part.load(h0 + j) - n));
        });
      }
      copy_state(h, size, hs, first + b, first + count, t);
    }
  }
}

// d_out is read at [window * d_window + step * d_step + j]; null means zero. dh holds the gradient
// of the last state and receives that of the first.
void sequester_gru_backward(int64_t windows, int64_t steps, int64_t size, const float* h,
                            float* gates, const float* w_hh, const float* d_out, int64_t d_window,
                            int64_t d_step, float* dh, const int64_t* running) {
  const Shape shape{windows, steps, size, running};
  const Packed weights(w_hh, 3 * size, size, size, 1);
  const int64_t hs = (steps + 1) * size, gs = (steps + 1) * 4 * size, wide = weights.width();
  std::vector<float> d(kBlock * 3 * size), back(kBlock * wide);
  for (int64_t first = 0; first < windows; first += kBlock) {
    const int64_t count = std::min(kBlock, windows - first);
    for (int64_t i = first; i < first + count; i++) std::memset(gates + i * gs + steps * 4 * size, 0, 16 * size);
    for (int64_t t = steps - 1; t >= 0; t--) {
      const int64_t b = shape.at(t, first, count);
      for (int64_t i = 0; i < b; i++) {
        float* g = gates + (first + i) * gs + t * 4 * size;
        const float* h0 = h + (first + i) * hs + t * size;
        const float* out = d_out ? d_out + (first + i) * d_window + t * d_step : nullptr;
        float* to = d.data() + i * 3 * size;
        float* kept = back.data() + i * wide;
        float* grad = dh + (first + i) * size;
        each(size, [&](int64_t j, auto part) {
          const Lane n = part.load(g + j), r = part.load(g + size + j), z = part.load(g + 2 * size + j);
          const Lane q = out ? part.load(grad + j) + part.load(out + j) : part.load(grad + j);
          const Lane dn = q * (1.0f - z) * (1.0f - n * n);
          const Lane dz = q * (part.load(h0 + j) - n) * z * (1.0f - z);
          const Lane dr = dn * part.load(g + 3 * size + j) * r * (1.0f - r);
          const Lane dhn = dn * r;
          part.store(g + j, dn);
          part.store(g + size + j, dr);
          part.store(g + 2 * size + j, dz);
          part.store(g + 3 * size + j, dhn);
          part.store(to + j, dr);
          part.store(to + size + j, dz);
          part.store(to + 2 * size + j, dhn);
          part.store(kept + j, q * z);
        });
      }
      weights.multiply(d.data(), 3 * size, b, back.data(), true);
      for (int64_t i = 0; i < b; i++) std::memcpy(dh + (first + i) * size, back.data() + i * wide, 4 * size);
      for (int64_t i = b; i < count; i++) std::memset(gates + (first + i) * gs + t * 4 * size, 0, 16 * size);
    }
  }
}

// Gates are ordered (i, f, g, o).
void sequester_lstm_forward(int64_t windows, int64_t steps, int64_t size, float* h, float* cells,
                            float* gates, const float* w_hh, const int64_t* running,
                            int64_t features, const float* x, const float* w_ih) {
  const Shape shape{windows, steps, size, running};
  const Packed weights(w_hh, size, 4 * size, 1, size), inputs(w_ih, features, 4 * size, 1, features);
  const int64_t hs = (steps + 1) * size, gs = (steps + 1) * 4 * size, wide = weights.width();
  const int64_t xs = (steps + 1) * features;
  std::vector<float> over(kBlock * wide);
  for (int64_t first = 0; first < windows; first += kBlock) {
    const int64_t count = std::min(kBlock, windows - first);
    for (int64_t t = 0; t < steps; t++) {
      const int64_t b = shape.at(t, first, count);
      float* before = h + first * hs + t * size;
      inputs.multiply(x + first * xs + t * features, xs, b, over.data(), false);
      weights.multiply(before, hs, b, over.data(), true);
      for (int64_t i = 0; i < b; i++) {
        float* a = gates + (first + i) * gs + t * 4 * size;
        const float* o = over.data() + i * wide;
        float* h1 = before + i * hs + size;
        float* c0 = cells + (first + i) * hs + t * size;
        each(size, [&](int64_t j, auto part) {
          const Lane write = sigmoid(part.load(o + j));
          const Lane keep = sigmoid(part.load(o + size + j));
          const Lane g = tanh_(part.load(o + 2 * size + j));
          const Lane out = sigmoid(part.load(o + 3 * size + j));
          const Lane c = keep * part.load(c0 + j) + write * g;
          part.store(a + j, write);
          part.store(a + size + j, keep);
          part.store(a + 2 * size + j, g);
          part.store(a + 3 * size + j, out);
          part.store(c0 + size + j, c);
          part.store(h1 + j, out * tanh_(c));
        });
      }
      copy_state(h, size, hs, first + b, first + count, t);
      copy_state(cells, size, hs, first + b, first + count, t);
    }
  }
}

void sequester_lstm_backward(int64_t windows, int64_t steps, int64_t size, const float* cells,
                             float* gates, const float* w_hh, const float* d_out, int64_t d_window,
                             int64_t d_step, float* dh, float* dc, const int64_t* running) {
  const Shape shape{windows, steps, size, running};
  const Packed weights(w_hh, 4 * size, size, size, 1);
  const int64_t hs = (steps + 1) * size, gs = (steps + 1) * 4 * size, wide = weights.width();
  std::vector<float> back(kBlock * wide);
  for (int64_t first = 0; first < windows; first += kBlock) {
    const int64_t count = std::min(kBlock, windows - first);
    for (int64_t i = first; i < first + count; i++) std::memset(gates + i * gs + steps * 4 * size, 0, 16 * size);
    for (int64_t t = steps - 1; t >= 0; t--) {
      const int64_t b = shape.at(t, first, count);
      for (int64_t i = 0; i < b; i++) {
        float* a = gates + (first + i) * gs + t * 4 * size;
        const float* c0 = cells + (first + i) * hs + t * size;
        const float* out = d_out ? d_out + (first + i) * d_window + t * d_step : nullptr;
        float* grad = dh + (first + i) * size;
        float* cell = dc + (first + i) * size;
        each(size, [&](int64_t j, auto part) {
          const Lane in = part.load(a + j), keep = part.load(a + size + j);
          const Lane g = part.load(a + 2 * size + j), o = part.load(a + 3 * size + j);
          const Lane q = out ? part.load(grad + j) + part.load(out + j) : part.load(grad + j);
          const Lane c = tanh_(part.load(c0 + size + j));
          const Lane dcell = part.load(cell + j) + q * o * (1.0f - c * c);
          part.store(a + j, dcell * g * in * (1.0f - in));
          part.store(a + size + j, dcell * part.load(c0 + j) * keep * (1.0f - keep));
          part.store(a + 2 * size + j, dcell * in * (1.0f - g * g));
          part.store(a + 3 * size + j, q * c * o * (1.0f - o));
          part.store(cell + j, dcell * keep);
        });
      }
      weights.multiply(gates + first * gs + t * 4 * size, gs, b, back.data(), false);
      for (int64_t i = 0; i < b; i++) std::memcpy(dh + (first + i) * size, back.data() + i * wide, 4 * size);
      for (int64_t i = b; i < count; i++) std::memset(gates + (first + i) * gs + t * 4 * size, 0, 16 * size);
    }
  }
}

// Each row of logits, plus the bias unless that is null, becomes exp(logit − max), with the row's sum
// subtracted at the target.
void sequester_softmax(int64_t rows, int64_t classes, float* e, const float* bias,
                       const int64_t* target, float* total, float* losses) {
  const std::vector<float> none(bias == nullptr ? classes : 0);
  const float* b = bias == nullptr ? none.data() : bias;
  for (int64_t i = 0; i < rows; i++, e += classes) {
    Lane most = fill(e[0] + b[0]);
    int64_t j = 0;
    for (; j + LANES <= classes; j += LANES) {
      const Lane x = load(e + j) + load(b + j);
      most = pick(x > most, x, most);
    }
    float top = most[0];
    for (int k = 1; k < LANES; k++) top = std::max(top, most[k]);
    for (int64_t k = j; k < classes; k++) top = std::max(top, e[k] + b[k]);
    const float chosen = e[target[i]] + b[target[i]] - top;
    Lane sum = Lane{}, other = Lane{};
    j = 0;
    for (; j + 2 * LANES <= classes; j += 2 * LANES) {
      const Lane x = vexp(load(e + j) + load(b + j) - top);
      const Lane y = vexp(load(e + j + LANES) + load(b + j + LANES) - top);
      store(e + j, x);
      store(e + j + LANES, y);
      sum += x;
      other += y;
    }
    float rest[2 * LANES];
    const int64_t left = classes - j;
    if (left > 0) {
      for (int64_t k = 0; k < 2 * LANES; k++) rest[k] = k < left ? e[j + k] + b[j + k] - top : -200.0f;
      store(rest, vexp(load(rest)));
      store(rest + LANES, vexp(load(rest + LANES)));
      for (int64_t k = 0; k < left; k++) e[j + k] = rest[k];
      for (int64_t k = 0; k < left; k++) sum[0] += rest[k];
    }
    sum += other;
    float s = 0.0f;
    for (int k = 0; k < LANES; k++) s += sum[k];
    total[i] = s;
    losses[i] = __builtin_logf(s) - chosen;
    e[target[i]] -= s;
  }
}

// squares[p] = Σ flat[p][j]² in float64; people's rows lie `apart` numbers from each other.
void sequester_square_norms(int64_t people, int64_t columns, int64_t apart, const float* flat,
                            double* squares) {
  for (int64_t p = 0; p < people; p++, flat += apart) {
    Wide sum[8] = {};
    int64_t j = 0;
    for (; j + 8 * kHalf <= columns; j += 8 * kHalf) {
#pragma GCC unroll 8
      for (int k = 0; k < 8; k++) {
        const Wide x = widen(flat + j + k * kHalf);
        sum[k] += x * x;
      }
    }
    double square = 0.0;
    for (; j < columns; j++) square += static_cast<double>(flat[j]) * flat[j];
    for (int k = 0; k < 8; k++) {
      for (int i = 0; i < kHalf; i++) square += sum[k][i];
    }
    squares[p] = square;
  }
}

// total[j] += Σ_p scale[p] · flat[p][j] in float64; a stretch of `total` stays in the cache while
// people's rows stream past it, four at a time.
void sequester_add_weighted(int64_t people, int64_t columns, int64_t apart, const float* flat,
                            const double* scale, double* total) {
  constexpr int64_t kStretch = 2048;
  for (int64_t first = 0; first < columns; first += kStretch, flat += kStretch, total += kStretch) {
    const int64_t count = std::min(kStretch, columns - first);
    int64_t p = 0;
    for (; p + 4 <= people; p += 4) add_people<4>(count, apart, flat + p * apart, scale + p, total);
    for (; p < people; p++) add_people<1>(count, apart, flat + p * apart, scale + p, total);
  }
}

}  // extern "C"
