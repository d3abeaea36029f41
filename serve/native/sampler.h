/* One character a row, from its logits and one uniform number. Float only; included once. */

typedef struct {
    float odds;
    int32_t index;
} Candidate;

/* exp(x) of x <= 0, 0 below -87: 2^n times a polynomial of the rest. */
INLINE NAME(vector) NAME(exponentials)(NAME(vector) x) {
    const NAME(mask) large = x >= -87.0f;
    typedef int32_t integers __attribute__((vector_size(VECTOR_BYTES)));
    x = NAME(keep)(large, x);
    const integers n = __builtin_convertvector(x * 0x1.715476p+0f - 0.5f, integers);
    const NAME(vector) whole = __builtin_convertvector(n, NAME(vector));
    const NAME(vector) r = (x - whole * 0x1.62e4p-1f) - whole * 0x1.7f7d1cp-20f;
    NAME(vector) p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return NAME(keep)(large, p * (NAME(vector))((n + 127) << 23));
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

/* `WIDTH` rows of a (rows, V) matrix side by side, a column a vector: out (V padded, WIDTH). Of
 * fewer rows the last is taken again. */
static void NAME(side_by_side)(NAME(vector) * out, const float *rows, Size n, Size V) {
    for (Size r = 0; r < WIDTH; r++) {
        const float *row = rows + (r < n ? r : n - 1) * V;
        for (Size v = 0; v < V; v++) out[v][r] = row[v];
    }
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

/* What up to `WIDTH` rows draw, each in its lane: the same sums in the same order as one row's. */
static int NAME(sample_lanes)(NAME(vector) * q, NAME(vector) * biases, float *row,
                              const float *divisor, const _Bool *greedy, const int64_t *top_k,
                              const float *top_p, const float *uniform, int64_t *tokens, Size n,
                              Size V) {
    typedef int32_t integers __attribute__((vector_size(VECTOR_BYTES)));
    NAME(vector) most = q[0] + biases[0], divisors, uniforms, total = {0}, sum = {0};
    NAME(mask) broken = q[0] != q[0];
    integers best = {0}, count = {0};
    for (Size r = 0; r < WIDTH; r++) {
        divisors[r] = divisor[r < n ? r : n - 1];
        uniforms[r] = uniform[r < n ? r : n - 1];
    }
    for (Size v = 0; v < V; v++) {
        q[v] += biases[v];
        const NAME(mask) larger = q[v] > most;
        broken |= q[v] != q[v];
        most = NAME(keep)(larger, q[v]) + NAME(keep)(~larger, most);
        best = (integers)(((integers){0} + (int32_t)v) & larger) | (best & ~(integers)larger);
    }
    broken |= ~((most < INFINITY) & (most > -INFINITY));
    for (Size v = 0; v < V; v++) total += q[v] = NAME(exponentials)((q[v] - most) / divisors);
    const NAME(vector) threshold = uniforms * total;
    for (Size v = 0; v < V; v++) {
        sum += q[v];
        count -= (integers)(sum <= threshold);
    }
    for (Size r = 0; r < n; r++) {
        if (broken[r] || greedy[r]) {
            tokens[r] = broken[r] ? 0 : best[r];
        } else if (top_k[r] < V || top_p[r] < 2) {
            for (Size v = 0; v < V; v++) row[v] = q[v][r];
            if (NAME(draw_cut)(row, total[r], top_k[r], top_p[r], uniform[r], V, tokens + r))
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
    NAME(vector) *q = (NAME(vector) *)NAME(zeros)((2 * WIDTH + 1) * V, &block);
    int code = q ? OK : NO_MEMORY;
    for (Size b = 0; b < n && code == OK; b += WIDTH) {
        const Size lanes = n - b < WIDTH ? n - b : WIDTH;
        Size sampled = 0;
        for (Size r = 0; r < lanes; r++) sampled += forced[b + r] < 0;
        if (sampled) {
            NAME(side_by_side)(q, logits + b * V, lanes, V);
            NAME(side_by_side)(q + V, bias + b * V, lanes, V);
            code = NAME(sample_lanes)(q, q + V, (float *)(q + 2 * V), divisor + b, greedy + b,
                                      top_k + b, top_p + b, uniform + b, tokens + b, lanes, V);
        }
        for (Size r = 0; r < lanes; r++)
            if (forced[b + r] >= 0) tokens[b + r] = forced[b + r];
    }
    free(block);
    return code;
}
