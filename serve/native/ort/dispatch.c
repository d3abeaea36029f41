/* What the loader asks before it chooses the kernels' names. */

#include "constants.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int torsor_has_avx2(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 0;
#endif
}

/* The numbers that train/groups/matrix_exp.py must agree with: c_0 ... c_9, angle, most squarings. */
EXPORT void torsor_constants(double *out) {
    for (int k = 0; k <= DEGREE; k++) out[k] = COEFFICIENTS[k];
    out[DEGREE + 1] = ANGLE;
    out[DEGREE + 2] = MAX_SQUARINGS;
}
