/* What an operator is to ONNX Runtime, and what it asks of it: inputs, their shapes, its output. For
 * the CPU and for CUDA; included once by each.
 */

#ifndef TORSOR_OPERATORS_H
#define TORSOR_OPERATORS_H

#include <stdio.h>
#include <string.h>

#include "onnxruntime.h"

typedef ptrdiff_t Size;

#define MOST_DIMENSIONS 16
#define MOST_INPUTS 15
#define MOST_OUTPUTS 4

/* ONNX Runtime's page of functions, and our own words on it. */
typedef struct {
    Operator page;
    const char *name;
    int element; /* type of its real numbers */
    int types[MOST_INPUTS], results[MOST_OUTPUTS];
    Size num_inputs, num_outputs;
    Status *(*run)(void *kernel, Context *);
} Ours;

/* What every kernel starts with. */
typedef struct {
    const Ours *ours;
    Api api;
} Kernel;

/* The operators on CUDA, of operators_cuda.c. */
const Ours *torsor_cuda_operators(size_t *count);

static inline Status *refuse(const Kernel *kernel, int code, const char *problem) {
    char text[200];
    snprintf(text, sizeof text, "torsor.%s: %s", kernel->ours->name, problem);
    return CALL(kernel->api, CREATE_STATUS, (int, const char *), code, text);
}

typedef struct {
    const void *data;
    int64_t sizes[MOST_DIMENSIONS];
    size_t rank;
} Input;

static inline Status *read_value(const Kernel *kernel, const Value *value, Input *input) {
    const Api api = kernel->api;
    TensorInfo *info = NULL;
    Status *status = CALL(api, TENSOR_INFO, (const Value *, TensorInfo **), value, &info);
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

static inline Status *read_input(const Kernel *kernel, Context *context, size_t index,
                                 Input *input) {
    const Value *value = NULL;
    Status *status = CALL(kernel->api, KERNEL_INPUT, (const Context *, size_t, const Value **),
                          context, index, &value);
    return status ? status : read_value(kernel, value, input);
}

static inline Status *make_output(const Kernel *kernel, Context *context, size_t index,
                                  const int64_t *sizes, size_t rank, void **data) {
    Value *value = NULL;
    Status *status =
        CALL(kernel->api, KERNEL_OUTPUT, (Context *, size_t, const int64_t *, size_t, Value **),
             context, index, sizes, rank, &value);
    return status ? status
                  : CALL(kernel->api, TENSOR_DATA, (const Value *, void **), value, data);
}

/* What a run was given, checked: addresses, and n matrices of (d, d) or rows of d numbers. */
typedef struct {
    const void *inputs[MOST_INPUTS];
    void *output;
    Size n, d;
} Given;

/* Fills in n and d from (..., d, d). */
static inline Status *measure(const Kernel *kernel, Given *given, const Input *input) {
    const size_t rank = input->rank;
    if (rank < 2 || input->sizes[rank - 1] != input->sizes[rank - 2])
        return refuse(kernel, INVALID_ARGUMENT, "expected square matrices (..., d, d)");
    given->n = 1;
    for (size_t i = 0; i + 2 < rank; i++) given->n *= (Size)input->sizes[i];
    given->d = (Size)input->sizes[rank - 1];
    if (given->d == 0) given->n = 0;
    return NULL;
}

static inline int same_shape(const Input *one, const Input *other) {
    return one->rank == other->rank &&
           memcmp(one->sizes, other->sizes, one->rank * sizeof *one->sizes) == 0;
}

/* Of MatrixExp, OrthoStep and MixStep: H, S or H, A, G. H is NULL where there is none. */
static inline Status *read_matrices(const Kernel *kernel, Context *context, Given *given) {
    const Size count = kernel->ours->num_inputs;
    Input inputs[3];
    Status *status = NULL;
    for (Size i = 0; i < count && !status; i++)
        status = read_input(kernel, context, (size_t)i, inputs + i);
    if (!status) status = measure(kernel, given, inputs);
    if (!status && count > 1 && !same_shape(inputs, inputs + 1))
        status = refuse(kernel, INVALID_ARGUMENT, "expected both inputs to have one shape");
    const int64_t D = (int64_t)given->d * (given->d - 1) / 2;
    if (!status && count == 3 &&
        (inputs[2].rank != 2 || inputs[2].sizes[0] != D || inputs[2].sizes[1] != D))
        status = refuse(kernel, INVALID_ARGUMENT, "expected a mixing of (D, D), D = d(d - 1)/2");
    if (!status)
        status = make_output(kernel, context, 0, inputs->sizes, inputs->rank, &given->output);
    if (status) return status;
    given->inputs[0] = NULL;
    for (Size i = 0; i < count; i++) given->inputs[count == 1 ? 1 : i] = inputs[i].data;
    return NULL;
}

/* Of SampleToken. */
static inline Status *read_rows(const Kernel *kernel, Context *context, Given *given) {
    const size_t count = (size_t)kernel->ours->num_inputs;
    Input inputs[MOST_INPUTS];
    Status *status = NULL;
    for (size_t i = 0; i < count && !status; i++) {
        status = read_input(kernel, context, i, inputs + i);
        given->inputs[i] = inputs[i].data;
    }
    if (status) return status;
    if (inputs[0].rank != 2 || !same_shape(inputs, inputs + 1) || inputs[0].sizes[1] < 1)
        return refuse(kernel, INVALID_ARGUMENT, "expected logits and bias of (B, V)");
    given->n = (Size)inputs[0].sizes[0], given->d = (Size)inputs[0].sizes[1];
    for (size_t i = 2; i < count; i++) {
        Size numbers = 1;
        for (size_t k = 0; k < inputs[i].rank; k++) numbers *= (Size)inputs[i].sizes[k];
        if (numbers != given->n)
            return refuse(kernel, INVALID_ARGUMENT, "expected one number a row of the logits");
    }
    const Input *last = inputs + count - 1;
    return make_output(kernel, context, 0, last->sizes, last->rank, &given->output);
}

/* The functions that ONNX Runtime calls. */

static inline const Ours *ours_of(const Operator *page) { return (const Ours *)page; }

static inline Status *compute(void *kernel, Context *context) {
    return ((Kernel *)kernel)->ours->run(kernel, context);
}

static inline const char *name(const Operator *page) { return ours_of(page)->name; }
static inline int input_type(const Operator *page, size_t i) {
    return ours_of(page)->types[i];
}
static inline size_t num_inputs(const Operator *page) {
    return (size_t)ours_of(page)->num_inputs;
}
static inline int output_type(const Operator *page, size_t i) {
    return ours_of(page)->results[i];
}
static inline size_t num_outputs(const Operator *page) {
    return (size_t)ours_of(page)->num_outputs;
}
static inline int zero_at(const Operator *page, size_t i) { return (void)page, (void)i, 0; }
static inline int one(const Operator *page) { return (void)page, 1; }

/* A page with these functions; `provider` is the file's own. */
#define PAGE_OF(creates, destroys)                                                            \
    {                                                                                         \
        .version = API_VERSION, .name = name, .provider = provider, .input_type = input_type, \
        .num_inputs = num_inputs, .output_type = output_type, .num_outputs = num_outputs,     \
        .destroy = destroys, .input_kind = zero_at, .output_kind = zero_at,                    \
        .input_memory = zero_at, .variadic_inputs = one, .variadic_inputs_alike = one,        \
        .variadic_outputs = one, .variadic_outputs_alike = one, .create_checked = creates,    \
        .compute_checked = compute, .start_version = one, .end_version = one                  \
    }

/* The table of a file, out of its own provider, create, destroy, run_exp, run_mix, run_sampler. */
#define PAGE PAGE_OF(create, destroy)
#define MATRICES(title, type, count, run)                                 \
    {                                                                     \
        PAGE, title, type, {type, type, type}, {type}, count, 1, run      \
    }
#define TABLE                                                                                 \
    {                                                                                         \
        MATRICES("MatrixExp", FLOAT, 1, run_exp),                                             \
        MATRICES("MatrixExp", DOUBLE, 1, run_exp),                                            \
        MATRICES("OrthoStep", FLOAT, 2, run_exp),                                             \
        MATRICES("OrthoStep", DOUBLE, 2, run_exp),                                            \
        MATRICES("MixStep", FLOAT, 3, run_mix),                                               \
        MATRICES("MixStep", DOUBLE, 3, run_mix),                                              \
        {PAGE,                                                                                \
         "SampleToken",                                                                       \
         FLOAT,                                                                               \
         {FLOAT, FLOAT, FLOAT, BOOL, INT64, FLOAT, FLOAT, INT64},                             \
         {INT64},                                                                             \
         8,                                                                                   \
         1,                                                                                   \
         run_sampler},                                                                        \
    }

#endif
