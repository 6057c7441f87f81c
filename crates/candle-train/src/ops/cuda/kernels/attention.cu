// Attention in half precision that never writes its scores to memory: FlashAttention-2 (Dao, 2023,
// https://arxiv.org/abs/2307.08691), forward, and a backward without atomics.
//
// Each warp of a block has 16 rows of one head: queries, or keys for the gradients of keys and
// values. The block goes over the other side tile by tile; the next tile is on its way from memory
// while this one is computed. Exponentials are powers of two, and logarithms are to base 2.

// Queries or keys of a block: 16 for each of four warps.
#define ATTENTION_ROWS 64
#define LN_2 0.693147180559945f

// Sizes, mask and dropout of attention; by value. `scale` is log2(e) / sqrt(d).
struct Attended {
    u32 heads, t, s;
    int causal;
    float scale, kept_scale;
    u64 key, threshold;
};

// True if dropout keeps a probability.
__device__ inline bool keeps(const Attended& p, u32 head, u32 query, u32 key) {
    return is_kept(p.key, ((u64)head * p.t + query) * p.s + key, p.threshold);
}

// Row of this thread's value i of two neighbouring (16, 8), where the warp's begin at `first`, and
// its column.
__device__ inline u32 row_of(u32 first, u32 i) {
    return first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
}
__device__ inline u32 column_of(u32 first, u32 i) {
    return first + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
}

// Index of the first value of a head in (b, length, columns), whose first head is at column `first`.
__device__ inline u64 begin_of_head(
    u64 head, const Attended& p, u64 length, u64 columns, u64 first, u64 d
) {
    return head / p.heads * length * columns + first + head % p.heads * d;
}

// Scores of a tile (16, 8 N) become powers: those of scores less the largest one of the row so far.
// The sums so far shrink if there is a larger one now.
template <int N, int D>
__device__ inline void advance_softmax(
    float (*scores)[4], float (*out)[4], float* largest, float* sums, float scale
) {
    #pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        float most = largest[half];
        #pragma unroll
        for (u32 n = 0; n < N; ++n) {
            most = fmaxf(most, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
        }
        most = fmaxf(most, from_lane(most, 1));
        most = fmaxf(most, from_lane(most, 2));
        float shrink = power_of_two((largest[half] - most) * scale), offset = most * scale;
        largest[half] = most;
        sums[half] *= shrink;
        #pragma unroll
        for (u32 n = 0; n < D / 8; ++n) out[n][2 * half] *= shrink, out[n][2 * half + 1] *= shrink;
        #pragma unroll
        for (u32 n = 0; n < N; ++n) {
            #pragma unroll
            for (u32 i = 2 * half; i < 2 * half + 2; ++i) {
                // NaN, which no maximum is, is a term of the sum.
                scores[n][i] = power_of_two(scores[n][i] * scale - offset);
                sums[half] += scores[n][i];
            }
        }
    }
}

// Forward: a block for each 64 queries of each head. `logarithms`, if there is such a place, gets
// that of each query's sum of exponentials.
template <typename T, int D, bool DROPS>
__device__ inline void attention_forward(
    const T* q, const T* k, const T* v, float* y, float* logarithms, const Attended& p
) {
    const u32 KEYS = Tile<D>::rows;
    __shared__ Pack<T, 8> keys[2][Tile<D>::packs], values[2][Tile<D>::packs];
    u32 t = p.t, s = p.s, blocks = (t + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
    // The queries that see most keys come first.
    u32 head = blockIdx.x / blocks, first = (blocks - 1 - blockIdx.x % blocks) * ATTENTION_ROWS;
    q += (u64)head * t * D, k += (u64)head * s * D, v += (u64)head * s * D;
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
        for (u32 part = 0; part < KEYS; part += 16) {
            multiply_by_rows<D>(&scores[part / 8], queries, keys[turn], part);
        }
        if (start + KEYS > s || (p.causal && start + KEYS > first + 1)) {
            #pragma unroll
            for (u32 i = 0; i < KEYS / 2; ++i) {
                u32 query = row_of(first, i), key = column_of(start, i);
                if (key >= s || (p.causal && key > query)) scores[i / 4][i % 4] = NO_VALUE;
            }
        }
        advance_softmax<KEYS / 8, D>(scores, out, largest, sums, p.scale);
        #pragma unroll
        for (u32 i = 0; DROPS && i < KEYS / 2; ++i) {
            bool stays = keeps(p, head, row_of(first, i), column_of(start, i));
            scores[i / 4][i % 4] = stays ? scores[i / 4][i % 4] : 0.0f;
        }
        #pragma unroll
        for (u32 part = 0; part < KEYS; part += 16) {
            add_rows<D>(out, &scores[part / 8], values[turn], part);
        }
    }
    float factors[2];
    #pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        float sum = sums[half];
        sum += from_lane(sum, 1);
        sum += from_lane(sum, 2);
        factors[half] = (DROPS ? p.kept_scale : 1.0f) / sum;
        u32 query = row_of(first, 2 * half);
        if (logarithms && threadIdx.x % 4 == 0 && query < t)
            logarithms[(u64)head * t + query] = largest[half] * p.scale + log2f(sum);
    }
    u64 columns = (u64)p.heads * D;
    y += begin_of_head(head, p, t, columns, 0, D);
    store_rows<T, D>(out, factors, y, columns, first, t);
}

// Pack i of x, which may begin anywhere.
__device__ inline Pack<float, 4> four(const float* x, u64 i) {
    if (fits_four(x)) return pack<4>(x, i);
    return {{x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]}};
}

// Before backward: the gradient of the result y (b, t, heads d), as T and by head, (b, heads, t,
// d); and for each query, its product with y, which is the mean of its probabilities' gradients.
// d / 4 threads for each query.
template <typename T, int D>
__device__ inline void attention_products(
    const float* y, const float* dy, T* by_head, float* products, u64 heads, u64 t, u64 queries
) {
    const u32 wide = D / 4;
    u32 lane = threadIdx.x % wide;
    Index query = {(u64)blockIdx.x * (blockDim.x / wide) + threadIdx.x / wide};
    float sum = 0.0f;
    if (query.at < queries) {
        u64 token = query % t, head = query / t % heads, batch = query / t / heads;
        u64 at = ((batch * t + token) * heads + head) * wide + lane;
        Pack<float, 4> left = four(y, at), right = four(dy, at);
        Pack<T, 4> held;
        for (u32 i = 0; i < 4; ++i) {
            store(&held.at[i], right.at[i]);
            sum += left.at[i] * load(held.at[i]);
        }
        unpack(held, by_head, query.at * wide + lane);
    }
    #pragma unroll
    for (u32 mask = wide / 2; mask > 0; mask /= 2) sum += from_lane(sum, mask);
    if (lane == 0 && query.at < queries) products[query.at] = sum;
}

// Sends for what backward knows of queries of a head, from `first`: logarithms and products.
template <int D>
__device__ inline void send_numbers(
    const float* logarithms, const float* products, u32 first, u32 length,
    float (*numbers)[Tile<D>::rows]
) {
    u32 which = threadIdx.x / Tile<D>::rows, row = threadIdx.x % Tile<D>::rows;
    if (which > 1) return;
    const float* from = which ? products : logarithms;
    bool exists = first + row < length;
    copy_word(&numbers[which][row], from + (exists ? first + row : 0), exists);
}

// A score of backward becomes the probability that values are weighted with, but for the factor of
// dropout; the gradient of that becomes the gradient of the score, but for 1 / sqrt(d).
template <bool DROPS>
__device__ inline void pull_back(
    float& score, float& gradient, float logarithm, float product, const Attended& p,
    u32 head, u32 query, u32 key
) {
    float weight = power_of_two(score * p.scale - logarithm);
    bool stays = !DROPS || keeps(p, head, query, key);
    if (DROPS) gradient = stays ? gradient * p.kept_scale : 0.0f;
    gradient = weight * (gradient - product);
    score = stays ? weight : 0.0f;
}

// Backward for keys and values: a block for each 64 keys of each head, which goes over the queries.
// Scores have keys as rows, so that probabilities and gradients are left operands as they come.
template <typename T, int D, bool DROPS>
__device__ inline void attention_gradient_of_keys(
    const T* q, const T* k, const T* v, const T* dy, const float* logarithms, const float* products,
    float* dk, float* dv, u64 columns, u64 first_of_k, u64 first_of_v, const Attended& p
) {
    const u32 QUERIES = Tile<D>::rows;
    __shared__ Pack<T, 8> queries[2][Tile<D>::packs], incoming[2][Tile<D>::packs];
    __shared__ float numbers[2][2][QUERIES];
    u32 t = p.t, s = p.s, blocks = (s + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
    // The keys that most queries see come first.
    u32 head = blockIdx.x / blocks, first = blockIdx.x % blocks * ATTENTION_ROWS;
    q += (u64)head * t * D, k += (u64)head * s * D, v += (u64)head * s * D;
    dy += (u64)head * t * D, logarithms += (u64)head * t, products += (u64)head * t;

    u32 keys[D / 16][4], values[D / 16][4];
    load_rows<D>(k, first, s, keys);
    load_rows<D>(v, first, s, values);
    float of_keys[D / 8][4] = {}, of_values[D / 8][4] = {};
    u32 start = p.causal ? first : 0;
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
            multiply_by_rows<D>(weights, keys, queries[turn], part);
            multiply_by_rows<D>(gradients, values, incoming[turn], part);
            #pragma unroll
            for (u32 i = 0; is_masked && i < 8; ++i) {
                u32 query = column_of(start + part, i), key = row_of(first, i);
                if (query >= t || (p.causal && key > query)) weights[i / 4][i % 4] = NO_VALUE;
            }
            #pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                u32 column = column_of(part, i);
                pull_back<DROPS>(
                    weights[i / 4][i % 4], gradients[i / 4][i % 4], numbers[turn][0][column],
                    numbers[turn][1][column], p, head, start + column, row_of(first, i)
                );
            }
            add_rows<D>(of_values, weights, incoming[turn], part);
            add_rows<D>(of_keys, gradients, queries[turn], part);
        }
    }
    float scale = p.scale * LN_2, scales[2] = {scale, scale};
    float kept[2] = {p.kept_scale, p.kept_scale};
    dk += begin_of_head(head, p, s, columns, first_of_k, D);
    dv += begin_of_head(head, p, s, columns, first_of_v, D);
    store_rows<T, D>(of_keys, scales, dk, columns, first, s);
    store_rows<T, D>(of_values, kept, dv, columns, first, s);
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
    q += (u64)head * t * D, k += (u64)head * s * D, v += (u64)head * s * D;
    dy += (u64)head * t * D, logarithms += (u64)head * t, products += (u64)head * t;
    u32 seen = p.causal && first + ATTENTION_ROWS < s ? first + ATTENTION_ROWS : s;

    send_for_tile<D>(k, 0, s, keys[0]);
    send_for_tile<D>(v, 0, s, values[0]);
    u32 queries[D / 16][4], incoming[D / 16][4];
    load_rows<D>(q, first, t, queries);
    load_rows<D>(dy, first, t, incoming);
    float logarithm[2], product[2], out[D / 8][4] = {};
    #pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        u32 query = row_of(first, 2 * half);
        logarithm[half] = query < t ? logarithms[query] : 0.0f;
        product[half] = query < t ? products[query] : 0.0f;
    }
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
            multiply_by_rows<D>(scores, queries, keys[turn], part);
            multiply_by_rows<D>(gradients, incoming, values[turn], part);
            #pragma unroll
            for (u32 i = 0; is_masked && i < 8; ++i) {
                u32 query = row_of(first, i), key = column_of(start + part, i);
                if (key >= s || (p.causal && key > query)) scores[i / 4][i % 4] = NO_VALUE;
            }
            #pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                u32 half = i / 2 % 2;
                pull_back<DROPS>(
                    scores[i / 4][i % 4], gradients[i / 4][i % 4], logarithm[half], product[half],
                    p, head, row_of(first, i), column_of(start + part, i)
                );
            }
            add_rows<D>(out, gradients, keys[turn], part);
        }
    }
    float scale = p.scale * LN_2, scales[2] = {scale, scale};
    dq += begin_of_head(head, p, t, columns, first_of_q, D);
    store_rows<T, D>(out, scales, dq, columns, first, t);
}

// The kernels of number type T for heads of width D, with or without dropout. `kernel_source.rs`
// asks for those that a program uses.
#define ATTENTION_KERNELS(NAME, T, D, DROPS) \
    KERNEL attention_forward_##NAME( \
        const T* q, const T* k, const T* v, float* y, float* logarithms, Attended p \
    ) { \
        attention_forward<T, D, DROPS>(q, k, v, y, logarithms, p); \
    } \
    KERNEL attention_products_##NAME( \
        const float* y, const float* dy, T* by_head, float* products, \
        u64 heads, u64 t, u64 queries \
    ) { \
        attention_products<T, D>(y, dy, by_head, products, heads, t, queries); \
    } \
    KERNEL attention_gradient_of_keys_##NAME( \
        const T* q, const T* k, const T* v, const T* dy, \
        const float* logarithms, const float* products, \
        float* dk, float* dv, u64 columns, u64 first_of_k, u64 first_of_v, Attended p \
    ) { \
        attention_gradient_of_keys<T, D, DROPS>( \
            q, k, v, dy, logarithms, products, dk, dv, columns, first_of_k, first_of_v, p \
        ); \
    } \
    KERNEL attention_gradient_of_queries_##NAME( \
        const T* q, const T* k, const T* v, const T* dy, \
        const float* logarithms, const float* products, \
        float* dq, u64 columns, u64 first_of_q, Attended p \
    ) { \
        attention_gradient_of_queries<T, D, DROPS>( \
            q, k, v, dy, logarithms, products, dq, columns, first_of_q, p \
        ); \
    }
