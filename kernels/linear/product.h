// Row-stable product of rows in lane order with weight rows [begin, end), for AVX2 processors.
//
// Every (m, n) owns one accumulator of eight fp32 lanes, fed in ascending k by fused multiply-adds and
// reduced by lanes::sum, whatever M, the blocking or the number of threads: a row's bits do not depend
// on the rows beside it. Weights are read once from memory in their own type: 4 rows of weights meet up
// to 3 rows of x in registers, blocks of weights stay in L1 while all rows of x pass by, and the next
// block is prefetched meanwhile.
#pragma once

#include <algorithm>
#include <vector>

#include "bf12_gemv/packed.h"
#include "lanes.h"

namespace product {

using lanes::kStep;

constexpr int64_t kGroup = 4;            // weight rows in registers
constexpr int64_t kTile = 3;             // x rows in registers
constexpr int64_t kRowBytes = 24576;     // rows of x that stay in L1 beside one decoded group
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
    inline void fetch() {
        for (int64_t line = 0; line < lines; ++line, start += 64) _mm_prefetch(start, _MM_HINT_T0);
    }
};

// The accumulators of M rows of x against R rows of weights.
template <int R, int M>
struct Sums {
    __m256 acc[M][R];

    Sums() {
        for (int i = 0; i < M; ++i)
            for (int r = 0; r < R; ++r) acc[i][r] = _mm256_setzero_ps();
    }

    // Columns k .. k + 15; weights(r) yields those of row r.
    template <class Weights>
    inline void step(const float* x, int64_t padded, int64_t k, const Weights& weights) {
        lanes::Pair in[M];
        for (int i = 0; i < M; ++i) in[i] = lanes::Float32::load(x + i * padded + k);
        for (int r = 0; r < R; ++r) {
            const lanes::Pair value = weights(r);
            for (int i = 0; i < M; ++i) acc[i][r] = _mm256_fmadd_ps(value.a, in[i].a, acc[i][r]);
            for (int i = 0; i < M; ++i) acc[i][r] = _mm256_fmadd_ps(value.b, in[i].b, acc[i][r]);
        }
    }

    // Columns k .. k + 15 of weight rows 2 `at` and 2 `at` + 1.
    inline void pair(const float* x, int64_t padded, int64_t k, int at, bf12::Words words) {
        const lanes::Pair left = lanes::BFloat16::split(words.a), right = lanes::BFloat16::split(words.b);
        for (int i = 0; i < M; ++i) {
            const lanes::Pair in = lanes::Float32::load(x + i * padded + k);
            acc[i][2 * at] = _mm256_fmadd_ps(left.a, in.a, acc[i][2 * at]);
            acc[i][2 * at + 1] = _mm256_fmadd_ps(right.a, in.a, acc[i][2 * at + 1]);
            acc[i][2 * at] = _mm256_fmadd_ps(left.b, in.b, acc[i][2 * at]);
            acc[i][2 * at + 1] = _mm256_fmadd_ps(right.b, in.b, acc[i][2 * at + 1]);
        }
    }

    inline void store(const Problem& p, int64_t n, int64_t m) const {
        for (int i = 0; i < M; ++i)
            for (int r = 0; r < R; ++r) {
                float total = lanes::sum(acc[i][r]);
                if (p.bias) total += p.bias[n + r];
                float* out = p.out + (m + i) * p.stride + n + r;
                *out = p.add ? total + *out : total;
            }
    }
};

// R weight rows, p.K apart, against M rows of x from m on; `rows` is weight row n.
template <class T, int R, int M>
inline void tile(const Problem& p, const typename T::Element* rows, int64_t n, int64_t m, Ahead ahead) {
    Sums<R, M> sums;
    const float* x = p.packed + m * p.padded;
    const int64_t whole = p.K / kStep * kStep;
    for (int64_t k = 0; k < whole; k += kStep) {
        ahead.fetch();
        sums.step(x, p.padded, k, [&](int r) { return T::load(rows + r * p.K + k); });
    }
    if (whole < p.K) {
        typename T::Element rest[R][kStep] = {};
        for (int r = 0; r < R; ++r)
            std::memcpy(rest[r], rows + r * p.K + whole, (p.K - whole) * sizeof(rest[r][0]));
        sums.step(x, p.padded, whole, [&](int r) { return T::load(rest[r]); });
    }
    sums.store(p, n, m);
}

template <class T, int R>
inline void tile_of(int64_t num_rows, const Problem& p, const typename T::Element* rows, int64_t n,
                    int64_t m, Ahead ahead) {
    if (num_rows == 1) tile<T, R, 1>(p, rows, n, m, ahead);
    else if (num_rows == 2) tile<T, R, 2>(p, rows, n, m, ahead);
    else tile<T, R, 3>(p, rows, n, m, ahead);
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
                        tile_of<T, 1>(rows, p, weight + single * p.K, single, m, {nullptr, 0});
                    continue;
                }
                const int64_t next = n + block;
                Ahead ahead{nullptr, 0};
                if (t * share < lines && next + kGroup <= end)
                    ahead = {reinterpret_cast<const char*>(weight + next * p.K) +
                                 t * share * 64 * (p.K / kStep),
                             share};
                tile_of<T, kGroup>(rows, p, weight + n * p.K, n, m, ahead);
            }
            m += rows;
        }
    }
}

// One group of packed weights against all M rows of x, decoded in registers.
template <int M>
inline void packed_tile(const Problem& p, const bf12::Packed& weight, const bf12::Decoder& decoder,
                        int64_t group) {
    Sums<bf12::kRows, M> sums;
    const int64_t steps = bf12::num_steps(p.K);
    const uint8_t* unit = weight.units + group * steps * bf12::kUnitBytes;
    bf12::Escapes escapes(weight, group);
    int64_t next = escapes.next();
    for (int64_t step = 0; step < steps; ++step, unit += bf12::kUnitBytes) {
        Ahead{reinterpret_cast<const char*>(unit) + bf12::kAhead, 2}.fetch();
        if (step != next) {
            for (int pair = 0; pair < bf12::kRows / 2; ++pair)
                sums.pair(p.packed, p.padded, step * kStep, pair, decoder.words(unit, pair));
            continue;
        }
        uint16_t rows[bf12::kRows][kStep];
        decoder.store(unit, rows[0], kStep);
        escapes.put(step, rows[0], kStep);
        next = escapes.next();
        sums.step(p.packed, p.padded, step * kStep,
                  [&](int r) { return lanes::BFloat16::load(rows[r]); });
    }
    sums.store(p, group * bf12::kRows, 0);
}

// As `run_range`, for packed weights; `begin` and `end` are multiples of kGroup. Up to kTile rows of x
// are multiplied as the weights are decoded; for more a block of weights is decoded once, into L1: one
// group where the rows of x fit beside it, else as many as in `run_range`, so that x is read less often.
inline void run_packed(Problem p, const bf12::Packed& weight, int64_t begin, int64_t end) {
    static_assert(kGroup == bf12::kRows, "a group of weight rows is what is packed together");
    const bf12::Decoder decoder(weight);
    if (p.M <= kTile) {
        for (int64_t group = begin / kGroup; group < end / kGroup; ++group) {
            if (p.M == 1) packed_tile<1>(p, weight, decoder, group);
            else if (p.M == 2) packed_tile<2>(p, weight, decoder, group);
            else packed_tile<3>(p, weight, decoder, group);
        }
        return;
    }
    const int64_t steps = bf12::num_steps(p.K), depth = p.K;
    p.K = p.padded;  // of the decoded rows; the padding meets zeros of x
    const bool fits = p.M * p.padded * static_cast<int64_t>(sizeof(float)) <= kRowBytes;
    const int64_t block = fits ? kGroup : std::max<int64_t>(1, kBlockBytes / (kGroup * p.K * 2)) * kGroup;
    const int64_t tiles = (p.M + kTile - 1) / kTile;
    static thread_local std::vector<uint16_t> decoded;
    decoded.resize(block * p.K);
    for (int64_t first = begin; first < end; first += block) {
        const int64_t last = std::min(first + block, end);
        for (int64_t n = first; n < last; n += kGroup)
            bf12::unpack_group(weight, decoder, n / kGroup, depth, decoded.data() + (n - first) * p.K, p.K);
        for (int64_t t = 0, m = 0; t < tiles; ++t) {
            const int64_t rows = p.M / tiles + (t < p.M % tiles);
            for (int64_t n = first; n < last; n += kGroup) {
                const int64_t next = n + block;
                Ahead ahead{nullptr, 0};  // the first two tiles fetch the next block: 96 bytes a step
                if (t < 2 && next < end)
                    ahead = {reinterpret_cast<const char*>(weight.units) +
                                 next / kGroup * steps * bf12::kUnitBytes + t * 64 * steps,
                             1};
                tile_of<lanes::BFloat16, kGroup>(rows, p, decoded.data() + (n - first) * p.K, n, m, ahead);
            }
            m += rows;
        }
    }
}

// A weight [N, K]: rows of T::Element, or packed where there are units.
struct Matrix {
    const void* rows;
    bf12::Packed packed;
};

template <class T>
inline void run_matrix(const Problem& p, const Matrix& weight, int64_t begin, int64_t end) {
    if (weight.packed.units) run_packed(p, weight.packed, begin, end);
    else run_range<T>(p, static_cast<const typename T::Element*>(weight.rows), begin, end);
}

}  // namespace product
