// The driver: memory, pools, copies.

#include "driver.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

using namespace standin;

namespace {

// Addresses that tell the pools of the cards apart.
int pools[8];

int card_of_pool(void* pool) { return (int)((int*)pool - pools); }

// What is copied out of the CPU's memory that is not page-locked is taken at once, as the driver does.
int enqueue_copy(const char* call, Stream* stream, Address to, Address from, size_t bytes) {
    bool is_upload = !on_card(from), is_download = !on_card(to);
    if (bytes == 0) return SUCCESS;
    if (!is_upload && !usable(from, bytes, call)) return INVALID_VALUE;
    if (!is_download && !usable(to, bytes, call)) return INVALID_VALUE;
    Work work{.kind = COPY, .name = call, .copy = {to, from, bytes}};
    if (!is_upload) work.names.push_back(from);
    if (!is_download) work.names.push_back(to);
    bool is_locked = page_locked((void*)(is_upload ? from : to), bytes);
    work.late = is_locked && (is_upload || is_download);
    if (is_upload && !is_locked && !stream->capture) {
        auto held = std::make_shared<std::vector<char>>((char*)from, (char*)from + bytes);
        work.run = [=] { memcpy(host(to), held->data(), bytes); };
    } else {
        work.run = [=] { memcpy(host(to), host(from), bytes); };
    }
    bool waits = is_download && !is_locked && !stream->capture;
    if (int wrong = submit(stream, std::move(work))) return wrong;
    if (waits) drain(stream);
    return waits ? faulted() : SUCCESS;
}

int is_ends(const char* call, Address to, Address from, bool to_card, bool from_card) {
    if (on_card(to) == to_card && on_card(from) == from_card) return SUCCESS;
    return refuse(INVALID_VALUE, "%s: an end lies in the other memory", call);
}

// A copy or a fill that is over when the call returns.
int at_once(const char* call, int enqueued) {
    if (int wrong = outside_capture(call)) return wrong;
    if (enqueued) return enqueued;
    drain(current()->null_stream);
    return faulted();
}

int fill(const char* call, Stream* stream, Address to, unsigned char value, size_t bytes) {
    if (bytes == 0) return SUCCESS;
    if (!usable(to, bytes, call)) return INVALID_VALUE;
    return submit(stream, {.kind = FILL, .name = call, .run = [=] { memset(host(to), value, bytes); }, .names = {to}});
}

}  // namespace

#define COPY_FUNCTIONS(NAME, TO, FROM, TO_CARD, FROM_CARD) \
    API int NAME##Async_v2(TO to, FROM from, size_t bytes, void* handle) { \
        ON_STREAM(#NAME, handle); \
        if (int wrong = is_ends(#NAME, (Address)to, (Address)from, TO_CARD, FROM_CARD)) return wrong; \
        return enqueue_copy(#NAME, stream, (Address)to, (Address)from, bytes); \
    } \
    API int NAME##_v2(TO to, FROM from, size_t bytes) { \
        ON_STREAM(#NAME, nullptr); \
        if (int wrong = is_ends(#NAME, (Address)to, (Address)from, TO_CARD, FROM_CARD)) return wrong; \
        return at_once(#NAME, enqueue_copy(#NAME, stream, (Address)to, (Address)from, bytes)); \
    }
COPY_FUNCTIONS(cuMemcpyHtoD, Address, const void*, true, false)
COPY_FUNCTIONS(cuMemcpyDtoH, void*, Address, false, true)
COPY_FUNCTIONS(cuMemcpyDtoD, Address, Address, true, true)

API int cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void* handle) {
    ON_STREAM("cuMemsetD8Async", handle);
    return fill("cuMemsetD8Async", stream, to, value, bytes);
}

API int cuMemsetD8_v2(Address to, unsigned char value, size_t bytes) {
    ON_STREAM("cuMemsetD8", nullptr);
    return at_once("cuMemsetD8", fill("cuMemsetD8", stream, to, value, bytes));
}

API int cuMemAllocAsync(Address* address, size_t bytes, void* handle) {
    ON_STREAM("cuMemAllocAsync", handle);
    Allocation made;
    // No bytes are something here, and nothing to cuMemAlloc: Candle relies on it for the shapes of scalars.
    size_t some = std::max<size_t>(bytes, 1);
    if (int wrong = allocate(current()->card, some, stream->capture, &made)) return wrong;
    if (stream->capture) stream->capture->memory.push_back(made);
    *address = made.address;
    return submit(stream, {.kind = ALLOCATE, .name = "cuMemAllocAsync", .run = [=] { poison(made); }});
}

API int cuMemFreeAsync(Address address, void* handle) {
    ON_STREAM("cuMemFreeAsync", handle);
    Allocation gone;
    if (!usable(address, 0, "cuMemFreeAsync", &gone)) return INVALID_VALUE;
    if (gone.graph != stream->capture) {
        if (stream->capture) stream->capture->is_valid = false;
        return refuse(INVALID_VALUE, "cuMemFreeAsync: memory of %s is freed %s", gone.graph ? "a graph" : "no graph",
            stream->capture ? "in a capture" : "outside of it");
    }
    if (int wrong = forget(address, &gone)) return wrong;
    // A graph keeps the addresses of its memory.
    auto run = [=] { gone.graph ? poison(gone) : recycle(gone); };
    return submit(stream, {.kind = FREE, .name = "cuMemFreeAsync", .run = run});
}

API int cuMemAlloc_v2(Address* address, size_t bytes) {
    IN_CONTEXT("cuMemAlloc");
    if (int wrong = outside_capture("cuMemAlloc")) return wrong;
    if (bytes == 0) return refuse(INVALID_VALUE, "cuMemAlloc: no bytes");
    Allocation made;
    if (int wrong = allocate(current()->card, bytes, nullptr, &made)) return wrong;
    poison(made);
    *address = made.address;
    return SUCCESS;
}

API int cuMemFree_v2(Address address) {
    IN_CONTEXT("cuMemFree");
    if (int wrong = outside_capture("cuMemFree")) return wrong;
    Allocation gone;
    if (int wrong = forget(address, &gone)) return wrong;
    drain_all(current());
    recycle(gone);
    return faulted();
}

API int cuMemHostAlloc(void** at, size_t bytes, unsigned) {
    IN_CONTEXT("cuMemHostAlloc");
    if (posix_memalign(at, 4096, bytes)) return OUT_OF_MEMORY;
    memset(*at, 0xff, bytes);
    return lock_pages(*at, bytes);
}

API int cuMemFreeHost(void* at) {
    IN_CONTEXT("cuMemFreeHost");
    if (int wrong = unlock_pages(at)) return wrong;
    // As the driver: what still copies there is waited for.
    drain_all(current());
    free(at);
    return SUCCESS;
}

API int cuMemHostRegister_v2(void* at, size_t bytes, unsigned) {
    IN_CONTEXT("cuMemHostRegister");
    return lock_pages(at, bytes);
}

API int cuMemHostUnregister(void* at) {
    IN_CONTEXT("cuMemHostUnregister");
    return unlock_pages(at);
}

API int cuMemGetInfo_v2(size_t* free, size_t* total) {
    IN_CONTEXT("cuMemGetInfo");
    Usage now = usage(current()->card);
    *total = now.total;
    *free = now.total - now.reserved - now.graphs;
    return SUCCESS;
}

API int cuDeviceGetDefaultMemPool(void** pool, int device) {
    SOUND();
    *pool = &pools[device];
    return SUCCESS;
}

API int cuMemPoolSetAttribute(void* pool, int attribute, uint64_t* value) {
    SOUND();
    if (attribute == 4) return SUCCESS;  // the threshold: what is freed stays reserved here in any case
    if (attribute != 8 || *value != 0) return refuse(INVALID_VALUE, "attribute %d of a pool cannot be set to %lu", attribute, *value);
    reset_most(card_of_pool(pool));
    return SUCCESS;
}

API int cuMemPoolGetAttribute(void* pool, int attribute, uint64_t* value) {
    SOUND();
    Usage now = usage(card_of_pool(pool));
    switch (attribute) {
        case 5: *value = now.reserved; return SUCCESS;
        case 7: *value = now.used; return SUCCESS;
        case 8: *value = now.most; return SUCCESS;
        default: return refuse(INVALID_VALUE, "attribute %d of a pool is not known here", attribute);
    }
}

API int cuMemPoolTrimTo(void* pool, size_t keep) {
    SOUND();
    trim(card_of_pool(pool), keep);
    return SUCCESS;
}

API int cuDeviceGetGraphMemAttribute(int device, int attribute, uint64_t* value) {
    SOUND();
    Usage now = usage(device);
    *value = attribute % 2 ? now.most_graphs : now.graphs;
    return SUCCESS;
}

API int cuDeviceSetGraphMemAttribute(int device, int attribute, uint64_t* value) {
    SOUND();
    if (attribute % 2 == 0 || *value != 0) return refuse(INVALID_VALUE, "only the most that graphs use is set, to 0");
    reset_most_graphs(device);
    return SUCCESS;
}

API int cuDeviceGraphMemTrim(int) { return faulted(); }

API int cuPointerGetAttribute(unsigned* value, int attribute, Address address) {
    IN_CONTEXT("cuPointerGetAttribute");
    if (attribute != 2) return refuse(INVALID_VALUE, "attribute %d of an address is not known here", attribute);
    if (on_card(address)) *value = 2;
    else if (page_locked((void*)address, 1)) *value = 1;
    else return INVALID_VALUE;
    return SUCCESS;
}
