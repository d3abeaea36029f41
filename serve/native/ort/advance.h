/* One run of `OsmAdvance`: what the kernels of advance_rows.h are given. What it means says
 * operators_advance.h.
 *
 * B streams, K steps, V characters, `rows` matrices in the table, (d, d) each.
 */

#ifndef TORSOR_ADVANCE_H
#define TORSOR_ADVANCE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const float *H, *table, *mixing, *prototypes, *scale, *base;
    const int64_t *correct_every, *position, *forced, *num_steps;
    const float *uniform, *temperature;
    const int64_t *top_k;
    const float *top_p, *bias;
    float *next; /* and what comes out */
    int64_t *tokens;
    float *logprob, *logits;
    ptrdiff_t B, K, V, rows, d;
    const float *packed; /* mixing, prototypes and base, by `pack_weights` */
} Advance;

#endif
