// LSTM: i, f, o = sigmoid, g = tanh of x + h W^T + b; c' = f c + i g; h' = o tanh(c'). torch.nn.LSTM's page; i f g o.
#pragma once

#include "activations.h"

namespace {

template <class V>
struct Lstm {
  static constexpr int gates = 4;
  static constexpr int saved = 4;  // i f g o
  static constexpr bool has_c = true;
  static constexpr bool splits_bias = false;
  static constexpr int d_slots = 4;
  static constexpr int d_input_gate[] = {0, 1, 2, 3};
  static constexpr int d_state_slot = 0;

  SF_HOST_DEVICE static void forward(const V* x, const V* hh, V& h, V& c, V* save) {
    const V i = sigmoid(x[0] + hh[0]);
    const V f = sigmoid(x[1] + hh[1]);
    const V g = tanh(x[2] + hh[2]);
    const V o = sigmoid(x[3] + hh[3]);
    c = f * c + i * g;
    h = o * tanh(c);
    save[0] = i;
    save[1] = f;
    save[2] = g;
    save[3] = o;
  }

  // h, c: the states before the step; c_new: after it. d_h leaves as 0: all of it goes through the gates.
  SF_HOST_DEVICE static void backward(const V* save, V, V c, V, V c_new, V& d_h, V& d_c, V* d) {
    const V i = save[0], f = save[1], g = save[2], o = save[3];
    const V tanh_c = tanh(c_new);
    const V d_cell = d_c + d_h * o * (1 - tanh_c * tanh_c);
    d[0] = d_cell * g * i * (1 - i);
    d[1] = d_cell * c * f * (1 - f);
    d[2] = d_cell * i * (1 - g * g);
    d[3] = d_h * tanh_c * o * (1 - o);
    d_h = V{};
    d_c = d_cell * f;
  }
};

}  // namespace
