// The threads that run one layer: one team for the whole sequence, and a barrier that spins between its steps.
#pragma once

#include <omp.h>
#include <sched.h>

#include <atomic>
#include <cstdint>

namespace seq2seq_fast {

// Counts arrivals for ever; a thread waits until all of its round are in. A round costs about 0.2 us on 2 cores of
// Zen 4, where a fork and join costs 2.
class Barrier {
 public:
  void wait(int size) {
    if (size == 1) return;
    const int64_t mine = arrived_.fetch_add(1, std::memory_order_acq_rel) + 1;
    const int64_t all = (mine + size - 1) / size * size;
    for (int spins = 0; arrived_.load(std::memory_order_acquire) < all; ++spins) {
      if (spins < 4096) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      } else {
        sched_yield();  // somebody else has our core
      }
    }
  }

 private:
  alignas(64) std::atomic<int64_t> arrived_{0};
  char rest_of_line_[56];
};

// [from, to) of rows, columns or panels.
struct Range {
  int64_t from, to;
};

struct Team {
  int rank, size;
  Barrier* barrier;
  void wait() const { barrier->wait(size); }
  // The share of `n` things that is this thread's: [begin(n), end(n)).
  int64_t begin(int64_t n) const { return n * rank / size; }
  int64_t end(int64_t n) const { return n * (rank + 1) / size; }
  Range share(int64_t n) const { return {begin(n), end(n)}; }
};

// How many threads a parallel region here is sure to get.
inline int usable_threads(int asked) {
  return omp_in_parallel() || omp_get_dynamic() ? 1 : asked < omp_get_thread_limit() ? asked : omp_get_thread_limit();
}

// Denormals cost ten times a normal number; flush them while a loop runs.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(saved_ | 0x8040); }
  ~FlushDenormals() { __builtin_ia32_ldmxcsr(saved_); }

 private:
  unsigned saved_;
#endif
};

}  // namespace seq2seq_fast
