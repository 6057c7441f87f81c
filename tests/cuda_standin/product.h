// Products of matrices, f32 inside, in a fixed order.

#pragma once

#include <cstddef>

namespace standin {

// c (n, m) = sum over k of a (k, m) b (n, k): each sum in the order of k.
void product(size_t m, size_t n, size_t k, const float* a, const float* b, float* c);

}  // namespace standin
