// Candle's kernels that reduce rows, and those that go by indices.

#include <vector>

#include "candle_kernel.h"

using standin::Layout;

namespace {

// Rows of `width` elements, of which there are n / width.
template <typename T>
void sums(size_t n, size_t width, size_t dims, const size_t* info, const T* in, T* out) {
    Layout at(dims, info);
    for (size_t row = 0; row * width < n; ++row) {
        // As Candle: a sum for each of up to 1024 threads, which a tree adds.
        size_t threads = 1;
        while (threads < std::min<size_t>(width, 1024)) threads *= 2;
        std::vector<Wide<T>> partial(threads, 0);
        for (size_t i = 0; i < width; ++i) partial[i % threads] += (Wide<T>)in[at(row * width + i)];
        for (size_t half = threads / 2; half > 0; half /= 2) {
            for (size_t i = 0; i < half; ++i) partial[i] += partial[i + half];
        }
        out[row] = (T)partial[0];
    }
}

// Here n counts rows.
template <typename T>
void small_sums(size_t n, size_t width, size_t dims, const size_t* info, const T* in, T* out) {
    Layout at(dims, info);
    for (size_t row = 0; row < n; ++row) {
        Wide<T> sum = 0;
        for (size_t i = 0; i < width; ++i) sum += (Wide<T>)in[at(row * width + i)];
        out[row] = (T)sum;
    }
}

constexpr auto larger = [](auto x, auto y) { return x > y; };
constexpr auto smaller = [](auto x, auto y) { return x < y; };

template <typename T, typename O, auto BETTER, bool IS_INDEX>
void best(size_t n, size_t width, size_t dims, const size_t* info, const T* in, O* out) {
    Layout at(dims, info);
    for (size_t row = 0; row * width < n; ++row) {
        size_t found = 0;
        for (size_t i = 1; i < width; ++i) {
            if (BETTER((Wide<T>)in[at(row * width + i)], (Wide<T>)in[at(row * width + found)])) found = i;
        }
        if constexpr (IS_INDEX) out[row] = (O)found;
        else out[row] = in[at(row * width + found)];
    }
}

// The largest index stands for nothing.
template <typename I> bool is_nothing(I index) { return index == (I)(std::is_signed_v<I> ? (I)(~0ull >> 1) : (I)~0ull); }

template <typename T, typename I>
void index_select(
    size_t n, size_t dims, const size_t* info, const I* ids, const T* in, T* out,
    size_t left, size_t from, size_t count, size_t right
) {
    (void)left;
    Layout at(dims, info);
    for (size_t i = 0; i < n; ++i) {
        I id = ids[at(i / right % count)];
        out[i] = is_nothing(id) ? (T)0 : in[(i / (count * right) * from + (size_t)id) * right + i % right];
    }
}

template <typename T, typename I>
void gather(size_t n, const I* ids, const T* in, T* out, size_t left, size_t from, size_t count, size_t right) {
    (void)left;
    for (size_t i = 0; i < n; ++i) {
        out[i] = is_nothing(ids[i]) ? (T)0 : in[(i / (count * right) * from + (size_t)ids[i]) * right + i % right];
    }
}

template <typename T, typename I>
void index_add(const I* ids, size_t count, const T* in, T* out, size_t left, size_t, size_t to, size_t right) {
    for (size_t i = 0; i < left * right; ++i) {
        for (size_t j = 0; j < count; ++j) {
            if (is_nothing(ids[j])) continue;
            T& place = out[(i / right * to + (size_t)ids[j]) * right + i % right];
            place = (T)((Wide<T>)place + (Wide<T>)in[(i / right * count + j) * right + i % right]);
        }
    }
}

template <typename T, typename I, bool ADDS>
void scatter(const I* ids, const T* in, T* out, size_t left, size_t count, size_t to, size_t right) {
    for (size_t i = 0; i < left * right; ++i) {
        for (size_t j = 0; j < count; ++j) {
            size_t at = (i / right * count + j) * right + i % right;
            if (is_nothing(ids[at])) continue;
            T& place = out[(i / right * to + (size_t)ids[at]) * right + i % right];
            place = ADDS ? (T)((Wide<T>)place + (Wide<T>)in[at]) : in[at];
        }
    }
}

}  // namespace

#define OF_NUMBERS(N, T) \
    CANDLE_KERNEL(fast_sum_##N, sums<T>) \
    CANDLE_KERNEL(fast_sum_small_##N, small_sums<T>) \
    CANDLE_KERNEL(fast_max_##N, best<T, T, larger, false>) \
    CANDLE_KERNEL(fast_min_##N, best<T, T, smaller, false>) \
    CANDLE_KERNEL(fast_argmax_##N, best<T, uint32_t, larger, true>) \
    CANDLE_KERNEL(fast_argmin_##N, best<T, uint32_t, smaller, true>) \
    BY_INDEX(N, T, u8, uint8_t) BY_INDEX(N, T, u32, uint32_t) BY_INDEX(N, T, i64, int64_t)
#define BY_INDEX(N, T, I_NAME, I) \
    CANDLE_KERNEL(is_##I_NAME##_##N, index_select<T, I>) \
    CANDLE_KERNEL(gather_##I_NAME##_##N, gather<T, I>) \
    CANDLE_KERNEL(ia_##I_NAME##_##N, index_add<T, I>) \
    CANDLE_KERNEL(sa_##I_NAME##_##N, scatter<T, I, true>) \
    CANDLE_KERNEL(s_##I_NAME##_##N, scatter<T, I, false>)
ALL_NUMBERS(OF_NUMBERS)
