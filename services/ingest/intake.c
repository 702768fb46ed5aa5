// An item is owned by the queue, then by one writer; only its request is shared, with the clock of
// waiters. Faults of a batch are narrowed down: another session's locks, a row that does not fit,
// and a dead database each have their own next step (see next_step()).
#include "intake.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "life/life.h"
#include "log/log.h"
#include "metrics/metrics.h"
#include "tell.h"
#include "waiters.h"
#include <pthread.h>
#include <stdlib.h>

typedef struct item {
    event event;
    po_arena *arena;
    waiter waiter;
    struct item *next; // in the queue
} item;

typedef struct writer {
    intake *in;
    po_pg *pg;
    bool renew; // pg failed in a way that may be its own: outgrown plans, a former primary
    size_t
        most; // events of its next batch: halved when so many were too much, doubled after others
    po_beat *beat;
    pthread_t thread;
    char name[24];
} writer;

struct intake {
    intake_options options;
    pthread_mutex_t lock;
    pthread_cond_t filled;
    item *first, *last; // queue
    size_t depth;
    size_t bytes; // raw bytes of all items, queued or being settled
    waiters *waiters;
    bool closing, joined;
    writer *writers;
};

static po_metric *m_events, *m_batch, *m_commit, *m_answer, *m_conflicts, *m_emitted, *m_narrowed;

void intake_declare_metrics(void) {
    m_events = po_metric_new(PO_COUNTER, "payonce_ingest_events_total",
                             "Provider events answered, by result.", "result");
    m_emitted = po_metric_new(PO_COUNTER, "payonce_ingest_emitted_total",
                              "Outbox rows committed for decisions.", NULL);
    m_conflicts = po_metric_new(
        PO_COUNTER, "payonce_ingest_conflicts_total",
        "Events whose id was already recorded saying something else; someone must look.", NULL);
    m_batch = po_metric_new(PO_COUNTER, "payonce_ingest_batches_total",
                            "Transactions that settled events.", NULL);
    m_commit = po_metric_new(PO_HISTOGRAM, "payonce_ingest_commit_seconds",
                             "From the start of a batch's transaction to its COMMIT.", NULL);
    m_answer = po_metric_new(PO_HISTOGRAM, "payonce_ingest_answer_seconds",
                             "From an event's arrival to its answer.", NULL);
    m_narrowed = po_metric_new(PO_COUNTER, "payonce_ingest_narrowed_total",
                               "Batches repeated or split after a fault, by its code.", "code");
}

// --- Answers

typedef enum answer {
    ANSWER_RECORDED,
    ANSWER_DUPLICATE,
    ANSWER_CONFLICT,
    ANSWER_BUSY,
    ANSWER_LATE
} answer;

static const struct {
    unsigned status;
    const char *result, *body;
} answers[] = {
    [ANSWER_RECORDED] = {200, "recorded", "{\"result\":\"recorded\"}"},
    [ANSWER_DUPLICATE] = {200, "duplicate", "{\"result\":\"duplicate\"}"},
    [ANSWER_CONFLICT] = {200, "conflict", "{\"result\":\"conflict\"}"},
    [ANSWER_BUSY] =
        {503, "unavailable",
         "{\"error\":{\"code\":\"unavailable\",\"message\":\"not stored; send it again\"}}"},
    [ANSWER_LATE] =
        {503, "late",
         "{\"error\":{\"code\":\"late\",\"message\":\"no answer in time; send it again\"}}"},
};

static void give_answer(po_request *request, answer answer, int64_t waited_ms) {
    po_count(m_events, answers[answer].result, 1);
    po_observe(m_answer, NULL, (double)waited_ms / 1000.0);
    po_reply(request, answers[answer].status, "application/json", po_s(answers[answer].body),
             answers[answer].status == 503 ? 1 : 0);
}

// The writers go on with the event.
static void answer_late(po_request *request, int64_t waited_ms) {
    give_answer(request, ANSWER_LATE, waited_ms);
}

// Answered, and gone.
static void finish(intake *in, item *it, answer answer) {
    po_request *request = waiter_take(&it->waiter);
    if (request)
        give_answer(request, answer, po_mono_ms() - it->waiter.since_ms);
    waiters_remove(in->waiters, &it->waiter);
    pthread_mutex_lock(&in->lock);
    in->bytes -= it->event.raw.n;
    pthread_mutex_unlock(&in->lock);
    po_arena *arena = it->arena;
    po_arena_free(&arena);
}

// --- Settling a batch

typedef struct mode {
    bool skip_locked;
    bool impatient; // lock_timeout 20 ms from now on
    int repeats;
    bool renewed;          // the batch's session was lost before, and replaced
    char record_only[200]; // not empty: keep it, decide later
} mode;

static void settle_items(writer *w, item **items, size_t n, mode mode);

// A session that its server has ended meanwhile is replaced before it is used.
static bool connect_writer(writer *w, po_err *err) {
    if (w->pg && (w->renew || !po_pg_still_there(w->pg)))
        po_pg_close(&w->pg);
    w->renew = false;
    return w->pg || store_open(w->in->options.pg, w->in->options.accounts, &w->pg, err);
}

static void finish_all(intake *in, item **items, size_t n, answer answer) {
    for (size_t i = 0; i < n; i++)
        finish(in, items[i], answer);
}

static void finish_settled(writer *w, item **items, size_t n, const settle_report *report) {
    for (size_t i = 0; i < n; i++) {
        const event *e = &items[i]->event;
        answer answer = e->same == EVENT_RECORDED    ? ANSWER_RECORDED
                        : e->same == EVENT_DUPLICATE ? ANSWER_DUPLICATE
                                                     : ANSWER_CONFLICT;
        if (answer == ANSWER_CONFLICT) {
            po_count(m_conflicts, NULL, 1);
            po_log(PO_ERROR, "event id says something else than before; the first stays",
                   PO_TEXT("provider", e->provider.p), PO_TEXT("account", e->alias.p),
                   PO_TEXT("event_id", e->obs.event_id.p),
                   PO_TEXT("traceparent", e->trace.parent.p));
        }
        tell_event(e, answers[answer].result);
        finish(w->in, items[i], answer);
    }
    po_count(m_emitted, NULL, (int64_t)report->emitted);
    if (report->emitted)
        po_ring_ring(w->in->options.ring);
}

static void give_back(writer *w, item **items, size_t n, const po_err *err) {
    static po_log_site site = {.name = "batch_not_stored", .per_second = PO_LOG_REFUSALS};
    if (po_log_admit(&site))
        po_log_err(PO_WARN, "batch not stored", err, PO_INT("events", n));
    w->renew = true;
    finish_all(w->in, items, n, ANSWER_BUSY);
}

// A batch narrowed for so long is left to its repeats: the database is in trouble.
static bool is_over(const item *oldest) {
    return po_mono_ms() - oldest->waiter.since_ms > INTAKE_NARROW_MS;
}

static bool is_closing(intake *in) {
    pthread_mutex_lock(&in->lock);
    bool closing = in->closing;
    pthread_mutex_unlock(&in->lock);
    return closing;
}

static void split(writer *w, item **items, size_t n, mode mode, const po_err *why) {
    settle_items(w, items, n / 2, mode);
    if (is_over(items[n / 2]))
        give_back(w, items + n / 2, n - n / 2, why);
    else
        settle_items(w, items + n / 2, n - n / 2, mode);
}

// The session, or its server, is in trouble, and nothing was committed: the same is done again by
// another session, once; and by halves when it was too much for one transaction.
static void next_session(writer *w, item **items, size_t n, mode mode, const po_err *why) {
    bool much = po_pg_is_too_much(why) && n > 1;
    w->renew = true;
    if (much)
        w->most = n / 2;
    if ((!much && mode.renewed) || is_over(items[0]) || is_closing(w->in)) {
        give_back(w, items, n, why);
    } else if (much) {
        split(w, items, n, mode, why);
    } else {
        mode.renewed = true;
        settle_items(w, items, n, mode);
    }
}

// What a failed batch does next.
static void next_step(writer *w, item **items, size_t n, mode mode, settle_phase phase,
                      const po_err *err) {
    bool lock = po_pg_is(err, "55P03");
    bool race = po_pg_is(err, "23505") || po_pg_is(err, "40001") || po_pg_is(err, "40P01");
    po_count(m_narrowed, err->code, 1);
    if (err->kind == PO_UNCERTAIN) {
        give_back(w, items, n, err);
    } else if ((err->kind == PO_RETRY && !lock && !race) || !po_pg_alive(w->pg)) {
        next_session(w, items, n, mode, err);
    } else if (race && mode.repeats < 3) {
        mode.repeats++; // another session taught the same reference: its row is visible now
        settle_items(w, items, n, mode);
    } else if (lock && phase == PHASE_RECORD && n == 1) {
        finish(w->in, items[0], ANSWER_BUSY); // its twin is being stored
    } else if (lock && phase == PHASE_RECORD) {
        mode.impatient = true;
        split(w, items, n, mode, err);
    } else if (lock && !mode.skip_locked) {
        mode.skip_locked = true;
        settle_items(w, items, n, mode);
    } else if (n > 1) {
        split(w, items, n, mode, err);
    } else if (!mode.record_only[0]) {
        po_log_err(PO_ERROR, "event could not be decided; kept undecided", err,
                   PO_TEXT("event_id", items[0]->event.obs.event_id.p));
        (void)snprintf(mode.record_only, sizeof mode.record_only, "%.39s: %.150s", err->code,
                       err->text);
        settle_items(w, items, 1, mode);
    } else {
        po_log_err(PO_ERROR, "event could not be recorded", err,
                   PO_TEXT("event_id", items[0]->event.obs.event_id.p));
        finish(w->in, items[0], ANSWER_BUSY);
    }
}

static void settle_items(writer *w, item **items, size_t n, mode mode) {
    event *events[INTAKE_BATCH];
    for (size_t i = 0; i < n; i++)
        events[i] = &items[i]->event;
    settle_options options = {.skip_locked = mode.skip_locked,
                              .lock_timeout_ms = mode.impatient ? 20 : 0,
                              .record_only = mode.record_only[0] ? mode.record_only : NULL};
    settle_report report = {0};
    po_err err = {0};
    po_beat_tick(w->beat);
    if (!connect_writer(w, &err)) {
        give_back(w, items, n, &err);
        return;
    }
    po_arena *arena = po_arena_new();
    int64_t started_us = po_now_us();
    bool ok = settle(w->pg, arena, events, n, &options, &report, &err);
    if (ok) {
        po_count(m_batch, NULL, 1);
        po_observe(m_commit, NULL, (double)(po_now_us() - started_us) / 1e6);
        finish_settled(w, items, n, &report);
    }
    po_arena_free(&arena);
    if (!ok)
        next_step(w, items, n, mode, report.phase, &err);
}

// --- Writers

static size_t take_batch(intake *in, size_t most, item **items) {
    size_t n = 0, bytes = 0;
    while (in->first && n < most &&
           (n == 0 || bytes + in->first->event.raw.n <= INTAKE_BATCH_BYTES)) {
        item *it = in->first;
        in->first = it->next;
        in->last = in->first ? in->last : NULL;
        in->depth--;
        bytes += it->event.raw.n;
        items[n++] = it;
    }
    return n;
}

// Waits up to a second, so that the writer beats; 0 when nothing has come.
static size_t wait_batch(intake *in, size_t most, item **items, bool *ret_closing) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec++;
    pthread_mutex_lock(&in->lock);
    while (!in->first && !in->closing &&
           pthread_cond_timedwait(&in->filled, &in->lock, &until) == 0) {
    }
    size_t n = take_batch(in, most, items);
    *ret_closing = in->closing;
    pthread_mutex_unlock(&in->lock);
    return n;
}

// At the end what nobody waits for any more is left to its repeat: a queue that a database in
// trouble has filled must not hold up the exit.
static size_t keep_awaited(intake *in, item **items, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (waiter_waits(&items[i]->waiter))
            items[kept++] = items[i];
        else
            finish(in, items[i], ANSWER_BUSY);
    return kept;
}

static void *writer_main(void *arg) {
    writer *w = arg;
    item *items[INTAKE_BATCH];
    bool closing = false;
    for (size_t n = 0; n || !closing;) {
        po_beat_tick(w->beat);
        n = wait_batch(w->in, w->most, items, &closing);
        size_t kept = closing ? keep_awaited(w->in, items, n) : n;
        size_t most = w->most;
        if (kept)
            settle_items(w, items, kept, (mode){0});
        if (kept && w->most == most) // it was not too much
            w->most = 2 * most < INTAKE_BATCH ? 2 * most : INTAKE_BATCH;
    }
    po_pg_close(&w->pg);
    po_beat_end(w->beat);
    return NULL;
}

// --- The queue

bool intake_open(const intake_options *options, intake **ret_intake, po_err *err) {
    intake *in = calloc(1, sizeof *in);
    writer *writers = calloc(options->writers, sizeof *writers);
    if (!in || !writers)
        abort();
    in->options = *options;
    in->writers = writers;
    pthread_mutex_init(&in->lock, NULL);
    pthread_condattr_t attributes; // a clock set back must not keep a writer from beating
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&in->filled, &attributes);
    pthread_condattr_destroy(&attributes);
    in->options.writers = 0; // running
    if (!waiters_open(answer_late, &in->waiters, err)) {
        intake_close(&in);
        return false;
    }
    for (unsigned i = 0; i < options->writers; i++) {
        writer *w = &writers[i];
        *w = (writer){.in = in, .most = INTAKE_BATCH};
        (void)snprintf(w->name, sizeof w->name, "writer-%u", i);
        w->beat = po_beat_new(w->name, 60000);
        if (pthread_create(&w->thread, NULL, writer_main, w) != 0) {
            intake_close(&in);
            return po_fail(err, PO_RETRY, "thread", "cannot start writer %u", i);
        }
        in->options.writers++;
    }
    *ret_intake = in;
    return true;
}

// An event that has waited this long for a writer shows that all behind it would be answered late.
static bool backed_up(const intake *in) {
    return in->depth >= INTAKE_QUEUE ||
           (in->first && po_mono_ms() - in->first->waiter.since_ms > INTAKE_HEAD_MS);
}

bool intake_put(intake *in, const event *event, po_arena **arena, po_request *request) {
    item *it = po_alloc(*arena, sizeof *it);
    it->event = *event;
    it->arena = *arena;
    pthread_mutex_lock(&in->lock);
    size_t bytes = it->event.raw.n; // one event always fits into an empty intake
    bool room =
        !backed_up(in) && !in->closing && (in->bytes == 0 || in->bytes + bytes <= INTAKE_BYTES);
    if (room) {
        in->bytes += bytes;
        waiters_add(in->waiters, &it->waiter, request);
        *(in->last ? &in->last->next : &in->first) = it;
        in->last = it;
        in->depth++;
        *arena = NULL;
        pthread_cond_signal(&in->filled);
    }
    pthread_mutex_unlock(&in->lock);
    return room;
}

bool intake_full(intake *in) {
    pthread_mutex_lock(&in->lock);
    bool full =
        in->depth >= INTAKE_QUEUE; // a slow database is everybody's: that alone is not "not ready"
    pthread_mutex_unlock(&in->lock);
    return full;
}

void intake_finish(intake *in) {
    if (!in || in->joined)
        return;
    pthread_mutex_lock(&in->lock);
    in->closing = true;
    pthread_cond_broadcast(&in->filled);
    pthread_mutex_unlock(&in->lock);
    for (unsigned i = 0; i < in->options.writers; i++)
        pthread_join(in->writers[i].thread, NULL);
    waiters_close(&in->waiters);
    in->joined = true;
}

void intake_close(intake **in) {
    intake *closed = *in;
    if (!closed)
        return;
    intake_finish(closed);
    pthread_cond_destroy(&closed->filled);
    pthread_mutex_destroy(&closed->lock);
    free(closed->writers);
    free(closed);
    *in = NULL;
}
