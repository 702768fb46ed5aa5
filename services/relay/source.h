// The outbox as the relay sees it: a session on the primary whose search_path is the outbox's schema, and the
// statements of look, sample and reading again by id. READ COMMITTED, each statement its own transaction.
#pragma once
#include "gaps.h"
#include "pg/pg.h"

typedef struct source {
    const char *outbox; // schema
    po_pg *pg;
    int64_t backend; // process id of our session on the server
} source;

typedef struct row { // lent by the result
    int64_t id;
    po_str topic, key;
    po_uuid event_id;
    po_str ce_type, ce_source;
    int64_t ce_time_us, sequence;
    po_str traceparent, tracestate;
    po_str schema_fp; // p == NULL: none
    bool tombstone;
    int64_t size; // of the body
    po_str body;  // p == NULL: tombstone, or larger than was asked for
    int64_t created_us;
} row;

PO_MUST_CHECK bool source_open(const po_pg_options *options, const char *outbox, source *ret_source,
                               po_err *err);
void source_close(source *source);
// From now on the writer's rings wake po_pg_wait_notify on this session. Only for who waits there: rings that nobody
// takes pile up in memory.
PO_MUST_CHECK bool source_listen(source *source, po_err *err);

// At most `limit` rows, ascending, of the gaps and above high. Bodies larger than body_limit are left out.
PO_MUST_CHECK bool source_look(source *source, po_arena *arena, const gaps *gaps, int32_t limit,
                               int64_t body_limit, po_res **ret_rows, po_err *err);
// The rows of these ids that are there, ascending.
PO_MUST_CHECK bool source_read(source *source, po_arena *arena, const int64_t *ids, size_t n,
                               int64_t body_limit, po_res **ret_rows, po_err *err);
int64_t source_id(const po_res *rows, int i);
row source_row(const po_res *rows, int i);

// Who may still fill a gap: virtual transactions holding RowExclusiveLock on the outbox, ascending. RETRY
// "session_moved" when statements do not run in the session that was opened (a transaction pooler).
PO_MUST_CHECK bool source_sample(source *source, po_arena *arena, uint64_t **ret_holders,
                                 size_t *ret_n, po_err *err);

// The text of a writer's schema; p == NULL when its writer has not made it known.
PO_MUST_CHECK bool source_schema(source *source, po_arena *arena, po_str fp, po_str subject,
                                 po_str *ret_text, po_err *err);
// All topics for which a schema is known.
PO_MUST_CHECK bool source_topics(source *source, po_arena *arena, po_str **ret_topics,
                                 size_t *ret_n, po_err *err);
