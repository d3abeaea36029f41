/* What the operators need of ONNX Runtime's C interface, declared here: its wheels bring no headers.
 *
 * The table of functions only ever grows at its end, so a slot keeps its number. Version 18 of the
 * interface has all of them, and every runtime since gives it.
 */

#ifndef TORSOR_ONNXRUNTIME_H
#define TORSOR_ONNXRUNTIME_H

#include <stddef.h>
#include <stdint.h>

#define API_VERSION 18

typedef struct Status Status; /* NULL is success */
typedef struct Context Context;
typedef struct TensorInfo TensorInfo;
typedef struct Value Value;
typedef void *const *Api; /* the table */

typedef struct {
    Api (*get_api)(uint32_t version);
    const char *(*version)(void);
} ApiBase;

enum { FLOAT = 1, INT64 = 7, BOOL = 9, DOUBLE = 11 }; /* types of elements */
enum { FAIL = 1, INVALID_ARGUMENT = 2 };              /* codes of a status */

enum {
    CREATE_STATUS = 0,
    CREATE_DOMAIN = 26,
    ADD_OPERATOR = 27,
    ADD_DOMAIN = 28,
    TENSOR_DATA = 51,
    NUM_DIMENSIONS = 61,
    DIMENSIONS = 62,
    TENSOR_INFO = 65,
    KERNEL_INPUT = 90,
    KERNEL_OUTPUT = 91,
    RELEASE_STATUS = 93,
    RELEASE_TENSOR_INFO = 99,
    GPU_STREAM = 193,
    CONSTANT_INPUT = 249,
    PARALLEL_FOR = 274,
};

/* Calls slot `name` of the table as a function of these types. */
#define CALL(api, name, types, ...) ((Status * (*) types)(api)[name])(__VA_ARGS__)

typedef struct Operator Operator;
struct Operator {
    uint32_t version;
    void *(*create)(const Operator *, Api, const void *info);
    const char *(*name)(const Operator *);
    const char *(*provider)(const Operator *);
    int (*input_type)(const Operator *, size_t);
    size_t (*num_inputs)(const Operator *);
    int (*output_type)(const Operator *, size_t);
    size_t (*num_outputs)(const Operator *);
    void (*compute)(void *kernel, Context *);
    void (*destroy)(void *kernel);
    int (*input_kind)(const Operator *, size_t);
    int (*output_kind)(const Operator *, size_t);
    int (*input_memory)(const Operator *, size_t);
    int (*variadic_inputs)(const Operator *);
    int (*variadic_inputs_alike)(const Operator *);
    int (*variadic_outputs)(const Operator *);
    int (*variadic_outputs_alike)(const Operator *);
    Status *(*create_checked)(const Operator *, Api, const void *info, void **kernel);
    Status *(*compute_checked)(void *kernel, Context *);
    Status *(*infer_shapes)(const Operator *, void *);
    int (*start_version)(const Operator *);
    int (*end_version)(const Operator *);
    size_t (*may_inplace)(int **inputs, int **outputs);
    void (*release_may_inplace)(int *inputs, int *outputs);
    size_t (*aliases)(int **inputs, int **outputs);
    void (*release_aliases)(int *inputs, int *outputs);
};

#endif
