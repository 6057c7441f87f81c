// Attention in half precision that never writes its scores to memory: FlashAttention-2 (Dao, 2023,
// https://arxiv.org/abs/2307.08691), forward and a backward without atomics.
//
// A block has four warps, and each warp 16 rows of one head: queries, or keys for the gradients of keys and values. It goes over
// the other side tile by tile; the next tile is on its way from memory while this one is computed. Softmax is computed in
// powers of two: `scale` is log2(e) / sqrt(d), and a logarithm of a sum is to base 2.
//
// Products are those of mma.m16n8k16. Lane l of a warp holds, of the (16, 8) result, rows l / 4 and l / 4 + 8 and columns
// l % 4 * 2 and the next one. On the CPU, lanes exchange their parts over memory that the block shares; barriers are of the
// whole block, so all warps of a block make the same number of products.

#define ATTENTION_THREADS 128
// Queries or keys of a block: 16 for each warp.
#define ATTENTION_ROWS 64
#define LN_2 0.693147180559945f

// Rows of a tile of the other side: two tiles of two operands, for two turns, fit into 32 KiB.
template <int D>
struct Tile {
    static const u32 rows = D == 128 ? 32 : 64;
    static const u32 packs = rows * D / 8;
};

// Where pack `pack` of a row lies in a tile. The packs of a row change places, so that eight rows' packs of equal number lie in
// different banks.
template <int D>
__device__ inline u32 place_in_tile(u32 row, u32 pack) {
    return row * (D / 8) + (pack ^ (D == 32 ? row / 2 % 4 : row % 8));
}

// The words of two half-precision numbers, the first one in the lower half.
template <typename T>
__device__ inline u32 word_of(const T* x) { return *(const u32*)x; }

#ifdef __CUDACC__
__device__ inline u32 shared_address(const void* place) { return (u32)__cvta_generic_to_shared(place); }

// Copies 16 bytes, or four, into shared memory; zeros if not `exists`. `from` is an address in any case.
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
        asm("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
MULTIPLY(bf16, "bf16")
MULTIPLY(f16, "f16")
#undef MULTIPLY

#define LOAD_MATRICES(VARIANT, place, b) \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" VARIANT ".shared.b16 {%0,%1,%2,%3}, [%4];" \
        : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(shared_address(place)) : "memory")

// c (16, 16) += a b. The columns are two times eight.
template <typename T>
__device__ inline void multiply(float (*c)[4], const u32* a, const u32* b) {
    multiply_eight(c[0], a, b, T());
    multiply_eight(c[1], a, b + 2, T());
}

// Rows `row`.. of a tile as columns of a right operand, whose rows are columns `column`.. of the tile: 16 of each.
template <int D, typename T>
__device__ inline void rows_as_columns(const Pack<T, 8>* tile, u32 row, u32 column, u32* b) {
    u32 lane = threadIdx.x % 32;
    u32 place = place_in_tile<D>(row + lane / 16 * 8 + lane % 8, column / 8 + lane / 8 % 2);
    LOAD_MATRICES("", tile + place, b);
}

// The same, rows as rows.
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
inline void copy_word(void* place, const void* from, bool exists) { *(u32*)place = exists ? *(const u32*)from : 0; }
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
    __shared__ u32 parts[ATTENTION_THREADS][8];
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

// Sends for rows `first`.. of x (length, D); beyond its end, zeros.
template <int D, typename T>
__device__ inline void send_for_tile(const T* x, u32 first, u32 length, Pack<T, 8>* tile) {
    #pragma unroll
    for (u32 i = 0; i < Tile<D>::packs / ATTENTION_THREADS; ++i) {
        u32 at = i * ATTENTION_THREADS + threadIdx.x, row = at / (D / 8), column = at % (D / 8);
        bool exists = first + row < length;
        copy_pack(&tile[place_in_tile<D>(row, column)], x + (exists ? (first + row) * D + column * 8 : 0), exists);
    }
}

// This warp's 16 rows of x (length, D) as left operands, from row `first` of the block's; beyond the end, zeros.
template <int D, typename T>
__device__ inline void load_rows(const T* x, u32 first, u32 length, u32 (*a)[4]) {
    u32 lane = threadIdx.x % 32, row = first + threadIdx.x / 32 * 16 + lane / 4;
    #pragma unroll
    for (u32 k = 0; k < D / 16; ++k) {
        #pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            u32 at = row + i % 2 * 8;
            a[k][i] = at < length ? word_of(x + at * D + k * 16 + i / 2 * 8 + lane % 4 * 2) : 0;
        }
    }
}

// A result (16, 16) as a left operand.
template <typename T>
__device__ inline void as_left(const float (*c)[4], u32* a) {
    #pragma unroll
    for (u32 i = 0; i < 4; ++i) a[i] = words(c[i / 2][i % 2 * 2], c[i / 2][i % 2 * 2 + 1], T());
}

// A head of (b, length, columns), whose values begin at `first`.
__device__ inline u64 head_in_columns(u64 head, u64 heads, u64 length, u64 columns, u64 first, u64 d) {
    return head / heads * length * columns + first + head % heads * d;
}

// Writes this warp's rows (16, D), times `factors` of their two rows, as T would hold them.
template <int D, typename T>
__device__ inline void store_rows(
    const float (*c)[4], const float* factors, float* y, u64 columns, u32 first, u32 length
) {
    u32 lane = threadIdx.x % 32;
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

// Sizes, mask and dropout of attention; by value. `scale` is log2(e) / sqrt(d).
struct Attended {
    u32 heads, t, s;
    int causal;
    float scale, kept_scale;
    u64 key, threshold;
};

// Whether dropout keeps a probability.
__device__ inline bool keeps(const Attended& p, u32 head, u32 query, u32 key) {
    return is_kept(p.key, ((u64)head * p.t + query) * p.s + key, p.threshold);
}

// Forward: a block for each 64 queries of each head. `logarithms`, if there is such a place, gets the logarithm of each query's
// sum of exponentials.
template <typename T, int D, bool DROPS>
__device__ inline void attention_forward(
    const T* q, const T* k, const T* v, float* y, float* logarithms, const Attended& p
) {
    const u32 KEYS = Tile<D>::rows;
    __shared__ Pack<T, 8> keys[2][Tile<D>::packs], values[2][Tile<D>::packs];
    u32 t = p.t, s = p.s, blocks = (t + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
    // Those with most keys first.
    u32 head = blockIdx.x / blocks, first = (blocks - 1 - blockIdx.x % blocks) * ATTENTION_ROWS;
    q += (u64)head * t * D, k += (u64)head * s * D, v += (u64)head * s * D;
    u32 lane = threadIdx.x % 32, row = first + threadIdx.x / 32 * 16 + lane / 4;
    u32 seen = p.causal && first + ATTENTION_ROWS < s ? first + ATTENTION_ROWS : s;

    send_for_tile<D>(k, 0, s, keys[0]);
    send_for_tile<D>(v, 0, s, values[0]);
    u32 queries[D / 16][4];
    load_rows<D>(q, first, t, queries);
    float out[D / 8][4] = {}, largest[2] = {NO_VALUE, NO_VALUE}, sums[2] = {};
    for (u32 start = 0, turn = 0; start < seen; start += KEYS, turn ^= 1) {
        wait_for_copies();
        __syncthreads();
        if (start + KEYS < seen) {
            send_for_tile<D>(k, start + KEYS, s, keys[turn ^ 1]);
            send_for_tile<D>(v, start + KEYS, s, values[turn ^ 1]);
        }
        float scores[KEYS / 8][4] = {};
        #pragma unroll
        for (u32 i = 0; i < D / 16; ++i) {
            #pragma unroll
            for (u32 n = 0; n < KEYS / 16; ++n) {
                u32 b[4];
                rows_as_columns<D>(keys[turn], n * 16, i * 16, b);
                multiply<T>(&scores[2 * n], queries[i], b);
            }
        }
        if (start + KEYS > s || (p.causal && start + KEYS > first + 1)) {
            #pragma unroll
            for (u32 n = 0; n < KEYS / 8; ++n) {
                for (u32 i = 0; i < 4; ++i) {
                    // Queries beyond the last one are not written.
                    u32 key = start + n * 8 + lane % 4 * 2 + i % 2;
                    if (key >= s || (p.causal && key > row + i / 2 * 8)) scores[n][i] = NO_VALUE;
                }
            }
        }
        float offsets[2];
        #pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            float most = largest[half];
            #pragma unroll
            for (u32 n = 0; n < KEYS / 8; ++n) most = fmaxf(most, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
            most = fmaxf(most, from_lane(most, 1));
            most = fmaxf(most, from_lane(most, 2));
            float shrink = power_of_two((largest[half] - most) * p.scale);
            largest[half] = most;
            offsets[half] = most * p.scale;
            sums[half] *= shrink;
            #pragma unroll
            for (u32 n = 0; n < D / 8; ++n) out[n][2 * half] *= shrink, out[n][2 * half + 1] *= shrink;
        }
        #pragma unroll
        for (u32 n = 0; n < KEYS / 8; ++n) {
            #pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                scores[n][i] = power_of_two(scores[n][i] * p.scale - offsets[i / 2]);
                sums[i / 2] += scores[n][i];
            }
        }
        if (DROPS) {
            #pragma unroll
            for (u32 n = 0; n < KEYS / 8; ++n) {
                #pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    u32 key = start + n * 8 + lane % 4 * 2 + i % 2;
                    if (!keeps(p, head, row + i / 2 * 8, key)) scores[n][i] = 0.0f;
                }
            }
        }
        #pragma unroll
        for (u32 i = 0; i < KEYS / 16; ++i) {
            u32 weights[4];
            as_left<T>(&scores[2 * i], weights);
            #pragma unroll
            for (u32 n = 0; n < D / 16; ++n) {
                u32 b[4];
                rows_as_rows<D>(values[turn], i * 16, n * 16, b);
                multiply<T>(&out[2 * n], weights, b);
            }
        }
    }
    float factors[2];
    for (u32 half = 0; half < 2; ++half) {
        float sum = sums[half];
        sum += from_lane(sum, 1);
        sum += from_lane(sum, 2);
        factors[half] = (DROPS ? p.kept_scale : 1.0f) / sum;
        u32 query = row + half * 8;
        if (logarithms && lane % 4 == 0 && query < t)
            logarithms[(u64)head * t + query] = largest[half] * p.scale + log2f(sum);
    }
    u64 columns = (u64)p.heads * D;
    store_rows<D, T>(out, factors, y + head_in_columns(head, p.heads, t, columns, 0, D), columns, first, t);
}

// Sends for what backward knows of rows `first`.. of the queries of a head: logarithms and products.
template <int D>
__device__ inline void send_numbers(
    const float* logarithms, const float* products, u32 first, u32 length, float (*numbers)[Tile<D>::rows]
) {
    u32 which = threadIdx.x / Tile<D>::rows, row = threadIdx.x % Tile<D>::rows;
    if (which > 1) return;
    bool exists = first + row < length;
    copy_word(&numbers[which][row], (which ? products : logarithms) + (exists ? first + row : 0), exists);
}

// Backward for keys and values: a block for each 64 keys of each head, which goes over the queries. Scores are computed with
// keys as rows, so that probabilities and gradients are left operands as they come.
template <typename T, int D, bool DROPS>
__device__ inline void attention_gradient_of_keys(
    const T* q, const T* k, const T* v, const T* dy, const float* logarithms, const float* products,
    float* dk, float* dv, u64 columns, u64 first_of_k, u64 first_of_v, const Attended& p
) {
    const u32 QUERIES = Tile<D>::rows;
    __shared__ Pack<T, 8> queries[2][Tile<D>::packs], incoming[2][Tile<D>::packs];
    __shared__ float numbers[2][2][QUERIES];
    u32 t = p.t, s = p.s, blocks = (s + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
    // Those that most queries see first.
    u32 head = blockIdx.x / blocks, first = blockIdx.x % blocks * ATTENTION_ROWS;
    q += (u64)head * t * D, k += (u64)head * s * D, v += (u64)head * s * D, dy += (u64)head * t * D;
    logarithms += (u64)head * t, products += (u64)head * t;
    u32 lane = threadIdx.x % 32, row = first + threadIdx.x / 32 * 16 + lane / 4;

    u32 keys[D / 16][4], values[D / 16][4];
    load_rows<D>(k, first, s, keys);
    load_rows<D>(v, first, s, values);
    float of_keys[D / 8][4] = {}, of_values[D / 8][4] = {};
    u32 start = p.causal ? first / QUERIES * QUERIES : 0;
    if (start < t) {
        send_for_tile<D>(q, start, t, queries[0]);
        send_for_tile<D>(dy, start, t, incoming[0]);
        send_numbers<D>(logarithms, products, start, t, numbers[0]);
    }
    for (u32 turn = 0; start < t; start += QUERIES, turn ^= 1) {
        wait_for_copies();
        __syncthreads();
        if (start + QUERIES < t) {
            send_for_tile<D>(q, start + QUERIES, t, queries[turn ^ 1]);
            send_for_tile<D>(dy, start + QUERIES, t, incoming[turn ^ 1]);
            send_numbers<D>(logarithms, products, start + QUERIES, t, numbers[turn ^ 1]);
        }
        bool is_masked = start + QUERIES > t || (p.causal && start < first + ATTENTION_ROWS);
        #pragma unroll
        for (u32 part = 0; part < QUERIES; part += 16) {
            float weights[2][4] = {}, gradients[2][4] = {};
            #pragma unroll
            for (u32 i = 0; i < D / 16; ++i) {
                u32 b[4];
                rows_as_columns<D>(queries[turn], part, i * 16, b);
                multiply<T>(weights, keys[i], b);
                rows_as_columns<D>(incoming[turn], part, i * 16, b);
                multiply<T>(gradients, values[i], b);
            }
            if (is_masked) {
                #pragma unroll
                for (u32 i = 0; i < 8; ++i) {
                    u32 query = start + part + i / 4 * 8 + lane % 4 * 2 + i % 2;
                    if (query >= t || (p.causal && row + i / 2 % 2 * 8 > query)) weights[i / 4][i % 4] = NO_VALUE;
                }
            }
            #pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                u32 column = part + i / 4 * 8 + lane % 4 * 2 + i % 2;
                float& weight = weights[i / 4][i % 4];
                float& gradient = gradients[i / 4][i % 4];
                weight = power_of_two(weight * p.scale - numbers[turn][0][column]);
                bool stays = !DROPS || keeps(p, head, start + column, row + i / 2 % 2 * 8);
                if (DROPS) gradient = stays ? gradient * p.kept_scale : 0.0f;
                gradient = weight * (gradient - numbers[turn][1][column]);
                if (!stays) weight = 0.0f;
            }
            u32 a[4], b[4];
            as_left<T>(weights, a);
            #pragma unroll
            for (u32 n = 0; n < D / 16; ++n) {
                rows_as_rows<D>(incoming[turn], part, n * 16, b);
                multiply<T>(&of_values[2 * n], a, b);
            }
            as_left<T>(gradients, a);
            #pragma unroll
            for (u32 n = 0; n < D / 16; ++n) {
                rows_as_rows<D>(queries[turn], part, n * 16, b);
                multiply<T>(&of_keys[2 * n], a, b);
            }
        }
    }
    // 1 / sqrt(d), of scores without their logarithm's base.
    float factors[2] = {p.scale * LN_2, p.scale * LN_2}, kept[2] = {p.kept_scale, p.kept_scale};
    store_rows<D, T>(of_keys, factors, dk + head_in_columns(head, p.heads, s, columns, first_of_k, D), columns, first, s);
    store_rows<D, T>(of_values, kept, dv + head_in_columns(head, p.heads, s, columns, first_of_v, D), columns, first, s);
}

// Backward for queries: a block for each 64 queries of each head, which goes over the keys.
template <typename T, int D, bool DROPS>
__device__ inline void attention_gradient_of_queries(
    const T* q, const T* k, const T* v, const T* dy, const float* logarithms, const float* products,
    float* dq, u64 columns, u64 first_of_q, const Attended& p
) {
    const u32 KEYS = Tile<D>::rows;
    __shared__ Pack<T, 8> keys[2][Tile<D>::packs], values[2][Tile<D>::packs];
    u32 t = p.t, s = p.s, blocks = (t + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
    u32 head = blockIdx.x / blocks, first = (blocks - 1 - blockIdx.x % blocks) * ATTENTION_ROWS;
    q += (u64)head * t * D, k += (u64)head * s * D, v += (u64)head * s * D, dy += (u64)head * t * D;
    u32 lane = threadIdx.x % 32, row = first + threadIdx.x / 32 * 16 + lane / 4;
    u32 seen = p.causal && first + ATTENTION_ROWS < s ? first + ATTENTION_ROWS : s;

    send_for_tile<D>(k, 0, s, keys[0]);
    send_for_tile<D>(v, 0, s, values[0]);
    u32 queries[D / 16][4], incoming[D / 16][4];
    load_rows<D>(q, first, t, queries);
    load_rows<D>(dy, first, t, incoming);
    float logarithm[2] = {}, product[2] = {};
    for (u32 half = 0; half < 2; ++half) {
        if (row + half * 8 >= t) continue;
        logarithm[half] = logarithms[(u64)head * t + row + half * 8];
        product[half] = products[(u64)head * t + row + half * 8];
    }
    float out[D / 8][4] = {};
    for (u32 start = 0, turn = 0; start < seen; start += KEYS, turn ^= 1) {
        wait_for_copies();
        __syncthreads();
        if (start + KEYS < seen) {
            send_for_tile<D>(k, start + KEYS, s, keys[turn ^ 1]);
            send_for_tile<D>(v, start + KEYS, s, values[turn ^ 1]);
        }
        bool is_masked = start + KEYS > s || (p.causal && start + KEYS > first + 1);
        #pragma unroll
        for (u32 part = 0; part < KEYS; part += 16) {
            float scores[2][4] = {}, gradients[2][4] = {};
            #pragma unroll
            for (u32 i = 0; i < D / 16; ++i) {
                u32 b[4];
                rows_as_columns<D>(keys[turn], part, i * 16, b);
                multiply<T>(scores, queries[i], b);
                rows_as_columns<D>(values[turn], part, i * 16, b);
                multiply<T>(gradients, incoming[i], b);
            }
            if (is_masked) {
                #pragma unroll
                for (u32 i = 0; i < 8; ++i) {
                    u32 key = start + part + i / 4 * 8 + lane % 4 * 2 + i % 2;
                    if (key >= s || (p.causal && key > row + i / 2 % 2 * 8)) scores[i / 4][i % 4] = NO_VALUE;
                }
            }
            #pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                u32 half = i / 2 % 2, key = start + part + i / 4 * 8 + lane % 4 * 2 + i % 2;
                float weight = power_of_two(scores[i / 4][i % 4] * p.scale - logarithm[half]);
                float& gradient = gradients[i / 4][i % 4];
                if (DROPS) gradient = keeps(p, head, row + half * 8, key) ? gradient * p.kept_scale : 0.0f;
                gradient = weight * (gradient - product[half]);
            }
            u32 a[4];
            as_left<T>(gradients, a);
            #pragma unroll
            for (u32 n = 0; n < D / 16; ++n) {
                u32 b[4];
                rows_as_rows<D>(keys[turn], part, n * 16, b);
                multiply<T>(&out[2 * n], a, b);
            }
        }
    }
    float factors[2] = {p.scale * LN_2, p.scale * LN_2};
    store_rows<D, T>(out, factors, dq + head_in_columns(head, p.heads, t, columns, first_of_q, D), columns, first, t);
}

// Pack i of x, which may begin anywhere.
__device__ inline Pack<float, 4> four(const float* x, u64 i) {
    if (fits_four(x)) return pack<4>(x, i);
    return {{x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]}};
}

// Before backward: the gradient of the result y (b, t, heads d), as T and by head, (b, heads, t, d); and for each query, its
// product with y, which is the mean of its probabilities' gradients. d / 4 threads for each query.
template <typename T, int D>
__device__ inline void attention_products(
    const float* y, const float* dy, T* by_head, float* products, u64 heads, u64 t, u64 queries
) {
    const u32 THREADS_OF_QUERY = D / 4;
    u32 lane = threadIdx.x % THREADS_OF_QUERY;
    Index query = {(u64)blockIdx.x * (blockDim.x / THREADS_OF_QUERY) + threadIdx.x / THREADS_OF_QUERY};
    float sum = 0.0f;
    if (query.at < queries) {
        u64 token = query % t, head = query / t % heads, batch = query / t / heads;
        u64 at = ((batch * t + token) * heads + head) * THREADS_OF_QUERY + lane;
        Pack<float, 4> left = four(y, at), right = four(dy, at);
        Pack<T, 4> held;
        for (u32 i = 0; i < 4; ++i) {
            store(&held.at[i], right.at[i]);
            sum += left.at[i] * load(held.at[i]);
        }
        unpack(held, by_head, query.at * THREADS_OF_QUERY + lane);
    }
    #pragma unroll
    for (u32 mask = THREADS_OF_QUERY / 2; mask > 0; mask /= 2) sum += from_lane(sum, mask);
    if (lane == 0 && query.at < queries) products[query.at] = sum;
}

// The kernels of number type T for heads of width D. `kernel_source.rs` asks for those that a program uses, one width at a time.
#define ATTENTION_KERNELS(NAME, T, D, DROPS) \
    KERNEL attention_forward_##NAME( \
        const T* q, const T* k, const T* v, float* y, float* logarithms, Attended p \
    ) { \
        attention_forward<T, D, DROPS>(q, k, v, y, logarithms, p); \
    } \
    KERNEL attention_products_##NAME( \
        const float* y, const float* dy, T* by_head, float* products, u64 heads, u64 t, u64 queries \
    ) { \
        attention_products<T, D>(y, dy, by_head, products, heads, t, queries); \
    } \
    KERNEL attention_gradient_of_keys_##NAME( \
        const T* q, const T* k, const T* v, const T* dy, const float* logarithms, const float* products, \
        float* dk, float* dv, u64 columns, u64 first_of_k, u64 first_of_v, Attended p \
    ) { \
        attention_gradient_of_keys<T, D, DROPS>( \
            q, k, v, dy, logarithms, products, dk, dv, columns, first_of_k, first_of_v, p \
        ); \
    } \
    KERNEL attention_gradient_of_queries_##NAME( \
        const T* q, const T* k, const T* v, const T* dy, const float* logarithms, const float* products, \
        float* dq, u64 columns, u64 first_of_q, Attended p \
    ) { \
        attention_gradient_of_queries<T, D, DROPS>(q, k, v, dy, logarithms, products, dq, columns, first_of_q, p); \
    }
