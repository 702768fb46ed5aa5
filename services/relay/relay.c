// The loop of one outbox. A turn: take Kafka's verdicts, write the checkpoint if it is due, send what may go now,
// look for new rows, sample if gaps are left, wait for whatever comes first. Reading goes on while Kafka acknowledges.
//
// A session that is lost is replaced: what is known of rows stays, gaps are unsampled. If the new one is on another
// server, everything is forgotten and begun anew from the checkpoint. A lease that is lost ends the process.
#include "relay.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "cursor.h"
#include "heads.h"
#include "log/log.h"
#include "metrics/metrics.h"

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    LEASE_MS = 5000,
    STANDBY_MS = 500, // how often a standby asks for the lease
    CHECKPOINT_MS = 200,
    SAMPLE_MS = 5, // at most this often; SAMPLE_SLOW_MS once nothing has changed for so long
    SAMPLE_SLOW_MS = 100,
    IDLE_MS = 100,  // between looks when nobody rings
    BUSY_ROWS = 64, // a look that returned so many is followed by another at once
    BACKOFF_MS = 200,
    BACKOFF_CAP_MS = 5000,
    DRAIN_MS = 4000,
    BEAT_LIMIT_MS = 60000,
};

typedef struct shown { // what other threads see
    bool active, connected;
    bool known; // without a session, or while another relay is active, what follows is not
    int64_t epoch, floor, high, oldest_ms;
    size_t gaps;
    heads_counts counts;
} shown;

struct relay {
    const relay_options *options;
    const char *outbox;
    int wake_fd;
    po_beat *beat;
    source source;
    cursor cursor;
    bool mine; // the lease
    gaps *gaps;
    heads *heads;
    po_arena *arena; // of one turn
    bool look_now;
    int64_t looked_ms, planned_ms, sampled_ms;
    int64_t changed_ms;   // when gaps last were new, or a holder gone
    pthread_mutex_t lock; // shown
    shown shown;
};

static struct {
    po_metric *dead, *unfinished, *waiting, *oldest, *gaps, *refused, *held, *stopped, *active,
        *failures, *moved;
} metrics;

#define UNKNOWN "NaN without a session with the outbox, and while another relay is active."

static po_metric *gauge(const char *name, const char *help) {
    return po_metric_new(PO_GAUGE, name, help, "outbox");
}

static po_metric *counter(const char *name, const char *help) {
    return po_metric_new(PO_COUNTER, name, help, "outbox");
}

void relay_declare_metrics(void) {
    heads_declare_metrics();
    metrics.dead = counter("payonce_relay_dead_ids_total", "Ids that were rolled back.");
    metrics.unfinished =
        gauge("payonce_relay_unfinished_rows", "Rows read and not yet acknowledged. " UNKNOWN);
    metrics.waiting = gauge("payonce_relay_waiting_rows",
                            "Rows that wait behind another row of their key. " UNKNOWN);
    metrics.oldest = gauge("payonce_relay_oldest_unfinished_seconds",
                           "Since when the oldest of them has been known. " UNKNOWN);
    metrics.gaps = gauge("payonce_relay_gaps", "Ranges of ids that may still appear. " UNKNOWN);
    metrics.refused = gauge("payonce_relay_refused_rows",
                            "Rows that Kafka does not take; each blocks its key. " UNKNOWN);
    metrics.held = gauge("payonce_relay_held_keys",
                         "Keys that wait for their schema to be registered. " UNKNOWN);
    metrics.stopped =
        gauge("payonce_relay_stopped",
              "1 while sending has failed for a reason that is no record's fault. " UNKNOWN);
    metrics.active = gauge("payonce_relay_active", "1 while this process holds the lease.");
    metrics.failures =
        counter("payonce_relay_failures_total", "Sessions with the outbox that have failed.");
    metrics.moved = counter("payonce_relay_moved_total",
                            "Times the outbox was found on another server and sent again in part.");
}

// --- Looking and sampling

static bool look(relay *r, int64_t now_ms, po_err *err) {
    PO_AUTO(po_res_done) po_res *rows = NULL;
    int32_t limit = r->options->look_limit;
    if (!source_look(&r->source, r->arena, r->gaps, limit, heads_small_body(r->heads), &rows, err))
        return false;
    int n = po_res_rows(rows);
    int64_t *ids = po_alloc_array(r->arena, (size_t)n, sizeof *ids);
    for (int i = 0; i < n; i++)
        ids[i] = source_id(rows, i);
    bool all = n < limit;
    int64_t dead = gaps_look(r->gaps, ids, (size_t)n, all, now_ms);
    if (dead > 0)
        po_count(metrics.dead, r->outbox, dead);
    for (int i = 0; i < n; i++) {
        row row = source_row(rows, i);
        heads_add(r->heads, &row, now_ms);
    }
    r->look_now = n >= BUSY_ROWS || !all;
    r->looked_ms = now_ms;
    if (gaps_unsampled(r->gaps))
        r->changed_ms = now_ms;
    return true;
}

static int64_t sample_due_ms(const relay *r) {
    if (!gaps_want_sample(r->gaps))
        return INT64_MAX;
    bool quiet = r->sampled_ms - r->changed_ms >= SAMPLE_SLOW_MS;
    return r->sampled_ms + (quiet ? SAMPLE_SLOW_MS : SAMPLE_MS);
}

static bool sample(relay *r, int64_t now_ms, po_err *err) {
    uint64_t *holders;
    size_t n;
    if (!source_sample(&r->source, r->arena, &holders, &n, err))
        return false;
    r->sampled_ms = now_ms;
    if (gaps_sample(r->gaps, holders, n)) {
        r->changed_ms = now_ms;
        r->look_now = true; // it finds what the holder has left, or that there is nothing
    }
    return true;
}

// --- The checkpoint, and what others may see

static void find_oldest(void *arg, int64_t id, int64_t since_ms) {
    (void)id;
    int64_t *oldest = arg;
    if (since_ms < *oldest)
        *oldest = since_ms;
}

// What is not known is not 0.
static void show_gauge(const relay *r, po_metric *metric, double value) {
    po_gauge(metric, r->outbox, r->shown.known ? value : NAN);
}

static void show(relay *r, int64_t now_ms) {
    const int64_t *lo, *hi;
    int64_t oldest = now_ms;
    shown s = {.active = r->mine,
               .connected = r->source.pg != NULL,
               .epoch = r->cursor.epoch,
               .floor = r->cursor.floor,
               .counts = heads_count(r->heads)};
    keys_each(heads_keys(r->heads), find_oldest, &oldest);
    s.known = s.active && s.connected;
    s.oldest_ms = now_ms - oldest;
    if (r->gaps) {
        s.high = gaps_high(r->gaps);
        s.gaps = gaps_ranges(r->gaps, &lo, &hi);
    }
    pthread_mutex_lock(&r->lock);
    r->shown = s;
    pthread_mutex_unlock(&r->lock);
    po_gauge(metrics.active, r->outbox, s.active);
    show_gauge(r, metrics.stopped, s.counts.stopped);
    show_gauge(r, metrics.gaps, (double)s.gaps);
    show_gauge(r, metrics.unfinished, (double)s.counts.unfinished);
    show_gauge(r, metrics.waiting, (double)s.counts.waiting);
    show_gauge(r, metrics.oldest, (double)s.oldest_ms / 1e3);
    show_gauge(r, metrics.refused, (double)s.counts.refused);
    show_gauge(r, metrics.held, (double)s.counts.held);
}

static bool checkpoint(relay *r, int64_t now_ms, po_err *err) {
    r->planned_ms = now_ms;
    if (!cursor_checkpoint(&r->cursor, r->source.pg, r->arena, heads_keys(r->heads), r->gaps,
                           now_ms, err))
        return false;
    show(r, now_ms);
    return true;
}

// --- A turn

static int64_t earlier(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t next_due_ms(relay *r, int64_t now_ms) {
    int64_t due_ms = earlier(r->planned_ms + CHECKPOINT_MS, sample_due_ms(r));
    due_ms = earlier(due_ms, heads_due_ms(r->heads, now_ms));
    if (heads_want_rows(r->heads))
        due_ms = earlier(due_ms, r->look_now ? now_ms : r->looked_ms + IDLE_MS);
    return due_ms;
}

// Until a ring, a verdict, a schema, or what is due next.
static bool wait_next(relay *r, po_err *err) {
    int64_t now_ms = po_mono_ms(), due_ms = next_due_ms(r, now_ms);
    int timeout_ms = due_ms > now_ms ? (int)(due_ms - now_ms) : 0;
    bool rung = false;
    if (!po_pg_wait_notify(r->source.pg, timeout_ms, r->wake_fd, &rung, err))
        return false;
    uint64_t woken; // read before what it stands for is looked at, so that nothing is missed
    (void)!read(r->wake_fd, &woken, sizeof woken);
    if (rung)
        r->look_now = true;
    return true;
}

static bool turn(relay *r, po_err *err) {
    po_arena_reset(r->arena);
    po_beat_tick(r->beat);
    int64_t now_ms = po_mono_ms();
    heads_verdicts(r->heads);
    // First of all: a process that was asleep for long learns here that it was overtaken.
    if (now_ms - r->planned_ms >= CHECKPOINT_MS && !checkpoint(r, now_ms, err))
        return false;
    if (!heads_turn(r->heads, &r->source, r->arena, now_ms, err))
        return false;
    bool due = r->look_now || now_ms - r->looked_ms >= IDLE_MS;
    if (due && heads_want_rows(r->heads) && !look(r, now_ms, err))
        return false;
    heads_verdicts(r->heads);
    now_ms = po_mono_ms();
    if (sample_due_ms(r) <= now_ms && !sample(r, now_ms, err))
        return false;
    return wait_next(r, err);
}

// --- A session

// Waits for the lease; not mine when the process is stopping.
static bool stand_by(relay *r, po_err *err) {
    for (bool told = false; !po_stopping(); told = true) {
        if (!cursor_take(&r->cursor, r->source.pg, &r->mine, err))
            return false;
        if (r->mine || !told)
            r->options->on_role(r->outbox, r->mine);
        if (r->mine)
            return true;
        if (!told)
            po_log(PO_INFO, "standing by: another relay is active", PO_TEXT("outbox", r->outbox));
        po_beat_tick(r->beat);
        show(r, po_mono_ms());
        (void)po_life_wait(STANDBY_MS);
    }
    return true;
}

static bool begin(relay *r, po_err *err) {
    server now;
    if (!cursor_identify(r->source.pg, &now, err))
        return false;
    if (cursor_moved(&r->cursor, &now, r->cursor.floor))
        po_count(metrics.moved, r->outbox, 1);
    if (!cursor_begin(&r->cursor, r->source.pg, &now, &r->gaps, err))
        return false;
    const int64_t *lo, *hi;
    po_log(PO_INFO, "active", PO_TEXT("outbox", r->outbox), PO_INT("epoch", r->cursor.epoch),
           PO_INT("floor", r->cursor.floor), PO_INT("open", gaps_ranges(r->gaps, &lo, &hi)));
    return true;
}

// A new session of the relay that is active: what it knows still holds, if this is the same server.
static bool go_on(relay *r, const server *now, po_err *err) {
    const char *moved = cursor_moved(&r->cursor, now, gaps_high(r->gaps));
    if (moved) {
        heads_forget(r->heads);
        gaps_free(&r->gaps);
        r->mine = false;
        return po_fail(err, PO_RETRY, "moved", "%s: beginning anew", moved);
    }
    gaps_forget_samples(r->gaps);
    r->cursor.server = *now;
    r->cursor.written_ms = 0; // due: a write tells whether the cursor is still ours
    return checkpoint(r, po_mono_ms(), err);
}

static bool learn_topics(relay *r, po_err *err) {
    po_str *topics;
    size_t n;
    if (!source_topics(&r->source, r->arena, &topics, &n, err))
        return false;
    for (size_t i = 0; i < n; i++)
        heads_topic(r->heads, topics[i]);
    return true;
}

// Until the process is stopping (true) or the session fails.
static bool serve(relay *r, int *attempts, po_err *err) {
    server now;
    po_arena_reset(r->arena);
    if (!source_open(&r->options->pg, r->outbox, &r->source, err) || !learn_topics(r, err) ||
        !cursor_identify(r->source.pg, &now, err))
        return false;
    if (r->gaps && !go_on(r, &now, err))
        return false;
    if (!r->mine && !stand_by(r, err))
        return false;
    if (r->mine && ((!r->gaps && !begin(r, err)) || !source_listen(&r->source, err)))
        return false;
    *attempts = 0;
    r->look_now = true;
    while (!po_stopping())
        if (!turn(r, err))
            return false;
    return true;
}

// --- Life

// What is with Kafka may still be acknowledged; then the next relay begins exactly here, at once.
static void drain(relay *r) {
    int64_t until_ms = po_mono_ms() + DRAIN_MS;
    for (; heads_count(r->heads).sent > 0 && po_mono_ms() < until_ms; heads_verdicts(r->heads)) {
        struct pollfd fd = {r->wake_fd, POLLIN, 0};
        uint64_t woken;
        if (poll(&fd, 1, 100) > 0)
            (void)!read(r->wake_fd, &woken, sizeof woken);
    }
    po_err err = {0};
    if (!r->gaps || !r->source.pg)
        return;
    if (!checkpoint(r, po_mono_ms(), &err) || !cursor_release(&r->cursor, r->source.pg, &err))
        po_log_err(PO_WARN, "the lease was not given back", &err, PO_TEXT("outbox", r->outbox));
    r->mine = false;
    show(r, po_mono_ms());
}

static bool is_final(const po_err *err) {
    return err->kind == PO_REFUSED || strcmp(err->code, "fenced") == 0;
}

bool relay_run(relay *r, po_err *err) {
    char code[sizeof err->code] = "";
    for (int attempts = 0; !po_stopping(); attempts++) {
        po_err failure = {0};
        if (serve(r, &attempts, &failure))
            break;
        source_close(&r->source);
        po_count(metrics.failures, r->outbox, 1);
        show(r, po_mono_ms());
        if (is_final(&failure)) {
            heads_stop(r->heads);
            *err = failure;
            return false;
        }
        bool alarm = po_pg_is_deployment(&failure) || failure.kind == PO_BUG;
        if (attempts == 0 || strcmp(code, failure.code) != 0)
            po_log_err(alarm ? PO_ERROR : PO_WARN, "no session with the outbox", &failure,
                       PO_TEXT("outbox", r->outbox));
        memcpy(code, failure.code, sizeof code);
        po_beat_tick(r->beat);
        (void)po_life_wait(po_backoff_ms(attempts, BACKOFF_MS, BACKOFF_CAP_MS));
    }
    drain(r);
    heads_stop(r->heads); // here, since all outboxes do so at the same time
    return true;
}

bool relay_open(const relay_options *options, const char *outbox, relay **ret_relay, po_err *err) {
    relay *r = calloc(1, sizeof *r);
    po_buf name = {0};
    if (!r)
        abort();
    po_buf_printf(&name, "relay %s", outbox);
    r->options = options;
    r->outbox = outbox;
    r->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (r->wake_fd < 0)
        abort();
    r->beat = po_beat_new(name.p, BEAT_LIMIT_MS); // keeps the name
    r->cursor = (cursor){.outbox = outbox,
                         .holder = options->holder,
                         .lease_ms = LEASE_MS,
                         .overlap_us = options->overlap_us};
    r->arena = po_arena_new();
    pthread_mutex_init(&r->lock, NULL);
    heads_options heads = {.outbox = outbox,
                           .brokers = options->brokers,
                           .kafka_settings = options->kafka_settings,
                           .client_id = options->pg.application_name,
                           .registry_url = options->registry_url,
                           .registry_ca_file = options->registry_ca_file,
                           .wake_fd = r->wake_fd,
                           .look_limit = options->look_limit};
    if (!heads_open(&heads, &r->heads, err)) {
        relay_close(&r);
        return false;
    }
    show(r, po_mono_ms());
    *ret_relay = r;
    return true;
}

void relay_close(relay **relay) {
    struct relay *r = *relay;
    if (!r)
        return;
    po_beat_end(r->beat);
    heads_close(&r->heads);
    source_close(&r->source);
    cursor_done(&r->cursor);
    gaps_free(&r->gaps);
    po_arena_free(&r->arena);
    pthread_mutex_destroy(&r->lock);
    close(r->wake_fd);
    free(r);
    *relay = NULL;
}

static shown shown_now(relay *r) {
    pthread_mutex_lock(&r->lock);
    shown s = r->shown;
    pthread_mutex_unlock(&r->lock);
    return s;
}

static json_t *number_or_null(const shown *s, int64_t number) {
    return s->known ? json_integer(number) : json_null();
}

json_t *relay_status(relay *r) {
    shown s = shown_now(r);
    const struct {
        const char *name;
        int64_t number;
    } numbers[] = {{"epoch", s.epoch},
                   {"floor", s.floor},
                   {"high", s.high},
                   {"gaps", (int64_t)s.gaps},
                   {"unfinished", (int64_t)s.counts.unfinished},
                   {"waiting", (int64_t)s.counts.waiting},
                   {"refused", (int64_t)s.counts.refused},
                   {"schemas_waiting", (int64_t)s.counts.schemas_waiting},
                   {"oldest_ms", s.oldest_ms}};
    json_t *status =
        json_pack("{s:s, s:b, s:b, s:o}", "outbox", r->outbox, "active", s.active, "connected",
                  s.connected, "stopped", s.known ? json_boolean(s.counts.stopped) : json_null());
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(status, numbers[i].name, number_or_null(&s, numbers[i].number));
    return status;
}

bool relay_active(relay *r) {
    return shown_now(r).active;
}
