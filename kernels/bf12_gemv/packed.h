// bf16 weights in 12 bits each, without loss: the low byte (last bit of the exponent, mantissa) as it is,
// and four bits that say which of the tensor's sixteen commonest high bytes (sign, upper exponent) goes
// with it. Numbers with another high byte are escapes: their true values stand in a list and are put in
// place before anything is multiplied, so that products have the bits of bf16's.
//
// Four rows lie together. For each 16 columns of four rows there is a unit of 96 bytes: for each pair of
// rows (A, B) 32 low bytes, A 0-7, B 0-7, A 8-15, B 8-15, then for each pair 16 bytes of codes, that of
// number j in the low half of byte j and that of number j + 16 in its high half. This is the order in
// which unpacking bytes to words yields whole rows. Columns past K are zero bytes.
#pragma once

#include <limits>

#include "lanes.h"

namespace bf12 {

using lanes::kStep;

constexpr int64_t kRows = 4;
constexpr int64_t kUnitBytes = 96;
constexpr int64_t kCodes = 64;      // where a unit's codes begin
constexpr int64_t kAhead = 2048;    // bytes read ahead of the unit at work
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct Packed {
    const uint8_t* units;     // [N / 4, steps, 96]
    const int64_t* starts;    // [N / 4 + 1]: first escape of a group of four rows
    const int32_t* places;    // of an escape in its group: (step * 4 + row) * 16 + column, ascending
    const uint16_t* values;   // its bf16 bits
    uint8_t highs[16];        // the high bytes that the codes name, ascending
};

inline int64_t num_steps(int64_t K) { return (K + kStep - 1) / kStep; }

// Where (row r of four, column i of sixteen) has its byte, and the byte and shift of its code.
inline int64_t byte_of(int64_t r, int64_t i) { return r / 2 * 32 + i / 8 * 16 + r % 2 * 8 + i % 8; }
inline int64_t code_of(int64_t r, int64_t i) { return kCodes + r / 2 * 16 + r % 2 * 8 + i % 8; }
inline int code_shift(int64_t i) { return i < 8 ? 0 : 4; }

// Sixteen bf16 numbers of two rows each, in column order.
struct Words {
    __m256i a, b;
};

// What the decoding keeps in registers.
struct Decoder {
    __m256i highs, nibble;
    explicit Decoder(const Packed& packed)
        : highs(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed.highs)))),
          nibble(_mm256_set1_epi8(0x0f)) {}

    // Rows 2 `pair` and 2 `pair` + 1 of a unit; escapes hold anything.
    inline Words words(const uint8_t* unit, int64_t pair) const {
        const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(unit + pair * 32));
        const __m128i packed =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(unit + kCodes + pair * 16));
        const __m256i codes = _mm256_and_si256(
            _mm256_inserti128_si256(_mm256_castsi128_si256(packed), _mm_srli_epi16(packed, 4), 1), nibble);
        const __m256i high = _mm256_shuffle_epi8(highs, codes);
        return {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
    }

    // All four rows of a unit, `stride` numbers apart.
    inline void store(const uint8_t* unit, uint16_t* rows, int64_t stride) const {
        for (int64_t pair = 0; pair < kRows / 2; ++pair, rows += 2 * stride) {
            const Words both = words(unit, pair);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows), both.a);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows + stride), both.b);
        }
    }
};

// Walks the escapes of one group in the order of its steps.
class Escapes {
public:
    Escapes(const Packed& packed, int64_t group)
        : places(packed.places), values(packed.values), at(packed.starts[group]),
          end(packed.starts[group + 1]) {}
    // The next step that has an escape; kNever after the last.
    inline int64_t next() const { return at < end ? places[at] / (kRows * kStep) : kNever; }
    // Put the escapes of `step` into its four rows, `stride` numbers apart.
    inline void put(int64_t step, uint16_t* rows, int64_t stride) {
        for (; at < end && places[at] / (kRows * kStep) == step; ++at) {
            const int64_t place = places[at] % (kRows * kStep);
            rows[place / kStep * stride + place % kStep] = values[at];
        }
    }

private:
    const int32_t* places;
    const uint16_t* values;
    int64_t at, end;
};

// Four rows of a group as bf16, `stride` numbers apart, columns padded to whole steps.
inline void unpack_group(const Packed& packed, const Decoder& decoder, int64_t group, int64_t K,
                         uint16_t* rows, int64_t stride) {
    const int64_t steps = num_steps(K);
    const uint8_t* unit = packed.units + group * steps * kUnitBytes;
    Escapes escapes(packed, group);
    for (int64_t step = 0; step < steps; ++step, unit += kUnitBytes) {
        _mm_prefetch(reinterpret_cast<const char*>(unit) + kAhead, _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(unit) + kAhead + 64, _MM_HINT_T0);
        decoder.store(unit, rows + step * kStep, stride);
        if (step == escapes.next()) escapes.put(step, rows + step * kStep, stride);
    }
}

}  // namespace bf12
