// What the files of the stand-in share: failures in words, the cards' memory, streams.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

// What programs call. Everything else stays inside the library.
#define API extern "C" __attribute__((visibility("default")))

namespace standin {

typedef uint64_t Address;

// The driver's results that occur here.
enum Result {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201, NO_DEVICE = 100, ALREADY_MAPPED = 208, FILE_NOT_FOUND = 301, INVALID_HANDLE = 400, NOT_FOUND = 500,
    NOT_READY = 600, ILLEGAL_ADDRESS = 700, HOST_MEMORY_ALREADY_REGISTERED = 712, HOST_MEMORY_NOT_REGISTERED = 713,
    LAUNCH_FAILED = 719, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903, CAPTURE_ISOLATION = 905, CAPTURED_EVENT = 907, CAPTURE_WRONG_THREAD = 908,
};

// Says on stderr what is wrong, and returns `result`, which the caller gives back.
__attribute__((format(printf, 2, 3))) int refuse(int result, const char* format, ...);

// Says on stderr what a stream's work has done wrong: from then on every call answers ILLEGAL_ADDRESS.
__attribute__((format(printf, 1, 2))) void fault(const char* format, ...);

// 0, or what a fault has left.
int faulted();

// segfault.cpp: what this thread works on, for the report of a fault of memory.
void works_on(const char* name);
void report_segfaults();

// A number of the environment.
long setting(const char* name, long otherwise);

// ---- memory.cpp: addresses of a card point nowhere; what lies there is elsewhere, at `host`.

struct Graph;

struct Allocation {
    Address address;
    size_t bytes;
    int card;
    // Counts allocations, so that memory which was freed and handed out again is told apart.
    uint64_t serial;
    Graph* graph;
};

bool on_card(Address address);
void* host(Address address);
inline void* host(const void* address) { return host((Address)address); }

// Memory of a card, or an `OUT_OF_MEMORY`; whoever runs what is enqueued calls `poison` before its first use.
int allocate(int card, size_t bytes, Graph* graph, Allocation* made);
// Nobody may name it any more; `recycle`, when what was enqueued before is done, makes it free.
int forget(Address address, Allocation* gone);
void poison(const Allocation& allocation);
void recycle(const Allocation& allocation);
bool is_allocated(const Allocation& allocation);
// Whether `bytes` from `address` on lie in memory that was allocated and not freed; says so if not.
bool usable(Address address, size_t bytes, const char* what, Allocation* found = nullptr);

struct Usage { size_t total, used, most, reserved, graphs, most_graphs; };
Usage usage(int card);
void reset_most(int card);
void reset_most_graphs(int card);
void trim(int card, size_t keep);

// The CPU's memory that is page-locked.
bool page_locked(const void* at, size_t bytes);
int lock_pages(void* at, size_t bytes);
int unlock_pages(void* at);

// ---- stream.cpp: a thread for each stream, which takes its time.

struct Context {
    int card;
    struct Stream* null_stream;
};

// Kinds of a graph's nodes, as the driver numbers them.
enum Kind { KERNEL = 0, COPY = 1, FILL = 2, HOST = 3, ALLOCATE = 10, FREE = 11 };

struct Copy { Address to, from; size_t bytes; };

// Something that a stream does, or a graph.
struct Work {
    Kind kind = KERNEL;
    std::string name;
    std::function<void()> run = {};
    // Memory of the card that it names.
    std::vector<Address> names = {};
    Copy copy = {};
    // Whether it reads or writes page-locked memory of the CPU, and so is often late.
    bool late = false;
};

struct Graph {
    std::vector<Work> nodes;
    std::vector<Allocation> memory;
    // What its nodes name of memory that is not its own.
    std::vector<Allocation> borrowed;
    bool is_valid = true;
};

struct Stream {
    Context* context;
    Graph* capture = nullptr;
    std::thread::id capturing;
    int mode = 0;
    std::mutex lock;
    std::condition_variable changed;
    std::deque<Work> queue;
    uint64_t submitted = 0, done = 0;
    bool closing = false;
};

// A moment of a stream.
struct Mark {
    std::mutex lock;
    std::condition_variable changed;
    bool reached = false;
    double seconds = 0;
    void reach();
    void wait();
};

// counts.cpp
void run_counted(const Work& work);

Stream* open_stream(Context* context);
void close_stream(Stream* stream);
// Enqueues work, or records it where the stream is captured.
int submit(Stream* stream, Work work);
void drain(Stream* stream);
void drain_all(Context* context);
// Refuses what waits or may not be recorded while this thread captures.
int outside_capture(const char* call);

// The context that is current in this thread.
Context* current();
// The stream of a handle; null for one that is unknown, or of another context than the current one.
Stream* stream_of(void* handle);

}  // namespace standin
