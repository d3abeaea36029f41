/* K steps of some streams of an OSM-RNN on SO(d): readout, character, move. Float only; included once.
 *
 * Up to `ROWS` streams take all their steps before the next ones begin, so their states and the
 * weights stay in the cache. Every stream's numbers are made in one order, whatever runs beside it.
 */

#include "advance.h"

/* Memory of one block. Lanes hold `WIDTH` streams side by side, a character a vector. */
typedef struct {
    NAME(scratch) * matrices;
    REAL *H, *flat; /* states, padded and not; one memory where that is the same */
    REAL *u, *mixed, *logits, *row;
    VECTOR *biases, *raw, *odds, *sums;
    Size ldD, ldV;
    float divisor[ROWS], top_p[ROWS];
    int64_t top_k[ROWS];
    _Bool greedy[ROWS], plain[ROWS / WIDTH]; /* no bias and temperature 1 in all lanes */
} NAME(block);

/* How many numbers `pack_weights` writes. */
Size NAME(packed_size)(Size d, Size V) {
    const Size D = d * (d - 1) / 2, ldV = NAME(padded)(V);
    return D * NAME(padded)(D) + (d * d + 1) * ldV;
}

/* Γᵀ and the prototypes in panels, and the base, its last vector filled up with zeros. */
void NAME(pack_weights)(REAL *out, const Advance *run) {
    const Size d = run->d, D = d * (d - 1) / 2, V = run->V;
    memset(out, 0, (size_t)NAME(packed_size)(d, V) * sizeof(REAL));
    NAME(pack_panels)(out, run->mixing, D, D, 1);
    out += D * NAME(padded)(D);
    NAME(pack_panels)(out, run->prototypes, d * d, V, 1);
    memcpy(out + d * d * NAME(padded)(V), run->base, (size_t)V * sizeof(REAL));
}

static int NAME(open_block)(NAME(block) * block, void **kept, Size d, Size V) {
    const Size D = d * (d - 1) / 2, ldD = NAME(padded)(D), ldV = NAME(padded)(V);
    const Size size = NAME(shape_of)(d).size, flat = size == d * d ? 0 : d * d;
    const Size count = ROWS * (size + flat + D + ldD + ldV + V) + 3 * ldV * WIDTH + ldV + 6 * WIDTH;
    NAME(scratch) *scratch = block->matrices = NAME(scratch_for)(kept, d, 0);
    if (!scratch) return NO_MEMORY;
    if (scratch->advance_size < count) {
        free(scratch->advance_block);
        scratch->advance = NAME(zeros)(count, &scratch->advance_block);
        scratch->advance_size = scratch->advance ? count : 0;
    }
    REAL *next = scratch->advance;
    if (!next) return NO_MEMORY;
    block->ldD = ldD, block->ldV = ldV;
    block->H = next, next += ROWS * size;
    block->flat = flat ? next : block->H, next += ROWS * flat;
    block->logits = next, next += ROWS * ldV;
    block->biases = (VECTOR *)next, next += ROWS * V;
    block->raw = (VECTOR *)next, next += ldV * WIDTH;
    block->odds = (VECTOR *)next, next += ldV * WIDTH;
    block->sums = (VECTOR *)next, next += ldV * WIDTH;
    block->row = next, next += ldV;
    block->mixed = next + WIDTH, next += ROWS * ldD + 2 * WIDTH; /* `spread` reads around */
    block->u = next; /* `gather` writes behind */
    return OK;
}

/* The settings as the sampler wants them: neutral where a stream has none. */
static void NAME(read_settings)(NAME(block) * block, const Advance *run, Size first, Size n) {
    const Size V = run->V;
    for (Size r = 0; r < ROWS; r++) {
        const Size b = first + (r < n ? r : n - 1);
        const float temperature = run->temperature[b], top_p = run->top_p[b];
        block->greedy[r] = temperature <= 0;
        block->divisor[r] = temperature <= 0 ? 1 : temperature > 1e-30f ? temperature : 1e-30f;
        block->top_k[r] = run->top_k[b] <= 0 ? V : run->top_k[b];
        block->top_p[r] = top_p >= 1 ? 2 : top_p > 1e-30f ? top_p : 1e-30f;
    }
    for (Size r = 0; r < n; r += WIDTH) {
        VECTOR *biases = block->biases + r / WIDTH * V;
        NAME(mask) differs = NAME(lanes)(0, 0);
        NAME(side_by_side)(biases, run->bias + (first + r) * V, V, n - r, V);
        for (Size v = 0; v < V; v++) differs |= biases[v] != 0;
        _Bool plain = 1;
        for (Size lane = 0; lane < WIDTH; lane++)
            plain &= !differs[lane] && block->divisor[r + lane] == 1;
        block->plain[r / WIDTH] = plain;
    }
}

/* The states, put back on the group where that is due. */
static void NAME(read_states)(NAME(block) * block, const Advance *run, Size first, Size n) {
    NAME(workspace) *w = &block->matrices->w;
    const NAME(shape) s = w->shape;
    const Size dd = s.d * s.d;
    for (Size r = 0; r < n; r++) {
        const Size b = first + r;
        REAL *H = block->H + r * s.size;
        NAME(load)(s, H, run->H + b * dd);
        if (run->num_steps[b] > 0 && run->position[b] % *run->correct_every == 0) {
            NAME(multiply)(s, w->G, H, s.ld, 1, H, 1, NULL, 0); /* H <- H (3 - HᵀH) / 2 */
            NAME(multiply)(s, w->G2, H, s.ld, 0, w->G, (REAL)-0.5, H, (REAL)1.5);
            memcpy(H, w->G2, (size_t)(s.d * s.ld) * sizeof(REAL));
        }
        if (block->flat != block->H) NAME(store)(s, block->flat + r * dd, H);
    }
}

/* What step k reads out: the raw logits, into the run's own and the block's. */
static void NAME(read_out)(NAME(block) * block, const Advance *run, Size k, Size first, Size n) {
    const Size d = run->d, dd = d * d, V = run->V, ldV = block->ldV, D = d * (d - 1) / 2;
    const REAL *panels = run->packed + D * block->ldD;
    const NAME(job) job = {n,  dd, block->flat, dd,  panels, 0, *run->scale, panels + dd * ldV,
                           1,  block->logits,   ldV, 0};
    NAME(by_panels)(&job, V);
    for (Size r = 0; r < n; r++)
        memcpy(run->logits + (k * run->B + first + r) * V, block->logits + r * ldV,
               (size_t)V * sizeof(float));
}

/* The characters of step k, and how probable they were. */
static int NAME(choose)(NAME(block) * block, const Advance *run, Size k, Size first, Size n) {
    const Size V = run->V, ldV = block->ldV, at = k * run->B + first;
    int64_t *tokens = run->tokens + at;
    for (Size r = 0; r < n; r += WIDTH) {
        const Size lanes = n - r < WIDTH ? n - r : WIDTH;
        const _Bool plain = block->plain[r / WIDTH];
        NAME(draw) draw = {.scores = block->raw, .odds = block->odds, .sums = block->sums,
                           .row = block->row, .V = V, .lanes = lanes};
        const Settings settings = {block->divisor + r, block->greedy + r, block->top_k + r,
                                   block->top_p + r, run->uniform + at + r};
        VECTOR most, total;
        NAME(side_by_side)(block->raw, block->logits + r * ldV, ldV, WIDTH, ldV);
        if (!plain) NAME(weigh)(V, block->raw, &most, &total);
        const VECTOR *biases = plain ? NULL : block->biases + r / WIDTH * V;
        if (NAME(draw_lanes)(&draw, biases, &settings, plain, tokens + r))
            return NO_MEMORY;
        if (plain) most = draw.most, total = draw.total;
        const VECTOR below = NAME(logarithms)(total);
        for (Size lane = 0; lane < lanes; lane++) {
            const Size place = r + lane;
            if (run->forced[at + place] >= 0) tokens[place] = run->forced[at + place];
            if (tokens[place] >= run->rows || tokens[place] >= V) return NO_SUCH_ROW;
            run->logprob[at + place] =
                block->logits[place * ldV + tokens[place]] - most[lane] - below[lane];
        }
    }
    return OK;
}

/* The states after the characters of step k, of the streams that take it; the others show -1, 0. */
static void NAME(move)(NAME(block) * block, const Advance *run, Size k, Size first, Size n) {
    NAME(workspace) *w = &block->matrices->w;
    const NAME(shape) s = w->shape;
    const Size d = s.d, dd = d * d, D = d * (d - 1) / 2, ldD = block->ldD;
    Size moving[ROWS], count = 0;
    for (Size r = 0; r < n; r++) {
        const Size at = k * run->B + first + r;
        if (run->num_steps[first + r] <= k) {
            run->tokens[at] = -1, run->logprob[at] = 0;
            continue;
        }
        const REAL *A = run->table + run->tokens[at] * dd; /* (Hᵀ A)ᵀ = Aᵀ H */
        NAME(multiply)(s, w->G, A, d, 1, block->H + r * s.size, 1, NULL, 0);
        NAME(gather)(s, block->u + count * D, w->G, w->G2);
        moving[count++] = r;
    }
    const NAME(job) job = {count, D, block->u, D, run->packed, 0, 1, NULL, 0, block->mixed, ldD, 0};
    NAME(by_panels)(&job, D);
    for (Size i = 0; i < count; i++) {
        REAL *H = block->H + moving[i] * s.size;
        const REAL *F = NAME(forward_of)(w, block->mixed + i * ldD);
        if (F) {
            NAME(multiply)(s, w->G, H, s.ld, 0, F, 1, H, 1);
            memcpy(H, w->G, (size_t)(d * s.ld) * sizeof(REAL));
        } else
            NAME(fill_nan)(d * s.ld, H);
        if (block->flat != block->H) NAME(store)(s, block->flat + moving[i] * dd, H);
    }
}

/* All steps of the streams from `first` on, n <= ROWS of them. */
int NAME(advance_rows)(void **kept, const Advance *run, Size first, Size n) {
    NAME(block) block;
    if (NAME(open_block)(&block, kept, run->d, run->V)) return NO_MEMORY;
    NAME(read_settings)(&block, run, first, n);
    NAME(read_states)(&block, run, first, n);
    int code = OK;
    for (Size k = 0; k < run->K && code == OK; k++) {
        NAME(read_out)(&block, run, k, first, n);
        code = NAME(choose)(&block, run, k, first, n);
        if (code == OK) NAME(move)(&block, run, k, first, n);
    }
    const Size dd = run->d * run->d;
    memcpy(run->next + first * dd, block.flat, (size_t)(n * dd) * sizeof(REAL));
    return code;
}
