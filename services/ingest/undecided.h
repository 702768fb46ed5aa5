// Events that wait (P4): several workers drain ingest.undecided; and the sweep that says through
// the same door that an order's time is up.
#pragma once
#include "accounts.h"
#include "intake.h"
#include "work/work.h"
#include <jansson.h>

PO_MUST_CHECK bool undecided_start(const accounts *accounts, const po_pg_options *pg, po_ring *ring,
                                   unsigned workers, po_workers **ret_workers, po_err *err);

typedef struct sweep sweep;
// Looks each second for open orders past their expiry and puts an `expired` event for each; counts
// what waits.
PO_MUST_CHECK bool sweep_start(const po_pg_options *pg, intake *in, sweep **ret_sweep, po_err *err);
void sweep_stop(sweep **sweep);

// For /statusz, as the last sweep counted: {"undecided": {"waiting", "oldest_ms", "unmatched",
// "counted_at"}}.
json_t *undecided_status(void);
void undecided_declare_metrics(void);
