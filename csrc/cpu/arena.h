// One block of memory for a whole call: measured first, then dealt out.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

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

class Block {
 public:
  explicit Block(int64_t bytes) : data_(static_cast<char*>(std::aligned_alloc(64, bytes + 64))) {
    if (!data_) throw std::bad_alloc();
  }
  ~Block() { std::free(data_); }
  Block(const Block&) = delete;
  char* data() const { return data_; }

 private:
  char* data_;
};

}  // namespace seq2seq_fast
