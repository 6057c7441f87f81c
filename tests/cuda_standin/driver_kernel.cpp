// The driver: modules, and launches of kernels. A module is either what the stand-in's nvrtc has made, or, for any other image,
// Candle's own kernels, which candle_*.cpp define under the same names.

#include "driver.h"

#include <dlfcn.h>

#include <cstring>
#include <map>

#include "device_code.h"

using namespace standin;

namespace {

struct Module;

struct Function {
    std::string name;
    const KernelInfo* info;
};

struct Module {
    void* library;
    std::map<std::string, Function> functions;
};

// Shared memory is static, so one kernel runs at a time.
std::mutex one_kernel;
std::mutex modules;

void* own_library() {
    Dl_info found;
    dladdr((void*)own_library, &found);
    return dlopen(found.dli_fname, RTLD_NOW | RTLD_NOLOAD);
}

// Arguments as they are at the launch.
struct Arguments {
    std::vector<char> bytes;
    std::vector<size_t> starts;

    Arguments(const KernelInfo& info, void** places) {
        for (unsigned i = 0; i < info.count; ++i) {
            starts.push_back((bytes.size() + 15) / 16 * 16);
            bytes.resize(starts.back() + info.sizes[i]);
            memcpy(bytes.data() + starts.back(), places[i], info.sizes[i]);
        }
    }

    std::vector<void*> places() {
        std::vector<void*> all;
        for (size_t start : starts) all.push_back(bytes.data() + start);
        return all;
    }
};

int check_shape(const char* name, const unsigned* shape) {
    unsigned long threads = (unsigned long)shape[3] * shape[4] * shape[5];
    bool is_empty = shape[0] == 0 || shape[1] == 0 || shape[2] == 0 || threads == 0;
    if (!is_empty && shape[0] < 1u << 31 && shape[1] < 1 << 16 && shape[2] < 1 << 16 && threads <= 1024) return SUCCESS;
    return refuse(INVALID_VALUE, "%s: %u x %u x %u blocks of %lu threads", name, shape[0], shape[1], shape[2], threads);
}

}  // namespace

API int cuModuleLoadData(Module** module, const char* image) {
    IN_CONTEXT("cuModuleLoadData");
    if (int wrong = outside_capture("cuModuleLoadData")) return wrong;
    bool is_own = strncmp(image, "STANDIN ", 8) == 0;
    void* library = is_own ? dlopen(image + 8, RTLD_NOW | RTLD_LOCAL) : own_library();
    if (!library) return refuse(INVALID_IMAGE, "a module cannot be loaded: %s", dlerror());
    *module = new Module{library, {}};
    return SUCCESS;
}

API int cuModuleUnload(Module* module) {
    SOUND();
    delete module;
    return SUCCESS;
}

API int cuModuleGetFunction(Function** function, Module* module, const char* name) {
    IN_CONTEXT("cuModuleGetFunction");
    std::lock_guard guard(modules);
    auto found = module->functions.find(name);
    if (found == module->functions.end()) {
        void* info = dlsym(module->library, (std::string("standin_kernel_") + name).c_str());
        if (!info) return refuse(NOT_FOUND, "there is no kernel `%s` here", name);
        found = module->functions.emplace(name, Function{name, (const KernelInfo*)info}).first;
    }
    *function = &found->second;
    return SUCCESS;
}

API int cuFuncGetAttribute(int* value, int, Function*) {
    SOUND();
    *value = 1024;
    return SUCCESS;
}

API int cuLaunchKernel(
    Function* function, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty, unsigned tz, unsigned, void* handle,
    void** places, void**
) {
    ON_STREAM(function->name.c_str(), handle);
    std::vector<unsigned> shape = {bx, by, bz, tx, ty, tz};
    if (int wrong = check_shape(function->name.c_str(), shape.data())) return wrong;
    const KernelInfo& info = *function->info;
    auto arguments = std::make_shared<Arguments>(info, places);
    Work work{.kind = KERNEL, .name = function->name};
    for (unsigned i = 0; i < info.count; ++i) {
        if (info.is_pointer[i]) work.names.push_back(*(Address*)places[i]);
    }
    work.run = [=, name = function->name] {
        std::lock_guard guard(one_kernel);
        auto held = arguments->places();
        if (!info.run(shape.data(), held.data(), host)) fault("%s: some threads end where others wait for them", name.c_str());
    };
    return submit(stream, std::move(work));
}
