// Convolutions of images (n, h, w, c) with weights (output, height, width, input / groups).

#pragma once

namespace standin {

enum Direction { FORWARD, DATA, FILTER };

// Sizes as (n, c, h, w), as cuDNN names them.
struct Convolution {
    int type;
    long groups, x[4] = {}, w[4] = {}, y[4] = {}, padding[2] = {}, stride[2] = {}, dilation[2] = {};

    // Whether operands and result lie in memory of the card.
    bool fits(Direction direction, const void* a, const void* b, const void* out) const;
    // x, w -> y; w, dy -> dx; x, dy -> dw.
    void run(Direction direction, const void* a, const void* b, void* out) const;
};

}  // namespace standin
