// RNN: h' = tanh(x + h W^T + b), or relu. torch.nn.RNN's page.
#pragma once

#include "activations.h"

namespace {

template <class V>
struct RnnTanh {
  static constexpr int gates = 1;
  static constexpr int saved = 0;
  static constexpr bool has_c = false;
  static constexpr bool splits_bias = false;
  static constexpr int d_slots = 1;
  static constexpr int d_input_gate[] = {0};
  static constexpr int d_state_slot = 0;

  SF_HOST_DEVICE static void forward(const V* x, const V* hh, V& h, V&, V*) { h = tanh(x[0] + hh[0]); }

  // h_new: the state after the step.
  SF_HOST_DEVICE static void backward(const V*, V, V, V h_new, V, V& d_h, V&, V* d) {
    d[0] = d_h * (1 - h_new * h_new);
    d_h = V{};
  }
};

template <class V>
struct RnnRelu : RnnTanh<V> {
  SF_HOST_DEVICE static void forward(const V* x, const V* hh, V& h, V&, V*) {
    const V y = x[0] + hh[0];
    h = y < 0 ? V{} : y;
  }

  SF_HOST_DEVICE static void backward(const V*, V, V, V h_new, V, V& d_h, V&, V* d) {
    d[0] = h_new > 0 ? d_h : V{};
    d_h = V{};
  }
};

}  // namespace
