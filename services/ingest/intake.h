// The group commit: events queue; a few writer threads each take what has queued while the last
// batch was committing and settle it in one transaction; then every waiting request gets its
// answer. No answer waits longer than 2 s: then 503 + Retry-After, and the event may be stored all
// the same (its repeat is a duplicate). Thread-safe.
#pragma once
#include "accounts.h"
#include "http/http.h"
#include "outbox/outbox.h"
#include "settle.h"

typedef struct intake intake;

typedef struct intake_options {
    const po_pg_options *pg;
    accounts *accounts;
    unsigned writers; // threads, each with a connection
    po_ring *ring;    // rung after a commit that appended to the outbox
} intake_options;

#define INTAKE_BATCH 512              // events in one transaction
#define INTAKE_BATCH_BYTES (4U << 20) // raw bytes in one transaction
#define INTAKE_QUEUE 20000            // events waiting; beyond it: busy
#define INTAKE_HEAD_MS 1000           // longest wait of the first of them; beyond it: busy
#define INTAKE_NARROW_MS 30000   // longest a batch is narrowed down, counted from its first arrival
#define INTAKE_BYTES (32U << 20) // raw bytes held, also of events answered late; beyond it: busy

PO_MUST_CHECK bool intake_open(const intake_options *options, intake **ret_intake, po_err *err);
// Gives an event in, and with it the arena that holds all of it (raw bytes included: the request's
// own memory ends with its answer). `request` NULL: nobody waits (the sweep). False when the queue
// is full: still the caller's.
PO_MUST_CHECK bool intake_put(intake *in, const event *event, po_arena **arena,
                              po_request *request);
bool intake_full(intake *in); // the queue: for readiness
// Settles everything that somebody waits for, answers it, joins; what is put from now on is
// refused. Accepts NULL.
void intake_finish(intake *in);
// Finishes, and frees: only when no handler can put any more, that is behind the server's end.
void intake_close(intake **in);

void intake_declare_metrics(void);
