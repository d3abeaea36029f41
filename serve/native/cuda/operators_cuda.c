/* The operators of domain `torsor` for ONNX Runtime on CUDA: those of operators.c, whose inputs and
 * output lie in the device's memory. Never run: see cuda.cu.
 */

#include <stdlib.h>

#include "kernel_api.h"

/* Of cuda.cu. A run is put on the session's stream, and nobody waits for it. */
int torsor_cuda_exp(int is_double, const void *H, const void *S, void *E, Size n, Size d,
                    void *stream);
int torsor_cuda_mix(int is_double, const void *H, const void *A, const void *G, void *E, Size n,
                    Size d, void *stream);
int torsor_cuda_sample(const void *const *inputs, void *tokens, Size n, Size V, void *stream);
const char *torsor_cuda_problem(int code);

static Status *stream_of(const Kernel *kernel, Context *context, void **stream) {
    return CALL(kernel->api, GPU_STREAM, (const Context *, void **), context, stream);
}

static Status *answer(const Kernel *kernel, int code) {
    return code ? refuse(kernel, FAIL, torsor_cuda_problem(code)) : NULL;
}

static Status *run_exp(void *shared, Context *context) {
    const Kernel *kernel = shared;
    Given given = {0};
    void *stream = NULL;
    Status *status = read_matrices(kernel, context, &given);
    if (!status) status = stream_of(kernel, context, &stream);
    if (status) return status;
    return answer(kernel, torsor_cuda_exp(kernel->ours->element == DOUBLE, given.inputs[0],
                                          given.inputs[1], given.output, given.n, given.d, stream));
}

static Status *run_mix(void *shared, Context *context) {
    const Kernel *kernel = shared;
    Given given = {0};
    void *stream = NULL;
    Status *status = read_matrices(kernel, context, &given);
    if (!status) status = stream_of(kernel, context, &stream);
    if (status) return status;
    return answer(kernel, torsor_cuda_mix(kernel->ours->element == DOUBLE, given.inputs[0],
                                          given.inputs[1], given.inputs[2], given.output, given.n,
                                          given.d, stream));
}

static Status *run_sampler(void *shared, Context *context) {
    const Kernel *kernel = shared;
    Given given = {0};
    void *stream = NULL;
    Status *status = read_rows(kernel, context, &given);
    if (!status) status = stream_of(kernel, context, &stream);
    if (status) return status;
    return answer(kernel,
                  torsor_cuda_sample(given.inputs, given.output, given.n, given.d, stream));
}

static Status *create(const Operator *page, Api api, const void *info, void **made) {
    (void)info;
    Kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) return CALL(api, CREATE_STATUS, (int, const char *), FAIL, "torsor: no memory");
    kernel->ours = ours_of(page);
    kernel->api = api;
    *made = kernel;
    return NULL;
}

static void destroy(void *kernel) { free(kernel); }

static const char *provider(const Operator *page) { return (void)page, "CUDAExecutionProvider"; }

static const Ours OPERATORS[] = TABLE;

const Ours *torsor_cuda_operators(size_t *count) {
    *count = sizeof OPERATORS / sizeof *OPERATORS;
    return OPERATORS;
}
