// Embedding and decoder layers of a Llama-like model over a batch of rows, in one parallel region.
//
// A step of small-batch decoding reads every weight once; between the products lie a few thousand
// numbers, whose cost is that of starting work on them. Here the threads stay together from the
// embedding to the last layer and meet at barriers only. Each number is computed as the separate
// kernels do: products by product.h, attention by attention.h, norms in one fixed order over the row,
// everything else element by element. A row's bits depend on neither the other rows nor the threads.
// Padding rows (i >= widths[b]) are left out of all work; their results are zeros.

#include <omp.h>

#include <cmath>
#include <vector>

#include "linear/product.h"
#include "tree_attention/attention.h"

namespace {

constexpr int64_t kSerialWork = 1 << 16;  // multiply-adds a layer under which one thread is faster

// One layer: pointers to fp32 norms and biases and to weights, null where there is none.
struct Layer {
    const float* input_norm;           // [H]
    product::Matrix qkv;                  // [(Hq + 2 Hkv) D, H]
    const float* qkv_bias;
    const float* qk_norm;              // [Hq + Hkv, D]
    product::Matrix output;               // [H, Hq D]
    const float* output_bias;
    const float* post_attention_norm;  // [H]
    const float* mlp_norm;             // [H]
    product::Matrix gate_up;              // [2 I, H], gate first
    const float* gate_up_bias;
    product::Matrix down;                 // [H, I]
    const float* down_bias;
    const float* post_mlp_norm;        // [H]
    int64_t window;                    // 0: none
    int64_t rope;                      // index into ropes; -1: none
};

struct Rope {
    const float *cos, *sin;  // [positions, dim]; the sine of the first half negated
    int64_t dim;             // rotated dimensions of a head
};

struct Model {
    const Layer* layers;
    product::Matrix embedding;  // [V, H]
    int64_t H, I, Hq, Hkv, D;
    int64_t gelu;  // activation: 0 silu, 1 tanh-approximated gelu
    float eps, attention_scale, softcap, embedding_scale;
};

struct Call {
    const int64_t *tokens, *positions;        // [B, W]
    const int64_t *slots, *lengths, *widths;  // [B]
    const uint8_t* visible;                   // [B, W, offset + W] or null: causal
    const int64_t* chosen;                    // [num_chosen] layers to run, ascending
    float* const* captures;                   // [num_chosen]: [B, W, H] or null
    void *k, *v;                              // cache, layer 0, slot 0, head 0, row 0
    const Rope* ropes;
    float* hidden;  // [B, W, H] out
    int64_t B, W, offset, num_chosen;
    int64_t layer_stride, slot_stride, head_stride;  // of the cache, in elements; rows are D apart
    int64_t threads;
};

struct Row {
    int64_t b, i, at;  // sequence, row of it, index in [B, W]
};

inline uint16_t to_bfloat16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);  // NaN
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <class T>
inline typename T::Element rounded(float value);
template <>
inline float rounded<lanes::Float32>(float value) { return value; }
template <>
inline uint16_t rounded<lanes::BFloat16>(float value) { return to_bfloat16(value); }
template <>
inline uint16_t rounded<lanes::Float16>(float value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }

// sum of x[0..n)^2 in one fixed order: eight lanes, the rest one by one.
inline float square_sum(const float* x, int64_t n) {
    __m256 acc = _mm256_setzero_ps();
    int64_t j = 0;
    for (; j + 8 <= n; j += 8) {
        const __m256 value = _mm256_loadu_ps(x + j);
        acc = _mm256_fmadd_ps(value, value, acc);
    }
    float total = lanes::sum(acc);
    for (; j < n; ++j) total += x[j] * x[j];
    return total;
}

// out = x * weight / sqrt(mean(x^2) + eps); out may be x.
inline void rms_norm(float* out, const float* x, const float* weight, int64_t n, float eps) {
    const float factor = 1.0f / std::sqrt(square_sum(x, n) / static_cast<float>(n) + eps);
    for (int64_t j = 0; j < n; ++j) out[j] = x[j] * factor * weight[j];
}

// gate = act(gate) * up, eight at a time; the rest go through the same lanes.
inline void activate(float* gate, const float* up, int64_t n, bool gelu) {
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    const auto eight = [&](__m256 g, __m256 u) {
        if (gelu) {  // g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3)))
            const __m256 cube = _mm256_mul_ps(_mm256_mul_ps(g, g), g);
            const __m256 inner = _mm256_mul_ps(_mm256_fmadd_ps(cube, _mm256_set1_ps(0.044715f), g),
                                               _mm256_set1_ps(0.7978845608f));
            const __m256 e = attention::exp_negative(
                _mm256_mul_ps(_mm256_andnot_ps(sign, inner), _mm256_set1_ps(-2.0f)));
            const __m256 tanh = _mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e));
            const __m256 signed_tanh = _mm256_or_ps(tanh, _mm256_and_ps(sign, inner));
            const __m256 half = _mm256_mul_ps(g, _mm256_set1_ps(0.5f));
            return _mm256_mul_ps(_mm256_mul_ps(half, _mm256_add_ps(one, signed_tanh)), u);
        }
        // g sigmoid(g), with exp of the negative magnitude: 1 / (1 + e) or e / (1 + e)
        const __m256 e = attention::exp_negative(_mm256_or_ps(g, sign));
        const __m256 top = _mm256_blendv_ps(one, e, g);
        return _mm256_mul_ps(_mm256_mul_ps(g, _mm256_div_ps(top, _mm256_add_ps(one, e))), u);
    };
    int64_t j = 0;
    for (; j + 8 <= n; j += 8)
        _mm256_storeu_ps(gate + j, eight(_mm256_loadu_ps(gate + j), _mm256_loadu_ps(up + j)));
    if (j == n) return;
    float last[2][8] = {};
    std::memcpy(last[0], gate + j, (n - j) * sizeof(float));
    std::memcpy(last[1], up + j, (n - j) * sizeof(float));
    _mm256_storeu_ps(last[0], eight(_mm256_loadu_ps(last[0]), _mm256_loadu_ps(last[1])));
    std::memcpy(gate + j, last[0], (n - j) * sizeof(float));
}

inline void rotate(float* head, const Rope& rope, int64_t position) {
    const int64_t half = rope.dim / 2;
    const float *cos = rope.cos + position * rope.dim, *sin = rope.sin + position * rope.dim;
    for (int64_t j = 0; j < half; ++j) {
        const float low = head[j], high = head[j + half];
        head[j] = low * cos[j] + high * sin[j];
        head[j + half] = high * cos[j + half] + low * sin[j + half];
    }
}

// What the threads share; grows to the largest call and stays.
struct Buffers {
    std::vector<float> hidden, normed, qkv, mixed, gate_up, branch;
};

template <class T>
class Forward {
    using Element = typename T::Element;

public:
    Forward(const Model& model, const Call& call) : m(model), c(call) {
        for (int64_t b = 0; b < c.B; ++b)
            for (int64_t i = 0; i < c.widths[b]; ++i) rows.push_back({b, i, b * c.W + i});
        R = static_cast<int64_t>(rows.size());
        buffers.hidden.resize(R * m.H);
        buffers.normed.resize(R * m.H);
        buffers.qkv.resize(R * qkv_width());
        buffers.mixed.resize(R * m.Hq * m.D);
        buffers.gate_up.resize(R * 2 * m.I);
        buffers.branch.resize(R * m.H);
    }

    void run() {
        if (R == 0) return;
        const int64_t work = R * m.H * (qkv_width() + m.Hq * m.D + 3 * m.I);
        const int threads = work < kSerialWork ? 1 : static_cast<int>(c.threads);
#pragma omp parallel num_threads(threads)
        {
            embed();
            for (int64_t index = 0; index < c.num_chosen; ++index) {
                const int64_t l = c.chosen[index];
                attend(m.layers[l], l);
                feed_forward(m.layers[l]);
                if (c.captures[index]) copy_out(c.captures[index]);
            }
            copy_out(c.hidden);
        }
    }

private:
    // Every function below is called by all threads and ends with all of them at a barrier.

    void embed() {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < R; ++r) {
            float* to = buffers.hidden.data() + r * m.H;
            product::read_row<T>(m.embedding, c.tokens[rows[r].at], m.H, to);
            for (int64_t j = 0; j < m.H; ++j) to[j] *= m.embedding_scale;
        }
    }

    void attend(const Layer& layer, int64_t l) {
        normed(layer.input_norm);
        multiply(layer.qkv, layer.qkv_bias, buffers.normed, m.H, m.H, qkv_width(), buffers.qkv, false);
        place(layer, l);
        const attention::Problem p{static_cast<const Element*>(c.k) + l * c.layer_stride,
                                   static_cast<const Element*>(c.v) + l * c.layer_stride,
                                   c.slot_stride, c.head_stride, c.slots, c.lengths, c.widths, c.visible,
                                   c.B, c.W, m.Hq, m.Hkv, m.D, c.offset, layer.window,
                                   m.attention_scale, m.softcap};
        const int64_t per_row = attention::units_a_row(p);
        static thread_local attention::Scratch scratch;
#pragma omp for schedule(dynamic, 1)
        for (int64_t unit = 0; unit < R * per_row; ++unit) {
            const int64_t r = unit / per_row;
            attention::attend_unit<T>(p, rows[r].b, rows[r].i, unit % per_row,
                                      buffers.qkv.data() + r * qkv_width(),
                                      buffers.mixed.data() + r * m.Hq * m.D, scratch);
        }
        join(layer.output, layer.output_bias, buffers.mixed, m.Hq * m.D, m.Hq * m.D, layer.post_attention_norm);
    }

    void feed_forward(const Layer& layer) {
        normed(layer.mlp_norm);
        float* gates = buffers.gate_up.data();
        const product::Problem p{buffers.normed.data(), layer.gate_up_bias, gates, R, 2 * m.I, m.H, m.H,
                                 2 * m.I, false};
        if (m.I % lanes::kPanel == 0) {  // each thread activates its own columns and waits for nobody
            const product::Range range = own_share(m.I);
            product::run_matrix<T>(p, layer.gate_up, range.begin, range.end);
            product::run_matrix<T>(p, layer.gate_up, m.I + range.begin, m.I + range.end);
            for (int64_t r = 0; r < R; ++r) {
                float* gate = gates + r * 2 * m.I + range.begin;
                activate(gate, gate + m.I, range.end - range.begin, m.gelu != 0);
            }
#pragma omp barrier
        } else {
            const product::Range range = own_share(2 * m.I);
            product::run_matrix<T>(p, layer.gate_up, range.begin, range.end);
#pragma omp barrier
#pragma omp for schedule(static)
            for (int64_t r = 0; r < R; ++r)
                activate(gates + r * 2 * m.I, gates + (2 * r + 1) * m.I, m.I, m.gelu != 0);
        }
        join(layer.down, layer.down_bias, buffers.gate_up, 2 * m.I, m.I, layer.post_mlp_norm);
    }

    // Heads of q and k normed and rotated; keys and values into the cache.
    void place(const Layer& layer, int64_t l) {
        const int64_t heads = m.Hq + 2 * m.Hkv;
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < R * heads; ++unit) {
            const Row& row = rows[unit / heads];
            const int64_t h = unit % heads;
            float* head = buffers.qkv.data() + unit * m.D;
            if (h < m.Hq + m.Hkv) {
                if (layer.qk_norm) rms_norm(head, head, layer.qk_norm + h * m.D, m.D, m.eps);
                if (layer.rope >= 0) rotate(head, c.ropes[layer.rope], c.positions[row.at]);
            }
            if (h < m.Hq) continue;
            const bool is_key = h < m.Hq + m.Hkv;
            const int64_t kv_head = h - m.Hq - (is_key ? 0 : m.Hkv);
            const int64_t at = c.lengths[row.b] + c.offset + row.i;
            Element* to = static_cast<Element*>(is_key ? c.k : c.v) + l * c.layer_stride +
                          c.slots[row.b] * c.slot_stride + kv_head * c.head_stride + at * m.D;
            for (int64_t d = 0; d < m.D; ++d) to[d] = rounded<T>(head[d]);
        }
    }

    // hidden += norm(x @ weight + bias), the norm where there is one; rows of x [R, K] `stride` apart.
    void join(const product::Matrix& weight, const float* bias, const std::vector<float>& x, int64_t stride,
              int64_t K, const float* norm) {
        if (!norm) {
            multiply(weight, bias, x, stride, K, m.H, buffers.hidden, true);
            return;
        }
        multiply(weight, bias, x, stride, K, m.H, buffers.branch, false);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < R; ++r) {
            float *branch = buffers.branch.data() + r * m.H, *hidden = buffers.hidden.data() + r * m.H;
            rms_norm(branch, branch, norm, m.H, m.eps);
            for (int64_t j = 0; j < m.H; ++j) hidden[j] = branch[j] + hidden[j];
        }
    }

    void multiply(const product::Matrix& weight, const float* bias, const std::vector<float>& x, int64_t stride,
                  int64_t K, int64_t N, std::vector<float>& out, bool add) {
        const product::Problem p{x.data(), bias, out.data(), R, N, K, stride, N, add};
        const product::Range range = own_share(N);
        product::run_matrix<T>(p, weight, range.begin, range.end);
#pragma omp barrier
    }

    static product::Range own_share(int64_t N) {
        return product::share(N, omp_get_thread_num(), omp_get_num_threads());
    }

    void normed(const float* weight) {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < R; ++r)
            rms_norm(buffers.normed.data() + r * m.H, buffers.hidden.data() + r * m.H, weight, m.H, m.eps);
    }

    void copy_out(float* to) {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < R; ++r)
            std::memcpy(to + rows[r].at * m.H, buffers.hidden.data() + r * m.H, m.H * sizeof(float));
    }

    int64_t qkv_width() const { return (m.Hq + 2 * m.Hkv) * m.D; }

    const Model& m;
    const Call& c;
    int64_t R = 0;
    std::vector<Row> rows;
    static inline thread_local Buffers kept;
    Buffers& buffers = kept;  // of the calling thread
};

}  // namespace

// dtype of weights and cache: 0 fp32, 1 bf16, 2 fp16. Padding rows of `hidden` and captures are not
// written.
extern "C" __attribute__((visibility("default"))) void draftsmith_decoder_layers(const Model* model,
                                                                                 const Call* call, int dtype) {
    if (dtype == 0) Forward<lanes::Float32>(*model, *call).run();
    else if (dtype == 1) Forward<lanes::BFloat16>(*model, *call).run();
    else Forward<lanes::Float16>(*model, *call).run();
}
