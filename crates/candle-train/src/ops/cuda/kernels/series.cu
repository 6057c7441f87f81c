// Positions in time: rotary embeddings, moving averages, the loss over time and frequencies.

// y of x (b, t, width): each pair of a head's d features, one in each half, turned by its position's angle. `angles` holds
// the cosines (t, d / 2), then the sines. n counts pairs; x and y may be the same.
KERNEL rotary(const float* x, float* y, const float* angles, float sign, u64 t, u64 width, u64 d, u64 n) {
    u64 half = d / 2;
    FOR_EACH(i, n) {
        u64 feature = i % half, head = i / half % (width / d), token = i / (width / 2);
        u64 first = token * width + head * d + feature, second = first + half;
        u64 angle = token % t * half + feature;
        float cosine = angles[angle], sine = sign * angles[t * half + angle];
        float a = x[first], b = x[second];
        y[first] = a * cosine - b * sine;
        y[second] = b * cosine + a * sine;
    }
}

// The average of each window of a row of c. Centred windows repeat the ends; trailing ones are whole from the first on.
KERNEL moving_average(const float* x, float* y, u64 window, int centred, u64 c, u64 n) {
    FOR_EACH(i, n) {
        u64 row = i / c * c, at = i % c;
        double sum = 0.0;
        for (u64 k = 0; k < window; ++k) {
            // One more than the position, so that it is never negative.
            u64 from = centred ? at + k + 1 : (at + 1 < window ? k + 1 : at + k + 2 - window);
            u64 before = centred ? window / 2 : 0;
            u64 position = from <= before ? 0 : from - before - 1;
            sum += x[row + (position < c ? position : c - 1)];
        }
        y[i] = (float)(sum / window);
    }
}

// Index of element i of (samples, steps, series) when each series has a row of its own.
__device__ inline u64 by_series(u64 i, u64 steps, u64 series) {
    return (i / (steps * series) * series + i % series) * steps + i / series % steps;
}

// p - t, a row for each series.
KERNEL series_differences(const float* p, const float* t, float* rows, u64 steps, u64 series, u64 n) {
    FOR_EACH(i, n) rows[by_series(i, steps, series)] = p[i] - t[i];
}

// Sums of the lengths of coefficients, real parts and then imaginary ones in each row of 2 f: a block per `per_block` of n.
KERNEL spectrum_sums(const float* spectrum, double* sums, u64 f, u64 per_block, u64 n) {
    u64 first = blockIdx.x * per_block, last = first + per_block < n ? first + per_block : n;
    double sum = 0.0;
    for (u64 i = first + threadIdx.x; i < last; i += blockDim.x) {
        const float* row = spectrum + i / f * 2 * f;
        sum += hypot((double)row[i % f], (double)row[f + i % f]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// of_a sum(a) + of_b sum(b), in one block.
KERNEL weighted_total(
    const double* a, const double* b, float* sum, double of_a, double of_b, u64 n_a, u64 n_b
) {
    double first = 0.0, second = 0.0;
    for (u64 i = threadIdx.x; i < n_a; i += blockDim.x) first += a[i];
    for (u64 i = threadIdx.x; i < n_b; i += blockDim.x) second += b[i];
    first = block_sum(first);
    second = block_sum(second);
    if (threadIdx.x == 0) *sum = (float)(of_a * first + of_b * second);
}

// Each coefficient becomes dy weight times its direction; 0 has none.
KERNEL spectrum_slopes(float* spectrum, const float* dy, double weight, u64 f, u64 n) {
    float scale = (float)(*dy * weight);
    FOR_EACH(i, n) {
        float* row = spectrum + i / f * 2 * f;
        float re = row[i % f], im = row[f + i % f];
        float length = hypotf(re, im), factor = scale / length;
        row[i % f] = length == 0.0f ? 0.0f : re * factor;
        row[f + i % f] = length == 0.0f ? 0.0f : im * factor;
    }
}

// The gradient of p: what comes from the frequencies, by series, and dy weight times the sign of the difference.
KERNEL series_gradient(
    const float* p, const float* t, const float* back, const float* dy, float* gradient,
    double weight, u64 steps, u64 series, u64 n
) {
    float scale = (float)(*dy * weight);
    FOR_EACH(i, n) {
        float difference = p[i] - t[i];
        float sign = difference == 0.0f ? 0.0f : copysignf(1.0f, difference);
        float slope = difference != difference ? difference : sign;
        gradient[i] = scale * slope + back[by_series(i, steps, series)];
    }
}
