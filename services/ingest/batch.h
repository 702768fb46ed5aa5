// A batch on its way through settle(): what its flights bring, what is decided of it. Of settle's
// own files; nobody else includes it.
#pragma once
#include "settle.h"

typedef struct batch {
    po_pg *pg;
    po_arena *arena;
    const settle_options *options;
    settle_report *report;
    event *const *events; // in batch order
    size_t n;
    event **keys;   // sorted by key; repeats adjacent, batch order among them
    event **unique; // the first of each key
    size_t n_unique;

    routes routes; // looked up, then taught
    held_order *held;
    size_t n_held;

    batch_writes writes;
    waiting *waitings; // in the events' order
    size_t n_waitings;
    po_str *woken; // awaits keys that became known
    size_t n_woken;
    int64_t now_us;
} batch;

// --- keys.c: same or different

void keys_sort(batch *b);
// rows (id, provider, account, event_id) of the events that are new.
void keys_note_recorded(batch *b, const po_res *rows);
// The events that were recorded before, to be compared; of *ret_n keys, in their order.
event **keys_repeats(const batch *b, size_t *ret_n);
// `stored`: rows (key, digest) of the repeats, in our order, or NULL.
PO_MUST_CHECK bool keys_note_same(batch *b, const po_res *stored, po_err *err);
// The events that say something else under a known key, in the order of their unique key.
event **keys_conflicts(const batch *b, size_t *ret_n);

// --- deciding.c: one event after the other, each against the result of the one before

speaker speaker_of(const event *e);
// Every order that an event of the batch may move, sorted, once. In-batch teaching adds none: the
// teacher's order is here already.
size_t deciding_orders(const batch *b, po_str **ret_ids);
void deciding_all(batch *b);
