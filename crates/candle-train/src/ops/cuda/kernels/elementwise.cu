// Activations, what follows a linear layer or a convolution, dropout, embeddings.

// The numbers of `Kind` in ops/cuda/pointwise.rs.
enum Activation {
    IDENTITY, RELU, GELU, GELU_TANH, SILU, MISH, SIGMOID, TANH, LEAKY_RELU, RELU6, HARDSIGMOID, HARDSWISH
};

#define ROOT_OF_HALF 0.70710678118654752f
#define ROOT_OF_2_OVER_PI 0.79788456080286536f
#define CUBIC 0.044715f

__device__ inline float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ inline float distribution(float x) { return 0.5f + 0.5f * erff(x * ROOT_OF_HALF); }

__device__ inline float tangent(float x) {
    return tanhf(ROOT_OF_2_OVER_PI * x * (CUBIC * x * x + 1.0f));
}

// tanh(ln(1 + e^x)), which is 1 to f32 from x = 10 on.
__device__ inline float mish_gate(float x) {
    float e = expf(x > 20.0f ? 20.0f : x);
    float n = e * (e + 2.0f);
    return n / (n + 2.0f);
}

// min(max(x, 0), 6); NaN stays NaN.
__device__ inline float from_0_to_6(float x) { return x < 0.0f ? 0.0f : x > 6.0f ? 6.0f : x; }

// `parameter` is the slope of a leaky rectifier.
__device__ inline float activated(int kind, float x, float parameter = 0.0f) {
    switch (kind) {
        // Not `fmaxf`, which would turn NaN into 0.
        case RELU: return x < 0.0f ? 0.0f : x;
        case GELU: return x * distribution(x);
        case GELU_TANH: return 0.5f * x * (1.0f + tangent(x));
        case SILU: return x * logistic(x);
        case MISH: return x * mish_gate(x);
        case SIGMOID: return logistic(x);
        case TANH: return tanhf(x);
        case LEAKY_RELU: return x > 0.0f ? x : x * parameter;
        case RELU6: return from_0_to_6(x);
        case HARDSIGMOID: return from_0_to_6(x + 3.0f) / 6.0f;
        case HARDSWISH: return x * from_0_to_6(x + 3.0f) / 6.0f;
        default: return x;
    }
}

// The gradient of x, given that of the activated value.
__device__ inline float pulled(int kind, float x, float g, float parameter = 0.0f) {
    switch (kind) {
        // Not a product, which would turn an infinite gradient into NaN where the unit is closed.
        case RELU: return x > 0.0f ? g : 0.0f;
        case GELU: return g * (x * 0.3989423f * expf(-0.5f * x * x) + distribution(x));
        case GELU_TANH: {
            float t = tangent(x);
            float inner = ROOT_OF_2_OVER_PI * (3.0f * CUBIC * x * x + 1.0f);
            return g * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner);
        }
        case SILU: {
            float gate = logistic(x);
            return g * (gate * (x * (1.0f - gate) + 1.0f));
        }
        case MISH: {
            float gate = mish_gate(x);
            return g * (gate + x * (1.0f - gate * gate) * logistic(x));
        }
        case SIGMOID: {
            float y = logistic(x);
            return g * (y * (1.0f - y));
        }
        case TANH: {
            float y = tanhf(x);
            return g * (1.0f - y * y);
        }
        case LEAKY_RELU: return x > 0.0f ? g : g * parameter;
        case RELU6: return x > 0.0f && x < 6.0f ? g : 0.0f;
        case HARDSIGMOID: return x > -3.0f && x < 3.0f ? g * (1.0f / 6.0f) : 0.0f;
        case HARDSWISH: return x <= -3.0f ? 0.0f : x < 3.0f ? g * (x / 3.0f + 0.5f) : g;
        default: return g;
    }
}

KERNEL activation(const float* x, float* y, int kind, float parameter, u64 n) {
    each(x, y, n, [=](float value, u64) { return activated(kind, value, parameter); });
}

// Over dy, the gradient of x.
KERNEL activation_gradient(const float* x, float* dy, int kind, float parameter, u64 n) {
    each_pair(x, dy, n, [=](float value, float g) { return pulled(kind, value, g, parameter); });
}

// y = activation(z + bias) for z (n / width, width), whose rows are `stride` elements apart; what entered the activation goes
// to `before`, if there is one. N at a time.
template <int N, typename T, typename Y>
__device__ inline void finish(
    const T* z, const float* bias, Y* y, T* before, int kind, u64 width, u64 stride, u64 n
) {
    u64 columns = width / N, apart = (stride - width) / N;
    FOR_EACH(i, n / N) {
        Pack<T, N> from = pack<N>(z, apart == 0 ? (u64)i : i + i / columns * apart), entered;
        Pack<float, N> added;
        Pack<Y, N> result;
        if (bias) added = pack<N>(bias, i % columns);
        for (int k = 0; k < N; ++k) {
            float value = load(from.at[k]);
            if (bias) value = rounded<T>(value + rounded<T>(added.at[k]));
            store(&entered.at[k], value);
            store(&result.at[k], kind == IDENTITY ? value : rounded<T>(activated(kind, value)));
        }
        if (before) unpack(entered, before, i);
        unpack(result, y, i);
    }
}

// dz (rows, stride) = the gradient of what entered the activation, and zeros behind the `width` columns of a row; `before`
// is what entered, and y, for a rectifier, its result.
template <int N, typename T, typename Y>
__device__ inline void unfinish(
    const Y* dy, const Y* y, const T* before, T* dz, int kind, u64 width, u64 stride, u64 n
) {
    u64 columns = stride / N, apart = (stride - width) / N;
    FOR_EACH(i, n / N) {
        u64 at = apart == 0 ? (u64)i : i - i / columns * apart;
        bool is_there = apart == 0 || i % columns * N < width;
        Pack<T, N> entered, pulled_back;
        Pack<Y, N> incoming, result;
        if (is_there) {
            incoming = pack<N>(dy, at);
            if (kind != IDENTITY) {
                if (before) entered = pack<N>(before, at);
                else result = pack<N>(y, at);
            }
        }
        for (int k = 0; k < N; ++k) {
            float g = is_there ? rounded<T>(load(incoming.at[k])) : 0.0f;
            if (is_there && kind != IDENTITY) g = pulled(kind, before ? load(entered.at[k]) : load(result.at[k]), g);
            store(&pulled_back.at[k], g);
        }
        unpack(pulled_back, dz, i);
    }
}

// The result, and its gradient, as f32 or in the product's type.
#define FINISH_AS(NAME, T, Y) \
    KERNEL finish_##NAME( \
        const T* z, const float* bias, Y* y, T* before, int kind, u64 width, u64 stride, u64 n \
    ) { \
        bool fits = fits_four(z) && fits_four(bias) && fits_four(y) && fits_four(before); \
        if (fits && width % 4 == 0) finish<4>(z, bias, y, before, kind, width, stride, n); \
        else finish<1>(z, bias, y, before, kind, width, stride, n); \
    } \
    KERNEL unfinish_##NAME( \
        const Y* dy, const Y* y, const T* before, T* dz, int kind, u64 width, u64 stride, u64 n \
    ) { \
        bool fits = fits_four(dy) && fits_four(y) && fits_four(before) && fits_four(dz); \
        if (fits && width % 4 == 0) unfinish<4>(dy, y, before, dz, kind, width, stride, n); \
        else unfinish<1>(dy, y, before, dz, kind, width, stride, n); \
    }
FINISH_AS(bf16_as_bf16, bf16, bf16)
FINISH_AS(f16_as_f16, f16, f16)

#define FINISH(NAME, T) \
    FINISH_AS(NAME##_as_f32, T, float) \
    KERNEL narrow_padded_##NAME(const float* x, T* y, u64 n, u64 all) { \
        converted<false>(x, y, 1.0f, n); \
        FOR_EACH(i, all - n) store(&y[n + i], 0.0f); \
    } \
    KERNEL narrow_##NAME(const float* x, T* y, u64 n) { \
        converted<false>(x, y, 1.0f, n); \
    } \
    KERNEL widen_##NAME(const T* x, float* y, u64 n) { \
        converted<false>(x, y, 1.0f, n); \
    } \
    KERNEL compress_##NAME(const float* x, T* y, float factor, u64 n) { \
        converted<true>(x, y, factor, n); \
    } \
    KERNEL expand_##NAME(const T* x, float* y, float factor, u64 n) { \
        converted<true>(x, y, factor, n); \
    }
FOR_ALL_TYPES(FINISH)

// sum += value, N at a time.
template <int N, typename T>
__device__ inline void add_to(T* sum, const T* value, u64 n) {
    FOR_EACH(i, n / N) {
        Pack<T, N> total = pack<N>(sum, i), added = pack<N>(value, i);
        for (int k = 0; k < N; ++k) store(&total.at[k], load(total.at[k]) + load(added.at[k]));
        unpack(total, sum, i);
    }
}

#define ADD(NAME, T) \
    KERNEL add_to_##NAME(T* sum, const T* value, u64 n) { \
        constexpr int N = 16 / sizeof(T); \
        bool fits = (u64)sum % 16 == 0 && (u64)value % 16 == 0; \
        if (fits && n % N == 0) add_to<N>(sum, value, n); \
        else add_to<1>(sum, value, n); \
    }
FOR_ALL_TYPES(ADD)

// Activations of values in half precision, N at a time.
template <int N, typename T>
__device__ inline void half_activation(const T* x, T* y, int kind, float parameter, u64 n) {
    FOR_EACH(i, n / N) {
        Pack<T, N> values = pack<N>(x, i);
        for (int k = 0; k < N; ++k) store(&values.at[k], activated(kind, load(values.at[k]), parameter));
        unpack(values, y, i);
    }
}

template <int N, typename T>
__device__ inline void half_activation_gradient(const T* x, T* dy, int kind, float parameter, u64 n) {
    FOR_EACH(i, n / N) {
        Pack<T, N> values = pack<N>(x, i), result = pack<N>((const T*)dy, i);
        for (int k = 0; k < N; ++k) {
            store(&result.at[k], pulled(kind, load(values.at[k]), load(result.at[k]), parameter));
        }
        unpack(result, dy, i);
    }
}

#define HALF_ACTIVATION(NAME, T) \
    KERNEL activation_##NAME(const T* x, T* y, int kind, float parameter, u64 n) { \
        if (fits_four(x) && fits_four(y) && n % 4 == 0) half_activation<4>(x, y, kind, parameter, n); \
        else half_activation<1>(x, y, kind, parameter, n); \
    } \
    KERNEL activation_gradient_##NAME(const T* x, T* dy, int kind, float parameter, u64 n) { \
        if (fits_four(x) && fits_four(dy) && n % 4 == 0) half_activation_gradient<4>(x, dy, kind, parameter, n); \
        else half_activation_gradient<1>(x, dy, kind, parameter, n); \
    }
HALF_ACTIVATION(bf16, bf16)
HALF_ACTIVATION(f16, f16)

// Zeroes what the stream drops and scales the rest; x and y may be the same.
KERNEL dropout(const float* x, float* y, u64 key, u64 threshold, float scale, u64 n) {
    each(x, y, n, [=](float value, u64 i) { return is_kept(key, i, threshold) ? value * scale : 0.0f; });
}

// Rows of the table, N values at a time.
template <int N>
__device__ inline void copy_rows(const float* table, const u32* indices, float* y, u64 c, u64 n) {
    FOR_EACH(i, n / N) unpack(pack<N>(table + indices[i / (c / N)] * c, i % (c / N)), y, i);
}

// y (indices, c): the row of the table for each index.
KERNEL embedding(const float* table, const u32* indices, float* y, u64 c, u64 n) {
    if (c % 4 == 0 && fits_four(table) && fits_four(y)) copy_rows<4>(table, indices, y, c, n);
    else copy_rows<1>(table, indices, y, c, n);
}

// Sums of rows of dy, N columns at a time.
template <int N>
__device__ inline void add_rows(
    const float* dy, const u32* positions, u32 first, u32 last, float* gradient, u64 c
) {
    for (u64 i = threadIdx.x; i < c / N; i += blockDim.x) {
        Pack<float, N> sum = {};
        for (u32 at = first; at < last; ++at) {
            Pack<float, N> value = pack<N>(dy + positions[at] * c, i);
            for (int k = 0; k < N; ++k) sum.at[k] += value.at[k];
        }
        unpack(sum, gradient, i);
    }
}

// A block per row of the table: adds dy at the positions of the row, those at starts[row]..starts[row + 1], in
// ascending order.
KERNEL embedding_gradient(
    const float* dy, const u32* starts, const u32* positions, float* gradient, u64 c
) {
    u32 first = starts[blockIdx.x], last = starts[blockIdx.x + 1];
    float* own = gradient + blockIdx.x * c;
    if (c % 4 == 0 && fits_four(dy) && fits_four(gradient)) add_rows<4>(dy, positions, first, last, own, c);
    else add_rows<1>(dy, positions, first, last, own, c);
}

// x = 0
KERNEL clear(float* x, u64 n) {
    u64 fours = fits_four(x) ? n / 4 : 0;
    FOR_EACH(i, fours) unpack(Pack<float, 4>{}, x, i);
    FOR_EACH(i, n - 4 * fours) x[4 * fours + i] = 0.0f;
}

// sum += value
KERNEL add(float* sum, const float* value, u64 n) {
    each_pair(value, sum, n, [](float more, float before) { return before + more; });
}
