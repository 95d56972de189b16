// Columns of the largest numbers of each row: one pass, eight numbers at a time against the smallest of
// the best so far; what passes is put in its place among them.

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace {

constexpr int64_t kLanes = 8;
constexpr int64_t kStride = 4 * kLanes;       // numbers a test
constexpr int64_t kSerialWork = 1 << 15;      // numbers under which one thread is faster

// NaN is larger than any number, as in torch.
inline bool larger(float a, float b) { return std::isnan(a) ? !std::isnan(b) : a > b; }

// The best of a row, largest first; of equal ones the first that came.
struct Best {
    float* values;
    int64_t* columns;
    int64_t count, size = 0;

    inline void offer(float value, int64_t column) {
        if (size == count && !larger(value, values[size - 1])) return;
        int64_t at = size < count ? size++ : size - 1;
        for (; at > 0 && larger(value, values[at - 1]); --at) {
            values[at] = values[at - 1];
            columns[at] = columns[at - 1];
        }
        values[at] = value;
        columns[at] = column;
    }
};

void top_of_row(const float* row, int64_t n, int64_t count, float* values, int64_t* columns) {
    Best best{values, columns, count};
    int64_t j = 0;
    for (; j < count; ++j) best.offer(row[j], j);
    for (; j + kStride <= n; j += kStride) {
        const __m256 least = _mm256_set1_ps(values[count - 1]);
        const auto passes = [&](int64_t part) {  // larger, or NaN on either side
            return _mm256_cmp_ps(_mm256_loadu_ps(row + j + part * kLanes), least, _CMP_NLE_UQ);
        };
        const __m256 any = _mm256_or_ps(_mm256_or_ps(passes(0), passes(1)), _mm256_or_ps(passes(2), passes(3)));
        if (_mm256_movemask_ps(any))
            for (int64_t i = j; i < j + kStride; ++i) best.offer(row[i], i);
    }
    for (; j < n; ++j) best.offer(row[j], j);
}

}  // namespace

// columns [rows, count]: of the `count` largest of n numbers, largest first; rows `stride` apart.
extern "C" __attribute__((visibility("default"))) void draftsmith_top_k(const float* values, int64_t stride,
                                                                       int64_t rows, int64_t n, int64_t count,
                                                                       int64_t* columns, int threads) {
    if (rows * n < kSerialWork) threads = 1;
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> best(count);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; ++r)
            top_of_row(values + r * stride, n, count, best.data(), columns + r * count);
    }
}
