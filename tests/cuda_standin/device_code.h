// What CUDA C++ has and C++ has not, for the text of kernels. Threads of a block that meet at barriers are fibres, which change
// there; where there is no barrier, one fibre runs all threads as a loop.

#pragma once

#include <sys/mman.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

struct dim3 { unsigned x, y, z; };
struct uint2 { unsigned x, y; };

static dim3 threadIdx, blockIdx, blockDim, gridDim;

#define __device__
#define __global__
#define __forceinline__ inline
// One kernel runs at a time, and its blocks follow one another, so one place serves all.
#define __shared__ static

// ---- addresses

namespace standin {

// Where a card's address lies; memory.cpp knows it.
inline void* (*host_of)(uint64_t);

// An address of the card within a structure.
template <typename T>
struct Pointer {
    uint64_t address;
    T& operator[](size_t i) const { return ((T*)host_of(address))[i]; }
    operator bool() const { return address != 0; }
};

template <typename T> T argument(const void* place) {
    T value;
    memcpy(&value, place, sizeof value);
    if constexpr (std::is_pointer_v<T>) return value ? (T)host_of((uint64_t)value) : nullptr;
    else return value;
}

// ---- fibres

extern "C" void standin_switch(void** leave, void* enter);
asm(R"(
    .local standin_switch
standin_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

struct Fibre {
    void* place;
    unsigned thread;
};

// The block that runs. Thread after thread goes to the next barrier, or to the end; thread 0 has none to itself until all have.
struct Block {
    void (*body)(void*);
    void* data;
    unsigned threads, started, finished;
    bool has_barriers, is_broken;
    void* scheduler;
    std::vector<Fibre*> fibres;
};

// Never destroyed: streams outlive the end of `main`.
static Block& block = *new Block{};

inline void enter_thread(unsigned thread) {
    threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
}

inline void run_thread(unsigned thread) {
    enter_thread(thread);
    block.body(block.data);
    ++block.finished;
}

inline void leave(Fibre* self);

// A fibre runs its own thread; the first one all threads, where the first meets no barrier.
[[noreturn]] inline void live() {
    for (;;) {
        Fibre* self = block.fibres[block.started - 1];
        run_thread(self->thread);
        if (!block.has_barriers) {
            while (block.finished < block.threads) run_thread(block.finished);
        }
        leave(self);
    }
}

inline Fibre* new_fibre(unsigned thread) {
    constexpr size_t STACK = 64 << 10;
    // Stacks that began alike would share a few lines of the processor's caches.
    size_t shift = thread * 448 % (STACK / 2);
    char* stack = (char*)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    // Six registers, where to begin, and 8 bytes more, as after a call.
    void** top = (void**)(stack + STACK - shift) - 8;
    memset(top, 0, 64);
    top[6] = (void*)live;
    return new Fibre{top, thread};
}

// The fibre of a thread, started if it is not.
inline Fibre* fibre_of(unsigned thread) {
    if (thread == block.started) ++block.started;
    if (thread == block.fibres.size()) block.fibres.push_back(new_fibre(thread));
    return block.fibres[thread];
}

// The end of a thread: the next one, or the end of the block.
inline void leave(Fibre* self) {
    if (block.finished == block.threads) return standin_switch(&self->place, block.scheduler);
    unsigned next = (self->thread + 1) % block.threads;
    // Thread 0 waits where others have ended.
    if (next == 0) block.is_broken = true;
    standin_switch(&self->place, fibre_of(next)->place);
}

inline void barrier() {
    block.has_barriers = true;
    if (block.finished > 0) {
        block.is_broken = true;
        return;
    }
    Fibre* self = block.fibres[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)];
    unsigned next = self->thread + 1 == block.threads ? 0 : self->thread + 1;
    if (block.threads > 1) standin_switch(&self->place, fibre_of(next)->place);
    enter_thread(self->thread);
}

// Runs all threads of the block; false if some ended where others wait for them.
inline bool run_block() {
    block.started = block.finished = 0;
    block.has_barriers = block.is_broken = false;
    block.threads = blockDim.x * blockDim.y * blockDim.z;
    standin_switch(&block.scheduler, fibre_of(0)->place);
    return !block.is_broken;
}

// ---- kernels

// What the driver asks of a kernel.
struct KernelInfo {
    unsigned count;
    const size_t* sizes;
    const bool* is_pointer;
    // Blocks (x, y, z), threads (x, y, z), and where each argument is.
    bool (*run)(const unsigned* shape, void** arguments, void* (*host_of)(uint64_t));
};

template <auto KERNEL> struct Kernel;
template <typename... A, void (*KERNEL)(A...)>
struct Kernel<KERNEL> {
    static constexpr size_t sizes[] = {sizeof(A)..., 0};
    static constexpr bool is_pointer[] = {std::is_pointer_v<A>..., false};

    template <size_t... I>
    static std::tuple<A...> arguments(void** places, std::index_sequence<I...>) {
        return {argument<A>(places[I])...};
    }

    static bool run(const unsigned* shape, void** places, void* (*address)(uint64_t)) {
        host_of = address;
        gridDim = {shape[0], shape[1], shape[2]};
        blockDim = {shape[3], shape[4], shape[5]};
        auto values = arguments(places, std::index_sequence_for<A...>{});
        block.data = &values;
        block.body = [](void* data) { std::apply(KERNEL, *(std::tuple<A...>*)data); };
        bool is_whole = true;
        for (unsigned z = 0; z < shape[2]; ++z) {
            for (unsigned y = 0; y < shape[1]; ++y) {
                for (unsigned x = 0; x < shape[0]; ++x) {
                    blockIdx = {x, y, z};
                    is_whole = run_block() && is_whole;
                }
            }
        }
        return is_whole;
    }
};

}  // namespace standin

#define STANDIN_KERNEL(NAME) \
    extern "C" __attribute__((visibility("default"))) const standin::KernelInfo standin_kernel_##NAME = { \
        sizeof(standin::Kernel<NAME>::sizes) / sizeof(size_t) - 1, standin::Kernel<NAME>::sizes, \
        standin::Kernel<NAME>::is_pointer, standin::Kernel<NAME>::run, \
    };

inline void __syncthreads() { standin::barrier(); }

// ---- numbers

template <class T, class F>
inline T bits_of(F value) {
    T bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float __uint_as_float(unsigned bits) { return bits_of<float>(bits); }
inline unsigned __float_as_uint(float value) { return bits_of<unsigned>(value); }
inline float __int_as_float(int bits) { return bits_of<float>(bits); }
