// Requests that wait while other threads work for them. Each is answered once, by whoever takes it
// first; a clock takes those that have waited too long, and the work goes on without them.
// Thread-safe.
#pragma once
#include "http/http.h"
#include <stdatomic.h>

#define WAITER_MS 2000 // longest wait for an answer (then 503 + Retry-After)

typedef struct waiters waiters;

// Part of the work; lives until waiters_remove().
typedef struct waiter {
    _Atomic(po_request *) request; // NULL: nobody waits (any more)
    int64_t since_ms;
    bool listed;
    struct waiter *older, *newer;
} waiter;

// `late` answers a request that has waited WAITER_MS; it must not call back.
PO_MUST_CHECK bool waiters_open(void (*late)(po_request *request, int64_t waited_ms),
                                waiters **ret_waiters, po_err *err);
void waiters_close(waiters **waiters); // when all are removed. Accepts NULL.

// request NULL: nobody waits for this work.
void waiters_add(waiters *all, waiter *one, po_request *request);
// The request, for the caller to answer; NULL when it was taken before.
po_request *waiter_take(waiter *one);
bool waiter_waits(const waiter *one);
void waiters_remove(waiters *all, waiter *one);
