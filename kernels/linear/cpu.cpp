// Row-stable product out[m, n] = sum_k x[m, k] * weight[n, k] + bias[n]: see product.h.

#include <vector>

#include "linear/product.h"

namespace {

constexpr int64_t kSerialWork = 1 << 15;  // multiply-adds under which one thread is faster

template <class T>
void run(product::Problem p, int64_t N, const float* x, int64_t x_stride, const product::Matrix& weight,
         int threads) {
    static thread_local std::vector<float> scratch;
    p.padded = product::padded(p.K);
    scratch.resize(p.M * p.padded);
    float* packed = scratch.data();
    p.packed = packed;
    if (p.M * N * p.K < kSerialWork) threads = 1;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t m = 0; m < p.M; ++m) product::pack<T>(packed + m * p.padded, x + m * x_stride, p.K);
#pragma omp for schedule(static)
        for (int part = 0; part < threads; ++part) {
            const product::Range range = product::share(N, part, threads);
            product::run_matrix<T>(p, weight, range.begin, range.end);
        }
    }
}

}  // namespace

// dtype of weight: 0 fp32, 1 bf16, 2 fp16; packed weights are bf16. x rows are x_stride floats apart;
// weight and out are dense.
extern "C" __attribute__((visibility("default"))) void draftsmith_linear(const float* x, int64_t x_stride,
                                                                         const product::Matrix* weight, int dtype,
                                                                         const float* bias, float* out, int64_t M,
                                                                         int64_t N, int64_t K, int threads) {
    const product::Problem p{nullptr, bias, out, M, K, 0, N, false};
    if (dtype == 0) run<lanes::Float32>(p, N, x, x_stride, *weight, threads);
    else if (dtype == 1) run<lanes::BFloat16>(p, N, x, x_stride, *weight, threads);
    else run<lanes::Float16>(p, N, x, x_stride, *weight, threads);
}
