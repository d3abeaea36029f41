/* The operators of domain `torsor`, version 1, for ONNX Runtime on the CPU.
 *
 *     MatrixExp(S) -> E                       E = exp(S), any square S (..., d, d)
 *     OrthoStep(H, S) -> E                    E = H exp(S), both (..., d, d)
 *     MixStep(H, A, G) -> E                   E = H exp(tangent(u G)), u = coordinates(Hᵀ A), SO(d)
 *     SampleToken(logits, bias, divisor, greedy, top_k, top_p, uniform, forced) -> token
 *
 * A model file carries the same as functions of standard operators; where this library is
 * registered, these kernels take their place. Matrices and rows are computed one by one, so what
 * else is in a batch never shows in their bits. Threads are those of the session.
 */

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime.h"

typedef ptrdiff_t Size;

enum { OK = 0, NO_MEMORY = 1 };

#define EXPORT __attribute__((visibility("default")))
#define KEPT 64  /* scratches of a kernel, one a thread that runs it at the same time */
#define ROWS 32  /* matrices or rows that a thread takes at once: `ROWS` of kernels.c */
#define MOST_DIMENSIONS 16
#define MOST_INPUTS 8

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

/* What an operator is: ONNX Runtime's page of functions, and our own words on it. */
typedef struct {
    Operator page;
    const char *name;
    int element; /* type of its real numbers */
    int types[MOST_INPUTS], result;
    Size num_inputs;
    Status *(*run)(const void *kernel, Context *);
} Ours;

typedef struct {
    const Ours *ours;
    Api api;
    const Kernels *kernels;
    SampleRows *sample_rows;
    _Atomic(void *) kept[KEPT];
} Kernel;

static Status *refuse(const Kernel *kernel, int code, const char *problem) {
    char text[200];
    snprintf(text, sizeof text, "torsor.%s: %s", kernel->ours->name, problem);
    return CALL(kernel->api, CREATE_STATUS, (int, const char *), code, text);
}

/* A scratch that no other thread holds, or NULL; it goes back with `put`. */
static void *take(Kernel *kernel) {
    for (int i = 0; i < KEPT; i++) {
        void *found = atomic_exchange(&kernel->kept[i], NULL);
        if (found) return found;
    }
    return NULL;
}

static void put(Kernel *kernel, void *scratch) {
    for (int i = 0; i < KEPT; i++) {
        void *empty = NULL;
        if (atomic_compare_exchange_strong(&kernel->kept[i], &empty, scratch)) return;
    }
    kernel->kernels->free_scratch(scratch);
}

typedef struct {
    const void *data;
    int64_t sizes[MOST_DIMENSIONS];
    size_t rank;
} Input;

static Status *read_input(const Kernel *kernel, Context *context, size_t index, Input *input) {
    const Api api = kernel->api;
    const Value *value = NULL;
    TensorInfo *info = NULL;
    Status *status = CALL(api, KERNEL_INPUT, (const Context *, size_t, const Value **), context,
                          index, &value);
    if (!status)
        status = CALL(api, TENSOR_INFO, (const Value *, TensorInfo **), value, &info);
    if (!status)
        status = CALL(api, NUM_DIMENSIONS, (const TensorInfo *, size_t *), info, &input->rank);
    if (!status && input->rank > MOST_DIMENSIONS)
        status = refuse(kernel, INVALID_ARGUMENT, "found more than 16 dimensions");
    if (!status)
        status = CALL(api, DIMENSIONS, (const TensorInfo *, int64_t *, size_t), info, input->sizes,
                      input->rank);
    if (!status)
        status = CALL(api, TENSOR_DATA, (const Value *, void **), value, (void **)&input->data);
    if (info) ((void (*)(TensorInfo *))api[RELEASE_TENSOR_INFO])(info);
    return status;
}

static Status *make_output(const Kernel *kernel, Context *context, const Input *like, void **data) {
    Value *value = NULL;
    Status *status = CALL(kernel->api, KERNEL_OUTPUT,
                          (Context *, size_t, const int64_t *, size_t, Value **), context,
                          (size_t)0, like->sizes, like->rank, &value);
    return status ? status
                  : CALL(kernel->api, TENSOR_DATA, (const Value *, void **), value, data);
}

/* The batch is cut into blocks of `ROWS`, which the session's threads take. */
typedef struct {
    Kernel *kernel;
    const char *inputs[MOST_INPUTS];
    char *output;
    Size n, d, bytes; /* matrices, their size, and the bytes of one */
    _Atomic int code;
} Job;

static Size rows_of(const Job *job, size_t block) {
    const Size left = job->n - (Size)block * ROWS;
    return left < ROWS ? left : ROWS;
}

static Status *run_blocks(Job *job, Context *context, void (*block)(void *, size_t)) {
    const size_t count = (size_t)((job->n + ROWS - 1) / ROWS);
    Status *status = NULL;
    if (count == 1) block(job, 0);
    if (count > 1)
        status = CALL(job->kernel->api, PARALLEL_FOR,
                      (const Context *, void (*)(void *, size_t), size_t, size_t, void *), context,
                      block, count, (size_t)0, job);
    if (!status && job->code != OK) status = refuse(job->kernel, FAIL, "no memory for a workspace");
    return status;
}

static void exp_block(void *shared, size_t block) {
    Job *job = shared;
    const Size at = (Size)block * ROWS * job->bytes;
    const char *H = job->inputs[0], *S = job->inputs[1];
    void *scratch = take(job->kernel);
    const int code = job->kernel->kernels->exp_rows(&scratch, H ? H + at : NULL, S + at,
                                                    job->output + at, rows_of(job, block), job->d);
    if (code != OK) job->code = code;
    if (scratch) put(job->kernel, scratch);
}

static void mix_block(void *shared, size_t block) {
    Job *job = shared;
    const Size at = (Size)block * ROWS * job->bytes;
    void *scratch = take(job->kernel);
    const int code = job->kernel->kernels->mix_rows(
        &scratch, job->inputs[0] + at, job->inputs[1] + at, job->inputs[2], job->output + at,
        rows_of(job, block), job->d);
    if (code != OK) job->code = code;
    if (scratch) put(job->kernel, scratch);
}

/* Fills in n, d and bytes from (..., d, d). */
static Status *measure(const Kernel *kernel, Job *job, const Input *input) {
    const size_t rank = input->rank;
    if (rank < 2 || input->sizes[rank - 1] != input->sizes[rank - 2])
        return refuse(kernel, INVALID_ARGUMENT, "expected square matrices (..., d, d)");
    job->n = 1;
    for (size_t i = 0; i + 2 < rank; i++) job->n *= (Size)input->sizes[i];
    job->d = (Size)input->sizes[rank - 1];
    job->bytes = job->d * job->d * (kernel->ours->element == DOUBLE ? 8 : 4);
    if (job->d == 0) job->n = 0;
    return NULL;
}

static int same_shape(const Input *one, const Input *other) {
    return one->rank == other->rank &&
           memcmp(one->sizes, other->sizes, one->rank * sizeof *one->sizes) == 0;
}

static Status *run_matrices(const void *shared, Context *context) {
    Kernel *kernel = (Kernel *)shared;
    const Size count = kernel->ours->num_inputs;
    Input inputs[3];
    Job job = {.kernel = kernel};
    Status *status = NULL;
    for (Size i = 0; i < count && !status; i++)
        status = read_input(kernel, context, (size_t)i, inputs + i);
    if (!status) status = measure(kernel, &job, inputs);
    if (!status && count > 1 && !same_shape(inputs, inputs + 1))
        status = refuse(kernel, INVALID_ARGUMENT, "expected both inputs to have one shape");
    const int64_t D = (int64_t)job.d * (job.d - 1) / 2;
    if (!status && count == 3 &&
        (inputs[2].rank != 2 || inputs[2].sizes[0] != D || inputs[2].sizes[1] != D))
        status = refuse(kernel, INVALID_ARGUMENT, "expected a mixing of (D, D), D = d(d - 1)/2");
    if (!status) status = make_output(kernel, context, inputs, (void **)&job.output);
    if (status) return status;
    if (count == 1)
        job.inputs[1] = inputs[0].data;
    else
        for (Size i = 0; i < count; i++) job.inputs[i] = inputs[i].data;
    return run_blocks(&job, context, count == 3 ? mix_block : exp_block);
}

static void sample_block(void *shared, size_t block) {
    Job *job = shared;
    const Size first = (Size)block * ROWS;
    const char *const *in = job->inputs;
    const int code = job->kernel->sample_rows(
        (const float *)in[0] + first * job->d, (const float *)in[1] + first * job->d,
        (const float *)in[2] + first, (const _Bool *)in[3] + first, (const int64_t *)in[4] + first,
        (const float *)in[5] + first, (const float *)in[6] + first, (const int64_t *)in[7] + first,
        (int64_t *)job->output + first, rows_of(job, block), job->d);
    if (code != OK) job->code = code;
}

static Status *run_sampler(const void *shared, Context *context) {
    Kernel *kernel = (Kernel *)shared;
    Input inputs[MOST_INPUTS];
    Job job = {.kernel = kernel};
    Status *status = NULL;
    for (size_t i = 0; i < MOST_INPUTS && !status; i++) {
        status = read_input(kernel, context, i, inputs + i);
        job.inputs[i] = inputs[i].data;
    }
    if (status) return status;
    if (inputs[0].rank != 2 || !same_shape(inputs, inputs + 1) || inputs[0].sizes[1] < 1)
        return refuse(kernel, INVALID_ARGUMENT, "expected logits and bias of (B, V)");
    job.n = (Size)inputs[0].sizes[0], job.d = (Size)inputs[0].sizes[1];
    for (size_t i = 2; i < MOST_INPUTS; i++) {
        Size count = 1;
        for (size_t k = 0; k < inputs[i].rank; k++) count *= (Size)inputs[i].sizes[k];
        if (count != job.n)
            return refuse(kernel, INVALID_ARGUMENT, "expected one number a row of the logits");
    }
    status = make_output(kernel, context, inputs + MOST_INPUTS - 1, (void **)&job.output);
    return status ? status : run_blocks(&job, context, sample_block);
}

/* The functions that ONNX Runtime calls. */

static const Ours *ours_of(const Operator *page) { return (const Ours *)page; }

static Status *create(const Operator *page, Api api, const void *info, void **made) {
    (void)info;
    Kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) return CALL(api, CREATE_STATUS, (int, const char *), FAIL, "torsor: no memory");
    kernel->ours = ours_of(page);
    kernel->api = api;
    kernel->kernels = kernels_of(kernel->ours->element);
    kernel->sample_rows = sampler();
    *made = kernel;
    return NULL;
}

static Status *compute(void *kernel, Context *context) {
    return ((Kernel *)kernel)->ours->run(kernel, context);
}

static void destroy(void *shared) {
    Kernel *kernel = shared;
    for (int i = 0; i < KEPT; i++)
        if (kernel->kept[i]) kernel->kernels->free_scratch(kernel->kept[i]);
    free(kernel);
}

static const char *name(const Operator *page) { return ours_of(page)->name; }
static const char *provider(const Operator *page) { return (void)page, "CPUExecutionProvider"; }
static int input_type(const Operator *page, size_t i) { return ours_of(page)->types[i]; }
static size_t num_inputs(const Operator *page) { return (size_t)ours_of(page)->num_inputs; }
static int output_type(const Operator *page, size_t i) { return (void)i, ours_of(page)->result; }
static size_t num_outputs(const Operator *page) { return (void)page, 1; }
static int zero_at(const Operator *page, size_t i) { return (void)page, (void)i, 0; }
static int one(const Operator *page) { return (void)page, 1; }

#define PAGE                                                                                    \
    {                                                                                           \
        .version = API_VERSION, .name = name, .provider = provider, .input_type = input_type,   \
        .num_inputs = num_inputs, .output_type = output_type, .num_outputs = num_outputs,       \
        .destroy = destroy, .input_kind = zero_at, .output_kind = zero_at,                      \
        .input_memory = zero_at, .variadic_inputs = one, .variadic_inputs_alike = one,          \
        .variadic_outputs = one, .variadic_outputs_alike = one, .create_checked = create,       \
        .compute_checked = compute, .start_version = one,         \
        .end_version = one                                                                      \
    }
#define MATRICES(title, type, count)                                                            \
    {                                                                                           \
        PAGE, title, type, {type, type, type}, type, count, run_matrices                     \
    }

static const Ours OPERATORS[] = {
    MATRICES("MatrixExp", FLOAT, 1),
    MATRICES("MatrixExp", DOUBLE, 1),
    MATRICES("OrthoStep", FLOAT, 2),
    MATRICES("OrthoStep", DOUBLE, 2),
    MATRICES("MixStep", FLOAT, 3),
    MATRICES("MixStep", DOUBLE, 3),
    {PAGE,
     "SampleToken",
     FLOAT,
     {FLOAT, FLOAT, FLOAT, BOOL, INT64, FLOAT, FLOAT, INT64},
     INT64,
     MOST_INPUTS,
     run_sampler},
};

static void *_Atomic the_domain; /* made once: it must outlive all sessions */

static Status *make_domain(Api api, void **domain) {
    Status *status = CALL(api, CREATE_DOMAIN, (const char *, void **), "torsor", domain);
    for (size_t i = 0; i < sizeof OPERATORS / sizeof *OPERATORS && !status; i++)
        status = CALL(api, ADD_OPERATOR, (void *, const Operator *), *domain, &OPERATORS[i].page);
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
