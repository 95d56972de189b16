// Row-stable attention of draft rows over their slot's committed rows and their own ancestors: see
// attention.h.

#include "tree_attention/attention.h"

namespace attention {

template void attend_unit<lanes::Float32>(const Problem&, int64_t, int64_t, int64_t, const float*, float*, Scratch&);
template void attend_unit<lanes::BFloat16>(const Problem&, int64_t, int64_t, int64_t, const float*, float*, Scratch&);
template void attend_unit<lanes::Float16>(const Problem&, int64_t, int64_t, int64_t, const float*, float*, Scratch&);

}  // namespace attention

namespace {

constexpr int64_t kSerialWork = 1 << 17;  // multiply-adds under which one thread is faster

template <class T>
void run(const attention::Problem& p, const float* q, float* out, int threads) {
    const int64_t per_row = attention::units_a_row(p), units = p.B * p.W * per_row;
    int64_t work = 0;
    for (int64_t b = 0; b < p.B; ++b)
        work += p.widths[b] * (p.lengths[b] + p.offset + p.W) * p.Hq * p.D;
    if (work < kSerialWork) threads = 1;
#pragma omp parallel num_threads(threads)
    {
        static thread_local attention::Scratch scratch;
#pragma omp for schedule(dynamic, 1)
        for (int64_t unit = 0; unit < units; ++unit) {
            const int64_t row = unit / per_row, first = row * p.Hq * p.D;
            attention::attend_unit<T>(p, row / p.W, row % p.W, unit % per_row, q + first, out + first, scratch);
        }
    }
}

}  // namespace

// dtype of the caches: 0 fp32, 1 bf16, 2 fp16.
extern "C" __attribute__((visibility("default"))) void draftsmith_tree_attention(
    const float* q, const void* k, const void* v, int dtype, int64_t slot_stride, int64_t head_stride,
    const int64_t* slots, const int64_t* lengths, const int64_t* widths, const uint8_t* visible, float* out,
    int64_t B, int64_t W, int64_t Hq, int64_t Hkv, int64_t D, int64_t offset, int64_t window, float scale,
    float softcap, int threads) {
    const attention::Problem p{k, v, slot_stride, head_stride, slots, lengths, widths, visible,
                               B, W, Hq, Hkv, D, offset, window, scale, softcap};
    if (dtype == 0) run<lanes::Float32>(p, q, out, threads);
    else if (dtype == 1) run<lanes::BFloat16>(p, q, out, threads);
    else run<lanes::Float16>(p, q, out, threads);
}
