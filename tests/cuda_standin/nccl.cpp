// NCCL: sums and copies between processes, through memory that they share under the group's unique id. Each waits in its stream
// for the other ranks, until it is aborted.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>

#include "numbers.h"
#include "standin.h"

API int cuDeviceGetUuid_v2(char* uuid, int device);

using namespace standin;

namespace {

enum { UNHANDLED = 1, SYSTEM = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum { FLOAT16 = 6, FLOAT32 = 7, FLOAT64 = 8, BFLOAT16 = 9 };
// What becomes of the numbers of all ranks.
enum What { SUM, SUM_AT_ROOT, COPY_OF_ROOT };
constexpr size_t CHUNK = 1 << 20;
constexpr int MOST_RANKS = 16;

struct UniqueId { char bytes[128]; };

// What the ranks share; behind it lies a chunk for each.
struct Shared {
    std::atomic<int> joined, arrived, round;
    int cards[MOST_RANKS];
    struct Call { size_t count; int type, root; What what; } calls[MOST_RANKS];
};

struct Communicator {
    int rank, world;
    Shared* shared;
    std::atomic<bool> is_aborted{false};
    Stream* stream = nullptr;

    char* chunk(int of) { return (char*)(shared + 1) + of * CHUNK; }

    // Waits for all ranks; false once it was aborted.
    bool meet() {
        int round = shared->round;
        if (++shared->arrived == world) {
            shared->arrived = 0;
            ++shared->round;
        }
        while (shared->round == round) {
            if (is_aborted) return false;
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
        return true;
    }
};

// By the handle that programs have: what a stream still works with lives on.
typedef std::shared_ptr<Communicator> Handle;

size_t size_of(int type) { return type == FLOAT64 ? 8 : type == FLOAT32 ? 4 : 2; }

// Half precision is added in f32.
template <typename T>
T added(T a, T b) { return (T)((float)a + (float)b); }
double added(double a, double b) { return a + b; }

// From another rank each time, as a ring would: the order of additions is not that of the ranks.
template <typename T>
void add_up(Communicator& c, T* out, size_t n, size_t turn) {
    for (size_t i = 0; i < n; ++i) {
        T sum = ((T*)c.chunk((int)(turn % c.world)))[i];
        for (int step = 1; step < c.world; ++step) sum = added(sum, ((T*)c.chunk((int)((turn + step) % c.world)))[i]);
        out[i] = sum;
    }
}

void add_up(Communicator& c, char* to, size_t n, int type, size_t turn) {
    if (type == FLOAT64) add_up(c, (double*)to, n, turn);
    else if (type == FLOAT32) add_up(c, (float*)to, n, turn);
    else if (type == FLOAT16) add_up(c, (f16*)to, n, turn);
    else add_up(c, (bf16*)to, n, turn);
}

// Whether all ranks, which have met, make the call of this one.
bool agree(Communicator& c) {
    const Shared::Call& mine = c.shared->calls[c.rank];
    for (int rank = 0; rank < c.world; ++rank) {
        const Shared::Call& other = c.shared->calls[rank];
        if (other.count == mine.count && other.type == mine.type && other.root == mine.root && other.what == mine.what) continue;
        fault("NCCL: rank %d works on %zu numbers (type %d, root %d, kind %d) and rank %d on %zu (type %d, root %d, kind %d)", c.rank,
              mine.count, mine.type, mine.root, mine.what, rank, other.count, other.type, other.root, other.what);
        return false;
    }
    return true;
}

void exchange(Communicator& c, const char* from, char* to, const Shared::Call& call) {
    size_t bytes = call.count * size_of(call.type);
    bool is_root = c.rank == call.root;
    for (size_t start = 0, turn = 0; start < bytes; start += CHUNK, ++turn) {
        size_t length = std::min(CHUNK, bytes - start);
        c.shared->calls[c.rank] = call;
        if (call.what != COPY_OF_ROOT || is_root) memcpy(c.chunk(c.rank), from + start, length);
        if (!c.meet() || !agree(c)) return;
        if (call.what == COPY_OF_ROOT) memcpy(to + start, c.chunk(call.root), length);
        else if (call.what == SUM || is_root) add_up(c, to + start, length / size_of(call.type), call.type, turn);
        if (!c.meet()) return;
    }
}

Shared* share(const UniqueId& id, int world) {
    std::string path = std::string("/dev/shm/") + id.bytes;
    size_t bytes = sizeof(Shared) + world * CHUNK;
    int file = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0) return nullptr;
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return at == MAP_FAILED ? nullptr : (Shared*)at;
}

// Two ranks on one card are refused, unless they were allowed.
int check_cards(const Communicator& c) {
    if (setting("NCCL_MULTI_RANK_GPU_ENABLE", 0)) return SUCCESS;
    for (int a = 0; a < c.world; ++a) {
        for (int b = 0; b < a; ++b) {
            if (c.shared->cards[a] == c.shared->cards[b]) return refuse(INVALID_USAGE, "NCCL: ranks %d and %d use one card", b, a);
        }
    }
    return SUCCESS;
}

void end(Handle* handle, bool is_aborted) {
    Communicator& c = **handle;
    c.is_aborted = is_aborted;
    if (c.stream) drain(c.stream);
    munmap(c.shared, sizeof(Shared) + c.world * CHUNK);
    delete handle;
}

}  // namespace

API int ncclGetVersion(int* version) {
    *version = (int)setting("CUDA_STANDIN_NCCL", 23005);
    return SUCCESS;
}

API const char* ncclGetErrorString(int) { return "an error of the stand-in for NCCL"; }

API int ncclGetUniqueId(UniqueId* id) {
    unsigned long random = 0;
    std::ifstream("/dev/urandom").read((char*)&random, sizeof random);
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "ddprun-standin-%016lx", random);
    return SUCCESS;
}

API int ncclCommInitRank(Handle** handle, int world, UniqueId id, int rank) {
    if (!current()) return refuse(INVALID_USAGE, "NCCL: no context is current in this thread");
    if (rank < 0 || rank >= world || world > MOST_RANKS) return INVALID_ARGUMENT;
    Shared* shared = share(id, world);
    if (!shared) return refuse(SYSTEM, "NCCL: the ranks cannot share memory");
    auto made = std::make_shared<Communicator>();
    made->rank = rank;
    made->world = world;
    made->shared = shared;
    shared->cards[rank] = current()->card;
    ++shared->joined;
    while (shared->joined < world) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    unlink((std::string("/dev/shm/") + id.bytes).c_str());
    if (int wrong = check_cards(*made)) return wrong;
    *handle = new Handle(made);
    return SUCCESS;
}

// What a rank neither reads nor writes may lie anywhere.
static int enqueue(const void* from, void* to, Shared::Call call, Handle* handle, void* stream_handle) {
    Stream* stream = stream_of(stream_handle);
    if (faulted() || !stream) return refuse(UNHANDLED, "NCCL: no stream of the current context");
    Handle c = *handle;
    bool is_known = call.type == FLOAT16 || call.type == FLOAT32 || call.type == FLOAT64 || call.type == BFLOAT16;
    if (!is_known || call.root < 0 || call.root >= c->world) return refuse(INVALID_ARGUMENT, "NCCL: type %d, root %d", call.type, call.root);
    size_t bytes = call.count * size_of(call.type);
    bool reads = call.what != COPY_OF_ROOT || c->rank == call.root, writes = call.what != SUM_AT_ROOT || c->rank == call.root;
    if ((reads && !usable((Address)from, bytes, "NCCL")) || (writes && !usable((Address)to, bytes, "NCCL"))) return INVALID_ARGUMENT;
    c->stream = stream;
    Work work{.kind = KERNEL, .name = call.what == COPY_OF_ROOT ? "a copy of NCCL" : "a sum of NCCL"};
    if (reads) work.names.push_back((Address)from);
    if (writes) work.names.push_back((Address)to);
    work.late = true;
    work.run = [=] { exchange(*c, reads ? (const char*)host(from) : nullptr, writes ? (char*)host(to) : nullptr, call); };
    return submit(stream, std::move(work)) ? UNHANDLED : SUCCESS;
}

API int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, Handle* handle, void* stream) {
    if (operation != 0) return refuse(INVALID_ARGUMENT, "NCCL: operation %d", operation);
    return enqueue(from, to, {count, type, 0, SUM}, handle, stream);
}

API int ncclReduce(const void* from, void* to, size_t count, int type, int operation, int root, Handle* handle, void* stream) {
    if (operation != 0) return refuse(INVALID_ARGUMENT, "NCCL: operation %d", operation);
    return enqueue(from, to, {count, type, root, SUM_AT_ROOT}, handle, stream);
}

API int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, Handle* handle, void* stream) {
    return enqueue(from, to, {count, type, root, COPY_OF_ROOT}, handle, stream);
}

// One after the other does what all at once would.
API int ncclGroupStart() { return SUCCESS; }

API int ncclGroupEnd() { return SUCCESS; }

API int ncclCommGetAsyncError(Handle*, int* error) {
    *error = SUCCESS;
    return SUCCESS;
}

API int ncclCommAbort(Handle* handle) {
    end(handle, true);
    return SUCCESS;
}

API int ncclCommDestroy(Handle* handle) {
    end(handle, false);
    return SUCCESS;
}
