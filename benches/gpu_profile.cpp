// Profile of a program's last moments on a GPU, by kernel. No profiler is needed: CUDA loads this library into any
// program, ours or PyTorch's, and CUPTI, which comes with the toolkit and with PyTorch, tells it of each kernel and
// copy.
//
//     c++ -std=c++20 -O2 -shared -fPIC -I"$CUDA_HOME/include" -I"$CUDA_HOME/extras/CUPTI/include" benches/gpu_profile.cpp -o profile.so -l:libcupti.so.13
//     CUDA_INJECTION64_PATH=$PWD/profile.so PROFILE_MS=400 PROGRAM
//
// At the end of the program it prints, for the last PROFILE_MS milliseconds of work, each kernel's share of that time, how often
// it ran and for how long; how busy the GPU was comes first.

#include <cupti.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Activity {
    uint64_t start, end;
    const std::string* name;
};

struct Total {
    int count = 0;
    uint64_t nanoseconds = 0;
};

std::mutex guard;
std::vector<Activity> activities;
// Addresses of keys stay.
std::map<std::string, bool> names;

void add(uint64_t start, uint64_t end, const std::string& name) {
    activities.push_back({start, end, &names.emplace(name, true).first->first});
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
    *bytes = 8 << 20;
    *buffer = (uint8_t*)aligned_alloc(8, *bytes);
    *most_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t bytes) {
    std::lock_guard<std::mutex> alone(guard);
    CUpti_Activity* record = nullptr;
    while (cuptiActivityGetNextRecord(buffer, bytes, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            // Later versions of the structure begin alike.
            auto* kernel = (CUpti_ActivityKernel9*)record;
            add(kernel->start, kernel->end, kernel->name ? kernel->name : "(a kernel without a name)");
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            auto* copy = (CUpti_ActivityMemcpy5*)record;
            const char* from_to[] = {"?", "CPU to GPU", "GPU to CPU", "?", "?", "?", "?", "?", "within the GPU"};
            add(copy->start, copy->end, std::string("(copy ") + (copy->copyKind < 9 ? from_to[copy->copyKind] : "?") + ")");
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            auto* set = (CUpti_ActivityMemset4*)record;
            add(set->start, set->end, "(memset)");
        }
    }
    free(buffer);
}

void print() {
    cuptiActivityFlushAll(1);
    std::lock_guard<std::mutex> alone(guard);
    if (activities.empty()) return;
    const char* window = getenv("PROFILE_MS");
    uint64_t wanted = (uint64_t)((window ? atof(window) : 500.0) * 1e6), last = 0;
    for (auto& activity : activities) last = std::max(last, activity.end);
    std::erase_if(activities, [=](auto& activity) { return last - activity.start > wanted; });
    std::sort(activities.begin(), activities.end(), [](auto& a, auto& b) { return a.start < b.start; });
    uint64_t busy = 0, until = 0;
    std::map<std::string, Total> totals;
    for (auto& [start, end, name] : activities) {
        if (end > until) busy += end - std::max(start, until);
        until = std::max(until, end);
        totals[*name].count += 1;
        totals[*name].nanoseconds += end - start;
    }
    std::vector<std::pair<std::string, Total>> sorted(totals.begin(), totals.end());
    std::sort(sorted.begin(), sorted.end(), [](auto& a, auto& b) { return a.second.nanoseconds > b.second.nanoseconds; });
    double span = (double)(last - activities[0].start);
    printf("PROFILE %.0f ms, the GPU busy for %.1f %% of them\n", span / 1e6, 100.0 * busy / span);
    for (size_t i = 0; i < sorted.size() && i < 40; ++i) {
        auto& [name, total] = sorted[i];
        double microseconds = total.nanoseconds / 1e3;
        printf("%6.2f %% %6d x %9.2f us  %.120s\n", 1e5 * microseconds / span, total.count, microseconds / total.count, name.c_str());
    }
    fflush(stdout);
}

}  // namespace

// Entry point that CUDA calls.
extern "C" int InitializeInjection() {
    cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
    for (auto kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
        cuptiActivityEnable(kind);
    }
    atexit(print);
    return 1;
}
