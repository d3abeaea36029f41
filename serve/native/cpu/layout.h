/* How matrices lie in memory: transposed, packed, padded. Included once for each REAL; no include
 * guard.
 */

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

INLINE void NAME(spread_shape)(NAME(shape) s, REAL *out, const REAL *u, REAL scale) {
    VECTOR row[VECTOR_BYTES / REAL_BYTES], column[VECTOR_BYTES / REAL_BYTES];
    for (Size i = 0; i < s.ld; i += WIDTH)
        for (Size j = i; j < s.ld; j += WIDTH) {
#pragma GCC unroll 8
            for (Size r = 0; r < WIDTH; r++) { /* of u, row i starts at its column i + 1 */
                const Size k = i + r < s.d ? i + r : 0;
                const REAL *place = u + k * (2 * s.d - k - 1) / 2 - k - 1 + j;
                const Size first = j == i ? r + 1 : 0, end = i + r < s.d ? s.d - j : 0;
                row[r] = scale * NAME(keep)(NAME(lanes)(first, end), *(const VECTOR *)place);
            }
            NAME(transpose_block)((const REAL *)row, WIDTH, column);
            for (Size r = 0; r < WIDTH; r++) {
                if (j == i) row[r] -= column[r];
                *(VECTOR *)(out + (i + r) * s.ld + j) = row[r];
                if (j > i) *(VECTOR *)(out + (j + r) * s.ld + i) = -column[r];
            }
        }
}

/* The skew matrix with scale × the D numbers of u above its diagonal, row by row. Up to `WIDTH`
 * numbers before and behind u may be read. */
NOINLINE void NAME(spread)(NAME(shape) s, REAL *out, const REAL *u, REAL scale) {
    if (s.d == TWO)
        NAME(spread_shape)((NAME(shape)){TWO, TWO, TWO * TWO}, out, u, scale);
    else
        NAME(spread_shape)(s, out, u, scale);
}

INLINE void NAME(gather_shape)(NAME(shape) s, REAL *u, const REAL *X, REAL *space) {
    VECTOR block[VECTOR_BYTES / REAL_BYTES];
    for (Size i = 0; i < s.ld; i += WIDTH)
        for (Size j = i; j < s.ld; j += WIDTH) {
            NAME(transpose_block)(X + j * s.ld + i, s.ld, block);
            for (Size r = 0; r < WIDTH; r++) {
                const Size at = (i + r) * s.ld + j;
                *(VECTOR *)(space + at) = block[r] - *(const VECTOR *)(X + at);
            }
        }
    for (Size i = 0; i < s.d - 1; u += s.d - 1 - i, i++)
        for (Size j = 0; j < s.d - 1 - i; j += WIDTH)
            *(VECTOR *)(u + j) = *(const VECTOR *)(space + i * s.ld + i + 1 + j);
}

/* What stands above the diagonal of Xᵀ - X, row by row: D numbers. Up to `WIDTH` numbers behind
 * them are written over; `space` has room for a matrix and a vector. */
NOINLINE void NAME(gather)(NAME(shape) s, REAL *u, const REAL *X, REAL *space) {
    if (s.d == TWO)
        NAME(gather_shape)((NAME(shape)){TWO, TWO, TWO * TWO}, u, X, space);
    else
        NAME(gather_shape)(s, u, X, space);
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
