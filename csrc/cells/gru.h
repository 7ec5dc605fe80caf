// GRU: r, z = sigmoid(x + h W^T + b); n = tanh(x_n + r h_n); h' = n + z (h - n). torch.nn.GRU's page; order r z n.
#pragma once

#include "activations.h"

namespace {

template <class V>
struct Gru {
  static constexpr int gates = 3;
  static constexpr int saved = 4;       // r z n h_n
  static constexpr bool has_c = false;
  static constexpr bool splits_bias = true;  // r multiplies h_n with its bias, so bias_hh of n stays apart
  static constexpr int d_slots = 4;     // [n_x r z n_h]: the input's gates are the first three, the state's the last
  static constexpr int d_input_gate[] = {2, 0, 1};  // which gate of weight_ih each of the first three is
  static constexpr int d_state_slot = 1;

  SF_HOST_DEVICE static void forward(const V* x, const V* hh, V& h, V&, V* save) {
    const V r = sigmoid(x[0] + hh[0]);
    const V z = sigmoid(x[1] + hh[1]);
    const V n = tanh(x[2] + r * hh[2]);
    h = n + z * (h - n);
    save[0] = r;
    save[1] = z;
    save[2] = n;
    save[3] = hh[2];
  }

  // d_h comes in as the gradient of h' and leaves as the part of d_h that goes straight to h.
  SF_HOST_DEVICE static void backward(const V* save, V h, V, V, V, V& d_h, V&, V* d) {
    const V r = save[0], z = save[1], n = save[2], h_n = save[3];
    const V d_n = d_h * (1 - z) * (1 - n * n);
    d[0] = d_n;
    d[1] = d_n * h_n * r * (1 - r);
    d[2] = d_h * (h - n) * z * (1 - z);
    d[3] = d_n * r;
    d_h = d_h * z;
  }
};

}  // namespace
