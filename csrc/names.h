// The operators' words, and what they stand for.
#pragma once

#include <c10/util/Exception.h>

#include <string_view>

#include "attention.h"
#include "recurrence.h"

namespace seq2seq_fast {

inline Cell cell_named(std::string_view name) {
  if (name == "gru") return Cell::gru;
  if (name == "lstm") return Cell::lstm;
  if (name == "rnn_tanh") return Cell::rnn_tanh;
  TORCH_CHECK_VALUE(name == "rnn_relu", "cell: expected gru, lstm, rnn_tanh or rnn_relu, got ", name);
  return Cell::rnn_relu;
}

inline EmptyRows empty_rows_named(std::string_view name) {
  if (name == "zeros") return EmptyRows::zeros;
  if (name == "nan") return EmptyRows::nan;
  TORCH_CHECK_VALUE(name == "uniform", "empty_rows: expected zeros, nan or uniform, got ", name);
  return EmptyRows::uniform;
}

}  // namespace seq2seq_fast
