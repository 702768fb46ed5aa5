// A worker leases some rows, reads their events again from the raw bytes, and settles them: gone, or
// put off, under its token only. A wake in between clears the token, so the worker's transaction
// rolls back and another look follows. All rows of a claim go in one transaction, as a batch of
// intake does; when that fails, for one row's fault or loss, each goes alone.
#include "undecided.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "log/log.h"
#include "metrics/metrics.h"
#include "tell.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

enum {
    CLAIM_EVENT = 2,
    CLAIM_PROVIDER,
    CLAIM_ACCOUNT,
    CLAIM_ID,
    CLAIM_RAW,
    CLAIM_HEADERS,
    CLAIM_TRACE,
    CLAIM_AT,
    CLAIM_STATE,
    CLAIM_DUE_MS
};

// Those woken first, then those that are looked at once more in case. A woken one says nothing of
// how long others are due, and is woken whatever the clock says: that of the database which woke it
// may have been ahead of this one's. So may the clock that leased a row: no lease ends later than one
// of now. Half of the woken are those that wait the longest, half those woken last: however many one
// order has left to do, an event woken after them waits for what is woken after it alone. Rows are
// compared, since a range of one column would be planned as a bitmap and a sort of all that is due.
#define FREE                                                                         \
    "(lease_until IS NULL OR lease_until < now() OR lease_until > now() + 2 * $3 * " \
    "interval '1 millisecond')"
#define REACH "(now() - $4 * interval '1 millisecond', 0)"
static const po_stmt CLAIM = {
    "undecided_claim",
    "WITH oldest AS (SELECT event FROM ingest.undecided WHERE woken_at IS NOT NULL"
    " AND (woken_at, event) > " REACH " AND " FREE " ORDER BY woken_at, event"
    " LIMIT ($1 + 1) / 2 FOR UPDATE SKIP LOCKED),"
    " newest AS (SELECT event FROM ingest.undecided WHERE woken_at IS NOT NULL"
    " AND (woken_at, event) > " REACH " AND " FREE
    " AND event <> ALL (ARRAY(SELECT event FROM oldest))"
    " ORDER BY woken_at DESC, event DESC"
    " LIMIT CASE WHEN (SELECT count(*) FROM oldest) < ($1 + 1) / 2 THEN 0 ELSE $1 / 2 END"
    " FOR UPDATE SKIP LOCKED),"
    " woken AS (SELECT event FROM oldest UNION ALL SELECT event FROM newest),"
    " due AS (SELECT event, due_at FROM ingest.undecided WHERE due_at <= now()"
    " AND (due_at, event) > " REACH " AND " FREE
    " AND event <> ALL (ARRAY(SELECT event FROM woken)) ORDER BY due_at, event"
    " LIMIT $1 - (SELECT count(*) FROM woken) FOR UPDATE SKIP LOCKED),"
    " claimed AS (SELECT event, NULL AS due_at FROM woken UNION ALL SELECT event, due_at FROM due)"
    " UPDATE ingest.undecided u SET attempts = attempts + 1, lease_token = $2,"
    " lease_until = now() + $3 * interval '1 millisecond'"
    " FROM claimed c, ingest.provider_event e WHERE u.event = ANY (ARRAY[c.event])"
    " AND e.id = ANY (ARRAY[c.event])"
    " RETURNING u.event::text, u.attempts, u.event, e.provider, e.account, e.event_id, e.raw,"
    " array_to_string(e.headers, E'\\n'), e.traceparent, e.occurred_at, e.tracestate,"
    " (extract(epoch FROM now() - c.due_at) * 1000)::bigint"};
static const po_stmt LATER = {"undecided_later",
                              "UPDATE ingest.undecided SET due_at = now() "
                              "+ $3 * interval '1 millisecond', woken_at = NULL,"
                              " lease_token = NULL, lease_until = NULL, last_error = $4 WHERE "
                              "event = $1::bigint AND lease_token = $2"};
// The age that alarms is that of the oldest event still expected to find its order. A count ends
// where nobody would act otherwise on a larger number; both go by an index, for the end
// is a query, and no plan can count on it.
#define COUNTED "10000"
#define COUNT_OF(rows)                                     \
    "(SELECT count(*) FROM (SELECT FROM ingest.undecided " \
    "WHERE " rows " LIMIT (SELECT " COUNTED ")) w)"
#define WAITING COUNT_OF("NOT unmatched")
#define OLDEST                                                                      \
    "coalesce((SELECT (extract(epoch FROM now() - created_at) * 1000)::bigint FROM" \
    " ingest.undecided WHERE NOT unmatched ORDER BY created_at LIMIT 1), 0)"
static const po_stmt DEPTH = {"undecided_depth", "SELECT " WAITING ", " OLDEST};

typedef struct drain {
    const accounts *accounts;
    po_ring *ring;
} drain;

static size_t split_lines(po_arena *arena, po_str text, header_value **ret_values) {
    size_t n = 0;
    header_value *values = po_alloc_array(arena, 8, sizeof *values);
    while (n < 8 && text.p) {
        const char *end = memchr(text.p, '\n', text.n);
        size_t size = end ? (size_t)(end - text.p) : text.n;
        values[n++] = (header_value){.value = {text.p, size}, .count = size > 0};
        text = end ? (po_str){end + 1, text.n - size - 1} : (po_str){0};
    }
    *ret_values = values;
    return n;
}

// The event as it was recorded; false when it cannot be had now: its account is no longer
// configured, or reads it as somebody else's; its bytes were erased. The row stays, for what was
// money once does not vanish with a setting.
static bool read_again(const drain *d, const po_res *row, int r, po_arena *arena, event *ret_event,
                       po_err *err) {
    event e = {.provider = po_res_text(row, r, CLAIM_PROVIDER),
               .alias = po_res_text(row, r, CLAIM_ACCOUNT),
               .raw = po_res_bytea(row, r, CLAIM_RAW),
               .trace = {po_res_text(row, r, CLAIM_TRACE), po_res_text(row, r, CLAIM_STATE)},
               .id = po_res_i64(row, r, CLAIM_EVENT)};
    po_str id = po_res_text(row, r, CLAIM_ID);
    const char *expired = "expired:";
    if (po_str_is(e.provider, "payonce") && id.n > strlen(expired)) {
        po_str order_id = {id.p + strlen(expired), id.n - strlen(expired)};
        event again = settle_expiry_event(arena, order_id, po_res_time(row, r, CLAIM_AT));
        again.id = e.id;
        *ret_event = again;
        return true;
    }
    e.account = accounts_named(d->accounts, e.provider, e.alias);
    if (!e.account || po_res_null(row, r, CLAIM_RAW)) {
        return po_fail(err, PO_RETRY, "unreadable",
                       e.account ? "the raw bytes were erased"
                                 : "its account is not configured any more");
    }
    header_value *headers;
    (void)split_lines(arena, po_res_text(row, r, CLAIM_HEADERS), &headers);
    e.account->provider->read(e.account, headers, e.raw, arena, &e.obs);
    if (e.obs.disposition != OBS_FACTS) {
        return po_fail(err, PO_RETRY, "unreadable", "its account does not read it any more: %s",
                       e.obs.problem.p);
    }
    e.obs.event_id = id;
    *ret_event = e;
    return true;
}

// Still waiting: told when it was recorded.
static void tell_decided(const event *e) {
    if (e->outcome)
        tell_event(e, "decided");
}

static po_work_outcome drain_row(void *arg, po_pg *pg, const po_work_item *item, po_arena *arena,
                                 po_err *err) {
    const drain *d = arg;
    event e;
    if (!read_again(d, item->row, item->row_index, arena, &e, err))
        return PO_WORK_LATER;
    event *events[] = {&e};
    settle_report report;
    if (!settle_claimed(pg, arena, events, 1, item->token, false, &report, err))
        return PO_WORK_LATER;
    if (report.lost_lease)
        return PO_WORK_SKIP;
    tell_decided(&e);
    if (report.emitted)
        po_ring_ring(d->ring);
    return PO_WORK_DONE;
}

// What goes wrong here is told, and recorded, by the rows one by one.
static bool drain_claim(void *arg, po_pg *pg, const po_res *rows, po_uuid token, po_arena *arena) {
    const drain *d = arg;
    size_t n = (size_t)po_res_rows(rows);
    event *all = po_alloc_array(arena, n, sizeof *all);
    event **events = po_alloc_array(arena, n, sizeof *events);
    po_err ignored = {0};
    for (size_t i = 0; i < n; i++) {
        events[i] = &all[i];
        if (!read_again(d, rows, (int)i, arena, events[i], &ignored))
            return false;
    }
    settle_report report;
    bool ok = settle_claimed(pg, arena, events, n, token, false, &report, &ignored);
    if (!ok && po_pg_is(&ignored, "55P03")) // an order held elsewhere holds up no other
        ok = settle_claimed(pg, arena, events, n, token, true, &report, &ignored);
    if (!ok || report.lost_lease)
        return false;
    for (size_t i = 0; i < n; i++)
        tell_decided(events[i]);
    if (report.emitted)
        po_ring_ring(d->ring);
    return true;
}

bool undecided_start(const accounts *accounts, const po_pg_options *pg, po_ring *ring,
                     unsigned workers, po_workers **ret_workers, po_err *err) {
    static drain d; // one per process, as long as its workers
    d = (drain){accounts, ring};
    po_work work = {.name = "undecided",
                    .claim = CLAIM,
                    .due_ms_column = CLAIM_DUE_MS,
                    .later = LATER,
                    .depth = DEPTH,
                    .workers = workers,
                    .batch = 32,
                    .lease_ms = 10000, // how long the rows of a killed worker rest
                    .idle_ms = 100,
                    .backoff_ms = 200,
                    .backoff_cap_ms = 30000,
                    .run = drain_row,
                    .run_all = drain_claim,
                    .arg = &d};
    return po_work_start(&work, pg, ret_workers, err);
}

// --- The sweep

// $1 expires_at, $2 order_id: behind these. An order whose `expired` event is recorded is an
// undecided event's affair.
static const po_stmt EXPIRED = {
    "expired_orders",
    "SELECT o.order_id, o.expires_at, NOT EXISTS (SELECT FROM ingest.provider_event e"
    " WHERE e.provider = 'payonce' AND e.account = 'clock' AND e.event_id = 'expired:' || "
    "o.order_id)"
    " FROM ingest.shop_order o WHERE NOT o.expiry_swept AND o.expires_at IS NOT NULL"
    " AND o.expires_at <= now() AND (o.expires_at, o.order_id) > ($1, $2::text)"
    " ORDER BY o.expires_at, o.order_id LIMIT $3"};

// What waits: the page and the gauges that alarms look at (P4).
static const po_stmt COUNTS = {"undecided_counts",
                               "SELECT " WAITING ", " COUNT_OF("unmatched") ", " OLDEST};

// What a provider says was refunded, and does not name: fewer may be counted than were.
static const po_stmt UNEXPLAINED = {"unexplained_refunds",
                                    "SELECT count(*) FROM (SELECT FROM ingest.shop_order"
                                    " WHERE unexplained > 0 LIMIT (SELECT " COUNTED ")) o"};

static struct { _Atomic int64_t waiting, unmatched, oldest_ms, counted_us; } overview;

static po_metric *m_waiting, *m_unmatched, *m_oldest, *m_unexplained;

// What cannot be counted is not 0.
static void count_unknown(void) {
    overview.counted_us = 0;
    po_gauge(m_waiting, NULL, NAN);
    po_gauge(m_unmatched, NULL, NAN);
    po_gauge(m_oldest, NULL, NAN);
}

static void unexplained_unknown(void) {
    po_gauge(m_unexplained, NULL, NAN);
}

void undecided_declare_metrics(void) {
    m_waiting = po_metric_new(PO_GAUGE, "payonce_ingest_undecided_events",
                              "Recorded events that wait to be decided, up to " COUNTED
                              "; NaN while they cannot be counted.",
                              NULL);
    m_oldest = po_metric_new(
        PO_GAUGE, "payonce_ingest_undecided_oldest_seconds",
        "Age of the oldest event that waits to be decided; 0 when there is none.", NULL);
    m_unmatched =
        po_metric_new(PO_GAUGE, "payonce_ingest_unmatched_events",
                      "Events that wait by reference alone: they name no order of ours, "
                      "bring no money, or their order did not come in 72 h. Up to " COUNTED ".",
                      NULL);
    m_unexplained = po_metric_new(
        PO_GAUGE, "payonce_ingest_unexplained_refund_orders",
        "Orders with refunds that only a charge's running total states, and that no event has "
        "named yet. Up to " COUNTED "; NaN while they cannot be counted.",
        NULL);
    count_unknown();
    unexplained_unknown();
}

static json_t *count_or_null(int64_t counted_us, int64_t count) {
    return counted_us ? json_integer(count) : json_null();
}

json_t *undecided_status(void) {
    char at[PO_RFC3339_SIZE];
    int64_t counted_us = overview.counted_us;
    po_rfc3339(counted_us, at);
    return json_pack("{s:{s:o, s:o, s:o, s:o}}", "undecided", "waiting",
                     count_or_null(counted_us, overview.waiting), "oldest_ms",
                     count_or_null(counted_us, overview.oldest_ms), "unmatched",
                     count_or_null(counted_us, overview.unmatched), "counted_at",
                     counted_us ? json_string(at) : json_null());
}

static bool count_waiting(sweep *s, po_pg *pg, po_err *err) {
    (void)s;
    PO_AUTO(po_res_done) po_res *row = NULL;
    if (!po_pg_run(pg, &COUNTS, NULL, &row, err))
        return false;
    overview.waiting = po_res_i64(row, 0, 0);
    overview.unmatched = po_res_i64(row, 0, 1);
    overview.oldest_ms = po_res_i64(row, 0, 2);
    overview.counted_us = po_now_us();
    po_gauge(m_waiting, NULL, (double)overview.waiting);
    po_gauge(m_unmatched, NULL, (double)overview.unmatched);
    po_gauge(m_oldest, NULL, (double)overview.oldest_ms / 1000.0);
    return true;
}

static bool count_unexplained(sweep *s, po_pg *pg, po_err *err) {
    (void)s;
    PO_AUTO(po_res_done) po_res *row = NULL;
    if (!po_pg_run(pg, &UNEXPLAINED, NULL, &row, err))
        return false;
    po_gauge(m_unexplained, NULL, (double)po_res_i64(row, 0, 0));
    return true;
}

struct sweep {
    po_pg_options pg;
    intake *in;
    po_beat *beat;
    pthread_t thread;
    _Atomic bool stop;
    int64_t after_at_us; // where the last look for expired orders ended …
    char after_id[256];
    bool ended;          // … there was nothing behind it …
    int64_t begin_at_ms; // … and when one may begin with the oldest again
};

enum { SWEEP_MS = 1000, COUNT_MS = 5000, BEGIN_MS = 10000, PAGE = 500, PAGES = 20 };

// Puts the events of a page, and stands behind it. *ret_more: there was nothing to put, and there
// may be behind it.
static bool expire_page(sweep *s, po_pg *pg, bool *ret_more, po_err *err) {
    PO_AUTO(po_arena_free) po_arena *args_arena = po_arena_new();
    po_args *args = po_args_new(args_arena);
    po_arg_time(args, s->after_at_us);
    po_arg_text(args, po_s(s->after_id));
    po_arg_i32(args, PAGE);
    PO_AUTO(po_res_done) po_res *rows = NULL;
    if (!po_pg_run(pg, &EXPIRED, args, &rows, err))
        return false;
    s->ended = po_res_rows(rows) < PAGE;
    *ret_more = !s->ended;
    for (int row = 0; row < po_res_rows(rows); row++) {
        PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
        po_str id = po_str_copy(arena, po_res_text(rows, row, 0));
        int64_t at_us = po_res_time(rows, row, 1);
        event e = settle_expiry_event(arena, id, at_us);
        bool put = po_res_bool(rows, row, 2);
        (void)snprintf(s->after_id, sizeof s->after_id, "%.*s", (int)id.n, id.p);
        s->after_at_us = at_us;
        *ret_more = *ret_more && !put;
        if (put && !intake_put(s->in, &e, &arena, NULL))
            break; // full: this one comes again with the oldest, those behind it with the next look
    }
    return true;
}

// A page with something to put for each look. What it puts may fail, and is not looked at again
// before all behind it was: no order stops another.
static bool expire(sweep *s, po_pg *pg, po_err *err) {
    int64_t now_ms = po_mono_ms();
    if (s->ended && now_ms >= s->begin_at_ms) {
        s->after_at_us = 0;
        s->after_id[0] = 0;
        s->begin_at_ms = now_ms + BEGIN_MS;
    }
    bool more = true, fine = true;
    for (int page = 0; fine && more && page < PAGES; page++)
        fine = expire_page(s, pg, &more, err);
    return fine;
}

// Each job fails by itself: what hinders one says nothing of the others.
typedef struct sweep_job {
    const char *name;
    int64_t every_ms, next_ms;
    bool (*run)(sweep *s, po_pg *pg, po_err *err);
    void (*failed)(void); // NULL: nothing is to be said of it
} sweep_job;

static void run_job(sweep *s, sweep_job *job, po_pg **pg) {
    po_err err = {0};
    int64_t now_ms = po_mono_ms();
    if (now_ms < job->next_ms)
        return;
    job->next_ms = now_ms + job->every_ms;
    if (*pg && !po_pg_still_there(*pg))
        po_pg_close(pg);
    if ((!*pg && !po_pg_open(&s->pg, pg, &err)) || !job->run(s, *pg, &err)) {
        po_log_err(PO_WARN, "sweep put off", &err, PO_TEXT("job", job->name));
        po_pg_close(pg);
        if (job->failed)
            job->failed();
    }
}

static void *sweep_main(void *arg) {
    sweep *s = arg;
    sweep_job jobs[] = {{"expiry", SWEEP_MS, 0, expire, NULL},
                        {"counts", COUNT_MS, 0, count_waiting, count_unknown},
                        {"refunds", COUNT_MS, 0, count_unexplained, unexplained_unknown}};
    po_pg *pg = NULL;
    while (!s->stop && po_life_wait(SWEEP_MS)) {
        for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
            po_beat_tick(s->beat);
            run_job(s, &jobs[i], &pg);
        }
    }
    po_pg_close(&pg);
    po_beat_end(s->beat);
    return NULL;
}

bool sweep_start(const po_pg_options *pg, intake *in, sweep **ret_sweep, po_err *err) {
    sweep *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->pg = *pg;
    s->in = in;
    s->ended = true;
    s->beat = po_beat_new("expiry-sweep", 60000);
    if (pthread_create(&s->thread, NULL, sweep_main, s) != 0) {
        free(s);
        return po_fail(err, PO_RETRY, "thread", "cannot start the expiry sweep");
    }
    *ret_sweep = s;
    return true;
}

void sweep_stop(sweep **sweep) {
    if (*sweep) {
        (*sweep)->stop = true;
        pthread_join((*sweep)->thread, NULL);
        free(*sweep);
        *sweep = NULL;
    }
}
