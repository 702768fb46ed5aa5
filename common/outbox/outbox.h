// The transactional outbox: events appended in the transaction that makes them true, published by
// relay. The table is common/outbox/outbox.sql; each owner has the same text in its migrations. The
// writer holds its aggregate's row lock before it appends, so for one key id order = commit order.
#pragma once
#include "pg/pg.h"

typedef struct po_outbox_row {
    po_str topic, key; // neither empty
    po_uuid event_id;
    po_str ce_type, ce_source;      // "payonce.payment.qualified", "/payonce/ingest"
    int64_t ce_time_us;             // when it happened
    int64_t sequence;               // per key, rising
    po_str traceparent, tracestate; // may be empty
    const uint8_t *schema_fp;       // 32 bytes, or NULL with a tombstone
    po_str body;                    // p == NULL: tombstone
} po_outbox_row;

// Statements are named for a schema: one set per owner, e.g. PO_OUTBOX("ingest").
typedef struct po_outbox {
    po_stmt put;    // set-based insert, ordered as given
    po_stmt schema; // upsert into outbox_schema
} po_outbox;
#define PO_OUTBOX(owner)                                                                          \
    {                                                                                             \
        .put = {owner "_outbox_put",                                                              \
                "INSERT INTO " owner                                                              \
                ".outbox (topic, key, event_id, ce_type, ce_source, ce_time, "                    \
                "sequence, traceparent, tracestate, schema_fp, body) SELECT * FROM "              \
                "unnest($1::text[], "                                                             \
                "$2::text[], $3::uuid[], $4::text[], $5::text[], $6::timestamptz[], $7::int8[], " \
                "$8::text[], $9::text[], $10::bytea[], $11::bytea[])"},                           \
        .schema = {owner "_outbox_schema",                                                        \
                   "INSERT INTO " owner ".outbox_schema (fp, subject, schema) SELECT $1, $2, $3 " \
                   "WHERE NOT EXISTS (SELECT FROM " owner                                         \
                   ".outbox_schema WHERE fp = $1 AND subject = "                                  \
                   "$2) ON CONFLICT DO NOTHING"},                                                 \
    }

// The parameters of outbox->put for n rows: for po_pg_run or po_pipe_send inside the caller's
// transaction.
po_args *po_outbox_args(po_arena *arena, const po_outbox_row *rows, size_t n);
// Makes a writer schema known (own short transaction); call for each schema before the first put.
PO_MUST_CHECK bool po_outbox_register(const po_outbox *outbox, po_pg *pg, const uint8_t fp[32],
                                      po_str subject, po_str schema_text, po_err *err);

// The ring wakes relay after COMMIT on a connection of its own (never NOTIFY inside a business
// transaction: it serialises commits): at once if the last ring was ≥ 2 ms ago, else once at the
// end of those 2 ms. A lost ring only costs relay's idle interval (100 ms). Channel: "outbox_"
// schema.
typedef struct po_ring po_ring;
PO_MUST_CHECK bool po_ring_open(const po_pg_options *options, const char *schema,
                                po_ring **ret_ring, po_err *err);
void po_ring_ring(po_ring *ring); // thread-safe, never blocks, never fails
void po_ring_close(po_ring **ring);
