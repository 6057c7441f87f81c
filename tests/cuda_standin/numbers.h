// The cards' numbers of 16 bits, which compute as f32 and round.

#pragma once

#include <cstdint>
#include <cstring>

struct bf16 {
    uint16_t bits;
    bf16() = default;
    bf16(float value) {
        uint32_t wide;
        memcpy(&wide, &value, 4);
        bits = value != value ? 0x7fff : (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
    }
    operator float() const {
        uint32_t wide = (uint32_t)bits << 16;
        float value;
        memcpy(&value, &wide, 4);
        return value;
    }
};

typedef _Float16 f16;

// What sums of such numbers are kept in.
template <typename T> struct WideOf { typedef T type; };
template <> struct WideOf<bf16> { typedef float type; };
template <> struct WideOf<f16> { typedef float type; };
template <typename T> using Wide = typename WideOf<T>::type;
