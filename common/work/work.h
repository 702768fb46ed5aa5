// Due rows: work that is done after the transaction that asked for it, by several workers, each row by one at
// a time. A row has due_at, attempts, lease_token, lease_until. Claim with SKIP LOCKED and a fresh token in a
// short transaction; do the work with no transaction open; record the outcome in another, guarded by state and
// token: a worker whose lease was taken over records nothing (FAULTS 20). The claim itself counts the attempt: what
// cannot be undone is done after it was counted, whether or not its outcome can be recorded (FAULTS 42).
#pragma once
#include "life/life.h"
#include "pg/pg.h"

#define PO_WORK_ALL_LOOK_MS 10000

typedef enum po_work_outcome {
    PO_WORK_DONE,  // recorded as final by `run` itself
    PO_WORK_LATER, // due again after backoff
    PO_WORK_SKIP,  // nothing recorded: the lease simply runs out (lost it, or stopping)
} po_work_outcome;

typedef struct po_work_item {
    po_str id;         // text of the row's key
    int32_t attempts;  // claims of this row so far, this one included
    po_uuid token;     // of this claim; the same for all its rows
    const po_res *row; // all columns that `claim` returned
    int row_index;
} po_work_item;

typedef struct po_work {
    const char *name; // metric label and beat: "mail", "undecided"
    // $1 int4 limit, $2 uuid token, $3 int8 lease in ms, $4 int8 ms: only rows that have become due
    // within so long are looked for, oldest first → rows, each with attempts raised by one; column 0
    // id (text), 1 attempts (int4, this one included), others free. The index entries of rows long
    // done are there as long as anybody's snapshot is; so most looks begin where the last one ended,
    // and pass them over. A row that becomes due further back (its transaction took long, its lease
    // ran out) is found by the look at all, PO_WORK_ALL_LOOK_MS later at most. Write it as
    // `(due_at, id) > (now() - $4 …, '')`: a range of due_at alone is planned as a sort of all that
    // is due.
    po_stmt claim;
    // Of `claim`: the column that says for how many ms a row has been due (int8); those due longer
    // are all in this claim, or in others' hands. NULL in it: this row says nothing of that.
    int due_ms_column;
    // $1 text id, $2 uuid token, $3 int8 delay in ms, $4 text error, $5 bool in doubt: due again
    // (guarded by token). In doubt: the error of this attempt was UNCERTAIN, it may have been done.
    po_stmt later;
    // → one row: int8 rows that wait, put off or not, int8 age of the oldest in ms (0 when none): for
    // metrics, each 5 s.
    po_stmt depth;
    unsigned workers; // threads
    int batch;        // rows a claim takes; done one after the other, while its lease lasts
    int64_t lease_ms;
    int64_t idle_ms; // between looks when nothing was due; po_work_wake cuts it short
    int64_t backoff_ms, backoff_cap_ms;
    // Does one row. `pg` is not inside a transaction; records its own final outcome (guarded by token) before
    // it returns DONE. err, when filled, explains LATER or SKIP and is logged; for LATER stored. arena is dropped
    // afterwards.
    po_work_outcome (*run)(void *arg, po_pg *pg, const po_work_item *item, po_arena *arena,
                           po_err *err);
    // Optional: does all rows of a claim at once, and records their outcomes (guarded by token). False: perhaps
    // nothing was done, and `run` does them one after the other.
    bool (*run_all)(void *arg, po_pg *pg, const po_res *rows, po_uuid token, po_arena *arena);
    void *arg;
} po_work;

// Declares the metrics `payonce_work_…`; call it from the service's declare_metrics. Repeated freely.
void po_work_declare_metrics(void);

// The texts in *work and *options are borrowed for the life of the workers; the structs are copied.
typedef struct po_workers po_workers;
PO_MUST_CHECK bool po_work_start(const po_work *work, const po_pg_options *options,
                                 po_workers **ret_workers, po_err *err);
void po_work_wake(po_workers *workers); // something is due now; thread-safe
// Finishes the rows in hand, joins; bounded by lease_ms and one row's work. Accepts NULL, leaves NULL. Once the process
// is stopping (po_stopping) no further row is begun, called or not.
void po_work_stop(po_workers **workers);
