// Deletes published rows: id ≤ the durable floor, not open there, older than the retention.
#pragma once
#include "life/life.h"
#include "pg/pg.h"

typedef struct retention {
    const char *outbox;
    po_beat *beat;  // told after each chunk; NULL: none
    int64_t age_ms; // of rows
    const char *
        personal_topics; // "contacts.v1,…": no older than RETENTION_PERSONAL_MS, whatever age_ms says
    // Kept from pass to pass; start as 0.
    int64_t
        epoch; // of the lease, when `after` was found: a later holder may have begun further down
    int64_t after; // nothing is left up to this id
} retention;

#define RETENTION_PERSONAL_MS (24 * 3600 * 1000LL)

// Deletes what is due, in chunks, until nothing is or the process is stopping. Safe beside the relay's loop and
// beside another instance: what it may delete is decided by the durable row alone, in the statement that deletes.
PO_MUST_CHECK bool retention_pass(retention *retention, po_pg *pg, int64_t *ret_deleted,
                                  po_err *err);
