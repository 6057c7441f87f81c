// What the stand-in promises to notice, done wrong on purpose: each in a process of its own, and each must be noticed.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

typedef unsigned long u64;

// Their arguments are those of CUDA's headers.
#define DECLARE(NAME) extern "C" int NAME(...);
DECLARE(cuInit) DECLARE(cuDevicePrimaryCtxRetain) DECLARE(cuCtxSetCurrent) DECLARE(cuStreamCreate) DECLARE(cuStreamSynchronize)
DECLARE(cuMemAllocAsync) DECLARE(cuMemFreeAsync) DECLARE(cuMemcpyHtoDAsync_v2) DECLARE(cuMemcpyDtoHAsync_v2)
DECLARE(cuMemHostAlloc) DECLARE(cuStreamBeginCapture_v2) DECLARE(cuStreamEndCapture) DECLARE(cuGraphInstantiateWithFlags)
DECLARE(cuGraphLaunch) DECLARE(cuMemsetD8Async) DECLARE(cuEventCreate) DECLARE(cuEventRecord) DECLARE(cuStreamWaitEvent)
DECLARE(nvrtcCreateProgram) DECLARE(nvrtcCompileProgram) DECLARE(nvrtcGetCUBINSize) DECLARE(nvrtcGetCUBIN)
DECLARE(cuModuleLoadData) DECLARE(cuModuleGetFunction) DECLARE(cuLaunchKernel)

enum { INVALID_VALUE = 1, INVALID_CONTEXT = 201, ILLEGAL_ADDRESS = 700, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901 };

static void must(int result) {
    if (result != 0) {
        fprintf(stderr, "unexpected result %d\n", result);
        _exit(1);
    }
}

static void* stream;
static const u64 N = 1000;

static u64 allocated(void* on = stream) {
    u64 address;
    must(cuMemAllocAsync(&address, 4 * N, on));
    return address;
}

static std::vector<float> downloaded(u64 from, void* on = stream) {
    std::vector<float> values(N);
    must(cuMemcpyDtoHAsync_v2(values.data(), from, 4 * N, on));
    return values;
}

static void* kernel(const char* text) {
    void *program, *module, *function;
    const char* option = "--gpu-architecture=sm_80";
    u64 bytes;
    must(nvrtcCreateProgram(&program, text, nullptr, 0, nullptr, nullptr));
    must(nvrtcCompileProgram(program, 1, &option));
    must(nvrtcGetCUBINSize(program, &bytes));
    std::vector<char> image(bytes);
    must(nvrtcGetCUBIN(program, image.data()));
    must(cuModuleLoadData(&module, image.data()));
    must(cuModuleGetFunction(&function, module, "wrong"));
    return function;
}

static int launch(void* function, u64 address) {
    u64 n = N;
    void* arguments[] = {&address, &n};
    return cuLaunchKernel(function, 1u, 1u, 1u, 32u, 1u, 1u, 0u, stream, arguments, nullptr);
}

#define TYPES "struct f16 { unsigned short bits; };\n"

static bool the_cpu_reads_an_address_of_the_card() {
    u64 address = allocated();
    must(cuStreamSynchronize(stream));
    signal(SIGSEGV, [](int) { _exit(0); });
    return *(volatile float*)address == 0.0f && false;
}

static bool memory_is_read_before_it_is_written() { return std::isnan(downloaded(allocated())[N - 1]); }

static bool memory_that_was_freed_is_named() {
    u64 address = allocated();
    must(cuMemFreeAsync(address, stream));
    return cuMemsetD8Async(address, 0, 4, stream) == INVALID_VALUE;
}

static bool more_is_copied_than_was_allocated() {
    return cuMemsetD8Async(allocated(), 0, 4 * N + 1, stream) == INVALID_VALUE;
}

static bool a_kernel_writes_behind_its_memory() {
    u64 address = allocated();
    const char* text = TYPES "extern \"C\" __global__ void wrong(float* x, unsigned long long n) { if (threadIdx.x == 0) x[n] = 0; }";
    must(launch(kernel(text), address));
    must(cuMemFreeAsync(address, stream));
    return cuStreamSynchronize(stream) == ILLEGAL_ADDRESS;
}

static bool a_thread_ends_where_others_wait() {
    const char* text = TYPES "extern \"C\" __global__ void wrong(float* x, unsigned long long n) { if (threadIdx.x) __syncthreads(); }";
    must(launch(kernel(text), allocated()));
    return cuStreamSynchronize(stream) == ILLEGAL_ADDRESS;
}

// Copies out of page-locked memory are late half of the time.
static bool page_locked_memory_is_written_while_it_is_copied() {
    float* held;
    must(cuMemHostAlloc(&held, 4 * N, 0));
    u64 address = allocated();
    int wrong = 0;
    for (int turn = 0; turn < 40; ++turn) {
        held[N - 1] = 1.0f;
        must(cuMemcpyHtoDAsync_v2(address, held, 4 * N, stream));
        held[N - 1] = 2.0f;
        wrong += downloaded(address)[N - 1] == 2.0f;
    }
    return wrong > 0;
}

static bool a_stream_does_not_wait_for_another() {
    void* other;
    must(cuStreamCreate(&other, 1));
    float* held;
    must(cuMemHostAlloc(&held, 4 * N, 0));
    int wrong = 0;
    for (int turn = 0; turn < 40; ++turn) {
        u64 address = allocated();
        must(cuStreamSynchronize(stream));
        memset(held, 0, 4 * N);
        must(cuMemcpyHtoDAsync_v2(address, held, 4 * N, stream));
        wrong += std::isnan(downloaded(address, other)[0]);
    }
    return wrong > 0;
}

static bool a_thread_has_no_context() {
    int result = 0;
    std::thread([&] { result = cuStreamSynchronize(stream); }).join();
    return result == INVALID_CONTEXT;
}

static bool a_capture_waits() {
    void* graph;
    must(cuStreamBeginCapture_v2(stream, 1));
    int waited = cuStreamSynchronize(stream);
    return waited == CAPTURE_UNSUPPORTED && cuStreamEndCapture(stream, &graph) == CAPTURE_INVALIDATED;
}

static bool memory_of_no_graph_is_freed_in_a_capture() {
    u64 address = allocated();
    must(cuStreamBeginCapture_v2(stream, 1));
    return cuMemFreeAsync(address, stream) == INVALID_VALUE;
}

static bool a_graph_works_with_memory_that_was_freed() {
    void *graph, *made;
    u64 address = allocated();
    must(cuStreamBeginCapture_v2(stream, 1));
    must(cuMemsetD8Async(address, 0, 4, stream));
    must(cuStreamEndCapture(stream, &graph));
    must(cuGraphInstantiateWithFlags(&made, graph, 0ull));
    must(cuGraphLaunch(made, stream));
    must(cuMemFreeAsync(address, stream));
    return cuGraphLaunch(made, stream) == INVALID_VALUE;
}

struct Case {
    const char* name;
    bool (*is_noticed)();
};
#define CASE(NAME) {#NAME, NAME}
static const Case CASES[] = {
    CASE(the_cpu_reads_an_address_of_the_card), CASE(memory_is_read_before_it_is_written), CASE(memory_that_was_freed_is_named),
    CASE(more_is_copied_than_was_allocated), CASE(a_kernel_writes_behind_its_memory), CASE(a_thread_ends_where_others_wait),
    CASE(page_locked_memory_is_written_while_it_is_copied), CASE(a_stream_does_not_wait_for_another), CASE(a_thread_has_no_context),
    CASE(a_capture_waits), CASE(memory_of_no_graph_is_freed_in_a_capture), CASE(a_graph_works_with_memory_that_was_freed),
};

static bool passes(const Case& one) {
    pid_t child = fork();
    if (child == 0) {
        void* context;
        must(cuInit(0));
        must(cuDevicePrimaryCtxRetain(&context, 0));
        must(cuCtxSetCurrent(context));
        must(cuStreamCreate(&stream, 1));
        _exit(one.is_noticed() ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    bool is_noticed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    printf("%s ... %s\n", one.name, is_noticed ? "noticed" : "NOT NOTICED");
    fflush(stdout);
    return is_noticed;
}

int main() {
    int missed = 0;
    for (const Case& one : CASES) missed += !passes(one);
    return missed > 0;
}
