/* The arithmetic of the CUDA kernels on the CPU: a block is a team of threads of this process.
 *
 * Every function takes the number of threads first, then addresses and sizes as operators of a batch
 * have them. The team goes through the batch as a block does: one matrix after the other in the same
 * memory, a barrier between two.
 */

#include <pthread.h>

#include <functional>
#include <thread>
#include <vector>

#include "../../../serve/native/cuda/cuda_matrices.cuh"
#include "../../../serve/native/cuda/cuda_sampler.cuh"

#define EXPORT extern "C" __attribute__((visibility("default")))

/* Two barriers in turn: of one alone, a checker of threads takes a late sleeper for someone who has
 * seen what the others did since. */
struct Team {
    int thread, count;
    pthread_barrier_t *barriers;
    mutable int turn;
    void wait() const {
        if (count > 1) pthread_barrier_wait(barriers + turn);
        turn = 1 - turn;
    }
};

static void run(int count, const std::function<void(const Team &)> &work) {
    pthread_barrier_t barriers[2];
    for (pthread_barrier_t &barrier : barriers)
        pthread_barrier_init(&barrier, NULL, (unsigned)count);
    std::vector<std::thread> others;
    for (int i = 1; i < count; i++)
        others.emplace_back([&, i] { work(Team{i, count, barriers, 0}); });
    work(Team{0, count, barriers, 0});
    for (std::thread &other : others) other.join();
    for (pthread_barrier_t &barrier : barriers) pthread_barrier_destroy(&barrier);
}

template <class Real>
static void exp_all(int count, const Real *H, const Real *S, Real *E, Size n, int d) {
    std::vector<double> memory(space_bytes(d, sizeof(Real)) / sizeof(double) + 1);
    run(count, [&](const Team &team) {
        for (Size b = 0, at = 0; b < n; b++, at += (Size)d * d) {
            exp_matrix(team, d, H ? H + at : NULL, S + at, E + at, skew_series<Real>(),
                       general_series<Real>(), memory.data());
            team.wait();
        }
    });
}

template <class Real>
static void mix_all(int count, const Real *H, const Real *A, const Real *G, Real *E, Size n, int d) {
    const Size D = (Size)d * (d - 1) / 2, dd = (Size)d * d;
    std::vector<double> memory(space_bytes(d, sizeof(Real)) / sizeof(double) + 1);
    std::vector<Real> u(n * D + 1), v(n * D + 1);
    run(count, [&](const Team &team) {
        for (Size b = 0; b < n; b++) coordinates(team, d, H + b * dd, A + b * dd, &u[b * D]);
        team.wait();
        for (Size row = 0; row < n; row += MIXED)
            for (Size column = team.thread; column < D; column += team.count)
                mix_column(D, n - row < MIXED ? n - row : MIXED, &u[row * D], G, &v[row * D],
                           column);
        team.wait();
        for (Size b = 0; b < n; b++) {
            move(team, d, H + b * dd, &v[b * D], E + b * dd, move_series<Real>(), memory.data());
            team.wait();
        }
    });
}

EXPORT void exp_f32(int count, const float *H, const float *S, float *E, Size n, Size d) {
    exp_all(count, H, S, E, n, (int)d);
}

EXPORT void exp_f64(int count, const double *H, const double *S, double *E, Size n, Size d) {
    exp_all(count, H, S, E, n, (int)d);
}

EXPORT void mix_f32(int count, const float *H, const float *A, const float *G, float *E, Size n,
                    Size d) {
    mix_all(count, H, A, G, E, n, (int)d);
}

EXPORT void mix_f64(int count, const double *H, const double *A, const double *G, double *E, Size n,
                    Size d) {
    mix_all(count, H, A, G, E, n, (int)d);
}

EXPORT void sample(int count, const float *logits, const float *bias, const float *divisor,
                   const bool *greedy, const int64_t *top_k, const float *top_p,
                   const float *uniform, const int64_t *forced, int64_t *tokens, Size n, Size V) {
    const Rows rows = {logits, bias, divisor, greedy, top_k, top_p, uniform, forced, tokens};
    std::vector<double> memory(row_space_bytes(V, count) / sizeof(double) + 1);
    run(count, [&](const Team &team) {
        for (Size row = 0; row < n; row++) {
            sample_row(team, V, row, rows, memory.data());
            team.wait();
        }
    });
}

#ifdef RACES /* a program for a checker of threads: everything some times, by teams of three; it forgets
                 what was read and written long ago, so once is not enough */

template <class Real>
static void exponentials(void run_exp(int, const Real *, const Real *, Real *, Size, Size),
                         void run_mix(int, const Real *, const Real *, const Real *, Real *, Size,
                                      Size)) {
    for (int d : {1, 2, 5, 9}) {
        const Size D = (Size)d * (d - 1) / 2, dd = (Size)d * d;
        std::vector<Real> H(3 * dd), S(3 * dd), G(D * D + 1), E(3 * dd);
        for (Size i = 0; i < 3 * dd; i++) H[i] = (Real)(i % 7) / 7, S[i] = (Real)(i % 5) - 2;
        for (int i = 0; i < d; i++) /* the first is skew, the last is broken */
            for (int j = 0; j <= i; j++) S[i * d + j] = i == j ? 0 : -S[j * d + i];
        S[3 * dd - 1] = (Real)NAN;
        for (Size i = 0; i < D * D; i++) G[i] = (Real)(i % 3) / (Real)D;
        run_exp(3, NULL, S.data(), E.data(), 3, d);
        run_exp(3, H.data(), S.data(), E.data(), 3, d);
        run_mix(3, H.data(), S.data(), G.data(), E.data(), 3, d);
    }
}

static void samples() {
    const Size n = 30, V = 31;
    std::vector<float> logits(n * V), bias(n * V), uniform(n, 0.5f), divisor(n, 1), top_p(n, 2);
    std::vector<int64_t> top_k(n, V), forced(n, -1), tokens(n);
    bool greedy[n] = {false, false, true};
    for (Size i = 0; i < n * V; i++) logits[i] = (float)(i * 5 % 11);
    logits[4 * V] = NAN, top_k[1] = 3, top_p[1] = 0.5f, top_p[5] = 0.1f, forced[3] = 4;
    sample(3, logits.data(), bias.data(), divisor.data(), greedy, top_k.data(), top_p.data(),
           uniform.data(), forced.data(), tokens.data(), n, V);
}

int main() {
    for (int round = 0; round < 20; round++) {
        samples();
        exponentials<float>(exp_f32, mix_f32);
        exponentials<double>(exp_f64, mix_f64);
    }
}

#endif
