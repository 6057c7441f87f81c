// Gradients in flat buckets: their squares, and the update of all parameters in one launch.

// Where a parameter and what belongs to it lie. As `ParameterAddresses` in ops/cuda/optimizer.rs.
struct ParameterAddresses {
    float* values;
    const float* gradient;
    float* first;
    float* second;
    float* average;
    u64 n;
    u32 decays;
    u32 idle;
};

// As `Rule` in ops/cuda/optimizer.rs.
struct Rule {
    int kind;
    float lr, momentum, damp;
    float rest1, beta2, rest2, eps, step_size, root_correction;
    float penalty, shrink;
    float mean, clip, limit;
    float follow;
};

enum { SGD, SGD_MOMENTUM, SGD_NESTEROV, ADAM, AVERAGE_ONLY };

// As PyTorch's `lerp`.
__device__ inline float lerp_as_torch(float start, float end, float weight) {
    return weight < 0.5f ? start + weight * (end - start) : end - (end - start) * (1.0f - weight);
}

// One block for `per_block` elements of one parameter: parts[block] says which parameter and which of its blocks.
KERNEL update(const ParameterAddresses* parameters, const uint2* parts, Rule rule, u64 per_block) {
    uint2 part = parts[blockIdx.x];
    ParameterAddresses own = parameters[part.x];
    if (own.idle) return;
    u64 first = part.y * per_block, last = first + per_block < own.n ? first + per_block : own.n;
    for (u64 i = first + threadIdx.x; i < last; i += blockDim.x) {
        float value = own.values[i];
        float g = own.gradient[i] * rule.mean * rule.clip;
        g = g < -rule.limit ? -rule.limit : g;
        g = g > rule.limit ? rule.limit : g;
        g += (own.decays ? rule.penalty : 0.0f) * value;
        if (rule.kind == AVERAGE_ONLY) {
            // Only the average moves.
        } else if (rule.kind == SGD) {
            value -= rule.lr * g;
        } else if (rule.kind <= SGD_NESTEROV) {
            float v = rule.momentum * own.first[i] + rule.damp * g;
            own.first[i] = v;
            value -= rule.lr * (rule.kind == SGD_NESTEROV ? g + rule.momentum * v : v);
        } else {
            float m = lerp_as_torch(own.first[i], g, rule.rest1);
            float v = rule.beta2 * own.second[i] + rule.rest2 * (g * g);
            own.first[i] = m;
            own.second[i] = v;
            value = value * (own.decays ? rule.shrink : 1.0f) - rule.step_size * (m / (sqrtf(v) / rule.root_correction + rule.eps));
        }
        own.values[i] = value;
        if (own.average) own.average[i] = lerp_as_torch(own.average[i], value, rule.follow);
    }
}

// x becomes y, and y x.
KERNEL exchange(float* x, float* y, u64 n) {
    FOR_EACH(i, n) {
        float value = x[i];
        x[i] = y[i];
        y[i] = value;
    }
}

// The sum of squares of each part's gradient, in f64; not finite if one element is not.
KERNEL squares(const ParameterAddresses* parameters, const uint2* parts, double* sums, u64 per_block) {
    uint2 part = parts[blockIdx.x];
    ParameterAddresses own = parameters[part.x];
    u64 first = part.y * per_block, last = first + per_block < own.n ? first + per_block : own.n;
    double sum = 0.0;
    for (u64 i = first + threadIdx.x; i < last; i += blockDim.x) {
        double g = own.gradient[i];
        sum += g * g;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// The sum of n numbers, in one block.
KERNEL total_of_squares(const double* sums, double* total, u64 n) {
    double mine = 0.0;
    for (u64 i = threadIdx.x; i < n; i += blockDim.x) mine += sums[i];
    mine = block_sum(mine);
    if (threadIdx.x == 0) *total = mine;
}
