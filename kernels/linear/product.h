// Row-stable product of rows in lane order with weight rows [begin, end), for AVX2 processors.
//
// Every (m, n) owns one accumulator of eight fp32 lanes, fed in ascending k by fused multiply-adds and
// reduced by lanes::sum, whatever M, the blocking or the number of threads: a row's bits do not depend
// on the rows beside it. Weights are read once from memory in their own type: 4 rows of weights meet up
// to 3 rows of x in registers, blocks of weights stay in L1 while all rows of x pass by, and the next
// block is prefetched meanwhile.
#pragma once

#include <algorithm>

#include "lanes.h"

namespace product {

using lanes::kStep;

constexpr int64_t kGroup = 4;            // weight rows in registers
constexpr int64_t kTile = 3;             // x rows in registers
constexpr int64_t kBlockBytes = 20480;   // weights kept in L1 while the rows of x pass by

struct Problem {
    const float* packed;  // [M, padded] x in lane order, zeros after K
    const float* bias;    // [N] or null
    float* out;           // rows `stride` apart
    int64_t M, K, padded, stride;
    bool add;             // out += product, else out = product
};

inline int64_t padded(int64_t K) { return (K + kStep - 1) / kStep * kStep; }

// The part of N outputs that thread `index` of `count` computes, whole groups but for the last.
struct Range {
    int64_t begin, end;
};
inline Range share(int64_t N, int index, int count) {
    const int64_t groups = (N + kGroup - 1) / kGroup;
    return {std::min(N, groups * index / count * kGroup), std::min(N, groups * (index + 1) / count * kGroup)};
}

// One row of K floats into lane order, zeros up to padded(K).
template <class T>
inline void pack(float* packed, const float* row, int64_t K) {
    const int64_t whole = K / kStep * kStep;
    for (int64_t k = 0; k < whole; k += kStep) lanes::store_in_lane_order<T>(packed + k, row + k);
    if (whole < K) {
        float rest[kStep] = {};
        std::memcpy(rest, row + whole, (K - whole) * sizeof(float));
        lanes::store_in_lane_order<T>(packed + whole, rest);
    }
}

// What to prefetch while a tile runs: `lines` cache lines a step from `start`; 0 lines for none.
struct Ahead {
    const char* start;
    int64_t lines;
};

template <class T, int R, int M>
inline void tile(const Problem& p, const typename T::Element* weight, int64_t n, int64_t m, Ahead ahead) {
    __m256 acc[M][R];
    for (int i = 0; i < M; ++i)
        for (int r = 0; r < R; ++r) acc[i][r] = _mm256_setzero_ps();
    const typename T::Element* rows = weight + n * p.K;
    const float* x = p.packed + m * p.padded;
    const auto step = [&](const typename T::Element* w, int64_t stride, int64_t k) {
        lanes::Pair in[M];
        for (int i = 0; i < M; ++i) in[i] = lanes::Float32::load(x + i * p.padded + k);
        for (int r = 0; r < R; ++r) {
            const lanes::Pair value = T::load(w + r * stride);
            for (int i = 0; i < M; ++i) acc[i][r] = _mm256_fmadd_ps(value.a, in[i].a, acc[i][r]);
            for (int i = 0; i < M; ++i) acc[i][r] = _mm256_fmadd_ps(value.b, in[i].b, acc[i][r]);
        }
    };
    const int64_t whole = p.K / kStep * kStep;
    for (int64_t k = 0; k < whole; k += kStep) {
        for (int64_t line = 0; line < ahead.lines; ++line, ahead.start += 64)
            _mm_prefetch(ahead.start, _MM_HINT_T0);
        step(rows + k, p.K, k);
    }
    if (whole < p.K) {
        typename T::Element rest[R][kStep] = {};
        for (int r = 0; r < R; ++r)
            std::memcpy(rest[r], rows + r * p.K + whole, (p.K - whole) * sizeof(rest[r][0]));
        step(&rest[0][0], kStep, whole);
    }
    for (int i = 0; i < M; ++i)
        for (int r = 0; r < R; ++r) {
            float total = lanes::sum(acc[i][r]);
            if (p.bias) total += p.bias[n + r];
            float* out = p.out + (m + i) * p.stride + n + r;
            *out = p.add ? total + *out : total;
        }
}

template <class T, int R>
inline void tile_of(int64_t rows, const Problem& p, const typename T::Element* weight, int64_t n, int64_t m,
                    Ahead ahead) {
    if (rows == 1) tile<T, R, 1>(p, weight, n, m, ahead);
    else if (rows == 2) tile<T, R, 2>(p, weight, n, m, ahead);
    else tile<T, R, 3>(p, weight, n, m, ahead);
}

// All rows of x against the weight rows [begin, end), a multiple of kGroup apart but for the last.
template <class T>
void run_range(const Problem& p, const typename T::Element* weight, int64_t begin, int64_t end) {
    const int64_t row_bytes = p.K * sizeof(typename T::Element);
    const int64_t block = std::max<int64_t>(1, kBlockBytes / (kGroup * row_bytes)) * kGroup;
    const int64_t tiles = (p.M + kTile - 1) / kTile;
    const int64_t lines = kGroup * kStep * sizeof(typename T::Element) / 64;  // of a group, a step
    const int64_t share = std::max<int64_t>(1, (lines + tiles - 1) / tiles);
    for (int64_t first = begin; first < end; first += block) {
        const int64_t last = std::min(first + block, end);
        for (int64_t t = 0, m = 0; t < tiles; ++t) {
            const int64_t rows = p.M / tiles + (t < p.M % tiles);
            for (int64_t n = first; n < last; n += kGroup) {
                if (n + kGroup > last) {
                    for (int64_t single = n; single < last; ++single)
                        tile_of<T, 1>(rows, p, weight, single, m, {nullptr, 0});
                    continue;
                }
                const int64_t next = n + block;
                Ahead ahead{nullptr, 0};
                if (t * share < lines && next + kGroup <= end)
                    ahead = {reinterpret_cast<const char*>(weight + next * p.K) +
                                 t * share * 64 * (p.K / kStep),
                             share};
                tile_of<T, kGroup>(rows, p, weight, n, m, ahead);
            }
            m += rows;
        }
    }
}

}  // namespace product
