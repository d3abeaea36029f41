/* What the CUDA kernel does to one row of `SampleToken`: sampler.h for a team of threads (see
 * cuda_matrices.cuh).
 *
 * Scores, odds and ranks are made by all threads. The sums are made by the first alone, in the order
 * of the CPU kernel: vocabularies here are characters or bytes, and a sum in another order would
 * round otherwise. Ranks are counted, V^2 comparisons in all, where a row asks for a cut.
 */

#ifndef TORSOR_CUDA_SAMPLER_H
#define TORSOR_CUDA_SAMPLER_H

#include <stdint.h>
#include <string.h>

#include "cuda_matrices.cuh"

/* The inputs, of all rows, and the output. */
typedef struct {
    const float *logits, *bias, *divisor;
    const bool *greedy;
    const int64_t *top_k;
    const float *top_p, *uniform;
    const int64_t *forced;
    int64_t *tokens;
} Rows;

/* Memory of a team of `count`: the odds and who has which rank; the best that each thread saw. */
typedef struct {
    float *odds;
    int32_t *order;
    float *most;
    int32_t *best, *broken;
} RowSpace;

BOTH size_t row_space_bytes(Size V, int count) {
    return ((size_t)V * 2 + (size_t)count * 3) * sizeof(float);
}

BOTH RowSpace row_space_in(void *memory, Size V, int count) {
    float *odds = (float *)memory, *most = odds + V;
    int32_t *best = (int32_t *)(most + count);
    RowSpace space = {odds, best + 2 * count, most, best, best + count};
    return space;
}

/* exp(x) of x <= 0, 0 below -87: 2^n times a polynomial of the rest. */
BOTH float exponential_of(float x) {
    if (!(x >= -87.0f)) return 0;
    const int32_t n = (int32_t)(x * 0x1.715476p+0f - 0.5f);
    const float r = (x - (float)n * 0x1.62e4p-1f) - (float)n * 0x1.7f7d1cp-20f;
    float p = r * (1.0f / 5040) + 1.0f / 720, power;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const int32_t bits = (n + 127) << 23;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* The scores of a row into w.odds, and what this thread saw of them. */
template <class Team>
BOTH void score(const Team &team, Size V, const float *logits, const float *bias,
                const RowSpace &w) {
    float most = -INFINITY;
    int32_t best = (int32_t)V, broken = 0;
    for (Size v = team.thread; v < V; v += team.count) {
        const float x = w.odds[v] = logits[v] + bias[v];
        if (x != x) broken = 1;
        if (x > most) most = x, best = (int32_t)v;
    }
    w.most[team.thread] = most, w.best[team.thread] = best, w.broken[team.thread] = broken;
    team.wait();
}

/* The rank of every number of w.odds, the largest first, lower indices first on ties. */
template <class Team>
BOTH void rank(const Team &team, Size V, const RowSpace &w) {
    for (Size v = team.thread; v < V; v += team.count) {
        const float x = w.odds[v];
        Size before = 0;
        for (Size other = 0; other < V; other++)
            before += w.odds[other] > x || (w.odds[other] == x && other < v);
        w.order[before] = (int32_t)v;
    }
    team.wait();
}

/* By one thread: zero odds outside the top_k most probable and outside their share top_p. */
BOTH void cut(Size V, const RowSpace &w, float total, int64_t top_k, float top_p) {
    float before = 0;
    for (Size place = 0; place < V; place++) {
        const float share = w.odds[w.order[place]] / total;
        if (place >= top_k || !(before < top_p)) w.odds[w.order[place]] = 0;
        before += share;
    }
}

BOTH float sum_of(Size V, const float *odds) {
    float total = 0;
    for (Size v = 0; v < V; v++) total += odds[v];
    return total;
}

/* By one thread: the first v with q_0 + ... + q_v > threshold. */
BOTH int64_t draw(Size V, const float *odds, float threshold) {
    float passed = 0;
    for (Size v = 0; v < V; v++) {
        passed += odds[v];
        if (!(passed <= threshold)) return v;
    }
    return V - 1;
}

/* One row. Every thread takes the same way, up to where only the first is left. */
template <class Team>
BOTH void sample_row(const Team &team, Size V, Size row, const Rows &given, void *memory) {
    const RowSpace w = row_space_in(memory, V, team.count);
    int64_t *token = given.tokens + row;
    if (given.forced[row] >= 0) {
        if (team.thread == 0) *token = given.forced[row];
        return;
    }
    score(team, V, given.logits + row * V, given.bias + row * V, w);
    float most = w.most[0];
    int32_t best = w.best[0], broken = 0;
    for (int t = 0; t < team.count; t++) {
        broken |= w.broken[t];
        if (w.most[t] > most || (w.most[t] == most && w.best[t] < best))
            most = w.most[t], best = w.best[t];
    }
    broken |= !(most < INFINITY && most > -INFINITY);
    if (broken || given.greedy[row]) {
        if (team.thread == 0) *token = broken ? 0 : best;
        return;
    }
    const int64_t top_k = given.top_k[row];
    const float top_p = given.top_p[row], divisor = given.divisor[row];
    for (Size v = team.thread; v < V; v += team.count)
        w.odds[v] = exponential_of((w.odds[v] - most) / divisor);
    team.wait();
    const bool cuts = top_k < V || top_p < 2;
    if (cuts) rank(team, V, w);
    if (team.thread != 0) return;
    float total = sum_of(V, w.odds);
    if (cuts) {
        cut(V, w, total, top_k, top_p);
        total = sum_of(V, w.odds);
    }
    *token = draw(V, w.odds, given.uniform[row] * total);
}

#endif
