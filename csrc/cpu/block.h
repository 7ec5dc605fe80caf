// A block of memory that is kept for the next call.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

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

// Memory of at least `bytes`, aligned to a cache line. Fresh pages cost 0.6 us each (64 MiB in 40 ms on a virtual
// machine), and malloc gives large ones back to the system: what a layer takes is kept for the next.
class Block {
 public:
  static constexpr int64_t large = 256 << 10, most_kept = 256 << 20;

  explicit Block(int64_t bytes) {
    if (bytes < large) {
      if (spare.bytes >= bytes) {
        std::swap(memory_, spare);
        return;
      }
    } else if (take_kept(bytes)) {
      return;
    }
    memory_.data = static_cast<char*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64));
    if (!memory_.data) throw std::bad_alloc();
    memory_.bytes = bytes;
    prefer_large_pages(memory_.data, bytes);
  }
  ~Block() {
    if (memory_.bytes >= large) {
      keep();
    } else if (memory_.bytes > spare.bytes) {
      std::swap(memory_, spare);
    }
  }
  Block(const Block&) = delete;
  char* data() const { return memory_.data; }

 private:
  struct Memory {
    char* data;
    int64_t bytes;
    Memory() : data(nullptr), bytes(0) {}
    Memory(Memory&& other) noexcept : Memory() { swap(other); }
    Memory& operator=(Memory&& other) noexcept {
      swap(other);
      return *this;
    }
    void swap(Memory& other) {
      std::swap(data, other.data);
      std::swap(bytes, other.bytes);
    }
    ~Memory() { std::free(data); }
  };
  // The large ones of all threads, the latest last. A child of fork may find the mutex locked for ever: it goes without.
  struct Kept {
    std::mutex mutex;
    std::vector<Memory> blocks;
    int64_t bytes = 0;
  };

  static thread_local inline Memory spare;  // the last small one of this thread
  // never destroyed: tensors may outlive it
  static Kept& all_kept() {
    static Kept* const all = new Kept;
    return *all;
  }

  // The smallest that is enough, and not over twice that.
  bool take_kept(int64_t bytes) {
    Kept& kept = all_kept();
    const std::unique_lock lock(kept.mutex, std::try_to_lock);
    if (!lock) return false;
    auto best = kept.blocks.end();
    for (auto block = kept.blocks.begin(); block != kept.blocks.end(); ++block)
      if (block->bytes >= bytes && block->bytes <= 2 * bytes)
        if (best == kept.blocks.end() || block->bytes < best->bytes) best = block;
    if (best == kept.blocks.end()) return false;
    memory_ = std::move(*best);
    kept.blocks.erase(best);
    kept.bytes -= memory_.bytes;
    return true;
  }

  void keep() {
    Kept& kept = all_kept();
    const std::unique_lock lock(kept.mutex, std::try_to_lock);
    if (!lock || memory_.bytes > most_kept) return;
    kept.bytes += memory_.bytes;
    kept.blocks.push_back(std::move(memory_));
    while (kept.bytes > most_kept) {
      kept.bytes -= kept.blocks.front().bytes;
      kept.blocks.erase(kept.blocks.begin());
    }
  }

  Memory memory_;
};

}  // namespace seq2seq_fast
