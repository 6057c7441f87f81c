// The memory of the cards.
//
// An address of a card lies in a range that nobody may read or write, so that the CPU faults where it takes one for its own; what is
// kept there lies elsewhere (`host`). Memory is filled with NaN when it is allocated and when it is freed, both in the order of the
// stream, and ends with a pattern whose loss is noticed.

#include "standin.h"

#include <sys/mman.h>

#include <cstring>
#include <map>

namespace standin {
namespace {

constexpr Address WINDOW = 1ull << 40;
constexpr Address INSIDE = 0x200000000000ull, CARDS = 0x300000000000ull;
constexpr size_t ROUND = 512, EDGE = 256;
constexpr int PATTERN = 0x5a, POISON = 0xff;
constexpr int MOST_CARDS = 8;

struct Card {
    // By address: what is free below `end`, and what is not.
    std::map<Address, size_t> free;
    Address end = 0;
    Usage usage = {};
    bool open = false;
};

std::mutex lock;
uint64_t serial = 0;

// Never destroyed, as what follows: streams outlive the end of `main`.
Card* const cards = new Card[MOST_CARDS];

// Of all cards, by address.
std::map<Address, Allocation>& allocations() {
    static auto& all = *new std::map<Address, Allocation>;
    return all;
}

std::map<uintptr_t, size_t>& locked() {
    static auto& all = *new std::map<uintptr_t, size_t>;
    return all;
}

size_t room(size_t bytes) { return (bytes + EDGE + ROUND - 1) / ROUND * ROUND; }

Card& card_of(int number) {
    Card& card = cards[number];
    if (!card.open) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
        Address base = number * WINDOW;
        void* inside = mmap((void*)(INSIDE + base), WINDOW, PROT_READ | PROT_WRITE, flags, -1, 0);
        void* outside = mmap((void*)(CARDS + base), WINDOW, PROT_NONE, flags, -1, 0);
        if (inside == MAP_FAILED || outside == MAP_FAILED) fault("the addresses of card %d are taken", number);
        card.end = CARDS + base + ROUND;
        card.usage.total = (size_t)setting("CUDA_STANDIN_MEMORY_MIB", 4096) << 20;
        card.open = true;
    }
    return card;
}

// The smallest free place that is large enough, or a new one.
Address take(Card& card, size_t bytes) {
    auto best = card.free.end();
    for (auto place = card.free.begin(); place != card.free.end(); ++place) {
        if (place->second >= bytes && (best == card.free.end() || place->second < best->second)) best = place;
    }
    if (best == card.free.end()) {
        card.end += bytes;
        return card.end - bytes;
    }
    auto [address, length] = *best;
    card.free.erase(best);
    if (length > bytes) card.free[address + bytes] = length - bytes;
    return address;
}

void give_back(Card& card, Address address, size_t bytes) {
    auto next = card.free.lower_bound(address);
    if (next != card.free.end() && next->first == address + bytes) {
        bytes += next->second;
        next = card.free.erase(next);
    }
    if (next != card.free.begin()) {
        auto before = std::prev(next);
        if (before->first + before->second == address) {
            before->second += bytes;
            return;
        }
    }
    card.free[address] = bytes;
}

void check_edge(const Allocation& allocation) {
    auto* edge = (unsigned char*)host(allocation.address + allocation.bytes);
    for (size_t i = 0; i < EDGE; ++i) {
        if (edge[i] == PATTERN) continue;
        fault("byte %zu behind an allocation of %zu was written", i, allocation.bytes);
        return;
    }
}

}  // namespace

bool on_card(Address address) { return address >= CARDS && address < CARDS + MOST_CARDS * WINDOW; }

void* host(Address address) { return on_card(address) ? (void*)(address - CARDS + INSIDE) : (void*)address; }

int allocate(int number, size_t bytes, Graph* graph, Allocation* made) {
    std::lock_guard guard(lock);
    Card& card = card_of(number);
    Usage& usage = card.usage;
    if (usage.used + usage.graphs + bytes > usage.total) return OUT_OF_MEMORY;
    *made = {take(card, room(bytes)), bytes, number, ++serial, graph};
    allocations()[made->address] = *made;
    size_t& counted = graph ? usage.graphs : usage.used;
    size_t& most = graph ? usage.most_graphs : usage.most;
    counted += bytes;
    most = std::max(most, counted);
    usage.reserved = std::max(usage.reserved, usage.used);
    return SUCCESS;
}

int forget(Address address, Allocation* gone) {
    std::lock_guard guard(lock);
    auto found = allocations().find(address);
    if (found == allocations().end()) return refuse(INVALID_VALUE, "0x%lx is freed, and is no allocation (any more)", address);
    *gone = found->second;
    allocations().erase(found);
    // As the driver counts: what comes later in the stream may have it.
    if (!gone->graph) cards[gone->card].usage.used -= gone->bytes;
    return SUCCESS;
}

void poison(const Allocation& allocation) {
    memset(host(allocation.address), POISON, allocation.bytes);
    memset(host(allocation.address + allocation.bytes), PATTERN, EDGE);
}

void recycle(const Allocation& allocation) {
    check_edge(allocation);
    poison(allocation);
    std::lock_guard guard(lock);
    Card& card = cards[allocation.card];
    give_back(card, allocation.address, room(allocation.bytes));
    if (allocation.graph) card.usage.graphs -= allocation.bytes;
}

bool is_allocated(const Allocation& allocation) {
    std::lock_guard guard(lock);
    auto found = allocations().find(allocation.address);
    return found != allocations().end() && found->second.serial == allocation.serial;
}

bool usable(Address address, size_t bytes, const char* what, Allocation* found) {
    std::lock_guard guard(lock);
    auto after = allocations().upper_bound(address);
    if (on_card(address) && after != allocations().begin()) {
        const Allocation& allocation = std::prev(after)->second;
        size_t start = address - allocation.address;
        if (start + bytes <= allocation.bytes + (bytes == 0)) {
            if (found) *found = allocation;
            return true;
        }
        if (start < allocation.bytes) {
            refuse(0, "%s: %zu bytes from byte %zu of %zu on", what, bytes, start, allocation.bytes);
            return false;
        }
    }
    refuse(0, "%s: 0x%lx is no memory of a card, or was freed", what, address);
    return false;
}

Usage usage(int number) {
    std::lock_guard guard(lock);
    return card_of(number).usage;
}

void reset_most(int number) {
    std::lock_guard guard(lock);
    cards[number].usage.most = cards[number].usage.used;
}

void reset_most_graphs(int number) {
    std::lock_guard guard(lock);
    cards[number].usage.most_graphs = cards[number].usage.graphs;
}

void trim(int number, size_t keep) {
    std::lock_guard guard(lock);
    Usage& usage = cards[number].usage;
    usage.reserved = std::max(usage.used, std::min(keep, usage.reserved));
}

bool page_locked(const void* at, size_t bytes) {
    std::lock_guard guard(lock);
    auto after = locked().upper_bound((uintptr_t)at);
    if (after == locked().begin()) return false;
    auto [start, length] = *std::prev(after);
    return (uintptr_t)at + bytes <= start + length;
}

int lock_pages(void* at, size_t bytes) {
    std::lock_guard guard(lock);
    uintptr_t start = (uintptr_t)at;
    if (bytes == 0) return refuse(INVALID_VALUE, "no bytes to page-lock");
    auto after = locked().lower_bound(start + bytes);
    if (after != locked().begin()) {
        auto [other, length] = *std::prev(after);
        if (other + length > start) return refuse(HOST_MEMORY_ALREADY_REGISTERED, "%p is page-locked twice", at);
    }
    locked()[start] = bytes;
    return SUCCESS;
}

int unlock_pages(void* at) {
    std::lock_guard guard(lock);
    if (locked().erase((uintptr_t)at) == 0) return refuse(HOST_MEMORY_NOT_REGISTERED, "%p is not page-locked", at);
    return SUCCESS;
}

}  // namespace standin
