// Sums over the rows of x (rows, c): gradients of biases, batch normalisation.
//
// A block takes some columns of a chunk of rows, and leaves one partial sum per column; a second kernel adds the chunks
// in f64. Which thread adds what follows from the shape alone.

#define COLUMNS 32
#define LANES 8

// Share of a block of 32 x 8 threads, a column each, one row in LANES: the filters of grouped.cu.
struct Span { u64 column, first, last; };

__device__ inline Span span(u64 rows, u64 rows_per_chunk) {
    Span s;
    s.column = (u64)blockIdx.x * COLUMNS + threadIdx.x;
    s.first = (u64)blockIdx.y * rows_per_chunk;
    s.last = s.first + rows_per_chunk < rows ? s.first + rows_per_chunk : rows;
    return s;
}

// The sum over the lanes of each column, for lane 0.
__device__ inline float lane_sum(float value) {
    __shared__ float sums[LANES][COLUMNS];
    __syncthreads();
    sums[threadIdx.y][threadIdx.x] = value;
    __syncthreads();
    float total = 0.0f;
    if (threadIdx.y == 0) {
        for (int lane = 0; lane < LANES; ++lane) total += sums[lane][threadIdx.x];
    }
    return total;
}

// The kernels that merge chunks have blocks of 8 columns and 32 lanes.
#define MERGED_COLUMNS 8
#define MERGING_LANES 32

// The sum over the lanes of each column, for lane 0.
__device__ inline double merging_sum(double value) {
    __shared__ double sums[MERGING_LANES][MERGED_COLUMNS];
    __syncthreads();
    sums[threadIdx.y][threadIdx.x] = value;
    for (u32 half = MERGING_LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.y < half) sums[threadIdx.y][threadIdx.x] += sums[threadIdx.y + half][threadIdx.x];
    }
    return sums[0][threadIdx.x];
}

// Sum of partial (chunks, c) over the chunks, for lane 0 of each column.
__device__ inline double merged(const float* partial, u64 stride, u64 chunks, u64 column, bool is_column) {
    double sum = 0.0;
    if (is_column) {
        #pragma unroll 4
        for (u64 chunk = threadIdx.y; chunk < chunks; chunk += MERGING_LANES) sum += partial[chunk * stride + column];
    }
    return merging_sum(sum);
}

// Share of a thread: the N columns of one pack, of one row in `lanes`. A block has ROW_THREADS threads and as many
// packs side by side as there are, up to 32.
struct Part {
    u32 width, lane, lanes;
    bool is_inside;
    // In rows, and in packs from the first one of x.
    u64 first, last, pack, packs_of_row;
};

template <int N>
__device__ inline Part part(u64 rows, u64 c, u64 rows_per_chunk) {
    Part p;
    p.packs_of_row = c / N;
    p.width = 1;
    while (p.width < 32 && p.width < p.packs_of_row) p.width *= 2;
    p.lane = threadIdx.x / p.width;
    p.lanes = ROW_THREADS / p.width;
    p.pack = (u64)blockIdx.x * p.width + threadIdx.x % p.width;
    p.is_inside = p.pack < p.packs_of_row;
    p.first = (u64)blockIdx.y * rows_per_chunk;
    p.last = p.first + rows_per_chunk < rows ? p.first + rows_per_chunk : rows;
    return p;
}

// A number that is known when a kernel is compiled.
template <int N>
struct Constant { static constexpr int value = N; };

// Calls `work` with the rows of a thread in ascending order: how many at once, so that it waits for memory once for all, the
// place of the first one's pack, and the step to the next.
template <int AT_ONCE, typename F>
__device__ inline void over_rows(const Part& p, F work) {
    if (!p.is_inside) return;
    u64 row = p.first + p.lane, step = p.lanes * p.packs_of_row;
    for (; row + (AT_ONCE - 1) * p.lanes < p.last; row += AT_ONCE * p.lanes) {
        work(Constant<AT_ONCE>{}, row * p.packs_of_row + p.pack, step);
    }
    for (; row < p.last; row += p.lanes) work(Constant<1>{}, row * p.packs_of_row + p.pack, step);
}

// The sums over the lanes of each column of a block, in the order of the lanes: thread i has that of column i, if it is one.
template <int N>
__device__ inline float lane_sums(const Part& p, const float* of_thread) {
    __shared__ float sums[N][ROW_THREADS + 1];
    __syncthreads();
    for (int k = 0; k < N; ++k) sums[k][threadIdx.x] = of_thread[k];
    __syncthreads();
    float total = 0.0f;
    if (threadIdx.x < p.width * N) {
        u32 pack = threadIdx.x / N, k = threadIdx.x % N;
        for (u32 lane = 0; lane < p.lanes; ++lane) total += sums[k][lane * p.width + pack];
    }
    return total;
}

// The column whose sum a thread has, c or more if none.
template <int N>
__device__ inline u64 column_of(const Part& p, u64 c) {
    return threadIdx.x < p.width * N ? (u64)blockIdx.x * p.width * N + threadIdx.x : c;
}

template <int N, typename T>
__device__ inline void column_sums(const T* x, float* partial, u64 rows, u64 c, u64 rows_per_chunk) {
    constexpr int AT_ONCE = 16 / sizeof(T);
    Part p = part<N>(rows, c, rows_per_chunk);
    float sum[N] = {};
    over_rows<AT_ONCE>(p, [&](auto count, u64 at, u64 step) {
        constexpr int COUNT = decltype(count)::value;
        Pack<T, N> from[COUNT];
        for (int r = 0; r < COUNT; ++r) from[r] = pack<N>(x, at + r * step);
        for (int r = 0; r < COUNT; ++r) {
            for (int k = 0; k < N; ++k) sum[k] += load(from[r].at[k]);
        }
    });
    float total = lane_sums<N>(p, sum);
    u64 column = column_of<N>(p, c);
    if (column < c) partial[blockIdx.y * c + column] = total;
}

KERNEL merge_sums(const float* partial, float* sums, u64 chunks, u64 c) {
    u64 column = (u64)blockIdx.x * MERGED_COLUMNS + threadIdx.x;
    double sum = merged(partial, c, chunks, column, column < c);
    if (threadIdx.y == 0 && column < c) sums[column] = (float)sum;
}

// Per chunk and column, partial (chunks, 2, c): the mean, and the sum of squared deviations from it. The first row
// is subtracted from all, so that no digits are lost.
template <int N, typename T>
__device__ inline void batch_moments(const T* x, float* partial, u64 rows, u64 c, u64 rows_per_chunk) {
    constexpr int AT_ONCE = 16 / sizeof(T);
    Part p = part<N>(rows, c, rows_per_chunk);
    Pack<T, N> first;
    if (p.is_inside) first = pack<N>(x, p.first * (c / N) + p.pack);
    float origin[N], sum[N] = {}, squares[N] = {};
    for (int k = 0; k < N; ++k) origin[k] = p.is_inside ? load(first.at[k]) : 0.0f;
    over_rows<AT_ONCE>(p, [&](auto count, u64 at, u64 step) {
        constexpr int COUNT = decltype(count)::value;
        Pack<T, N> from[COUNT];
        for (int r = 0; r < COUNT; ++r) from[r] = pack<N>(x, at + r * step);
        for (int r = 0; r < COUNT; ++r) {
            for (int k = 0; k < N; ++k) {
                float value = load(from[r].at[k]) - origin[k];
                sum[k] += value;
                squares[k] += value * value;
            }
        }
    });
    float total = lane_sums<N>(p, sum), total_squares = lane_sums<N>(p, squares);
    u64 column = column_of<N>(p, c);
    if (column >= c) return;
    float n = (float)(p.last - p.first);
    float* out = partial + blockIdx.y * 2 * c + column;
    out[0] = load(x[p.first * c + column]) + total / n;
    float deviations = total_squares - total * (total / n);
    out[c] = deviations > 0.0f || deviations != deviations ? deviations : 0.0f;
}

// Mean, biased variance and 1 / sqrt(variance + eps) of each column (Chan et al., 1983), by how far the means of chunks
// are from that of the first.
KERNEL batch_statistics(
    const float* partial, float* mean, float* variance, float* inverse_std,
    double eps, u64 chunks, u64 rows, u64 c, u64 rows_per_chunk
) {
    u64 column = (u64)blockIdx.x * MERGED_COLUMNS + threadIdx.x;
    double origin = column < c ? partial[column] : 0.0, sum = 0.0, squares = 0.0;
    if (column < c) {
        #pragma unroll 4
        for (u64 chunk = threadIdx.y; chunk < chunks; chunk += MERGING_LANES) {
            u64 rest = rows - chunk * rows_per_chunk;
            double n = rest < rows_per_chunk ? rest : rows_per_chunk;
            double delta = partial[chunk * 2 * c + column] - origin;
            sum += n * delta;
            squares += partial[chunk * 2 * c + c + column] + n * delta * delta;
        }
    }
    sum = merging_sum(sum);
    squares = merging_sum(squares);
    if (threadIdx.y != 0 || column >= c) return;
    double spread = (squares - sum * sum / rows) / rows;
    // NaN stays NaN.
    if (spread < 0.0) spread = 0.0;
    mean[column] = (float)(origin + sum / rows);
    variance[column] = (float)spread;
    inverse_std[column] = (float)(1.0 / sqrt((double)(float)spread + eps));
}

KERNEL inverse_deviation(const float* variance, float* inverse_std, double eps, u64 c) {
    FOR_EACH(i, c) inverse_std[i] = (float)(1.0 / sqrt((double)variance[i] + eps));
}

// running = (1 - momentum) running + momentum scale value, where the value and the other statistic of its
// column are finite.
KERNEL move_running(float* running, const float* value, const float* other, double momentum, double scale, u64 c) {
    FOR_EACH(i, c) {
        if (value[i] - value[i] == 0.0f && other[i] - other[i] == 0.0f) {
            running[i] = (float)((1.0 - momentum) * running[i] + momentum * scale * (double)value[i]);
        }
    }
}

// N neighbours of a column's numbers, which may begin anywhere.
template <int N>
__device__ inline Pack<float, N> few(const float* x, u64 i) {
    Pack<float, N> values;
    for (int k = 0; k < N; ++k) values.at[k] = x[i * N + k];
    return values;
}

// gamma (x - mean) / std + beta; `scale` is gamma / std.
__device__ inline float normalised(float x, float mean, float scale, float beta) {
    return (x - mean) * scale + beta;
}

// y = activation(gamma (x - mean) / std + beta + residual).
template <int N, typename T>
__device__ inline void batch_norm(
    const T* x, const float* mean, const float* inverse_std, const float* gamma, const float* beta,
    const T* residual, T* y, int rectified, u64 rows, u64 c, u64 rows_per_chunk
) {
    constexpr int AT_ONCE = 8 / sizeof(T);
    Part p = part<N>(rows, c, rows_per_chunk);
    if (!p.is_inside) return;
    Pack<float, N> centre = few<N>(mean, p.pack), scale = few<N>(gamma, p.pack), offset = few<N>(beta, p.pack);
    for (int k = 0; k < N; ++k) scale.at[k] *= inverse_std[p.pack * N + k];
    over_rows<AT_ONCE>(p, [&](auto count, u64 at, u64 step) {
        constexpr int COUNT = decltype(count)::value;
        Pack<T, N> from[COUNT], added[COUNT], result;
        for (int r = 0; r < COUNT; ++r) {
            from[r] = pack<N>(x, at + r * step);
            if (residual) added[r] = pack<N>(residual, at + r * step);
        }
        for (int r = 0; r < COUNT; ++r) {
            for (int k = 0; k < N; ++k) {
                float value = normalised(load(from[r].at[k]), centre.at[k], scale.at[k], offset.at[k]);
                if (residual) value += load(added[r].at[k]);
                store(&result.at[k], rectified && value < 0.0f ? 0.0f : value);
            }
            unpack(result, y, at + r * step);
        }
    });
}

// Places where a rectifier let values through: everywhere, as there is none; where its output is positive; or, where
// nothing was added before it, where the norm is.
enum Gate { NO_GATE, OUTPUT, NORM };

// Per chunk and column, partial (chunks, 2, c): sums of g and of g (x - mean), with g the gradient before the
// rectifier. Where y is read, g replaces dy.
template <int N, Gate GATE, typename T>
__device__ inline void batch_norm_sums(
    const T* x, const float* mean, const float* inverse_std, const float* gamma, const float* beta,
    const T* y, T* dy, float* partial, u64 rows, u64 c, u64 rows_per_chunk
) {
    constexpr int AT_ONCE = 8 / sizeof(T);
    Part p = part<N>(rows, c, rows_per_chunk);
    Pack<float, N> centre, scale, offset;
    if (p.is_inside) {
        centre = few<N>(mean, p.pack);
        scale = few<N>(gamma, p.pack);
        offset = few<N>(beta, p.pack);
        for (int k = 0; k < N; ++k) scale.at[k] *= inverse_std[p.pack * N + k];
    }
    float plain[N] = {}, weighted[N] = {};
    over_rows<AT_ONCE>(p, [&](auto count, u64 at, u64 step) {
        constexpr int COUNT = decltype(count)::value;
        Pack<T, N> from[COUNT], incoming[COUNT], result[COUNT];
        for (int r = 0; r < COUNT; ++r) {
            from[r] = pack<N>(x, at + r * step);
            incoming[r] = pack<N>((const T*)dy, at + r * step);
            if (GATE == OUTPUT) result[r] = pack<N>(y, at + r * step);
        }
        for (int r = 0; r < COUNT; ++r) {
            for (int k = 0; k < N; ++k) {
                float value = load(from[r].at[k]), g = load(incoming[r].at[k]), seen = 1.0f;
                if (GATE == OUTPUT) seen = load(result[r].at[k]);
                if (GATE == NORM) seen = normalised(value, centre.at[k], scale.at[k], offset.at[k]);
                g = seen > 0.0f ? g : 0.0f;
                plain[k] += g;
                weighted[k] += g * (value - centre.at[k]);
                if (GATE == OUTPUT) store(&incoming[r].at[k], g);
            }
            if (GATE == OUTPUT) unpack(incoming[r], dy, at + r * step);
        }
    });
    float total = lane_sums<N>(p, plain), total_weighted = lane_sums<N>(p, weighted);
    u64 column = column_of<N>(p, c);
    if (column >= c) return;
    partial[blockIdx.y * 2 * c + column] = total;
    partial[blockIdx.y * 2 * c + c + column] = total_weighted;
}

// Gradients of gamma and beta; and what makes the gradient of x of g, per column: slopes (3, c) holds the factor of g,
// that of x - mean, and what is added.
KERNEL batch_norm_affine(
    const float* partial, const float* inverse_std, const float* gamma,
    float* of_gamma, float* of_beta, float* slopes, u64 chunks, u64 rows, u64 c
) {
    u64 column = (u64)blockIdx.x * MERGED_COLUMNS + threadIdx.x;
    double plain = merged(partial, 2 * c, chunks, column, column < c);
    double weighted = merged(partial + c, 2 * c, chunks, column, column < c);
    if (threadIdx.y != 0 || column >= c) return;
    double inverse = inverse_std[column], scale = inverse * gamma[column];
    of_gamma[column] = (float)(weighted * inverse);
    of_beta[column] = (float)plain;
    slopes[column] = (float)scale;
    slopes[c + column] = (float)(-scale * inverse * inverse * weighted / rows);
    slopes[2 * c + column] = (float)(-scale * plain / rows);
}

// dx = gamma / std (g - mean(g) - x̂ mean(g x̂)); with beta, g is taken where the norm is positive.
template <int N, typename T>
__device__ inline void batch_norm_pull(
    const T* g, const T* x, const float* mean, const float* slopes, const float* beta, T* dx,
    u64 rows, u64 c, u64 rows_per_chunk
) {
    constexpr int AT_ONCE = 8 / sizeof(T);
    Part p = part<N>(rows, c, rows_per_chunk);
    if (!p.is_inside) return;
    Pack<float, N> centre = few<N>(mean, p.pack), of_g = few<N>(slopes, p.pack), of_x = few<N>(slopes + c, p.pack);
    Pack<float, N> added = few<N>(slopes + 2 * c, p.pack), offset;
    if (beta) offset = few<N>(beta, p.pack);
    over_rows<AT_ONCE>(p, [&](auto count, u64 at, u64 step) {
        constexpr int COUNT = decltype(count)::value;
        Pack<T, N> from[COUNT], incoming[COUNT], result;
        for (int r = 0; r < COUNT; ++r) {
            from[r] = pack<N>(x, at + r * step);
            incoming[r] = pack<N>(g, at + r * step);
        }
        for (int r = 0; r < COUNT; ++r) {
            for (int k = 0; k < N; ++k) {
                float value = load(from[r].at[k]), slope = load(incoming[r].at[k]);
                if (beta && !(normalised(value, centre.at[k], of_g.at[k], offset.at[k]) > 0.0f)) slope = 0.0f;
                store(&result.at[k], of_g.at[k] * slope + of_x.at[k] * (value - centre.at[k]) + added.at[k]);
            }
            unpack(result, dx, at + r * step);
        }
    });
}

// `packs` says that packs of four begin and end where columns and memory allow it.
#define BY_PACKS(FUNCTION, ...) \
    if (packs) FUNCTION<4>(__VA_ARGS__); \
    else FUNCTION<1>(__VA_ARGS__);
#define BY_PACKS_AND_GATE(FUNCTION, GATE, ...) \
    if (packs) FUNCTION<4, GATE>(__VA_ARGS__); \
    else FUNCTION<1, GATE>(__VA_ARGS__);

// A kernel of ROW_THREADS threads, of which a multiprocessor holds four blocks: 64 registers a thread.
#ifdef __CUDACC__
#define FULL_KERNEL extern "C" __global__ void __launch_bounds__(ROW_THREADS, 4)
#else
#define FULL_KERNEL KERNEL
#endif

#define COLUMN_KERNELS(NAME, T) \
    FULL_KERNEL column_sums_##NAME(const T* x, float* partial, u64 rows, u64 c, u64 rows_per_chunk, int packs) { \
        BY_PACKS(column_sums, x, partial, rows, c, rows_per_chunk) \
    } \
    FULL_KERNEL batch_moments_##NAME(const T* x, float* partial, u64 rows, u64 c, u64 rows_per_chunk, int packs) { \
        BY_PACKS(batch_moments, x, partial, rows, c, rows_per_chunk) \
    } \
    FULL_KERNEL batch_norm_##NAME( \
        const T* x, const float* mean, const float* inverse_std, const float* gamma, const float* beta, \
        const T* residual, T* y, int rectified, u64 rows, u64 c, u64 rows_per_chunk, int packs \
    ) { \
        BY_PACKS(batch_norm, x, mean, inverse_std, gamma, beta, residual, y, rectified, rows, c, rows_per_chunk) \
    } \
    FULL_KERNEL batch_norm_sums_##NAME( \
        const T* x, const float* mean, const float* inverse_std, const float* gamma, const float* beta, \
        const T* y, T* dy, float* partial, int rectified, u64 rows, u64 c, u64 rows_per_chunk, int packs \
    ) { \
        if (!rectified) { \
            BY_PACKS_AND_GATE( \
                batch_norm_sums, NO_GATE, x, mean, inverse_std, gamma, beta, y, dy, partial, rows, c, rows_per_chunk \
            ) \
        } else if (y) { \
            BY_PACKS_AND_GATE( \
                batch_norm_sums, OUTPUT, x, mean, inverse_std, gamma, beta, y, dy, partial, rows, c, rows_per_chunk \
            ) \
        } else { \
            BY_PACKS_AND_GATE( \
                batch_norm_sums, NORM, x, mean, inverse_std, gamma, beta, y, dy, partial, rows, c, rows_per_chunk \
            ) \
        } \
    } \
    FULL_KERNEL batch_norm_pull_##NAME( \
        const T* g, const T* x, const float* mean, const float* slopes, const float* beta, T* dx, \
        u64 rows, u64 c, u64 rows_per_chunk, int packs \
    ) { \
        BY_PACKS(batch_norm_pull, g, x, mean, slopes, beta, dx, rows, c, rows_per_chunk) \
    }
FOR_ALL_TYPES(COLUMN_KERNELS)
