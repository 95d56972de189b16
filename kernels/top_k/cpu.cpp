// Columns of the largest numbers of each row: see best.h.

#include "top_k/best.h"

#include <vector>

// columns [rows, count]: of the `count` largest of n numbers, largest first; rows `stride` apart.
extern "C" __attribute__((visibility("default"))) void draftsmith_top_k(const float* values, int64_t stride,
                                                                       int64_t rows, int64_t n, int64_t count,
                                                                       int64_t* columns, int threads) {
    if (rows * n < top_k::kSerialWork) threads = 1;
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> best(count);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; ++r)
            top_k::Best{best.data(), columns + r * count, count}.offer_all(values + r * stride, n, 0);
    }
}
