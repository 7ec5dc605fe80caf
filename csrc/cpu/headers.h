// What the engines use of the standard library and the compiler, included before a file chooses its instruction set,
// so that no function of theirs is compiled for more than every processor has.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <type_traits>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../attention.h"
#include "../linear.h"
#include "../recurrence.h"
#include "../search.h"
#include "arena.h"
#include "plan.h"
#include "team.h"
