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
    float penalty, shrink, start;
    float mean, clip, limit;
    float follow;
};

enum { SGD, SGD_MOMENTUM, SGD_NESTEROV, ADAM, AVERAGE_ONLY, LION, RMSPROP, RMSPROP_MOMENTUM, ADAGRAD, NADAM };

// As PyTorch's `lerp`.
__device__ inline float lerp_as_torch(float start, float end, float weight) {
    return weight < 0.5f ? start + weight * (end - start) : end - (end - start) * (1.0f - weight);
}

// Where a value goes along the gradient `g`; its state moves on. `shrink` is what weight decay leaves of it.
__device__ inline float moved(const Rule& rule, float value, float g, float shrink, float* first, float* second) {
    switch (rule.kind) {
    case SGD:
        return value - rule.lr * g;
    case SGD_MOMENTUM:
    case SGD_NESTEROV: {
        float v = rule.momentum * *first + rule.damp * g;
        *first = v;
        return value - rule.lr * (rule.kind == SGD_NESTEROV ? g + rule.momentum * v : v);
    }
    case ADAM: {
        float m = *first = lerp_as_torch(*first, g, rule.rest1);
        float v = *second = rule.beta2 * *second + rule.rest2 * (g * g);
        return value * shrink - rule.step_size * (m / (sqrtf(v) / rule.root_correction + rule.eps));
    }
    case LION: {
        float direction = lerp_as_torch(*first, g, rule.rest1);
        *first = lerp_as_torch(*first, g, rule.rest2);
        return value * shrink - rule.lr * (direction > 0.0f ? 1.0f : direction < 0.0f ? -1.0f : 0.0f);
    }
    case RMSPROP:
    case RMSPROP_MOMENTUM: {
        float mean = *first = rule.beta2 * *first + rule.rest2 * (g * g);
        float step = g / (sqrtf(mean) + rule.eps);
        if (rule.kind == RMSPROP_MOMENTUM) step = *second = rule.momentum * *second + step;
        return value - rule.lr * step;
    }
    case ADAGRAD: {
        float sum = *first = (*first + rule.start) + g * g;
        return value - rule.lr * (g / (sqrtf(sum) + rule.eps));
    }
    case NADAM: {
        float m = *first = lerp_as_torch(*first, g, rule.rest1);
        float v = *second = rule.beta2 * *second + rule.rest2 * (g * g);
        float root = sqrtf(v) / rule.root_correction + rule.eps;
        return value * shrink - rule.lr * (g / root) - rule.step_size * (m / root);
    }
    default: // AVERAGE_ONLY
        return value;
    }
}

// One block for `per_block` elements of one parameter: parts[block] says which parameter and which of its blocks.
KERNEL update(const ParameterAddresses* parameters, const uint2* parts, Rule rule, u64 per_block) {
    uint2 part = parts[blockIdx.x];
    ParameterAddresses own = parameters[part.x];
    if (own.idle) return;
    float penalty = own.decays ? rule.penalty : 0.0f, shrink = own.decays ? rule.shrink : 1.0f;
    u64 first = part.y * per_block, last = first + per_block < own.n ? first + per_block : own.n;
    for (u64 i = first + threadIdx.x; i < last; i += blockDim.x) {
        float value = own.values[i];
        float g = own.gradient[i] * rule.mean * rule.clip;
        g = g < -rule.limit ? -rule.limit : g;
        g = g > rule.limit ? rule.limit : g;
        g += penalty * value;
        value = moved(rule, value, g, shrink, &own.first[i], &own.second[i]);
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
