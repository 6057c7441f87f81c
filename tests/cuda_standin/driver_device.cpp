// The driver: cards and contexts.

#include "driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace standin;

namespace standin {
namespace {

bool initialized = false;
thread_local Context* in_thread = nullptr;
std::mutex lock;
Context contexts[8];

// The cards that CUDA_VISIBLE_DEVICES leaves, by their number.
const std::vector<int>& visible() {
    static const auto& found = *[] {
        auto* cards = new std::vector<int>;
        int count = (int)setting("CUDA_STANDIN_CARDS", 1);
        const char* shown = getenv("CUDA_VISIBLE_DEVICES");
        for (int card = 0; !shown && card < count; ++card) cards->push_back(card);
        while (shown && *shown) {
            char* rest;
            long card = strtol(shown, &rest, 10);
            // As the driver: the first that is none ends the list.
            if (rest == shown || card < 0 || card >= count) break;
            cards->push_back((int)card);
            shown = *rest == ',' ? rest + 1 : rest;
        }
        return cards;
    }();
    return found;
}

int check(int device) {
    if (!initialized) return NOT_INITIALIZED;
    return device >= 0 && device < (int)visible().size() ? SUCCESS : INVALID_DEVICE;
}

}  // namespace

Context* current() { return in_thread; }

}  // namespace standin

API int cuInit(unsigned) {
    if (visible().empty()) return NO_DEVICE;
    if (!initialized) report_segfaults();
    initialized = true;
    return SUCCESS;
}

API int cuDriverGetVersion(int* version) {
    *version = 13000;
    return SUCCESS;
}

API int cuDeviceGetCount(int* count) {
    *count = (int)visible().size();
    return initialized ? SUCCESS : NOT_INITIALIZED;
}

API int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return check(ordinal);
}

API int cuDeviceGetName(char* name, int length, int device) {
    snprintf(name, length, "stand-in for CUDA");
    return check(device);
}

API int cuDeviceTotalMem_v2(size_t* bytes, int device) {
    if (int wrong = check(device)) return wrong;
    *bytes = usage(visible()[device]).total;
    return SUCCESS;
}

API int cuDeviceGetUuid_v2(char* uuid, int device) {
    if (int wrong = check(device)) return wrong;
    memcpy(uuid, "stand-in, card 0", 16);
    uuid[15] = (char)('0' + visible()[device]);
    return SUCCESS;
}

API int cuDeviceGetUuid(char* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

API int cuDeviceGetAttribute(int* value, int attribute, int device) {
    switch (attribute) {
        case 1: *value = 1024; break;   // threads of a block
        case 8: *value = 48 << 10; break;  // shared memory of a block
        case 10: *value = 32; break;    // threads of a warp
        case 16: *value = 4; break;     // multiprocessors
        case 75: *value = 8; break;     // compute capability
        case 76: *value = 0; break;
        case 115: *value = 1; break;    // memory pools
        default: return refuse(INVALID_VALUE, "attribute %d of a device is not known here", attribute);
    }
    return check(device);
}

API int cuDevicePrimaryCtxRetain(Context** context, int device) {
    if (int wrong = check(device)) return wrong;
    std::lock_guard guard(lock);
    Context& own = contexts[visible()[device]];
    if (!own.null_stream) {
        own.card = visible()[device];
        own.null_stream = open_stream(&own);
    }
    *context = &own;
    return SUCCESS;
}

// The context stays: streams, memory and events of it may still be named.
API int cuDevicePrimaryCtxRelease_v2(int device) { return check(device); }

API int cuCtxGetCurrent(Context** context) {
    *context = in_thread;
    return faulted();
}

API int cuCtxSetCurrent(Context* context) {
    in_thread = context;
    return faulted();
}

API int cuCtxSetFlags(unsigned) {
    IN_CONTEXT("cuCtxSetFlags");
    return SUCCESS;
}

API int cuCtxSynchronize() {
    IN_CONTEXT("cuCtxSynchronize");
    if (int wrong = outside_capture("cuCtxSynchronize")) return wrong;
    drain_all(current());
    return faulted();
}

API int cuGetErrorName(int result, const char** name) {
    switch (result) {
        case SUCCESS: *name = "CUDA_SUCCESS"; break;
        case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
        case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
        case ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
        case CAPTURE_UNSUPPORTED: *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; break;
        case CAPTURE_INVALIDATED: *name = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"; break;
        default: *name = "an error of CUDA"; break;
    }
    return SUCCESS;
}

API int cuGetErrorString(int result, const char** text) {
    if (result != OUT_OF_MEMORY) return cuGetErrorName(result, text);
    *text = "out of memory";
    return SUCCESS;
}
