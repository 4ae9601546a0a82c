// Local training of a whole cohort: one GRU with a linear head per client, plain SGD inside.
//
// Why a kernel of its own: a client's model is small, so in a framework the time goes into calls
// and into moving activations through memory. Here each client's weights stay in the first or
// second cache level while all of its steps run, and what comes out is the client's delta.
//
// Exact: the same sums as torch's nn.GRU with autograd, in float32, up to rounding. Clients do
// not see each other, so a result depends neither on the cohort nor on the number of threads.
// Plain C interface (see federated/engine/kernel.py for the caller); no torch headers.
//
// Layout. H is the hidden width rounded up to whole vectors; padding is zero and stays zero.
// A row of `gates` holds four blocks of H for one (step, window):
//     forward:  r, z, hn, n      with hn = W_hn h + b_hn  (the part of n that r multiplies)
//     backward: dr, dz, dhn, dn  (before their non-linearity), written over the same place
// Source of the recurrence: Cho et al. 2014, eqs. 5-8, in the form of torch.nn.GRU.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "cohort_matrix.hpp"

extern "C" {

// What every client shares; mirrored field by field in federated/engine/kernel.py.
struct CohortShape {
  int32_t steps, features, hidden, outputs;  // of a window, and of the network
  int32_t logistic;                          // 1: one logit and targets 0/1; 0: softmax
  int32_t pool;                              // head reads: 0 last true step, 1 mean, 2 each step
  int32_t batch;
  int32_t threads;
  float learning_rate, proximal, momentum;
};

struct CohortData {
  const float* x;          // (windows, steps, features)
  const int32_t* lengths;  // (windows,) true steps
  const float* target;     // (windows,), or (windows, steps) for pool 2: class or 0/1;
                           // negative or NaN: no label
};

struct CohortWork {
  int32_t clients;
  const int64_t* order;    // window of each visit, clients one after another
  const int64_t* visits;   // (clients + 1,) where each client's visits begin
  const int64_t* passes;   // (clients,) visits of one pass over the client's windows
  const float* start;      // (clients or 1, parameters)
  int64_t start_stride;    // 0: all clients start from the same model
  const float* anchor;     // (parameters,) of the proximal term
  const float* correction; // (clients, parameters) added to each gradient, or null
  float* delta;            // (clients, parameters) result
};

}  // extern "C"

namespace {

int rounded(int n) { return (n + W - 1) / W * W; }

// A network in the kernel's layout. `input` has features + 1 rows of 4H; its last row is the bias
// that the forward pass uses, rebuilt from `bias_in` and `bias_hidden`, which SGD moves apart.
struct Network {
  int D, H, K, h;
  std::vector<float> input, recurrent, bias_in, bias_hidden, head, head_bias;

  Network(const CohortShape& s)
      : D(s.features), H(rounded(s.hidden)), K(s.outputs), h(s.hidden), input((D + 1) * 4 * H),
        recurrent(H * 3 * H), bias_in(3 * H), bias_hidden(3 * H), head(K * H), head_bias(K) {}

  // Visits each parameter in torch's order: weight_ih, weight_hh, bias_ih, bias_hh, head.
  template <class F> void each(F visit) {
    for (int g = 0; g < 3; g++)
      for (int j = 0; j < h; j++)
        for (int d = 0; d < D; d++) visit(input[d * 4 * H + (g == 2 ? 3 : g) * H + j]);
    for (int g = 0; g < 3; g++)
      for (int j = 0; j < h; j++)
        for (int i = 0; i < h; i++) visit(recurrent[i * 3 * H + g * H + j]);
    for (int g = 0; g < 3; g++)
      for (int j = 0; j < h; j++) visit(bias_in[g * H + j]);
    for (int g = 0; g < 3; g++)
      for (int j = 0; j < h; j++) visit(bias_hidden[g * H + j]);
    for (int k = 0; k < K; k++)
      for (int j = 0; j < h; j++) visit(head[k * H + j]);
    for (int k = 0; k < K; k++) visit(head_bias[k]);
  }
  void read(const float* flat) { each([&](float& w) { w = *flat++; }); }

  void join_biases() {
    float* row = &input[D * 4 * H];
    for (int j = 0; j < 2 * H; j++) row[j] = bias_in[j] + bias_hidden[j];
    for (int j = 0; j < H; j++) row[2 * H + j] = bias_hidden[2 * H + j];
    for (int j = 0; j < H; j++) row[3 * H + j] = bias_in[2 * H + j];
  }
  void clear() {
    for (auto* part : {&input, &recurrent, &bias_in, &bias_hidden, &head, &head_bias})
      std::fill(part->begin(), part->end(), 0.0f);
  }
};

// v = rho v + g + c + mu (w - a), w -= rate * v; the terms that are absent cost nothing.
void descend(std::vector<float>& w, const std::vector<float>& g, const std::vector<float>* c,
             const std::vector<float>* a, std::vector<float>* v, const CohortShape& s) {
  const size_t n = w.size();
  for (size_t i = 0; i < n; i++) {
    float step = g[i];
    if (c) step += (*c)[i];
    if (a) step += s.proximal * (w[i] - (*a)[i]);
    if (v) step = (*v)[i] = s.momentum * (*v)[i] + step;
    w[i] -= s.learning_rate * step;
  }
}

class Client {
 public:
  Client(const CohortShape& shape, const CohortData& data)
      : s(shape), data(data), net(shape), gradient(shape), anchor(shape), correction(shape), velocity(shape),
        H(net.H), D(net.D), G(4 * net.H + 16), rows(shape.steps * shape.batch), inputs(rows * (D + 1)),
        gates(static_cast<size_t>(rows) * G), states((shape.steps + 1) * shape.batch * H),
        ahead(H, 3 * H), back(3 * H, H), pooled(shape.batch * H), pooled_grad(shape.batch * H),
        dh(shape.batch * H), spare(shape.batch * H), step_grad(shape.pool == 2 ? rows * H : 0),
        logits(net.K) {}

  void train(const CohortWork& work, int client, int64_t parameters) {
    const float* start = work.start + client * work.start_stride;
    net.clear();  // padding too: a client that diverged leaves NaN in it
    net.read(start);
    if (s.proximal != 0.0f) anchor.read(work.anchor);
    if (work.correction) correction.read(work.correction + client * parameters);
    if (s.momentum != 0.0f) velocity.clear();
    const int64_t first = work.visits[client], last = work.visits[client + 1];
    const int64_t pass = std::max<int64_t>(1, work.passes[client]);
    for (int64_t begin = first; begin < last; begin += pass)
      for (int64_t at = begin; at < begin + pass; at += s.batch)
        step(work.order + at, static_cast<int>(std::min<int64_t>(s.batch, begin + pass - at)),
             work.correction != nullptr);
    float* out = work.delta + client * parameters;
    net.each([&](float& w) { *out++ = w - *start++; });
  }

 private:
  void step(const int64_t* windows, int B, bool corrected) {
    gather(windows, B);
    net.join_biases();
    ahead.fill([&](int k, int j) { return net.recurrent[k * 3 * H + j]; });
    back.fill([&](int k, int j) { return net.recurrent[j * 3 * H + k]; });
    forward(B);
    gradient.clear();
    head(windows, B);
    backward(B);
    collect(B);
    update(corrected);
  }

  void gather(const int64_t* windows, int B) {
    T = 1;
    for (int b = 0; b < B; b++) {
      length[b] = std::max(1, std::min(data.lengths[windows[b]], s.steps));
      T = std::max(T, length[b]);
    }
    for (int b = 0; b < B; b++) {
      const float* from = data.x + windows[b] * s.steps * D;
      for (int t = 0; t < T; t++) {
        float* to = &inputs[(t * B + b) * (D + 1)];
        std::memcpy(to, from + t * D, sizeof(float) * D);
        to[D] = 1.0f;
      }
    }
  }

  void forward(int B) {
    std::fill(gates.begin(), gates.begin() + static_cast<size_t>(T) * B * G, 0.0f);
    multiply(T * B, 4 * H, D + 1, inputs.data(), D + 1, 1, net.input.data(), 4 * H, NR * W, gates.data(), G);
    std::fill(states.begin(), states.begin() + B * H, 0.0f);
    for (int t = 0; t < T; t++) {
      const float* h = &states[t * B * H];
      float* g = &gates[static_cast<size_t>(t) * B * G];
      ahead.apply(B, h, H, g, G);
      for (int b = 0; b < B; b++) activate(g + b * G, h + b * H, &states[((t + 1) * B + b) * H], t < length[b]);
    }
  }

  void activate(float* g, const float* before, float* after, bool inside) {
    if (!inside) {  // past the window's end the state stands still
      std::memcpy(after, before, sizeof(float) * H);
      return;
    }
    for (int j = 0; j < H; j += W) {
      const Vec r = sigmoid(load(g + j)), z = sigmoid(load(g + H + j));
      const Vec n = hyperbolic_tangent(load(g + 3 * H + j) + r * load(g + 2 * H + j));
      store(g + j, r);
      store(g + H + j, z);
      store(g + 3 * H + j, n);
      store(after + j, n + z * (load(before + j) - n));
    }
  }

  // Losses' gradients: the head's own, and those of what it reads.
  void head(const int64_t* windows, int B) {
    const float even = 1.0f / static_cast<float>(B);
    if (s.pool == 2) {
      std::fill(step_grad.begin(), step_grad.begin() + T * B * H, 0.0f);
      for (int b = 0; b < B; b++) {
        const float* target = data.target + windows[b] * s.steps;
        int known = 0;
        for (int t = 0; t < s.steps; t++) known += target[t] >= 0.0f;
        for (int t = 0; t < T; t++)
          if (target[t] >= 0.0f)
            predict(&states[((t + 1) * B + b) * H], target[t], even / static_cast<float>(known), &step_grad[(t * B + b) * H]);
      }
      return;
    }
    pool(windows, B);
    std::fill(pooled_grad.begin(), pooled_grad.end(), 0.0f);
    for (int b = 0; b < B; b++)
      if (const float target = data.target[windows[b]]; target >= 0.0f)  // else no label, no loss
        predict(&pooled[b * H], target, even, &pooled_grad[b * H]);
  }

  // One prediction from `h`: adds `weight` times the loss's gradient to the head's and to `dh`.
  void predict(const float* h, float target, float weight, float* dh) {
    float largest = -INFINITY, total = 0.0f;
    for (int k = 0; k < net.K; k++) {
      float a = net.head_bias[k];
      for (int j = 0; j < net.h; j++) a += h[j] * net.head[k * H + j];
      logits[k] = a;
      largest = std::max(largest, a);
    }
    if (!s.logistic)
      for (float& a : logits) total += (a = std::exp(a - largest));
    for (int k = 0; k < net.K; k++) {
      const float p = s.logistic ? 1.0f / (1.0f + std::exp(-logits[k])) - target
                                 : logits[k] / total - (static_cast<int>(target) == k);
      const float d = p * weight;
      gradient.head_bias[k] += d;
      for (int j = 0; j < net.h; j++) {
        gradient.head[k * H + j] += d * h[j];
        dh[j] += d * net.head[k * H + j];
      }
    }
  }

  void pool(const int64_t* windows, int B) {
    if (s.pool == 0) {
      std::memcpy(pooled.data(), &states[T * B * H], sizeof(float) * B * H);
      return;
    }
    std::fill(pooled.begin(), pooled.end(), 0.0f);
    for (int b = 0; b < B; b++) {
      share[b] = data.lengths[windows[b]] > 0 ? 1.0f / static_cast<float>(length[b]) : 0.0f;
      for (int t = 1; t <= length[b]; t++)
        for (int j = 0; j < H; j++) pooled[b * H + j] += share[b] * states[(t * B + b) * H + j];
    }
  }

  void backward(int B) {
    if (s.pool == 0) std::copy(pooled_grad.begin(), pooled_grad.end(), dh.begin());
    else std::fill(dh.begin(), dh.end(), 0.0f);
    for (int t = T - 1; t >= 0; t--) {
      float* g = &gates[static_cast<size_t>(t) * B * G];
      for (int b = 0; b < B; b++) {
        const bool inside = t < length[b];
        if (s.pool == 1 && inside)
          for (int j = 0; j < H; j++) dh[b * H + j] += share[b] * pooled_grad[b * H + j];
        if (s.pool == 2)
          for (int j = 0; j < H; j++) dh[b * H + j] += step_grad[(t * B + b) * H + j];
        differentiate(g + b * G, &states[(t * B + b) * H], &dh[b * H], &spare[b * H], inside);
      }
      back.apply(B, g, G, spare.data(), H);
      std::swap(dh, spare);
    }
  }

  void differentiate(float* g, const float* before, const float* d, float* carried, bool inside) {
    if (!inside) {
      std::memset(g, 0, sizeof(float) * 4 * H);
      std::memcpy(carried, d, sizeof(float) * H);
      return;
    }
    for (int j = 0; j < H; j += W) {
      const Vec r = load(g + j), z = load(g + H + j), hn = load(g + 2 * H + j), n = load(g + 3 * H + j);
      const Vec dn = load(d + j) * (1.0f - z) * (1.0f - n * n);
      store(g + j, dn * hn * r * (1.0f - r));
      store(g + H + j, load(d + j) * (load(before + j) - n) * z * (1.0f - z));
      store(g + 2 * H + j, dn * r);
      store(g + 3 * H + j, dn);
      store(carried + j, load(d + j) * z);
    }
  }

  // Weight gradients: one product over all steps and windows for each matrix.
  void collect(int B) {
    multiply_transposed(H, 3 * H, T * B, states.data(), H, gates.data(), G, gradient.recurrent.data(), 3 * H);
    multiply_transposed(D + 1, 4 * H, T * B, inputs.data(), D + 1, gates.data(), G, gradient.input.data(), 4 * H);
    const float* row = &gradient.input[D * 4 * H];
    for (int j = 0; j < 2 * H; j++) gradient.bias_in[j] = gradient.bias_hidden[j] = row[j];
    for (int j = 0; j < H; j++) gradient.bias_hidden[2 * H + j] = row[2 * H + j];
    for (int j = 0; j < H; j++) gradient.bias_in[2 * H + j] = row[3 * H + j];
  }

  void update(bool corrected) {
    const auto move = [&](std::vector<float> Network::* part) {
      descend(net.*part, gradient.*part, corrected ? &(correction.*part) : nullptr,
              s.proximal != 0.0f ? &(anchor.*part) : nullptr,
              s.momentum != 0.0f ? &(velocity.*part) : nullptr, s);
    };
    // The hn block of `input` has no weights of its own: its gradient must not move it.
    for (int d = 0; d < D; d++) std::fill_n(&gradient.input[d * 4 * H + 2 * H], H, 0.0f);
    for (auto part : {&Network::input, &Network::recurrent, &Network::bias_in, &Network::bias_hidden,
                      &Network::head, &Network::head_bias})
      move(part);
  }

  const CohortShape& s;
  const CohortData& data;
  Network net, gradient, anchor, correction, velocity;
  const int H, D, G, rows;  // G: distance of rows of gates, not a power of two (cache sets)
  int T = 0;
  std::vector<float> inputs, gates, states;
  Panels ahead, back;
  std::vector<float> pooled, pooled_grad, dh, spare, step_grad, logits;
  std::vector<int> length = std::vector<int>(s.batch);
  std::vector<float> share = std::vector<float>(s.batch);
};

}  // namespace

extern "C" int32_t sequester_cohort_train(const CohortShape* shape, const CohortData* data,
                                          const CohortWork* work) {
  const int64_t D = shape->features, h = shape->hidden, K = shape->outputs;
  const int64_t parameters = 3 * h * D + 3 * h * h + 6 * h + K * h + K;
  std::atomic<int32_t> next{0};
  std::atomic<int32_t> failed{0};
  const auto run = [&] {
    try {
      Client client(*shape, *data);
      for (int32_t c; (c = next++) < work->clients;) client.train(*work, c, parameters);
    } catch (...) {  // out of memory must not cross the C interface
      failed = 1;
    }
  };
  std::vector<std::thread> helpers;
  try {
    for (int i = 1; i < shape->threads; i++) helpers.emplace_back(run);
  } catch (...) {  // fewer threads, same result
  }
  run();
  for (auto& helper : helpers) helper.join();
  return failed;
}
