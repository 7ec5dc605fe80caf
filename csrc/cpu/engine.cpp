// Chooses the engine for this processor, once.
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <cstring>

#include "../recurrence.h"

namespace seq2seq_fast {

extern const Engine engine_plain;
#if defined(__x86_64__)
extern const Engine engine_avx2, engine_avx512, engine_avx512_bf16, engine_avx512_amx;
#endif

namespace {

// The matrix unit's registers are the kernel's to grant, once for the process.
bool may_use_amx() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned bfloat16 = 1 << 22, tiles = 1 << 24;
  constexpr int request_permission = 0x1023, tile_data = 18;
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bfloat16) && (d & tiles) &&
         syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

const Engine& choose() {
  const Engine* best[5] = {&engine_plain};
  int count = 1;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) best[count++] = &engine_avx2;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    best[count++] = &engine_avx512;
    if (__builtin_cpu_supports("avx512bf16")) best[count++] = &engine_avx512_bf16;
    if (best[count - 1] == &engine_avx512_bf16 && may_use_amx()) best[count++] = &engine_avx512_amx;
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
