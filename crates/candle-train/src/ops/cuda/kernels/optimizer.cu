// Gradients in flat buckets: their squares, and the update of all parameters in one launch.

// Most state tensors of a rule. As in ops/cuda/kernel_args.rs.
constexpr int MOST_STATE = 3;

// Addresses of a parameter and its state. As `ParameterAddresses` in ops/cuda/kernel_args.rs.
struct ParameterAddresses {
    float* values;
    const float* gradient;
    float* state[MOST_STATE]; // in the order in which the rule names them; null where there is none
    float* average;
    u64 n;
    u32 decays;
    u32 idle;
};

// As `Rule` in ops/cuda/kernel_args.rs.
struct Rule {
    int kind;
    float lr, momentum, damp;
    float rest1, beta2, rest2, eps, step_size, root_correction;
    float penalty, shrink, start;
    float mean, clip, limit;
    float follow;
};

enum {
    SGD, SGD_MOMENTUM, SGD_NESTEROV, ADAM, AVERAGE_ONLY, LION, RMSPROP, RMSPROP_MOMENTUM, ADAGRAD, NADAM, ADAM_AMSGRAD
};

// As PyTorch's `lerp`.
__device__ inline float lerp_as_torch(float start, float end, float weight) {
    return weight < 0.5f ? start + weight * (end - start) : end - (end - start) * (1.0f - weight);
}

// The value after a step along the gradient `g`; its state moves on. `shrink` is what weight decay leaves of it.
__device__ inline float moved(const Rule& rule, float value, float g, float shrink, float* state) {
    switch (rule.kind) {
    case SGD:
        return value - rule.lr * g;
    case SGD_MOMENTUM:
    case SGD_NESTEROV: {
        float v = rule.momentum * state[0] + rule.damp * g;
        state[0] = v;
        return value - rule.lr * (rule.kind == SGD_NESTEROV ? g + rule.momentum * v : v);
    }
    case ADAM:
    case ADAM_AMSGRAD: {
        float m = state[0] = lerp_as_torch(state[0], g, rule.rest1);
        float v = state[1] = rule.beta2 * state[1] + rule.rest2 * (g * g);
        if (rule.kind == ADAM_AMSGRAD) v = state[2] = v > state[2] ? v : state[2];
        return value * shrink - rule.step_size * (m / (sqrtf(v) / rule.root_correction + rule.eps));
    }
    case LION: {
        float direction = lerp_as_torch(state[0], g, rule.rest1);
        state[0] = lerp_as_torch(state[0], g, rule.rest2);
        return value * shrink - rule.lr * (direction > 0.0f ? 1.0f : direction < 0.0f ? -1.0f : 0.0f);
    }
    case RMSPROP:
    case RMSPROP_MOMENTUM: {
        float mean = state[0] = rule.beta2 * state[0] + rule.rest2 * (g * g);
        float step = g / (sqrtf(mean) + rule.eps);
        if (rule.kind == RMSPROP_MOMENTUM) step = state[1] = rule.momentum * state[1] + step;
        return value - rule.lr * step;
    }
    case ADAGRAD: {
        float sum = state[0] = (state[0] + rule.start) + g * g;
        return value - rule.lr * (g / (sqrtf(sum) + rule.eps));
    }
    case NADAM: {
        float m = state[0] = lerp_as_torch(state[0], g, rule.rest1);
        float v = state[1] = rule.beta2 * state[1] + rule.rest2 * (g * g);
        float root = sqrtf(v) / rule.root_correction + rule.eps;
        return value * shrink - rule.lr * (g / root) - rule.step_size * (m / root);
    }
    default: // AVERAGE_ONLY
        return value;
    }
}

// Decisions of the GPU about an update: the factor of clipping by norm, and whether parameters move.
struct Decision {
    float clip;
    u32 moves;
};

// By what the passes of a step found, (1 + passes, 3): the sum of squares of all gradients, and of each pass its loss,
// right answers and weight. They move if loss and gradient are finite and the loss is at most `most_loss`; the norm is
// clipped to `most_norm`. One thread.
KERNEL decide(
    const double* found, Decision* decision, double factor, double most_norm, double most_loss, u64 passes
) {
    if (threadIdx.x != 0) return;
    double loss = 0.0, weight = 0.0;
    for (u64 pass = 1; pass <= passes; ++pass) {
        loss += found[3 * pass] * found[3 * pass + 2];
        weight += found[3 * pass + 2];
    }
    if (weight > 0.0) loss /= weight;
    double norm = sqrt(found[0]) * factor, clip = most_norm / (norm + 1e-6);
    decision->clip = clip < 1.0 ? (float)clip : 1.0f;
    // No f32 is larger than the last number.
    decision->moves = loss - loss == 0.0 && loss <= most_loss && norm <= 3.4028234663852886e38;
}

// Moves N values at place i. What a rule has no use for is null.
template <int N>
__device__ inline void update_at(
    const Rule& rule, float penalty, float shrink, u64 i,
    float* values, const float* gradient, float* const* state, float* average
) {
    Pack<float, N> value = pack<N>(values, i), g = pack<N>(gradient, i), kept[MOST_STATE] = {}, mean = {};
    for (int s = 0; s < MOST_STATE; ++s) {
        if (state[s]) kept[s] = pack<N>(state[s], i);
    }
    if (average) mean = pack<N>(average, i);
    for (int k = 0; k < N; ++k) {
        float slope = g.at[k] * rule.mean * rule.clip;
        slope = slope < -rule.limit ? -rule.limit : slope;
        slope = slope > rule.limit ? rule.limit : slope;
        slope += penalty * value.at[k];
        float own[MOST_STATE];
        for (int s = 0; s < MOST_STATE; ++s) own[s] = kept[s].at[k];
        value.at[k] = moved(rule, value.at[k], slope, shrink, own);
        for (int s = 0; s < MOST_STATE; ++s) kept[s].at[k] = own[s];
        mean.at[k] = lerp_as_torch(mean.at[k], value.at[k], rule.follow);
    }
    unpack(value, values, i);
    for (int s = 0; s < MOST_STATE; ++s) {
        if (state[s]) unpack(kept[s], state[s], i);
    }
    if (average) unpack(mean, average, i);
}

// One block for `per_block` elements of one parameter, a multiple of four: parts[block] says which parameter and which of
// its blocks. `decision` is the GPU's own, if there is one.
KERNEL update(
    const ParameterAddresses* parameters, const uint2* parts, Rule rule, const Decision* decision, u64 per_block
) {
    if (decision) {
        if (!decision->moves) return;
        rule.clip = decision->clip;
    }
    uint2 part = parts[blockIdx.x];
    ParameterAddresses own = parameters[part.x];
    if (own.idle) return;
    float penalty = own.decays ? rule.penalty : 0.0f, shrink = own.decays ? rule.shrink : 1.0f;
    u64 begin = part.y * per_block, n = per_block < own.n - begin ? per_block : own.n - begin;
    float* values = &own.values[begin];
    const float* gradient = &own.gradient[begin];
    float* average = own.average ? &own.average[begin] : nullptr;
    bool fits = fits_four(values) && fits_four(gradient) && fits_four(average);
    float* state[MOST_STATE];
    for (int s = 0; s < MOST_STATE; ++s) {
        state[s] = own.state[s] ? &own.state[s][begin] : nullptr;
        fits = fits && fits_four(state[s]);
    }
    u64 fours = fits ? n / 4 : 0;
    for (u64 i = threadIdx.x; i < fours; i += blockDim.x)
        update_at<4>(rule, penalty, shrink, i, values, gradient, state, average);
    for (u64 i = 4 * fours + threadIdx.x; i < n; i += blockDim.x)
        update_at<1>(rule, penalty, shrink, i, values, gradient, state, average);
}

// x becomes y, and y x.
KERNEL exchange(float* x, float* y, u64 n) {
    FOR_EACH(i, n) {
        float value = x[i];
        x[i] = y[i];
        y[i] = value;
    }
}

// The sum of squares of each part's gradient, in f64; not finite if one element is not. Zero if another rank has it.
KERNEL squares(const ParameterAddresses* parameters, const uint2* parts, double* sums, u64 per_block) {
    uint2 part = parts[blockIdx.x];
    ParameterAddresses own = parameters[part.x];
    u64 begin = part.y * per_block, n = per_block < own.n - begin ? per_block : own.n - begin;
    const float* gradient = own.gradient ? &own.gradient[begin] : nullptr;
    if (!gradient) n = 0;
    u64 fours = fits_four(gradient) ? n / 4 : 0, threads = blockDim.x;
    double sum = 0.0;
    for (u64 i = threadIdx.x; i < fours; i += 4 * threads) {
        Pack<float, 4> g[4] = {};
        for (int j = 0; j < 4; ++j) {
            if (i + j * threads < fours) g[j] = pack<4>(gradient, i + j * threads);
        }
        for (int j = 0; j < 4; ++j) {
            for (int k = 0; k < 4; ++k) sum += (double)g[j].at[k] * g[j].at[k];
        }
    }
    for (u64 i = 4 * fours + threadIdx.x; i < n; i += threads) sum += (double)gradient[i] * gradient[i];
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
