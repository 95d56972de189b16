// Loads of 16 consecutive numbers as floats, shared by the CPU kernels.
//
// `load` yields two vectors of eight, in every form: attention sums over lanes, and eight of them are part
// of its fixed order. bfloat16 is split into even and odd elements (a shift and a mask, no shuffle), so
// whoever multiplies with it must hold the other operand in the same order: see `store_in_lane_order`. The
// order depends on the element type alone.
//
// `column` yields what a product holds of one column of a panel, a lane for each output: two vectors of
// eight in the AVX2 form, one of sixteen in the AVX-512 form (DRAFTSMITH_AVX512 is defined). Each output is
// a chain of its own in either, so both forms have the same bits.
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

#ifdef DRAFTSMITH_AVX512

struct Column {
    __m512 all;

    static inline Column zeros() { return {_mm512_setzero_ps()}; }
    // this += column * *x
    inline void multiply_add(Column column, const float* x) {
        all = _mm512_fmadd_ps(column.all, _mm512_set1_ps(*x), all);
    }
    // to[0..15] += this
    inline void add_to(float* to) const { _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), all)); }
};

#else

struct Column {
    __m256 a, b;

    static inline Column zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    // this += column * *x
    inline void multiply_add(Column column, const float* x) {
        const __m256 value = _mm256_broadcast_ss(x);
        a = _mm256_fmadd_ps(column.a, value, a);
        b = _mm256_fmadd_ps(column.b, value, b);
    }
    // to[0..15] += this
    inline void add_to(float* to) const {
        _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), a));
        _mm256_storeu_ps(to + 8, _mm256_add_ps(_mm256_loadu_ps(to + 8), b));
    }
};

#endif

struct Float32 {
    using Element = float;
    static constexpr bool kSplit = false;
    static inline Pair load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
#ifdef DRAFTSMITH_AVX512
    static inline Column column(const float* p) { return {_mm512_loadu_ps(p)}; }
#else
    static inline Column column(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
#endif
    static inline Column by_row(Column column) { return column; }
    static inline float scalar(float value) { return value; }
};

struct BFloat16 {
    using Element = uint16_t;
    static constexpr bool kSplit = true;
    static inline Pair load(const uint16_t* p) { return split(words(p)); }
    static inline Column column(const uint16_t* p) { return column(words(p)); }
#ifdef DRAFTSMITH_AVX512
    // In the order of words: bringing rows into theirs waits until the sums are whole.
    static inline Column column(__m256i raw) {
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
    }
    static inline Column by_row(Column column) {
        const __m512i words = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        return {_mm512_permutexvar_ps(words, column.all)};
    }
#else
    static inline Column column(__m256i raw) {
        const Pair halves = split(raw);
        return {halves.a, halves.b};
    }
    static inline Column by_row(Column column) { return column; }
#endif
    static inline __m256i words(const uint16_t* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
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
#ifdef DRAFTSMITH_AVX512
    static inline Column column(const uint16_t* p) {
        return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
#else
    static inline Column column(const uint16_t* p) {
        const Pair halves = load(p);
        return {halves.a, halves.b};
    }
#endif
    static inline Column by_row(Column column) { return column; }
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
