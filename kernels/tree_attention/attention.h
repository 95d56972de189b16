// Row-stable attention of draft rows over their slot's committed rows and their own ancestors.
//
// Per (sequence, row, up to 3 query heads of one key head): scores in logical order of the keys, softmax
// in two passes, weighted values accumulated key by key. Each score owns one accumulator of eight lanes
// over the head dimension, each output number one accumulator over the keys, the softmax denominator
// eight lanes over the logical position. No order depends on the batch, on the other rows, on where a
// key sits in the cache, or on the threads, so neither do a row's bits. Cache rows that a query does not
// see are never read.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lanes.h"

namespace attention {

using lanes::kStep;
using lanes::Pair;

constexpr int64_t kHeads = 3;             // query heads that share one read of keys and values

struct Problem {
    const void *k, *v;                          // slot 0, head 0, row 0 of one layer
    int64_t slot_stride, head_stride;           // in elements; rows are D apart
    const int64_t *slots, *lengths, *widths;    // [B]
    const uint8_t* visible;                     // [B, W, offset + W] or null: causal
    int64_t B, W, Hq, Hkv, D, offset, window;   // window 0: none
    float scale, softcap;                       // softcap 0: none
};

// exp for arguments <= 0: argument reduction by ln 2 and the series to degree 7; under -87 it is 0, of
// NaN it is NaN.
inline __m256 exp_negative(__m256 x) {
    const __m256 floor = _mm256_set1_ps(-87.0f);
    const __m256 alive = _mm256_cmp_ps(x, floor, _CMP_NLT_UQ);
    x = _mm256_max_ps(floor, x);  // the second one where either is NaN
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 sum = _mm256_set1_ps(1.0f / 5040);
    for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
        sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(c));
    const __m256i power = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    const __m256 result = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(sum), power));
    return _mm256_and_ps(result, alive);
}

// softcap * tanh(s / softcap), by exp of the negative magnitude.
inline __m256 cap(__m256 s, float softcap) {
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    const __m256 y = _mm256_div_ps(_mm256_andnot_ps(sign, s), _mm256_set1_ps(softcap));
    const __m256 e = exp_negative(_mm256_mul_ps(y, _mm256_set1_ps(-2.0f)));
    const __m256 tanh = _mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e));
    return _mm256_or_ps(_mm256_mul_ps(tanh, _mm256_set1_ps(softcap)), _mm256_and_ps(sign, s));
}

// The 16 elements at d of a row, zeros past the head dimension; kWhole: D is a multiple of 16.
template <class T, bool kWhole>
inline Pair load_at(const typename T::Element* row, int64_t d, int64_t D) {
    if (kWhole || d + kStep <= D) return T::load(row + d);
    typename T::Element rest[kStep] = {};
    std::memcpy(rest, row + d, (D - d) * sizeof(rest[0]));
    return T::load(rest);
}

struct Scratch {
    std::vector<int64_t> rows;  // cache rows of the keys, in logical order
    std::vector<float> q, scores;
};

// Cache rows that row i of sequence b sees, in logical order, the window applied.
inline void collect_keys(const Problem& p, int64_t b, int64_t i, std::vector<int64_t>& rows) {
    const int64_t length = p.lengths[b];
    rows.clear();
    for (int64_t j = 0; j < length; ++j) rows.push_back(j);
    if (p.visible) {
        const uint8_t* seen = p.visible + (b * p.W + i) * (p.offset + p.W);
        for (int64_t j = 0; j < p.offset + p.widths[b]; ++j)
            if (seen[j]) rows.push_back(length + j);
    } else {
        for (int64_t j = 0; j <= p.offset + i; ++j) rows.push_back(length + j);
    }
    const int64_t num_keys = static_cast<int64_t>(rows.size());
    if (p.window > 0 && num_keys > p.window) rows.erase(rows.begin(), rows.end() - p.window);
}

// The sums of a's and of b's eight lanes, in one fixed order.
inline __m128 sum_two(__m256 a, __m256 b) {
    const __m256 pairs = _mm256_hadd_ps(a, b);           // a 01 23, b 01 23 | a 45 67, b 45 67
    const __m256 fours = _mm256_hadd_ps(pairs, pairs);   // a 0-3, b 0-3 | a 4-7, b 4-7
    return _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1));
}

// Scores of H query heads with every key, two keys at a time; an odd last key is its own neighbour.
template <class T, int H, bool kWhole>
void score(const Problem& p, const typename T::Element* keys, Scratch& scratch, int64_t stride) {
    const int64_t num_keys = static_cast<int64_t>(scratch.rows.size());
    const int64_t padded = (p.D + kStep - 1) / kStep * kStep;
    const int64_t* rows = scratch.rows.data();
    const float* queries = scratch.q.data();
    float* scores = scratch.scores.data();
    for (int64_t j = 0; j < num_keys; j += 2) {
        const bool both = j + 1 < num_keys;
        const typename T::Element *left = keys + rows[j] * p.D, *right = keys + rows[j + both] * p.D;
        __m256 acc[H][2];
        for (int h = 0; h < H; ++h) acc[h][0] = acc[h][1] = _mm256_setzero_ps();
        for (int64_t d = 0; d < padded; d += kStep) {
            const Pair a = load_at<T, kWhole>(left, d, p.D), b = load_at<T, kWhole>(right, d, p.D);
            for (int h = 0; h < H; ++h) {
                const Pair q = lanes::Float32::load(queries + h * padded + d);
                acc[h][0] = _mm256_fmadd_ps(a.a, q.a, acc[h][0]);
                acc[h][1] = _mm256_fmadd_ps(b.a, q.a, acc[h][1]);
                acc[h][0] = _mm256_fmadd_ps(a.b, q.b, acc[h][0]);
                acc[h][1] = _mm256_fmadd_ps(b.b, q.b, acc[h][1]);
            }
        }
        for (int h = 0; h < H; ++h) {
            const __m128 two = _mm_mul_ps(sum_two(acc[h][0], acc[h][1]), _mm_set1_ps(p.scale));
            float* to = scores + h * stride + j;  // a stride is even
            _mm_storel_pi(reinterpret_cast<__m64*>(to), two);
        }
    }
}

// Scores to unnormalised weights, in place; returns their sum. Lanes past the keys become 0.
inline float weigh(const Problem& p, float* scores, int64_t num_keys, int64_t stride) {
    const float lowest = -std::numeric_limits<float>::infinity();
    std::fill(scores + num_keys, scores + stride, lowest);
    __m256 largest = _mm256_set1_ps(lowest);
    for (int64_t j = 0; j < stride; j += 8) {
        __m256 s = _mm256_loadu_ps(scores + j);
        if (p.softcap > 0 && j < num_keys) {
            s = cap(s, p.softcap);
            _mm256_storeu_ps(scores + j, s);
        }
        largest = _mm256_max_ps(s, largest);
    }
    if (p.softcap > 0) std::fill(scores + num_keys, scores + stride, lowest);
    float lanes_of[8];
    _mm256_storeu_ps(lanes_of, largest);
    const __m256 top = _mm256_set1_ps(*std::max_element(lanes_of, lanes_of + 8));
    __m256 total = _mm256_setzero_ps();
    for (int64_t j = 0; j < stride; j += 8) {
        const __m256 weight = exp_negative(_mm256_sub_ps(_mm256_loadu_ps(scores + j), top));
        _mm256_storeu_ps(scores + j, weight);
        total = _mm256_add_ps(total, weight);
    }
    return lanes::sum(total);
}

// Sums of weighted values of H heads, sixteen outputs each. One statement a loop: with two of them in
// one, or written out in `mix`, g++ 12 stores the sums at every key.
template <int H>
struct Mixed {
    __m256 acc[H][2];

    Mixed() {
        for (int h = 0; h < H; ++h) acc[h][0] = acc[h][1] = _mm256_setzero_ps();
    }
    inline void add(const float* weights, int64_t stride, Pair value) {
        __m256 weight[H];
        for (int h = 0; h < H; ++h) weight[h] = _mm256_broadcast_ss(weights + h * stride);
        for (int h = 0; h < H; ++h) acc[h][0] = _mm256_fmadd_ps(weight[h], value.a, acc[h][0]);
        for (int h = 0; h < H; ++h) acc[h][1] = _mm256_fmadd_ps(weight[h], value.b, acc[h][1]);
    }
    inline void store(float* to) const {  // [H, 16], in the order of lanes
        for (int h = 0; h < H; ++h)
            for (int c = 0; c < 2; ++c) _mm256_storeu_ps(to + h * kStep + c * 8, acc[h][c]);
    }
};

// Output elements d .. d + 15 of H heads.
template <class T, int H, bool kWhole>
void mix(const Problem& p, const typename T::Element* values, const Scratch& scratch, int64_t stride,
         const float* totals, int64_t d, float* out) {
    const int64_t num_keys = static_cast<int64_t>(scratch.rows.size());
    const int64_t* rows = scratch.rows.data();
    const float* weights = scratch.scores.data();
    Mixed<H> mixed;
    for (int64_t j = 0; j < num_keys; ++j)
        mixed.add(weights + j, stride, load_at<T, kWhole>(values + rows[j] * p.D, d, p.D));
    float sums[H * kStep];
    mixed.store(sums);
    for (int h = 0; h < H; ++h) {
        const __m256 total = _mm256_set1_ps(totals[h]);
        const Pair scaled{_mm256_div_ps(_mm256_loadu_ps(sums + h * kStep), total),
                          _mm256_div_ps(_mm256_loadu_ps(sums + h * kStep + 8), total)};
        float line[kStep];
        lanes::store_in_memory_order<T>(line, scaled);
        std::memcpy(out + h * p.D + d, line, std::min(kStep, p.D - d) * sizeof(float));
    }
}

// H query heads from `head` on of row i of sequence b, all served by one key head; q and out: [H, D].
template <class T, int H, bool kWhole>
void attend(const Problem& p, int64_t b, int64_t i, int64_t head, const float* q, float* out, Scratch& scratch) {
    if (i >= p.widths[b]) {
        std::fill(out, out + H * p.D, 0.0f);
        return;
    }
    collect_keys(p, b, i, scratch.rows);
    const int64_t num_keys = static_cast<int64_t>(scratch.rows.size());
    if (num_keys == 0) {
        std::fill(out, out + H * p.D, 0.0f);
        return;
    }
    const int64_t padded = (p.D + kStep - 1) / kStep * kStep;
    const int64_t stride = (num_keys + 7) / 8 * 8;
    scratch.scores.resize(H * stride);
    scratch.q.resize(H * padded);
    for (int h = 0; h < H; ++h)
        for (int64_t d = 0; d < padded; d += kStep) {
            float line[kStep] = {};
            std::memcpy(line, q + h * p.D + d, std::min(kStep, p.D - d) * sizeof(float));
            lanes::store_in_lane_order<T>(scratch.q.data() + h * padded + d, line);
        }
    const int64_t base = p.slots[b] * p.slot_stride + head / (p.Hq / p.Hkv) * p.head_stride;
    using Element = typename T::Element;
    score<T, H, kWhole>(p, static_cast<const Element*>(p.k) + base, scratch, stride);
    float totals[H];
    for (int h = 0; h < H; ++h) totals[h] = weigh(p, scratch.scores.data() + h * stride, num_keys, stride);
    const Element* values = static_cast<const Element*>(p.v) + base;
    for (int64_t d = 0; d < padded; d += kStep)
        mix<T, H, kWhole>(p, values, scratch, stride, totals, d, out);
}

// Units of work of one row: a key head with up to kHeads of its query heads.
inline int64_t units_a_row(const Problem& p) { return p.Hkv * ((p.Hq / p.Hkv + kHeads - 1) / kHeads); }

// Unit `unit` of row i of sequence b; q and out are the row's [Hq, D].
template <class T, bool kWhole>
void attend_heads(const Problem& p, int64_t b, int64_t i, int64_t unit, const float* q, float* out,
                  Scratch& scratch) {
    const int64_t group = p.Hq / p.Hkv, tiles = (group + kHeads - 1) / kHeads, tile = unit % tiles;
    const int64_t head = unit / tiles * group + tile * kHeads;
    q += head * p.D;
    out += head * p.D;
    switch (std::min(kHeads, group - tile * kHeads)) {
        case 1: attend<T, 1, kWhole>(p, b, i, head, q, out, scratch); break;
        case 2: attend<T, 2, kWhole>(p, b, i, head, q, out, scratch); break;
        default: attend<T, 3, kWhole>(p, b, i, head, q, out, scratch);
    }
}

template <class T>
void attend_unit(const Problem& p, int64_t b, int64_t i, int64_t unit, const float* q, float* out,
                 Scratch& scratch) {
    if (p.D % kStep == 0) attend_heads<T, true>(p, b, i, unit, q, out, scratch);
    else attend_heads<T, false>(p, b, i, unit, q, out, scratch);
}

// Compiled once, in tree_attention/cpu.cpp.
extern template void attend_unit<lanes::Float32>(const Problem&, int64_t, int64_t, int64_t, const float*, float*, Scratch&);
extern template void attend_unit<lanes::BFloat16>(const Problem&, int64_t, int64_t, int64_t, const float*, float*, Scratch&);
extern template void attend_unit<lanes::Float16>(const Problem&, int64_t, int64_t, int64_t, const float*, float*, Scratch&);

}  // namespace attention
