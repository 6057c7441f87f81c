// Candle's kernels that work on single elements: affine, fill, copy, cast, unary, binary, where.

#include <cmath>

#include "candle_kernel.h"

using standin::Layout;

namespace {

template <typename T>
void affine(size_t n, size_t dims, const size_t* info, const T* in, T* out, T factor, T summand) {
    Layout at(dims, info);
    for (size_t i = 0; i < n; ++i) out[i] = (T)((Wide<T>)in[at(i)] * (Wide<T>)factor + (Wide<T>)summand);
}

template <typename T>
void const_set(size_t n, size_t dims, const size_t* info, T value, T* out) {
    Layout at(dims, info);
    for (size_t i = 0; i < n; ++i) out[at(i)] = value;
}

template <typename T>
void copy2d(const T* from, T* to, uint32_t rows, uint32_t columns, uint32_t from_stride, uint32_t to_stride) {
    for (size_t row = 0; row < rows; ++row) {
        for (size_t column = 0; column < columns; ++column) to[row * to_stride + column] = from[row * from_stride + column];
    }
}

template <typename S, typename T>
void cast(size_t n, size_t dims, const size_t* info, const S* in, T* out) {
    Layout at(dims, info);
    for (size_t i = 0; i < n; ++i) out[i] = (T)(Wide<S>)in[at(i)];
}

template <typename T, auto FUNCTION>
void unary(size_t n, size_t dims, const size_t* info, const T* in, T* out) {
    Layout at(dims, info);
    for (size_t i = 0; i < n; ++i) out[i] = (T)FUNCTION((Wide<T>)in[at(i)]);
}

template <typename T, auto FUNCTION>
void unary_with(size_t n, size_t dims, const size_t* info, T parameter, const T* in, T* out) {
    Layout at(dims, info);
    for (size_t i = 0; i < n; ++i) out[i] = (T)FUNCTION((Wide<T>)in[at(i)], (Wide<T>)parameter);
}

template <typename T, typename O, auto FUNCTION>
void binary(size_t n, size_t dims, const size_t* info, const T* left, const T* right, O* out) {
    Layout of_left(dims, info, 0), of_right(dims, info, 1);
    for (size_t i = 0; i < n; ++i) out[i] = (O)FUNCTION((Wide<T>)left[of_left(i)], (Wide<T>)right[of_right(i)]);
}

template <typename T, typename C>
void where(size_t n, size_t dims, const size_t* info, const C* condition, const T* yes, const T* no, T* out) {
    Layout at(dims, info, 0), of_yes(dims, info, 1), of_no(dims, info, 2);
    for (size_t i = 0; i < n; ++i) out[i] = condition[at(i)] ? yes[of_yes(i)] : no[of_no(i)];
}

constexpr auto same = [](auto x) { return x; };
constexpr auto negative = [](auto x) { return -x; };
constexpr auto reciprocal = [](auto x) { return 1 / x; };
constexpr auto exponential = [](auto x) { return std::exp(x); };
constexpr auto logarithm = [](auto x) { return std::log(x); };
constexpr auto sine = [](auto x) { return std::sin(x); };
constexpr auto cosine = [](auto x) { return std::cos(x); };
constexpr auto hyperbolic = [](auto x) { return std::tanh(x); };
constexpr auto error_function = [](auto x) { return std::erf(x); };
constexpr auto ceiling = [](auto x) { return std::ceil(x); };
constexpr auto down = [](auto x) { return std::floor(x); };
constexpr auto nearest = [](auto x) { return std::round(x); };
constexpr auto absolute = [](auto x) { return std::fabs(x); };
constexpr auto square = [](auto x) { return x * x; };
constexpr auto root = [](auto x) { return std::sqrt(x); };
constexpr auto gelu = [](auto x) { return x / 2 * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); };
constexpr auto gelu_erf = [](auto x) { return x / 2 * (1 + std::erf(x * M_SQRT1_2)); };
constexpr auto rectified = [](auto x) { return std::fmax(x, decltype(x)(0)); };
constexpr auto silu = [](auto x) { return x / (1 + std::exp(-x)); };
constexpr auto sigmoid = [](auto x) { return 1 / (1 + std::exp(-x)); };
constexpr auto sign = [](auto x) { return (x > 0) - (x < 0); };
constexpr auto power = [](auto x, auto e) { return std::pow(x, e); };
constexpr auto elu = [](auto x, auto alpha) { return x > 0 ? x : alpha * (std::exp(x) - 1); };

constexpr auto sum = [](auto x, auto y) { return x + y; };
constexpr auto difference = [](auto x, auto y) { return x - y; };
constexpr auto product = [](auto x, auto y) { return x * y; };
constexpr auto quotient = [](auto x, auto y) { return x / y; };
constexpr auto larger = [](auto x, auto y) { return x > y || x != x ? x : y; };
constexpr auto smaller = [](auto x, auto y) { return x < y || x != x ? x : y; };
constexpr auto equal = [](auto x, auto y) { return x == y; };
constexpr auto unequal = [](auto x, auto y) { return x != y; };
constexpr auto less = [](auto x, auto y) { return x < y; };
constexpr auto less_or_equal = [](auto x, auto y) { return x <= y; };
constexpr auto greater = [](auto x, auto y) { return x > y; };
constexpr auto greater_or_equal = [](auto x, auto y) { return x >= y; };

}  // namespace

#define OF_NUMBERS(N, T) \
    CANDLE_KERNEL(affine_##N, affine<T>) \
    CANDLE_KERNEL(const_set_##N, const_set<T>) \
    CANDLE_KERNEL(copy2d_##N, copy2d<T>) \
    CANDLE_KERNEL(ucopy_##N, unary<T, same>) \
    CANDLE_KERNEL(badd_##N, binary<T, T, sum>) \
    CANDLE_KERNEL(bsub_##N, binary<T, T, difference>) \
    CANDLE_KERNEL(bmul_##N, binary<T, T, product>) \
    CANDLE_KERNEL(bdiv_##N, binary<T, T, quotient>) \
    CANDLE_KERNEL(bmaximum_##N, binary<T, T, larger>) \
    CANDLE_KERNEL(bminimum_##N, binary<T, T, smaller>) \
    CANDLE_KERNEL(eq_##N, binary<T, uint8_t, equal>) \
    CANDLE_KERNEL(ne_##N, binary<T, uint8_t, unequal>) \
    CANDLE_KERNEL(lt_##N, binary<T, uint8_t, less>) \
    CANDLE_KERNEL(le_##N, binary<T, uint8_t, less_or_equal>) \
    CANDLE_KERNEL(gt_##N, binary<T, uint8_t, greater>) \
    CANDLE_KERNEL(ge_##N, binary<T, uint8_t, greater_or_equal>) \
    CANDLE_KERNEL(where_u8_##N, where<T, uint8_t>) \
    CANDLE_KERNEL(where_u32_##N, where<T, uint32_t>) \
    CANDLE_KERNEL(where_i64_##N, where<T, int64_t>)
ALL_NUMBERS(OF_NUMBERS)

#define OF_FLOATS(N, T) \
    CANDLE_KERNEL(uneg_##N, unary<T, negative>) \
    CANDLE_KERNEL(urecip_##N, unary<T, reciprocal>) \
    CANDLE_KERNEL(uexp_##N, unary<T, exponential>) \
    CANDLE_KERNEL(ulog_##N, unary<T, logarithm>) \
    CANDLE_KERNEL(usin_##N, unary<T, sine>) \
    CANDLE_KERNEL(ucos_##N, unary<T, cosine>) \
    CANDLE_KERNEL(utanh_##N, unary<T, hyperbolic>) \
    CANDLE_KERNEL(uerf_##N, unary<T, error_function>) \
    CANDLE_KERNEL(uceil_##N, unary<T, ceiling>) \
    CANDLE_KERNEL(ufloor_##N, unary<T, down>) \
    CANDLE_KERNEL(uround_##N, unary<T, nearest>) \
    CANDLE_KERNEL(uabs_##N, unary<T, absolute>) \
    CANDLE_KERNEL(usqr_##N, unary<T, square>) \
    CANDLE_KERNEL(usqrt_##N, unary<T, root>) \
    CANDLE_KERNEL(ugelu_##N, unary<T, gelu>) \
    CANDLE_KERNEL(ugelu_erf_##N, unary<T, gelu_erf>) \
    CANDLE_KERNEL(urelu_##N, unary<T, rectified>) \
    CANDLE_KERNEL(usilu_##N, unary<T, silu>) \
    CANDLE_KERNEL(usigmoid_##N, unary<T, sigmoid>) \
    CANDLE_KERNEL(usign_##N, unary<T, sign>) \
    CANDLE_KERNEL(upowf_##N, unary_with<T, power>) \
    CANDLE_KERNEL(uelu_##N, unary_with<T, elu>)
FLOATS(OF_FLOATS)

// Candle has no kernel for those that are not here: 16 bits and i64.
#define FROM_ALL(N, T) \
    CANDLE_KERNEL(cast_##N##_f32, cast<T, float>) \
    CANDLE_KERNEL(cast_##N##_f64, cast<T, double>) \
    CANDLE_KERNEL(cast_##N##_u8, cast<T, uint8_t>) \
    CANDLE_KERNEL(cast_##N##_u32, cast<T, uint32_t>)
ALL_NUMBERS(FROM_ALL)
#define INTO_HALF(N, T) \
    CANDLE_KERNEL(cast_##N##_bf16, cast<T, bf16>) \
    CANDLE_KERNEL(cast_##N##_f16, cast<T, f16>)
FLOATS(INTO_HALF)
INTO_HALF(u8, uint8_t)
INTO_HALF(u32, uint32_t)
#define INTO_I64(N, T) CANDLE_KERNEL(cast_##N##_i64, cast<T, int64_t>)
INTO_I64(f32, float)
INTO_I64(f64, double)
INTO_I64(u8, uint8_t)
INTO_I64(u32, uint32_t)
INTO_I64(i64, int64_t)
