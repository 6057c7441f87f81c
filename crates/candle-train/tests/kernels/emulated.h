// Features of CUDA C++ that C++ lacks, so that the kernels of src/ops/cuda/kernels can be compiled for the CPU and
// tested where there is no GPU: a thread for each thread of a block, one block after the other.

#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

struct dim3 { unsigned x, y, z; };
struct uint2 { unsigned x, y; };

inline thread_local dim3 threadIdx;
inline dim3 blockIdx, blockDim, gridDim;
inline std::unique_ptr<std::barrier<>> all_threads;

#define __device__
#define __global__
// Blocks follow one another, so one place serves all.
#define __shared__ static

inline void __syncthreads() { all_threads->arrive_and_wait(); }

template <class T, class F>
inline T bits_of(F value) {
    T bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float __uint_as_float(unsigned bits) { return bits_of<float>(bits); }
inline unsigned __float_as_uint(float value) { return bits_of<unsigned>(value); }
inline float __int_as_float(int bits) { return bits_of<float>(bits); }

struct f16;
inline float load(f16 value);
inline void store(f16* place, float value);

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*(A*)arguments[I]...);
}

// Runs a kernel: `shape` holds blocks (x, y, z) and threads (x, y, z), `arguments` where each argument is.
template <class... A>
void launch(void (*kernel)(A...), const unsigned* shape, void** arguments) {
    gridDim = {shape[0], shape[1], shape[2]};
    blockDim = {shape[3], shape[4], shape[5]};
    unsigned count = shape[3] * shape[4] * shape[5];
    for (unsigned block = 0; block < shape[0] * shape[1] * shape[2]; ++block) {
        blockIdx = {block % shape[0], block / shape[0] % shape[1], block / shape[0] / shape[1]};
        all_threads = std::make_unique<std::barrier<>>(count);
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < count; ++i) {
            threads.emplace_back([=] {
                threadIdx = {i % shape[3], i / shape[3] % shape[4], i / shape[3] / shape[4]};
                call(kernel, arguments, std::index_sequence_for<A...>{});
                all_threads->arrive_and_drop();
            });
        }
        for (auto& thread : threads) thread.join();
    }
}
