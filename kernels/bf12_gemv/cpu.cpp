// Packing of bf16 weights to 12 bits: see packed.h. Two walks over the weight, the first to count.

#include <omp.h>

#include "bf12_gemv/packed.h"

namespace {

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

// escapes[N / 4]: numbers of each group of four rows whose high byte is none of the sixteen.
extern "C" __attribute__((visibility("default"))) void draftsmith_bf12_escapes(const uint16_t* rows, int64_t N,
                                                                               int64_t K, const uint8_t* highs,
                                                                               int64_t* escapes, int threads) {
    const Codes code_of(highs);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t group = 0; group < N / bf12::kRows; ++group) {
        const uint16_t* first = rows + group * bf12::kRows * K;
        int64_t count = 0;
        for (int64_t i = 0; i < bf12::kRows * K; ++i) count += code_of(first[i]) == 255;
        escapes[group] = count;
    }
}

// Writes units, places and values; `starts` says where each group's escapes begin.
extern "C" __attribute__((visibility("default"))) void draftsmith_bf12_pack(const uint16_t* rows, int64_t N,
                                                                            int64_t K, const uint8_t* highs, uint8_t* units,
                                                                            const int64_t* starts, int32_t* places,
                                                                            uint16_t* values, int threads) {
    using bf12::kRows;
    using bf12::kStep;
    const int64_t steps = bf12::num_steps(K);
    const Codes codes(highs);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t group = 0; group < N / kRows; ++group) {
        int64_t escape = starts[group];
        for (int64_t step = 0; step < steps; ++step) {
            uint8_t* unit = units + (group * steps + step) * bf12::kUnitBytes;
            std::memset(unit, 0, bf12::kUnitBytes);
            for (int64_t r = 0; r < kRows; ++r)
                for (int64_t i = 0; i < kStep && step * kStep + i < K; ++i) {
                    const uint16_t value = rows[(group * kRows + r) * K + step * kStep + i];
                    unit[bf12::byte_of(r, i)] = static_cast<uint8_t>(value);
                    const uint8_t code = codes(value);
                    if (code == 255) {
                        places[escape] = static_cast<int32_t>((step * kRows + r) * kStep + i);
                        values[escape++] = value;
                        continue;
                    }
                    uint8_t& pair = unit[bf12::code_of(r, i)];
                    pair = static_cast<uint8_t>(pair | code << bf12::code_shift(i));
                }
        }
    }
}
