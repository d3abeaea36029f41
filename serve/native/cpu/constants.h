/* exp(S) - I ≈ sum_{k > 0} COEFFICIENTS[k] S^k for skew S with plane angles up to ANGLE: the numbers
 * of train/groups/matrix_exp.py, which a test holds equal. */

#ifndef TORSOR_CONSTANTS_H
#define TORSOR_CONSTANTS_H

#define DEGREE 9
#define ANGLE 1.2
#define MAX_SQUARINGS 30

static const double COEFFICIENTS[DEGREE + 1] = {
    0x1.ffffffe424e9dp-1,  0x1.fffffffd74fc0p-1,  0x1.fffff87124d44p-2,  0x1.555553f411d24p-3,
    0x1.555405087d0b0p-5,  0x1.111096493e952p-7,  0x1.6bc4ceaeac5ddp-10, 0x1.9fde3154cb81bp-13,
    0x1.8fbfdc7667e10p-16, 0x1.65f176277d770p-19,
};

#endif
