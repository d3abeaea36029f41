/* The kernels that operators call: some rows of a batch. Included once for each REAL; no include
 * guard. A scratch is the workspace of one thread: `*kept` is NULL at first, and may be handed to
 * the next call.
 */

typedef struct {
    NAME(workspace) w;
    REAL *H, *u, *mixed, *panel; /* of `mix_rows` only; a panel of Γᵀ */
    void *block;
    REAL *advance; /* of advance_rows.h only */
    void *advance_block;
    Size advance_size;
} NAME(scratch);

void NAME(free_scratch)(void *kept) {
    NAME(scratch) *scratch = kept;
    if (!scratch) return;
    free(scratch->w.block), free(scratch->block), free(scratch->advance_block);
    free(scratch);
}

static NAME(scratch) * NAME(scratch_for)(void **kept, Size d, int mixes) {
    NAME(scratch) *scratch = *kept;
    if (scratch && scratch->w.shape.d == d) return scratch;
    NAME(free_scratch)(scratch);
    *kept = NULL;
    scratch = calloc(1, sizeof *scratch);
    if (!scratch || NAME(open)(&scratch->w, d)) {
        free(scratch);
        return NULL;
    }
    if (mixes) {
        const Size size = scratch->w.shape.size, D = d * (d - 1) / 2, ldD = NAME(padded)(D);
        scratch->H = NAME(zeros)(ROWS * (size + D + ldD) + 3 * WIDTH * (D + 1) + 4 * WIDTH,
                                 &scratch->block);
        if (!scratch->H) {
            NAME(free_scratch)(scratch);
            return NULL;
        }
        scratch->mixed = scratch->H + ROWS * size + WIDTH; /* `spread` reads around */
        scratch->panel = scratch->mixed + ROWS * ldD + WIDTH;
        scratch->u = scratch->panel + 3 * WIDTH * (D + 1); /* `gather` writes behind */
    }
    return *kept = scratch;
}

int NAME(exp_rows)(void **kept, const REAL *H, const REAL *S, REAL *E, Size n, Size d) {
    NAME(scratch) *scratch = NAME(scratch_for)(kept, d, 0);
    if (scratch) NAME(exp_all)(&scratch->w, H, S, E, n, 1);
    return scratch ? OK : NO_MEMORY;
}

/* A panel of `width` columns from a (D, D) matrix that has only `left` more of them: the others are
 * zeros, for what is mixed with them counts in the norm of `forward_of`. */
static void NAME(copy_columns)(REAL *panel, const REAL *G, Size D, Size width, Size left) {
    const Size whole = left < width ? width - WIDTH : width, end = (D - 1) * D + left;
    const NAME(mask) last = NAME(lanes)(0, left - whole);
    for (Size k = 0; k < D; k++, panel += width) {
        const REAL *row = G + k * D;
        for (Size j = 0; j < whole; j += WIDTH)
            *(VECTOR *)(panel + j) = *(const VECTOR *)(row + j);
        if (whole == width) continue;
        if (k * D + width <= end) /* the vector ends inside the matrix */
            *(VECTOR *)(panel + whole) = NAME(keep)(last, *(const VECTOR *)(row + whole));
        else {
            *(VECTOR *)(panel + whole) = (VECTOR){0};
            memcpy(panel + whole, row + whole, (size_t)(left - whole) * sizeof(REAL));
        }
    }
}

/* mixed (n, D padded) = u (n, D) G, where G (D, D) is Γᵀ as it lies in memory. */
static void NAME(mix_rows_of)(NAME(scratch) * scratch, const REAL *G, Size n, Size D) {
    const Size ldD = NAME(padded)(D);
    for (Size column = 0, width; column < ldD; column += width) {
        width = NAME(tile_width)(ldD - column);
        const REAL *panel = G + column;
        Size ld = D;
        /* Many rows want the panel in the first cache, and whole vectors must not be read beyond
         * the matrix. */
        if (column + width > D || (n > FEW && D > FEW * WIDTH)) {
            NAME(copy_columns)(scratch->panel, panel, D, width, D - column);
            panel = scratch->panel, ld = width;
        }
        const NAME(job) job = {n, D,    scratch->u, D, panel, ld,
                               1, NULL, 0, scratch->mixed + column, ldD, 0};
        NAME(columns)(&job, 0, 0, width);
    }
}

/* F = exp(S) - I, where D padded numbers v are twice what S has above its diagonal; NULL if they
 * aren't finite. In double by the series, as in `forward_any`. */
static REAL *NAME(forward_of)(NAME(workspace) * w, const REAL *v) {
    if (sizeof(REAL) == 8) {
        NAME(spread)(w->shape, w->S, v, (REAL)0.5);
        return NAME(forward_general)(w);
    }
    const Size D = w->shape.d * (w->shape.d - 1) / 2;
    VECTOR squares = {0}, more = {0};
    Size i = 0;
    for (; i + WIDTH < D; i += 2 * WIDTH) {
        const VECTOR x = *(const VECTOR *)(v + i), y = *(const VECTOR *)(v + i + WIDTH);
        squares = NAME(fma)(x, x, squares), more = NAME(fma)(y, y, more);
    }
    if (i < D) {
        const VECTOR x = *(const VECTOR *)(v + i);
        squares = NAME(fma)(x, x, squares);
    }
    squares += more;
    double sum = 0;
    for (int c = 0; c < WIDTH; c++) sum += (double)squares[c];
    if (!(sum < INFINITY)) return NULL;
    const int halvings = NAME(halvings_of)(sqrt(sum) / 2); /* each plane angle stands once in S */
    NAME(spread)(w->shape, w->S, v, (REAL)0.5 / (REAL)((int64_t)1 << halvings));
    return NAME(series)(w, halvings);
}

/* H exp(tangent(Γ coordinates(Hᵀ A))) of n <= ROWS matrices; `mixing` is Γᵀ. */
int NAME(mix_rows)(void **kept, const REAL *H, const REAL *A, const REAL *mixing, REAL *out, Size n,
                   Size d) {
    NAME(scratch) *scratch = NAME(scratch_for)(kept, d, 1);
    if (!scratch) return NO_MEMORY;
    NAME(workspace) *w = &scratch->w;
    const NAME(shape) s = w->shape;
    const Size D = d * (d - 1) / 2, dd = d * d;
    for (Size b = 0; b < n; b++) { /* (Hᵀ A)ᵀ = Aᵀ H */
        REAL *state = scratch->H + b * s.size;
        NAME(load)(s, state, H + b * dd);
        NAME(multiply)(s, w->G, A + b * dd, d, 1, state, 1, NULL, 0);
        NAME(gather)(s, scratch->u + b * D, w->G, w->G2);
    }
    NAME(mix_rows_of)(scratch, mixing, n, D);
    for (Size b = 0; b < n; b++) {
        REAL *state = scratch->H + b * s.size;
        const REAL *F = NAME(forward_of)(w, scratch->mixed + b * NAME(padded)(D));
        if (!F) {
            NAME(fill_nan)(dd, out + b * dd);
            continue;
        }
        NAME(multiply)(s, w->G, state, s.ld, 0, F, 1, state, 1);
        NAME(store)(s, out + b * dd, w->G);
    }
    return OK;
}
