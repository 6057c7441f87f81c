// cuBLAS: matrix products in all number types and orders that Candle asks for.

#include <vector>

#include "numbers.h"
#include "product.h"
#include "standin.h"

using namespace standin;

namespace {

enum { NOT_READY_YET = 1, BAD_VALUE = 7, FAILED = 13, UNSUPPORTED = 15 };
enum Type { F32 = 0, F64 = 1, F16 = 2, BF16 = 14 };
enum Compute { COMPUTE_16F = 64, COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_32F_TF32 = 77 };

struct Handle {
    void* stream = nullptr;
    Address workspace = 0;
    size_t workspace_bytes = 0;
};

// Column after column; `step` elements from one matrix of a batch to the next.
struct Matrix {
    Address at;
    int type;
    bool is_transposed;
    long rows, columns, step_column, step;
};

size_t size_of(int type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }

double read(const void* place, int type, size_t i) {
    switch (type) {
        case F64: return ((const double*)place)[i];
        case F16: return (float)((const f16*)place)[i];
        case BF16: return (float)((const bf16*)place)[i];
        default: return ((const float*)place)[i];
    }
}

void write(void* place, int type, size_t i, double value) {
    switch (type) {
        case F64: ((double*)place)[i] = value; break;
        case F16: ((f16*)place)[i] = (f16)(float)value; break;
        case BF16: ((bf16*)place)[i] = bf16((float)value); break;
        default: ((float*)place)[i] = (float)value; break;
    }
}

// Whether all of a batch lies in memory of the card. Rows and columns are those in memory.
bool fits(const Matrix& m, long batch, const char* which) {
    if (m.rows == 0 || m.columns == 0 || batch == 0) return true;
    size_t last = (batch - 1) * m.step + (m.columns - 1) * m.step_column + m.rows;
    return m.step_column >= m.rows && usable(m.at, last * size_of(m.type), which);
}

// Element (i, j) of what the product reads.
template <typename T>
std::vector<T> packed(const Matrix& m, long batch, long rows, long columns, bool by_rows) {
    const char* base = (const char*)host(m.at) + batch * m.step * size_of(m.type);
    std::vector<T> all(rows * columns);
    for (long j = 0; j < columns; ++j) {
        for (long i = 0; i < rows; ++i) {
            size_t at = m.is_transposed ? i * m.step_column + j : j * m.step_column + i;
            all[by_rows ? i * columns + j : j * rows + i] = (T)read(base, m.type, at);
        }
    }
    return all;
}

struct Product {
    long m, n, k, batch;
    double alpha, beta;
    Matrix a, b, c;

    // Column after column, so c (n, m) = a (k, m) b (n, k) for `product`.
    std::vector<double> of(long index) const {
        if (c.type == F64) {
            auto left = packed<double>(a, index, m, k, true), right = packed<double>(b, index, k, n, false);
            std::vector<double> sums(m * n, 0.0);
            for (long j = 0; j < n; ++j) {
                for (long i = 0; i < m; ++i) {
                    for (long l = 0; l < k; ++l) sums[j * m + i] += left[i * k + l] * right[j * k + l];
                }
            }
            return sums;
        }
        auto left = packed<float>(a, index, m, k, false), right = packed<float>(b, index, k, n, false);
        std::vector<float> sums(m * n);
        product(m, n, k, left.data(), right.data(), sums.data());
        return {sums.begin(), sums.end()};
    }

    void run() const {
        for (long index = 0; index < batch; ++index) {
            auto sums = of(index);
            char* out = (char*)host(c.at) + index * c.step * size_of(c.type);
            for (long j = 0; j < n; ++j) {
                for (long i = 0; i < m; ++i) {
                    size_t at = j * c.step_column + i;
                    // Where beta is 0, what lies there is not read.
                    double old = beta == 0 ? 0 : beta * read(out, c.type, at);
                    write(out, c.type, at, alpha * sums[j * m + i] + old);
                }
            }
        }
    }
};

int enqueue(Handle* handle, Product p) {
    Stream* stream = stream_of(handle->stream);
    if (faulted() || !stream) return refuse(FAILED, "cuBLAS: no stream of the current context");
    if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0) return BAD_VALUE;
    if (p.m == 0 || p.n == 0 || p.batch == 0) return SUCCESS;
    if (!fits(p.a, p.batch, "cuBLAS, a") || !fits(p.b, p.batch, "cuBLAS, b") || !fits(p.c, p.batch, "cuBLAS, c")) return BAD_VALUE;
    // A product that is recorded would allocate its work memory in the graph.
    bool lacks_memory = stream->capture && handle->workspace_bytes == 0;
    if (lacks_memory) return refuse(FAILED, "cuBLAS: a product is recorded without work memory of its own");
    Work work{.kind = KERNEL, .name = "a product of cuBLAS"};
    work.names = {p.a.at, p.b.at, p.c.at, handle->workspace};
    work.run = [=] { p.run(); };
    return submit(stream, std::move(work)) ? FAILED : SUCCESS;
}

Matrix matrix(const void* at, int type, int transposed, long rows, long columns, int step_column, long step) {
    if (transposed) std::swap(rows, columns);
    return {(Address)at, type, transposed != 0, rows, columns, step_column, step};
}

template <typename T>
int same_type(
    Handle* handle, int type, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, int lda, long sa, const T* b, int ldb,
    long sb, const T* beta, T* c, int ldc, long sc, int batch
) {
    return enqueue(handle, {m, n, k, batch, *alpha, *beta, matrix(a, type, ta, m, k, lda, sa),
        matrix(b, type, tb, k, n, ldb, sb), matrix(c, type, 0, m, n, ldc, sc)});
}

}  // namespace

API int cublasCreate_v2(Handle** handle) {
    if (!current()) return refuse(NOT_READY_YET, "cuBLAS: no context is current in this thread");
    *handle = new Handle;
    return SUCCESS;
}

API int cublasDestroy_v2(Handle* handle) {
    delete handle;
    return SUCCESS;
}

API int cublasSetStream_v2(Handle* handle, void* stream) {
    // As cuBLAS: another stream, and its work memory is forgotten.
    *handle = {.stream = stream};
    return SUCCESS;
}

API int cublasSetWorkspace_v2(Handle* handle, void* at, size_t bytes) {
    if (!usable((Address)at, bytes, "cublasSetWorkspace") || (Address)at % 256) return BAD_VALUE;
    handle->workspace = (Address)at;
    handle->workspace_bytes = bytes;
    return SUCCESS;
}

API int cublasSgemm_v2(
    Handle* handle, int ta, int tb, int m, int n, int k, const float* alpha, const float* a, int lda, const float* b, int ldb,
    const float* beta, float* c, int ldc
) {
    return same_type(handle, F32, ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);
}

API int cublasDgemm_v2(
    Handle* handle, int ta, int tb, int m, int n, int k, const double* alpha, const double* a, int lda, const double* b, int ldb,
    const double* beta, double* c, int ldc
) {
    return same_type(handle, F64, ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);
}

API int cublasSgemmStridedBatched(
    Handle* handle, int ta, int tb, int m, int n, int k, const float* alpha, const float* a, int lda, long long sa, const float* b,
    int ldb, long long sb, const float* beta, float* c, int ldc, long long sc, int batch
) {
    return same_type(handle, F32, ta, tb, m, n, k, alpha, a, lda, sa, b, ldb, sb, beta, c, ldc, sc, batch);
}

API int cublasDgemmStridedBatched(
    Handle* handle, int ta, int tb, int m, int n, int k, const double* alpha, const double* a, int lda, long long sa, const double* b,
    int ldb, long long sb, const double* beta, double* c, int ldc, long long sc, int batch
) {
    return same_type(handle, F64, ta, tb, m, n, k, alpha, a, lda, sa, b, ldb, sb, beta, c, ldc, sc, batch);
}

API int cublasGemmStridedBatchedEx(
    Handle* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a, int lda, long long sa,
    const void* b, int type_b, int ldb, long long sb, const void* beta, void* c, int type_c, int ldc, long long sc, int batch,
    int compute, int
) {
    bool is_half = type_a == F16 || type_a == BF16;
    bool is_wider = is_half && type_c == F32 && compute == COMPUTE_32F;
    bool is_allowed = type_a == type_b && (type_a == type_c || is_wider) &&
        (compute == COMPUTE_32F ? type_a != F64 : compute == COMPUTE_32F_TF32 ? type_a == F32
            : compute == COMPUTE_16F ? type_a == F16 : compute == COMPUTE_64F ? type_a == F64 : is_half);
    if (!is_allowed) return refuse(UNSUPPORTED, "cuBLAS: types %d, %d, %d, computed as %d", type_a, type_b, type_c, compute);
    int factor = compute == COMPUTE_16F ? F16 : compute == COMPUTE_64F ? F64 : F32;
    return enqueue(handle, {m, n, k, batch, read(alpha, factor, 0), read(beta, factor, 0), matrix(a, type_a, ta, m, k, lda, sa),
        matrix(b, type_b, tb, k, n, ldb, sb), matrix(c, type_c, 0, m, n, ldc, sc)});
}

API int cublasGemmEx(
    Handle* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a, int lda, const void* b,
    int type_b, int ldb, const void* beta, void* c, int type_c, int ldc, int compute, int algorithm
) {
    return cublasGemmStridedBatchedEx(handle, ta, tb, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c, type_c, ldc, 0,
        1, compute, algorithm);
}

// Only opened, never called.
API int cublasLtCreate(void**) { return UNSUPPORTED; }
