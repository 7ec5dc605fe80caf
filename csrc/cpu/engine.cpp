// Chooses the engine for this processor, once.
#include <cstdlib>
#include <cstring>

#include "../recurrence.h"

namespace seq2seq_fast {

extern const Engine engine_plain;
#if defined(__x86_64__)
extern const Engine engine_avx2, engine_avx512, engine_avx512_bf16;
#endif

namespace {

const Engine& choose() {
  const Engine* best[4] = {&engine_plain};
  int count = 1;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) best[count++] = &engine_avx2;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    best[count++] = &engine_avx512;
    if (__builtin_cpu_supports("avx512bf16")) best[count++] = &engine_avx512_bf16;
  }
#endif
  const char* asked = std::getenv("SEQ2SEQ_FAST_ISA");
  for (int k = 0; asked && k < count; ++k)
    if (!std::strcmp(best[k]->name, asked)) return *best[k];
  return *best[count - 1];
}

}  // namespace

const Engine& engine() {
  static const Engine& chosen = choose();
  return chosen;
}

}  // namespace seq2seq_fast
