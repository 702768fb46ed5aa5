// A body grows with what has arrived, never with what a Content-Length promises.
//
// Incomplete bodies are a list, the oldest first. Whoever finds its owner there under the lock can
// hang up on it: a body leaves the list before its caller goes. The door's lock is taken inside.
#include "http/body.h"
#include "base/clock.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum {
    FIRST = 4096,
    STEP = 65536,   // it doubles up to there
    STAY_MS = 1000, // none gives way sooner: its rest may lie unread in the kernel
    OVERDRAFT = 4,  // such a part of the bound may be taken before others have let go of it
};

static struct {
    _Atomic size_t held;  // changes under the lock, and is read without it
    pthread_mutex_t lock; // guards what follows and all of a body but its bytes
    size_t leaving;       // of those held, by bodies that were told to give way
    body *first, *last;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

size_t bodies_held(void) {
    return atomic_load(&all.held); // no lock, because a metric is read under one of its own
}

// ---- the list, with the lock held ----

static void enlist(body *b) {
    b->began_ms = po_mono_ms();
    b->listed = true;
    b->previous = all.last;
    *(all.last ? &all.last->next : &all.first) = b;
    all.last = b;
}

static void strike(body *b) {
    if (!b->listed)
        return;
    *(b->previous ? &b->previous->next : &all.first) = b->next;
    *(b->next ? &b->next->previous : &all.last) = b->previous;
    b->next = b->previous = NULL;
    b->listed = false;
}

static body *least_wanted(void) {
    int64_t young_ms = po_mono_ms() - STAY_MS;
    for (body *b = all.first; b && b->began_ms <= young_ms; b = b->next)
        if (!caller_was_wanted(b->owner))
            return b;
    return all.first && all.first->began_ms <= young_ms ? all.first : NULL;
}

static void tell_to_go(body *b) {
    strike(b);
    b->told = true;
    all.leaving += b->cap;
    caller_gives_way(b->owner);
}

static bool reserve(const body *b, size_t n, size_t memory_limit) {
    if (all.held + n > memory_limit + memory_limit / OVERDRAFT)
        return false;
    while (all.held - all.leaving + n > memory_limit) {
        body *least = least_wanted();
        if (!least || least == b)
            return false;
        tell_to_go(least);
    }
    all.held += n;
    return true;
}

// ---- a body ----

static size_t capacity_for(const body *b, size_t need) {
    size_t cap = b->cap ? b->cap : FIRST;
    while (cap < need)
        cap += cap < STEP ? cap : STEP;
    return b->promised >= need && b->promised < cap ? b->promised : cap;
}

static body_result grow(body *b, size_t cap, size_t memory_limit) {
    pthread_mutex_lock(&all.lock);
    if (b->owner && !b->listed && !b->told)
        enlist(b);
    body_result result = b->told                                  ? BODY_GAVE_WAY
                         : reserve(b, cap - b->cap, memory_limit) ? BODY_TAKEN
                                                                  : BODY_NO_ROOM;
    if (result == BODY_TAKEN)
        b->cap = cap;
    pthread_mutex_unlock(&all.lock);
    if (result != BODY_TAKEN)
        return result;
    b->p = realloc(b->p, cap);
    if (!b->p)
        abort();
    return BODY_TAKEN;
}

body_result body_put(body *b, po_str more, size_t limit, size_t memory_limit) {
    if (more.n > limit || b->n > limit - more.n)
        return BODY_TOO_LARGE;
    size_t need = b->n + more.n;
    if (need > b->cap) {
        body_result result = grow(b, capacity_for(b, need), memory_limit);
        if (result != BODY_TAKEN)
            return result;
    }
    if (more.n)
        memcpy(b->p + b->n, more.p, more.n);
    b->n = need;
    return BODY_TAKEN;
}

bool body_ends(body *b) {
    pthread_mutex_lock(&all.lock);
    strike(b);
    bool told = b->told;
    pthread_mutex_unlock(&all.lock);
    return !told;
}

void body_done(body *b) {
    pthread_mutex_lock(&all.lock);
    strike(b);
    all.held -= b->cap;
    all.leaving -= b->told ? b->cap : 0;
    pthread_mutex_unlock(&all.lock);
    free(b->p);
    *b = (body){0};
}
