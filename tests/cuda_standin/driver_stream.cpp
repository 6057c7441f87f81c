// The driver: streams, events, captures and graphs.

#include "driver.h"

#include <cstring>
#include <map>

using namespace standin;

namespace {

struct Event {
    Context* context;
    std::mutex lock = {};
    std::shared_ptr<Mark> mark = {};
    bool was_captured = false;
};

// What a graph was made into: graphs may go before it.
struct Executable {
    std::shared_ptr<Graph> graph;
};

// Graphs by their handle, alive as long as one of both is.
std::map<Graph*, std::shared_ptr<Graph>>& graphs() {
    static auto& all = *new std::map<Graph*, std::shared_ptr<Graph>>;
    return all;
}

std::mutex graphs_lock;

std::shared_ptr<Mark> mark_of(Event* event) {
    std::lock_guard guard(event->lock);
    return event->mark;
}

// Memory that a graph's nodes name must still be what it was.
int check_borrowed(const Graph& graph) {
    for (const Allocation& borrowed : graph.borrowed) {
        if (!is_allocated(borrowed)) return refuse(INVALID_VALUE, "a graph works with memory that was freed");
    }
    return SUCCESS;
}

}  // namespace

API int cuStreamCreate(Stream** stream, unsigned) {
    IN_CONTEXT("cuStreamCreate");
    *stream = open_stream(current());
    return SUCCESS;
}

API int cuStreamCreateWithPriority(Stream** stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }

API int cuStreamDestroy_v2(void* handle) {
    ON_STREAM("cuStreamDestroy", handle);
    close_stream(stream);
    return SUCCESS;
}

API int cuStreamSynchronize(void* handle) {
    ON_STREAM("cuStreamSynchronize", handle);
    if (stream->capture) {
        stream->capture->is_valid = false;
        return refuse(CAPTURE_UNSUPPORTED, "cuStreamSynchronize of a stream that is captured");
    }
    drain(stream);
    return faulted();
}

API int cuStreamWaitEvent(void* handle, Event* event, unsigned) {
    ON_STREAM("cuStreamWaitEvent", handle);
    auto mark = mark_of(event);
    if (stream->capture) {
        if (!mark) return SUCCESS;
        stream->capture->is_valid = false;
        return refuse(CAPTURE_ISOLATION, "a stream that is captured waits for an event from outside");
    }
    if (event->was_captured) return refuse(CAPTURE_ISOLATION, "a stream waits for an event that was captured");
    if (!mark) return SUCCESS;
    return submit(stream, {.kind = HOST, .name = "event", .run = [=] { mark->wait(); }});
}

API int cuEventCreate(Event** event, unsigned) {
    IN_CONTEXT("cuEventCreate");
    *event = new Event{.context = current()};
    return SUCCESS;
}

API int cuEventDestroy_v2(Event* event) {
    IN_CONTEXT("cuEventDestroy");
    delete event;
    return SUCCESS;
}

API int cuEventRecord(Event* event, void* handle) {
    ON_STREAM("cuEventRecord", handle);
    if (event->context != stream->context) return refuse(INVALID_HANDLE, "an event of another context is recorded");
    auto mark = std::make_shared<Mark>();
    event->was_captured = stream->capture;
    if (stream->capture) return SUCCESS;
    {
        std::lock_guard guard(event->lock);
        event->mark = mark;
    }
    return submit(stream, {.kind = HOST, .name = "event", .run = [=] { mark->reach(); }});
}

API int cuEventQuery(Event* event) {
    IN_CONTEXT("cuEventQuery");
    if (int wrong = outside_capture("cuEventQuery")) return wrong;
    if (event->was_captured) return refuse(CAPTURED_EVENT, "an event that was captured is asked for");
    auto mark = mark_of(event);
    if (!mark) return SUCCESS;
    std::lock_guard guard(mark->lock);
    return mark->reached ? SUCCESS : NOT_READY;
}

API int cuEventSynchronize(Event* event) {
    IN_CONTEXT("cuEventSynchronize");
    if (int wrong = outside_capture("cuEventSynchronize")) return wrong;
    if (event->was_captured) return refuse(CAPTURED_EVENT, "an event that was captured is waited for");
    if (auto mark = mark_of(event)) mark->wait();
    return faulted();
}

API int cuEventElapsedTime_v2(float* milliseconds, Event* from, Event* to) {
    IN_CONTEXT("cuEventElapsedTime");
    auto start = mark_of(from), end = mark_of(to);
    if (!start || !end) return refuse(INVALID_HANDLE, "the time between events that were not recorded");
    *milliseconds = (float)(1e3 * (end->seconds - start->seconds));
    return SUCCESS;
}

API int cuStreamBeginCapture_v2(void* handle, int mode) {
    ON_STREAM("cuStreamBeginCapture", handle);
    if (!handle) return refuse(CAPTURE_UNSUPPORTED, "the null stream is captured");
    if (stream->capture) return refuse(INVALID_VALUE, "a stream is captured twice at a time");
    stream->capturing = std::this_thread::get_id();
    stream->mode = mode;
    stream->capture = new Graph;
    return SUCCESS;
}

API int cuStreamIsCapturing(void* handle, int* status) {
    ON_STREAM("cuStreamIsCapturing", handle);
    *status = !stream->capture ? 0 : stream->capture->is_valid ? 1 : 2;
    return SUCCESS;
}

API int cuStreamEndCapture(void* handle, Graph** made) {
    ON_STREAM("cuStreamEndCapture", handle);
    Graph* graph = stream->capture;
    if (!graph) return refuse(INVALID_VALUE, "a capture ends that was not begun");
    if (stream->capturing != std::this_thread::get_id()) return refuse(CAPTURE_WRONG_THREAD, "a capture ends in another thread");
    stream->capture = nullptr;
    *made = nullptr;
    if (!graph->is_valid) return CAPTURE_INVALIDATED;
    std::lock_guard guard(graphs_lock);
    auto free_memory = [](Graph* old) {
        for (Allocation& own : old->memory) {
            Allocation gone;
            if (is_allocated(own)) forget(own.address, &gone);
            recycle(own);
        }
        delete old;
    };
    graphs()[graph] = std::shared_ptr<Graph>(graph, free_memory);
    *made = graph;
    return SUCCESS;
}

API int cuGraphInstantiateWithFlags(Executable** made, Graph* graph, unsigned long long) {
    IN_CONTEXT("cuGraphInstantiate");
    std::lock_guard guard(graphs_lock);
    *made = new Executable{graphs()[graph]};
    return SUCCESS;
}

API int cuGraphUpload(Executable*, void* handle) {
    ON_STREAM("cuGraphUpload", handle);
    return SUCCESS;
}

API int cuGraphLaunch(Executable* executable, void* handle) {
    ON_STREAM("cuGraphLaunch", handle);
    if (stream->capture) return refuse(NOT_SUPPORTED, "a graph is launched in a capture");
    auto graph = executable->graph;
    if (int wrong = check_borrowed(*graph)) return wrong;
    auto run = [=] {
        for (const Work& node : graph->nodes) {
            if (!faulted()) run_counted(node);
        }
    };
    return submit(stream, {.kind = KERNEL, .name = "a graph", .run = run});
}

API int cuGraphDestroy(Graph* graph) {
    SOUND();
    std::lock_guard guard(graphs_lock);
    graphs().erase(graph);
    return SUCCESS;
}

API int cuGraphExecDestroy(Executable* executable) {
    SOUND();
    delete executable;
    return SUCCESS;
}

API int cuGraphGetNodes(Graph* graph, const Work** nodes, size_t* count) {
    SOUND();
    size_t room = nodes ? *count : 0;
    for (size_t i = 0; i < std::min(room, graph->nodes.size()); ++i) nodes[i] = &graph->nodes[i];
    *count = graph->nodes.size();
    return SUCCESS;
}

API int cuGraphNodeGetType(const Work* node, int* kind) {
    SOUND();
    *kind = node->kind;
    return SUCCESS;
}

// As the driver's structure of a copy in three dimensions.
struct Copy3D {
    struct End {
        size_t x, y, z, detail;
        int memory;
        void* on_cpu;
        Address on_card;
        void *array, *reserved;
        size_t pitch, height;
    } from, to;
    size_t width, height, depth;
};

API int cuGraphMemcpyNodeGetParams(const Work* node, Copy3D* copy) {
    SOUND();
    if (node->kind != COPY) return refuse(INVALID_VALUE, "a node that copies nothing is asked what it copies");
    memset(copy, 0, sizeof *copy);
    copy->width = node->copy.bytes;
    copy->height = copy->depth = 1;
    auto describe = [&](Copy3D::End& end, Address address) {
        end.pitch = node->copy.bytes;
        end.on_card = address;
        end.on_cpu = (void*)address;
        // The driver may leave it to the address (4), or say that it is the card's (2) or the CPU's (1).
        bool is_said = (address >> 9) % 2;
        end.memory = !is_said ? 4 : on_card(address) ? 2 : 1;
    };
    describe(copy->from, node->copy.from);
    describe(copy->to, node->copy.to);
    return SUCCESS;
}

API int cuLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
    ON_STREAM("cuLaunchHostFunc", handle);
    return submit(stream, {.kind = HOST, .name = "cuLaunchHostFunc", .run = [=] { function(data); }});
}
