// Row-stable product of rows with weight rows [begin, end), for AVX2 processors.
//
// Weights are held in panels of 16 rows, column after column, so that one column of a panel is two
// vectors of eight fp32 sums, one lane for each output. Up to 6 rows of x meet it in registers: a number of x is
// broadcast and multiplied into both vectors. Every (m, n) is one chain of fused multiply-adds over k,
// broken into equal blocks of at most kDepth columns whose sums are added in order: the bits of a row
// depend on K alone, not on M, the blocking of M and N, the threads or the form of the weights.
//
// Rows of x go by in chunks of at most kXBytes. A block of weights (kDepth columns of a panel) stays in L1
// while the rows of a chunk pass by, and the next block is fetched meanwhile. 12-bit weights are decoded in
// registers for up to 6 rows of x, else into a block of bf16 once for all rows of a chunk.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "bf12_gemv/packed.h"
#include "lanes.h"

namespace product {

using lanes::kPanel;

constexpr int64_t kTile = 6;              // x rows in registers
constexpr int64_t kDepth = 512;           // columns of a block, at most
constexpr int64_t kUnroll = 4;            // columns between two fetches
constexpr int64_t kXBytes = 256 << 10;    // rows of x that stay in L2 while the weights pass by

// A weight [N, K] in one of three forms; the others are null.
struct Matrix {
    const void* rows;     // [N, K] T::Element
    const void* panels;   // [ceil(N / 16), K, 16] T::Element, each column in word order
    bf12::Packed packed;
};

struct Problem {
    const float* x;     // [M, K], rows `x_stride` apart
    const float* bias;  // [N] or null
    float* out;         // [M, N], rows `out_stride` apart
    int64_t M, N, K, x_stride, out_stride;
    bool add;           // out += product, else out = product
};

// The part of N outputs that thread `index` of `count` computes, whole panels but for the last.
struct Range {
    int64_t begin, end;
};
inline Range share(int64_t N, int index, int count) {
    const int64_t panels = (N + kPanel - 1) / kPanel;
    return {std::min(N, panels * index / count * kPanel), std::min(N, panels * (index + 1) / count * kPanel)};
}

// Columns of a block: equal blocks, an even number of columns each.
inline int64_t block_depth(int64_t K) {
    const int64_t blocks = std::max<int64_t>(1, (K + kDepth - 1) / kDepth);
    return std::max<int64_t>(2, ((K + blocks - 1) / blocks + 1) / 2 * 2);
}

// What to fetch while a tile runs: `lines` cache lines every kUnroll columns; 0 lines for none.
struct Ahead {
    const char* start;
    int64_t lines;
    inline void fetch() {
        for (int64_t line = 0; line < lines; ++line, start += 64) _mm_prefetch(start, _MM_HINT_T0);
    }
};

// The sums of M rows of x with one panel.
template <int M>
struct Sums {
    __m256 acc[M][2];

    Sums() {
        for (int i = 0; i < M; ++i) acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    }

    // `x` points at column k of the first row.
    inline void add(const float* x, int64_t stride, lanes::Pair weights) {
        for (int i = 0; i < M; ++i) {
            const __m256 value = _mm256_broadcast_ss(x + i * stride);
            acc[i][0] = _mm256_fmadd_ps(weights.a, value, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(weights.b, value, acc[i][1]);
        }
    }

    // totals [M, 16] += these sums
    inline void join(float* totals) const {
        for (int i = 0; i < M; ++i)
            for (int half = 0; half < 2; ++half) {
                float* to = totals + i * kPanel + half * 8;
                _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), acc[i][half]));
            }
    }
};

// `depth` columns of a panel against M rows of x.
template <class T, int M>
inline void tile(const typename T::Element* columns, const float* x, int64_t stride, int64_t depth,
                 float* totals, Ahead ahead) {
    Sums<M> sums;
    int64_t k = 0;
    for (; k + kUnroll <= depth; k += kUnroll) {
        ahead.fetch();
        for (int64_t j = k; j < k + kUnroll; ++j) sums.add(x + j, stride, T::load(columns + j * kPanel));
    }
    for (; k < depth; ++k) sums.add(x + k, stride, T::load(columns + k * kPanel));
    sums.join(totals);
}

template <class T>
inline void tile_of(int64_t num_rows, const typename T::Element* columns, const float* x, int64_t stride,
                    int64_t depth, float* totals, Ahead ahead) {
    switch (num_rows) {
        case 1: return tile<T, 1>(columns, x, stride, depth, totals, ahead);
        case 2: return tile<T, 2>(columns, x, stride, depth, totals, ahead);
        case 3: return tile<T, 3>(columns, x, stride, depth, totals, ahead);
        case 4: return tile<T, 4>(columns, x, stride, depth, totals, ahead);
        case 5: return tile<T, 5>(columns, x, stride, depth, totals, ahead);
        default: return tile<T, 6>(columns, x, stride, depth, totals, ahead);
    }
}

// out of rows m .. m + count - 1 and the panel at n, from their totals.
inline void finish(const Problem& p, int64_t n, int64_t m, int64_t count, const float* totals) {
    const int64_t width = std::min(kPanel, p.N - n);
    for (int64_t i = 0; i < count; ++i, totals += kPanel) {
        float* out = p.out + (m + i) * p.out_stride + n;
        for (int64_t j = 0; j < width; ++j) {
            const float total = p.bias ? totals[j] + p.bias[n + j] : totals[j];
            out[j] = p.add ? total + out[j] : total;
        }
    }
}

// M rows of x against a panel of 12-bit weights, decoded in registers.
template <int M>
inline void packed_panel(const Problem& p, const bf12::Packed& weight, const bf12::Decoder& decoder,
                         int64_t panel) {
    const int64_t block = block_depth(p.K);
    const uint8_t* unit = weight.units + panel * bf12::num_units(p.K) * bf12::kUnitBytes;
    bf12::Escapes escapes(weight, panel);
    int64_t next = escapes.next();
    float totals[M * kPanel] = {};
    const auto words_at = [&](int64_t k) {
        bf12::Words words = decoder.words(unit);
        if (k / bf12::kColumns == next) {
            uint16_t both[bf12::kColumns * kPanel];
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(both), words.a);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(both + kPanel), words.b);
            escapes.put(both, k, k + bf12::kColumns);
            next = escapes.next();
            words.a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(both));
            words.b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(both + kPanel));
        }
        return words;
    };
    for (int64_t first = 0; first < p.K; first += block) {
        const int64_t last = std::min(first + block, p.K);
        Sums<M> sums;
        int64_t k = first;
        for (; k + bf12::kColumns <= last; k += bf12::kColumns, unit += bf12::kUnitBytes) {
            _mm_prefetch(reinterpret_cast<const char*>(unit) + bf12::kAhead, _MM_HINT_T0);
            const bf12::Words words = words_at(k);
            sums.add(p.x + k, p.x_stride, lanes::BFloat16::split(words.a));
            sums.add(p.x + k + 1, p.x_stride, lanes::BFloat16::split(words.b));
        }
        if (k < last) sums.add(p.x + k, p.x_stride, lanes::BFloat16::split(words_at(k).a));
        sums.join(totals);
    }
    finish(p, panel * kPanel, 0, M, totals);
}

inline void packed_panel_of(const Problem& p, const bf12::Packed& weight, const bf12::Decoder& decoder,
                            int64_t panel) {
    switch (p.M) {
        case 1: return packed_panel<1>(p, weight, decoder, panel);
        case 2: return packed_panel<2>(p, weight, decoder, panel);
        case 3: return packed_panel<3>(p, weight, decoder, panel);
        case 4: return packed_panel<4>(p, weight, decoder, panel);
        case 5: return packed_panel<5>(p, weight, decoder, panel);
        default: return packed_panel<6>(p, weight, decoder, panel);
    }
}

// `count` columns from k on of the dense rows n .. n + 15, in panel order; rows past N are zeros.
template <class T>
inline void reorder(const Problem& p, const typename T::Element* rows, int64_t n, int64_t k, int64_t count,
                    typename T::Element* columns) {
    for (int64_t r = 0; r < kPanel; ++r) {
        typename T::Element* to = columns + lanes::word_of<T>(r);
        const typename T::Element* from = rows + (n + r) * p.K + k;
        for (int64_t i = 0; i < count; ++i) to[i * kPanel] = n + r < p.N ? from[i] : typename T::Element{};
    }
}

// A panel's blocks, one after the other: where they are or, decoded or reordered, in a buffer.
template <class T>
class Blocks {
    using Element = typename T::Element;

public:
    Blocks(const Problem& p, const Matrix& weight, const bf12::Decoder& decoder, int64_t n, Element* buffer)
        : p(p), weight(weight), n(n), buffer(buffer) {
        if (weight.packed.units) packed.emplace(weight.packed, decoder, n / kPanel, p.K);
    }

    // `count` columns from k on; what to fetch in the meantime is set in `next`.
    const Element* read(int64_t k, int64_t count, Ahead& next) {
        if (weight.panels) {
            const Element* at = static_cast<const Element*>(weight.panels) + (n / kPanel * p.K + k) * kPanel;
            next = {reinterpret_cast<const char*>(at + count * kPanel), kUnroll * kPanel * int64_t{sizeof(Element)} / 64};
            return at;
        }
        if (packed) decode(k, count, next);
        else reorder<T>(p, static_cast<const Element*>(weight.rows), n, k, count, buffer);
        return buffer;
    }

private:
    void decode(int64_t k, int64_t count, Ahead& next) {
        if constexpr (T::kSplit) {
            packed->read(buffer, k, count);
            next = {packed->end(), 2};
        }
    }

    const Problem& p;
    const Matrix& weight;
    int64_t n;
    Element* buffer;
    std::optional<bf12::Columns> packed;
};

// All rows of x against the weight rows [begin, end); begin is a multiple of kPanel.
template <class T>
void run_matrix(const Problem& p, const Matrix& weight, int64_t begin, int64_t end) {
    const bf12::Decoder decoder(weight.packed);
    if (weight.packed.units && p.M <= kTile) {
        for (int64_t n = begin; n < end; n += kPanel) packed_panel_of(p, weight.packed, decoder, n / kPanel);
        return;
    }
    static thread_local std::vector<typename T::Element> buffer;
    static thread_local std::vector<float> totals;
    const int64_t block = block_depth(p.K);
    buffer.resize(block * kPanel);
    const int64_t row_bytes = std::max<int64_t>(1, p.K) * static_cast<int64_t>(sizeof(float));
    const int64_t chunk = std::max<int64_t>(1, kXBytes / row_bytes / kTile) * kTile;
    totals.resize(std::min(chunk, p.M) * kPanel);
    for (int64_t first = 0; first < p.M; first += chunk) {
        const int64_t count = std::min(chunk, p.M - first), tiles = (count + kTile - 1) / kTile;
        for (int64_t n = begin; n < end; n += kPanel) {
            Blocks<T> blocks(p, weight, decoder, n, buffer.data());
            std::fill(totals.begin(), totals.begin() + count * kPanel, 0.0f);
            for (int64_t k = 0; k < p.K; k += block) {
                const int64_t depth = std::min(block, p.K - k);
                Ahead next{nullptr, 0};
                const typename T::Element* columns = blocks.read(k, depth, next);
                const int64_t lines = (next.lines + tiles - 1) / tiles;
                int64_t fetched = 0;
                for (int64_t t = 0, m = 0; t < tiles; ++t) {
                    const int64_t rows = count / tiles + (t < count % tiles);
                    Ahead ahead{next.start + fetched * depth / kUnroll * 64, lines};
                    if (fetched >= next.lines) ahead.lines = 0;
                    fetched += lines;
                    tile_of<T>(rows, columns, p.x + (first + m) * p.x_stride + k, p.x_stride, depth,
                               totals.data() + m * kPanel, ahead);
                    m += rows;
                }
            }
            finish(p, n, first, count, totals.data());
        }
    }
}

// Row n of a weight as fp32 [K].
template <class T>
void read_row(const Matrix& weight, int64_t n, int64_t K, float* out) {
    using Element = typename T::Element;
    const int64_t panel = n / kPanel, word = lanes::word_of<T>(n % kPanel);
    if (weight.rows) {
        const Element* row = static_cast<const Element*>(weight.rows) + n * K;
        for (int64_t k = 0; k < K; ++k) out[k] = T::scalar(row[k]);
    } else if (weight.panels) {
        const Element* column = static_cast<const Element*>(weight.panels) + panel * K * kPanel + word;
        for (int64_t k = 0; k < K; ++k) out[k] = T::scalar(column[k * kPanel]);
    } else {
        bf12::read_row(weight.packed, panel, word, K, out);
    }
}

// Compiled once, in linear/cpu.cpp.
extern template void run_matrix<lanes::Float32>(const Problem&, const Matrix&, int64_t, int64_t);
extern template void run_matrix<lanes::BFloat16>(const Problem&, const Matrix&, int64_t, int64_t);
extern template void run_matrix<lanes::Float16>(const Problem&, const Matrix&, int64_t, int64_t);

}  // namespace product
