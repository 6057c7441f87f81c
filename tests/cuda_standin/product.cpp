// Products of matrices: tiles of 4 x 32 sums, which the compiler keeps in vectors.

#include "product.h"

#include <algorithm>

namespace standin {
namespace {

constexpr size_t ROWS = 4, COLUMNS = 32;

void tile(size_t m, size_t k, const float* a, const float* b, float* c) {
    float sums[ROWS][COLUMNS] = {};
    for (size_t i = 0; i < k; ++i) {
        for (size_t row = 0; row < ROWS; ++row) {
            float factor = b[row * k + i];
            for (size_t column = 0; column < COLUMNS; ++column) sums[row][column] += factor * a[i * m + column];
        }
    }
    for (size_t row = 0; row < ROWS; ++row) std::copy_n(sums[row], COLUMNS, c + row * m);
}

void edge(size_t m, size_t k, size_t rows, size_t columns, const float* a, const float* b, float* c) {
    for (size_t row = 0; row < rows; ++row) {
        float sums[COLUMNS] = {};
        for (size_t i = 0; i < k; ++i) {
            for (size_t column = 0; column < columns; ++column) sums[column] += b[row * k + i] * a[i * m + column];
        }
        std::copy_n(sums, columns, c + row * m);
    }
}

}  // namespace

void product(size_t m, size_t n, size_t k, const float* a, const float* b, float* c) {
    for (size_t column = 0; column < m; column += COLUMNS) {
        size_t columns = std::min(COLUMNS, m - column);
        for (size_t row = 0; row < n; row += ROWS) {
            size_t rows = std::min(ROWS, n - row);
            if (rows == ROWS && columns == COLUMNS) tile(m, k, a + column, b + row * k, c + row * m + column);
            else edge(m, k, rows, columns, a + column, b + row * k, c + row * m + column);
        }
    }
}

}  // namespace standin
