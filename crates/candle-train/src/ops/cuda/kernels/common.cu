// Definitions that all kernels share: number types, sums over a block, random numbers.
//
// Values are read and written as f32, bf16 or f16; sums are f32 or f64, always in the same order, so that
// equal inputs give equal bits. nvrtc compiles this text without any header.

typedef unsigned int u32;
typedef unsigned long long u64;

struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };

__device__ inline float load(float value) { return value; }
__device__ inline float load(bf16 value) { return __uint_as_float((u32)value.bits << 16); }

__device__ inline void store(float* place, float value) { *place = value; }

#ifdef __CUDACC__
// To the nearest, ties to even; NaN is 0x7fff.
__device__ inline void store(bf16* place, float value) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(place->bits) : "f"(value));
}

__device__ inline float load(f16 value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}

__device__ inline void store(f16* place, float value) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(place->bits) : "f"(value));
}
#else
__device__ inline void store(bf16* place, float value) {
    u32 bits = __float_as_uint(value);
    u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    place->bits = (unsigned short)(value != value ? 0x7fffu : rounded);
}
#endif

// The value as T holds it.
template <typename T>
__device__ inline float rounded(float value) {
    T held;
    store(&held, value);
    return load(held);
}

// Instances of a kernel for all three number types, as name_f32, name_bf16 and name_f16.
#define FOR_ALL_TYPES(INSTANCE) INSTANCE(f32, float) INSTANCE(bf16, bf16) INSTANCE(f16, f16)

// Less than every number.
#define NO_VALUE __int_as_float(0xff800000)

#define KERNEL extern "C" __global__ void

// A position among elements. Divisions of 64 bits are slow on a GPU, and few tensors need them.
struct Index {
    u64 at;
    __device__ operator u64() const { return at; }
};

template <typename N>
__device__ inline Index operator/(Index i, N by) {
    return {(i.at | by) >> 32 ? i.at / by : (u32)i.at / (u32)by};
}

template <typename N>
__device__ inline Index operator%(Index i, N by) {
    return {(i.at | by) >> 32 ? i.at % by : (u32)i.at % (u32)by};
}

// Positions of a grid that strides over `n` elements.
#define FOR_EACH(i, n) \
    for (Index i = {(u64)blockIdx.x * blockDim.x + threadIdx.x}; i.at < (n); i.at += (u64)gridDim.x * blockDim.x)

// N neighbours, which a thread reads or writes at once.
template <typename T, int N>
struct alignas(N * sizeof(T)) Pack { T at[N]; };

template <int N, typename T>
__device__ inline Pack<T, N> pack(const T* x, u64 i) { return ((const Pack<T, N>*)x)[i]; }

template <int N, typename T>
__device__ inline void unpack(const Pack<T, N>& values, T* y, u64 i) { ((Pack<T, N>*)y)[i] = values; }

// True if packs of four may begin at `x`, or it is null.
template <typename T>
__device__ inline bool fits_four(const T* x) { return (u64)x % sizeof(Pack<T, 4>) == 0; }

// y = x, or factor x, each in its own type; four at a time where both begin at such a place. Without a factor, f32 keeps all
// bits: some are no f32.
template <bool SCALES, typename A, typename B>
__device__ inline void converted(const A* x, B* y, float factor, u64 n) {
    u64 fours = fits_four(x) && fits_four(y) ? n / 4 : 0;
    FOR_EACH(i, fours) {
        Pack<A, 4> from = pack<4>(x, i);
        Pack<B, 4> to;
        for (int k = 0; k < 4; ++k) store(&to.at[k], SCALES ? factor * load(from.at[k]) : load(from.at[k]));
        unpack(to, y, i);
    }
    FOR_EACH(rest, n - 4 * fours) {
        u64 i = 4 * fours + rest;
        store(&y[i], SCALES ? factor * load(x[i]) : load(x[i]));
    }
}

// y = of(x, place) for n values, four at a time where both begin at such a place; y may be x.
template <typename F>
__device__ inline void each(const float* x, float* y, u64 n, F of) {
    u64 fours = fits_four(x) && fits_four(y) ? n / 4 : 0;
    FOR_EACH(i, fours) {
        Pack<float, 4> values = pack<4>(x, i);
        for (int k = 0; k < 4; ++k) values.at[k] = of(values.at[k], 4 * i.at + k);
        unpack(values, y, i);
    }
    FOR_EACH(rest, n - 4 * fours) {
        u64 i = 4 * fours + rest;
        y[i] = of(x[i], i);
    }
}

// y = of(x, y), in the same way.
template <typename F>
__device__ inline void each_pair(const float* x, float* y, u64 n, F of) {
    u64 fours = fits_four(x) && fits_four(y) ? n / 4 : 0;
    FOR_EACH(i, fours) {
        Pack<float, 4> values = pack<4>(x, i), result = pack<4>(y, i);
        for (int k = 0; k < 4; ++k) result.at[k] = of(values.at[k], result.at[k]);
        unpack(result, y, i);
    }
    FOR_EACH(rest, n - 4 * fours) {
        u64 i = 4 * fours + rest;
        y[i] = of(x[i], y[i]);
    }
}

// e^x with an error of some 1e-7 (1 + |x|) of it, for sums of exponentials and their shares; 0 where it is below 2^-126.
#ifdef __CUDACC__
__device__ inline float exponential(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}
#else
inline float exponential(float x) { return expf(x); }
#endif

// Threads of most blocks that work on one row. Others have another multiple of 32.
#define ROW_THREADS 256
#define MAX_WARPS 32

// The value of the thread of the same warp whose number differs by `step`, a power of two. All threads of a block call it.
#ifdef __CUDACC__
template <typename T>
__device__ inline T other_lane(T value, u32 step) { return __shfl_xor_sync(0xffffffffu, value, step); }
#else
template <typename T>
inline T other_lane(T value, u32 step) {
    __shared__ T values[32 * MAX_WARPS];
    __syncthreads();
    values[threadIdx.x] = value;
    __syncthreads();
    return values[threadIdx.x ^ step];
}
#endif

// All values of the block made one, for every thread: those of a warp, then those of the warps. `with` takes two in either
// order.
template <typename T, typename F>
__device__ inline T block_fold(T value, F with) {
    __shared__ T parts[MAX_WARPS];
    for (u32 step = 16; step > 0; step /= 2) value = with(value, other_lane(value, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = parts[0];
    for (u32 warp = 1; warp < blockDim.x / 32; ++warp) value = with(value, parts[warp]);
    return value;
}

// The sum over the block, for every thread.
template <typename T>
__device__ inline T block_sum(T value) {
    return block_fold(value, [](T one, T other) { return one + other; });
}

// N sums at once.
template <int N>
__device__ inline void block_sums(float (&values)[N]) {
    __shared__ Pack<float, N> parts[MAX_WARPS];
    Pack<float, N> sums;
    for (int i = 0; i < N; ++i) sums.at[i] = values[i];
    for (u32 step = 16; step > 0; step /= 2) {
        for (int i = 0; i < N; ++i) sums.at[i] += other_lane(sums.at[i], step);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sums;
    __syncthreads();
    for (int i = 0; i < N; ++i) values[i] = 0.0f;
    for (u32 warp = 0; warp < blockDim.x / 32; ++warp) {
        Pack<float, N> part = parts[warp];
        for (int i = 0; i < N; ++i) values[i] += part.at[i];
    }
}

// The largest of the block, for every thread; NaN if there is one.
__device__ inline float block_maximum(float value) {
    return block_fold(value, [](float one, float other) { return other > one || other != other ? other : one; });
}

// Number `counter` of a stream of random bits: `train_numbers::rng::Key::bits`.
__device__ inline u64 random_bits(u64 key, u64 counter) {
    u64 z = key + (counter + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// True if dropout keeps an element: its number of 53 bits is at least `threshold`.
__device__ inline bool is_kept(u64 key, u64 element, u64 threshold) {
    return random_bits(key, element) >> 11 >= threshold;
}
