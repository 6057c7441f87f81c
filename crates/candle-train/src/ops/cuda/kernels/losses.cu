// Losses, and the scores of an evaluation.

// Per row of logits: its loss, and what turns the logits into the gradient: factor e^(logit - largest). A block per row.
// The target is `labels` (-1 = does not count) or `targets` (rows, classes). `best` gets the first maximum.
KERNEL cross_entropy_rows(
    const float* logits, const int* labels, const float* targets, double* losses, float* largest_of,
    float* factor_of, u32* best, double smoothing, u64 classes
) {
    u64 row = blockIdx.x, start = row * classes;
    float largest = NO_VALUE;
    for (u64 i = threadIdx.x; i < classes; i += blockDim.x) {
        float value = logits[start + i];
        if (value > largest || value != value) largest = value;
    }
    largest = block_maximum(largest);
    double exponentials = 0.0, differences = 0.0, weight = 0.0, hits = 0.0;
    // Minus the first position that holds the largest logit: a maximum finds the first.
    float first = -(float)classes;
    for (u64 i = threadIdx.x; i < classes; i += blockDim.x) {
        float difference = logits[start + i] - largest;
        exponentials += expf(difference);
        differences += difference;
        if (difference == 0.0f && -(float)i > first) first = -(float)i;
        if (targets) {
            weight += targets[start + i];
            // A probability of 0 takes no part, whatever the logit.
            if (targets[start + i] != 0.0f) hits += (double)targets[start + i] * difference;
        }
    }
    exponentials = block_sum(exponentials);
    differences = block_sum(differences);
    weight = targets ? block_sum(weight) : 1.0;
    hits = targets ? block_sum(hits) : 0.0;
    first = block_maximum(first);
    if (threadIdx.x != 0) return;
    int label = labels ? labels[row] : 0;
    if (label >= 0 && labels) hits = (double)logits[start + label] - largest;
    weight = (1.0 - smoothing) * weight + smoothing;
    double uniform = smoothing == 0.0 ? 0.0 : smoothing / classes * differences;
    double loss = weight * log(exponentials) - (1.0 - smoothing) * hits - uniform;
    losses[row] = label < 0 ? 0.0 : loss;
    largest_of[row] = largest;
    factor_of[row] = label < 0 ? 0.0f : (float)(weight / exponentials);
    if (best) best[row] = (u32)(-first);
}

// The sum of n numbers over a divisor, in one block.
KERNEL total(const double* values, float* sum, double divisor, u64 n) {
    double mine = 0.0;
    for (u64 i = threadIdx.x; i < n; i += blockDim.x) mine += values[i];
    mine = block_sum(mine);
    if (threadIdx.x == 0) *sum = (float)(mine / divisor);
}

// (softmax - target) dy / divisor
KERNEL cross_entropy_gradient(
    const float* logits, const int* labels, const float* targets, const float* largest_of, const float* factor_of,
    const float* dy, float* gradient, double smoothing, double divisor, u64 classes, u64 n
) {
    float scale = (float)(*dy / divisor);
    float hit = (float)((1.0 - smoothing) * scale);
    float uniform = (float)(smoothing * scale) / (float)classes;
    FOR_EACH(i, n) {
        u64 row = i / classes, class_ = i % classes;
        if (labels && labels[row] < 0) {
            gradient[i] = 0.0f;
            continue;
        }
        float target = targets ? targets[i] : (float)(labels[row] == (int)class_);
        float probability = expf(logits[i] - largest_of[row]) * factor_of[row];
        gradient[i] = probability * scale - uniform - hit * target;
    }
}

// Per block of elements, the sum of (p - t)^2, or |p - t| if `absolute`. A block per `per_block` elements.
KERNEL regression_sums(const float* p, const float* t, double* sums, int absolute, u64 per_block, u64 n) {
    u64 first = blockIdx.x * per_block, last = first + per_block < n ? first + per_block : n;
    double sum = 0.0;
    for (u64 i = first + threadIdx.x; i < last; i += blockDim.x) {
        double difference = (double)p[i] - (double)t[i];
        sum += absolute ? fabs(difference) : difference * difference;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

KERNEL regression_gradient(
    const float* p, const float* t, const float* dy, float* gradient, int absolute, u64 n
) {
    float scale = *dy / (float)n;
    FOR_EACH(i, n) {
        float difference = p[i] - t[i];
        float sign = difference == 0.0f ? 0.0f : copysignf(1.0f, difference);
        float slope = absolute ? (difference != difference ? difference : sign) : 2.0f * difference;
        gradient[i] = scale * slope;
    }
}
