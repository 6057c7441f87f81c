// A fault of memory says what ran, or that the CPU took an address of a card for its own.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "standin.h"

namespace standin {
namespace {

thread_local const char* at_work = nullptr;
struct sigaction before;

void report(int, siginfo_t* info, void*) {
    char words[256];
    Address address = (Address)info->si_addr;
    const char* who = at_work ? at_work : "the CPU";
    const char* what = on_card(address) ? "an address of a card" : "an address";
    int length = snprintf(words, sizeof words, "cuda_standin: %s faults at 0x%lx, %s\n", who, address, what);
    if (write(2, words, length) < 0) _exit(1);
    // Whoever was asked before has the next word.
    sigaction(SIGSEGV, &before, nullptr);
}

}  // namespace

void works_on(const char* name) { at_work = name; }

void report_segfaults() {
    struct sigaction action = {};
    action.sa_sigaction = report;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before);
}

}  // namespace standin
