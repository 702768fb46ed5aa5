// The one destructor that fits plain heap memory.
#include "base/cleanup.h"
#include <stdlib.h>
#include <string.h>

void po_free_auto(void *pointer_address) {
    void *memory; // copied, for the variable is a char * or a struct *, never a void *
    memcpy(&memory, pointer_address, sizeof memory);
    free(memory);
    memory = NULL;
    memcpy(pointer_address, &memory, sizeof memory);
}
