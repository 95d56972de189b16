// Packing of bf16 weights to 12 bits: see packed.h. Two walks over the weight, the first to count.

#include <omp.h>

#include <algorithm>

#include "bf12_gemv/packed.h"

namespace {

using lanes::kPanel;

// Code of each high byte; 255: it has none.
struct Codes {
    uint8_t of[256];
    explicit Codes(const uint8_t* highs) {
        std::memset(of, 255, sizeof(of));
        for (int code = 15; code >= 0; --code) of[highs[code]] = static_cast<uint8_t>(code);
    }
    inline uint8_t operator()(uint16_t value) const { return of[value >> 8]; }
};

}  // namespace

// counts[256]: how often each high byte occurs among n numbers.
extern "C" __attribute__((visibility("default"))) void draftsmith_bf12_high_bytes(const uint16_t* rows, int64_t n,
                                                                                 int64_t* counts, int threads) {
    std::memset(counts, 0, 256 * sizeof(int64_t));
#pragma omp parallel num_threads(threads)
    {
        int64_t own[256] = {};
#pragma omp for schedule(static)
        for (int64_t i = 0; i < n; ++i) ++own[rows[i] >> 8];
#pragma omp critical
        for (int high = 0; high < 256; ++high) counts[high] += own[high];
    }
}

// escapes[panels]: numbers of each sixteen rows whose high byte is none of the sixteen.
extern "C" __attribute__((visibility("default"))) void draftsmith_bf12_escapes(const uint16_t* rows, int64_t N,
                                                                               int64_t K, const uint8_t* highs,
                                                                               int64_t* escapes, int threads) {
    const Codes code_of(highs);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t n = 0; n < N; n += kPanel) {
        int64_t count = 0;
        for (int64_t i = n * K; i < std::min(n + kPanel, N) * K; ++i) count += code_of(rows[i]) == 255;
        escapes[n / kPanel] = count;
    }
}

// Writes units, places and values; `starts` says where each panel's escapes begin.
extern "C" __attribute__((visibility("default"))) void draftsmith_bf12_pack(const uint16_t* rows, int64_t N,
                                                                            int64_t K, const uint8_t* highs, uint8_t* units,
                                                                            const int64_t* starts, int32_t* places,
                                                                            uint16_t* values, int threads) {
    const Codes codes(highs);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t n = 0; n < N; n += kPanel) {
        uint8_t* panel = units + n / kPanel * bf12::num_units(K) * bf12::kUnitBytes;
        std::memset(panel, 0, bf12::num_units(K) * bf12::kUnitBytes);
        int64_t escape = starts[n / kPanel];
        for (int64_t k = 0; k < K; ++k) {
            uint8_t* unit = panel + k / bf12::kColumns * bf12::kUnitBytes;
            const int64_t i = k % bf12::kColumns;
            for (int64_t w = 0; w < kPanel; ++w) {
                const int64_t row = n + lanes::row_of<lanes::BFloat16>(w);
                if (row >= N) continue;
                const uint16_t value = rows[row * K + k];
                unit[bf12::byte_of(i, w)] = static_cast<uint8_t>(value);
                const uint8_t code = codes(value);
                if (code == 255) {
                    places[escape] = static_cast<int32_t>(k * kPanel + w);
                    values[escape++] = value;
                    continue;
                }
                uint8_t& pair = unit[bf12::code_of(i, w)];
                pair = static_cast<uint8_t>(pair | code << bf12::code_shift(w));
            }
        }
    }
}
