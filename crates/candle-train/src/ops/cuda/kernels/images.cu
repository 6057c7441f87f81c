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

// Sizes of a pooling: images (h, w, c), results (oh, ow, c), square windows.
struct Windows { u32 h, w, c, oh, ow, kernel, stride, padding; };

// Calls `visit` with each pixel of the window at (oy, ox), in the window's order: its place in the window, and its number in
// the image.
template <typename F>
__device__ inline void over_window(const Windows& s, u32 oy, u32 ox, F visit) {
    for (u32 ky = 0; ky < s.kernel; ++ky) {
        // Above and left of the image the numbers wrap, and so lie outside of it as well.
        u32 iy = oy * s.stride + ky - s.padding;
        for (u32 kx = 0; kx < s.kernel && iy < s.h; ++kx) {
            u32 ix = ox * s.stride + kx - s.padding;
            if (ix < s.w) visit(ky * s.kernel + kx, iy * s.w + ix);
        }
    }
}

// Windows of one axis that lie over position `i`: from `first` to before `last`.
struct Reach { u32 first, last; };

__device__ inline Reach reach(u32 i, u32 kernel, u32 stride, u32 padding, u32 outputs) {
    u32 at = i + padding, last = at / stride + 1;
    return {at < kernel ? 0 : (at - kernel) / stride + 1, last < outputs ? last : outputs};
}

// The pooling kernels: a block per row of what is written, and packs of N channels of one pixel.

// y (n, oh, ow, c) and the place of each maximum in its window; the first maximum and NaN win.
template <int N, typename T>
__device__ inline void max_pool(const T* x, T* y, u32* chosen, const Windows& s) {
    u32 packs = s.c / N, oy = blockIdx.x % s.oh;
    const T* image = x + (u64)(blockIdx.x / s.oh) * s.h * s.w * s.c;
    u64 row = (u64)blockIdx.x * s.ow * packs;
    for (u32 i = threadIdx.x; i < s.ow * packs; i += blockDim.x) {
        u32 ox = i / packs, channels = i % packs;
        Pack<T, N> result = {};
        Pack<u32, N> places;
        float best[N] = {};
        for (int k = 0; k < N; ++k) places.at[k] = NO_PLACE;
        over_window(s, oy, ox, [&](u32 place, u32 pixel) {
            Pack<T, N> from = pack<N>(image, (u64)pixel * packs + channels);
            for (int k = 0; k < N; ++k) {
                float value = load(from.at[k]);
                if (places.at[k] == NO_PLACE || value > best[k] || value != value) {
                    best[k] = value;
                    places.at[k] = place;
                }
            }
        });
        for (int k = 0; k < N; ++k) store(&result.at[k], best[k]);
        unpack(result, y, row + i);
        unpack(places, chosen, row + i);
    }
}

// dx: what the windows over each input pixel hand back: all to the pixel they chose, or, with `chosen` null, equal
// shares.
template <int N, typename T>
__device__ inline void pool_gradient(const T* dy, const u32* chosen, T* dx, const Windows& s) {
    float share = chosen ? 1.0f : 1.0f / (float)(s.kernel * s.kernel);
    u32 packs = s.c / N, iy = blockIdx.x % s.h;
    u64 image = (u64)(blockIdx.x / s.h) * s.oh * s.ow * packs, row = (u64)blockIdx.x * s.w * packs;
    Reach y = reach(iy, s.kernel, s.stride, s.padding, s.oh);
    for (u32 i = threadIdx.x; i < s.w * packs; i += blockDim.x) {
        u32 ix = i / packs, channels = i % packs;
        Reach x = reach(ix, s.kernel, s.stride, s.padding, s.ow);
        float sum[N] = {};
        // Windows in descending order see the pixel at ascending places.
        for (u32 oy = y.last; oy-- > y.first;) {
            for (u32 ox = x.last; ox-- > x.first;) {
                u64 at = image + (u64)(oy * s.ow + ox) * packs + channels;
                Pack<T, N> incoming = pack<N>(dy, at);
                u32 place = (iy + s.padding - oy * s.stride) * s.kernel + ix + s.padding - ox * s.stride;
                Pack<u32, N> places;
                if (chosen) places = pack<N>(chosen, at);
                for (int k = 0; k < N; ++k) {
                    if (!chosen || places.at[k] == place) sum[k] += load(incoming.at[k]) * share;
                }
            }
        }
        Pack<T, N> result;
        for (int k = 0; k < N; ++k) store(&result.at[k], sum[k]);
        unpack(result, dx, row + i);
    }
}

// y (n, oh, ow, c); padding counts as zeros.
template <int N, typename T>
__device__ inline void average_pool(const T* x, T* y, const Windows& s) {
    u32 packs = s.c / N, oy = blockIdx.x % s.oh;
    const T* image = x + (u64)(blockIdx.x / s.oh) * s.h * s.w * s.c;
    u64 row = (u64)blockIdx.x * s.ow * packs;
    for (u32 i = threadIdx.x; i < s.ow * packs; i += blockDim.x) {
        u32 ox = i / packs, channels = i % packs;
        float sum[N] = {};
        over_window(s, oy, ox, [&](u32, u32 pixel) {
            Pack<T, N> from = pack<N>(image, (u64)pixel * packs + channels);
            for (int k = 0; k < N; ++k) sum[k] += load(from.at[k]);
        });
        Pack<T, N> result;
        for (int k = 0; k < N; ++k) store(&result.at[k], sum[k] / (float)(s.kernel * s.kernel));
        unpack(result, y, row + i);
    }
}

// y (n, c): the mean over the pixels of each image.
template <typename T>
__device__ inline void global_average_pool(const T* x, float* y, u64 pixels, u64 c, u64 n) {
    FOR_EACH(i, n) {
        u64 image = i / c, channel = i % c;
        float sum = 0.0f;
        for (u64 pixel = 0; pixel < pixels; ++pixel) sum += load(x[(image * pixels + pixel) * c + channel]);
        y[i] = sum / (float)pixels;
    }
}

template <typename T>
__device__ inline void global_average_pool_gradient(const float* dy, T* dx, u64 pixels, u64 c, u64 n) {
    FOR_EACH(i, n) store(&dx[i], dy[i / (pixels * c) * c + i % c] / (float)pixels);
}

#define WINDOWS u64 h, u64 w, u64 c, u64 oh, u64 ow, u64 kernel, u64 stride, u64 padding
#define AS_WINDOWS {(u32)h, (u32)w, (u32)c, (u32)oh, (u32)ow, (u32)kernel, (u32)stride, (u32)padding}

#define POOL_KERNELS(NAME, T) \
    KERNEL max_pool_##NAME(const T* x, T* y, u32* chosen, WINDOWS) { \
        Windows s = AS_WINDOWS; \
        if (c % 4 == 0 && fits_four(x) && fits_four(y)) max_pool<4>(x, y, chosen, s); \
        else max_pool<1>(x, y, chosen, s); \
    } \
    KERNEL pool_gradient_##NAME(const T* dy, const u32* chosen, T* dx, WINDOWS) { \
        Windows s = AS_WINDOWS; \
        if (c % 4 == 0 && fits_four(dy) && fits_four(chosen)) pool_gradient<4>(dy, chosen, dx, s); \
        else pool_gradient<1>(dy, chosen, dx, s); \
    } \
    KERNEL average_pool_##NAME(const T* x, T* y, WINDOWS) { \
        Windows s = AS_WINDOWS; \
        if (c % 4 == 0 && fits_four(x) && fits_four(y)) average_pool<4>(x, y, s); \
        else average_pool<1>(x, y, s); \
    } \
    KERNEL global_average_pool_##NAME(const T* x, float* y, u64 pixels, u64 c, u64 n) { \
        global_average_pool(x, y, pixels, c, n); \
    } \
    KERNEL global_average_pool_gradient_##NAME(const float* dy, T* dx, u64 pixels, u64 c, u64 n) { \
        global_average_pool_gradient(dy, dx, pixels, c, n); \
    }
FOR_ALL_TYPES(POOL_KERNELS)
