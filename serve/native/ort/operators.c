/* The operators of domain `torsor`, version 1, for ONNX Runtime on the CPU.
 *
 *     MatrixExp(S) -> E                       E = exp(S), any square S (..., d, d)
 *     OrthoStep(H, S) -> E                    E = H exp(S), both (..., d, d)
 *     MixStep(H, A, G) -> E                   E = H exp(tangent(u G)), u = coordinates(Hᵀ A), SO(d)
 *     SampleToken(logits, bias, divisor, greedy, top_k, top_p, uniform, forced) -> token
 *     OsmAdvance(H, weights, settings) -> H, tokens, logprob, logits: see operators_advance.h
 *
 * A model file carries the same as functions of standard operators; where this library is
 * registered, these kernels take their place. Matrices and rows are computed one by one, so what
 * else is in a batch never shows in their bits. Threads are those of the session.
 */

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "advance.h"
#include "kernel_api.h"

enum { OK = 0, NO_MEMORY = 1, NO_SUCH_ROW = 2 };

#define EXPORT __attribute__((visibility("default")))
#define KEPT 64  /* scratches of a kernel, one a thread that runs it at the same time */
#define ROWS 32  /* matrices or rows that a thread takes at once: `ROWS` of kernels.c */

/* What kernels.c has for one type and one instruction set. */
typedef struct {
    int (*exp_rows)(void **, const void *, const void *, void *, Size, Size);
    int (*mix_rows)(void **, const void *, const void *, const void *, void *, Size, Size);
    void (*free_scratch)(void *);
} Kernels;

typedef int SampleRows(const float *, const float *, const float *, const _Bool *, const int64_t *,
                       const float *, const float *, const int64_t *, int64_t *, Size, Size);

#define DECLARE(real, level)                                                                       \
    int torsor_exp_rows_##real##_##level(void **, const void *, const void *, void *, Size, Size); \
    int torsor_mix_rows_##real##_##level(void **, const void *, const void *, const void *,       \
                                         void *, Size, Size);                                      \
    void torsor_free_scratch_##real##_##level(void *);                                             \
    static const Kernels real##_##level = {torsor_exp_rows_##real##_##level,                       \
                                           torsor_mix_rows_##real##_##level,                       \
                                           torsor_free_scratch_##real##_##level};

DECLARE(f32, plain)
DECLARE(f64, plain)
SampleRows torsor_sample_rows_f32_plain;
#ifdef TORSOR_AVX2
DECLARE(f32, avx2)
DECLARE(f64, avx2)
SampleRows torsor_sample_rows_f32_avx2;
#endif

int torsor_has_avx2(void);

/* The loader's choice, made the same way: the kernels of its `level` run here too. */
static int uses_avx2(void) {
    const char *wish = getenv("TORSOR_NATIVE");
    return torsor_has_avx2() && !(wish && strcmp(wish, "plain") == 0);
}

static const Kernels *kernels_of(int type) {
#ifdef TORSOR_AVX2
    if (uses_avx2()) return type == DOUBLE ? &f64_avx2 : &f32_avx2;
#endif
    return type == DOUBLE ? &f64_plain : &f32_plain;
}

static SampleRows *sampler(void) {
#ifdef TORSOR_AVX2
    if (uses_avx2()) return torsor_sample_rows_f32_avx2;
#endif
    return torsor_sample_rows_f32_plain;
}

typedef struct {
    Kernel base;
    const Kernels *kernels;
    SampleRows *sample_rows;
    _Atomic(void *) kept[KEPT];
} CpuKernel;

/* A scratch that no other thread holds, or NULL; it goes back with `put`. */
static void *take(CpuKernel *kernel) {
    for (int i = 0; i < KEPT; i++) {
        void *found = atomic_exchange(&kernel->kept[i], NULL);
        if (found) return found;
    }
    return NULL;
}

static void put(CpuKernel *kernel, void *scratch) {
    for (int i = 0; i < KEPT; i++) {
        void *empty = NULL;
        if (atomic_compare_exchange_strong(&kernel->kept[i], &empty, scratch)) return;
    }
    kernel->kernels->free_scratch(scratch);
}

/* The batch is cut into blocks of `ROWS`, which the session's threads take. */
typedef struct {
    CpuKernel *kernel;
    Given given;
    Size bytes; /* of a matrix */
    const Advance *advance;
    _Atomic int code;
} Job;

static Size rows_of(const Job *job, size_t block) {
    const Size left = job->given.n - (Size)block * ROWS;
    return left < ROWS ? left : ROWS;
}

static Status *run_blocks(Job *job, Context *context, void (*block)(void *, size_t)) {
    const size_t count = (size_t)((job->given.n + ROWS - 1) / ROWS);
    Status *status = NULL;
    if (count == 1) block(job, 0);
    if (count > 1)
        status = CALL(job->kernel->base.api, PARALLEL_FOR,
                      (const Context *, void (*)(void *, size_t), size_t, size_t, void *), context,
                      block, count, (size_t)0, job);
    if (!status && job->code == NO_SUCH_ROW)
        status = refuse(&job->kernel->base, INVALID_ARGUMENT,
                        "found a character that is not a row of the table");
    else if (!status && job->code != OK)
        status = refuse(&job->kernel->base, FAIL, "no memory for a workspace");
    return status;
}

/* Where a block starts among matrices; NULL stays NULL. */
static void *start(const Job *job, const void *matrices, size_t block) {
    return matrices ? (char *)matrices + (Size)block * ROWS * job->bytes : NULL;
}

static void exp_block(void *shared, size_t block) {
    Job *job = shared;
    const Given *given = &job->given;
    void *scratch = take(job->kernel);
    const int code = job->kernel->kernels->exp_rows(
        &scratch, start(job, given->inputs[0], block), start(job, given->inputs[1], block),
        start(job, given->output, block), rows_of(job, block), given->d);
    if (code != OK) job->code = code;
    if (scratch) put(job->kernel, scratch);
}

static void mix_block(void *shared, size_t block) {
    Job *job = shared;
    const Given *given = &job->given;
    void *scratch = take(job->kernel);
    const int code = job->kernel->kernels->mix_rows(
        &scratch, start(job, given->inputs[0], block), start(job, given->inputs[1], block),
        given->inputs[2], start(job, given->output, block), rows_of(job, block), given->d);
    if (code != OK) job->code = code;
    if (scratch) put(job->kernel, scratch);
}

static void sample_block(void *shared, size_t block) {
    Job *job = shared;
    const Size first = (Size)block * ROWS, V = job->given.d;
    const void *const *in = job->given.inputs;
    const int code = job->kernel->sample_rows(
        (const float *)in[0] + first * V, (const float *)in[1] + first * V,
        (const float *)in[2] + first, (const _Bool *)in[3] + first, (const int64_t *)in[4] + first,
        (const float *)in[5] + first, (const float *)in[6] + first, (const int64_t *)in[7] + first,
        (int64_t *)job->given.output + first, rows_of(job, block), V);
    if (code != OK) job->code = code;
}

static Status *run_matrices(void *shared, Context *context, void (*block)(void *, size_t)) {
    Job job = {.kernel = shared};
    const Kernel *kernel = shared;
    Status *status = read_matrices(kernel, context, &job.given);
    job.bytes = job.given.d * job.given.d * (kernel->ours->element == DOUBLE ? 8 : 4);
    return status ? status : run_blocks(&job, context, block);
}

static Status *run_exp(void *kernel, Context *context) {
    return run_matrices(kernel, context, exp_block);
}

static Status *run_mix(void *kernel, Context *context) {
    return run_matrices(kernel, context, mix_block);
}

static Status *run_sampler(void *kernel, Context *context) {
    Job job = {.kernel = kernel};
    Status *status = read_rows(kernel, context, &job.given);
    return status ? status : run_blocks(&job, context, sample_block);
}

static Status *set_up(const Operator *page, Api api, CpuKernel *kernel) {
    if (!kernel) return CALL(api, CREATE_STATUS, (int, const char *), FAIL, "torsor: no memory");
    kernel->base.ours = ours_of(page);
    kernel->base.api = api;
    kernel->kernels = kernels_of(kernel->base.ours->element);
    kernel->sample_rows = sampler();
    return NULL;
}

static Status *create(const Operator *page, Api api, const void *info, void **made) {
    (void)info;
    return set_up(page, api, *made = calloc(1, sizeof(CpuKernel)));
}

static void destroy(void *shared) {
    CpuKernel *kernel = shared;
    for (int i = 0; i < KEPT; i++)
        if (kernel->kept[i]) kernel->kernels->free_scratch(kernel->kept[i]);
    free(kernel);
}

static const char *provider(const Operator *page) { return (void)page, "CPUExecutionProvider"; }

static const Ours OPERATORS[] = TABLE;

#ifndef TORSOR_CUDA
#include "operators_advance.h"
#endif

static void *_Atomic the_domain; /* made once: it must outlive all sessions */

static Status *add(Api api, void *domain, const Ours *operators, size_t count) {
    Status *status = NULL;
    for (size_t i = 0; i < count && !status; i++)
        status = CALL(api, ADD_OPERATOR, (void *, const Operator *), domain, &operators[i].page);
    return status;
}

static Status *make_domain(Api api, void **domain) {
    Status *status = CALL(api, CREATE_DOMAIN, (const char *, void **), "torsor", domain);
    if (!status) status = add(api, *domain, OPERATORS, sizeof OPERATORS / sizeof *OPERATORS);
#ifdef TORSOR_CUDA
    size_t count = 0;
    const Ours *operators = torsor_cuda_operators(&count);
    if (!status) status = add(api, *domain, operators, count);
#else /* on CUDA its body stays there: this kernel would draw the whole run to the CPU */
    if (!status) status = add(api, *domain, &ADVANCE, 1);
#endif
    return status;
}

/* What ONNX Runtime looks up by name and calls for each session. */
EXPORT Status *RegisterCustomOps(void *options, const ApiBase *base) {
    const Api api = base->get_api(API_VERSION);
    if (!api) return NULL; /* a runtime older than that says so itself: the operators are missing */
    void *domain = the_domain;
    if (!domain) {
        Status *status = make_domain(api, &domain);
        if (status) return status;
        the_domain = domain;
    }
    return CALL(api, ADD_DOMAIN, (void *, void *), options, domain);
}
