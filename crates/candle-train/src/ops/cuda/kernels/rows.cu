// Kernels with a block for each row: layer and root-mean-square normalisation, softmax, attention's weights.

__device__ inline float row_value(const float* x, const float* residual, u64 at) {
    return residual ? x[at] + residual[at] : x[at];
}

// Mean (0 if `rms`) and 1 / sqrt(variance + eps) of a row of c values, for every thread.
__device__ inline void row_moments(
    const float* x, const float* residual, u64 c, double eps, int rms, float* mean, float* inverse
) {
    double sum = 0.0;
    if (!rms) {
        for (u64 i = threadIdx.x; i < c; i += blockDim.x) sum += row_value(x, residual, i);
        sum = block_sum(sum);
    }
    float centre = (float)(sum / c);
    double squares = 0.0;
    for (u64 i = threadIdx.x; i < c; i += blockDim.x) {
        double value = row_value(x, residual, i) - centre;
        squares += value * value;
    }
    squares = block_sum(squares);
    *mean = centre;
    *inverse = (float)(1.0 / sqrt(squares / c + eps));
}

// A row of c values in the registers of a block: of each thread pack `threadIdx.x`, the one as many packs later as there are
// threads, and so on. Zeros follow the row.
template <int PACKS>
struct Row {
    Pack<float, 4> packs[PACKS];

    __device__ u32 pack_at(int j) const { return threadIdx.x + j * blockDim.x; }

    __device__ void read(const float* x, u32 c) {
        for (int j = 0; j < PACKS; ++j) {
            packs[j] = Pack<float, 4>{};
            if (pack_at(j) < c / 4) packs[j] = pack<4>(x, pack_at(j));
        }
    }

    // x + residual, which may be nothing.
    __device__ void read_sum(const float* x, const float* residual, u32 c) {
        read(x, c);
        if (!residual) return;
        Row more;
        more.read(residual, c);
        for (int j = 0; j < PACKS; ++j) {
            for (int k = 0; k < 4; ++k) packs[j].at[k] += more.packs[j].at[k];
        }
    }

    __device__ void write(float* y, u32 c) const {
        for (int j = 0; j < PACKS; ++j) {
            if (pack_at(j) < c / 4) unpack(packs[j], y, pack_at(j));
        }
    }

    // Takes off the mean of the row, as far as f32 can tell it.
    __device__ void centre(u32 c) {
        float sum[1] = {};
        for (int j = 0; j < PACKS; ++j) {
            for (int k = 0; k < 4; ++k) sum[0] += packs[j].at[k];
        }
        block_sums(sum);
        float mean = sum[0] / (float)c;
        for (int j = 0; j < PACKS; ++j) {
            for (int k = 0; k < 4 && pack_at(j) < c / 4; ++k) packs[j].at[k] -= mean;
        }
    }
};

// 1 / sqrt(variance + eps) of c values that have sum and squares `sums`, and `rest` as mean.
__device__ inline float inverse_spread(const float* sums, float rest, u32 c, double eps) {
    float variance = sums[1] / (float)c - rest * rest;
    // Not `fmaxf`, which would turn NaN into 0.
    return 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + (float)eps);
}

// `row_norm` of a row that registers hold.
template <int PACKS>
__device__ inline void row_norm_held(
    const float* x, const float* residual, const float* gamma, const float* beta, float* y, double eps, int rms, u32 c
) {
    Row<PACKS> row, scale, shift;
    scale.read(gamma, c);
    if (beta) shift.read(beta, c);
    row.read_sum(x, residual, c);
    if (!rms) row.centre(c);
    float sums[2] = {};
    for (int j = 0; j < PACKS; ++j) {
        for (int k = 0; k < 4; ++k) {
            float centred = row.packs[j].at[k];
            sums[0] += centred;
            sums[1] += centred * centred;
        }
    }
    block_sums(sums);
    // Rounding error of the mean.
    float rest = rms ? 0.0f : sums[0] / (float)c;
    float inverse = inverse_spread(sums, rest, c, eps);
    for (int j = 0; j < PACKS; ++j) {
        for (int k = 0; k < 4; ++k) {
            float value = (row.packs[j].at[k] - rest) * inverse * scale.packs[j].at[k];
            row.packs[j].at[k] = beta ? value + shift.packs[j].at[k] : value;
        }
    }
    row.write(y, c);
}

// A row of any length.
__device__ inline void row_norm_read(
    const float* x, const float* residual, const float* gamma, const float* beta, float* y, double eps, int rms, u64 c
) {
    float mean, inverse;
    row_moments(x, residual, c, eps, rms, &mean, &inverse);
    for (u64 i = threadIdx.x; i < c; i += blockDim.x) {
        float value = (row_value(x, residual, i) - mean) * inverse * gamma[i];
        y[i] = beta ? value + beta[i] : value;
    }
}

// `row_norm_gradient` of rows that registers hold.
template <int PACKS>
__device__ inline void row_norm_gradient_held(
    const float* x, const float* residual, const float* gamma, float* dy, float* of_gamma, float* of_beta,
    double eps, int rms, u64 first, u64 last, u32 c
) {
    Row<PACKS> scale, weighted = {}, plain = {};
    scale.read(gamma, c);
    for (u64 at = first; at < last; ++at) {
        u64 start = at * c;
        Row<PACKS> row, g;
        g.read(dy + start, c);
        row.read_sum(x + start, residual ? residual + start : residual, c);
        if (!rms) row.centre(c);
        // Sums of x - mean, its squares, g = gamma dy, and g (x - mean).
        float sums[4] = {};
        for (int j = 0; j < PACKS; ++j) {
            for (int k = 0; k < 4; ++k) {
                float centred = row.packs[j].at[k], scaled = g.packs[j].at[k] * scale.packs[j].at[k];
                sums[0] += centred;
                sums[1] += centred * centred;
                sums[2] += scaled;
                sums[3] += scaled * centred;
            }
        }
        block_sums(sums);
        // Rounding error of the mean.
        float rest = rms ? 0.0f : sums[0] / (float)c;
        float inverse = inverse_spread(sums, rest, c, eps);
        float offset = rms ? 0.0f : sums[2] / (float)c;
        float slope = (sums[3] - rest * sums[2]) / (float)c * inverse * inverse;
        for (int j = 0; j < PACKS; ++j) {
            for (int k = 0; k < 4; ++k) {
                float centred = row.packs[j].at[k] - rest, incoming = g.packs[j].at[k];
                weighted.packs[j].at[k] += incoming * centred * inverse;
                plain.packs[j].at[k] += incoming;
                g.packs[j].at[k] = (incoming * scale.packs[j].at[k] - offset - centred * slope) * inverse;
            }
        }
        g.write(dy + start, c);
    }
    weighted.write(of_gamma, c);
    if (of_beta) plain.write(of_beta, c);
}

// Rows of any length; each thread adds up its own columns where the sums are to be.
__device__ inline void row_norm_gradient_read(
    const float* x, const float* residual, const float* gamma, float* dy, float* of_gamma, float* of_beta,
    double eps, int rms, u64 first, u64 last, u64 c
) {
    for (u64 row = first; row < last; ++row) {
        const float* own = x + row * c;
        const float* more = residual ? residual + row * c : residual;
        float* gradient = dy + row * c;
        float mean, inverse;
        row_moments(own, more, c, eps, rms, &mean, &inverse);
        double sum = 0.0, along = 0.0;
        for (u64 i = threadIdx.x; i < c; i += blockDim.x) {
            float centred = row_value(own, more, i) - mean, incoming = gradient[i];
            of_gamma[i] = (row == first ? 0.0f : of_gamma[i]) + incoming * centred * inverse;
            if (of_beta) of_beta[i] = (row == first ? 0.0f : of_beta[i]) + incoming;
            float g = incoming * gamma[i];
            sum += g;
            along += (double)g * centred;
        }
        sum = rms ? 0.0 : block_sum(sum);
        along = block_sum(along);
        float offset = (float)(sum / c);
        float slope = (float)(along / c * inverse * inverse);
        for (u64 i = threadIdx.x; i < c; i += blockDim.x) {
            float centred = row_value(own, more, i) - mean;
            gradient[i] = (gradient[i] * gamma[i] - offset - centred * slope) * inverse;
        }
    }
}

// Kernels for rows of up to 4 PACKS values for each thread, which registers hold; longer ones, and those that are not in
// packs, are read again.
//
// row_norm: y = gamma (x + residual - mean) / std + beta, a block per row.
//
// row_norm_gradient: over dy, the gradient of x: (g - mean(g) - x̂ mean(g x̂)) / std with g = gamma dy. A block per
// `per_block` rows; its sums of dy x̂ and, if they are wanted, of dy go to of_gamma and of_beta (blocks, c).
#define ROW_NORM(NAME, PACKS) \
    KERNEL row_norm##NAME( \
        const float* x, const float* residual, const float* gamma, const float* beta, float* y, \
        double eps, int rms, u64 c \
    ) { \
        u64 start = blockIdx.x * c; \
        x += start, y += start; \
        if (residual) residual += start; \
        bool fits = fits_four(x) && fits_four(residual) && fits_four(gamma) && fits_four(beta) && fits_four(y); \
        if (fits && c % 4 == 0 && c <= 4 * PACKS * blockDim.x) \
            row_norm_held<PACKS>(x, residual, gamma, beta, y, eps, rms, c); \
        else row_norm_read(x, residual, gamma, beta, y, eps, rms, c); \
    } \
    KERNEL row_norm_gradient##NAME( \
        const float* x, const float* residual, const float* gamma, float* dy, float* of_gamma, float* of_beta, \
        double eps, int rms, u64 per_block, u64 rows, u64 c \
    ) { \
        u64 first = blockIdx.x * per_block, last = first + per_block < rows ? first + per_block : rows; \
        of_gamma += blockIdx.x * c; \
        if (of_beta) of_beta += blockIdx.x * c; \
        bool fits = fits_four(x) && fits_four(residual) && fits_four(gamma) && fits_four(dy); \
        fits = fits && fits_four(of_gamma) && fits_four(of_beta); \
        if (fits && c % 4 == 0 && c <= 4 * PACKS * blockDim.x) \
            row_norm_gradient_held<PACKS>(x, residual, gamma, dy, of_gamma, of_beta, eps, rms, first, last, c); \
        else row_norm_gradient_read(x, residual, gamma, dy, of_gamma, of_beta, eps, rms, first, last, c); \
    }
ROW_NORM(, 1)
ROW_NORM(_long, 4)

// The sums over what the blocks of `row_norm_gradient` left, in f64: 32 columns for each block of threads, a warp for each
// 32nd row. A second layer of blocks does the same for beta.
KERNEL row_norm_sums(
    const float* of_gamma, const float* of_beta, float* gamma, float* beta, u64 blocks, u64 c
) {
    __shared__ double sums[MAX_WARPS][32];
    const float* from = blockIdx.y == 0 ? of_gamma : of_beta;
    u32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
    u64 column = blockIdx.x * 32 + lane;
    double sum = 0.0;
    if (column < c) {
        #pragma unroll 8
        for (u64 row = threadIdx.x / 32; row < blocks; row += warps) sum += from[row * c + column];
    }
    sums[threadIdx.x / 32][lane] = sum;
    __syncthreads();
    if (threadIdx.x >= 32 || column >= c) return;
    for (u32 warp = 1; warp < warps; ++warp) sum += sums[warp][lane];
    (blockIdx.y == 0 ? gamma : beta)[column] = (float)sum;
}

// Division of a row of n values into packs of four, which begin after `head` values.
struct Cut { u32 head, packs; };

// No packs where x and y do not lie alike.
__device__ inline Cut cut(const float* x, const float* y, u32 n) {
    u32 head = (u32)(0 - (u64)x / 4) % 4;
    if (head > n || ((u64)x ^ (u64)y) % 16 != 0) head = n;
    return {head, (n - head) / 4};
}

// Number i of the values before and after the packs.
__device__ inline u32 place_at_edge(Cut c, u32 i) { return i < c.head ? i : i + 4 * c.packs; }

// State of a row after some of its values: the largest, its first place, and the sums of e^(value - largest) and of
// the values. NaN is not the largest, but makes the sums NaN.
struct Seen {
    float largest, exponentials;
    u32 first;
    double values;
};

// Also `x`: packs at `place` and each `stride` values later. Those from `end` on are no values, and hold NO_VALUE.
template <int PACKS, int N>
__device__ inline void see(Seen& s, const Pack<float, N> (&x)[PACKS], u32 place, u32 stride, u32 end, bool adds) {
    float largest = s.largest;
    for (int j = 0; j < PACKS; ++j) {
        for (int k = 0; k < N; ++k) largest = fmaxf(largest, x[j].at[k]);
    }
    if (largest > s.largest) {
        s.exponentials *= exponential(s.largest - largest);
        s.largest = largest;
        for (int j = PACKS - 1; j >= 0; --j) {
            for (int k = N - 1; k >= 0; --k) {
                if (x[j].at[k] == largest) s.first = place + j * stride + k;
            }
        }
    }
    // e^(-inf) is 0 as long as nothing larger came.
    float origin = largest == NO_VALUE ? 0.0f : largest;
    for (int j = 0; j < PACKS; ++j) {
        float sum = 0.0f;
        for (int k = 0; k < N; ++k) sum += exponential(x[j].at[k] - origin);
        s.exponentials += sum;
    }
    if (!adds) return;
    for (int j = 0; j < PACKS; ++j) {
        for (int k = 0; k < N; ++k) {
            if (place + j * stride + k < end) s.values += x[j].at[k];
        }
    }
}

// State after the values of a row that this thread reads.
__device__ inline Seen seen(const float* x, u32 n, bool adds) {
    Seen s = {NO_VALUE, 0.0f, n, 0.0};
    Cut c = cut(x, x, n);
    u32 threads = blockDim.x, place = place_at_edge(c, threadIdx.x);
    Pack<float, 1> edge[1] = {{place < n ? x[place] : NO_VALUE}};
    for (u32 i = threadIdx.x; i < c.packs; i += 4 * threads) {
        Pack<float, 4> values[4];
        for (u32 j = 0; j < 4; ++j) {
            values[j] = {NO_VALUE, NO_VALUE, NO_VALUE, NO_VALUE};
            if (i + j * threads < c.packs) values[j] = pack<4>(x + c.head, i + j * threads);
        }
        see(s, values, c.head + 4 * i, 4 * threads, c.head + 4 * c.packs, adds);
    }
    if (place < n) {
        if (edge[0].at[0] == s.largest && place < s.first) s.first = place;
        see(s, edge, place, 0, n, adds);
    }
    return s;
}

// Results of a block for a row: the largest value, the first place that holds it (n where it is no number), and the
// sums of e^(value - largest) and, if `adds`, of value - largest.
struct RowSums {
    float largest;
    u32 first;
    double exponentials, differences;
};

__device__ inline RowSums row_sums(const float* x, u32 n, bool adds) {
    Seen s = seen(x, n, adds);
    RowSums all;
    all.largest = block_maximum(s.largest);
    all.exponentials = block_sum((double)(s.exponentials * expf(s.largest - all.largest)));
    all.first = block_fold(s.largest == all.largest ? s.first : n, [](u32 one, u32 other) { return one < other ? one : other; });
    all.differences = adds ? block_sum(s.values) - (double)n * all.largest : 0.0;
    if (all.exponentials != all.exponentials) {
        all.largest = (float)all.exponentials;
        all.first = n;
    }
    return all;
}

// y = x - largest as `of` changes it, a pack and its place at a time, for a row, from its end: what was read last is the
// likeliest to be in the cache. y may be x.
template <typename F>
__device__ inline void from_differences(const float* x, float* y, float largest, u32 n, F of) {
    Cut c = cut(x, y, n);
    u32 threads = blockDim.x;
    for (u32 i = threadIdx.x; i < c.packs; i += 4 * threads) {
        Pack<float, 4> values[4];
        for (u32 j = 0; j < 4; ++j) {
            if (i + j * threads < c.packs) values[j] = pack<4>(x + c.head, c.packs - 1 - i - j * threads);
        }
        for (u32 j = 0; j < 4; ++j) {
            if (i + j * threads >= c.packs) break;
            u32 at = c.packs - 1 - i - j * threads;
            for (float& value : values[j].at) value -= largest;
            of(values[j], c.head + 4 * at);
            unpack(values[j], y + c.head, at);
        }
    }
    // By the threads that had the fewest packs.
    for (u32 i = threads - 1 - threadIdx.x; i < n - 4 * c.packs; i += threads) {
        u32 place = place_at_edge(c, i);
        Pack<float, 1> value = {x[place] - largest};
        of(value, place);
        y[place] = value.at[0];
    }
}

KERNEL softmax(const float* x, float* y, u64 c) {
    u64 start = blockIdx.x * c;
    RowSums s = row_sums(x + start, c, false);
    float scale = (float)(1.0 / s.exponentials);
    from_differences(x + start, y + start, s.largest, c, [=](auto& values, u32) {
        for (float& value : values.at) value = expf(value) * scale;
    });
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

// Layout of group `blockIdx.x` in x (n, positions, c): a block for each group of each sample.
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
