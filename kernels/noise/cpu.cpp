// Philox words and Gumbel noise, bit-identical to reference.py. Compiled without contraction, so each fp32
// operation rounds on its own, as numpy's do. The order of operations is that of reference.py.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr int kBlocks = 16;  // counters a batch, so that the compiler vectorises over them

// Words of counters first .. first + kBlocks: words[4 * i + w] is word w of counter first + i.
inline void philox(uint32_t first, uint32_t position, uint32_t stream, uint64_t seed, uint32_t* words) {
    uint32_t x0[kBlocks], x1[kBlocks], x2[kBlocks], x3[kBlocks];
#pragma omp simd
    for (int i = 0; i < kBlocks; ++i) {
        x0[i] = first + i;
        x1[i] = position;
        x2[i] = stream;
        x3[i] = 0;
    }
    uint32_t low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round, low += 0x9E3779B9u, high += 0xBB67AE85u)
#pragma omp simd
        for (int i = 0; i < kBlocks; ++i) {
            const uint64_t left = static_cast<uint64_t>(x0[i]) * 0xD2511F53u;
            const uint64_t right = static_cast<uint64_t>(x2[i]) * 0xCD9E8D57u;
            x0[i] = static_cast<uint32_t>(right >> 32) ^ x1[i] ^ low;
            x1[i] = static_cast<uint32_t>(right);
            x2[i] = static_cast<uint32_t>(left >> 32) ^ x3[i] ^ high;
            x3[i] = static_cast<uint32_t>(left);
        }
    for (int i = 0; i < kBlocks; ++i) {
        words[4 * i] = x0[i];
        words[4 * i + 1] = x1[i];
        words[4 * i + 2] = x2[i];
        words[4 * i + 3] = x3[i];
    }
}

inline int32_t bits_of(float value) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

inline float float_of(int32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

inline int32_t exponent_of(float x) { return (bits_of(x) - 0x3F3504F3) >> 23; }

inline float fraction_of(float x, int32_t exponent) {
    return float_of(bits_of(x) - static_cast<int32_t>(static_cast<uint32_t>(exponent) << 23)) - 1.0f;
}

inline float log_of(float f, int32_t exponent) {
    float series = 0x1.24e582p-4f;
    series = series * f + -0x1.da0514p-4f;
    series = series * f + 0x1.ddab32p-4f;
    series = series * f + -0x1.fc595cp-4f;
    series = series * f + 0x1.23d676p-3f;
    series = series * f + -0x1.555ee0p-3f;
    series = series * f + 0x1.999d52p-3f;
    series = series * f + -0x1.fffff2p-3f;
    series = series * f + 0x1.555554p-2f;
    const float scale = static_cast<float>(exponent);
    const float square = f * f;
    float tail = series * f * square + scale * -2.12194440e-4f;
    tail = tail - 0.5f * square;
    return (f + tail) + scale * 0.693359375f;
}

inline float gumbel(uint32_t word) {
    // The processor converts signed integers only; both steps are exact.
    const double exact = static_cast<double>(static_cast<int32_t>(word ^ 0x80000000u)) + 2147483648.5;
    const float u = static_cast<float>(exact * 0x1p-32);
    const float rest = static_cast<float>((0x1p32 - exact) * 0x1p-32);
    const int32_t exponent = exponent_of(rest);
    const float exponential = -log_of(exponent == 0 ? -u : fraction_of(rest, exponent), exponent);
    const int32_t outer = exponent_of(exponential);
    return -log_of(fraction_of(exponential, outer), outer);
}

constexpr int64_t kGroup = 4 * kBlocks;  // token ids a batch of counters serves
constexpr float kSlack = 1e-3f;          // far above the rounding of a score and of the bounds below

// The arg-max of score + noise over one row, noise drawn only where it can still win.
class Race {
public:
    Race(const float* row, int64_t size, uint64_t seed, uint32_t position)
        : row(row), size(size), seed(seed), position(position), highest((size + kGroup - 1) / kGroup) {}

    // The lowest column of the largest sum; -1 for NaN and where all are minus infinity.
    int64_t run() {
        if (!measure()) return -1;
        enter(leader);
        const float most = gumbel(0) + kSlack;  // no noise is above that of the smallest u
        for (int64_t group = 0; group < static_cast<int64_t>(highest.size()); ++group)
            if (highest[group] + most >= best) draw(group);
        return best > -std::numeric_limits<float>::infinity() ? winner : -1;
    }

private:
    // The largest score of each group and of the row; false where one is NaN.
    bool measure() {
        bool defined = true;
        float most = -std::numeric_limits<float>::infinity();
        for (int64_t group = 0; group < static_cast<int64_t>(highest.size()); ++group) {
            const float* at = row + group * kGroup;
            const int64_t count = std::min(kGroup, size - group * kGroup);
            float largest = -std::numeric_limits<float>::infinity();
            int ordered = 1;
#pragma omp simd reduction(max : largest) reduction(& : ordered)
            for (int64_t i = 0; i < count; ++i) {
                largest = at[i] > largest ? at[i] : largest;
                ordered &= at[i] == at[i];
            }
            defined &= ordered != 0;
            highest[group] = largest;
            if (largest > most) {
                most = largest;
                leader = group * kGroup + (std::find(at, at + count, largest) - at);
            }
        }
        return defined;
    }

    // G = -ln(-ln(1 - u)) >= d needs u <= 1 - exp(-exp(-d)) <= exp(-d): words above that lose.
    void draw(int64_t group) {
        const double bound = std::exp(static_cast<double>(highest[group]) - best + kSlack) * 0x1p32;
        const uint32_t last = bound < 0x1p32 - 1 ? static_cast<uint32_t>(bound) : 0xffffffffu;
        const int64_t first = group * kGroup, count = std::min(kGroup, size - first);
        uint32_t words[kGroup];
        philox(static_cast<uint32_t>(first >> 2), position, 0, seed, words);
        for (int64_t i = 0; i < count; ++i)
            if (words[i] <= last) offer(first + i, words[i]);
    }

    void enter(int64_t column) {
        uint32_t words[kGroup];
        philox(static_cast<uint32_t>(column >> 2), position, 0, seed, words);
        best = row[column] + gumbel(words[column & 3]);
        winner = column;
    }

    void offer(int64_t column, uint32_t word) {
        const float value = row[column] + gumbel(word);
        if (value > best || (value == best && column < winner)) {
            best = value;
            winner = column;
        }
    }

    const float* row;
    int64_t size;
    uint64_t seed;
    uint32_t position;
    std::vector<float> highest;
    int64_t leader = 0, winner = -1;
    float best = 0.0f;
};

}  // namespace

// winner: the lowest column whose values + Gumbel noise (stream 0) is largest; -1 where nothing is.
extern "C" __attribute__((visibility("default"))) void draftsmith_noisy_argmax(
    const float* values, int64_t size, uint64_t seed, uint32_t position, int64_t* winner) {
    *winner = Race(values, size, seed, position).run();
}

// Words of token ids begin .. begin + count, begin a multiple of 4.
extern "C" __attribute__((visibility("default"))) void draftsmith_philox(
    uint64_t seed, uint32_t position, uint32_t stream, int64_t begin, int64_t count, uint32_t* out) {
    uint32_t words[4 * kBlocks];
    for (int64_t done = 0; done < count; done += 4 * kBlocks) {
        philox(static_cast<uint32_t>((begin + done) >> 2), position, stream, seed, words);
        std::memcpy(out + done, words, std::min<int64_t>(4 * kBlocks, count - done) * sizeof(uint32_t));
    }
}

// out[r, v] for token ids 0 .. vocab of each (seeds[r], positions[r]).
extern "C" __attribute__((visibility("default"))) void draftsmith_gumbel_rows(
    const uint64_t* seeds, const uint32_t* positions, int64_t num_rows, int64_t vocab, uint32_t stream,
    float* out, int threads) {
    constexpr int64_t kSpan = 4096;  // token ids a piece of work
    const int64_t spans = (vocab + kSpan - 1) / kSpan;
#pragma omp parallel for num_threads(threads) schedule(static) if (num_rows * vocab > 4 * kSpan)
    for (int64_t piece = 0; piece < num_rows * spans; ++piece) {
        const int64_t row = piece / spans, begin = piece % spans * kSpan;
        const int64_t end = std::min(begin + kSpan, vocab);
        uint32_t words[4 * kBlocks];
        float noise[4 * kBlocks];
        for (int64_t id = begin; id < end; id += 4 * kBlocks) {
            philox(static_cast<uint32_t>(id >> 2), positions[row], stream, seeds[row], words);
#pragma omp simd
            for (int i = 0; i < 4 * kBlocks; ++i) noise[i] = gumbel(words[i]);
            std::memcpy(out + row * vocab + id, noise,
                        std::min<int64_t>(4 * kBlocks, end - id) * sizeof(float));
        }
    }
}
