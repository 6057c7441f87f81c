// Convolutions of groups of few channels, channels last: each output is gathered by one thread, sums are f32.

// As `GroupedShape` in ops/cuda/kernel_args.rs: x (n, h, w, ci), weight (co, kh, kw, ci / groups), y (n, oh, ow, co).
struct GroupedShape {
    u32 n, h, w, ci, oh, ow, co, kh, kw;
    u32 stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w, groups;
};

// Position that a tap of an output pixel reads along one axis; before the image numbers wrap, and so lie outside.
__device__ inline u32 read_at(u32 out, u32 tap, u32 stride, u32 padding, u32 dilation) {
    return out * stride + tap * dilation - padding;
}

// The output pixel of which a tap reads an input pixel along one axis, or `outside`.
__device__ inline u32 read_by(u32 in, u32 tap, u32 stride, u32 padding, u32 dilation, u32 outside) {
    u32 shifted = in + padding, back = tap * dilation;
    if (shifted < back || (shifted - back) % stride != 0) return outside;
    return (shifted - back) / stride;
}

template <typename T>
__device__ inline void grouped_forward(const T* x, const T* weight, T* y, GroupedShape s, u64 n) {
    u32 inputs = s.ci / s.groups, outputs = s.co / s.groups;
    FOR_EACH(i, n) {
        u32 channel = i % s.co, ox = i / s.co % s.ow, oy = i / s.co / s.ow % s.oh;
        u64 image = i / s.co / s.ow / s.oh;
        u32 first = channel / outputs * inputs;
        float sum = 0.0f;
        for (u32 ky = 0; ky < s.kh; ++ky) {
            u32 iy = read_at(oy, ky, s.stride_h, s.padding_h, s.dilation_h);
            for (u32 kx = 0; kx < s.kw && iy < s.h; ++kx) {
                u32 ix = read_at(ox, kx, s.stride_w, s.padding_w, s.dilation_w);
                if (ix >= s.w) continue;
                const T* from = x + ((image * s.h + iy) * s.w + ix) * s.ci + first;
                const T* by = weight + (((u64)channel * s.kh + ky) * s.kw + kx) * inputs;
                for (u32 j = 0; j < inputs; ++j) sum += load(from[j]) * load(by[j]);
            }
        }
        store(&y[i], sum);
    }
}

template <typename T>
__device__ inline void grouped_data(const T* weight, const T* dy, T* dx, GroupedShape s, u64 n) {
    u32 inputs = s.ci / s.groups, outputs = s.co / s.groups;
    FOR_EACH(i, n) {
        u32 channel = i % s.ci, ix = i / s.ci % s.w, iy = i / s.ci / s.w % s.h;
        u64 image = i / s.ci / s.w / s.h;
        u32 first = channel / inputs * outputs, input = channel % inputs;
        float sum = 0.0f;
        for (u32 ky = 0; ky < s.kh; ++ky) {
            u32 oy = read_by(iy, ky, s.stride_h, s.padding_h, s.dilation_h, s.oh);
            for (u32 kx = 0; kx < s.kw && oy < s.oh; ++kx) {
                u32 ox = read_by(ix, kx, s.stride_w, s.padding_w, s.dilation_w, s.ow);
                if (ox >= s.ow) continue;
                const T* from = dy + ((image * s.oh + oy) * s.ow + ox) * s.co + first;
                for (u32 j = 0; j < outputs; ++j) {
                    u64 at = (((u64)(first + j) * s.kh + ky) * s.kw + kx) * inputs + input;
                    sum += load(from[j]) * load(weight[at]);
                }
            }
        }
        store(&dx[i], sum);
    }
}

// Sums over chunks of output pixels: partial (chunks, taps x inputs, co). Blocks as in columns.cu, a z for each tap and
// input of a group.
template <typename T>
__device__ inline void grouped_filter(
    const T* x, const T* dy, float* partial, GroupedShape s, u64 pixels, u64 pixels_per_chunk
) {
    Span span_ = span(pixels, pixels_per_chunk);
    u32 inputs = s.ci / s.groups, outputs = s.co / s.groups;
    u32 tap = blockIdx.z / inputs, input = blockIdx.z % inputs, channel = (u32)span_.column;
    u32 from = channel / outputs * inputs + input;
    float sum = 0.0f;
    for (u64 pixel = span_.first + threadIdx.y; channel < s.co && pixel < span_.last; pixel += LANES) {
        Index at = {pixel};
        u32 ox = at % s.ow, oy = at / s.ow % s.oh;
        u64 image = at / s.ow / s.oh;
        u32 iy = read_at(oy, tap / s.kw, s.stride_h, s.padding_h, s.dilation_h);
        u32 ix = read_at(ox, tap % s.kw, s.stride_w, s.padding_w, s.dilation_w);
        if (iy >= s.h || ix >= s.w) continue;
        sum += load(x[((image * s.h + iy) * s.w + ix) * s.ci + from]) * load(dy[pixel * s.co + channel]);
    }
    sum = lane_sum(sum);
    u64 row = (u64)blockIdx.y * s.kh * s.kw * inputs + blockIdx.z;
    if (threadIdx.y == 0 && channel < s.co) partial[row * s.co + channel] = sum;
}

// (taps x inputs, co) as (co, taps, inputs).
template <typename T>
__device__ inline void grouped_order(const float* sums, T* dw, u64 co, u64 per_output, u64 n) {
    FOR_EACH(i, n) store(&dw[i], sums[i % per_output * co + i / per_output]);
}

#define GROUPED(NAME, T) \
    KERNEL grouped_forward_##NAME(const T* x, const T* weight, T* y, GroupedShape s, u64 n) { \
        grouped_forward(x, weight, y, s, n); \
    } \
    KERNEL grouped_data_##NAME(const T* weight, const T* dy, T* dx, GroupedShape s, u64 n) { \
        grouped_data(weight, dy, dx, s, n); \
    } \
    KERNEL grouped_filter_##NAME( \
        const T* x, const T* dy, float* partial, GroupedShape s, u64 pixels, u64 pixels_per_chunk \
    ) { \
        grouped_filter(x, dy, partial, s, pixels, pixels_per_chunk); \
    } \
    KERNEL grouped_order_##NAME(const float* sums, T* dw, u64 co, u64 per_output, u64 n) { \
        grouped_order(sums, dw, co, per_output, n); \
    }
FOR_ALL_TYPES(GROUPED)
