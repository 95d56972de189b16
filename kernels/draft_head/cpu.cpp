// The largest logits of each row, and the log of the sum of all exponentials, of x times a head's weight: see
// __init__.py.
//
// Outputs go by in chunks of kChunk, whatever the threads: a chunk's logits of all rows are computed into a
// scratch that stays in cache (1 KiB a row), looked through, and overwritten by those of the next. Each thread
// has a run of consecutive chunks and the best of it; the runs are joined in order, so that of equal logits the
// lower column comes first. Of each chunk and row the largest logit and the sum of exponentials are kept, eight
// lanes each, and joined over the chunks in order: no bits depend on the threads or on the rows beside.

#include <limits>

#include "linear/product.h"
#include "top_k/best.h"
#include "tree_attention/attention.h"

namespace {

constexpr int64_t kChunk = 256;           // outputs, whole panels
constexpr int64_t kSerialWork = 1 << 15;  // multiply-adds under which one thread is faster
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Task {
    product::Problem problem;
    const product::Matrix& weight;
    float softcap;  // 0: none
    int64_t count;
    bool sums;      // whether sums of exponentials are wanted

    int64_t num_chunks() const { return (problem.N + kChunk - 1) / kChunk; }
};

// The sum of exp(z - largest) over a chunk; NaN where a logit is. An infinite largest stands for itself: the
// others are then summed as they are, up to 1 each.
struct Sum {
    float largest, total;
};

// The best of a run of chunks, [M, count], and of each row how many were found.
struct Found {
    std::vector<float> values;
    std::vector<int64_t> columns, sizes;

    Found(int64_t M, int64_t count) : values(M * count), columns(M * count), sizes(M, 0) {}

    top_k::Best row(int64_t m, int64_t count) {
        return {values.data() + m * count, columns.data() + m * count, count, sizes[m]};
    }
};

// softcap * tanh(z / softcap) of kChunk logits.
inline void cap(float* logits, float softcap) {
    for (int64_t j = 0; j < kChunk; j += 8)
        _mm256_storeu_ps(logits + j, attention::cap(_mm256_loadu_ps(logits + j), softcap));
}

// `logits` are kChunk numbers, minus infinity past the last output.
inline Sum sum_of(const float* logits) {
    __m256 most = _mm256_set1_ps(-kInfinity);
    for (int64_t j = 0; j < kChunk; j += 8) most = _mm256_max_ps(_mm256_loadu_ps(logits + j), most);  // no NaN
    float lanes_of[8];
    _mm256_storeu_ps(lanes_of, most);
    const float largest = *std::max_element(lanes_of, lanes_of + 8);
    const __m256 top = _mm256_set1_ps(std::isinf(largest) ? 0.0f : largest);
    __m256 total = _mm256_setzero_ps();
    for (int64_t j = 0; j < kChunk; j += 8) {
        const __m256 below = _mm256_sub_ps(_mm256_loadu_ps(logits + j), top);
        // The second of min's operands where either is NaN.
        const __m256 weight = attention::exp_negative(_mm256_min_ps(_mm256_setzero_ps(), below));
        total = _mm256_add_ps(total, weight);
    }
    return {largest, lanes::sum(total)};
}

// log of the sum of exp(z) from the sums of all chunks, `stride` apart.
inline float log_of(const Sum* sums, int64_t num_chunks, int64_t stride) {
    float largest = -kInfinity;
    for (int64_t c = 0; c < num_chunks; ++c) largest = std::max(largest, sums[c * stride].largest);
    double total = 0.0;
    for (int64_t c = 0; c < num_chunks; ++c) {
        const Sum& sum = sums[c * stride];
        const double share = std::isinf(largest) ? 1.0 : std::exp(static_cast<double>(sum.largest) - largest);
        total += share * sum.total;
    }
    if (std::isnan(total)) return std::numeric_limits<float>::quiet_NaN();
    return std::isinf(largest) ? largest : static_cast<float>(largest + std::log(total));
}

// Chunks first .. last - 1. sums: [num_chunks, M].
template <class T>
void run_chunks(const Task& task, int64_t first, int64_t last, Found& found, Sum* sums) {
    product::Problem p = task.problem;
    std::vector<float> scratch(p.M * kChunk);
    for (int64_t c = first; c < last; ++c) {
        const int64_t begin = c * kChunk, width = std::min(kChunk, p.N - begin);
        // run_matrix writes output n at out + n.
        p.out = reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(scratch.data()) - begin * sizeof(float));
        product::run_matrix<T>(p, task.weight, begin, begin + width);
        for (int64_t m = 0; m < p.M; ++m) {
            float* logits = scratch.data() + m * kChunk;
            if (task.softcap > 0) cap(logits, task.softcap);
            std::fill(logits + width, logits + kChunk, -kInfinity);
            top_k::Best best = found.row(m, task.count);
            best.offer_all(logits, width, begin);
            found.sizes[m] = best.size;
            if (task.sums) sums[c * p.M + m] = sum_of(logits);
        }
    }
}

template <class T>
void run(const Task& task, float* values, int64_t* columns, float* log_sums, int threads) {
    const product::Problem& p = task.problem;
    if (p.M * p.N * p.K < kSerialWork) threads = 1;
    const int64_t num_chunks = task.num_chunks();
    std::vector<Found> found(threads, Found(p.M, task.count));
    std::vector<Sum> sums(task.sums ? num_chunks * p.M : 0);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int part = 0; part < threads; ++part)
            run_chunks<T>(task, num_chunks * part / threads, num_chunks * (part + 1) / threads, found[part],
                          sums.data());
#pragma omp for schedule(static)
        for (int64_t m = 0; m < p.M; ++m) {
            top_k::Best best{values + m * task.count, columns + m * task.count, task.count};
            for (Found& part : found) {
                const top_k::Best of = part.row(m, task.count);
                for (int64_t i = 0; i < of.size; ++i) best.offer(of.values[i], of.columns[i]);
            }
            if (task.sums) log_sums[m] = log_of(sums.data() + m, num_chunks, p.M);
        }
    }
}

}  // namespace

// x [M, K] in rows x_stride apart; dtype of weight [N, K]: 0 fp32, 1 bf16, 2 fp16; bias [N] or null; softcap 0
// for none. values and columns [M, count], 1 <= count <= N; log_sums [M] or null.
extern "C" __attribute__((visibility("default"))) void draftsmith_draft_head(
    const float* x, int64_t x_stride, const product::Matrix* weight, int dtype, const float* bias, float softcap,
    int64_t M, int64_t N, int64_t K, int64_t count, float* values, int64_t* columns, float* log_sums, int threads) {
    const product::Problem p{x, bias, nullptr, M, N, K, x_stride, kChunk, false};
    const Task task{p, *weight, softcap, count, log_sums != nullptr};
    if (dtype == 0) run<lanes::Float32>(task, values, columns, log_sums, threads);
    else if (dtype == 1) run<lanes::BFloat16>(task, values, columns, log_sums, threads);
    else run<lanes::Float16>(task, values, columns, log_sums, threads);
}
