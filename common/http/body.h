// The bytes of a request's body, counted against one bound for the whole process: a flood of large
// bodies is refused, it never takes the memory of the rest. Internal to http/.
#pragma once
#include "base/str.h"

typedef struct body {
    char *p;
    size_t n, cap;
} body;

typedef enum body_result { BODY_TAKEN, BODY_TOO_LARGE, BODY_NO_ROOM } body_result;

// `limit`: bytes of this body; `memory_limit`: bytes of all bodies of the process.
body_result body_put(body *b, po_str more, size_t limit, size_t memory_limit);
void body_done(body *b);
size_t bodies_held(void); // bytes, in the process
