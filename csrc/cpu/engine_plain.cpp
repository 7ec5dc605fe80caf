#include "headers.h"

#define SF_ENGINE engine_plain
#define SF_NAME "plain"
#define SF_VECTOR_BYTES 16
#define SF_REGISTERS 16
#include "engine.h"
