// Images (n, h, w, c): orders of axes, pooling. Backward gathers, so that nothing is added twice at once.

// Each of the matrices (rows, columns) transposed, through tiles of 32 x 32; blocks are 32 x 8, one image per z.
KERNEL transpose_images(const float* x, float* y, u64 rows, u64 columns) {
    __shared__ float tile[32][33];
    u64 image = blockIdx.z * rows * columns;
    u64 column = (u64)blockIdx.x * 32 + threadIdx.x, top = (u64)blockIdx.y * 32;
    for (u64 i = threadIdx.y; i < 32; i += 8) {
        if (top + i < rows && column < columns) tile[i][threadIdx.x] = x[image + (top + i) * columns + column];
    }
    __syncthreads();
    u64 row = top + threadIdx.x, left = (u64)blockIdx.x * 32;
    for (u64 i = threadIdx.y; i < 32; i += 8) {
        if (left + i < columns && row < rows) y[image + (left + i) * rows + row] = tile[threadIdx.x][i];
    }
}

// A weight (co, inputs, taps) as (co, taps, inputs), and back.
#define WEIGHT_KERNELS(NAME, T) \
    KERNEL weight_to_channels_last_##NAME(const float* weight, T* out, u64 inputs, u64 taps, u64 n) { \
        FOR_EACH(i, n) { \
            u64 input = i % inputs, tap = i / inputs % taps, output = i / inputs / taps; \
            store(&out[i], weight[(output * inputs + input) * taps + tap]); \
        } \
    } \
    KERNEL weight_from_channels_last_##NAME(const T* weight, float* out, u64 inputs, u64 taps, u64 n) { \
        FOR_EACH(i, n) { \
            u64 tap = i % taps, input = i / taps % inputs, output = i / taps / inputs; \
            out[i] = load(weight[(output * taps + tap) * inputs + input]); \
        } \
    }
FOR_ALL_TYPES(WEIGHT_KERNELS)

#define NO_PLACE 0xffffffffu

// y (n, oh, ow, c) and the place of each maximum in its window; the first maximum and NaN win.
KERNEL max_pool(
    const float* x, float* y, u32* chosen,
    u64 h, u64 w, u64 c, u64 oh, u64 ow, u64 kernel, u64 stride, u64 padding, u64 n
) {
    FOR_EACH(i, n) {
        u64 channel = i % c, ox = i / c % ow, oy = i / c / ow % oh, image = i / c / ow / oh;
        float best = 0.0f;
        u32 place = NO_PLACE;
        for (u64 ky = 0; ky < kernel; ++ky) {
            // Above and left of the image the numbers wrap, and so lie outside of it as well.
            u64 iy = oy * stride + ky - padding;
            for (u64 kx = 0; kx < kernel && iy < h; ++kx) {
                u64 ix = ox * stride + kx - padding;
                if (ix >= w) continue;
                float value = x[((image * h + iy) * w + ix) * c + channel];
                if (place == NO_PLACE || value > best || value != value) {
                    best = value;
                    place = (u32)(ky * kernel + kx);
                }
            }
        }
        y[i] = best;
        chosen[i] = place;
    }
}

// dx: what the windows over each input pixel hand back: all to the pixel they chose, or, with `chosen` null, equal
// shares.
KERNEL pool_gradient(
    const float* dy, const u32* chosen, float* dx,
    u64 h, u64 w, u64 c, u64 oh, u64 ow, u64 kernel, u64 stride, u64 padding, u64 n
) {
    float share = chosen ? 1.0f : 1.0f / (float)(kernel * kernel);
    FOR_EACH(i, n) {
        u64 channel = i % c, ix = i / c % w, iy = i / c / w % h, image = i / c / w / h;
        float sum = 0.0f;
        for (u64 ky = 0; ky < kernel; ++ky) {
            u64 y = iy + padding - ky;
            if (iy + padding < ky || y % stride != 0 || y / stride >= oh) continue;
            for (u64 kx = 0; kx < kernel; ++kx) {
                u64 x = ix + padding - kx;
                if (ix + padding < kx || x % stride != 0 || x / stride >= ow) continue;
                u64 at = ((image * oh + y / stride) * ow + x / stride) * c + channel;
                if (!chosen || chosen[at] == (u32)(ky * kernel + kx)) sum += dy[at] * share;
            }
        }
        dx[i] = sum;
    }
}

// y (n, oh, ow, c); padding counts as zeros.
KERNEL average_pool(
    const float* x, float* y,
    u64 h, u64 w, u64 c, u64 oh, u64 ow, u64 kernel, u64 stride, u64 padding, u64 n
) {
    FOR_EACH(i, n) {
        u64 channel = i % c, ox = i / c % ow, oy = i / c / ow % oh, image = i / c / ow / oh;
        float sum = 0.0f;
        for (u64 ky = 0; ky < kernel; ++ky) {
            u64 iy = oy * stride + ky - padding;
            for (u64 kx = 0; kx < kernel && iy < h; ++kx) {
                u64 ix = ox * stride + kx - padding;
                if (ix < w) sum += x[((image * h + iy) * w + ix) * c + channel];
            }
        }
        y[i] = sum / (float)(kernel * kernel);
    }
}

// y (n, c): the mean over the pixels of each image.
KERNEL global_average_pool(const float* x, float* y, u64 pixels, u64 c, u64 n) {
    FOR_EACH(i, n) {
        u64 image = i / c, channel = i % c;
        float sum = 0.0f;
        for (u64 pixel = 0; pixel < pixels; ++pixel) sum += x[(image * pixels + pixel) * c + channel];
        y[i] = sum / (float)pixels;
    }
}

KERNEL global_average_pool_gradient(const float* dy, float* dx, u64 pixels, u64 c, u64 n) {
    FOR_EACH(i, n) dx[i] = dy[i / (pixels * c) * c + i % c] / (float)pixels;
}
