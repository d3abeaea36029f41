/* One character a row, from its logits and one uniform number. Float only; included once.
 *
 * `WIDTH` rows stand side by side, each in its lane: the same sums in the same order as one row's.
 */

typedef struct {
    float odds;
    int32_t index;
} Candidate;

/* Of the rows in the lanes. */
typedef struct {
    const float *divisor;
    const _Bool *greedy;
    const int64_t *top_k;
    const float *top_p, *uniform;
} Settings;

typedef int32_t NAME(integers) __attribute__((vector_size(VECTOR_BYTES)));

/* Logits of `lanes` rows, a character a vector, and room for what is made of them. */
typedef struct {
    VECTOR *scores, *odds, *sums; /* V each; scores start as the logits */
    float *row;                   /* V of one row */
    Size V, lanes;
    VECTOR most, total; /* the largest score, and sum exp(score - most) */
} NAME(draw);

/* exp(x) of x <= 0, 0 below -87: 2^n times a polynomial of the rest. */
INLINE VECTOR NAME(exponentials)(VECTOR x) {
    const NAME(mask) large = x >= -87.0f;
    x = NAME(keep)(large, x);
    const VECTOR half = NAME(all)(-0.5f), one = NAME(all)(1.0f);
    const VECTOR ratio = NAME(fma)(x, NAME(all)(0x1.715476p+0f), half);
    const NAME(integers) n = __builtin_convertvector(ratio, NAME(integers));
    const VECTOR whole = __builtin_convertvector(n, VECTOR);
    VECTOR r = NAME(fma)(whole, NAME(all)(-0x1.62e4p-1f), x);
    r = NAME(fma)(whole, NAME(all)(-0x1.7f7d1cp-20f), r);
    VECTOR p = NAME(fma)(r, NAME(all)(1.0f / 5040), NAME(all)(1.0f / 720));
    p = NAME(fma)(p, r, NAME(all)(1.0f / 120));
    p = NAME(fma)(p, r, NAME(all)(1.0f / 24));
    p = NAME(fma)(p, r, NAME(all)(1.0f / 6));
    p = NAME(fma)(p, r, NAME(all)(0.5f));
    p = NAME(fma)(p, r, one);
    p = NAME(fma)(p, r, one);
    return NAME(keep)(large, p * (VECTOR)((n + 127) << 23));
}

/* log(x) of normal x: n log 2 + log m, where m lies around 1; 2 artanh s of s = (m - 1) / (m + 1). */
INLINE VECTOR NAME(logarithms)(VECTOR x) {
    const NAME(integers) bits = (NAME(integers))x, n = (bits - 0x3f3504f3) >> 23; /* of √½ */
    const VECTOR m = (VECTOR)(bits - (n << 23)), one = NAME(all)(1.0f);
    const VECTOR s = (m - one) / (m + one), square = s * s;
    VECTOR p = NAME(fma)(square, NAME(all)(1.0f / 9), NAME(all)(1.0f / 7));
    p = NAME(fma)(p, square, NAME(all)(1.0f / 5));
    p = NAME(fma)(p, square, NAME(all)(1.0f / 3));
    const VECTOR rest = NAME(fma)(p * square, s, s);
    return NAME(fma)(__builtin_convertvector(n, VECTOR), NAME(all)(0.693147181f), rest + rest);
}

static int NAME(more_likely)(const void *one, const void *other) {
    const Candidate *a = one, *b = other;
    if (a->odds != b->odds) return a->odds > b->odds ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

/* Zero odds (sum `total`) outside the top_k most probable and outside their share top_p. */
static int NAME(cut)(float *odds, float total, int64_t top_k, float top_p, Size V) {
    Candidate *order = malloc((size_t)V * sizeof *order);
    if (!order) return NO_MEMORY;
    for (Size v = 0; v < V; v++) order[v] = (Candidate){odds[v], (int32_t)v};
    qsort(order, (size_t)V, sizeof *order, NAME(more_likely));
    float before = 0;
    for (Size rank = 0; rank < V; rank++) {
        const float share = order[rank].odds / total;
        if (rank >= top_k || !(before < top_p)) odds[order[rank].index] = 0;
        before += share;
    }
    free(order);
    return OK;
}

/* `WIDTH` rows of V numbers, `ld` apart, a column a vector. Of fewer than n the last is taken again. */
static void NAME(side_by_side)(VECTOR *out, const float *rows, Size ld, Size n, Size V) {
    Size v = 0;
    if (n >= WIDTH)
        for (; v + WIDTH <= V; v += WIDTH) NAME(transpose_block)(rows + v, ld, out + v);
    for (; v < V; v++)
        for (Size r = 0; r < WIDTH; r++) out[v][r] = rows[(r < n ? r : n - 1) * ld + v];
}

/* A cut row: #{v : q_0 + ... + q_v <= u · sum q} over the odds that `cut` leaves. */
static int NAME(draw_cut)(float *odds, float total, int64_t top_k, float top_p, float uniform,
                          Size V, int64_t *token) {
    if (NAME(cut)(odds, total, top_k, top_p, V)) return NO_MEMORY;
    Size count = 0;
    float sum = 0, passed = 0;
    for (Size v = 0; v < V; v++) sum += odds[v];
    for (Size v = 0; v < V; v++) {
        passed += odds[v];
        count += passed <= uniform * sum;
    }
    *token = count < V ? count : V - 1;
    return OK;
}

/* The largest score of every lane, NaN where one isn't a number or none is finite. */
static VECTOR NAME(largest)(Size V, const VECTOR *scores) {
    VECTOR most = scores[0];
    NAME(mask) broken = NAME(lanes)(0, 0);
    for (Size v = 0; v < V; v++) {
        broken |= scores[v] != scores[v];
        most = NAME(larger)(scores[v], most);
    }
    broken |= ~((most < INFINITY) & (most > -INFINITY));
    return NAME(keep)(~broken, most) + (VECTOR)(broken & (NAME(mask))NAME(all)(NAN));
}

/* The largest score, and sum exp(score - most). */
static void NAME(weigh)(Size V, const VECTOR *scores, VECTOR *most, VECTOR *total) {
    *most = NAME(largest)(V, scores);
    *total = (VECTOR){0};
    for (Size v = 0; v < V; v++) *total += NAME(exponentials)(scores[v] - *most);
}

/* What rows draw after `biases` (NULL: none) and settings. `plain`: all divisors are one. */
static int NAME(draw_lanes)(NAME(draw) * draw, const VECTOR *biases, const Settings *settings,
                            int plain, int64_t *tokens) {
    const Size V = draw->V, lanes = draw->lanes;
    VECTOR *scores = draw->scores, *odds = draw->odds, *sums = draw->sums, sum = {0};
    VECTOR divisors, uniforms;
    NAME(integers) count = {0};
    for (Size r = 0; r < WIDTH; r++) {
        divisors[r] = settings->divisor[r < lanes ? r : lanes - 1];
        uniforms[r] = settings->uniform[r < lanes ? r : lanes - 1];
    }
    if (biases)
        for (Size v = 0; v < V; v++) scores[v] += biases[v];
    const VECTOR most = draw->most = NAME(largest)(V, scores);
    for (Size v = 0; v < V; v++) {
        VECTOR below = scores[v] - most;
        if (!plain) below /= divisors;
        odds[v] = NAME(exponentials)(below);
        sums[v] = sum += odds[v];
    }
    draw->total = sum;
    const VECTOR threshold = uniforms * sum;
    for (Size v = 0; v < V; v++) count -= (NAME(integers))(sums[v] <= threshold);
    for (Size r = 0; r < lanes; r++) {
        const int64_t top_k = settings->top_k[r];
        const float top_p = settings->top_p[r];
        if (most[r] != most[r]) {
            tokens[r] = 0;
        } else if (settings->greedy[r]) {
            Size v = 0;
            while (scores[v][r] != most[r]) v++;
            tokens[r] = v;
        } else if (top_k < V || top_p < 2) {
            for (Size v = 0; v < V; v++) draw->row[v] = odds[v][r];
            if (NAME(draw_cut)(draw->row, sum[r], top_k, top_p, uniforms[r], V, tokens + r))
                return NO_MEMORY;
        } else {
            tokens[r] = count[r] < V ? count[r] : V - 1;
        }
    }
    return OK;
}

/* Rows of `SampleToken`; operators.c says what they are. */
int NAME(sample_rows)(const float *logits, const float *bias, const float *divisor,
                      const _Bool *greedy, const int64_t *top_k, const float *top_p,
                      const float *uniform, const int64_t *forced, int64_t *tokens, Size n,
                      Size V) {
    void *block;
    VECTOR *scores = (VECTOR *)NAME(zeros)((4 * WIDTH + 1) * V, &block), *biases = scores + V;
    int code = scores ? OK : NO_MEMORY;
    for (Size b = 0; b < n && code == OK; b += WIDTH) {
        const Size lanes = n - b < WIDTH ? n - b : WIDTH;
        Size sampled = 0;
        for (Size r = 0; r < lanes; r++) sampled += forced[b + r] < 0;
        if (sampled) {
            NAME(draw) draw = {.scores = scores, .odds = scores + 2 * V, .sums = scores + 3 * V,
                               .row = (float *)(scores + 4 * V), .V = V, .lanes = lanes};
            const Settings settings = {divisor + b, greedy + b, top_k + b, top_p + b, uniform + b};
            NAME(side_by_side)(scores, logits + b * V, V, lanes, V);
            NAME(side_by_side)(biases, bias + b * V, V, lanes, V);
            code = NAME(draw_lanes)(&draw, biases, &settings, 0, tokens + b);
        }
        for (Size r = 0; r < lanes; r++)
            if (forced[b + r] >= 0) tokens[b + r] = forced[b + r];
    }
    free(block);
    return code;
}
