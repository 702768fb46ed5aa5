// What a program needs from outside itself: its database, brokers, a registry. One thread asks each
// need a cheap question, at once and then every few seconds, busy or idle, on a connection of its
// own. So a wrong setting shows from the first second, and an idle program notices that its database
// is gone. Nothing else hangs on the answers but readiness at the start (life.h): a need that is away
// later is shown and told, and never makes a program unready or ends it.
//
// Told: a line at warn when a need is not reached or its cause changes, one at error each minute
// while that lasts, one at info when it is there again. Shown: /statusz `dependencies`, and
// payonce_dependency_last_success_timestamp_seconds.
#pragma once
#include "base/err.h"
#include <stddef.h>
#include <stdint.h>

typedef struct po_need po_need;

// One question, bounded to a few seconds; true when the need is there and is what the program can
// work with. Never called by two threads at a time.
typedef bool (*po_need_ask)(void *arg, po_err *err);

// From now on `ask` is called; starts the thread with the first need. `name` is a constant, one word
// ("database"), and label of the metric. The handle lives until po_need_end. Readiness waits for
// the need unless po_need_demand says otherwise.
po_need *po_need_new(const char *name, po_need_ask ask, void *arg);
// Whether readiness waits for it: a relay that stands by needs no broker yet.
void po_need_demand(po_need *need, bool demanded);
// `ask` is not running any more, nor called again: `arg` may go. Accepts NULL.
void po_need_end(po_need *need);

// Every need that readiness waits for was reached once; otherwise ret_name (may be NULL) is the
// first that was not.
bool po_needs_reached(const char **ret_name);

typedef struct po_need_state {
    const char *name;
    bool demanded;
    int64_t last_success_us; // 0: not yet
    int64_t away_since_us;   // 0: its last answer was good, or none is in
    po_err why;              // while away
} po_need_state;

// True while it is away (*ret filled; may be NULL). Accepts NULL: not away. Any thread, no I/O.
bool po_need_away(po_need *need, po_need_state *ret);
// The first need that is away; false when there is none.
bool po_needs_away(po_need_state *ret);
// At most `most` needs, in order of their making; returns how many. Any thread, no I/O.
size_t po_needs_list(po_need_state *ret, size_t most);
#define PO_NEEDS_MOST 8 // in a process

void po_needs_metrics(void); // declares; once, before the first need
