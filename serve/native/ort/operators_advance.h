/* `OsmAdvance` for ONNX Runtime on the CPU; a part of operators.c.
 *
 * A whole `advance` of an OSM-RNN on SO(d) with full mixing, B streams, K steps, V characters:
 *
 *     OsmAdvance(H (B, d, d), table (V, d, d), mixing (D, D), prototypes (V, d, d), scale (),
 *                base (V), correct_every (), position (B), forced (K, B), num_steps (B),
 *                uniform (K, B), temperature (B), top_k (B), top_p (B), bias (B, V))
 *         -> H (B, d, d), tokens (K, B), logprob (K, B), logits (K, B, V)
 *
 * The settings are those of serve/manifest/page.py. Weights that are constants of the session are packed
 * once, others in every run.
 */

/* What kernels.c has for one instruction set. */
typedef struct {
    Size (*packed_size)(Size, Size);
    void (*pack_weights)(float *, const Advance *);
    int (*advance_rows)(void **, const Advance *, Size, Size);
} AdvanceKernels;

#define DECLARE_ADVANCE(level)                                                             \
    Size torsor_packed_size_f32_##level(Size, Size);                                       \
    void torsor_pack_weights_f32_##level(float *, const Advance *);                        \
    int torsor_advance_rows_f32_##level(void **, const Advance *, Size, Size);             \
    static const AdvanceKernels advance_##level = {torsor_packed_size_f32_##level,         \
                                                   torsor_pack_weights_f32_##level,        \
                                                   torsor_advance_rows_f32_##level};

DECLARE_ADVANCE(plain)
#ifdef TORSOR_AVX2
DECLARE_ADVANCE(avx2)
#endif

static const AdvanceKernels *advance_kernels(void) {
#ifdef TORSOR_AVX2
    if (uses_avx2()) return &advance_avx2;
#endif
    return &advance_plain;
}

#define GIVEN 15

enum {
    STATE, TABLE_OF, MIXING, PROTOTYPES, SCALE, BASE, CORRECT_EVERY, POSITION, FORCED, NUM_STEPS,
    UNIFORM, TEMPERATURE, TOP_K, TOP_P, BIAS
};

typedef struct {
    CpuKernel cpu;
    const AdvanceKernels *advance;
    float *packed; /* NULL where the weights are no constants */
} AdvanceKernel;

/* Whether an input has these sizes. */
static int has_sizes(const Input *input, size_t rank, const int64_t *sizes) {
    return input->rank == rank && memcmp(input->sizes, sizes, rank * sizeof *sizes) == 0;
}

static int weights_fit(const Input *mixing, const Input *prototypes, const Input *base) {
    if (prototypes->rank != 3) return 0;
    const int64_t V = prototypes->sizes[0], d = prototypes->sizes[1], D = d * (d - 1) / 2;
    return V > 0 && d > 0 && prototypes->sizes[2] == d &&
           has_sizes(mixing, 2, (int64_t[]){D, D}) && has_sizes(base, 1, (int64_t[]){V});
}

/* Weights in the kernels' order; NULL: no memory. */
static float *pack(const AdvanceKernels *kernels, const Advance *run) {
    float *packed = malloc((size_t)kernels->packed_size(run->d, run->V) * sizeof *packed);
    if (packed) kernels->pack_weights(packed, run);
    return packed;
}

static Status *pack_constants(AdvanceKernel *kernel, const void *info) {
    const int places[] = {MIXING, PROTOTYPES, BASE};
    Input weights[3];
    Status *status = NULL;
    for (int i = 0; i < 3 && !status; i++) {
        const Value *value = NULL;
        int constant = 0;
        status = CALL(kernel->cpu.base.api, CONSTANT_INPUT,
                      (const void *, size_t, int *, const Value **), info, (size_t)places[i],
                      &constant, &value);
        if (!status && !(constant && value)) return NULL;
        if (!status) status = read_value(&kernel->cpu.base, value, weights + i);
    }
    if (status || !weights_fit(weights, weights + 1, weights + 2)) return status;
    const Advance run = {.mixing = weights[0].data, .prototypes = weights[1].data,
                         .base = weights[2].data, .V = (Size)weights[1].sizes[0],
                         .d = (Size)weights[1].sizes[1]};
    kernel->packed = pack(kernel->advance, &run);
    return kernel->packed ? NULL : refuse(&kernel->cpu.base, FAIL, "no memory for the weights");
}

static void destroy_advance(void *shared) {
    free(((AdvanceKernel *)shared)->packed);
    destroy(shared);
}

static Status *create_advance(const Operator *page, Api api, const void *info, void **made) {
    AdvanceKernel *kernel = *made = calloc(1, sizeof *kernel);
    Status *status = set_up(page, api, &kernel->cpu);
    if (status) return status;
    kernel->advance = advance_kernels();
    status = pack_constants(kernel, info);
    if (status) destroy_advance(kernel), *made = NULL;
    return status;
}

/* What is wrong with the inputs; NULL: nothing. */
static const char *problem_of(const Input *in) {
    if (in[STATE].rank != 3 || in[STATE].sizes[1] != in[STATE].sizes[2])
        return "expected states of (B, d, d)";
    if (!weights_fit(in + MIXING, in + PROTOTYPES, in + BASE) ||
        in[PROTOTYPES].sizes[1] != in[STATE].sizes[1])
        return "expected a mixing (D, D), prototypes (V, d, d), base (V), D = d(d - 1)/2";
    const int64_t d = in[STATE].sizes[1], B = in[STATE].sizes[0], V = in[PROTOTYPES].sizes[0];
    if (!has_sizes(in + TABLE_OF, 3, (int64_t[]){in[TABLE_OF].sizes[0], d, d}))
        return "expected a table of (V, d, d)";
    if (in[FORCED].rank != 2 || !same_shape(in + FORCED, in + UNIFORM) || in[FORCED].sizes[1] != B)
        return "expected forced characters and uniforms of (K, B)";
    const int rows[] = {POSITION, NUM_STEPS, TEMPERATURE, TOP_K, TOP_P};
    for (int i = 0; i < 5; i++)
        if (!has_sizes(in + rows[i], 1, &B)) return "expected one setting a stream: (B)";
    if (!has_sizes(in + BIAS, 2, (int64_t[]){B, V})) return "expected a bias of (B, V)";
    if (in[SCALE].rank || in[CORRECT_EVERY].rank) return "expected scale and correct_every alone: ()";
    if (*(const int64_t *)in[CORRECT_EVERY].data < 1) return "expected correct_every from 1";
    return NULL;
}

static Status *make_outputs(const Kernel *kernel, Context *context, Advance *run) {
    const int64_t state[] = {run->B, run->d, run->d}, steps[] = {run->K, run->B, run->V};
    Status *status = make_output(kernel, context, 0, state, 3, (void **)&run->next);
    if (!status) status = make_output(kernel, context, 1, steps, 2, (void **)&run->tokens);
    if (!status) status = make_output(kernel, context, 2, steps, 2, (void **)&run->logprob);
    if (!status) status = make_output(kernel, context, 3, steps, 3, (void **)&run->logits);
    return status;
}

static void advance_block(void *shared, size_t block) {
    Job *job = shared;
    const AdvanceKernel *kernel = (const AdvanceKernel *)job->kernel;
    void *scratch = take(job->kernel);
    const int code = kernel->advance->advance_rows(&scratch, job->advance, (Size)block * ROWS,
                                                   rows_of(job, block));
    if (code != OK) job->code = code;
    if (scratch) put(job->kernel, scratch);
}

static Status *run_advance(void *shared, Context *context) {
    AdvanceKernel *kernel = shared;
    Input in[GIVEN];
    Status *status = NULL;
    for (size_t i = 0; i < GIVEN && !status; i++)
        status = read_input(&kernel->cpu.base, context, i, in + i);
    if (status) return status;
    const char *problem = problem_of(in);
    if (problem) return refuse(&kernel->cpu.base, INVALID_ARGUMENT, problem);
    Advance run = {.H = in[STATE].data, .table = in[TABLE_OF].data, .mixing = in[MIXING].data,
                   .prototypes = in[PROTOTYPES].data, .scale = in[SCALE].data,
                   .base = in[BASE].data, .correct_every = in[CORRECT_EVERY].data,
                   .position = in[POSITION].data, .forced = in[FORCED].data,
                   .num_steps = in[NUM_STEPS].data, .uniform = in[UNIFORM].data,
                   .temperature = in[TEMPERATURE].data, .top_k = in[TOP_K].data,
                   .top_p = in[TOP_P].data, .bias = in[BIAS].data,
                   .B = (Size)in[STATE].sizes[0], .K = (Size)in[FORCED].sizes[0],
                   .V = (Size)in[PROTOTYPES].sizes[0], .rows = (Size)in[TABLE_OF].sizes[0],
                   .d = (Size)in[STATE].sizes[1], .packed = kernel->packed};
    status = make_outputs(&kernel->cpu.base, context, &run);
    if (status) return status;
    float *packed = NULL;
    if (!run.packed && !(run.packed = packed = pack(kernel->advance, &run)))
        return refuse(&kernel->cpu.base, FAIL, "no memory for the weights");
    Job job = {.kernel = &kernel->cpu, .given = {.n = run.B}, .advance = &run};
    status = run_blocks(&job, context, advance_block);
    free(packed);
    return status;
}

static const Ours ADVANCE = {
    PAGE_OF(create_advance, destroy_advance),
    "OsmAdvance",
    FLOAT,
    {FLOAT, FLOAT, FLOAT, FLOAT, FLOAT, FLOAT, INT64, INT64, INT64, INT64, FLOAT, FLOAT, INT64,
     FLOAT, FLOAT},
    {FLOAT, INT64, FLOAT, FLOAT},
    GIVEN,
    4,
    run_advance,
};
