// A body grows with what has arrived, never with what a Content-Length promises.
#include "http/body.h"
#include <stdatomic.h>
#include <stdlib.h>

enum { FIRST = 4096 };

static _Atomic size_t held;

size_t bodies_held(void) {
    return atomic_load(&held);
}

static bool reserve(size_t n, size_t memory_limit) {
    size_t before = atomic_load(&held);
    do {
        if (n > memory_limit || before > memory_limit - n)
            return false;
    } while (!atomic_compare_exchange_weak(&held, &before, before + n));
    return true;
}

body_result body_put(body *b, po_str more, size_t limit, size_t memory_limit) {
    if (more.n > limit || b->n > limit - more.n)
        return BODY_TOO_LARGE;
    size_t need = b->n + more.n, cap = b->cap ? b->cap : FIRST;
    while (cap < need)
        cap *= 2;
    if (cap > b->cap) {
        if (!reserve(cap - b->cap, memory_limit))
            return BODY_NO_ROOM;
        b->p = realloc(b->p, cap);
        if (!b->p)
            abort();
        b->cap = cap;
    }
    if (more.n)
        memcpy(b->p + b->n, more.p, more.n);
    b->n = need;
    return BODY_TAKEN;
}

void body_done(body *b) {
    atomic_fetch_sub(&held, b->cap);
    free(b->p);
    *b = (body){0};
}
