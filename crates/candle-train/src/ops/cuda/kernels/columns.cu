// Sums over the rows of x (rows, c): gradients of biases, batch normalisation.
//
// A block of 32 x 8 threads takes 32 columns of a chunk of rows, and leaves one partial sum per column; a second
// kernel adds the chunks in f64. Which thread adds what follows from the shape alone.

#define COLUMNS 32
#define LANES 8

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

__device__ inline double lane_sum(double value) {
    __shared__ double sums[LANES][COLUMNS];
    __syncthreads();
    sums[threadIdx.y][threadIdx.x] = value;
    __syncthreads();
    double total = 0.0;
    if (threadIdx.y == 0) {
        for (int lane = 0; lane < LANES; ++lane) total += sums[lane][threadIdx.x];
    }
    return total;
}

// Sum of partial (chunks, c) over the chunks, for lane 0 of each column.
__device__ inline double merged(const float* partial, u64 stride, u64 chunks, u64 column, bool is_column) {
    double sum = 0.0;
    if (is_column) {
        for (u64 chunk = threadIdx.y; chunk < chunks; chunk += LANES) sum += partial[chunk * stride + column];
    }
    return lane_sum(sum);
}

template <typename T>
__device__ inline void column_sums(const T* x, float* partial, u64 rows, u64 c, u64 rows_per_chunk) {
    Span s = span(rows, rows_per_chunk);
    float sum = 0.0f;
    if (s.column < c) {
        for (u64 row = s.first + threadIdx.y; row < s.last; row += LANES) sum += load(x[row * c + s.column]);
    }
    sum = lane_sum(sum);
    if (threadIdx.y == 0 && s.column < c) partial[blockIdx.y * c + s.column] = sum;
}

KERNEL merge_sums(const float* partial, float* sums, u64 chunks, u64 c) {
    u64 column = (u64)blockIdx.x * COLUMNS + threadIdx.x;
    double sum = merged(partial, c, chunks, column, column < c);
    if (threadIdx.y == 0 && column < c) sums[column] = (float)sum;
}

// Per chunk and column, partial (chunks, 2, c): the mean, and the sum of squared deviations from it. The first row
// is subtracted from all, so that no digits are lost.
template <typename T>
__device__ inline void batch_moments(const T* x, float* partial, u64 rows, u64 c, u64 rows_per_chunk) {
    Span s = span(rows, rows_per_chunk);
    float origin = s.column < c ? load(x[s.first * c + s.column]) : 0.0f;
    float sum = 0.0f, squares = 0.0f;
    if (s.column < c) {
        for (u64 row = s.first + threadIdx.y; row < s.last; row += LANES) {
            float value = load(x[row * c + s.column]) - origin;
            sum += value;
            squares += value * value;
        }
    }
    sum = lane_sum(sum);
    squares = lane_sum(squares);
    if (threadIdx.y == 0 && s.column < c) {
        float n = (float)(s.last - s.first);
        float* out = partial + blockIdx.y * 2 * c + s.column;
        out[0] = origin + sum / n;
        float deviations = squares - sum * (sum / n);
        out[c] = deviations > 0.0f || deviations != deviations ? deviations : 0.0f;
    }
}

// Mean, biased variance and 1 / sqrt(variance + eps) of each column (Chan et al., 1983).
KERNEL batch_statistics(
    const float* partial, float* mean, float* variance, float* inverse_std,
    double eps, u64 chunks, u64 rows, u64 c, u64 rows_per_chunk
) {
    u64 column = (u64)blockIdx.x * COLUMNS + threadIdx.x;
    double sum = 0.0;
    if (column < c) {
        for (u64 chunk = threadIdx.y; chunk < chunks; chunk += LANES) {
            u64 rest = rows - chunk * rows_per_chunk;
            sum += (double)partial[chunk * 2 * c + column] * (rest < rows_per_chunk ? rest : rows_per_chunk);
        }
    }
    __shared__ double means[COLUMNS];
    sum = lane_sum(sum);
    if (threadIdx.y == 0) means[threadIdx.x] = sum / rows;
    __syncthreads();
    double deviations = 0.0;
    if (column < c) {
        for (u64 chunk = threadIdx.y; chunk < chunks; chunk += LANES) {
            u64 rest = rows - chunk * rows_per_chunk;
            double delta = partial[chunk * 2 * c + column] - means[threadIdx.x];
            double n = rest < rows_per_chunk ? rest : rows_per_chunk;
            deviations += partial[chunk * 2 * c + c + column] + delta * delta * n;
        }
    }
    deviations = lane_sum(deviations);
    if (threadIdx.y == 0 && column < c) {
        double spread = deviations / rows;
        mean[column] = (float)means[threadIdx.x];
        variance[column] = (float)spread;
        inverse_std[column] = (float)(1.0 / sqrt((double)(float)spread + eps));
    }
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

// y = activation(gamma (x - mean) / std + beta + residual), N at a time.
template <int N, typename T>
__device__ inline void batch_norm(
    const T* x, const float* mean, const float* inverse_std, const float* gamma, const float* beta,
    const float* residual, float* y, int rectified, u64 c, u64 n
) {
    FOR_EACH(i, n / N) {
        u64 columns = i % (c / N);
        Pack<T, N> from = pack<N>(x, i);
        Pack<float, N> centre = pack<N>(mean, columns), inverse = pack<N>(inverse_std, columns);
        Pack<float, N> scale = pack<N>(gamma, columns), offset = pack<N>(beta, columns), added, result;
        if (residual) added = pack<N>(residual, i);
        for (int k = 0; k < N; ++k) {
            float value = (load(from.at[k]) - centre.at[k]) * (scale.at[k] * inverse.at[k]) + offset.at[k];
            if (residual) value += added.at[k];
            result.at[k] = rectified && value < 0.0f ? 0.0f : value;
        }
        unpack(result, y, i);
    }
}

// Per chunk and column, partial (chunks, 2, c): sums of g and of g (x - mean), with g the gradient before the
// rectifier, which was open where y is positive; g replaces dy.
template <typename T>
__device__ inline void batch_norm_sums(
    const T* x, const float* mean, const float* y, float* dy, float* partial,
    u64 rows, u64 c, u64 rows_per_chunk
) {
    Span s = span(rows, rows_per_chunk);
    float plain = 0.0f, weighted = 0.0f;
    if (s.column < c) {
        float centre = mean[s.column];
        for (u64 row = s.first + threadIdx.y; row < s.last; row += LANES) {
            u64 at = row * c + s.column;
            float g = dy[at];
            if (y) dy[at] = g = y[at] > 0.0f ? g : 0.0f;
            plain += g;
            weighted += g * (load(x[at]) - centre);
        }
    }
    plain = lane_sum(plain);
    weighted = lane_sum(weighted);
    if (threadIdx.y == 0 && s.column < c) {
        partial[blockIdx.y * 2 * c + s.column] = plain;
        partial[blockIdx.y * 2 * c + c + s.column] = weighted;
    }
}

// Gradients of gamma and beta; and what makes the gradient of x of g, per column: slopes (3, c) holds the factor of g,
// that of x - mean, and what is added.
KERNEL batch_norm_affine(
    const float* partial, const float* inverse_std, const float* gamma,
    float* of_gamma, float* of_beta, float* slopes, u64 chunks, u64 rows, u64 c
) {
    u64 column = (u64)blockIdx.x * COLUMNS + threadIdx.x;
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

// dx = gamma / std (g - mean(g) - x̂ mean(g x̂)), N at a time.
template <int N, typename T>
__device__ inline void batch_norm_pull(
    const float* g, const T* x, const float* mean, const float* slopes, T* dx, u64 c, u64 n
) {
    FOR_EACH(i, n / N) {
        u64 columns = i % (c / N);
        Pack<T, N> from = pack<N>(x, i), result;
        Pack<float, N> incoming = pack<N>(g, i), centre = pack<N>(mean, columns), of_g = pack<N>(slopes, columns);
        Pack<float, N> of_x = pack<N>(slopes + c, columns), added = pack<N>(slopes + 2 * c, columns);
        for (int k = 0; k < N; ++k) {
            float centred = load(from.at[k]) - centre.at[k];
            store(&result.at[k], of_g.at[k] * incoming.at[k] + of_x.at[k] * centred + added.at[k]);
        }
        unpack(result, dx, i);
    }
}

#define COLUMN_KERNELS(NAME, T) \
    KERNEL column_sums_##NAME(const T* x, float* partial, u64 rows, u64 c, u64 rows_per_chunk) { \
        column_sums(x, partial, rows, c, rows_per_chunk); \
    } \
    KERNEL batch_moments_##NAME(const T* x, float* partial, u64 rows, u64 c, u64 rows_per_chunk) { \
        batch_moments(x, partial, rows, c, rows_per_chunk); \
    } \
    KERNEL batch_norm_##NAME( \
        const T* x, const float* mean, const float* inverse_std, const float* gamma, const float* beta, \
        const float* residual, float* y, int rectified, u64 c, u64 n \
    ) { \
        bool fit = fits_four(mean) && fits_four(inverse_std) && fits_four(gamma) && fits_four(beta); \
        if (fit && c % 4 == 0 && fits_four(x) && fits_four(residual) && fits_four(y)) \
            batch_norm<4>(x, mean, inverse_std, gamma, beta, residual, y, rectified, c, n); \
        else batch_norm<1>(x, mean, inverse_std, gamma, beta, residual, y, rectified, c, n); \
    } \
    KERNEL batch_norm_sums_##NAME( \
        const T* x, const float* mean, const float* y, float* dy, float* partial, \
        u64 rows, u64 c, u64 rows_per_chunk \
    ) { \
        batch_norm_sums(x, mean, y, dy, partial, rows, c, rows_per_chunk); \
    } \
    KERNEL batch_norm_pull_##NAME( \
        const float* g, const T* x, const float* mean, const float* slopes, T* dx, u64 c, u64 n \
    ) { \
        bool fit = fits_four(g) && fits_four(x) && fits_four(mean) && fits_four(slopes) && fits_four(dx); \
        if (fit && c % 4 == 0) batch_norm_pull<4>(g, x, mean, slopes, dx, c, n); \
        else batch_norm_pull<1>(g, x, mean, slopes, dx, c, n); \
    }
FOR_ALL_TYPES(COLUMN_KERNELS)
