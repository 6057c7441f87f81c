// Losses, and the scores of an evaluation.

// The loss of a row whose target sums to `weight` and has the share `hits` of logit - largest.
__device__ inline double row_loss(RowSums s, double weight, double hits, double smoothing, u64 classes) {
    double uniform = smoothing == 0.0 ? 0.0 : smoothing / classes * s.differences;
    return weight * log(s.exponentials) - (1.0 - smoothing) * hits - uniform;
}

// Per row of logits: its loss, and what turns the logits into the gradient: factor e^(logit - largest). A block per row.
// The target is `labels` (-1 = does not count) or `targets` (rows, classes). `best` gets the first maximum.
KERNEL cross_entropy_rows(
    const float* logits, const int* labels, const float* targets, double* losses, float* largest_of,
    float* factor_of, u32* best, double smoothing, u64 classes
) {
    u64 row = blockIdx.x, start = row * classes;
    RowSums s = row_sums(logits + start, classes, smoothing != 0.0);
    double weight = 0.0, hits = 0.0;
    if (targets) {
        for (u64 i = threadIdx.x; i < classes; i += blockDim.x) {
            float target = targets[start + i];
            weight += target;
            // A probability of 0 takes no part, whatever the logit.
            if (target != 0.0f) hits += (double)target * (logits[start + i] - s.largest);
        }
    }
    weight = targets ? block_sum(weight) : 1.0;
    hits = targets ? block_sum(hits) : 0.0;
    if (threadIdx.x != 0) return;
    int label = labels ? labels[row] : 0;
    if (label >= 0 && labels) hits = (double)logits[start + label] - s.largest;
    weight = (1.0 - smoothing) * weight + smoothing;
    losses[row] = label < 0 ? 0.0 : row_loss(s, weight, hits, smoothing, classes);
    largest_of[row] = s.largest;
    factor_of[row] = label < 0 ? 0.0f : (float)(weight / s.exponentials);
    if (best) best[row] = s.first;
}

// Per row of logits: its loss, whether its first maximum is its label (-1 = does not count), and the gradient of the
// sum of the losses over `divisor`. A block per row. The gradient may take the place of the logits; without one it is
// not written.
KERNEL cross_entropy_scored(
    const float* logits, const int* labels, double* losses, u32* hits, float* gradient,
    double smoothing, double divisor, u64 classes
) {
    u64 row = blockIdx.x, start = row * classes;
    int label = labels[row];
    if (label < 0) {
        for (u64 i = threadIdx.x; gradient && i < classes; i += blockDim.x) gradient[start + i] = 0.0f;
        if (threadIdx.x != 0) return;
        losses[row] = 0.0;
        hits[row] = 0;
        return;
    }
    float chosen = logits[start + label];
    RowSums s = row_sums(logits + start, classes, smoothing != 0.0);
    double weight = (1.0 - smoothing) + smoothing;
    if (threadIdx.x == 0) {
        losses[row] = row_loss(s, weight, (double)chosen - s.largest, smoothing, classes);
        hits[row] = s.first == (u32)label;
    }
    if (!gradient) return;
    float scale = (float)(1.0 / divisor), factor = (float)(weight / (s.exponentials * divisor));
    float hit = (float)((1.0 - smoothing) * scale);
    float uniform = (float)(smoothing * scale) / (float)classes;
    from_differences(logits + start, gradient + start, s.largest, classes, [=](auto& values, u32 place) {
        for (float& value : values.at) value = exponential(value) * factor - uniform;
        // Few packs have the label.
        constexpr u32 n = sizeof(values.at) / sizeof(float);
        u32 at = (u32)label - place;
        if (at >= n) return;
        for (u32 k = 0; k < n; ++k) values.at[k] -= k == at ? hit : 0.0f;
    });
}

// Results of a pass, for the CPU to read later: loss, right answers, and how much the pass counts. The sum of the
// losses over a divisor is `loss`, too; without `loss`, only right answers are counted. One block.
KERNEL cross_entropy_found(
    const double* losses, const u32* hits, float* loss, double* found, double divisor, double weight, u64 n
) {
    double sum = 0.0, right = 0.0;
    for (u64 i = threadIdx.x; i < n; i += blockDim.x) {
        sum += losses[i];
        right += hits[i];
    }
    sum = block_sum(sum);
    right = block_sum(right);
    if (threadIdx.x != 0) return;
    found[1] = right;
    if (!loss) return;
    *loss = (float)(sum / divisor);
    found[0] = *loss;
    found[2] = weight;
}

// `cross_entropy_found` of a loss that is known; right answers that are negative were counted already.
KERNEL note_found(const float* loss, double* found, double right, double weight) {
    if (threadIdx.x != 0) return;
    found[0] = *loss;
    if (right >= 0.0) found[1] = right;
    found[2] = weight;
}

// x times a factor, which most often is 1.
KERNEL scale(float* x, const float* factor, u64 n) {
    float by = *factor;
    if (by == 1.0f) return;
    each(x, x, n, [=](float value, u64) { return value * by; });
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
