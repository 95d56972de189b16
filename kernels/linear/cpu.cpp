// Row-stable product out[m, n] = sum_k x[m, k] * weight[n, k] + bias[n]: see product.h.

#include "linear/product.h"

template void product::run_matrix<lanes::Float32>(const Problem&, const Matrix&, int64_t, int64_t);
template void product::run_matrix<lanes::BFloat16>(const Problem&, const Matrix&, int64_t, int64_t);
template void product::run_matrix<lanes::Float16>(const Problem&, const Matrix&, int64_t, int64_t);

namespace {

constexpr int64_t kSerialWork = 1 << 15;  // multiply-adds under which one thread is faster

template <class T>
void run(const product::Problem& p, const product::Matrix& weight, int threads) {
    if (p.M * p.N * p.K < kSerialWork) threads = 1;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; ++part) {
        const product::Range range = product::share(p.N, part, threads);
        product::run_matrix<T>(p, weight, range.begin, range.end);
    }
}

}  // namespace

// dtype of weight: 0 fp32, 1 bf16, 2 fp16; packed weights are bf16. x rows are x_stride floats apart;
// weight and out are dense.
extern "C" __attribute__((visibility("default"))) void draftsmith_linear(const float* x, int64_t x_stride,
                                                                         const product::Matrix* weight, int dtype,
                                                                         const float* bias, float* out, int64_t M,
                                                                         int64_t N, int64_t K, int threads) {
    const product::Problem p{x, bias, out, M, N, K, x_stride, N, false};
    if (dtype == 0) run<lanes::Float32>(p, *weight, threads);
    else if (dtype == 1) run<lanes::BFloat16>(p, *weight, threads);
    else run<lanes::Float16>(p, *weight, threads);
}
