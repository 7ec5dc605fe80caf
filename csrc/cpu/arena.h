// One block of memory for a whole call: measured first, then dealt out.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace seq2seq_fast {

// Asks for 2 MiB pages under memory not yet touched: it then costs a fifth to touch.
inline void prefer_large_pages(void* data, int64_t bytes) {
#if defined(__linux__)
  constexpr int64_t page = 2 << 20;
  if (bytes < 2 * page) return;
  const int64_t begin = (reinterpret_cast<int64_t>(data) + page - 1) / page * page;
  const int64_t end = (reinterpret_cast<int64_t>(data) + bytes) / page * page;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

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

// The block of one call. A thread keeps its last one, up to 64 MiB, for the next call: fresh pages cost 0.6 us each
// (64 MiB in 40 ms on a virtual machine), more than a layer takes.
class Block {
 public:
  explicit Block(int64_t bytes) {
    if (spare().bytes >= bytes) {
      memory_.swap(spare());
    } else {
      memory_.allocate(bytes);
    }
  }
  ~Block() {
    if (memory_.bytes <= most_kept && memory_.bytes > spare().bytes) memory_.swap(spare());
  }
  Block(const Block&) = delete;
  char* data() const { return memory_.data; }

 private:
  static constexpr int64_t most_kept = 64 << 20;

  struct Memory {
    char* data = nullptr;
    int64_t bytes = 0;
    void allocate(int64_t n) {
      data = static_cast<char*>(std::aligned_alloc(64, (n + 127) / 64 * 64));
      if (!data) throw std::bad_alloc();
      bytes = n;
      prefer_large_pages(data, bytes);
    }
    void swap(Memory& other) {
      std::swap(data, other.data);
      std::swap(bytes, other.bytes);
    }
    ~Memory() { std::free(data); }
  };

  static Memory& spare() {
    static thread_local Memory kept;
    return kept;
  }

  Memory memory_;
};

}  // namespace seq2seq_fast
