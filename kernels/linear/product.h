// Row-stable product of rows with weight rows [begin, end).
//
// Weights are held in panels of 16 rows, column after column, so that one column of a panel is sixteen
// fp32 sums, one lane for each output: two vectors in the AVX2 form, one in the AVX-512 form. Up to kTile
// rows of x meet it in registers: a number of x is broadcast and multiplied into the column. Every (m, n)
// is one chain of fused multiply-adds over k, broken into equal blocks of at most kDepth columns whose
// sums are added in order: the bits of a row depend on K alone, not on M, the blocking of M and N, the
// threads, the form of the weights or that of the kernels.
//
// Rows of x go by in chunks of at most kXBytes. A block of weights (kDepth columns of a panel) stays in L1
// while the rows of a chunk pass by, and the next block is fetched meanwhile. 12-bit weights are decoded in
// registers for up to kTile rows of x, else into a block of bf16 once for all rows of a chunk.
#pragma once

#include <algorithm>
#include <optional>
#include <type_traits>
#include <vector>

#include "bf12_gemv/packed.h"
#include "lanes.h"

namespace product {

using lanes::kPanel;

#ifdef DRAFTSMITH_AVX512
constexpr int kTile = 16;                 // x rows in registers: of 32, as many hold sums
#else
constexpr int kTile = 6;                  // x rows in registers: of 16, twelve hold sums
#endif
constexpr int64_t kDepth = 512;           // columns of a block, at most
constexpr int64_t kUnroll = 4;            // columns between two fetches
constexpr int64_t kLine = 64;             // bytes that are fetched together
constexpr int64_t kXBytes = 256 << 10;    // rows of x that stay in L2 while the weights pass by

template <class T>  // lines of kUnroll columns
constexpr int64_t kLines = kUnroll * kPanel * static_cast<int64_t>(sizeof(typename T::Element)) / kLine;

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

// What to fetch while a tile runs: a line for each that kUnroll columns take, `step` bytes apart. Tiles that
// share the fetching take smaller steps: the same line again costs next to nothing, a loop in the loop
// costs registers.
struct Ahead {
    const char* start;
    int64_t step;
    template <class T>
    inline void fetch() {
        for (int64_t line = 0; line < kLines<T>; ++line, start += step) _mm_prefetch(start, _MM_HINT_T0);
    }
};

// The sums of M rows of x with one panel. A member for each row and no array: compilers keep these in
// registers.
template <class T, int M>
struct Sums : Sums<T, M - 1> {
    lanes::Column last = lanes::Column::zeros();

    // `x` points at column k of the first row.
    [[gnu::always_inline]] inline void add(const float* x, int64_t stride, lanes::Column weights) {
        Sums<T, M - 1>::add(x, stride, weights);
        last.multiply_add(weights, x + (M - 1) * stride);
    }

    // totals [M, 16] += these sums, in the order of the rows
    [[gnu::always_inline]] inline void join(float* totals) const {
        Sums<T, M - 1>::join(totals);
        T::by_row(last).add_to(totals + (M - 1) * kPanel);
    }
};
template <class T>
struct Sums<T, 0> {
    inline void add(const float*, int64_t, lanes::Column) {}
    inline void join(float*) const {}
};

// `depth` columns of a panel against M rows of x. A function of its own, so that sums stay in registers.
template <class T, int M>
[[gnu::noinline]] void tile(const typename T::Element* columns, const float* x, int64_t stride, int64_t depth,
                 float* totals, Ahead ahead) {
    Sums<T, M> sums;
    int64_t k = 0;
    for (; k + kUnroll <= depth; k += kUnroll) {
        ahead.template fetch<T>();
        for (int64_t j = k; j < k + kUnroll; ++j) sums.add(x + j, stride, T::column(columns + j * kPanel));
    }
    for (; k < depth; ++k) sums.add(x + k, stride, T::column(columns + k * kPanel));
    sums.join(totals);
}

// Calls body(std::integral_constant<int, count>), 1 <= count <= Most.
template <int Most = kTile, class Body>
inline void with_constant(int64_t count, const Body& body) {
    if constexpr (Most > 1)
        if (count < Most) return with_constant<Most - 1>(count, body);
    body(std::integral_constant<int, Most>{});
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

// Both columns of a unit, the escapes of unit `u` put where they belong.
inline bf12::Words escaped(const bf12::Decoder& decoder, const uint8_t* unit, int64_t u, bf12::Escapes& escapes) {
    const bf12::Words words = decoder.words(unit);
    uint16_t both[bf12::kColumns * kPanel];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(both), words.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(both + kPanel), words.b);
    escapes.put(both, u * bf12::kColumns, (u + 1) * bf12::kColumns);
    return {lanes::BFloat16::words(both), lanes::BFloat16::words(both + kPanel)};
}

template <class Sums>
[[gnu::always_inline]] inline void add_unit(Sums& sums, const Problem& p, int64_t u, bf12::Words words) {
    const float* x = p.x + u * bf12::kColumns;
    sums.add(x, p.x_stride, lanes::BFloat16::column(words.a));
    sums.add(x + 1, p.x_stride, lanes::BFloat16::column(words.b));
}

// M rows of x against a panel of 12-bit weights, decoded in registers: the units up to the next escape in a
// loop of their own, which keeps the sums in registers.
template <int M>
[[gnu::noinline]] void packed_panel(const Problem& p, const bf12::Packed& weight, const bf12::Decoder& decoder,
                                    int64_t panel) {
    const int64_t block = block_depth(p.K);
    const uint8_t* unit = weight.units + panel * bf12::num_units(p.K) * bf12::kUnitBytes;
    bf12::Escapes escapes(weight, panel);
    int64_t next = escapes.next();
    float totals[M * kPanel] = {};
    for (int64_t first = 0; first < p.K; first += block) {
        const int64_t last = std::min(first + block, p.K), end = last / bf12::kColumns;
        Sums<lanes::BFloat16, M> sums;
        int64_t u = first / bf12::kColumns;
        while (u < end) {
            for (const int64_t stop = std::min(next, end); u < stop; ++u, unit += bf12::kUnitBytes) {
                _mm_prefetch(reinterpret_cast<const char*>(unit) + bf12::kAhead, _MM_HINT_T0);
                add_unit(sums, p, u, decoder.words(unit));
            }
            if (u == end) break;
            add_unit(sums, p, u, escaped(decoder, unit, u, escapes));
            next = escapes.next();
            ++u, unit += bf12::kUnitBytes;
        }
        if (u * bf12::kColumns < last) {  // K is odd
            const bf12::Words words = next == u ? escaped(decoder, unit, u, escapes) : decoder.words(unit);
            sums.add(p.x + last - 1, p.x_stride, lanes::BFloat16::column(words.a));
        }
        sums.join(totals);
    }
    finish(p, panel * kPanel, 0, M, totals);
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
        next = {reinterpret_cast<const char*>(buffer), 0};
        if (weight.panels) {
            const Element* at = static_cast<const Element*>(weight.panels) + (n / kPanel * p.K + k) * kPanel;
            next = {reinterpret_cast<const char*>(at + count * kPanel), kLine};
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
            next = {packed->end(), kLine};
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
        with_constant(p.M, [&](auto rows) {
            for (int64_t n = begin; n < end; n += kPanel)
                packed_panel<rows>(p, weight.packed, decoder, n / kPanel);
        });
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
                Ahead next;
                const typename T::Element* columns = blocks.read(k, depth, next);
                next.step = (next.step + tiles - 1) / tiles;
                for (int64_t t = 0, m = 0; t < tiles; ++t) {
                    const int64_t rows = count / tiles + (t < count % tiles);
                    const Ahead ahead{next.start + t * (depth / kUnroll) * kLines<T> * next.step, next.step};
                    const float* x = p.x + (first + m) * p.x_stride + k;
                    float* to = totals.data() + m * kPanel;
                    with_constant(rows, [&](auto num_rows) {
                        tile<T, num_rows>(columns, x, p.x_stride, depth, to, ahead);
                    });
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
