// What ingest reads and writes, as sets: every call is one statement for a whole batch, inside the
// caller's transaction. SQL lives in a table at the top of store.c and store_write.c. Lock order
// everywhere: event keys → orders (id order) → references (sorted) → undecided rows. Text in results
// is copied into the arena.
#pragma once
#include "accounts.h"
#include "decision/decide.h"
#include "outbox/outbox.h"
#include "pg/pg.h"
#include "routes.h"

extern const po_outbox ingest_outbox;

// Opens a connection that may append to the outbox: its commits are durable, the database knows
// these accounts as the same (identity.h; NULL: not asked), else PO_REFUSED "setting"; and it knows
// the schemas of this build.
PO_MUST_CHECK bool store_open(const po_pg_options *options, accounts *accounts, po_pg **ret_pg,
                              po_err *err);

// The W3C trace context of the request behind a change; both empty when there was none.
typedef struct trace {
    po_str parent, state;
} trace;

// One provider event on its way through: recorded, then decided.
typedef struct event {
    const account *account; // NULL: ours (the expiry sweep)
    po_str provider, alias; // columns of the key; alias: the account's name
    observation obs;
    po_str raw;      // verified bytes
    po_str *headers; // in the adapter's order
    size_t n_headers;
    trace trace;
    uint8_t raw_sha256[32];

    size_t first_ref;              // settle's: where its look-ups begin
    const struct outcome *outcome; // settle's: the last decision made of it, in settle's arena
    int64_t id; // provider_event.id once recorded, 0 = not (a duplicate or a conflict)
    enum { EVENT_RECORDED, EVENT_DUPLICATE, EVENT_CONFLICT } same; // what recording found
} event;

// An order in hand: locked, loaded, decided on, written once.
typedef struct held_order {
    order order;
    po_str customer_id, purpose, item;
    bool has_contact;
    bool expiry_swept;
    fact_set facts;
    bool changed; // position, sequence, sweep mark or contact mark differ from the row
} held_order;

// A decision to be written: one of an event (or a command, event_id 0) about an order.
typedef struct outcome {
    held_order *held;
    decision decision;
    po_uuid decision_id;
    int64_t event; // provider_event.id, 0 = command
    po_str provider, alias, provider_event_id;
    po_str refund_id;
    int64_t occurred_at_us, decided_at_us;
    trace trace;
    char *facts_json; // the facts it changed, with their values after it
} outcome;

// Sends the insert of n events, which must be sorted by (provider, alias, event_id) without
// repeats; the result's rows are (id, provider, account, event_id) of the new ones.
PO_MUST_CHECK bool store_send_events(po_pg *pg, po_arena *arena, event *const *events, size_t n,
                                     po_err *err);
// Sends the look-up of references, and reads what it brought.
PO_MUST_CHECK bool store_send_refs(po_pg *pg, po_arena *arena, const known_ref *asked, size_t n,
                                   po_err *err);
found_ref *store_read_refs(po_arena *arena, const po_res *rows, size_t *ret_n);
// The same of orders by id.
PO_MUST_CHECK bool store_send_routes(po_pg *pg, po_arena *arena, const po_str *order_ids, size_t n,
                                     po_err *err);
found_order *store_read_routes(po_arena *arena, const po_res *rows, size_t *ret_n);
// Sends the comparison of events that the insert did not return: rows (provider, account, event_id,
// digest), in the order of the events.
PO_MUST_CHECK bool store_send_compare(po_pg *pg, po_arena *arena, event *const *events, size_t n,
                                      po_err *err);
PO_MUST_CHECK bool store_send_conflicts(po_pg *pg, po_arena *arena, event *const *events, size_t n,
                                        po_err *err);

// Sends lock, orders and facts (three statements: READ COMMITTED refreshes only what a *later*
// statement reads). `skip_locked`: orders that are held elsewhere are left out. ids sorted.
PO_MUST_CHECK bool store_send_hold(po_pg *pg, po_arena *arena, const po_str *order_ids, size_t n,
                                   bool skip_locked, po_err *err);
#define STORE_HOLD_SENDS 3
// The lock alone (rows: the ids of those held), and the two statements that read.
PO_MUST_CHECK bool store_send_lock(po_pg *pg, po_arena *arena, const po_str *order_ids, size_t n,
                                   bool skip_locked, po_err *err);
PO_MUST_CHECK bool store_send_read(po_pg *pg, po_arena *arena, const po_str *order_ids, size_t n,
                                   po_err *err);
// Reads what store_send_hold brought; sorted by order id.
PO_MUST_CHECK bool store_read_hold(po_arena *arena, po_res *const *results, held_order **ret_orders,
                                   size_t *ret_n, po_err *err);

// The order among those held, or NULL.
held_order *store_find_held(held_order *held, size_t n, po_str order_id);

// Sends everything that a batch decided; ret_sends = statements sent. `taught`: references found
// unknown by a look-up of this transaction, sorted by (provider, kind, value, account); one that
// another session has taught meanwhile fails with 23505: repeat the batch, the look-up will see it.
typedef struct batch_writes {
    held_order *orders;
    size_t n_orders;
    outcome *outcomes;
    size_t n_outcomes;
    known_ref *taught;
    size_t n_taught;
    known_ref *learned; // references known, or taught here, whose payment is known only now
    size_t n_learned;
    po_outbox_row *contacts; // rows of contacts.v1, before the payment events
    size_t n_contacts;
} batch_writes;
PO_MUST_CHECK bool store_send_writes(po_pg *pg, po_arena *arena, const batch_writes *writes,
                                     size_t *ret_sends, po_err *err);

// A payment event of the outcome, as an outbox row.
PO_MUST_CHECK bool store_payment_row(po_arena *arena, const outcome *outcome,
                                     po_outbox_row *ret_row, po_err *err);
// The facts that have moved since the last call, as compact JSON on the arena: what a decision has
// changed. Folded over an order's decisions they are its snapshot at each.
char *store_changes_json(po_arena *arena, fact_set *facts);

// Items joined by newlines (no item holds one): how a list rides in a text[] column of a set.
po_str store_join(po_arena *arena, const po_str *items, size_t n);
