/* Vectors, and products of small matrices. Included once for each REAL; no include guard. */

#define WIDTH ((Size)(VECTOR_BYTES / sizeof(REAL)))
#define VECTOR NAME(vector)

typedef REAL VECTOR __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
typedef __typeof__((VECTOR){0} < (VECTOR){0}) NAME(mask); /* all bits of a lane, or none */

INLINE VECTOR NAME(keep)(NAME(mask) lanes, VECTOR x) { return (VECTOR)((NAME(mask))x & lanes); }

/* a b + c, rounded once where the processor can. Spelled out: were it left to the compiler, a row's
 * bits could hang on which tile it falls into. */
INLINE VECTOR NAME(fma)(VECTOR a, VECTOR b, VECTOR c) {
#if defined(__FMA__) && REAL_BYTES == 4
    return (VECTOR)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FMA__)
    return (VECTOR)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    return a * b + c;
#endif
}

INLINE VECTOR NAME(all)(REAL x) { return x - (VECTOR){0}; }

/* The larger one; b where a isn't a number. */
INLINE VECTOR NAME(larger)(VECTOR a, VECTOR b) {
#if defined(__AVX2__) && REAL_BYTES == 4
    return (VECTOR)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return NAME(keep)(a > b, a) + NAME(keep)(~(a > b), b);
#endif
}

INLINE VECTOR NAME(absolute)(VECTOR x) {
    return (VECTOR)((NAME(mask))x & ~(NAME(mask))NAME(all)((REAL)-0.0));
}

/* The lanes from `first` to before `end`. */
INLINE NAME(mask) NAME(lanes)(Size first, Size end) {
    NAME(mask) lane;
    for (int c = 0; c < WIDTH; c++) lane[c] = c;
    return (lane >= (LANE)first) & (lane < (LANE)end);
}

INLINE Size NAME(padded)(Size n) { return (n + WIDTH - 1) / WIDTH * WIDTH; }

/* C = alpha A B + beta base, `rows` of it and `vectors` of its columns. A may be transposed. */
typedef struct {
    Size rows, inner;
    const REAL *A;
    Size lda;
    const REAL *B;
    Size ldb;
    REAL alpha;
    const REAL *base; /* rows `ldbase` apart, which may be 0; may be C, may be NULL */
    REAL beta;
    REAL *C;
    Size ldc, ldbase;
} NAME(job);

/* R rows and N vectors of C, held in registers. `depth` is job->inner where it is known, or 0. */
INLINE void NAME(tile)(const int R, const int N, const int transposed, const int depth,
                       const NAME(job) * job, Size row, Size column) {
    const Size lda = job->lda, ldb = job->ldb, inner = job->inner, ldc = job->ldc;
    const REAL *A = job->A + (transposed ? row : row * lda), *B = job->B + column;
    REAL *C = job->C + row * ldc + column;
    const VECTOR alpha = NAME(all)(job->alpha), beta = NAME(all)(job->beta);
    VECTOR sum[8][3], line[3];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 3
        for (int n = 0; n < N; n++) sum[r][n] = (VECTOR){0};
#define TORSOR_ADD(k)                                                                       \
    _Pragma("GCC unroll 3") for (int n = 0; n < N; n++) line[n] =                           \
        *(const VECTOR *)(B + (k) * ldb + n * WIDTH);                                       \
    _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {                                   \
        const VECTOR a = NAME(all)(transposed ? A[(k) * lda + r] : A[r * lda + (k)]);       \
        _Pragma("GCC unroll 3") for (int n = 0; n < N; n++) sum[r][n] =                     \
            NAME(fma)(a, line[n], sum[r][n]);                                               \
    }
    if (depth) {
#pragma GCC unroll 16
        for (Size k = 0; k < depth; k++) { TORSOR_ADD(k) }
    } else {
        for (Size k = 0; k < inner; k++) { TORSOR_ADD(k) }
    }
#undef TORSOR_ADD
    const REAL *base = job->base ? job->base + row * job->ldbase + column : NULL;
    if (base) {
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 3
            for (int n = 0; n < N; n++) {
                const VECTOR x = *(const VECTOR *)(base + r * job->ldbase + n * WIDTH);
                *(VECTOR *)(C + r * ldc + n * WIDTH) = NAME(fma)(beta, x, alpha * sum[r][n]);
            }
    } else {
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 3
            for (int n = 0; n < N; n++) *(VECTOR *)(C + r * ldc + n * WIDTH) = alpha * sum[r][n];
    }
}

/* A column of tiles, of MOST rows or as few less as make them alike: a low tile waits for its sums. */
#define TORSOR_TILE(R, N, MOST, transposed)                                              \
    case R:                                                                              \
        if (R <= MOST) NAME(tile)(R, N, transposed, 0, job, row, column);                \
        break;
#define TORSOR_COLUMN(label, N, MOST, transposed)                                        \
    NOINLINE void NAME(label)(const NAME(job) * job, Size column) {                      \
        const Size tiles = (job->rows + MOST - 1) / MOST;                                \
        for (Size t = 0, row = 0, rows; t < tiles; t++, row += rows) {                   \
            rows = (job->rows - row + (tiles - t) - 1) / (tiles - t);                    \
            switch (rows) {                                                              \
                TORSOR_TILE(1, N, MOST, transposed)                                      \
                TORSOR_TILE(2, N, MOST, transposed)                                      \
                TORSOR_TILE(3, N, MOST, transposed)                                      \
                TORSOR_TILE(4, N, MOST, transposed)                                      \
                TORSOR_TILE(5, N, MOST, transposed)                                      \
                TORSOR_TILE(6, N, MOST, transposed)                                      \
                TORSOR_TILE(7, N, MOST, transposed)                                      \
                TORSOR_TILE(8, N, MOST, transposed)                                      \
            }                                                                            \
        }                                                                                \
    }

TORSOR_COLUMN(column1, 1, 8, 0)
TORSOR_COLUMN(column2, 2, 4, 0)
TORSOR_COLUMN(column3, 3, 4, 0)
TORSOR_COLUMN(column1t, 1, 8, 1)
TORSOR_COLUMN(column2t, 2, 4, 1)
TORSOR_COLUMN(column3t, 3, 4, 1)
#undef TORSOR_COLUMN
#undef TORSOR_TILE

/* Columns of the next tile: 3 vectors, and never 1 where 2 + 2 would do. */
INLINE Size NAME(tile_width)(Size left) {
    return left == 4 * WIDTH ? 2 * WIDTH : left < 3 * WIDTH ? left : 3 * WIDTH;
}

INLINE void NAME(columns)(const NAME(job) * job, int transposed, Size column, Size width) {
    switch (width / WIDTH) {
    case 1: (transposed ? NAME(column1t) : NAME(column1))(job, column); break;
    case 2: (transposed ? NAME(column2t) : NAME(column2))(job, column); break;
    case 3: (transposed ? NAME(column3t) : NAME(column3))(job, column); break;
    }
}

/* R rows, at most 2, and P panels of three vectors at once: one panel would wait for its sums. */
INLINE void NAME(few_rows)(const int R, const int P, const NAME(job) * job, Size column) {
    const Size stride = job->inner * 3 * WIDTH, ldc = job->ldc;
    const REAL *B = job->B + job->inner * column, *A = job->A;
    const VECTOR alpha = NAME(all)(job->alpha), beta = NAME(all)(job->beta);
    VECTOR sum[2][9];
#pragma GCC unroll 2
    for (int r = 0; r < R; r++)
#pragma GCC unroll 9
        for (int n = 0; n < 3 * P; n++) sum[r][n] = (VECTOR){0};
    for (Size k = 0; k < job->inner; k++)
#pragma GCC unroll 9
        for (int n = 0; n < 3 * P; n++) {
            const Size place = n / 3 * stride + (k * 3 + n % 3) * WIDTH;
            const VECTOR line = *(const VECTOR *)(B + place);
#pragma GCC unroll 2
            for (int r = 0; r < R; r++)
                sum[r][n] = NAME(fma)(NAME(all)(A[r * job->lda + k]), line, sum[r][n]);
        }
#pragma GCC unroll 2
    for (int r = 0; r < R; r++)
#pragma GCC unroll 9
        for (int n = 0; n < 3 * P; n++) {
            const Size at = column + n * WIDTH;
            VECTOR *C = (VECTOR *)(job->C + r * ldc + at);
            *C = alpha * sum[r][n];
            if (job->base)
                *C = NAME(fma)(beta, *(const VECTOR *)(job->base + r * job->ldbase + at), *C);
        }
}
NOINLINE void NAME(one_row)(const NAME(job) * job, Size column) {
    NAME(few_rows)(1, 3, job, column);
}
NOINLINE void NAME(two_rows)(const NAME(job) * job, Size column) {
    NAME(few_rows)(2, 2, job, column);
}

/* A (N, inner) or, not transposed, (inner, N) matrix cut in panels of columns, as wide as tiles. */
static void NAME(pack_panels)(REAL *out, const REAL *X, Size inner, Size N, int transposed) {
    const Size ld = NAME(padded)(N);
    for (Size column = 0, width; column < ld; column += width) {
        width = NAME(tile_width)(ld - column);
        for (Size k = 0; k < inner; k++, out += width)
            for (Size j = 0; j < width && column + j < N; j++)
                out[j] = transposed ? X[(column + j) * inner + k] : X[k * N + column + j];
    }
}

/* The job for all N columns, where B is packed in panels. */
static void NAME(by_panels)(const NAME(job) * whole, Size N) {
    const Size ld = NAME(padded)(N), few = whole->rows == 1 ? 3 : whole->rows == 2 ? 2 : 0;
    if (whole->rows == 0) return;
    for (Size column = 0, width; column < ld; column += width) {
        width = few * 3 * WIDTH;
        if (few && ld - column >= width && ld - column != width + WIDTH) {
            (few == 3 ? NAME(one_row) : NAME(two_rows))(whole, column);
            continue;
        }
        width = NAME(tile_width)(ld - column);
        NAME(job) job = *whole;
        job.B += job.inner * column, job.ldb = width;
        job.C += column;
        if (job.base) job.base += column;
        NAME(columns)(&job, 0, 0, width);
    }
}

/* The sizes of padded d×d matrices: ld numbers a row, ld rows, the last ones zero. */
typedef struct {
    Size d, ld, size;
} NAME(shape);

INLINE NAME(shape) NAME(shape_of)(Size d) {
    const Size ld = NAME(padded)(d);
    return (NAME(shape)){d, ld, ld * ld};
}

/* Matrices of just two vectors a row are multiplied so often that they have code of their own. */
#define TWO (2 * VECTOR_BYTES / REAL_BYTES)
#define TORSOR_MULTIPLY_TWO(label, transposed)                                                     \
    NOINLINE void NAME(label)(REAL *C, const REAL *A, const REAL *B, REAL alpha, const REAL *base, \
                              REAL beta) {                                                         \
        const NAME(job) job = {TWO, TWO, A, TWO, B, TWO, alpha, base, beta, C, TWO, TWO};          \
        _Pragma("GCC unroll 1") for (Size row = 0; row < TWO; row += 4)                            \
            NAME(tile)(4, 2, transposed, TWO, &job, row, 0);                                       \
    }
TORSOR_MULTIPLY_TWO(multiply_two, 0)
TORSOR_MULTIPLY_TWO(multiply_two_t, 1)
#undef TORSOR_MULTIPLY_TWO

/* C = alpha A B + beta base of padded matrices; A may have another lda, and be taken transposed. */
static void NAME(multiply)(NAME(shape) s, REAL *C, const REAL *A, Size lda, int transposed,
                           const REAL *B, REAL alpha, const REAL *base, REAL beta) {
    if (s.d == TWO && lda == TWO) {
        (transposed ? NAME(multiply_two_t) : NAME(multiply_two))(C, A, B, alpha, base, beta);
        return;
    }
    const NAME(job) job = {s.d, s.d, A, lda, B, s.ld, alpha, base, beta, C, s.ld, s.ld};
    for (Size column = 0, width; column < s.ld; column += width) {
        width = NAME(tile_width)(s.ld - column);
        NAME(columns)(&job, transposed, column, width);
    }
}
