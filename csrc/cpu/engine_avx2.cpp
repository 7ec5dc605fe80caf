#include "headers.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,fma")
#define SF_ENGINE engine_avx2
#define SF_NAME "avx2"
#define SF_VECTOR_BYTES 32
#define SF_REGISTERS 16
#include "engine.h"
#endif
