// The look is one statement with two index branches: lateral index scans over the gaps, and the rows above `high`.
// An OR of the two would scan the history. The limit stands over the union as well: rows come in the order of ids
// across both, so nothing above a cut is taken before what was cut off.
// Each statement takes its own snapshot; a row that is visible to a look has every earlier row of its key visible
// too, because the writer holds the key's row lock from before nextval until after COMMIT.
#include "source.h"
#include "base/cleanup.h"

#include <stdlib.h>

#define COLUMNS                                                                                  \
    "id, topic, key, event_id, ce_type, ce_source, ce_time, sequence, traceparent, tracestate, " \
    "schema_fp, octet_length(body), "

enum {
    COL_ID,
    COL_TOPIC,
    COL_KEY,
    COL_EVENT_ID,
    COL_CE_TYPE,
    COL_CE_SOURCE,
    COL_CE_TIME,
    COL_SEQUENCE,
    COL_TRACEPARENT,
    COL_TRACESTATE,
    COL_SCHEMA_FP,
    COL_SIZE,
    COL_BODY,
    COL_CREATED,
};

enum { SESSION, LOOK, READ, SAMPLE, SCHEMA, TOPICS };
static const po_stmt statements[] = {
    // Unqualified names below are the outbox's. Its index is the only way in, whatever the statistics say (by_index
    // does the rest).
    [SESSION] = {"relay_session", "SELECT pg_backend_pid(), set_config('search_path', $1, false), "
                                  "set_config('enable_bitmapscan', 'off', false), "
                                  "set_config('plan_cache_mode', 'force_generic_plan', false)"},
    [LOOK] = {"relay_look",
              "SELECT " COLUMNS
              "CASE WHEN octet_length(body) <= $5 THEN body END, created_at FROM ("
              "(SELECT o.* FROM unnest($1::int8[], $2::int8[]) AS gap (lo, hi), LATERAL ("
              "SELECT * FROM outbox WHERE id BETWEEN gap.lo AND gap.hi ORDER BY id LIMIT $4) o "
              "ORDER BY o.id LIMIT $4) "
              "UNION ALL (SELECT * FROM outbox WHERE id > $3 ORDER BY id LIMIT $4)) rows "
              "ORDER BY id LIMIT $4"},
    [READ] = {"relay_read",
              "SELECT " COLUMNS "CASE WHEN octet_length(body) <= $2 THEN body END, created_at "
              "FROM outbox WHERE id = ANY ($1::int8[]) ORDER BY id"},
    // A transaction that was prepared keeps its virtual transaction, or is -1/xid after a restart.
    [SAMPLE] =
        {"relay_sample",
         "SELECT pg_backend_pid(), l.virtualtransaction FROM (VALUES (1)) AS always "
         "LEFT JOIN pg_locks l ON l.locktype = 'relation' AND l.relation = 'outbox'::regclass "
         "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
         "AND l.mode = 'RowExclusiveLock' AND l.granted"},
    [SCHEMA] = {"relay_schema", "SELECT schema FROM outbox_schema WHERE fp = $1 AND subject = $2"},
    [TOPICS] = {"relay_topics",
                "SELECT DISTINCT regexp_replace(subject, '-value$', '') FROM outbox_schema "
                "WHERE subject LIKE '%-value' ORDER BY 1"},
};

static bool session_start(source *source, po_arena *arena, po_err *err) {
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_args *args = po_args_new(arena);
    po_arg_text(args, po_s(source->outbox));
    if (!po_pg_run(source->pg, &statements[SESSION], args, &res, err))
        return false;
    source->backend = po_res_i64(res, 0, 0);
    return true;
}

bool source_open(const po_pg_options *options, const char *outbox, source *ret_source,
                 po_err *err) {
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    source opened = {.outbox = outbox};
    if (!po_pg_open(options, &opened.pg, err))
        return false;
    if (!session_start(&opened, arena, err)) {
        po_pg_close(&opened.pg);
        return false;
    }
    *ret_source = opened;
    return true;
}

void source_close(source *source) {
    po_pg_close(&source->pg);
}

// The name of the outbox was checked with the settings.
bool source_listen(source *source, po_err *err) {
    PO_AUTO(po_buf_done) po_buf sql = {0};
    po_buf_printf(&sql, "LISTEN \"outbox_%s\"", source->outbox);
    return po_pg_exec(source->pg, sql.p, err);
}

// --- Rows

bool source_look(source *source, po_arena *arena, const gaps *gaps, int32_t limit,
                 int64_t body_limit, po_res **ret_rows, po_err *err) {
    const int64_t *lo, *hi;
    size_t n = gaps_ranges(gaps, &lo, &hi);
    po_args *args = po_args_new(arena);
    po_arg_i64s(args, lo, n);
    po_arg_i64s(args, hi, n);
    po_arg_i64(args, gaps_high(gaps));
    po_arg_i64(args, limit);
    po_arg_i64(args, body_limit);
    return po_pg_run(source->pg, &statements[LOOK], args, ret_rows, err);
}

bool source_read(source *source, po_arena *arena, const int64_t *ids, size_t n, int64_t body_limit,
                 po_res **ret_rows, po_err *err) {
    po_args *args = po_args_new(arena);
    po_arg_i64s(args, ids, n);
    po_arg_i64(args, body_limit);
    return po_pg_run(source->pg, &statements[READ], args, ret_rows, err);
}

static po_str bytea_or_null(const po_res *rows, int i, int col) {
    return po_res_null(rows, i, col) ? (po_str){0} : po_res_bytea(rows, i, col);
}

int64_t source_id(const po_res *rows, int i) {
    return po_res_i64(rows, i, COL_ID);
}

row source_row(const po_res *rows, int i) {
    return (row){
        .id = po_res_i64(rows, i, COL_ID),
        .topic = po_res_text(rows, i, COL_TOPIC),
        .key = po_res_text(rows, i, COL_KEY),
        .event_id = po_res_uuid(rows, i, COL_EVENT_ID),
        .ce_type = po_res_text(rows, i, COL_CE_TYPE),
        .ce_source = po_res_text(rows, i, COL_CE_SOURCE),
        .ce_time_us = po_res_time(rows, i, COL_CE_TIME),
        .sequence = po_res_i64(rows, i, COL_SEQUENCE),
        .traceparent = po_res_text(rows, i, COL_TRACEPARENT),
        .tracestate = po_res_text(rows, i, COL_TRACESTATE),
        .schema_fp = bytea_or_null(rows, i, COL_SCHEMA_FP),
        .tombstone = po_res_null(rows, i, COL_SIZE),
        .size = po_res_i64(rows, i, COL_SIZE),
        .body = bytea_or_null(rows, i, COL_BODY),
        .created_us = po_res_time(rows, i, COL_CREATED),
    };
}

// --- Holders

// "3/1234", or "-1/5678" of a transaction prepared before the server's last start.
static bool parse_holder(po_str text, uint64_t *ret_holder) {
    const char *slash = text.n > 0 ? memchr(text.p, '/', text.n) : NULL;
    if (!slash)
        return false;
    int64_t backend, local;
    size_t at = (size_t)(slash - text.p);
    if (!po_parse_i64((po_str){text.p, at}, &backend) ||
        !po_parse_i64((po_str){slash + 1, text.n - at - 1}, &local))
        return false;
    *ret_holder = (uint64_t)backend << 32 | (uint32_t)local;
    return true;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

bool source_sample(source *source, po_arena *arena, uint64_t **ret_holders, size_t *ret_n,
                   po_err *err) {
    PO_AUTO(po_res_done) po_res *res = NULL;
    if (!po_pg_run(source->pg, &statements[SAMPLE], NULL, &res, err))
        return false;
    if (po_res_i64(res, 0, 0) != source->backend)
        return po_fail(
            err, PO_RETRY, "session_moved",
            "the session has moved to another server process: relay needs a session of its own, "
            "not a transaction pooler");
    int rows = po_res_rows(res);
    uint64_t *holders = po_alloc_array(arena, (size_t)rows, sizeof *holders);
    size_t n = 0;
    for (int i = 0; i < rows; i++) {
        if (po_res_null(res, i, 1))
            continue; // nobody
        po_str text = po_res_text(res, i, 1);
        if (!parse_holder(text, &holders[n++]))
            return po_fail(err, PO_BUG, "holder", "virtual transaction '%.*s'", (int)text.n,
                           text.p);
    }
    if (n > 1)
        qsort(holders, n, sizeof *holders, by_value);
    *ret_holders = holders;
    *ret_n = n;
    return true;
}

// --- Schemas

bool source_schema(source *source, po_arena *arena, po_str fp, po_str subject, po_str *ret_text,
                   po_err *err) {
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_args *args = po_args_new(arena);
    po_arg_bytea(args, fp);
    po_arg_text(args, subject);
    if (!po_pg_run(source->pg, &statements[SCHEMA], args, &res, err))
        return false;
    *ret_text = po_res_rows(res) == 0 ? (po_str){0} : po_str_copy(arena, po_res_text(res, 0, 0));
    return true;
}

bool source_topics(source *source, po_arena *arena, po_str **ret_topics, size_t *ret_n,
                   po_err *err) {
    PO_AUTO(po_res_done) po_res *res = NULL;
    if (!po_pg_run(source->pg, &statements[TOPICS], NULL, &res, err))
        return false;
    int n = po_res_rows(res);
    *ret_topics = po_alloc_array(arena, (size_t)n, sizeof **ret_topics);
    for (int i = 0; i < n; i++)
        (*ret_topics)[i] = po_str_copy(arena, po_res_text(res, i, 0));
    *ret_n = (size_t)n;
    return true;
}
