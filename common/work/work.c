// Workers over due rows. Each thread loops: claim some rows in one statement, do them one after the other with
// no transaction open, look again at once while there were any, otherwise wait. Nothing here is kept that a
// kill could lose: a row whose worker is gone becomes claimable when its lease runs out, and whatever an
// earlier holder still records then meets another token and changes nothing.
#include "work/work.h"
#include "base/clock.h"
#include "log/log.h"
#include "metrics/metrics.h"
#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum {
    CONNECT_MS = 5000,
    SAMPLE_MS = 5000,
    FAILED_MS = 100, // backoff after a failed look
    FAILED_CAP_MS = 5000,
    BEAT_SLACK_MS = 180000, // a loop that waits for PostgreSQL is turning
    LATE_MS = 10000, // so long after it became due a row may appear, and is found by the next look
    SKEW_MS = 1000,  // our clock is read before the server reads its own
};
#define EVER_MS (100LL * 365 * 86400 * 1000)

struct po_workers {
    po_work work;
    po_pool *pool;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool woken, stopping;
    int64_t sample_at_ms; // the worker that comes by then reads the depth
    int64_t begin_ms;     // who became due before is not there, or found by a look at all
    int64_t all_at_ms;    // the worker that comes by then looks at all
    unsigned n_threads;
    pthread_t *threads;
};

// Someone must put a deployment right; anything else passes.
static po_level level_of(const po_err *err) {
    return po_pg_is_deployment(err) ? PO_ERROR : PO_WARN;
}

// --- Metrics

static struct { po_metric *done, *later, *skipped, *due, *oldest, *last_look; } metrics;

static void declare(void) {
    metrics.done = po_metric_new(PO_COUNTER, "payonce_work_done_total", "Rows done.", "work");
    metrics.later = po_metric_new(PO_COUNTER, "payonce_work_later_total",
                                  "Attempts that failed and were put off.", "work");
    metrics.skipped =
        po_metric_new(PO_COUNTER, "payonce_work_skipped_total",
                      "Claims that ended without a record: the lease was lost.", "work");
    metrics.due = po_metric_new(PO_GAUGE, "payonce_work_due",
                                "Rows that wait to be done, put off or not; NaN while they "
                                "cannot be counted.",
                                "work");
    metrics.oldest =
        po_metric_new(PO_GAUGE, "payonce_work_oldest_due_seconds",
                      "Age of the oldest row that waits; 0 when there is none.", "work");
    metrics.last_look = po_metric_new(PO_GAUGE, "payonce_work_last_look_timestamp_seconds",
                                      "When rows were last looked for without an error.", "work");
}

void po_work_declare_metrics(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, declare);
}

// What cannot be counted is not 0.
static void depth_unknown(const po_workers *w) {
    po_gauge(metrics.due, w->work.name, NAN);
    po_gauge(metrics.oldest, w->work.name, NAN);
}

static void sample_depth(po_workers *w, po_pg *pg) {
    int64_t now_ms = po_mono_ms();
    pthread_mutex_lock(&w->lock);
    bool mine = now_ms >= w->sample_at_ms;
    if (mine)
        w->sample_at_ms = now_ms + SAMPLE_MS;
    pthread_mutex_unlock(&w->lock);
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_err err = {0};
    if (!mine)
        return;
    if (!po_pg_run(pg, &w->work.depth, NULL, &res, &err)) {
        po_log_err(level_of(&err), "depth of work unknown", &err, PO_TEXT("work", w->work.name));
        depth_unknown(w);
        return;
    }
    po_gauge(metrics.due, w->work.name, (double)po_res_i64(res, 0, 0));
    po_gauge(metrics.oldest, w->work.name, (double)po_res_i64(res, 0, 1) / 1000.0);
}

// --- One row

// What others say may be in any encoding; the column takes UTF-8.
static char *explanation(po_arena *arena, const po_err *err) {
    char *text = po_printf(arena, "%s: %s", err->code, err->text);
    for (char *c = text; *c; c++)
        if (*c < 0x20 || *c > 0x7e)
            *c = '?';
    return text;
}

// False when nothing could be recorded; the lease then runs out.
static bool put_off(const po_workers *w, po_pg *pg, const po_work_item *item, po_arena *arena,
                    const po_err *why, bool *ret_held, po_err *err) {
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_args *args = po_args_new(arena);
    po_arg_text(args, item->id);
    po_arg_uuid(args, item->token);
    po_arg_i64(args, po_backoff_ms(item->attempts - 1, w->work.backoff_ms, w->work.backoff_cap_ms));
    po_arg_text(args, why->kind ? po_s(explanation(arena, why)) : (po_str){NULL, 0});
    po_arg_bool(args, why->kind == PO_UNCERTAIN);
    if (!po_pg_run(pg, &w->work.later, args, &res, err))
        return false;
    *ret_held = po_res_affected(res) > 0;
    return true;
}

// A dead connection is replaced.
static bool ensure(po_workers *w, po_pg **pg, po_err *err) {
    if (*pg && !po_pg_still_there(*pg))
        po_pool_release(w->pool, pg);
    return *pg || po_pool_acquire(w->pool, CONNECT_MS, pg, err);
}

static bool do_row(po_workers *w, po_pg **pg, const po_work_item *item, po_arena *arena,
                   po_err *err) {
    const char *name = w->work.name;
    po_err why = {0};
    bool held = false;
    po_work_outcome outcome = w->work.run(w->work.arg, *pg, item, arena, &why);
    po_arena_reset(arena);
    if (outcome != PO_WORK_DONE && why.kind)
        po_log_err(level_of(&why),
                   outcome == PO_WORK_LATER ? "work put off" : "work left to its lease", &why,
                   PO_TEXT("work", name), PO_TEXT("id", po_str_copy(arena, item->id).p),
                   PO_INT("attempts", item->attempts));
    if (outcome == PO_WORK_LATER &&
        (!ensure(w, pg, err) || !put_off(w, *pg, item, arena, &why, &held, err)))
        return false;
    if (outcome == PO_WORK_DONE)
        po_count(metrics.done, name, 1);
    else
        po_count(held ? metrics.later : metrics.skipped, name, 1);
    return ensure(w, pg, err);
}

// --- The loop

// How far back this look goes.
static int64_t reach(po_workers *w, int64_t now_ms) {
    pthread_mutex_lock(&w->lock);
    bool all = now_ms >= w->all_at_ms;
    if (all)
        w->all_at_ms = now_ms + PO_WORK_ALL_LOOK_MS;
    int64_t reach_ms = all ? EVER_MS : now_ms - w->begin_ms;
    pthread_mutex_unlock(&w->lock);
    return reach_ms;
}

// A full claim ends at the row due last in it; another one has taken all there was.
static void note_begin(po_workers *w, const po_res *res, int64_t looked_ms) {
    int64_t due_ms = INT64_MAX;
    for (int i = 0; i < po_res_rows(res); i++)
        if (!po_res_null(res, i, w->work.due_ms_column) &&
            po_res_i64(res, i, w->work.due_ms_column) < due_ms)
            due_ms = po_res_i64(res, i, w->work.due_ms_column);
    pthread_mutex_lock(&w->lock);
    if (po_res_rows(res) < w->work.batch)
        w->begin_ms = looked_ms - LATE_MS;
    else if (due_ms != INT64_MAX)
        w->begin_ms = looked_ms - due_ms - SKEW_MS;
    pthread_mutex_unlock(&w->lock);
}

// A look that failed has seen nothing: the next one looks at all.
static bool claim(po_workers *w, po_pg *pg, po_arena *arena, po_uuid token, po_res **ret_res,
                  po_err *err) {
    int64_t now_ms = po_mono_ms();
    po_args *args = po_args_new(arena);
    po_arg_i32(args, w->work.batch);
    po_arg_uuid(args, token);
    po_arg_i64(args, w->work.lease_ms);
    po_arg_i64(args, reach(w, now_ms));
    if (po_pg_run(pg, &w->work.claim, args, ret_res, err)) {
        note_begin(w, *ret_res, now_ms);
        return true;
    }
    pthread_mutex_lock(&w->lock);
    w->all_at_ms = now_ms;
    pthread_mutex_unlock(&w->lock);
    return false;
}

// Rows that wait behind a slow one are left to the next claim once the lease, counted from before it was
// taken, is over.
static bool do_rows(po_workers *w, po_beat *beat, po_pg **pg, po_arena *arena, int *ret_rows,
                    po_err *err) {
    PO_AUTO(po_res_done) po_res *res = NULL;
    int64_t claimed_ms = po_mono_ms();
    po_uuid token = po_uuid_v7(po_now_us());
    if (!claim(w, *pg, arena, token, &res, err))
        return false;
    po_gauge(metrics.last_look, w->work.name, (double)(po_now_us() / PO_SECOND_US));
    *ret_rows = po_res_rows(res);
    if (*ret_rows == w->work.batch)
        po_work_wake(w); // there may be more: another worker may look at once
    if (*ret_rows > 1 && w->work.run_all) {
        bool all = w->work.run_all(w->work.arg, *pg, res, token, arena);
        if (all)
            po_count(metrics.done, w->work.name, *ret_rows);
        if (!ensure(w, pg, err) || all)
            return all;
    }
    for (int i = 0; i < *ret_rows && po_mono_ms() - claimed_ms < w->work.lease_ms; i++) {
        po_work_item item = {.id = po_res_text(res, i, 0),
                             .attempts = (int32_t)po_res_i64(res, i, 1),
                             .token = token,
                             .row = res,
                             .row_index = i};
        po_beat_tick(beat);
        po_arena_reset(arena);
        if (!do_row(w, pg, &item, arena, err))
            return false;
    }
    return true;
}

static bool look(po_workers *w, po_beat *beat, po_arena *arena, int *ret_rows, po_err *err) {
    po_pg *pg = NULL;
    bool fine = ensure(w, &pg, err);
    if (fine) {
        sample_depth(w, pg);
        fine = ensure(w, &pg, err) && do_rows(w, beat, &pg, arena, ret_rows, err);
    }
    po_pool_release(w->pool, &pg);
    po_arena_reset(arena);
    return fine;
}

// Waits, unless woken (when that counts) or stopping; returns false when stopping.
static bool wait_due(po_workers *w, int64_t wait_ms, bool wakeable) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += wait_ms % 1000 * 1000000L;
    until.tv_sec += wait_ms / 1000 + until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&w->lock);
    while (!w->stopping && !(wakeable && w->woken) &&
           pthread_cond_timedwait(&w->changed, &w->lock, &until) == 0) {
    }
    if (wakeable)
        w->woken = false;
    bool go_on = !w->stopping;
    pthread_mutex_unlock(&w->lock);
    return go_on;
}

static void log_failure(const po_workers *w, const po_err *err) {
    po_log_err(level_of(err), "cannot get at due work; trying again", err,
               PO_TEXT("work", w->work.name));
}

static void *work_loop(void *arg) {
    po_workers *w = arg;
    po_beat *beat = po_beat_new(w->work.name, w->work.lease_ms + w->work.idle_ms + BEAT_SLACK_MS);
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    int failures = 0;
    bool go_on = true;
    while (go_on && !po_stopping()) {
        po_err err = {0};
        int rows = 0;
        po_beat_tick(beat);
        if (look(w, beat, arena, &rows, &err)) {
            if (failures > 0)
                po_log(PO_INFO, "due work is within reach again", PO_TEXT("work", w->work.name));
            failures = 0;
            go_on = wait_due(w, rows > 0 ? 0 : w->work.idle_ms, true);
        } else {
            if (failures == 0)
                log_failure(w, &err);
            depth_unknown(w);
            go_on = wait_due(w, po_backoff_ms(failures++, FAILED_MS, FAILED_CAP_MS), false);
        }
    }
    po_beat_end(beat);
    return NULL;
}

// --- Life

bool po_work_start(const po_work *work, const po_pg_options *options, po_workers **ret_workers,
                   po_err *err) {
    assert(work->workers > 0 && work->batch > 0 && work->lease_ms > 0 && work->run);
    PO_AUTO(po_work_stop) po_workers *w = calloc(1, sizeof *w);
    if (!w || !(w->threads = calloc(work->workers, sizeof *w->threads)))
        abort();
    w->work = *work;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&w->lock, NULL);
    po_work_declare_metrics();
    depth_unknown(w);
    po_count(metrics.done, work->name, 0); // shown from the start
    po_count(metrics.later, work->name, 0);
    po_count(metrics.skipped, work->name, 0);
    if (!po_pool_open(options, work->workers, &w->pool, err))
        return false;
    for (; w->n_threads < work->workers; w->n_threads++)
        if (pthread_create(&w->threads[w->n_threads], NULL, work_loop, w) != 0)
            return po_fail(err, PO_RETRY, "thread", "a worker of %s cannot be started", work->name);
    *ret_workers = po_take(&w);
    return true;
}

// One sleeper is enough: it wakes the next when its claim was full.
void po_work_wake(po_workers *workers) {
    pthread_mutex_lock(&workers->lock);
    workers->woken = true;
    pthread_cond_signal(&workers->changed);
    pthread_mutex_unlock(&workers->lock);
}

void po_work_stop(po_workers **workers) {
    po_workers *gone = po_take(workers);
    if (!gone)
        return;
    pthread_mutex_lock(&gone->lock);
    gone->stopping = true;
    pthread_cond_broadcast(&gone->changed);
    pthread_mutex_unlock(&gone->lock);
    for (unsigned i = 0; i < gone->n_threads; i++)
        pthread_join(gone->threads[i], NULL);
    po_pool_close(&gone->pool);
    pthread_mutex_destroy(&gone->lock);
    pthread_cond_destroy(&gone->changed);
    free(gone->threads);
    free(gone);
}
