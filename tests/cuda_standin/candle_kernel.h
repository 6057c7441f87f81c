// Candle's kernels, as functions that are called once for all elements of a launch.

#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "device_code.h"
#include "numbers.h"

namespace standin {

template <auto FUNCTION> struct WholeLaunch;
template <typename... A, void (*FUNCTION)(A...)>
struct WholeLaunch<FUNCTION> {
    static constexpr size_t sizes[] = {sizeof(A)..., 0};
    static constexpr bool is_pointer[] = {std::is_pointer_v<A>..., false};

    template <size_t... I>
    static void call(void** places, std::index_sequence<I...>) { FUNCTION(argument<A>(places[I])...); }

    static bool run(const unsigned*, void** places, void* (*address)(uint64_t)) {
        host_of = address;
        call(places, std::index_sequence_for<A...>{});
        return true;
    }
};

// Where element i of a tensor lies: `info` holds dimensions, then strides; without it all is contiguous.
struct Layout {
    size_t dims;
    const size_t *sizes, *strides;

    Layout(size_t dims, const size_t* info, size_t which = 0)
        : dims(dims), sizes(info), strides(info ? info + (1 + which) * dims : nullptr) {}

    size_t operator()(size_t i) const {
        if (!sizes) return i;
        size_t at = 0;
        for (size_t d = dims; d-- > 0; i /= sizes[d]) at += i % sizes[d] * strides[d];
        return at;
    }
};

}  // namespace standin

// The function FUNCTION<...> under the kernel's name.
#define CANDLE_KERNEL(NAME, ...) \
    extern "C" __attribute__((visibility("default"))) const standin::KernelInfo standin_kernel_##NAME = { \
        sizeof(standin::WholeLaunch<__VA_ARGS__>::sizes) / sizeof(size_t) - 1, standin::WholeLaunch<__VA_ARGS__>::sizes, \
        standin::WholeLaunch<__VA_ARGS__>::is_pointer, standin::WholeLaunch<__VA_ARGS__>::run, \
    };

// For all number types, as M(name of the type, type).
#define FLOATS(M) M(f32, float) M(f64, double) M(f16, f16) M(bf16, bf16)
#define ALL_NUMBERS(M) FLOATS(M) M(u8, uint8_t) M(u32, uint32_t) M(i64, int64_t)
