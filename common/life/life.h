// Lifecycle of a process: signals set a flag, the loops own time, the order of draining is fixed by
// the caller. A *beat* proves that a loop turns: /healthz fails when one has not beaten within its
// limit.
#pragma once
#include "base/err.h"
#include <stdint.h>

// Blocks SIGTERM and SIGINT in the calling (main) thread and all threads started later; starts the
// thread that waits for them. Call once, first. SIGPIPE is ignored, the limit of open files raised
// as far as it may be.
void po_life_init(void);
bool po_stopping(void); // true after SIGTERM, SIGINT or po_stop()
void po_stop(void);     // as if SIGTERM had come
int po_stop_fd(void);   // readable once stopping: for poll(2); never read from it
// Sleeps until `timeout_ms` have passed or the process is stopping; returns !po_stopping().
bool po_life_wait(int64_t timeout_ms);

typedef struct po_beat po_beat;
// `limit_ms`: the longest this loop may go without beating. `name` must outlive the process.
po_beat *po_beat_new(const char *name, int64_t limit_ms);
void po_beat_tick(po_beat *beat); // it turns
void po_beat_end(po_beat *beat);  // the loop has ended on purpose
// False, and the late loop's name in ret_name (may be NULL), when a loop does not turn.
bool po_life_healthy(const char **ret_name);

// Readiness: started, not draining, and every registered check passes. Started means that
// po_ready_set(true) was called and every need (need.h) was reached once; from then on a need that
// is away changes nothing, since all replicas share it and would be taken out together.
// Once po_ready_set(false) has returned no check runs: what they look at may go.
void po_ready_set(bool started);
// E.g. "queue not full"; quick, and calls none of the three itself.
void po_ready_check(bool (*fn)(void *arg), void *arg);
bool po_ready(void);

// Backoff with full jitter: min(cap, base * 2^attempt) * random(0.5 … 1).
int64_t po_backoff_ms(int attempt, int64_t base_ms, int64_t cap_ms);
