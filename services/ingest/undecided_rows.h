// The rows of ingest.undecided: whatever writes one stands here, except for a worker's claim and its
// putting off (undecided.c).
#pragma once
#include "pg/pg.h"
#include "routes.h"

// An event that cannot be decided yet.
typedef struct waiting {
    int64_t event;
    const char *reason; // static: "order_unknown", "reference_unknown", "payment_unknown",
                        // "order_busy", "failed"
    po_str awaits[OBS_MAX + 2];
    size_t n_awaits;
    bool stranger; // names no order, and no reference of it is known: it waits by reference alone
    po_str error;  // of "failed"
} waiting;

// "order:ID", "ref:…", "pay:…": how rows name what they wait for. Kinds that name one payable thing
// in the world leave the account out: another account of ours may have registered it.
po_str await_order(po_arena *arena, po_str order_id);
po_str await_ref(po_arena *arena, po_str provider, po_str account, po_str kind, po_str value);
po_str await_payment(po_arena *arena, po_str provider, po_str account, po_str payment);

// Sends new rows; nothing where there is none, as the others that write. COMMIT reads the results.
PO_MUST_CHECK bool undecided_send_new(po_pg *pg, po_arena *arena, const waiting *rows, size_t n,
                                      po_err *err);
// Sends the lock of the rows of these events, and of those that a wake of `woken` will touch. The
// result's rows are (whether it is one of these under this token).
PO_MUST_CHECK bool undecided_send_hold(po_pg *pg, po_arena *arena, const int64_t *events, size_t n,
                                       po_uuid token, const po_str *woken, size_t n_woken,
                                       po_err *err);
// Sends what becomes of held rows: gone (decided), or put off.
PO_MUST_CHECK bool undecided_send_gone(po_pg *pg, po_arena *arena, const int64_t *events, size_t n,
                                       po_err *err);
PO_MUST_CHECK bool undecided_send_postponed(po_pg *pg, po_arena *arena, const waiting *rows,
                                            size_t n, po_err *err);
// Sends the wake: rows that await one of the keys can be decided now, before all that is due, and
// whoever has claimed one loses it. The last statement before COMMIT that can wait (lock order).
PO_MUST_CHECK bool undecided_send_wake(po_pg *pg, po_arena *arena, const po_str *keys, size_t n,
                                       po_err *err);
// The same for a command's keys, outside pipeline mode.
PO_MUST_CHECK bool undecided_wake(po_pg *pg, po_arena *arena, const po_str *keys, size_t n,
                                  po_err *err);
