/* Small matrix products and transposes. Included once for each REAL; no include guard. */

#define WIDTH ((Size)(VECTOR_BYTES / sizeof(REAL)))
#define VECTOR NAME(vector)

typedef REAL VECTOR __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
typedef __typeof__((VECTOR){0} < (VECTOR){0}) NAME(mask); /* all bits of a lane, or none */

INLINE VECTOR NAME(keep)(NAME(mask) lanes, VECTOR x) { return (VECTOR)((NAME(mask))x & lanes); }

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
    const REAL *base; /* rows as C; may be C, may be NULL */
    REAL beta;
    REAL *C;
    Size ldc;
} NAME(job);

/* R rows and N vectors of C, held in registers. */
INLINE void NAME(tile)(const int R, const int N, const int transposed, const NAME(job) * job,
                       Size row, Size column) {
    const Size lda = job->lda, ldb = job->ldb, inner = job->inner, ldc = job->ldc;
    const REAL *A = job->A + (transposed ? row : row * lda), *B = job->B + column;
    const Size place = row * ldc + column;
    const REAL *base = job->base ? job->base + place : NULL;
    REAL *C = job->C + place;
    const REAL alpha = job->alpha, beta = job->beta;
    VECTOR sum[8][3], line[3];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 3
        for (int n = 0; n < N; n++) sum[r][n] = (VECTOR){0};
    for (Size k = 0; k < inner; k++) {
#pragma GCC unroll 3
        for (int n = 0; n < N; n++) line[n] = *(const VECTOR *)(B + k * ldb + n * WIDTH);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const REAL a = transposed ? A[k * lda + r] : A[r * lda + k];
#pragma GCC unroll 3
            for (int n = 0; n < N; n++) sum[r][n] += a * line[n];
        }
    }
    if (base) {
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 3
            for (int n = 0; n < N; n++) {
                const Size at = r * ldc + n * WIDTH;
                *(VECTOR *)(C + at) = alpha * sum[r][n] + beta * *(const VECTOR *)(base + at);
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
        if (R <= MOST) NAME(tile)(R, N, transposed, job, row, column);                   \
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

/* The sizes of padded d×d matrices: ld numbers a row, ld rows, the last ones zero. */
typedef struct {
    Size d, ld, size;
} NAME(shape);

INLINE NAME(shape) NAME(shape_of)(Size d) {
    const Size ld = NAME(padded)(d);
    return (NAME(shape)){d, ld, ld * ld};
}

/* C = alpha A B + beta base of padded matrices; A may have another lda, and be taken transposed. */
static void NAME(multiply)(NAME(shape) s, REAL *C, const REAL *A, Size lda, int transposed,
                           const REAL *B, REAL alpha, const REAL *base, REAL beta) {
    const NAME(job) job = {s.d, s.d, A, lda, B, s.ld, alpha, base, beta, C, s.ld};
    for (Size column = 0, width; column < s.ld; column += width) {
        width = NAME(tile_width)(s.ld - column);
        NAME(columns)(&job, transposed, column, width);
    }
}

/* A block of X, WIDTH × WIDTH, transposed. */
INLINE void NAME(transpose_block)(const REAL *X, Size ld, VECTOR *out) {
#if defined(__AVX2__) && REAL_BYTES == 4
    __m256 x[8], y[8];
    for (int r = 0; r < 8; r++) x[r] = _mm256_loadu_ps(X + r * ld);
    for (int r = 0; r < 8; r += 2) {
        y[r] = _mm256_unpacklo_ps(x[r], x[r + 1]);
        y[r + 1] = _mm256_unpackhi_ps(x[r], x[r + 1]);
    }
    for (int r = 0; r < 8; r += 4)
        for (int h = 0; h < 2; h++) {
            x[r + 2 * h] = _mm256_shuffle_ps(y[r + h], y[r + h + 2], 0x44);
            x[r + 2 * h + 1] = _mm256_shuffle_ps(y[r + h], y[r + h + 2], 0xee);
        }
    for (int r = 0; r < 4; r++) {
        out[r] = (VECTOR)_mm256_permute2f128_ps(x[r], x[r + 4], 0x20);
        out[r + 4] = (VECTOR)_mm256_permute2f128_ps(x[r], x[r + 4], 0x31);
    }
#elif defined(__AVX2__)
    __m256d x[4], y[4];
    for (int r = 0; r < 4; r++) x[r] = _mm256_loadu_pd(X + r * ld);
    for (int r = 0; r < 4; r += 2) {
        y[r] = _mm256_unpacklo_pd(x[r], x[r + 1]);
        y[r + 1] = _mm256_unpackhi_pd(x[r], x[r + 1]);
    }
    for (int r = 0; r < 2; r++) {
        out[r] = (VECTOR)_mm256_permute2f128_pd(y[r], y[r + 2], 0x20);
        out[r + 2] = (VECTOR)_mm256_permute2f128_pd(y[r], y[r + 2], 0x31);
    }
#else
    REAL *place = (REAL *)out;
    for (int r = 0; r < WIDTH; r++)
        for (int c = 0; c < WIDTH; c++) place[r * WIDTH + c] = X[c * ld + r];
#endif
}

/* out = y Y + x Xᵀ of padded matrices, Y may be X; out is another matrix. */
NOINLINE void NAME(add_transpose)(NAME(shape) s, REAL *out, const REAL *Y, REAL y, const REAL *X,
                                  REAL x) {
    for (Size i = 0; i < s.ld; i += WIDTH)
        for (Size j = 0; j < s.ld; j += WIDTH) {
            VECTOR block[VECTOR_BYTES / sizeof(REAL)];
            NAME(transpose_block)(X + j * s.ld + i, s.ld, block);
            for (int r = 0; r < WIDTH; r++) {
                const Size place = (i + r) * s.ld + j;
                *(VECTOR *)(out + place) = y * *(const VECTOR *)(Y + place) + x * block[r];
            }
        }
}

/* out = Xᵀ of padded matrices. */
NOINLINE void NAME(transpose)(NAME(shape) s, REAL *out, const REAL *X) {
    for (Size i = 0; i < s.ld; i += WIDTH)
        for (Size j = 0; j < s.ld; j += WIDTH) {
            VECTOR block[VECTOR_BYTES / sizeof(REAL)];
            NAME(transpose_block)(X + j * s.ld + i, s.ld, block);
            for (int r = 0; r < WIDTH; r++) *(VECTOR *)(out + (i + r) * s.ld + j) = block[r];
        }
}

/* A matrix without padding into a padded one, whose columns are filled up with zeros. Whole vectors
 * are read where they end inside the matrix. */
static void NAME(load)(NAME(shape) s, REAL *out, const REAL *X) {
    const NAME(mask) last = NAME(lanes)(0, s.d - (s.ld - WIDTH));
    for (Size i = 0; i < s.d; i++, out += s.ld, X += s.d) {
        if (i * s.d + s.ld > s.d * s.d) {
            memcpy(out, X, (size_t)s.d * sizeof(REAL));
            continue;
        }
        Size j = 0;
        for (; j < s.ld - WIDTH; j += WIDTH) *(VECTOR *)(out + j) = *(const VECTOR *)(X + j);
        *(VECTOR *)(out + j) = NAME(keep)(last, *(const VECTOR *)(X + j));
    }
}

/* A padded matrix to one without padding: what is written beyond a row, the next row mends. */
static void NAME(store)(NAME(shape) s, REAL *out, const REAL *X) {
    for (Size i = 0; i < s.d; i++, out += s.d, X += s.ld) {
        if (i * s.d + s.ld > s.d * s.d)
            memcpy(out, X, (size_t)s.d * sizeof(REAL));
        else
            for (Size j = 0; j < s.ld; j += WIDTH) *(VECTOR *)(out + j) = *(const VECTOR *)(X + j);
    }
}

/* Zeroed memory that starts at a whole cache line; `free` *block. */
static REAL *NAME(zeros)(Size count, void **block) {
    char *memory = calloc((size_t)count + 64, sizeof(REAL));
    *block = memory;
    return memory ? (REAL *)(memory + (64 - (uintptr_t)memory % 64) % 64) : NULL;
}
