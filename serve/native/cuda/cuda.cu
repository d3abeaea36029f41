/* The operators of domain `torsor` on CUDA: kernels, and how operators_cuda.c starts them.
 *
 * It compiles with nvcc and HAS NEVER RUN ON A GPU: there was none where it was written. What the
 * kernels compute is tested on the CPU, where the tests compile cuda_matrices.cuh and
 * cuda_sampler.cuh for teams of ordinary threads. Launches, memory and speed are not tested.
 *
 * One block takes one matrix or one row. Its memory is shared memory where the device has enough
 * (227 KB of sm_90 hold d = 107 in float, 75 in double), else global memory taken from the stream's
 * pool. The product with the mixing is a plain one, a column of eight rows a thread.
 */

#include <cuda_runtime.h>

#include "cuda_matrices.cuh"
#include "cuda_sampler.cuh"

#define STARTER extern "C" int
#define MOST_THREADS 256 /* of a block that takes a matrix */
#define COLUMN_THREADS 64
#define ROW_THREADS 128
#define MOST_SIZE 32768 /* d * d is an int */
#define FREELY 49152    /* bytes of shared memory that no one needs to ask for */
#define BUSY_BLOCKS 1024 /* at most, where each wants memory of its own */
#define MOST_BLOCKS 65536 /* then a block takes several matrices */

struct Block {
    int thread, count;
    __device__ void wait() const { __syncthreads(); }
};

static __device__ Block this_block() {
    Block block = {(int)threadIdx.x, (int)blockDim.x};
    return block;
}

extern __shared__ double shared_memory[];

static __device__ void *memory_of_block(char *global, size_t bytes) {
    return global ? (void *)(global + blockIdx.x * bytes) : (void *)shared_memory;
}

template <class Real>
__global__ void __launch_bounds__(MOST_THREADS)
    exp_kernel(const Real *H, const Real *S, Real *E, Size n, int d, Series<Real> skew,
               Series<Real> general, char *global, size_t bytes) {
    const Block block = this_block();
    void *memory = memory_of_block(global, bytes);
    for (Size b = blockIdx.x, dd = (Size)d * d; b < n; b += gridDim.x) {
        exp_matrix(block, d, H ? H + b * dd : H, S + b * dd, E + b * dd, skew, general, memory);
        block.wait();
    }
}

template <class Real>
__global__ void __launch_bounds__(MOST_THREADS)
    coordinates_kernel(const Real *H, const Real *A, Real *u, Size n, int d, Size D) {
    const Size dd = (Size)d * d;
    for (Size b = blockIdx.x; b < n; b += gridDim.x)
        coordinates(this_block(), d, H + b * dd, A + b * dd, u + b * D);
}

template <class Real>
__global__ void __launch_bounds__(COLUMN_THREADS)
    mix_kernel(const Real *u, const Real *G, Real *v, Size n, Size D) {
    const Size across = (D + COLUMN_THREADS - 1) / COLUMN_THREADS;
    const Size tiles = across * ((n + MIXED - 1) / MIXED);
    for (Size tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const Size row = tile / across * MIXED;
        const Size column = tile % across * COLUMN_THREADS + threadIdx.x;
        const Size count = n - row < MIXED ? n - row : MIXED;
        if (column < D) mix_column(D, count, u + row * D, G, v + row * D, column);
    }
}

template <class Real>
__global__ void __launch_bounds__(MOST_THREADS)
    move_kernel(const Real *H, const Real *v, Real *E, Size n, int d, Size D, Series<Real> series,
                char *global, size_t bytes) {
    const Block block = this_block();
    void *memory = memory_of_block(global, bytes);
    for (Size b = blockIdx.x, dd = (Size)d * d; b < n; b += gridDim.x) {
        move(block, d, H + b * dd, v + b * D, E + b * dd, series, memory);
        block.wait();
    }
}

static __global__ void __launch_bounds__(ROW_THREADS)
    sample_kernel(Rows rows, Size n, Size V, char *global, size_t bytes) {
    const Block block = this_block();
    void *memory = memory_of_block(global, bytes);
    for (Size row = blockIdx.x; row < n; row += gridDim.x) {
        sample_row(block, V, row, rows, memory);
        block.wait();
    }
}

/* How a kernel is started, and the memory of its blocks. */
struct Launch {
    cudaStream_t stream;
    unsigned blocks;
    size_t bytes, shared; /* a block: all that it needs, and what of it is shared memory */
    char *global;
};

static unsigned blocks_for(Size n, Size most) { return (unsigned)(n < most ? n : most); }

/* Finds room for the blocks of `kernel`, `bytes` each, that take `n` matrices or rows. */
static cudaError_t prepare(Launch *launch, const void *kernel, Size n, size_t bytes, void *stream) {
    int device = 0, most = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (!error)
        error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error) return error;
    bytes = (bytes + 15) / 16 * 16; /* the next block's memory starts at a whole double */
    launch->stream = (cudaStream_t)stream;
    launch->bytes = launch->shared = bytes;
    launch->blocks = blocks_for(n, MOST_BLOCKS);
    launch->global = NULL;
    if (bytes <= FREELY) return cudaSuccess;
    if (bytes <= (size_t)most)
        return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)bytes);
    launch->shared = 0;
    launch->blocks = blocks_for(n, BUSY_BLOCKS);
    return cudaMallocAsync((void **)&launch->global, launch->blocks * bytes, launch->stream);
}

/* What went wrong since `prepare`; the memory goes back when the kernel is done. */
static cudaError_t finish(const Launch *launch) {
    const cudaError_t error = cudaGetLastError();
    const cudaError_t freed =
        launch->global ? cudaFreeAsync(launch->global, launch->stream) : cudaSuccess;
    return error ? error : freed;
}

/* Threads for a matrix: one for each piece of a product, in whole warps. */
static unsigned threads_for(Size d) {
    const Size pieces = (d + TALL - 1) / TALL * d;
    return (unsigned)(pieces < MOST_THREADS ? (pieces + 31) / 32 * 32 : MOST_THREADS);
}

template <class Real>
static cudaError_t start_exp(const void *H, const void *S, void *E, Size n, Size d, void *stream) {
    Launch launch;
    const size_t bytes = space_bytes(d, sizeof(Real));
    const cudaError_t error = prepare(&launch, (const void *)exp_kernel<Real>, n, bytes, stream);
    if (error) return error;
    exp_kernel<Real><<<launch.blocks, threads_for(d), launch.shared, launch.stream>>>(
        (const Real *)H, (const Real *)S, (Real *)E, n, (int)d, skew_series<Real>(),
        general_series<Real>(), launch.global, launch.bytes);
    return finish(&launch);
}

template <class Real>
static cudaError_t start_mix(const Real *H, const Real *A, const Real *G, Real *E, Size n, Size d,
                             void *stream) {
    const Size D = d * (d - 1) / 2, tiles = (D + COLUMN_THREADS - 1) / COLUMN_THREADS *
                                            ((n + MIXED - 1) / MIXED);
    Launch launch;
    Real *u = NULL;
    const size_t bytes = space_bytes(d, sizeof(Real));
    cudaError_t error = prepare(&launch, (const void *)move_kernel<Real>, n, bytes, stream);
    if (error) return error;
    if (D > 0)
        error = cudaMallocAsync((void **)&u, (size_t)(2 * n * D) * sizeof(Real), launch.stream);
    if (error) {
        finish(&launch);
        return error;
    }
    Real *v = u + n * D;
    if (D > 0) {
        coordinates_kernel<Real>
            <<<blocks_for(n, MOST_BLOCKS), threads_for(d), 0, launch.stream>>>(H, A, u, n, (int)d,
                                                                             D);
        mix_kernel<Real><<<blocks_for(tiles, MOST_BLOCKS), COLUMN_THREADS, 0, launch.stream>>>(
            u, G, v, n, D);
    }
    move_kernel<Real><<<launch.blocks, threads_for(d), launch.shared, launch.stream>>>(
        H, v, E, n, (int)d, D, move_series<Real>(), launch.global, launch.bytes);
    error = finish(&launch);
    const cudaError_t freed = u ? cudaFreeAsync(u, launch.stream) : cudaSuccess;
    return error ? error : freed;
}

/* All addresses are the device's. 0, or a code that `torsor_cuda_problem` puts in words. */

STARTER torsor_cuda_exp(int is_double, const void *H, const void *S, void *E, Size n, Size d,
                        void *stream) {
    if (n == 0) return cudaSuccess;
    if (d > MOST_SIZE) return cudaErrorInvalidValue;
    return is_double ? start_exp<double>(H, S, E, n, d, stream)
                     : start_exp<float>(H, S, E, n, d, stream);
}

STARTER torsor_cuda_mix(int is_double, const void *H, const void *A, const void *G, void *E,
                        Size n, Size d, void *stream) {
    if (n == 0) return cudaSuccess;
    if (d > MOST_SIZE) return cudaErrorInvalidValue;
    return is_double ? start_mix((const double *)H, (const double *)A, (const double *)G,
                                 (double *)E, n, d, stream)
                     : start_mix((const float *)H, (const float *)A, (const float *)G, (float *)E,
                                 n, d, stream);
}

STARTER torsor_cuda_sample(const void *const *inputs, void *tokens, Size n, Size V, void *stream) {
    if (n == 0) return cudaSuccess;
    const Rows rows = {(const float *)inputs[0], (const float *)inputs[1], (const float *)inputs[2],
                       (const bool *)inputs[3], (const int64_t *)inputs[4], (const float *)inputs[5],
                       (const float *)inputs[6], (const int64_t *)inputs[7], (int64_t *)tokens};
    Launch launch;
    const size_t bytes = row_space_bytes(V, ROW_THREADS);
    const cudaError_t error = prepare(&launch, (const void *)sample_kernel, n, bytes, stream);
    if (error) return error;
    sample_kernel<<<launch.blocks, ROW_THREADS, launch.shared, launch.stream>>>(
        rows, n, V, launch.global, launch.bytes);
    return finish(&launch);
}

extern "C" const char *torsor_cuda_problem(int code) {
    return cudaGetErrorString((cudaError_t)code);
}
