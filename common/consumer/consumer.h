// The consumer SDK: a consumer is a name, SQL statements and a table of {event type, handler}; the
// SDK owns Kafka, dedupe, transactions, retry, metrics, trace and drain.
//
// Loop: poll a batch → one transaction {dedupe insert into NAME.inbox, handlers, sent statements,
// shared statements} → COMMIT → store offsets. A failing batch is halved; a lost COMMIT reply: the
// batch again. The table NAME.inbox (event_id uuid PRIMARY KEY, received_at timestamptz DEFAULT
// now(), an index on received_at) is in the owner's first migration; only events that have a
// handler are put there. So is the table NAME.position, which the SDK alone writes (position.h; its
// columns: docs/adding-a-consumer.md). Failures by kind: see pg.h. RETRY (database, registry, broker, deployment)
// waits without limit: partitions paused, polling goes on. REFUSED blocks its partition: retried
// every 5 s, logged once as an error, shown in payonce_consumer_blocked_partitions; nothing is
// skipped, other partitions go on.
#pragma once
#include "event/event.h"
#include "kafka/kafka.h"
#include "outbox/outbox.h"
#include "service/service.h"
#include "work/work.h"

typedef struct po_delivery { // lent for the length of the handler call
    po_ce ce;
    po_str topic, key;
    int32_t partition;
    int64_t offset;
    const po_avro_schema *writer;    // NULL for a tombstone
    po_str body;                     // bare Avro; p == NULL: tombstone
    const po_payment_event *payment; // decoded, on payments.v1; else NULL
    const po_contact *contact;       // decoded, on contacts.v1 unless a tombstone; else NULL
} po_delivery;

typedef struct po_consumer_tx {
    po_pg *pg;              // inside the batch's transaction
    po_arena *arena;        // dropped after the batch
    void *state;            // po_consumer.state
    struct po_batch *batch; // the SDK's
} po_consumer_tx;

// Must not begin, commit or touch the network. Asserting on data is a fault: return REFUSED or BUG.
typedef bool (*po_handler)(po_consumer_tx *tx, const po_delivery *delivery, po_err *err);

typedef struct po_consumer_route {
    const char *topic;
    const char *type; // ce_type without the prefix "payonce." ("payment.qualified", "contact.set",
                      // "contact.erased"); "*" = every type of the topic not named before it
    po_handler handler; // NULL: consumed and ignored
} po_consumer_route;    // ends with {0}; a type without a row is ignored and counted

typedef struct po_consumer {
    const char *name; // service, schema, role and consumer group payonce-NAME
    const char *about;
    const po_consumer_route *routes;
    const po_file *migrations;
    const po_setting *settings; // own settings, or NULL
    const po_http_route *admin; // or NULL
    void (*declare_metrics)(void);
    bool (*check)(const po_config *config, po_err *err);
    // After settings are known, before consuming; ret_state is given to handlers. May start
    // workers.
    bool (*start)(const po_config *config, const po_pg_options *pg, void **ret_state, po_err *err);
    void (*committed)(
        void *state);          // after each COMMIT of a batch that ran a handler; quick; or NULL
    void (*stop)(void *state); // after consuming has ended; or NULL
} po_consumer;

// What the statement of one event returned; same rules as for a handler. It may send further
// statements.
typedef bool (*po_rows_handler)(po_consumer_tx *tx, const po_delivery *delivery, const po_res *rows,
                                po_err *err);

// Sends a statement with all others of the batch, in the order of the calls, without a round trip
// for each: after the last handler has returned, in the same transaction. on_rows (or NULL) then
// gets its rows, in the same order. A handler may as well run statements itself (po_pg_run(tx->pg,
// …)): they run at once, so ahead of everything that was sent; a consumer uses one way for one
// table. `stmt` outlives the call.
void po_consumer_send(po_consumer_tx *tx, const po_delivery *delivery, const po_stmt *stmt,
                      po_args *args, po_rows_handler on_rows);
// The same for a row that several keys of the topic share (a customer's balance): all of these run
// last, ordered by (statement name, key), so that two members never lock such rows in opposite
// orders. `key` is copied.
void po_consumer_send_shared(po_consumer_tx *tx, po_str key, const po_stmt *stmt, po_args *args);

// The business key says another thing than what was recorded under it: an alarm, not a block.
// Counted and logged as an error just before the batch is committed, so again when it comes again.
// `what` is a constant: "position of this sequence".
void po_consumer_conflict(po_consumer_tx *tx, const po_delivery *delivery, const char *what);

// The order's position as text, "paid USD/2 due 1000 received 1000 refunded 0 q1 customer c-7":
// what two events of one order and sequence must agree on (never ids, decisions or times).
po_str po_position_text(po_arena *arena, const po_payment_event *event);

int po_consumer_main(int argc, char **argv, const po_consumer *consumer);
