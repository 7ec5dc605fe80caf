#include "headers.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#define SF_ENGINE engine_avx512_amx
#define SF_NAME "avx512_amx"
#define SF_VECTOR_BYTES 64
#define SF_REGISTERS 32
#define SF_BFLOAT16
#define SF_AMX
#include "engine.h"
#endif
