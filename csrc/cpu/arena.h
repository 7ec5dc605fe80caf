// The memory of a whole call: measured first, then dealt out of one block.
#pragma once

#include <cstdint>

#include "block.h"

namespace seq2seq_fast {

// Deals aligned arrays out of a block. On a null block it only counts.
class Arena {
 public:
  explicit Arena(char* block) : block_(block) {}
  template <class T>
  T* take(int64_t count) {
    T* array = block_ ? reinterpret_cast<T*>(block_ + used_) : nullptr;
    used_ += (count * int64_t(sizeof(T)) + 63) / 64 * 64;
    return array;
  }
  int64_t used() const { return used_; }

 private:
  char* block_;
  int64_t used_ = 0;
};

}  // namespace seq2seq_fast
