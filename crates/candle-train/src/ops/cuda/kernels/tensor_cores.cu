// Products of half-precision numbers by tensor cores, of tiles in shared memory.
//
// A block has four warps, and a product is that of one warp: (16, 16) += (16, 16) (16, 16), two
// times mma.m16n8k16. Lane l holds, of each (16, 8) of the result, rows l / 4 and l / 4 + 8 and
// columns l % 4 * 2 and the next one: values 0 and 1 in the upper row, 2 and 3 in the lower one.
//
// On the CPU, lanes exchange their parts through memory that the block shares. Barriers are those
// of the whole block, so all its warps make the same number of products.

#define WARPS_THREADS 128

// A tile of rows of D numbers, as packs of eight: at most 8 KiB.
template <int D>
struct Tile {
    static const u32 rows = D == 128 ? 32 : 64;
    static const u32 packs = rows * D / 8;
};

// Index of a pack of a row in a tile. The packs of a row change places, so that those of eight
// rows that have equal numbers lie in different banks.
template <int D>
__device__ inline u32 place_in_tile(u32 row, u32 pack) {
    return row * (D / 8) + (pack ^ (D == 32 ? row / 2 % 4 : row % 8));
}

#ifdef __CUDACC__
__device__ inline u32 shared_address(const void* place) {
    return (u32)__cvta_generic_to_shared(place);
}

// Copies 16 bytes, or four, into shared memory; zeros if not `exists`. `from` is an address in any
// case.
__device__ inline void copy_pack(void* place, const void* from, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        :: "r"(shared_address(place)), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
__device__ inline void copy_word(void* place, const void* from, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
        :: "r"(shared_address(place)), "l"(from), "r"(exists ? 4 : 0) : "memory");
}
// Waits for this thread's copies.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ inline float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The value of lane `lane ^ mask`.
__device__ inline float from_lane(float value, u32 mask) {
    asm volatile("shfl.sync.bfly.b32 %0, %0, %1, 0x1f, 0xffffffff;" : "+f"(value) : "r"(mask));
    return value;
}

__device__ inline u32 words(float first, float second, bf16) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
__device__ inline u32 words(float first, float second, f16) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

#define MULTIPLY(T, NAME) \
    __device__ inline void multiply_eight(float* c, const u32* a, const u32* b, T) { \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 " \
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
MULTIPLY(bf16, "bf16")
MULTIPLY(f16, "f16")
#undef MULTIPLY

#define LOAD_MATRICES(VARIANT, place, b) \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" VARIANT ".shared.b16 {%0,%1,%2,%3}, [%4];" \
        : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(shared_address(place)) : "memory")

// c (16, 16) += a b.
template <typename T>
__device__ inline void multiply(float (*c)[4], const u32* a, const u32* b) {
    multiply_eight(c[0], a, b, T());
    multiply_eight(c[1], a, b + 2, T());
}

// 16 rows of a tile, from `row`, as columns of a right operand, whose rows are 16 columns of the
// tile, from `column`.
template <int D, typename T>
__device__ inline void rows_as_columns(const Pack<T, 8>* tile, u32 row, u32 column, u32* b) {
    u32 lane = threadIdx.x % 32;
    u32 place = place_in_tile<D>(row + lane / 16 * 8 + lane % 8, column / 8 + lane / 8 % 2);
    LOAD_MATRICES("", tile + place, b);
}

// A block of 16 by 16 values, rows as rows.
template <int D, typename T>
__device__ inline void rows_as_rows(const Pack<T, 8>* tile, u32 row, u32 column, u32* b) {
    u32 lane = threadIdx.x % 32;
    u32 place = place_in_tile<D>(row + lane / 8 % 2 * 8 + lane % 8, column / 8 + lane / 16);
    LOAD_MATRICES(".trans", tile + place, b);
}
#else
inline void copy_pack(void* place, const void* from, bool exists) {
    struct Bytes { u64 at[2]; };
    *(Bytes*)place = exists ? *(const Bytes*)from : Bytes{};
}
inline void copy_word(void* place, const void* from, bool exists) {
    *(u32*)place = exists ? *(const u32*)from : 0;
}
inline void wait_for_copies() {}

inline float power_of_two(float x) { return exp2f(x); }

inline float from_lane(float value, u32 mask) {
    __shared__ float values[ROW_THREADS];
    values[threadIdx.x] = value;
    __syncthreads();
    value = values[threadIdx.x ^ mask];
    __syncthreads();
    return value;
}

template <typename T>
inline u32 words(float first, float second, T) {
    T both[2];
    store(&both[0], first);
    store(&both[1], second);
    return both[0].bits | (u32)both[1].bits << 16;
}

template <typename T>
inline float half_of(u32 both, u32 which) { return load(T{(unsigned short)(both >> 16 * which)}); }

template <typename T>
inline void multiply(float (*c)[4], const u32* a, const u32* b) {
    __shared__ u32 parts[WARPS_THREADS][8];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x - lane;
    for (u32 i = 0; i < 4; ++i) parts[threadIdx.x][i] = a[i], parts[threadIdx.x][4 + i] = b[i];
    __syncthreads();
    for (u32 i = 0; i < 8; ++i) {
        u32 row = lane / 4 + i / 2 % 2 * 8, column = lane % 4 * 2 + i % 2;
        for (u32 k = 0; k < 16; ++k) {
            u32 left = parts[warp + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            u32 right = parts[warp + column * 4 + k % 8 / 2][4 + i / 4 * 2 + k / 8];
            c[i / 4][i % 4] += half_of<T>(left, k % 2) * half_of<T>(right, k % 2);
        }
    }
    __syncthreads();
}

template <int D, typename T>
inline T in_tile(const Pack<T, 8>* tile, u32 row, u32 column) {
    return tile[place_in_tile<D>(row, column / 8)].at[column % 8];
}

template <int D, typename T>
inline void rows_as_columns(const Pack<T, 8>* tile, u32 row, u32 column, u32* b) {
    u32 lane = threadIdx.x % 32;
    for (u32 i = 0; i < 4; ++i) {
        u32 r = row + i / 2 * 8 + lane / 4, c = column + i % 2 * 8 + lane % 4 * 2;
        b[i] = in_tile<D>(tile, r, c).bits | (u32)in_tile<D>(tile, r, c + 1).bits << 16;
    }
}

template <int D, typename T>
inline void rows_as_rows(const Pack<T, 8>* tile, u32 row, u32 column, u32* b) {
    u32 lane = threadIdx.x % 32;
    for (u32 i = 0; i < 4; ++i) {
        u32 r = row + i % 2 * 8 + lane % 4 * 2, c = column + i / 2 * 8 + lane / 4;
        b[i] = in_tile<D>(tile, r, c).bits | (u32)in_tile<D>(tile, r + 1, c).bits << 16;
    }
}
#endif

// Sends for a tile: rows of x (length, D), from `first`; beyond its end, zeros.
template <int D, typename T>
__device__ inline void send_for_tile(const T* x, u32 first, u32 length, Pack<T, 8>* tile) {
    #pragma unroll
    for (u32 i = 0; i < Tile<D>::packs / WARPS_THREADS; ++i) {
        u32 at = i * WARPS_THREADS + threadIdx.x, row = at / (D / 8), pack = at % (D / 8);
        bool exists = first + row < length;
        const T* from = x + (exists ? (first + row) * D + pack * 8 : 0);
        copy_pack(&tile[place_in_tile<D>(row, pack)], from, exists);
    }
}

// 16 rows of x (length, D) for each warp, from `first`, as left operands; beyond the end, zeros.
template <int D, typename T>
__device__ inline void load_rows(const T* x, u32 first, u32 length, u32 (*a)[4]) {
    u32 lane = threadIdx.x % 32, row = first + threadIdx.x / 32 * 16 + lane / 4;
    #pragma unroll
    for (u32 k = 0; k < D / 16; ++k) {
        #pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            u32 at = row + i % 2 * 8;
            const T* two = x + at * D + k * 16 + i / 2 * 8 + lane % 4 * 2;
            a[k][i] = at < length ? *(const u32*)two : 0;
        }
    }
}

// c (16, 16) += a (16, D) times the transpose of 16 rows of a tile, from `row`.
template <int D, typename T>
__device__ inline void multiply_by_rows(
    float (*c)[4], const u32 (*a)[4], const Pack<T, 8>* tile, u32 row
) {
    #pragma unroll
    for (u32 i = 0; i < D / 16; ++i) {
        u32 b[4];
        rows_as_columns<D>(tile, row, i * 16, b);
        multiply<T>(c, a[i], b);
    }
}

// out (16, D) += weights (16, 16) times 16 rows of a tile, from `row`.
template <int D, typename T>
__device__ inline void add_rows(
    float (*out)[4], const float (*weights)[4], const Pack<T, 8>* tile, u32 row
) {
    u32 a[4];
    for (u32 i = 0; i < 4; ++i) {
        a[i] = words(weights[i / 2][i % 2 * 2], weights[i / 2][i % 2 * 2 + 1], T());
    }
    #pragma unroll
    for (u32 n = 0; n < D / 16; ++n) {
        u32 b[4];
        rows_as_rows<D>(tile, row, n * 16, b);
        multiply<T>(&out[2 * n], a, b);
    }
}

// Writes each warp's rows (16, D), from `first`, those before `length`: times the factors of their
// two rows, and as T would hold them. `columns` lie between rows of y.
template <typename T, int D>
__device__ inline void store_rows(
    const float (*c)[4], const float* factors, float* y, u64 columns, u32 first, u32 length
) {
    u32 lane = threadIdx.x % 32;
    #pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        u32 row = first + threadIdx.x / 32 * 16 + lane / 4 + half * 8;
        if (row >= length) continue;
        float* at = y + row * columns + lane % 4 * 2;
        #pragma unroll
        for (u32 n = 0; n < D / 8; ++n) {
            Pack<float, 2> two;
            for (u32 i = 0; i < 2; ++i) two.at[i] = rounded<T>(c[n][half * 2 + i] * factors[half]);
            unpack(two, at, n * 4);
        }
    }
}
