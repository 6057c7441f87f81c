// Kernels with a block for each row: layer and root-mean-square normalisation, softmax, attention's weights.

__device__ inline float row_value(const float* x, const float* residual, u64 at) {
    return residual ? x[at] + residual[at] : x[at];
}

// Mean (0 if `rms`) and 1 / sqrt(variance + eps) of the row of c values at `start`, for every thread.
__device__ inline void row_moments(
    const float* x, const float* residual, u64 start, u64 c, double eps, int rms, float* mean, float* inverse
) {
    double sum = 0.0;
    if (!rms) {
        for (u64 i = threadIdx.x; i < c; i += blockDim.x) sum += row_value(x, residual, start + i);
        sum = block_sum(sum);
    }
    float centre = (float)(sum / c);
    double squares = 0.0;
    for (u64 i = threadIdx.x; i < c; i += blockDim.x) {
        double value = row_value(x, residual, start + i) - centre;
        squares += value * value;
    }
    squares = block_sum(squares);
    *mean = centre;
    *inverse = (float)(1.0 / sqrt(squares / c + eps));
}

// y = gamma (x + residual - mean) / std + beta
KERNEL row_norm(
    const float* x, const float* residual, const float* gamma, const float* beta, float* y,
    double eps, int rms, u64 c
) {
    u64 start = blockIdx.x * c;
    float mean, inverse;
    row_moments(x, residual, start, c, eps, rms, &mean, &inverse);
    for (u64 i = threadIdx.x; i < c; i += blockDim.x) {
        float value = (row_value(x, residual, start + i) - mean) * inverse * gamma[i];
        y[start + i] = beta ? value + beta[i] : value;
    }
}

// Over dy, the gradient of x: (g - mean(g) - x̂ mean(g x̂)) / std with g = gamma dy. dy x̂ goes to `weighted`,
// whose column sums are the gradient of gamma.
KERNEL row_norm_gradient(
    const float* x, const float* residual, const float* gamma, float* dy, float* weighted,
    double eps, int rms, u64 c
) {
    u64 start = blockIdx.x * c;
    float mean, inverse;
    row_moments(x, residual, start, c, eps, rms, &mean, &inverse);
    double sum = 0.0, along = 0.0;
    for (u64 i = threadIdx.x; i < c; i += blockDim.x) {
        float centred = row_value(x, residual, start + i) - mean;
        float incoming = dy[start + i];
        weighted[start + i] = incoming * centred * inverse;
        float g = incoming * gamma[i];
        sum += g;
        along += (double)g * centred;
    }
    sum = rms ? 0.0 : block_sum(sum);
    along = block_sum(along);
    float offset = (float)(sum / c);
    float slope = (float)(along / c * inverse * inverse);
    for (u64 i = threadIdx.x; i < c; i += blockDim.x) {
        float centred = row_value(x, residual, start + i) - mean;
        dy[start + i] = (dy[start + i] * gamma[i] - offset - centred * slope) * inverse;
    }
}

KERNEL softmax(const float* x, float* y, u64 c) {
    u64 start = blockIdx.x * c;
    float largest = NO_VALUE;
    for (u64 i = threadIdx.x; i < c; i += blockDim.x) {
        float value = x[start + i];
        if (value > largest || value != value) largest = value;
    }
    largest = block_maximum(largest);
    double sum = 0.0;
    for (u64 i = threadIdx.x; i < c; i += blockDim.x) sum += expf(x[start + i] - largest);
    float scale = (float)(1.0 / block_sum(sum));
    for (u64 i = threadIdx.x; i < c; i += blockDim.x) y[start + i] = expf(x[start + i] - largest) * scale;
}

// Over dy: y (dy - sum(y dy)).
KERNEL softmax_gradient(const float* y, float* dy, u64 c) {
    u64 start = blockIdx.x * c;
    double sum = 0.0;
    for (u64 i = threadIdx.x; i < c; i += blockDim.x) sum += (double)y[start + i] * dy[start + i];
    float mean = (float)block_sum(sum);
    for (u64 i = threadIdx.x; i < c; i += blockDim.x) dy[start + i] = y[start + i] * (dy[start + i] - mean);
}

// The probabilities of a row of scores, one row per query: softmax(scale score) over the keys that the query sees. They
// replace the scores; `dropped`, if there is one, gets them after dropout. N at a time.
template <int N, typename T>
__device__ inline void attention_weights(
    T* scores, T* dropped, u64 queries, u64 keys, float scale, int causal,
    u64 key, u64 threshold, float kept_scale
) {
    u64 start = blockIdx.x * keys, first = start / N;
    u64 query = blockIdx.x % queries;
    u64 seen = causal && query + 1 < keys ? query + 1 : keys;
    float largest = NO_VALUE;
    for (u64 i = threadIdx.x; i * N < seen; i += blockDim.x) {
        Pack<T, N> values = pack<N>(scores, first + i);
        for (int k = 0; k < N && i * N + k < seen; ++k) {
            float value = load(values.at[k]) * scale;
            if (value > largest || value != value) largest = value;
        }
    }
    largest = block_maximum(largest);
    float sum = 0.0f;
    for (u64 i = threadIdx.x; i * N < seen; i += blockDim.x) {
        Pack<T, N> values = pack<N>(scores, first + i);
        for (int k = 0; k < N && i * N + k < seen; ++k) sum += expf(load(values.at[k]) * scale - largest);
    }
    float factor = 1.0f / block_sum(sum);
    for (u64 i = threadIdx.x; i * N < keys; i += blockDim.x) {
        Pack<T, N> values = pack<N>(scores, first + i), kept;
        for (int k = 0; k < N; ++k) {
            u64 at = i * N + k;
            float p = at < seen ? expf(load(values.at[k]) * scale - largest) * factor : 0.0f;
            store(&values.at[k], p);
            if (dropped) store(&kept.at[k], is_kept(key, start + at, threshold) ? p * kept_scale : 0.0f);
        }
        unpack(values, scores, first + i);
        if (dropped) unpack(kept, dropped, first + i);
    }
}

// Over the gradient of the dropped probabilities, that of the scores.
template <int N, typename T>
__device__ inline void attention_weights_gradient(
    const T* probabilities, T* gradient, u64 keys, float scale, int drops,
    u64 key, u64 threshold, float kept_scale
) {
    u64 start = blockIdx.x * keys, first = start / N;
    float sum = 0.0f;
    for (u64 i = threadIdx.x; i * N < keys; i += blockDim.x) {
        Pack<T, N> gradients = pack<N>(gradient, first + i), weights = pack<N>(probabilities, first + i);
        for (int k = 0; k < N; ++k) {
            float g = load(gradients.at[k]);
            if (drops) g = is_kept(key, start + i * N + k, threshold) ? g * kept_scale : 0.0f;
            sum += g * load(weights.at[k]);
        }
    }
    sum = block_sum(sum);
    for (u64 i = threadIdx.x; i * N < keys; i += blockDim.x) {
        Pack<T, N> gradients = pack<N>(gradient, first + i), weights = pack<N>(probabilities, first + i);
        for (int k = 0; k < N; ++k) {
            float g = load(gradients.at[k]);
            if (drops) g = is_kept(key, start + i * N + k, threshold) ? g * kept_scale : 0.0f;
            store(&gradients.at[k], load(weights.at[k]) * (g - sum) * scale);
        }
        unpack(gradients, gradient, first + i);
    }
}

// Columns first.. of x (b, length, columns) as (b, heads, length, d), or the way back; N neighbours at a time.
template <int N, bool SPLITS, typename A, typename B>
__device__ inline void move_heads(
    const A* x, B* y, u64 length, u64 columns, u64 first, u64 heads, u64 d, u64 n
) {
    FOR_EACH(i, n / N) {
        u64 wide = d / N, column = i % wide, token = i / wide % length, head = i / wide / length % heads;
        u64 batch = i / wide / length / heads;
        u64 merged = ((batch * length + token) * columns + first + head * d) / N + column;
        Pack<A, N> from = pack<N>(x, SPLITS ? merged : i.at);
        Pack<B, N> to;
        for (int k = 0; k < N; ++k) store(&to.at[k], load(from.at[k]));
        unpack(to, y, SPLITS ? i.at : merged);
    }
}

template <bool SPLITS, typename A, typename B>
__device__ inline void move_heads_at_once(
    const A* x, B* y, u64 length, u64 columns, u64 first, u64 heads, u64 d, u64 n
) {
    if (d % 4 == 0 && columns % 4 == 0 && first % 4 == 0 && fits_four(x) && fits_four(y))
        move_heads<4, SPLITS>(x, y, length, columns, first, heads, d, n);
    else move_heads<1, SPLITS>(x, y, length, columns, first, heads, d, n);
}

#define ROW_KERNELS(NAME, T) \
    KERNEL attention_weights_##NAME( \
        T* scores, T* dropped, u64 queries, u64 keys, float scale, int causal, \
        u64 key, u64 threshold, float kept_scale \
    ) { \
        if (keys % 4 == 0 && fits_four(scores) && fits_four(dropped)) \
            attention_weights<4>(scores, dropped, queries, keys, scale, causal, key, threshold, kept_scale); \
        else attention_weights<1>(scores, dropped, queries, keys, scale, causal, key, threshold, kept_scale); \
    } \
    KERNEL attention_weights_gradient_##NAME( \
        const T* probabilities, T* gradient, u64 keys, float scale, int drops, \
        u64 key, u64 threshold, float kept_scale \
    ) { \
        if (keys % 4 == 0 && fits_four(probabilities) && fits_four(gradient)) \
            attention_weights_gradient<4>(probabilities, gradient, keys, scale, drops, key, threshold, kept_scale); \
        else attention_weights_gradient<1>(probabilities, gradient, keys, scale, drops, key, threshold, kept_scale); \
    } \
    KERNEL split_heads_##NAME( \
        const float* x, T* y, u64 length, u64 columns, u64 first, u64 heads, u64 d, u64 n \
    ) { \
        move_heads_at_once<true>(x, y, length, columns, first, heads, d, n); \
    } \
    KERNEL merge_heads_##NAME( \
        const T* x, float* y, u64 length, u64 columns, u64 first, u64 heads, u64 d, u64 n \
    ) { \
        move_heads_at_once<false>(x, y, length, columns, first, heads, d, n); \
    }
FOR_ALL_TYPES(ROW_KERNELS)

// Where element i of group `blockIdx.x` lies in x (n, positions, c): a block for each group of each sample.
struct Group { u64 start, groups, width, c; };

__device__ inline Group group(u64 positions, u64 groups, u64 c) {
    Group g;
    g.groups = groups;
    g.width = c / groups;
    g.c = c;
    g.start = blockIdx.x / groups * positions * c + blockIdx.x % groups * g.width;
    return g;
}

__device__ inline u64 channel(const Group& g, u64 i) { return blockIdx.x % g.groups * g.width + i % g.width; }
__device__ inline u64 place(const Group& g, u64 i) { return g.start + i / g.width * g.c + i % g.width; }

// Mean and 1 / sqrt(variance + eps) of the n values of a group, for every thread.
__device__ inline void group_moments(const float* x, const Group& g, u64 n, double eps, float* mean, float* inverse) {
    double sum = 0.0, squares = 0.0;
    for (u64 i = threadIdx.x; i < n; i += blockDim.x) sum += x[place(g, i)];
    double centre = block_sum(sum) / n;
    for (u64 i = threadIdx.x; i < n; i += blockDim.x) {
        double value = x[place(g, i)] - centre;
        squares += value * value;
    }
    *mean = (float)centre;
    *inverse = (float)(1.0 / sqrt(block_sum(squares) / n + eps));
}

// y = gamma (x - mean) / std + beta
KERNEL group_norm(
    const float* x, const float* gamma, const float* beta, float* y, double eps, u64 positions, u64 groups, u64 c
) {
    Group g = group(positions, groups, c);
    u64 n = positions * g.width;
    float mean, inverse;
    group_moments(x, g, n, eps, &mean, &inverse);
    for (u64 i = threadIdx.x; i < n; i += blockDim.x) {
        u64 at = place(g, i), column = channel(g, i);
        y[at] = (x[at] - mean) * (gamma[column] * inverse) + beta[column];
    }
}

// Over dy, the gradient of x, as `row_norm_gradient`; dy x̂ goes to `weighted`.
KERNEL group_norm_gradient(
    const float* x, const float* gamma, float* dy, float* weighted, double eps, u64 positions, u64 groups, u64 c
) {
    Group g = group(positions, groups, c);
    u64 n = positions * g.width;
    float mean, inverse;
    group_moments(x, g, n, eps, &mean, &inverse);
    double sum = 0.0, along = 0.0;
    for (u64 i = threadIdx.x; i < n; i += blockDim.x) {
        u64 at = place(g, i);
        float centred = x[at] - mean, incoming = dy[at];
        weighted[at] = incoming * centred * inverse;
        float scaled = incoming * gamma[channel(g, i)];
        sum += scaled;
        along += (double)scaled * centred;
    }
    float offset = (float)(block_sum(sum) / n);
    float slope = (float)(block_sum(along) / n * inverse * inverse);
    for (u64 i = threadIdx.x; i < n; i += blockDim.x) {
        u64 at = place(g, i);
        dy[at] = (dy[at] * gamma[channel(g, i)] - offset - (x[at] - mean) * slope) * inverse;
    }
}
