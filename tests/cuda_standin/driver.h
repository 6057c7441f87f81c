// The beginning of every function of the driver.

#pragma once

#include "standin.h"

// Whether the program may go on: nothing has failed on the card.
#define SOUND() if (int left = standin::faulted()) return left
// And a context is current in this thread.
#define IN_CONTEXT(call) \
    SOUND(); \
    if (!standin::current()) return standin::refuse(standin::INVALID_CONTEXT, "%s: no context is current in this thread", call)
// And `handle` is a stream of that context.
#define ON_STREAM(call, handle) \
    IN_CONTEXT(call); \
    standin::Stream* stream = standin::stream_of(handle); \
    if (!stream) return standin::refuse(standin::INVALID_HANDLE, "%s: no stream of the current context", call)
