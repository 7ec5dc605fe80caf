// The kernels of one dtype.
#pragma once

#include "launch.h"
#include "persistent.h"

namespace seq2seq_fast {

template <class E, template <class> class CellOf>
Kernel kernel_for(LoopForm form, bool backward) {
  if (form == LoopForm::cluster)
    return backward ? persistent_kernel<E, Backward<E, CellOf>, ClusterExchange>
                    : persistent_kernel<E, Forward<E, CellOf>, ClusterExchange>;
  return backward ? persistent_kernel<E, Backward<E, CellOf>, GridExchange>
                  : persistent_kernel<E, Forward<E, CellOf>, GridExchange>;
}

template <class E>
Kernel kernel_for(Cell cell, LoopForm form, bool backward) {
  switch (cell) {
    case Cell::gru: return kernel_for<E, Gru>(form, backward);
    case Cell::lstm: return kernel_for<E, Lstm>(form, backward);
    case Cell::rnn_tanh: return kernel_for<E, RnnTanh>(form, backward);
    case Cell::rnn_relu: return kernel_for<E, RnnRelu>(form, backward);
  }
  return nullptr;
}

}  // namespace seq2seq_fast
