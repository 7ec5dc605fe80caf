#include "headers.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#define SF_ENGINE engine_avx512
#define SF_NAME "avx512"
#define SF_VECTOR_BYTES 64
#define SF_REGISTERS 32
#include "engine.h"
#endif
