// Loads of 16 consecutive numbers as two vectors of eight floats, shared by the CPU kernels.
//
// bfloat16 is split into even and odd elements (a shift and a mask, no shuffle), so whoever multiplies
// with it must hold the other operand in the same order: see `store_in_lane_order`. The order is part
// of the fixed summation order of a row; it depends on the element type alone.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace lanes {

constexpr int64_t kStep = 16;
constexpr int64_t kPanel = 16;  // rows of a weight that lie together

struct Pair {
    __m256 a, b;
};

struct Float32 {
    using Element = float;
    static constexpr bool kSplit = false;
    static inline Pair load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
    static inline float scalar(float value) { return value; }
};

struct BFloat16 {
    using Element = uint16_t;
    static constexpr bool kSplit = true;
    static inline Pair load(const uint16_t* p) {
        return split(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static inline Pair split(__m256i raw) {
        const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
        return {_mm256_castsi256_ps(_mm256_slli_epi32(raw, 16)),
                _mm256_castsi256_ps(_mm256_and_si256(raw, high))};
    }
    static inline float scalar(uint16_t value) {
        const uint32_t bits = static_cast<uint32_t>(value) << 16;
        float result;
        std::memcpy(&result, &bits, sizeof(result));
        return result;
    }
};

struct Float16 {
    using Element = uint16_t;
    static constexpr bool kSplit = false;
    static inline Pair load(const uint16_t* p) {
        return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
                _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
    }
    static inline float scalar(uint16_t value) { return _cvtsh_ss(value); }
};

// Where row r of sixteen lies in a column of a panel, so that T::load yields rows 0-7 and rows 8-15.
template <class T>
inline int64_t word_of(int64_t r) {
    if (!T::kSplit) return r;
    return r < 8 ? 2 * r : 2 * (r - 8) + 1;
}

// The inverse of `word_of`.
template <class T>
inline int64_t row_of(int64_t word) {
    return T::kSplit ? word / 2 + word % 2 * 8 : word;
}

// dst[0..15] = src[0..15] in the order in which T::load yields elements.
template <class T>
inline void store_in_lane_order(float* dst, const float* src) {
    if (!T::kSplit) {
        std::memcpy(dst, src, kStep * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < 8; ++i) {
        dst[i] = src[2 * i];
        dst[8 + i] = src[2 * i + 1];
    }
}

// The inverse of `store_in_lane_order`.
template <class T>
inline void store_in_memory_order(float* dst, Pair value) {
    if (!T::kSplit) {
        _mm256_storeu_ps(dst, value.a);
        _mm256_storeu_ps(dst + 8, value.b);
        return;
    }
    const __m256 low = _mm256_unpacklo_ps(value.a, value.b);    // 0 1 2 3 | 8 9 10 11
    const __m256 high = _mm256_unpackhi_ps(value.a, value.b);   // 4 5 6 7 | 12 13 14 15
    _mm256_storeu_ps(dst, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(dst + 8, _mm256_permute2f128_ps(low, high, 0x31));
}

// Sum of eight lanes in one fixed order: ((0+4)+(2+6)) + ((1+5)+(3+7)).
inline float sum(__m256 v) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}

}  // namespace lanes
