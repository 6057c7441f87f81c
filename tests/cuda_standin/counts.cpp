// What the streams did, counted by name and printed at the end of the process, if CUDA_STANDIN_COUNTS is set.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "standin.h"

namespace standin {
namespace {

struct Count {
    long calls = 0;
    double seconds = 0;
    size_t bytes = 0;
};

std::mutex lock;

std::map<std::string, Count>& counts() {
    static auto& all = *new std::map<std::string, Count>;
    return all;
}

void print() {
    std::lock_guard guard(lock);
    for (const auto& [name, count] : counts()) {
        fprintf(stderr, "cuda_standin: %8ld x %-40s %9.3f s %12zu bytes\n", count.calls, name.c_str(), count.seconds, count.bytes);
    }
}

}  // namespace

void run_counted(const Work& work) {
    static const bool is_wanted = setting("CUDA_STANDIN_COUNTS", 0) && atexit(print) == 0;
    if (!is_wanted) return work.run();
    auto start = std::chrono::steady_clock::now();
    work.run();
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::lock_guard guard(lock);
    Count& count = counts()[work.name];
    ++count.calls;
    count.seconds += took.count();
    count.bytes += work.copy.bytes;
}

}  // namespace standin
