// Convolutions as products of matrices: a row of inputs for each place of the output, group by group.

#include "convolution.h"

#include <vector>

#include "numbers.h"
#include "product.h"
#include "standin.h"

namespace standin {
namespace {

// As cuDNN names them.
enum { FLOAT = 0, HALF = 2, BFLOAT16 = 9 };

typedef std::vector<float> Values;

size_t count(const long* sizes) { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }

Values read(const void* place, int type, size_t n) {
    Values values(n);
    for (size_t i = 0; i < n; ++i) {
        if (type == HALF) values[i] = (float)((const f16*)place)[i];
        else if (type == BFLOAT16) values[i] = (float)((const bf16*)place)[i];
        else values[i] = ((const float*)place)[i];
    }
    return values;
}

void write(void* place, int type, const Values& values) {
    for (size_t i = 0; i < values.size(); ++i) {
        if (type == HALF) ((f16*)place)[i] = (f16)values[i];
        else if (type == BFLOAT16) ((bf16*)place)[i] = bf16(values[i]);
        else ((float*)place)[i] = values[i];
    }
}

// One image of one group, as matrices.
struct Part {
    const Convolution& c;
    long image, group;
    long inputs = c.w[1], outputs = c.w[0] / c.groups, taps = c.w[2] * c.w[3], places = c.y[2] * c.y[3];
    long depth = taps * inputs;

    // Where the input of a tap at a place begins in x; negative outside of the image.
    long input(long place, long tap) const {
        long row = place / c.y[3] * c.stride[0] - c.padding[0] + tap / c.w[3] * c.dilation[0];
        long column = place % c.y[3] * c.stride[1] - c.padding[1] + tap % c.w[3] * c.dilation[1];
        if (row < 0 || row >= c.x[2] || column < 0 || column >= c.x[3]) return -1;
        return ((image * c.x[2] + row) * c.x[3] + column) * c.x[1] + group * inputs;
    }

    // Rows of inputs (places, depth).
    Values unfolded(const Values& x) const {
        Values rows(places * depth, 0.0f);
        for (long place = 0; place < places; ++place) {
            for (long tap = 0; tap < taps; ++tap) {
                long from = input(place, tap);
                if (from >= 0) std::copy_n(&x[from], inputs, &rows[place * depth + tap * inputs]);
            }
        }
        return rows;
    }

    void fold(const Values& rows, Values& x) const {
        for (long place = 0; place < places; ++place) {
            for (long tap = 0; tap < taps; ++tap) {
                long to = input(place, tap);
                for (long i = 0; to >= 0 && i < inputs; ++i) x[to + i] += rows[place * depth + tap * inputs + i];
            }
        }
    }

    size_t output(long place) const { return (image * places + place) * c.y[1] + group * outputs; }

    // Outputs (places, outputs).
    Values gathered(const Values& y) const {
        Values rows(places * outputs);
        for (long place = 0; place < places; ++place) std::copy_n(&y[output(place)], outputs, &rows[place * outputs]);
        return rows;
    }

    void forward(const Values& x, const Values& w, Values& y) const {
        Values weights(depth * outputs), rows = unfolded(x), out(places * outputs);
        for (long o = 0; o < outputs; ++o) {
            for (long i = 0; i < depth; ++i) weights[i * outputs + o] = w[(group * outputs + o) * depth + i];
        }
        product(outputs, places, depth, weights.data(), rows.data(), out.data());
        for (long place = 0; place < places; ++place) std::copy_n(&out[place * outputs], outputs, &y[output(place)]);
    }

    void data(const Values& w, const Values& dy, Values& dx) const {
        Values rows(places * depth), incoming = gathered(dy);
        product(depth, places, outputs, &w[group * outputs * depth], incoming.data(), rows.data());
        fold(rows, dx);
    }

    void filter(const Values& x, const Values& dy, Values& dw) const {
        Values rows = unfolded(x), incoming = gathered(dy), turned(outputs * places), sums(outputs * depth);
        for (long place = 0; place < places; ++place) {
            for (long o = 0; o < outputs; ++o) turned[o * places + place] = incoming[place * outputs + o];
        }
        product(depth, outputs, places, rows.data(), turned.data(), sums.data());
        for (size_t i = 0; i < sums.size(); ++i) dw[group * outputs * depth + i] += sums[i];
    }
};

}  // namespace

bool Convolution::fits(Direction direction, const void* a, const void* b, const void* out) const {
    size_t bytes = type == FLOAT ? 4 : 2;
    const long* sizes[3][3] = {{x, w, y}, {w, y, x}, {x, y, w}};
    auto lies = [&](const void* at, const long* of, const char* what) { return usable((Address)at, count(of) * bytes, what); };
    const long** own = sizes[direction];
    return lies(a, own[0], "cuDNN, first operand") && lies(b, own[1], "cuDNN, second operand") && lies(out, own[2], "cuDNN, result");
}

void Convolution::run(Direction direction, const void* a, const void* b, void* out) const {
    const long* sizes[3][3] = {{x, w, y}, {w, y, x}, {x, y, w}};
    const long** own = sizes[direction];
    Values first = read(a, type, count(own[0])), second = read(b, type, count(own[1])), result(count(own[2]), 0.0f);
    for (long image = 0; image < x[0]; ++image) {
        for (long group = 0; group < groups; ++group) {
            Part part{*this, image, group};
            if (direction == FORWARD) part.forward(first, second, result);
            else if (direction == DATA) part.data(first, second, result);
            else part.filter(first, second, result);
        }
    }
    write(out, type, result);
}

}  // namespace standin
