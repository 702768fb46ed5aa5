// Goes up the index in windows of CHUNK rows and deletes what is due in each, until a window has nothing old
// enough. Rows that must stay (open below the floor) are passed over, so they never stop it. A pass begins where
// the last one found the first row that stays, or may yet appear: entries of deleted rows that a held snapshot keeps
// in the index are not walked through again and again.
#include "retention.h"
#include "base/cleanup.h"

enum { CHUNK = 1000 };

enum { SESSION, DELETE };
static const po_stmt statements[] = {
    [SESSION] = {"retention_session", "SELECT set_config('search_path', $1, false), "
                                      "(SELECT epoch FROM relay.cursor WHERE outbox = $1)"},
    // A row that is committed only later lies above the floor or in an open range of this snapshot.
    // Rows and ranges are merged by id, a range before a row that begins with it: the ranges are
    // disjoint, so the highest end so far is that of the last range begun. Cost adds: window + ranges.
    [DELETE] =
        {"retention_delete",
         "WITH cursor AS MATERIALIZED (SELECT floor, open_lo, open_hi FROM relay.cursor WHERE "
         "outbox = $1), "
         "seen AS MATERIALIZED (SELECT id, created_at < now() - least($4, $5) * interval '1 ms' AS "
         "aged, "
         "created_at < now() - CASE WHEN topic = ANY (string_to_array($6, ',')) THEN least($4, $5) "
         "ELSE $4 END * interval '1 ms' AS due FROM outbox WHERE id > $2 ORDER BY id LIMIT $3), "
         "judged AS MATERIALIZED (SELECT id, due, "
         "coalesce(max(hi) OVER (ORDER BY id, hi ROWS UNBOUNDED PRECEDING) >= id, false) AS open "
         "FROM "
         "(SELECT id, NULL::int8 AS hi, due FROM seen UNION ALL SELECT lo, hi, NULL FROM cursor c, "
         "unnest(c.open_lo, c.open_hi) AS range (lo, hi)) merged), "
         "gone AS (DELETE FROM outbox WHERE id = ANY (ARRAY (SELECT id FROM judged, cursor WHERE "
         "due "
         "AND NOT open AND id <= floor)) RETURNING id) "
         "SELECT (SELECT max(id) FROM seen), (SELECT count(*) FROM seen WHERE aged), "
         "(SELECT count(*) FROM gone), "
         "(SELECT least(min(id), (SELECT least(floor + 1, open_lo[1]) FROM cursor)) - 1 FROM seen "
         "WHERE NOT EXISTS (SELECT FROM gone WHERE gone.id = seen.id))"},
};

static bool delete_window(const retention *retention, po_pg *pg, int64_t after, po_res **ret_res,
                          po_err *err) {
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    po_args *args = po_args_new(arena);
    po_arg_text(args, po_s(retention->outbox));
    po_arg_i64(args, after);
    po_arg_i64(args, CHUNK);
    po_arg_i64(args, retention->age_ms);
    po_arg_i64(args, RETENTION_PERSONAL_MS);
    po_arg_text(args, po_s(retention->personal_topics));
    return po_pg_run(pg, &statements[DELETE], args, ret_res, err);
}

static bool start(retention *retention, po_pg *pg, po_err *err) {
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_args *args = po_args_new(arena);
    po_arg_text(args, po_s(retention->outbox));
    if (!po_pg_run(pg, &statements[SESSION], args, &res, err))
        return false;
    if (po_res_i64(res, 0, 1) != retention->epoch)
        retention->after = 0;
    retention->epoch = po_res_i64(res, 0, 1);
    return true;
}

bool retention_pass(retention *retention, po_pg *pg, int64_t *ret_deleted, po_err *err) {
    if (!start(retention, pg, err))
        return false;
    int64_t after = retention->after, begin = INT64_MAX, deleted = 0;
    for (bool more = true; more && !po_stopping();) {
        PO_AUTO(po_res_done) po_res *res = NULL;
        if (!delete_window(retention, pg, after, &res, err))
            return false;
        if (retention->beat)
            po_beat_tick(retention->beat);
        if (!po_res_null(res, 0, 3) && po_res_i64(res, 0, 3) < begin)
            begin = po_res_i64(res, 0, 3);
        after = po_res_i64(res, 0, 0);
        more = po_res_i64(res, 0, 1) > 0;
        deleted += po_res_i64(res, 0, 2);
    }
    if (begin != INT64_MAX)
        retention->after = begin;
    *ret_deleted = deleted;
    return true;
}
