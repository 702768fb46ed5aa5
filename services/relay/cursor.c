// The checkpoint says: every id ≤ floor is acknowledged, dead or in an open range. It may say less than is true,
// never more: what was finished since is then sent again. So it is written lazily, and a lost one costs nothing.
#include "cursor.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "log/log.h"

#include <stdio.h>
#include <stdlib.h>

enum { YOUNG_MS = 1000, SCAN_ROWS = 10000 };

enum { IDENTIFY, TAKE, OPEN, CHECKPOINT, RELEASE, BACKWARDS };
static const po_stmt statements[] = {
    [IDENTIFY] = {"cursor_identify",
                  "SELECT (SELECT system_identifier FROM pg_control_system()), "
                  "CASE WHEN NOT pg_is_in_recovery() THEN "
                  "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END, "
                  "pg_postmaster_start_time(), current_setting('synchronous_commit'), "
                  "CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox_id_seq"},
    // clock_timestamp: a lease ends by the database's clock, not by when a transaction began. One's own lease is
    // found in the row when the outbox has moved to another server, which has it from the one before.
    [TAKE] = {"cursor_take",
              "INSERT INTO relay.cursor AS c (outbox, epoch, holder, expires_at) "
              "VALUES ($1, 1, $2, clock_timestamp() + $3 * interval '1 ms') ON CONFLICT (outbox) "
              "DO UPDATE "
              "SET epoch = c.epoch + 1, holder = excluded.holder, expires_at = excluded.expires_at "
              "WHERE c.expires_at < clock_timestamp() OR (c.holder = $2 AND c.epoch = $4) "
              "RETURNING epoch, floor, system_id, timeline, server_start, checkpoint_at"},
    [OPEN] = {"cursor_open",
              "SELECT lo, hi FROM relay.cursor, unnest(open_lo, open_hi) AS open (lo, hi) "
              "WHERE outbox = $1 ORDER BY lo"},
    // A floor below the one we wrote ($10) is that of a database that went back in time: ids are drawn again.
    [CHECKPOINT] =
        {"cursor_checkpoint",
         "UPDATE relay.cursor SET floor = $4, open_lo = $5, open_hi = $6, system_id = $7, timeline "
         "= $8, "
         "server_start = $9, checkpoint_at = clock_timestamp(), "
         "expires_at = clock_timestamp() + $3 * interval '1 ms' "
         "WHERE outbox = $1 AND epoch = $2 AND floor >= $10"},
    [RELEASE] = {"cursor_release",
                 "UPDATE relay.cursor SET expires_at = 'epoch' WHERE outbox = $1 AND epoch = $2"},
    // Ids and created_at rise together but for the length of a transaction, which the overlap allows for. Of a window:
    // its first younger row, the last older one below that, its first row.
    [BACKWARDS] = {"cursor_backwards",
                   "WITH seen AS MATERIALIZED (SELECT id, created_at >= $2 AS younger FROM outbox "
                   "WHERE id < $1 ORDER BY id DESC LIMIT $3), "
                   "first AS (SELECT min(id) AS id FROM seen WHERE younger) "
                   "SELECT first.id, (SELECT max(id) FROM seen WHERE first.id IS NULL OR seen.id < "
                   "first.id), "
                   "(SELECT min(id) FROM seen) FROM first"},
};

void cursor_done(cursor *c) {
    free(c->lo);
    free(c->hi);
    c->lo = c->hi = NULL;
    c->n = 0;
}

// --- The server

bool cursor_identify(po_pg *pg, server *ret_server, po_err *err) {
    PO_AUTO(po_res_done) po_res *res = NULL;
    if (!po_pg_run(pg, &statements[IDENTIFY], NULL, &res, err)) {
        if (po_pg_is(err, "42501"))
            return po_fail(err, PO_REFUSED, "settings",
                           "the role of relay may not read the outbox's sequence");
        return false;
    }
    if (po_res_null(res, 0, 1))
        return po_fail(err, PO_RETRY, "standby", "this server is a standby");
    if (po_str_is(po_res_text(res, 0, 3), "off"))
        return po_fail(err, PO_REFUSED, "settings",
                       "synchronous_commit is off: after a crash ids could be handed out twice");
    po_str timeline = po_res_text(res, 0, 1);
    server found = {.system_id = po_res_i64(res, 0, 0),
                    .started_us = po_res_time(res, 0, 2),
                    .sequence = po_res_i64(res, 0, 4)};
    snprintf(found.timeline, sizeof found.timeline, "%.*s", (int)timeline.n, timeline.p);
    *ret_server = found;
    return true;
}

const char *cursor_moved(const cursor *c, const server *now, int64_t high) {
    if (!c->known)
        return NULL;
    if (now->system_id != c->server.system_id)
        return "another system";
    if (strcmp(now->timeline, c->server.timeline) != 0)
        return "another timeline";
    if (now->sequence < c->floor || now->sequence < high)
        return "the sequence has run backwards";
    return NULL;
}

// --- Taking over

static void set_open(cursor *c, const int64_t *lo, const int64_t *hi, size_t n) {
    cursor_done(c);
    if (n == 0)
        return;
    c->lo = reallocarray(NULL, n, sizeof *lo);
    c->hi = reallocarray(NULL, n, sizeof *hi);
    if (!c->lo || !c->hi)
        abort();
    memcpy(c->lo, lo, n * sizeof *lo);
    memcpy(c->hi, hi, n * sizeof *hi);
    c->n = n;
}

static bool read_open(cursor *c, po_pg *pg, po_arena *arena, po_err *err) {
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_args *args = po_args_new(arena);
    po_arg_text(args, po_s(c->outbox));
    if (!po_pg_run(pg, &statements[OPEN], args, &res, err))
        return false;
    size_t n = (size_t)po_res_rows(res);
    int64_t *lo = po_alloc_array(arena, n, sizeof *lo), *hi = po_alloc_array(arena, n, sizeof *hi);
    for (size_t i = 0; i < n; i++) {
        lo[i] = po_res_i64(res, (int)i, 0);
        hi[i] = po_res_i64(res, (int)i, 1);
    }
    set_open(c, lo, hi, n);
    return true;
}

bool cursor_take(cursor *c, po_pg *pg, bool *ret_mine, po_err *err) {
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_args *args = po_args_new(arena);
    po_arg_text(args, po_s(c->outbox));
    po_arg_text(args, po_s(c->holder));
    po_arg_i64(args, c->lease_ms);
    po_arg_i64(args, c->epoch);
    int64_t asked_ms = po_mono_ms();
    if (!po_pg_run(pg, &statements[TAKE], args, &res, err))
        return false;
    *ret_mine = po_res_rows(res) == 1;
    if (!*ret_mine)
        return true;
    c->written_ms = asked_ms;
    c->epoch = po_res_i64(res, 0, 0);
    c->floor = po_res_i64(res, 0, 1);
    c->known = !po_res_null(res, 0, 2);
    c->server = (server){.system_id = po_res_i64(res, 0, 2), .started_us = po_res_time(res, 0, 4)};
    po_str timeline = po_res_text(res, 0, 3);
    snprintf(c->server.timeline, sizeof c->server.timeline, "%.*s", (int)timeline.n, timeline.p);
    c->checkpoint_us = po_res_time(res, 0, 5);
    return read_open(c, pg, arena, err);
}

// The last older row below all that were created since: going backwards through the index, for the history may be
// long. Not the id before the first of those: what lies between may be drawn already, and about to be committed.
static bool floor_since(po_pg *pg, int64_t since_us, int64_t *ret_floor, po_err *err) {
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    int64_t below = INT64_MAX, floor = 0;
    for (bool more = true; more;) {
        PO_AUTO(po_res_done) po_res *res = NULL;
        po_args *args = po_args_new(arena);
        po_arg_i64(args, below);
        po_arg_time(args, since_us);
        po_arg_i64(args, SCAN_ROWS);
        if (!po_pg_run(pg, &statements[BACKWARDS], args, &res, err))
            return false;
        more = !po_res_null(res, 0, 0);
        if (more || floor == 0)
            floor = po_res_i64(res, 0, 1);
        if (!more && below == INT64_MAX) // none is younger: these may not have been the last ones
            floor = po_res_i64(res, 0, 2) - 1;
        below = po_res_i64(res, 0, 2);
    }
    *ret_floor = floor > 0 ? floor : 0;
    return true;
}

bool cursor_begin(cursor *c, po_pg *pg, const server *now, gaps **ret_gaps, po_err *err) {
    const char *moved = cursor_moved(c, now, c->floor);
    int64_t floor = c->floor;
    if (moved) {
        if (!floor_since(pg, c->checkpoint_us - c->overlap_us, &floor, err))
            return false;
        if (floor > c->floor)
            floor = c->floor;
        po_log(PO_ERROR,
               "the outbox is on another server than before: sending again what is younger",
               PO_TEXT("outbox", c->outbox), PO_TEXT("why", moved), PO_INT("floor", c->floor),
               PO_INT("again_above", floor));
        c->floor = floor;
        c->written_ms = 0; // due before all else: retention goes by the floor that is written
    }
    gaps *g = gaps_new(floor);
    for (size_t i = 0; i < c->n && c->lo[i] <= floor; i++)
        gaps_restore(g, c->lo[i], c->hi[i] < floor ? c->hi[i] : floor);
    c->server = *now;
    c->known = true;
    *ret_gaps = g;
    return true;
}

// --- The checkpoint

typedef struct span {
    int64_t lo, hi;
} span;

typedef struct collect {
    int64_t durable_floor, now_ms;
    int64_t youngest_from; // smallest id that is young
    span *spans;
    size_t n, cap;
} collect;

// What the last checkpoint had below its floor stays listed, whatever its age: the floor never falls.
static bool young(const collect *c, int64_t id, int64_t since_ms) {
    return id > c->durable_floor && c->now_ms - since_ms < YOUNG_MS;
}

static void find_young(void *arg, int64_t id, int64_t since_ms) {
    collect *c = arg;
    if (id < c->youngest_from && young(c, id, since_ms))
        c->youngest_from = id;
}

static void add_span(collect *c, int64_t lo, int64_t hi) {
    if (lo >= c->youngest_from)
        return;
    if (c->n == c->cap) {
        c->cap = c->cap ? c->cap * 2 : 256;
        c->spans = reallocarray(c->spans, c->cap, sizeof *c->spans);
        if (!c->spans)
            abort();
    }
    c->spans[c->n++] = (span){lo, hi};
}

static void add_row(void *arg, int64_t id, int64_t since_ms) {
    (void)since_ms;
    add_span(arg, id, id);
}

static int by_lo(const void *a, const void *b) {
    int64_t x = ((const span *)a)->lo, y = ((const span *)b)->lo;
    return (x > y) - (x < y);
}

// Spans that touch become one. Returns how many are left.
static size_t join(span *spans, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (kept > 0 && spans[kept - 1].hi + 1 == spans[i].lo)
            spans[kept - 1].hi = spans[i].hi;
        else
            spans[kept++] = spans[i];
    return kept;
}

plan cursor_plan(po_arena *arena, const keys *keys, const gaps *gaps, int64_t durable_floor,
                 int64_t now_ms) {
    collect c = {
        .durable_floor = durable_floor, .now_ms = now_ms, .youngest_from = gaps_high(gaps) + 1};
    const int64_t *lo, *hi;
    size_t ranges = gaps_ranges(gaps, &lo, &hi);
    for (size_t i = 0; i < ranges; i++)
        find_young(&c, lo[i], gaps_since_ms(gaps, i));
    keys_each(keys, find_young, &c);
    for (size_t i = 0; i < ranges; i++)
        add_span(&c, lo[i], hi[i]);
    keys_each(keys, add_row, &c);
    if (c.n > 0)
        qsort(c.spans, c.n, sizeof *c.spans, by_lo);
    size_t n = join(c.spans, c.n);
    plan plan = {.floor = c.youngest_from - 1};
    if (n > CURSOR_MOST_OPEN)
        plan.floor = c.spans[CURSOR_MOST_OPEN].lo - 1;
    if (plan.floor < durable_floor)
        plan.floor = durable_floor;
    plan.lo = po_alloc_array(arena, n, sizeof *plan.lo);
    plan.hi = po_alloc_array(arena, n, sizeof *plan.hi);
    for (; plan.n < n && c.spans[plan.n].lo <= plan.floor; plan.n++) {
        plan.lo[plan.n] = c.spans[plan.n].lo;
        plan.hi[plan.n] = c.spans[plan.n].hi;
    }
    free(c.spans);
    return plan;
}

bool cursor_checkpoint(cursor *c, po_pg *pg, po_arena *arena, const keys *keys, const gaps *gaps,
                       int64_t now_ms, po_err *err) {
    plan plan = cursor_plan(arena, keys, gaps, c->floor, now_ms);
    bool same = plan.floor == c->floor && plan.n == c->n &&
                (plan.n == 0 || (memcmp(plan.lo, c->lo, plan.n * sizeof *plan.lo) == 0 &&
                                 memcmp(plan.hi, c->hi, plan.n * sizeof *plan.hi) == 0));
    if (same && now_ms - c->written_ms < c->lease_ms * 3 / 10)
        return true;
    po_args *args = po_args_new(arena);
    po_arg_text(args, po_s(c->outbox));
    po_arg_i64(args, c->epoch);
    po_arg_i64(args, c->lease_ms);
    po_arg_i64(args, plan.floor);
    po_arg_i64s(args, plan.lo, plan.n);
    po_arg_i64s(args, plan.hi, plan.n);
    po_arg_i64(args, c->server.system_id);
    po_arg_text(args, po_s(c->server.timeline));
    po_arg_time(args, c->server.started_us);
    po_arg_i64(args, c->floor);
    PO_AUTO(po_res_done) po_res *res = NULL;
    if (!po_pg_run(pg, &statements[CHECKPOINT], args, &res, err))
        return false;
    if (po_res_affected(res) != 1)
        return po_fail(err, PO_RETRY, "fenced",
                       "another relay has taken over outbox '%s', or it went back in time",
                       c->outbox);
    c->written_ms = now_ms;
    c->floor = plan.floor;
    set_open(c, plan.lo, plan.hi, plan.n);
    return true;
}

bool cursor_release(cursor *c, po_pg *pg, po_err *err) {
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    po_args *args = po_args_new(arena);
    po_arg_text(args, po_s(c->outbox));
    po_arg_i64(args, c->epoch);
    return po_pg_run(pg, &statements[RELEASE], args, NULL, err);
}
