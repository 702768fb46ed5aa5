// One transaction that records events and decides them (P3), or decides some that had to wait. Three
// flights: {begin, insert events, look up routes} → {compare repeats, lock orders, then read them
// and their facts} → {write all, COMMIT}. Events are decided one by one, in batch order, each
// against the result of the one before. Running the same events again records and emits nothing
// (P2, P6).
#pragma once
#include "store.h"
#include "undecided_rows.h"

typedef enum settle_phase { PHASE_RECORD, PHASE_HOLD, PHASE_WRITE } settle_phase;

typedef struct settle_options {
    bool skip_locked;    // orders held elsewhere: their events are recorded as undecided, due now
    int lock_timeout_ms; // of this transaction; 0 = the session's
    const char
        *record_only; // not NULL: record, and leave undecided with this error; decide nothing
} settle_options;

typedef struct settle_report {
    settle_phase phase; // reached when it failed
    size_t emitted;     // outbox rows
    size_t undecided;   // rows left waiting
    bool lost_lease;    // claimed: another worker, or a wake, took a row over; nothing was written
} settle_report;

// Sets events[i]->same and ->id. The arena is dropped by the caller. On failure nothing was
// written, except that UNCERTAIN (a lost COMMIT reply) may have written everything.
PO_MUST_CHECK bool settle(po_pg *pg, po_arena *arena, event *const *events, size_t n,
                          const settle_options *options, settle_report *ret_report, po_err *err);

// The same for events that wait in ingest.undecided, all leased under this token: their rows are
// gone, or put off; with skip_locked also those whose order is held elsewhere.
PO_MUST_CHECK bool settle_claimed(po_pg *pg, po_arena *arena, event *const *events, size_t n,
                                  po_uuid token, bool skip_locked, settle_report *ret_report,
                                  po_err *err);

// The event by which the expiry sweep says that an order's time is up: it goes through the same
// door.
event settle_expiry_event(po_arena *arena, po_str order_id, int64_t expires_at_us);
