// The largest of a run of numbers and the columns that they stand in, largest first: one pass, eight numbers
// at a time against the smallest of the best so far; what passes is put in its place among them.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>

namespace top_k {

constexpr int64_t kLanes = 8;
constexpr int64_t kStride = 4 * kLanes;       // numbers a test
constexpr int64_t kSerialWork = 1 << 15;      // numbers under which one thread is faster

// NaN is larger than any number, as in torch.
inline bool larger(float a, float b) { return std::isnan(a) ? !std::isnan(b) : a > b; }

// The best `count` of what was offered; of equal ones the first that came.
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

    // n numbers that stand in the columns from `first` on.
    inline void offer_all(const float* numbers, int64_t n, int64_t first) {
        int64_t j = 0;
        for (; j < n && size < count; ++j) offer(numbers[j], first + j);
        for (; j + kStride <= n; j += kStride) {
            const __m256 least = _mm256_set1_ps(values[count - 1]);
            const auto passes = [&](int64_t part) {  // larger, or NaN on either side
                return _mm256_cmp_ps(_mm256_loadu_ps(numbers + j + part * kLanes), least, _CMP_NLE_UQ);
            };
            const __m256 any = _mm256_or_ps(_mm256_or_ps(passes(0), passes(1)), _mm256_or_ps(passes(2), passes(3)));
            if (_mm256_movemask_ps(any))
                for (int64_t i = j; i < j + kStride; ++i) offer(numbers[i], first + i);
        }
        for (; j < n; ++j) offer(numbers[j], first + j);
    }
};

}  // namespace top_k
