// The product of a few rows with a weight, and its gradients.
#pragma once

#include "pack.h"
#include "tile.h"

namespace {

using seq2seq_fast::Block;

template <class A>
struct SmallLinear {
  static constexpr int L = lanes<A>;
  static constexpr int64_t width = max_tile_vectors * L;

  const seq2seq_fast::Linear& linear;

  const A* x(int64_t m) const { return (const A*)linear.x + m * linear.x_row; }
  A* y(int64_t m) const { return (A*)linear.y + m * linear.y_row; }
  const A* weight(int64_t n) const { return (const A*)linear.weight + n * linear.in; }

  // y = x weight^T + bias
  void forward() const {
    const Panel panel(linear.out, linear.in);
    for (int64_t n = 0; n < linear.out; n += L)
      pack_transposed<A>(
          panel.data + n, panel.whole, [&](int k) { return weight(n + k); }, std::min<int64_t>(L, linear.out - n),
          linear.in);
    panel.multiply(
        linear.rows, [&](int64_t m) { return x(m); }, 1, (const A*)linear.bias, (A*)linear.y, linear.y_row, false);
  }

  // d_x = d_y weight, d_weight = d_y^T x, d_bias = sum of d_y's rows
  void backward() const {
    if (linear.d_x) {
      const Panel panel(linear.in, linear.out);
      pack_rows<A>(panel.data, panel.whole, linear.in, linear.out, [&](int64_t n) { return weight(n); });
      panel.multiply(
          linear.rows, [&](int64_t m) { return y(m); }, 1, nullptr, (A*)linear.d_x, linear.d_x_row, linear.add_d_x);
    }
    if (linear.d_weight) {
      const Panel panel(linear.in, linear.rows);
      pack_rows<A>(panel.data, panel.whole, linear.in, linear.rows, [&](int64_t m) { return x(m); });
      panel.multiply(
          linear.out, [&](int64_t n) { return y(0) + n; }, linear.y_row, nullptr, (A*)linear.d_weight, linear.in,
          linear.add);
    }
    if (linear.d_bias) add_rows();
  }

 private:
  // K rows of `columns` elements, in whole vectors.
  struct Panel {
    int64_t columns, K;
    int64_t whole = groups(columns, L) * L;
    Block block{K * whole * int64_t(sizeof(A))};
    A* data = (A*)block.data();

    Panel(int64_t columns, int64_t K) : columns(columns), K(K) {}

    // to[m] (+)= sum_k row(m)[k * stride] data[k] + bias
    template <class Row>
    void multiply(int64_t rows, Row row, int64_t stride, const A* bias, A* to, int64_t ld, bool add) const {
      alignas(64) A sums[max_rows * width], init[width];
      for (int64_t v = 0; v < whole / L;) {
        const int vectors = next_vectors(whole / L - v);
        for (int n = 0; bias && n < vectors; ++n)
          store<A>(init + n * L, load_some<A>(bias + (v + n) * L, columns - (v + n) * L));
        for (int64_t m = 0; m < rows;) {
          const int here = next_part(rows - m, max_rows);
          const A* of[max_rows];
          for (int r = 0; r < here; ++r) of[r] = row(m + r);
          ::multiply<A>(here, vectors, K, of, stride, false, data + v * L, whole, sums, width, bias ? init : nullptr,
                        false);
          for (int r = 0; r < here; ++r)
            for (int n = 0; n < vectors; ++n) {
              A* out = to + (m + r) * ld + (v + n) * L;
              const int64_t there = columns - (v + n) * L;
              const Vec<A> sum = load<A>(sums + r * width + n * L);
              store_some<A>(out, add ? sum + load_some<A>(out, there) : sum, there);
            }
          m += here;
        }
        v += vectors;
      }
    }
  };

  void add_rows() const {
    constexpr int64_t block = 32;  // as in tile.h
    for (int64_t n = 0; n < linear.out; n += L) {
      const int64_t there = linear.out - n;
      A* to = (A*)linear.d_bias + n;
      Vec<A> sum{};
      for (int64_t from = 0; from < linear.rows; from += block) {
        Vec<A> part{};
        for (int64_t m = from; m < std::min(from + block, linear.rows); ++m) part += load_some<A>(y(m) + n, there);
        sum += part;
      }
      store_some<A>(to, linear.add ? sum + load_some<A>(to, there) : sum, there);
    }
  }
};

void linear_forward(const seq2seq_fast::Linear& linear) {
  linear.dtype == Dtype::float64 ? SmallLinear<double>{linear}.forward() : SmallLinear<float>{linear}.forward();
}

void linear_backward(const seq2seq_fast::Linear& linear) {
  linear.dtype == Dtype::float64 ? SmallLinear<double>{linear}.backward() : SmallLinear<float>{linear}.backward();
}

}  // namespace
