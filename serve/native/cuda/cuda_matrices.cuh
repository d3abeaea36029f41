/* What the CUDA kernels do to one matrix: the arithmetic of exponential.h and rows.h, for Real float
 * or double and for a team of threads.
 *
 * A team has `thread`, its own number, `count`, how many they are, and `wait()`, which all threads
 * pass together. On the device it is a block. The tests compile this file for the CPU too, with
 * teams of ordinary threads: a team of any size gives the same bits, since each number is made by
 * one thread in one order. Results are those of the CPU kernels up to rounding.
 */

#ifndef TORSOR_CUDA_MATRICES_H
#define TORSOR_CUDA_MATRICES_H

#include <math.h>
#include <stddef.h>

#include "constants.h"

#ifdef __CUDACC__
#define BOTH __host__ __device__ inline
#else
#define BOTH inline
#endif

#define HALF_ROOT ((Real)0.70710678118654752440)
#define GENERAL_DEGREE 12
#define TALL 4 /* rows of a product that one thread makes at once */

typedef ptrdiff_t Size;

/* exp(S) - I ≈ sum_{k > 0} c[k] S^k for S of a size up to `limit`; the degree is a multiple of 3. */
template <class Real>
struct Series {
    Real c[GENERAL_DEGREE + 1];
    int degree;
    double limit;
};

/* For skew S, whose size is the largest plane angle. */
template <class Real>
Series<Real> skew_series() {
    Series<Real> series = {{0}, DEGREE, ANGLE};
    for (int k = 0; k <= DEGREE; k++) series.c[k] = (Real)COEFFICIENTS[k];
    return series;
}

/* Taylor's, for any S: good to rounding up to this 1-norm. */
template <class Real>
Series<Real> general_series() {
    Series<Real> series = {{1}, GENERAL_DEGREE, sizeof(Real) == 4 ? 1.4 : 0.29};
    for (int k = 1; k <= GENERAL_DEGREE; k++) series.c[k] = series.c[k - 1] / (Real)k;
    return series;
}

template <class Real>
Series<Real> move_series() {
    return sizeof(Real) == 4 ? skew_series<Real>() : general_series<Real>();
}

/* Memory of a team: four sums a row, and five matrices without padding. */
template <class Real>
struct Space {
    double *sums;
    Real *S, *S2, *S3, *P, *F;
};

BOTH size_t space_bytes(Size d, size_t real) {
    return (size_t)d * 4 * sizeof(double) + (size_t)d * (size_t)d * 5 * real;
}

template <class Real>
BOTH Space<Real> space_in(void *memory, int d) {
    double *sums = (double *)memory;
    Real *S = (Real *)(sums + 4 * d);
    const Size dd = (Size)d * d;
    Space<Real> space = {sums, S, S + dd, S + 2 * dd, S + 3 * dd, S + 4 * dd};
    return space;
}

/* out = y Y + X Z, where Y may be out or NULL. */
template <class Team, class Real>
BOTH void multiply(const Team &team, int d, Real *out, const Real *X, const Real *Z, const Real *Y,
                   Real y) {
    const int tiles = (d + TALL - 1) / TALL * d;
    for (int tile = team.thread; tile < tiles; tile += team.count) {
        const int top = tile / d * TALL, j = tile % d;
        const Real *rows[TALL]; /* beyond the last row, the last again */
        Real sums[TALL] = {0};
        for (int r = 0; r < TALL; r++) rows[r] = X + (Size)(top + r < d ? top + r : d - 1) * d;
        for (int k = 0; k < d; k++) {
            const Real z = Z[(Size)k * d + j];
            for (int r = 0; r < TALL; r++) sums[r] += rows[r][k] * z;
        }
        for (int r = 0; r < TALL && top + r < d; r++) {
            const Size place = (Size)(top + r) * d + j;
            out[place] = Y ? y * Y[place] + sums[r] : sums[r];
        }
    }
    team.wait();
}

typedef struct {
    double angle; /* a bound of the plane angles, where the matrix is skew-symmetric */
    double norm;  /* the lesser of the largest row sum and column sum of |S| */
    bool finite, skew;
} Measures;

template <class Team, class Real>
BOTH Measures measure(const Team &team, int d, const Real *S, double *sums) {
    for (int i = team.thread; i < d; i += team.count) {
        double along = 0, down = 0, squares = 0, differs = 0;
        for (int step = 0; step < d; step++) { /* each thread from its own diagonal: other banks */
            const int j = i + step < d ? i + step : i + step - d;
            const Real x = S[(Size)i * d + j], y = S[(Size)j * d + i];
            along += fabs((double)x);
            down += fabs((double)y);
            squares += (double)x * (double)x;
            if (x + y != 0) differs = 1;
        }
        sums[i] = along, sums[d + i] = down, sums[2 * d + i] = squares, sums[3 * d + i] = differs;
    }
    team.wait();
    double row = 0, column = 0, all = 0, squares = 0, differs = 0;
    for (int i = 0; i < d; i++) {
        row = sums[i] > row ? sums[i] : row;
        column = sums[d + i] > column ? sums[d + i] : column;
        all += sums[i];
        squares += sums[2 * d + i];
        differs += sums[3 * d + i];
    }
    const double frobenius = sqrt(squares / 2); /* eigenvalues ±iλ: each angle counts twice */
    Measures found = {frobenius < column ? frobenius : column, row < column ? row : column,
                      all < (double)INFINITY, differs == 0};
    return found;
}

/* F = exp(S) - I of the matrix in w.S, which is scaled; F stands in the returned matrix. */
template <class Team, class Real>
BOTH Real *exponential(const Team &team, int d, const Space<Real> &w, const Series<Real> &series,
                       double size) {
    const Real *c = series.c;
    const int dd = d * d;
    Real *P = w.P, *F = w.F;
    int halvings = 0;
    for (; size > series.limit && halvings < MAX_SQUARINGS; size /= 2) halvings++;
    const Real scale = (Real)1 / (Real)((long long)1 << halvings);
    for (int i = team.thread; i < dd; i += team.count) w.S[i] *= scale;
    team.wait();
    multiply(team, d, w.S2, w.S, w.S, (Real *)NULL, (Real)0);
    multiply(team, d, w.S3, w.S2, w.S, (Real *)NULL, (Real)0);
    for (int k = series.degree - 2; k > 0; k -= 3) { /* F <- c_k S + c_k+1 S2 + c_k+2 S3 + S3 F */
        for (int i = team.thread; i < dd; i += team.count)
            P[i] = c[k] * w.S[i] + c[k + 1] * w.S2[i] + c[k + 2] * w.S3[i];
        team.wait();
        if (k < series.degree - 2) multiply(team, d, P, w.S3, F, P, (Real)1);
        Real *swap = P;
        P = F, F = swap;
    }
    for (; halvings > 0; halvings--) {
        multiply(team, d, P, F, F, F, (Real)2);
        Real *swap = P;
        P = F, F = swap;
    }
    return F;
}

template <class Team, class Real>
BOTH void fill_nan(const Team &team, int count, Real *out) {
    for (int i = team.thread; i < count; i += team.count) out[i] = (Real)NAN;
}

/* E = exp(S), or H exp(S) where H is given, of one matrix of any kind. The polynomial for skew
 * matrices has an error of 4e-9: less than float rounds off, and too much for double. */
template <class Team, class Real>
BOTH void exp_matrix(const Team &team, int d, const Real *H, const Real *S, Real *E,
                     const Series<Real> &skew, const Series<Real> &general, void *memory) {
    const Space<Real> w = space_in<Real>(memory, d);
    for (int i = team.thread; i < d * d; i += team.count) w.S[i] = S[i];
    team.wait();
    const Measures found = measure(team, d, w.S, w.sums);
    if (!found.finite) {
        fill_nan(team, d * d, E);
        return;
    }
    const Real *F = sizeof(Real) == 4 && found.skew
                        ? exponential(team, d, w, skew, found.angle)
                        : exponential(team, d, w, general, found.norm);
    if (H)
        multiply(team, d, E, H, F, H, (Real)1);
    else
        for (int i = team.thread; i < d * d; i += team.count) E[i] = F[i] + (i % (d + 1) == 0);
}

/* Where row i < column j stands among the D numbers above the diagonal. */
BOTH Size packed(int i, int j, int d) { return (Size)i * (2 * d - i - 1) / 2 + (j - i - 1); }

/* u = coordinates(Hᵀ A) of one matrix: u_ij = (B_ij - B_ji) / √2 for i < j, where B = Hᵀ A. */
template <class Team, class Real>
BOTH void coordinates(const Team &team, int d, const Real *H, const Real *A, Real *u) {
    for (int place = team.thread; place < d * d; place += team.count) {
        const int i = place / d, j = place % d;
        Real upper = 0, lower = 0;
        if (i >= j) continue;
        for (int k = 0; k < d; k++) {
            upper += H[(Size)k * d + i] * A[(Size)k * d + j];
            lower += H[(Size)k * d + j] * A[(Size)k * d + i];
        }
        u[packed(i, j, d)] = HALF_ROOT * (upper - lower);
    }
}

/* v = u G: `count` rows (at most MIXED) of one column. Memory is only read in a row; no sharing. */
#define MIXED 8
template <class Real>
BOTH void mix_column(Size D, Size count, const Real *u, const Real *G, Real *v, Size column) {
    const Real *rows[MIXED]; /* beyond the last row, the last again */
    Real sums[MIXED] = {0};
    for (int r = 0; r < MIXED; r++) rows[r] = u + (r < count ? r : count - 1) * D;
    for (Size k = 0; k < D; k++) {
        const Real g = G[k * D + column];
        for (int r = 0; r < MIXED; r++) sums[r] += rows[r][k] * g;
    }
    for (int r = 0; r < MIXED && r < count; r++) v[r * D + column] = sums[r];
}

/* E = H exp(tangent(v)) of one matrix: S_ij = v_ij / √2 = -S_ji. `series` is `move_series`: in
 * double that for any S, as in `exp_matrix`. */
template <class Team, class Real>
BOTH void move(const Team &team, int d, const Real *H, const Real *v, Real *E,
               const Series<Real> &series, void *memory) {
    const Space<Real> w = space_in<Real>(memory, d);
    for (int place = team.thread; place < d * d; place += team.count) {
        const int i = place / d, j = place % d;
        w.S[place] = i < j   ? HALF_ROOT * v[packed(i, j, d)]
                     : i > j ? -HALF_ROOT * v[packed(j, i, d)]
                             : (Real)0;
    }
    team.wait();
    const Measures found = measure(team, d, w.S, w.sums);
    if (!found.finite) {
        fill_nan(team, d * d, E);
        return;
    }
    const double size = sizeof(Real) == 4 ? found.angle : found.norm;
    multiply(team, d, E, H, exponential(team, d, w, series, size), H, (Real)1);
}

#endif
