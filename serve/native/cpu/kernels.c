/* All kernels of one instruction set: build.py compiles this file once for each, and LEVEL ends
 * every name (torsor_matrix_exp_f32_avx2). The bodies are written once, for REAL float or double.
 *
 * Matrices are row-major. Inside, a matrix has its rows and columns filled up with zeros to whole
 * vectors. Every matrix of a batch is computed by itself and in one order, so what else is in the
 * batch never shows in its bits. One thread.
 *
 * Everything returns OK or the reason why not; the caller gives the memory of the results.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "constants.h"

typedef ptrdiff_t Size;

enum { OK = 0, NO_MEMORY = 1, NO_SUCH_ROW = 2 };

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define NAME(x) JOIN(torsor_, x, SUFFIX)
#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))

#define VECTOR_BYTES 32
#define ROWS 32 /* matrices that `mix_rows` takes at once */
#define FEW 8   /* rows that don't pay for a copy of what they are multiplied with */

#define REAL float
#define REAL_BYTES 4
#define LANE int32_t
#define SUFFIX JOIN(_f32_, LEVEL, )
#include "product.h"
#include "layout.h"
#include "exponential.h"
#include "osm_scan.h"
#include "rows.h"
#include "sampler.h"
#include "advance_rows.h"
#undef REAL
#undef REAL_BYTES
#undef LANE
#undef SUFFIX

#define REAL double
#define REAL_BYTES 8
#define LANE int64_t
#define SUFFIX JOIN(_f64_, LEVEL, )
#include "product.h"
#include "layout.h"
#include "exponential.h"
#include "osm_scan.h"
#include "rows.h"
