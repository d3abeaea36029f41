/* The kernels that operators call: some rows of a batch. Included once for each REAL; no include
 * guard. A scratch is the workspace of one thread: `*kept` is NULL at first, and may be handed to
 * the next call.
 */

typedef struct {
    NAME(workspace) w;
    REAL *H, *u, *mixed, *panel; /* of `mix_rows` only; a panel of Γᵀ */
    void *block;
} NAME(scratch);

static NAME(scratch) * NAME(scratch_for)(void **kept, Size d, int mixes) {
    NAME(scratch) *scratch = *kept;
    if (scratch && scratch->w.shape.d == d) return scratch;
    if (scratch) {
        free(scratch->w.block), free(scratch->block), free(scratch);
        *kept = NULL;
    }
    scratch = calloc(1, sizeof *scratch);
    if (!scratch || NAME(open)(&scratch->w, d)) {
        free(scratch);
        return NULL;
    }
    if (mixes) {
        const Size size = scratch->w.shape.size, D = d * (d - 1) / 2, ldD = NAME(padded)(D);
        scratch->H = NAME(zeros)(ROWS * (size + D + ldD) + 3 * WIDTH * D + WIDTH, &scratch->block);
        if (!scratch->H) {
            free(scratch->w.block), free(scratch);
            return NULL;
        }
        scratch->u = scratch->H + ROWS * size;
        scratch->mixed = scratch->u + ROWS * D;
        scratch->panel = scratch->mixed + ROWS * ldD;
    }
    return *kept = scratch;
}

void NAME(free_scratch)(void *kept) {
    NAME(scratch) *scratch = kept;
    if (scratch) free(scratch->w.block), free(scratch->block), free(scratch);
}

int NAME(exp_rows)(void **kept, const REAL *H, const REAL *S, REAL *E, Size n, Size d) {
    NAME(scratch) *scratch = NAME(scratch_for)(kept, d, 0);
    if (scratch) NAME(exp_all)(&scratch->w, H, S, E, n, 1);
    return scratch ? OK : NO_MEMORY;
}

/* A panel of `width` columns from a (D, D) matrix that has only `left` more of them. */
static void NAME(copy_columns)(REAL *panel, const REAL *G, Size D, Size width, Size left) {
    const size_t bytes = (size_t)(left < width ? left : width) * sizeof(REAL);
    if (left < width)
        for (Size k = 0; k < D; k++) memcpy(panel + k * width, G + k * D, bytes);
    else
        for (Size k = 0; k < D; k++)
            for (Size j = 0; j < width; j += WIDTH)
                *(VECTOR *)(panel + k * width + j) = *(const VECTOR *)(G + k * D + j);
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
        const NAME(job) job = {n, D, scratch->u, D, panel, ld, 1, NULL, 0, scratch->mixed + column, ldD};
        NAME(columns)(&job, 0, 0, width);
    }
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
        NAME(add_transpose)(s, w->G2, w->G, -HALF_ROOT, w->G, HALF_ROOT);
        NAME(pack)(w, scratch->u + b * D, w->G2, 1);
    }
    NAME(mix_rows_of)(scratch, mixing, n, D);
    for (Size b = 0; b < n; b++) {
        REAL *state = scratch->H + b * s.size;
        int halvings;
        NAME(unpack)(w, w->S, scratch->mixed + b * NAME(padded)(D), HALF_ROOT);
        const REAL *F = NAME(forward)(w, &halvings);
        if (!F) {
            NAME(fill_nan)(dd, out + b * dd);
            continue;
        }
        NAME(multiply)(s, w->G, state, s.ld, 0, F, 1, state, 1);
        NAME(store)(s, out + b * dd, w->G);
    }
    return OK;
}
