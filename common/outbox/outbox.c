// Rows become one array per column, so that a batch of any size is one statement.
#include "outbox/outbox.h"

// The columns of a batch of texts, by the place of the field in the row.
static void add_texts(po_args *args, po_arena *arena, const po_outbox_row *rows, size_t n,
                      po_str (*field)(const po_outbox_row *row)) {
    po_str *values = po_alloc_array(arena, n, sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = field(&rows[i]);
    po_arg_texts(args, values, n);
}

static po_str topic(const po_outbox_row *row) {
    return row->topic;
}
static po_str key(const po_outbox_row *row) {
    return row->key;
}
static po_str ce_type(const po_outbox_row *row) {
    return row->ce_type;
}
static po_str ce_source(const po_outbox_row *row) {
    return row->ce_source;
}
static po_str null_if_empty(po_str s) {
    return s.n > 0 ? s : (po_str){NULL, 0};
}
static po_str traceparent(const po_outbox_row *row) {
    return null_if_empty(row->traceparent);
}
static po_str tracestate(const po_outbox_row *row) {
    return null_if_empty(row->tracestate);
}

po_args *po_outbox_args(po_arena *arena, const po_outbox_row *rows, size_t n) {
    po_args *args = po_args_new(arena);
    po_uuid *event_ids = po_alloc_array(arena, n, sizeof *event_ids);
    int64_t *times = po_alloc_array(arena, n, sizeof *times);
    int64_t *sequences = po_alloc_array(arena, n, sizeof *sequences);
    po_str *fps = po_alloc_array(arena, n, sizeof *fps);
    po_str *bodies = po_alloc_array(arena, n, sizeof *bodies);
    for (size_t i = 0; i < n; i++) {
        event_ids[i] = rows[i].event_id;
        times[i] = rows[i].ce_time_us;
        sequences[i] = rows[i].sequence;
        fps[i] = (po_str){(const char *)rows[i].schema_fp, rows[i].schema_fp ? 32 : 0};
        bodies[i] = rows[i].body;
    }
    add_texts(args, arena, rows, n, topic);
    add_texts(args, arena, rows, n, key);
    po_arg_uuids(args, event_ids, n);
    add_texts(args, arena, rows, n, ce_type);
    add_texts(args, arena, rows, n, ce_source);
    po_arg_times(args, times, n);
    po_arg_i64s(args, sequences, n);
    add_texts(args, arena, rows, n, traceparent);
    add_texts(args, arena, rows, n, tracestate);
    po_arg_byteas(args, fps, n);
    po_arg_byteas(args, bodies, n);
    return args;
}

// Repeated freely: the second time it inserts nothing.
bool po_outbox_register(const po_outbox *outbox, po_pg *pg, const uint8_t fp[32], po_str subject,
                        po_str schema_text, po_err *err) {
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    po_args *args = po_args_new(arena);
    po_arg_bytea(args, (po_str){(const char *)fp, 32});
    po_arg_text(args, subject);
    po_arg_text(args, schema_text);
    return po_pg_run(pg, &outbox->schema, args, NULL, err) || po_wrap(err, "making a schema known");
}
