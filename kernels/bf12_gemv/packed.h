// bf16 weights in 12 bits each, without loss: the low byte (last bit of the exponent, mantissa) as it is,
// and four bits that say which of the tensor's sixteen commonest high bytes (sign, upper exponent) goes
// with it. Numbers with another high byte are escapes: their true values stand in a list and are put in
// place before anything is multiplied, so that products have the bits of bf16's.
//
// Sixteen rows lie together, a panel, as in linear/product.h. For each 2 columns there is a unit of 48
// bytes: 32 low bytes (words 0-7 of the first column, then of the second, words 8-15 of the first, then
// of the second), then 16 bytes of codes, that of byte j in the low half of byte j and that of byte
// j + 16 in its high half. This is the order in which unpacking bytes to words yields whole columns.
// Rows past N and a column past K are zero bytes.
#pragma once

#include <limits>

#include "lanes.h"

namespace bf12 {

using lanes::kPanel;

constexpr int64_t kColumns = 2;     // of a unit
constexpr int64_t kUnitBytes = 48;
constexpr int64_t kCodes = 32;      // where a unit's codes begin
constexpr int64_t kAhead = 2048;    // bytes read ahead of the unit at work
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct Packed {
    const uint8_t* units;     // [panels, num_units(K), 48]
    const int64_t* starts;    // [panels + 1]: first escape of a panel
    const int32_t* places;    // of an escape in its panel: column * 16 + word, ascending
    const uint16_t* values;   // its bf16 bits
    uint8_t highs[16];        // the high bytes that the codes name, ascending
};

inline int64_t num_units(int64_t K) { return (K + kColumns - 1) / kColumns; }

// Where word w of a unit's column i has its byte, and the byte and shift of its code.
inline int64_t byte_of(int64_t i, int64_t w) { return w / 8 * 16 + i * 8 + w % 8; }
inline int64_t code_of(int64_t i, int64_t w) { return kCodes + i * 8 + w % 8; }
inline int code_shift(int64_t w) { return w < 8 ? 0 : 4; }

// The sixteen words of each of two columns.
struct Words {
    __m256i a, b;
};

// What the decoding keeps in registers.
struct Decoder {
    __m256i highs, nibble, shift;
    explicit Decoder(const Packed& packed)
        : highs(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed.highs)))),
          nibble(_mm256_set1_epi8(0x0f)), shift(_mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)) {}

    // Both columns of a unit; escapes hold anything.
    inline Words words(const uint8_t* unit) const {
        const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(unit));
        const __m256i both = _mm256_broadcastsi128_si256(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(unit + kCodes)));
        const __m256i codes = _mm256_and_si256(_mm256_srlv_epi32(both, shift), nibble);
        const __m256i high = _mm256_shuffle_epi8(highs, codes);
        return {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
    }
};

// Walks the escapes of one panel in the order of its columns.
class Escapes {
public:
    Escapes(const Packed& packed, int64_t panel)
        : places(packed.places), values(packed.values), at(packed.starts[panel]),
          end(packed.starts[panel + 1]) {}
    // The next unit that has an escape; kNever after the last.
    inline int64_t next() const { return at < end ? places[at] / (kColumns * kPanel) : kNever; }
    // Put the escapes before column `end_column` where they belong: `words` are those from `column` on.
    inline void put(uint16_t* words, int64_t column, int64_t end_column) {
        for (; at < end && places[at] < end_column * kPanel; ++at)
            words[places[at] - column * kPanel] = values[at];
    }

private:
    const int32_t* places;
    const uint16_t* values;
    int64_t at, end;
};

// A panel's columns, piece by piece in their order, as words [columns, 16].
class Columns {
public:
    Columns(const Packed& packed, const Decoder& decoder, int64_t panel, int64_t K)
        : decoder(decoder), unit(packed.units + panel * num_units(K) * kUnitBytes), escapes(packed, panel) {}

    // The next `count` columns, from `column` on (even); room for one more is needed where count is odd.
    inline void read(uint16_t* words, int64_t column, int64_t count) {
        for (int64_t i = 0; i < count; i += kColumns, unit += kUnitBytes) {
            const Words both = decoder.words(unit);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + i * kPanel), both.a);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + (i + 1) * kPanel), both.b);
        }
        escapes.put(words, column, column + count);
    }

    // Where the columns after those that were read begin.
    inline const char* end() const { return reinterpret_cast<const char*>(unit); }

private:
    const Decoder& decoder;
    const uint8_t* unit;
    Escapes escapes;
};

// One row, by its panel and its word there, as fp32 [K].
inline void read_row(const Packed& packed, int64_t panel, int64_t word, int64_t K, float* out) {
    const uint8_t* unit = packed.units + panel * num_units(K) * kUnitBytes;
    for (int64_t k = 0; k < K; ++k) {
        const uint8_t* at = unit + k / kColumns * kUnitBytes;
        const int64_t i = k % kColumns;
        const uint8_t high = packed.highs[at[code_of(i, word)] >> code_shift(word) & 0x0f];
        out[k] = lanes::BFloat16::scalar(static_cast<uint16_t>(high << 8 | at[byte_of(i, word)]));
    }
    for (int64_t e = packed.starts[panel]; e < packed.starts[panel + 1]; ++e)
        if (packed.places[e] % kPanel == word)
            out[packed.places[e] / kPanel] = lanes::BFloat16::scalar(packed.values[e]);
}

}  // namespace bf12
