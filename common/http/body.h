// The bytes of a request's body, counted against one bound for the whole process: a flood of large
// bodies never takes the memory of the rest.
//
// Room is for whoever sends a body and is done. When the bound is reached, an incomplete body that
// began a second ago or more gives way to one that grows: first those on connections that never had
// a wanted answer, the one that began first before the others; then the rest, in the same order. It
// is hung up on, wherever in the process it is being read. What it holds counts as free from then
// on, but its own thread has to let go of it; until then all bodies together may be over the bound,
// by a quarter of it at most. A body that is complete never gives way. Without anybody to give way,
// the one that grows finds no room. Internal to http/.
#pragma once
#include "base/str.h"
#include "http/door.h"

typedef struct body {
    caller *owner;   // whom to hang up on; NULL: it never gives way
    size_t promised; // bytes, the Content-Length; 0: none. No more is reserved than that
    char *p;
    size_t n, cap;
    // The list's:
    struct body *next, *previous;
    int64_t began_ms;
    bool listed, told;
} body;

// BODY_GAVE_WAY: nobody is there any more who could be answered.
typedef enum body_result { BODY_TAKEN, BODY_TOO_LARGE, BODY_NO_ROOM, BODY_GAVE_WAY } body_result;

// All of these from the thread that reads the body, and body_done() before its owner is gone.
// `limit`: bytes of this body; `memory_limit`: bytes of all bodies of the process.
body_result body_put(body *b, po_str more, size_t limit, size_t memory_limit);
PO_MUST_CHECK bool body_ends(body *b); // it is complete, and stays; false: it gave way before
void body_done(body *b);
size_t bodies_held(void); // bytes, in the process
