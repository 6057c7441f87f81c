// Streams: a thread for each, which does what it is given in order, and now and then late. A stream that is captured does nothing;
// its work becomes the nodes of a graph.

#include "standin.h"

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <atomic>
#include <set>

namespace standin {
namespace {

std::atomic<int> fault_left{0};
std::mutex lock;

std::set<Stream*>& streams() {
    static auto& all = *new std::set<Stream*>;
    return all;
}


void say(const char* format, va_list arguments) {
    char words[1024];
    vsnprintf(words, sizeof words, format, arguments);
    fprintf(stderr, "cuda_standin: %s\n", words);
}

double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// A copy by the card is late half of the time, anything else rarely, by up to so many microseconds.
void be_late(const Work& work, uint32_t& draws) {
    static const long most = setting("CUDA_STANDIN_DELAY_US", 300);
    draws = draws * 1664525u + 1013904223u;
    unsigned chance = work.late ? 2 : 64;
    if (most == 0 || (draws >> 8) % chance != 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds((draws >> 12) % most));
}

void work_through(Stream* stream) {
    uint32_t draws = (uint32_t)(uintptr_t)stream;
    for (;;) {
        Work work;
        {
            std::unique_lock guard(stream->lock);
            stream->changed.wait(guard, [&] { return stream->closing || !stream->queue.empty(); });
            if (stream->queue.empty()) break;
            work = std::move(stream->queue.front());
            stream->queue.pop_front();
        }
        be_late(work, draws);
        works_on(work.name.c_str());
        if (!faulted() || work.name == "event") run_counted(work);
        {
            std::lock_guard guard(stream->lock);
            ++stream->done;
        }
        stream->changed.notify_all();
    }
    // Whoever waits in `drain` has left when the stream was closed.
    delete stream;
}

}  // namespace

int refuse(int result, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    return result;
}

void fault(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    fault_left = ILLEGAL_ADDRESS;
}

int faulted() { return fault_left; }

long setting(const char* name, long otherwise) {
    const char* text = getenv(name);
    return text && *text ? atol(text) : otherwise;
}

void Mark::reach() {
    {
        std::lock_guard guard(lock);
        reached = true;
        seconds = now();
    }
    changed.notify_all();
}

void Mark::wait() {
    std::unique_lock guard(lock);
    changed.wait(guard, [&] { return reached; });
}

Stream* open_stream(Context* context) {
    auto* stream = new Stream;
    stream->context = context;
    {
        std::lock_guard guard(lock);
        streams().insert(stream);
    }
    std::thread(work_through, stream).detach();
    return stream;
}

void close_stream(Stream* stream) {
    {
        std::lock_guard guard(lock);
        streams().erase(stream);
    }
    // Under the lock, as the thread frees the stream.
    std::lock_guard guard(stream->lock);
    stream->closing = true;
    stream->changed.notify_all();
}

int submit(Stream* stream, Work work) {
    if (Graph* graph = stream->capture) {
        if (stream->mode != 2 && stream->capturing != std::this_thread::get_id()) {
            graph->is_valid = false;
            return refuse(CAPTURE_WRONG_THREAD, "%s by another thread than the one that captures", work.name.c_str());
        }
        for (Address address : work.names) {
            Allocation found;
            if (!address) continue;
            if (!usable(address, 0, work.name.c_str(), &found)) return INVALID_VALUE;
            if (found.graph != graph) graph->borrowed.push_back(found);
        }
        graph->nodes.push_back(std::move(work));
        return SUCCESS;
    }
    for (Address address : work.names) {
        if (address && !usable(address, 0, work.name.c_str())) return INVALID_VALUE;
    }
    {
        std::lock_guard guard(stream->lock);
        stream->queue.push_back(std::move(work));
        ++stream->submitted;
    }
    stream->changed.notify_all();
    return SUCCESS;
}

void drain(Stream* stream) {
    std::unique_lock guard(stream->lock);
    uint64_t until = stream->submitted;
    stream->changed.wait(guard, [&] { return stream->done >= until; });
}

void drain_all(Context* context) {
    std::vector<Stream*> of_context;
    {
        std::lock_guard guard(lock);
        for (Stream* stream : streams()) {
            if (stream->context == context) of_context.push_back(stream);
        }
    }
    for (Stream* stream : of_context) drain(stream);
}

int outside_capture(const char* call) {
    std::lock_guard guard(lock);
    for (Stream* stream : streams()) {
        // Global captures forbid it to all threads, those of a thread to that thread, relaxed ones to none.
        bool forbids = stream->mode == 0 || (stream->mode == 1 && stream->capturing == std::this_thread::get_id());
        if (!stream->capture || !forbids) continue;
        stream->capture->is_valid = false;
        return refuse(CAPTURE_UNSUPPORTED, "%s while a stream is captured", call);
    }
    return SUCCESS;
}

Stream* stream_of(void* handle) {
    Context* context = current();
    if (!context) return nullptr;
    if (!handle) return context->null_stream;
    std::lock_guard guard(lock);
    auto* stream = (Stream*)handle;
    return streams().count(stream) && stream->context == context ? stream : nullptr;
}

}  // namespace standin
