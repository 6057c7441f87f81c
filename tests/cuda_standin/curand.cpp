// cuRAND: Candle opens a generator, and nothing here draws from it.

#include "standin.h"

using namespace standin;

API int curandGetVersion(int* version) {
    *version = 100000;
    return SUCCESS;
}

API int curandCreateGenerator(void** generator, int) {
    if (!current()) return refuse(202, "cuRAND: no context is current in this thread");
    *generator = new int;
    return SUCCESS;
}

API int curandDestroyGenerator(int* generator) {
    delete generator;
    return SUCCESS;
}

API int curandSetStream(void*, void*) { return SUCCESS; }

API int curandSetPseudoRandomGeneratorSeed(void*, unsigned long long) { return SUCCESS; }

// cuRAND wants the runtime; this is asked for to see that it is there.
API int cudaRuntimeGetVersion(int* version) {
    *version = 13000;
    return SUCCESS;
}
