// cuDNN: convolutions in three directions. Its lists of algorithms are mixed: the first gives other bits each time, the second
// wants too much memory, the third is refused when it is run, and work memory is less or more by the type of arithmetic.

#include <cstring>

#include "convolution.h"
#include "standin.h"

using namespace standin;

namespace {

enum { NOT_INITIALIZED_YET = 1001, BAD_PARAM = 2000, UNSUPPORTED = 3000, FAILED = 5000 };
enum { DEFAULT_MATH = 0, TENSOR_OP_MATH = 1, FMA_MATH = 3 };
enum { NHWC = 1 };

struct Handle { void* stream = nullptr; };
struct Tensor { int type = -1, format, sizes[4]; };
struct Description {
    int padding[2], stride[2], dilation[2], mode = -1, type, math = DEFAULT_MATH, groups = 1;
};

struct Estimate {
    int algorithm, status;
    float time;
    size_t memory;
    int determinism, math, reserved[3];
};
static_assert(sizeof(Estimate) == 48);

Convolution shape(const Tensor& x, const Tensor& w, const Tensor& y, const Description& d) {
    Convolution c{.type = x.type, .groups = d.groups};
    for (int i = 0; i < 4; ++i) {
        c.x[i] = x.sizes[i];
        c.w[i] = w.sizes[i];
        c.y[i] = y.sizes[i];
    }
    for (int i = 0; i < 2; ++i) {
        c.padding[i] = d.padding[i];
        c.stride[i] = d.stride[i];
        c.dilation[i] = d.dilation[i];
    }
    return c;
}

int check(const Tensor& x, const Tensor& w, const Tensor& y, const Description& d) {
    bool are_alike = x.type == w.type && x.type == y.type && x.format == NHWC && w.format == NHWC && y.format == NHWC;
    if (!are_alike || d.mode != 1 || d.type != 0) return refuse(UNSUPPORTED, "cuDNN: types, formats or modes that are not known here");
    Convolution c = shape(x, w, y, d);
    for (int axis = 0; axis < 2; ++axis) {
        long reach = c.dilation[axis] * (c.w[2 + axis] - 1) + 1;
        long length = (c.x[2 + axis] + 2 * c.padding[axis] - reach) / c.stride[axis] + 1;
        if (length != c.y[2 + axis]) return refuse(BAD_PARAM, "cuDNN: axis %d has %ld results, not %ld", axis, length, c.y[2 + axis]);
    }
    bool fit = c.x[0] == c.y[0] && c.w[0] == c.y[1] && c.w[1] * c.groups == c.x[1] && c.w[0] % c.groups == 0;
    return fit ? SUCCESS : refuse(BAD_PARAM, "cuDNN: channels or images do not fit");
}

constexpr int RANDOM = 0, GREEDY = 3, REFUSED = 2, PLAIN = 1;

// What an algorithm wants: FMA more than the estimate, which is for the arithmetic that it names.
size_t memory_of(int algorithm, int math, const Tensor& y) {
    if (algorithm == GREEDY) return 3ul << 30;
    size_t rows = (size_t)y.sizes[2] * y.sizes[3];
    return algorithm == PLAIN ? 256 + rows * (math == FMA_MATH ? 8 : 4) : 64;
}

int list(const Tensor& x, const Tensor& w, const Tensor& y, const Description& d, int room, int* count, Estimate* found) {
    if (int wrong = check(x, w, y, d)) return wrong;
    *count = 0;
    // It has no algorithm for groups of odd numbers of channels.
    if (d.groups > 1 && w.sizes[1] % 2 == 1) return UNSUPPORTED;
    for (int algorithm : {RANDOM, GREEDY, REFUSED, PLAIN}) {
        if (*count == room) break;
        int math = x.type == 0 && d.math == FMA_MATH ? FMA_MATH : TENSOR_OP_MATH;
        bool is_refused = algorithm == REFUSED && d.groups > 1;
        size_t memory = memory_of(algorithm, math, y);
        found[(*count)++] = {algorithm, is_refused ? UNSUPPORTED : 0, (float)*count, memory, algorithm != RANDOM, math, {}};
    }
    return SUCCESS;
}

struct Operands { const void *a, *b; void* out; };

int run(
    Handle* handle, Direction direction, const Tensor& x, const Tensor& w, const Tensor& y, const Description& d, int algorithm,
    void* workspace, size_t bytes, const float* alpha, const float* beta, Operands at
) {
    Stream* stream = stream_of(handle->stream);
    if (faulted() || !stream) return refuse(FAILED, "cuDNN: no stream of the current context");
    if (int wrong = check(x, w, y, d)) return wrong;
    if (*alpha != 1 || *beta != 0) return refuse(UNSUPPORTED, "cuDNN: factors other than 1 and 0");
    if (algorithm == REFUSED) return UNSUPPORTED;
    size_t needed = memory_of(algorithm, d.math, y);
    if (bytes < needed || !usable((Address)workspace, bytes, "cuDNN's work memory")) {
        return refuse(BAD_PARAM, "cuDNN: %zu bytes of work memory, %zu are needed", bytes, needed);
    }
    Convolution c = shape(x, w, y, d);
    if (!c.fits(direction, at.a, at.b, at.out)) return BAD_PARAM;
    Work work{.kind = KERNEL, .name = "a convolution of cuDNN"};
    work.names = {(Address)at.a, (Address)at.b, (Address)at.out, (Address)workspace};
    work.run = [=] {
        memset(host(workspace), 0xa5, needed);
        c.run(direction, host(at.a), host(at.b), host(at.out));
    };
    return submit(stream, std::move(work)) ? FAILED : SUCCESS;
}

}  // namespace

API size_t cudnnGetVersion() { return 91000; }
API size_t cudnnGetCudartVersion() { return 13000; }
API const char* cudnnGetErrorString(int) { return "an error of the stand-in for cuDNN"; }

API int cudnnCreate(Handle** handle) {
    if (!current()) return refuse(NOT_INITIALIZED_YET, "cuDNN: no context is current in this thread");
    *handle = new Handle;
    return SUCCESS;
}

API int cudnnSetStream(Handle* handle, void* stream) {
    handle->stream = stream;
    return SUCCESS;
}

#define DESCRIPTOR(NAME, TYPE) \
    API int cudnnCreate##NAME(TYPE** made) { \
        *made = new TYPE; \
        return SUCCESS; \
    } \
    API int cudnnDestroy##NAME(TYPE* gone) { \
        delete gone; \
        return SUCCESS; \
    }
DESCRIPTOR(TensorDescriptor, Tensor)
DESCRIPTOR(FilterDescriptor, Tensor)
DESCRIPTOR(ConvolutionDescriptor, Description)

API int cudnnDestroy(Handle* handle) {
    delete handle;
    return SUCCESS;
}

API int cudnnSetTensor4dDescriptor(Tensor* tensor, int format, int type, int n, int c, int h, int w) {
    *tensor = {type, format, {n, c, h, w}};
    return n > 0 && c > 0 && h > 0 && w > 0 ? SUCCESS : BAD_PARAM;
}

API int cudnnSetFilter4dDescriptor(Tensor* tensor, int type, int format, int k, int c, int h, int w) {
    return cudnnSetTensor4dDescriptor(tensor, format, type, k, c, h, w);
}

API int cudnnSetConvolution2dDescriptor(Description* d, int ph, int pw, int sh, int sw, int dh, int dw, int mode, int type) {
    *d = {{ph, pw}, {sh, sw}, {dh, dw}, mode, type};
    return sh > 0 && sw > 0 && dh > 0 && dw > 0 ? SUCCESS : BAD_PARAM;
}

API int cudnnSetConvolutionMathType(Description* d, int math) {
    d->math = math;
    return SUCCESS;
}

API int cudnnSetConvolutionGroupCount(Description* d, int groups) {
    d->groups = groups;
    return SUCCESS;
}

// The three directions, which name their operands in orders of their own.
#define DIRECTION(NAME, WHICH, A, B, OUT) \
    API int cudnnGetConvolution##NAME##Algorithm_v7( \
        Handle*, Tensor* A, Tensor* B, Description* d, Tensor* OUT, int room, int* count, Estimate* found \
    ) { \
        return list(*x, *w, *y, *d, room, count, found); \
    } \
    API int cudnnGetConvolution##NAME##WorkspaceSize( \
        Handle*, Tensor* A, Tensor* B, Description* d, Tensor* OUT, int algorithm, size_t* bytes \
    ) { \
        *bytes = memory_of(algorithm, d->math, *y); \
        return check(*x, *w, *y, *d); \
    } \
    API int cudnnConvolution##NAME( \
        Handle* handle, const float* alpha, Tensor* A, const void* first, Tensor* B, const void* second, Description* d, int algorithm, \
        void* workspace, size_t bytes, const float* beta, Tensor* OUT, void* out \
    ) { \
        return run(handle, WHICH, *x, *w, *y, *d, algorithm, workspace, bytes, alpha, beta, {first, second, out}); \
    }
DIRECTION(Forward, FORWARD, x, w, y)
DIRECTION(BackwardData, DATA, w, y, x)
DIRECTION(BackwardFilter, FILTER, x, y, w)
