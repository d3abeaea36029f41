/* exp of skew-symmetric matrices and H exp(S). Included once for each REAL; no include guard.
 *
 * F = exp(S) - I is a polynomial of degree 9 of S / 2^s, then s times F <- 2F + F^2. Skew S feels
 * only the skew part of a gradient, which is what the backward gives: of S2 = S^2 (symmetric) then
 * only the symmetric part of its gradient counts, of S3 = S^3 the skew part, and both come down to
 * dS with two products.
 */

#define MATRICES 14       /* of a workspace, besides one F a squaring */
#define SLACK (2 * WIDTH) /* numbers that `pack` and `unpack` may touch around D of them */

typedef struct {
    NAME(shape) shape;
    REAL *S, *S2, *S3, *R, *Q, *F[MAX_SQUARINGS + 1]; /* of the forward, kept for the backward */
    REAL *G, *G2, *dQ, *dR, *Y, *T, *U, *X;
    REAL *triangle, *line; /* of `pack` and `unpack`: triangle keeps zeros below its diagonal */
    void *block;
} NAME(workspace);

static int NAME(open)(NAME(workspace) * w, Size d) {
    w->shape = NAME(shape_of)(d);
    const Size matrices = MATRICES + MAX_SQUARINGS + 1, line = d * (d - 1) / 2 + SLACK;
    const Size size = w->shape.size + SLACK; /* apart, or their places in the cache would be one */
    REAL *next = NAME(zeros)(size * matrices + line, &w->block);
    if (!next) return NO_MEMORY;
    REAL **places[MATRICES] = {&w->S,  &w->S2, &w->S3, &w->R, &w->Q, &w->G, &w->G2,
                               &w->dQ, &w->dR, &w->Y,  &w->T, &w->U, &w->X, &w->triangle};
    for (int i = 0; i < MATRICES; i++, next += size) *places[i] = next;
    for (int i = 0; i <= MAX_SQUARINGS; i++, next += size) w->F[i] = next;
    w->line = next;
    return OK;
}

/* The thread's own, kept for its next call: to ask the system for it takes longer than a small exp. */
static NAME(workspace) * NAME(own_workspace)(Size d) {
    static _Thread_local NAME(workspace) own;
    if (own.block && own.shape.d == d) return &own;
    free(own.block);
    own.block = NULL;
    return NAME(open)(&own, d) ? NULL : &own;
}

/* How often an angle must be halved. */
static int NAME(halvings_of)(double angle) {
    int count = 0;
    for (; angle > ANGLE && count < MAX_SQUARINGS; angle /= 2) count++;
    return count;
}

/* How often S must be halved, from the lesser of two bounds of its angles; -1 if not finite. */
static int NAME(squarings)(NAME(shape) s, const REAL *S) {
    VECTOR squares = {0}, more = {0}, most = {0};
    for (Size j = 0; j < s.ld; j += WIDTH) {
        VECTOR even = {0}, odd = {0}; /* sums that don't wait for each other */
        Size i = 0;
        for (; i + 1 < s.d; i += 2) {
            const VECTOR x = *(const VECTOR *)(S + i * s.ld + j);
            const VECTOR y = *(const VECTOR *)(S + (i + 1) * s.ld + j);
            even += NAME(absolute)(x), odd += NAME(absolute)(y);
            squares = NAME(fma)(x, x, squares), more = NAME(fma)(y, y, more);
        }
        if (i < s.d) {
            const VECTOR x = *(const VECTOR *)(S + i * s.ld + j);
            even += NAME(absolute)(x), squares = NAME(fma)(x, x, squares);
        }
        even += odd;
        most += NAME(keep)(even > most, even - most);
    }
    squares += more;
    double sum = 0, one = 0;
    for (int c = 0; c < WIDTH; c++) {
        sum += (double)squares[c];
        one = (double)most[c] > one ? (double)most[c] : one;
    }
    if (!(sum < INFINITY)) return -1;
    const double frobenius = sqrt(sum / 2);
    return NAME(halvings_of)(frobenius < one ? frobenius : one);
}

/* F = exp(2^halvings S) - I of the matrix in w->S: F stands in the returned matrix. */
static REAL *NAME(series)(NAME(workspace) * w, int halvings) {
    const NAME(shape) s = w->shape;
    VECTOR c[DEGREE + 1];
    for (int k = 0; k <= DEGREE; k++) c[k] = NAME(all)((REAL)COEFFICIENTS[k]);
    REAL *S = w->S, *S2 = w->S2, *S3 = w->S3, *R = w->R, *Q = w->Q, *F = w->F[0];
    NAME(multiply)(s, S2, S, s.ld, 0, S, 1, NULL, 0);
    NAME(multiply)(s, S3, S2, s.ld, 0, S, 1, NULL, 0);
    for (Size i = 0; i < s.d * s.ld; i += WIDTH) {
        const VECTOR x = *(VECTOR *)(S + i), x2 = *(VECTOR *)(S2 + i), x3 = *(VECTOR *)(S3 + i);
        *(VECTOR *)(R + i) = NAME(fma)(c[9], x3, NAME(fma)(c[8], x2, c[7] * x));
        *(VECTOR *)(Q + i) = NAME(fma)(c[6], x3, NAME(fma)(c[5], x2, c[4] * x));
        *(VECTOR *)(F + i) = NAME(fma)(c[3], x3, NAME(fma)(c[2], x2, c[1] * x));
    }
    NAME(multiply)(s, Q, S3, s.ld, 0, R, 1, Q, 1);
    NAME(multiply)(s, F, S3, s.ld, 0, Q, 1, F, 1);
    for (int i = 0; i < halvings; i++, F = w->F[i])
        NAME(multiply)(s, w->F[i + 1], F, s.ld, 0, F, 1, F, 2);
    return F;
}

/* F = exp(S) - I of the matrix in w->S, which is scaled in place: F stands in the returned matrix,
 * *count says how often S was halved. NULL if S isn't finite. */
static REAL *NAME(forward)(NAME(workspace) * w, int *count) {
    const NAME(shape) s = w->shape;
    const int halvings = *count = NAME(squarings)(s, w->S);
    if (halvings < 0) return NULL;
    if (halvings > 0) {
        const REAL scale = (REAL)1 / (REAL)((int64_t)1 << halvings);
        for (Size i = 0; i < s.d * s.ld; i += WIDTH) *(VECTOR *)(w->S + i) *= scale;
    }
    return NAME(series)(w, halvings);
}

/* Degree 12, for squares of any kind: good to rounding up to this 1-norm. */
#define GENERAL_DEGREE 12
#define GENERAL_NORM (sizeof(REAL) == 4 ? 1.4 : 0.29)

/* The lesser of the largest row sum and column sum of |S|; NaN if S isn't finite. */
static double NAME(norm)(NAME(shape) s, const REAL *S) {
    double row = 0, column = 0, all = 0;
    for (Size i = 0; i < s.d; i++) {
        double along = 0, down = 0;
        for (Size j = 0; j < s.d; j++) {
            along += fabs((double)S[i * s.ld + j]);
            down += fabs((double)S[j * s.ld + i]);
        }
        row = along > row ? along : row;
        column = down > column ? down : column;
        all += along;
    }
    return all < INFINITY ? (row < column ? row : column) : NAN;
}

/* F = exp(S) - I of any square matrix in w->S, by its Taylor series; NULL if S isn't finite. */
static REAL *NAME(forward_general)(NAME(workspace) * w) {
    const NAME(shape) s = w->shape;
    REAL c[GENERAL_DEGREE + 1] = {1}, *S = w->S, *S2 = w->S2, *S3 = w->S3, *P = w->R, *F = w->F[0];
    for (int k = 1; k <= GENERAL_DEGREE; k++) c[k] = c[k - 1] / (REAL)k;
    double norm = NAME(norm)(s, S);
    if (!(norm < INFINITY)) return NULL;
    int halvings = 0;
    for (; norm > GENERAL_NORM && halvings < MAX_SQUARINGS; norm /= 2) halvings++;
    const REAL scale = (REAL)1 / (REAL)((int64_t)1 << halvings);
    for (Size i = 0; i < s.d * s.ld; i += WIDTH) *(VECTOR *)(S + i) *= scale;
    NAME(multiply)(s, S2, S, s.ld, 0, S, 1, NULL, 0);
    NAME(multiply)(s, S3, S2, s.ld, 0, S, 1, NULL, 0);
    for (int k = GENERAL_DEGREE - 2; k > 0; k -= 3) { /* F <- c_k S + c_k+1 S2 + c_k+2 S3 + S3 F */
        for (Size i = 0; i < s.d * s.ld; i += WIDTH)
            *(VECTOR *)(P + i) = c[k] * *(VECTOR *)(S + i) + c[k + 1] * *(VECTOR *)(S2 + i) +
                                 c[k + 2] * *(VECTOR *)(S3 + i);
        if (k < GENERAL_DEGREE - 2) NAME(multiply)(s, P, S3, s.ld, 0, F, 1, P, 1);
        REAL *swap = P;
        P = F, F = swap;
    }
    for (REAL *next = P; halvings > 0; halvings--) {
        NAME(multiply)(s, next, F, s.ld, 0, F, 1, F, 2);
        REAL *swap = next;
        next = F, F = swap;
    }
    return F;
}

static int NAME(is_skew)(NAME(workspace) * w) {
    const NAME(shape) s = w->shape;
    NAME(mask) differs = NAME(lanes)(0, 0); /* none */
    NAME(add_transpose)(s, w->T, w->S, 1, w->S, 1);
    for (Size i = 0; i < s.d * s.ld; i += WIDTH) differs |= *(VECTOR *)(w->T + i) != 0;
    for (int lane = 0; lane < WIDTH; lane++)
        if (differs[lane]) return 0;
    return 1;
}

/* F = exp(S) - I of the matrix in w->S. The polynomial of `forward` has an error of 4e-9, which is
 * less than float rounds off, and too much for double. NULL if S isn't finite. */
static REAL *NAME(forward_any)(NAME(workspace) * w) {
    int halvings;
    return sizeof(REAL) == 4 && NAME(is_skew)(w) ? NAME(forward)(w, &halvings)
                                                 : NAME(forward_general)(w);
}

/* After `forward`: from w->G, the gradient of F, to w->X = dS - dSᵀ, twice the gradient of S.
 * Writes over G, G2, dQ, dR, Y, T, U. */
static void NAME(backward)(NAME(workspace) * w, int halvings) {
    const NAME(shape) s = w->shape;
    REAL c[DEGREE + 1];
    for (int k = 0; k <= DEGREE; k++) c[k] = (REAL)COEFFICIENTS[k];
    REAL *S = w->S, *S2 = w->S2, *S3 = w->S3, *G = w->G, *G2 = w->G2;
    REAL *dQ = w->dQ, *dR = w->dR, *Y = w->Y, *T = w->T, *U = w->U;
    for (int i = halvings - 1; i >= 0; i--) { /* G <- 2G + FᵀG + GFᵀ */
        NAME(transpose)(s, T, w->F[i]);
        NAME(multiply)(s, G2, T, s.ld, 0, G, 1, G, 2);
        NAME(multiply)(s, G2, G, s.ld, 0, T, 1, G2, 1);
        REAL *swap = G;
        G = G2, G2 = swap;
    }
    REAL *Z = G2;
    NAME(multiply)(s, dQ, S3, s.ld, 0, G, -1, NULL, 0);
    NAME(multiply)(s, dR, S3, s.ld, 0, dQ, -1, NULL, 0);
    NAME(transpose)(s, T, w->Q);
    for (Size i = 0; i < s.d * s.ld; i += WIDTH) {
        const VECTOR x = *(VECTOR *)(S + i), x2 = *(VECTOR *)(S2 + i), x3 = *(VECTOR *)(S3 + i);
        const VECTOR g = *(VECTOR *)(G + i), q = *(VECTOR *)(dQ + i), r = *(VECTOR *)(dR + i);
        *(VECTOR *)(w->R + i) = c[8] * x2 - c[7] * x - c[9] * x3; /* Rᵀ */
        *(VECTOR *)(Z + i) = c[3] * g + c[6] * q + c[9] * r;
        *(VECTOR *)(Y + i) = c[2] * g + c[5] * q + c[8] * r;
        *(VECTOR *)(dR + i) = c[1] * g + c[4] * q + c[7] * r;
    }
    NAME(multiply)(s, Z, G, s.ld, 0, T, 1, Z, 1); /* dS3 = Z + G Qᵀ + dQ Rᵀ */
    NAME(multiply)(s, Z, dQ, s.ld, 0, w->R, 1, Z, 1);
    NAME(add_transpose)(s, U, Z, (REAL)0.5, Z, (REAL)-0.5); /* its skew part */
    NAME(multiply)(s, T, S, s.ld, 0, U, 1, NULL, 0);        /* K = S dS3 */
    NAME(add_transpose)(s, U, T, 1, T, (REAL)0.5);          /* L = K + Kᵀ/2 - (dS2 + dS2ᵀ)/2 */
    NAME(add_transpose)(s, T, Y, (REAL)0.5, Y, (REAL)0.5);
    for (Size i = 0; i < s.d * s.ld; i += WIDTH) *(VECTOR *)(U + i) -= *(VECTOR *)(T + i);
    NAME(multiply)(s, Y, S, s.ld, 0, U, 2, dR, 1); /* dS = skew part of 2 S L + linear terms */
    const REAL scale = (REAL)1 / (REAL)((int64_t)1 << halvings);
    NAME(add_transpose)(s, w->X, Y, scale, Y, -scale);
}

static void NAME(fill_nan)(Size count, REAL *out) {
    for (Size i = 0; i < count; i++) out[i] = (REAL)NAN;
}

/* E = exp(S), or H exp(S) where H is given; n matrices each. `any`: S may be no skew matrices. */
static void NAME(exp_all)(NAME(workspace) * w, const REAL *H, const REAL *S, REAL *E, Size n,
                          int any) {
    const NAME(shape) s = w->shape;
    const Size d = s.d;
    for (Size b = 0, at = 0; b < n; b++, at += d * d) {
        int halvings;
        NAME(load)(s, w->S, S + at);
        REAL *F = any ? NAME(forward_any)(w) : NAME(forward)(w, &halvings);
        if (!F) {
            NAME(fill_nan)(d * d, E + at);
            continue;
        }
        if (H) { /* H + H F */
            NAME(load)(s, w->G, H + at);
            NAME(multiply)(s, w->G2, w->G, s.ld, 0, F, 1, w->G, 1);
            F = w->G2;
        } else
            for (Size i = 0; i < d; i++) F[i * s.ld + i] += 1;
        NAME(store)(s, E + at, F);
    }
}

EXPORT int NAME(ortho_step)(const REAL *H, const REAL *S, REAL *E, Size n, Size d) {
    NAME(workspace) *w = NAME(own_workspace)(d);
    if (w) NAME(exp_all)(w, H, S, E, n, 0);
    return w ? OK : NO_MEMORY;
}

/* dS (its skew part, all that S can feel) and dH from dE; H and dH may both be NULL. */
EXPORT int NAME(ortho_step_backward)(const REAL *H, const REAL *S, const REAL *dE, REAL *dH,
                                     REAL *dS, Size n, Size d) {
    NAME(workspace) *w = NAME(own_workspace)(d);
    if (!w) return NO_MEMORY;
    const NAME(shape) s = w->shape;
    for (Size b = 0, at = 0; b < n; b++, at += d * d) {
        int halvings;
        NAME(load)(s, w->S, S + at);
        const REAL *F = NAME(forward)(w, &halvings);
        if (!F) {
            NAME(fill_nan)(d * d, dS + at);
            if (H) NAME(fill_nan)(d * d, dH + at);
            continue;
        }
        NAME(load)(s, H ? w->Y : w->G, dE + at);
        if (H) { /* dF = Hᵀ dE, dH = dE + dE Fᵀ */
            NAME(multiply)(s, w->G, H + at, d, 1, w->Y, 1, NULL, 0);
            NAME(transpose)(s, w->T, F);
            NAME(multiply)(s, w->U, w->Y, s.ld, 0, w->T, 1, w->Y, 1);
            NAME(store)(s, dH + at, w->U);
        }
        NAME(backward)(w, halvings);
        for (Size i = 0; i < s.d * s.ld; i += WIDTH) *(VECTOR *)(w->X + i) *= (REAL)0.5;
        NAME(store)(s, dS + at, w->X);
    }
    return OK;
}
