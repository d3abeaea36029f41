/* The window of an OSM-RNN over SO(d). Included once for each REAL; no include guard.
 *
 *     A = Hᵀ M_x,  u_ij = (A_ij - A_ji) / √2 for i < j,  v = Γ u,  S_ij = v_ij / √2 = -S_ji,
 *     H' = H exp(S)
 *
 * T times, B sequences, V rows of the table, D = d (d - 1) / 2. Without mixing v = u.
 */

#define HALF_ROOT ((REAL)0.70710678118654752440)

/* scale × what stands above the diagonal of X, row by row: D numbers. */
static void NAME(pack)(const NAME(workspace) * w, REAL *out, const REAL *X, REAL scale) {
    const NAME(shape) s = w->shape;
    REAL *next = w->line;
    for (Size i = 0; i < s.d - 1; next += s.d - 1 - i, i++)
        for (Size j = 0; j < s.d - 1 - i; j += WIDTH)
            *(VECTOR *)(next + j) = scale * *(const VECTOR *)(X + i * s.ld + i + 1 + j);
    memcpy(out, w->line, (size_t)(next - w->line) * sizeof(REAL));
}

/* The skew matrix with scale × these D numbers above its diagonal. */
static void NAME(unpack)(const NAME(workspace) * w, REAL *out, const REAL *u, REAL scale) {
    const NAME(shape) s = w->shape;
    const REAL *next = w->line + WIDTH; /* column i + 1 of row i; whole vectors start before it */
    memcpy(w->line + WIDTH, u, (size_t)(s.d * (s.d - 1) / 2) * sizeof(REAL));
    for (Size i = 0; i < s.d - 1; next += s.d - 1 - i, i++)
        for (Size j = i / WIDTH * WIDTH; j < s.ld; j += WIDTH) {
            const VECTOR x = *(const VECTOR *)(next - i - 1 + j);
            *(VECTOR *)(w->triangle + i * s.ld + j) =
                scale * NAME(keep)(NAME(lanes)(i + 1 - j, s.d - j), x);
        }
    NAME(add_transpose)(s, out, w->triangle, 1, w->triangle, -1);
}

/* out (B, D padded) = in (B, D) times the packed matrix. */
static void NAME(mix)(REAL *out, const REAL *in, const REAL *panels, Size B, Size D) {
    const NAME(job) job = {B, D, in, D, panels, 0, 1, NULL, 0, out, NAME(padded)(D), 0};
    NAME(by_panels)(&job, D);
}

static int NAME(rows_exist)(const int64_t *xs, Size count, Size V) {
    for (Size i = 0; i < count; i++)
        if (xs[i] < 0 || xs[i] >= V) return 0;
    return 1;
}

/* Hs (T, B, d, d), and u and v (T, B, D) for the backward; u only with mixing. */
EXPORT int NAME(osm_scan)(const REAL *table, const int64_t *xs, const REAL *H0, const REAL *mixing,
                          REAL *Hs, REAL *u, REAL *v, Size T, Size B, Size V, Size d) {
    if (!NAME(rows_exist)(xs, T * B, V)) return NO_SUCH_ROW;
    const Size D = d * (d - 1) / 2, ldD = NAME(padded)(D), dd = d * d;
    NAME(workspace) w;
    if (NAME(open)(&w, d)) return NO_MEMORY;
    const NAME(shape) s = w.shape;
    void *block;
    REAL *H = NAME(zeros)(B * s.size + (mixing ? (B + D) * ldD : 0), &block);
    if (!H) {
        free(w.block);
        return NO_MEMORY;
    }
    REAL *mixed = H + B * s.size, *panels = mixed + B * ldD;
    if (mixing) NAME(pack_panels)(panels, mixing, D, D, 1);
    for (Size b = 0; b < B; b++) NAME(load)(s, H + b * s.size, H0 + b * dd);
    for (Size t = 0; t < T; t++, xs += B, Hs += B * dd, v += B * D, u += mixing ? B * D : 0) {
        REAL *wanted = mixing ? u : v;
        for (Size b = 0; b < B; b++) { /* Aᵀ = Mᵀ H */
            NAME(multiply)(s, w.G, table + xs[b] * dd, d, 1, H + b * s.size, 1, NULL, 0);
            NAME(add_transpose)(s, w.G2, w.G, -HALF_ROOT, w.G, HALF_ROOT);
            NAME(pack)(&w, wanted + b * D, w.G2, 1);
        }
        if (mixing) {
            NAME(mix)(mixed, u, panels, B, D);
            for (Size b = 0; b < B; b++)
                memcpy(v + b * D, mixed + b * ldD, (size_t)D * sizeof(REAL));
        }
        for (Size b = 0; b < B; b++) {
            REAL *state = H + b * s.size;
            int halvings;
            NAME(unpack)(&w, w.S, v + b * D, HALF_ROOT);
            const REAL *F = NAME(forward)(&w, &halvings);
            if (F)
                NAME(multiply)(s, w.G, state, s.ld, 0, F, 1, state, 1);
            else
                NAME(fill_nan)(d * s.ld, w.G);
            memcpy(state, w.G, (size_t)(d * s.ld) * sizeof(REAL));
            NAME(store)(s, Hs + b * dd, state);
        }
    }
    free(block);
    free(w.block);
    return OK;
}

/* What the backward keeps from step to step. */
typedef struct {
    REAL *dH;     /* (B, d, d) padded: the gradient of the state after the step */
    REAL *dtable; /* (V, d, d) padded */
    REAL *mixed;  /* (B, D) padded */
    REAL *panels; /* mixing, packed */
    void *block;
} NAME(tape);

/* From dH' of one state to dv (D) and the part of dH that comes through H exp(S). */
static void NAME(step_backward)(NAME(workspace) * w, const REAL *H, const REAL *v, REAL *dH,
                                REAL *dv) {
    const NAME(shape) s = w->shape;
    int halvings;
    NAME(unpack)(w, w->S, v, HALF_ROOT);
    const REAL *F = NAME(forward)(w, &halvings);
    if (!F) {
        NAME(fill_nan)(s.d * (s.d - 1) / 2, dv);
        NAME(fill_nan)(s.d * s.ld, dH);
        return;
    }
    NAME(multiply)(s, w->G, H, s.d, 1, dH, 1, NULL, 0); /* dF = Hᵀ dH' */
    NAME(transpose)(s, w->T, F);
    NAME(multiply)(s, w->U, dH, s.ld, 0, w->T, 1, dH, 1); /* dH = dH' + dH' Fᵀ */
    memcpy(dH, w->U, (size_t)(s.d * s.ld) * sizeof(REAL));
    NAME(backward)(w, halvings);
    NAME(pack)(w, dv, w->X, HALF_ROOT);
}

/* dtable (V, d, d), dH0 (B, d, d) and dv (T, B, D); the gradient of mixing is sum dv ⊗ u. */
EXPORT int NAME(osm_scan_backward)(const REAL *table, const int64_t *xs, const REAL *H0,
                                   const REAL *mixing, const REAL *Hs, const REAL *v,
                                   const REAL *dHs, REAL *dtable, REAL *dH0, REAL *dv, Size T,
                                   Size B, Size V, Size d) {
    if (!NAME(rows_exist)(xs, T * B, V)) return NO_SUCH_ROW;
    const Size D = d * (d - 1) / 2, ldD = NAME(padded)(D), dd = d * d;
    NAME(workspace) w;
    if (NAME(open)(&w, d)) return NO_MEMORY;
    const NAME(shape) s = w.shape;
    NAME(tape) tape;
    tape.dH = NAME(zeros)((B + V) * s.size + (mixing ? (B + D) * ldD : 0), &tape.block);
    if (!tape.dH) {
        free(w.block);
        return NO_MEMORY;
    }
    tape.dtable = tape.dH + B * s.size;
    tape.mixed = tape.dtable + V * s.size;
    tape.panels = tape.mixed + B * ldD;
    if (mixing) NAME(pack_panels)(tape.panels, mixing, D, D, 0);
    for (Size t = T - 1; t >= 0; t--) {
        const REAL *before = t ? Hs + (t - 1) * B * dd : H0;
        REAL *dv_t = dv + t * B * D;
        for (Size b = 0; b < B; b++) {
            REAL *dH = tape.dH + b * s.size;
            NAME(load)(s, w.T, dHs + (t * B + b) * dd);
            for (Size i = 0; i < d * s.ld; i += WIDTH)
                *(VECTOR *)(dH + i) += *(const VECTOR *)(w.T + i);
            NAME(step_backward)(&w, before + b * dd, v + (t * B + b) * D, dH, dv_t + b * D);
        }
        if (mixing) NAME(mix)(tape.mixed, dv_t, tape.panels, B, D);
        for (Size b = 0; b < B; b++) { /* A = HᵀM, dA skew: dH -= M dA, dM += H dA */
            REAL *dH = tape.dH + b * s.size, *dM = tape.dtable + xs[t * B + b] * s.size;
            const REAL *du = mixing ? tape.mixed + b * ldD : dv_t + b * D;
            NAME(unpack)(&w, w.U, du, HALF_ROOT);
            NAME(multiply)(s, dH, table + xs[t * B + b] * dd, d, 0, w.U, -1, dH, 1);
            NAME(multiply)(s, dM, before + b * dd, d, 0, w.U, 1, dM, 1);
        }
    }
    for (Size b = 0; b < B; b++) NAME(store)(s, dH0 + b * dd, tape.dH + b * s.size);
    for (Size x = 0; x < V; x++) NAME(store)(s, dtable + x * dd, tape.dtable + x * s.size);
    free(tape.block);
    free(w.block);
    return OK;
}
