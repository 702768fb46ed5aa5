// The loop of one outbox. A turn: take verdicts, write the checkpoint if it is due, read again what may go now, look
// for new rows, sample if gaps are left, wait for whatever comes first. Reading goes on while Kafka acknowledges.
//
// A row, once read, is a key's head or waits behind it (keys.h). A head is, in turn: ready (to be read again), held
// (its schema has no id yet), sent, refused. Each list holds the keys whose heads are in that state.
//
// Failures. PostgreSQL: a new session; what is known of rows stays, gaps are unsampled. Kafka, not the record's
// fault: everything sent and not acknowledged becomes ready, new producers after a backoff, without limit. The
// record's fault: once more alone, then its key is blocked and it is tried every REFUSED_MS.
#include "relay.h"
#include "cursor.h"
#include "registrar.h"
#include "sender.h"
#include "source.h"
#include "avro/registry.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "metrics/metrics.h"

#include <assert.h>
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
    IDLE_MS = 100, // between looks when nobody rings
    REFUSED_MS = 5000,
    MISSING_MS = 1000, // a schema whose text is not there yet
    BACKOFF_MS = 200,
    BACKOFF_CAP_MS = 5000,
    DRAIN_MS = 4000,
    BEAT_LIMIT_MS = 60000,
    BUSY_ROWS = 64, // a look that returned so many is followed by another at once
    MOST_WAITING = 200000,
    MOST_BYTES =
        16 << 20, // bodies in memory: half of it in flight when a look begins, half for the look
};

typedef struct schema {
    struct schema *next;
    topic *topic;
    uint8_t fp[32];
    bool asked;
    int64_t missing_until_ms; // its text was not there
    registration registration;
    key_list held;
    size_t n_held;
} schema;

typedef struct shown { // what other threads see
    bool active, connected, stopped;
    int64_t epoch, floor, high;
    size_t gaps, unfinished, waiting, refused, schemas_waiting;
    int64_t oldest_ms;
} shown;

struct relay {
    const relay_options *options;
    const char *outbox;
    int wake_fd;
    po_beat *beat;
    source source;
    cursor cursor;
    bool mine;
    gaps *gaps;
    keys *keys;
    sender *sender;
    registrar *registrar;
    schema *schemas;
    key_list ready, large, sent, refused; // large: ready, and too large for a shared read
    size_t n_refused, n_held;             // n_refused: reported and unfinished
    size_t n_sent, bytes_sent;
    int64_t n_acked; // in this turn
    po_arena *arena; // of one turn
    // Kafka's failures.
    bool sending; // producers are there, and no backoff
    bool failed;
    po_err failure;
    int attempts;
    int64_t stopped_until_ms;
    // When what is due.
    bool look_now;
    int64_t looked_ms, planned_ms, sampled_ms, changed_ms;
    bool full_reported;
    pthread_mutex_t lock; // shown
    shown shown;
};

static struct {
    po_metric *published, *dead, *publish_seconds, *unfinished, *waiting, *oldest, *gaps, *refused,
        *held, *stopped, *active, *failures, *moved;
} metrics;

void relay_declare_metrics(void) {
    metrics.published = po_metric_new(PO_COUNTER, "payonce_relay_published_total",
                                      "Rows acknowledged by Kafka.", "outbox");
    metrics.publish_seconds = po_metric_new(
        PO_HISTOGRAM, "payonce_relay_publish_seconds",
        "From the start of the writer's transaction to Kafka's acknowledgement.", "outbox");
    metrics.dead = po_metric_new(PO_COUNTER, "payonce_relay_dead_ids_total",
                                 "Ids that were rolled back.", "outbox");
    metrics.unfinished = po_metric_new(PO_GAUGE, "payonce_relay_unfinished_rows",
                                       "Rows read and not yet acknowledged.", "outbox");
    metrics.waiting = po_metric_new(PO_GAUGE, "payonce_relay_waiting_rows",
                                    "Rows that wait behind another row of their key.", "outbox");
    metrics.oldest = po_metric_new(PO_GAUGE, "payonce_relay_oldest_unfinished_seconds",
                                   "Since when the oldest of them has been known.", "outbox");
    metrics.gaps = po_metric_new(PO_GAUGE, "payonce_relay_gaps",
                                 "Ranges of ids that may still appear.", "outbox");
    metrics.refused =
        po_metric_new(PO_GAUGE, "payonce_relay_refused_rows",
                      "Rows that Kafka does not take; each blocks its key.", "outbox");
    metrics.held = po_metric_new(PO_GAUGE, "payonce_relay_held_keys",
                                 "Keys that wait for their schema to be registered.", "outbox");
    metrics.stopped = po_metric_new(
        PO_GAUGE, "payonce_relay_stopped",
        "1 while sending has failed for a reason that is no record's fault.", "outbox");
    metrics.active = po_metric_new(PO_GAUGE, "payonce_relay_active",
                                   "1 while this process holds the lease.", "outbox");
    metrics.failures =
        po_metric_new(PO_COUNTER, "payonce_relay_failures_total",
                      "Failures that ended a session or stopped the sending.", "outbox");
    metrics.moved = po_metric_new(
        PO_COUNTER, "payonce_relay_moved_total",
        "Times the outbox was found on another server and sent again in part.", "outbox");
}

// --- Heads and their lists

static void make_ready(relay *r, key *key) {
    key->state = KEY_READY;
    key->bytes = 0;
    TAILQ_INSERT_TAIL(&r->ready, key, link);
}

// The head is in no list.
static void finish(relay *r, key *key) {
    if (key->reported) {
        r->n_refused--;
        po_log(PO_INFO, "a refused row is published after all", PO_TEXT("outbox", r->outbox),
               PO_INT("id", key->id));
    }
    struct key *next = keys_finish(r->keys, key);
    if (next)
        make_ready(r, next);
}

static void refuse(relay *r, key *key, const po_err *why) {
    key->state = KEY_REFUSED;
    key->retry_at_ms = po_mono_ms() + REFUSED_MS;
    TAILQ_INSERT_TAIL(&r->refused, key, link);
    if (key->reported)
        return;
    key->reported = true;
    r->n_refused++;
    po_log_err(PO_ERROR, "a row is refused: its key is blocked", why, PO_TEXT("outbox", r->outbox),
               PO_TEXT("topic", key->topic->name), PO_INT("id", key->id));
}

static void fail_sending(relay *r, const po_err *err) {
    if (r->failed)
        return;
    r->failed = true;
    r->failure = *err;
}

static void on_verdict(void *arg, void *record, verdict verdict, const po_err *err) {
    relay *r = arg;
    key *key = record;
    if (verdict == SENDER_FAILED) { // stays in `sent` until all of them are taken back
        fail_sending(r, err);
        return;
    }
    TAILQ_REMOVE(&r->sent, key, link);
    r->n_sent--;
    r->bytes_sent -= key->bytes;
    if (verdict == SENDER_ACKED) {
        r->n_acked++;
        po_observe(metrics.publish_seconds, r->outbox,
                   (double)(po_now_us() - key->created_us) / 1e6);
        if (r->attempts > 0)
            po_log(PO_INFO, "sending again", PO_TEXT("outbox", r->outbox));
        r->attempts = 0;
        finish(r, key);
    } else if (key->alone) {
        refuse(r, key, err);
    } else {
        key->alone = true;
        make_ready(r, key);
    }
}

// Stop, and begin again with all that is unacknowledged, after a while.
static void take_back(relay *r) {
    if (r->attempts == 0)
        po_log_err(PO_ERROR, "sending has stopped", &r->failure, PO_TEXT("outbox", r->outbox));
    po_count(metrics.failures, r->outbox, 1);
    sender_reset(r->sender);
    for (key *key; (key = TAILQ_FIRST(&r->sent));) {
        TAILQ_REMOVE(&r->sent, key, link);
        make_ready(r, key);
    }
    r->n_sent = r->bytes_sent = 0;
    r->stopped_until_ms = po_mono_ms() + po_backoff_ms(r->attempts++, BACKOFF_MS, BACKOFF_CAP_MS);
    r->failed = false;
}

// --- Schemas

static schema *schema_of(relay *r, topic *topic, po_str fp) {
    for (schema **at = &r->schemas; *at; at = &(*at)->next) {
        schema *s = *at;
        if (s->topic != topic || memcmp(s->fp, fp.p, sizeof s->fp) != 0)
            continue;
        *at = s->next; // to the front: most rows have the same
        s->next = r->schemas;
        r->schemas = s;
        return s;
    }
    schema *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->topic = topic;
    memcpy(s->fp, fp.p, sizeof s->fp);
    TAILQ_INIT(&s->held);
    s->next = r->schemas;
    r->schemas = s;
    return s;
}

static void hold(relay *r, schema *schema, key *key) {
    key->state = KEY_HELD;
    TAILQ_INSERT_TAIL(&schema->held, key, link);
    schema->n_held++;
    r->n_held++;
}

static bool ask_schema(relay *r, schema *schema, po_err *err) {
    po_str text, fp = {(const char *)schema->fp, sizeof schema->fp};
    po_str subject = po_s(schema->topic->subject);
    if (!source_schema(&r->source, r->arena, fp, subject, &text, err))
        return false;
    if (text.p) {
        registrar_ask(r->registrar, subject, text, &schema->registration);
        schema->asked = true;
        return true;
    }
    if (schema->missing_until_ms == 0)
        po_log(PO_ERROR, "the text of a schema is missing: its rows wait",
               PO_TEXT("outbox", r->outbox), PO_TEXT("subject", subject.p));
    schema->missing_until_ms = po_mono_ms() + MISSING_MS;
    return true;
}

// Asks for what rows are held for, and lets them go once it is known.
static bool turn_schemas(relay *r, int64_t now_ms, po_err *err) {
    for (schema *s = r->schemas; s; s = s->next) {
        if (s->n_held == 0)
            continue;
        if (!s->asked && now_ms >= s->missing_until_ms && !ask_schema(r, s, err))
            return false;
        if (atomic_load(&s->registration.id) == 0)
            continue;
        for (key *key; (key = TAILQ_FIRST(&s->held));) {
            TAILQ_REMOVE(&s->held, key, link);
            make_ready(r, key);
        }
        r->n_held -= s->n_held;
        s->n_held = 0;
    }
    return true;
}

// --- Sending

static rd_kafka_headers_t *headers_of(const row *row) {
    return po_ce_headers(&(po_ce){.id = row->event_id,
                                  .type = row->ce_type,
                                  .source = row->ce_source,
                                  .time_us = row->ce_time_us,
                                  .subject = row->key,
                                  .sequence = row->sequence,
                                  .traceparent = row->traceparent,
                                  .tracestate = row->tracestate});
}

static void send_framed(relay *r, key *key, const row *row, int32_t schema_id) {
    size_t size = row->tombstone ? 0 : PO_FRAME_SIZE + row->body.n;
    uint8_t *payload = row->tombstone ? NULL : malloc(size);
    if (payload) {
        po_frame(schema_id, payload);
        if (row->body.n > 0)
            memcpy(payload + PO_FRAME_SIZE, row->body.p, row->body.n);
    } else if (!row->tombstone) {
        abort();
    }
    size_t all = size + row->key.n + row->ce_type.n + row->ce_source.n + row->traceparent.n +
                 row->tracestate.n;
    key->alone |= sender_wants_alone(r->sender, all);
    key->created_us = row->created_us;
    po_err err = {0};
    if (sender_send(r->sender, key->topic, key->alone, row->key, payload, size, headers_of(row),
                    key, &err)) {
        key->state = KEY_SENT;
        key->bytes = size;
        r->n_sent++;
        r->bytes_sent += size;
        TAILQ_INSERT_TAIL(&r->sent, key, link);
    } else if (err.kind == PO_REFUSED) {
        refuse(r, key, &err);
    } else {
        fail_sending(r, &err);
        make_ready(r, key);
    }
}

static bool refused_by_us(const row *row, po_err *err) {
    if (row->topic.n == 0 || row->key.n == 0)
        return !po_fail(err, PO_REFUSED, "no_key", "no topic or no key");
    if (row->size > SENDER_MOST_BYTES - (64 << 10))
        return !po_fail(err, PO_REFUSED, "too_large", "a body of %lld bytes", (long long)row->size);
    if (!row->tombstone && row->schema_fp.n != 32)
        return !po_fail(err, PO_REFUSED, "no_schema",
                        "a body without the fingerprint of its schema");
    return false;
}

// The row is the head of its key, which is in no list.
static void dispatch(relay *r, key *key, const row *row) {
    po_err why = {0};
    if (refused_by_us(row, &why)) {
        refuse(r, key, &why);
        return;
    }
    if (r->failed) {
        make_ready(r, key);
        return;
    }
    int32_t schema_id = 0;
    if (!row->tombstone) {
        schema *schema = schema_of(r, key->topic, row->schema_fp);
        schema_id = atomic_load(&schema->registration.id);
        if (schema_id == 0) {
            hold(r, schema, key);
            return;
        }
        if (!row->body.p) { // left out by a shared read
            key->state = KEY_READY;
            key->bytes = (size_t)row->size;
            TAILQ_INSERT_TAIL(&r->large, key, link);
            return;
        }
    }
    send_framed(r, key, row, schema_id);
}

static int64_t small_body(const relay *r) {
    return MOST_BYTES / 2 / r->options->look_limit;
}

// Half of what may be in memory is free, for rows that are yet to be read.
static bool room(const relay *r) {
    return !r->failed && r->n_sent + (size_t)r->options->look_limit <= SENDER_MOST_RECORDS &&
           r->bytes_sent <= MOST_BYTES / 2;
}

// --- Reading again

static int by_id(const void *a, const void *b) {
    int64_t x = (*(key *const *)a)->id, y = (*(key *const *)b)->id;
    return (x > y) - (x < y);
}

// Reads the heads of these keys (in no list) and sends them. On failure they are ready again.
static bool read_heads(relay *r, key **heads, size_t n, int64_t body_limit, po_err *err) {
    PO_AUTO(po_res_done) po_res *rows = NULL;
    qsort(heads, n, sizeof *heads, by_id);
    int64_t *ids = po_alloc_array(r->arena, n, sizeof *ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = heads[i]->id;
    if (!source_read(&r->source, r->arena, ids, n, body_limit, &rows, err)) {
        for (size_t i = 0; i < n; i++)
            make_ready(r, heads[i]);
        return false;
    }
    int at = 0, found = po_res_rows(rows);
    for (size_t i = 0; i < n; i++) {
        row row = {0};
        if (at < found)
            row = source_row(rows, at);
        if (at < found && row.id == ids[i]) {
            dispatch(r, heads[i], &row);
            at++;
            continue;
        }
        po_log(PO_ERROR, "a row has gone before it was published", PO_TEXT("outbox", r->outbox),
               PO_INT("id", ids[i]));
        finish(r, heads[i]);
    }
    return true;
}

static bool send_ready(relay *r, po_err *err) {
    size_t most = (size_t)r->options->look_limit, n = 0;
    if (!room(r))
        return true;
    key **heads = po_alloc_array(r->arena, most, sizeof(key *));
    for (key *key; n < most && (key = TAILQ_FIRST(&r->ready)); n++) {
        TAILQ_REMOVE(&r->ready, key, link);
        heads[n] = key;
    }
    return n == 0 || read_heads(r, heads, n, small_body(r), err);
}

static bool send_large(relay *r, po_err *err) {
    for (key *key; !r->failed && (key = TAILQ_FIRST(&r->large));) {
        if (r->bytes_sent > 0 && r->bytes_sent + key->bytes > MOST_BYTES / 2)
            break;
        TAILQ_REMOVE(&r->large, key, link);
        if (!read_heads(r, &key, 1, SENDER_MOST_BYTES, err))
            return false;
    }
    return true;
}

static void retry_refused(relay *r, int64_t now_ms) {
    for (key *key; (key = TAILQ_FIRST(&r->refused)) && key->retry_at_ms <= now_ms;) {
        TAILQ_REMOVE(&r->refused, key, link);
        key->alone = true;
        make_ready(r, key);
    }
}

// --- Looking and sampling

// Room for a whole look. When it is the waiting ids that fill it, one key or schema holds everything: say which.
static bool may_look(relay *r) {
    size_t most = (size_t)r->options->look_limit;
    bool full = keys_count(r->keys) - r->n_sent + keys_waiting(r->keys) + most > MOST_WAITING;
    if (full && !r->full_reported) {
        const key *longest = keys_longest(r->keys);
        po_log(PO_ERROR, "too many rows wait: no more are read", PO_TEXT("outbox", r->outbox),
               PO_INT("waiting", keys_waiting(r->keys)), PO_INT("held", r->n_held),
               PO_TEXT("topic", longest ? longest->topic->name : NULL),
               PO_INT("row", longest ? longest->id : 0),
               PO_INT("behind_it", longest ? longest->n : 0));
    }
    r->full_reported = full;
    return !full && room(r);
}

static bool look(relay *r, int64_t now_ms, po_err *err) {
    PO_AUTO(po_res_done) po_res *rows = NULL;
    int32_t limit = r->options->look_limit;
    if (!source_look(&r->source, r->arena, r->gaps, limit, small_body(r), &rows, err))
        return false;
    int n = po_res_rows(rows);
    int64_t *ids = po_alloc_array(r->arena, (size_t)n, sizeof *ids);
    for (int i = 0; i < n; i++)
        ids[i] = po_res_i64(rows, i, 0);
    bool all = n < limit;
    int64_t dead = gaps_look(r->gaps, ids, (size_t)n, all, now_ms);
    if (dead > 0)
        po_count(metrics.dead, r->outbox, dead);
    topic *topic = NULL;
    for (int i = 0; i < n; i++) {
        row row = source_row(rows, i);
        if (!topic || !po_str_is(row.topic, topic->name))
            topic = sender_topic(r->sender, row.topic);
        key *key = keys_add(r->keys, topic, row.key, row.id, now_ms);
        if (key)
            dispatch(r, key, &row);
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
        r->look_now = true;
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

static void show(relay *r, int64_t now_ms) {
    const int64_t *lo, *hi;
    int64_t oldest = now_ms;
    shown s = {.active = r->mine,
               .connected = r->source.pg != NULL,
               .stopped = r->attempts > 0,
               .epoch = r->cursor.epoch,
               .floor = r->cursor.floor};
    if (r->mine) {
        keys_each(r->keys, find_oldest, &oldest);
        s.high = gaps_high(r->gaps);
        s.gaps = gaps_ranges(r->gaps, &lo, &hi);
        s.unfinished = keys_count(r->keys) + keys_waiting(r->keys);
        s.waiting = keys_waiting(r->keys);
    }
    s.refused = r->n_refused;
    s.oldest_ms = now_ms - oldest;
    for (const schema *one = r->schemas; one; one = one->next)
        s.schemas_waiting += one->n_held > 0;
    po_gauge(metrics.active, r->outbox, s.active);
    po_gauge(metrics.stopped, r->outbox, s.stopped);
    po_gauge(metrics.gaps, r->outbox, (double)s.gaps);
    po_gauge(metrics.unfinished, r->outbox, (double)s.unfinished);
    po_gauge(metrics.waiting, r->outbox, (double)s.waiting);
    po_gauge(metrics.oldest, r->outbox, (double)s.oldest_ms / 1e3);
    po_gauge(metrics.refused, r->outbox, (double)s.refused);
    po_gauge(metrics.held, r->outbox, (double)r->n_held);
    pthread_mutex_lock(&r->lock);
    r->shown = s;
    pthread_mutex_unlock(&r->lock);
}

static bool checkpoint(relay *r, int64_t now_ms, po_err *err) {
    r->planned_ms = now_ms;
    if (!cursor_checkpoint(&r->cursor, r->source.pg, r->arena, r->keys, r->gaps, now_ms, err))
        return false;
    show(r, now_ms);
    return true;
}

// --- A turn

static void take_verdicts(relay *r) {
    po_err err = {0};
    if (!sender_poll(r->sender, &err))
        fail_sending(r, &err);
    if (r->n_acked > 0)
        po_count(metrics.published, r->outbox, r->n_acked);
    r->n_acked = 0;
    if (r->failed)
        take_back(r);
}

// Sends and reads, unless Kafka has failed lately.
static bool move(relay *r, int64_t now_ms, po_err *err) {
    po_err failure = {0};
    r->sending = false;
    if (now_ms < r->stopped_until_ms)
        return true;
    if (!sender_prepare(r->sender, &r->sending, &failure)) {
        fail_sending(r, &failure);
        return true;
    }
    if (!r->sending)
        return true;
    if (keys_count(r->keys) == 0)
        r->attempts = 0;
    retry_refused(r, now_ms);
    if (!send_ready(r, err) || !send_large(r, err))
        return false;
    bool due = r->look_now || now_ms - r->looked_ms >= IDLE_MS;
    return !due || !may_look(r) || look(r, now_ms, err);
}

static int64_t earlier(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t next_due_ms(relay *r, int64_t now_ms) {
    int64_t due_ms = earlier(r->planned_ms + CHECKPOINT_MS, sample_due_ms(r));
    if (now_ms < r->stopped_until_ms)
        return earlier(due_ms, r->stopped_until_ms);
    if (!r->sending)
        return due_ms;
    if (!TAILQ_EMPTY(&r->ready) && room(r))
        return now_ms;
    if (!may_look(r))
        return due_ms;
    return r->look_now ? now_ms : earlier(due_ms, r->looked_ms + IDLE_MS);
}

// Until a ring, a verdict, or what is due next.
static bool wait_next(relay *r, po_err *err) {
    int64_t now_ms = po_mono_ms(), due_ms = next_due_ms(r, now_ms);
    int timeout_ms = due_ms > now_ms ? (int)(due_ms - now_ms) : 0;
    bool rung = false;
    if (!po_pg_wait_notify(r->source.pg, timeout_ms, r->wake_fd, &rung, err))
        return false;
    uint64_t woken;
    (void)!read(r->wake_fd, &woken, sizeof woken);
    if (rung)
        r->look_now = true;
    return true;
}

static bool turn(relay *r, po_err *err) {
    po_arena_reset(r->arena);
    po_beat_tick(r->beat);
    int64_t now_ms = po_mono_ms();
    take_verdicts(r);
    if (now_ms - r->planned_ms >= CHECKPOINT_MS && !checkpoint(r, now_ms, err))
        return false;
    if (!turn_schemas(r, now_ms, err) || !move(r, now_ms, err))
        return false;
    take_verdicts(r);
    now_ms = po_mono_ms();
    if (sample_due_ms(r) <= now_ms && !sample(r, now_ms, err))
        return false;
    return wait_next(r, err);
}

// --- A session

// Nothing that was read counts any more.
static void forget(relay *r) {
    sender_reset(r->sender);
    gaps_free(&r->gaps);
    keys_free(&r->keys);
    r->keys = keys_new();
    TAILQ_INIT(&r->ready);
    TAILQ_INIT(&r->large);
    TAILQ_INIT(&r->sent);
    TAILQ_INIT(&r->refused);
    for (schema *s = r->schemas; s; s = s->next) {
        TAILQ_INIT(&s->held);
        s->n_held = 0;
    }
    r->n_refused = r->n_held = r->n_sent = r->bytes_sent = 0;
    r->mine = r->failed = false;
}

// Waits for the lease; not mine when the process is stopping.
static bool stand_by(relay *r, po_err *err) {
    for (bool told = false; !po_stopping(); told = true) {
        if (!cursor_take(&r->cursor, r->source.pg, &r->mine, err))
            return false;
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
        forget(r);
        return po_fail(err, PO_RETRY, "moved", "%s: beginning anew", moved);
    }
    gaps_forget_samples(r->gaps);
    r->cursor.server = *now;
    return checkpoint(r, po_mono_ms(), err);
}

static bool learn_topics(relay *r, po_err *err) {
    po_str *topics;
    size_t n;
    if (!source_topics(&r->source, r->arena, &topics, &n, err))
        return false;
    for (size_t i = 0; i < n; i++)
        (void)sender_topic(r->sender, topics[i]);
    return true;
}

static bool serve(relay *r, int *attempts, po_err *err) {
    server now;
    po_arena_reset(r->arena);
    if (!source_open(&r->options->pg, r->outbox, &r->source, err) || !learn_topics(r, err) ||
        !cursor_identify(r->source.pg, &now, err))
        return false;
    if (r->mine && !go_on(r, &now, err))
        return false;
    if (!r->mine && !stand_by(r, err))
        return false;
    if (r->mine && !r->gaps && !begin(r, err))
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
    po_err err = {0};
    while (r->n_sent > 0 && po_mono_ms() < until_ms) {
        struct pollfd fd = {r->wake_fd, POLLIN, 0};
        uint64_t woken;
        take_verdicts(r);
        if (r->n_sent > 0 && poll(&fd, 1, 100) > 0)
            (void)!read(r->wake_fd, &woken, sizeof woken);
    }
    if (!r->mine || !r->source.pg)
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
            *err = failure;
            return false;
        }
        if (attempts == 0 || strcmp(code, failure.code) != 0)
            po_log_err(po_pg_is_deployment(&failure) || failure.kind == PO_BUG ? PO_ERROR : PO_WARN,
                       "no session with the outbox", &failure, PO_TEXT("outbox", r->outbox));
        memcpy(code, failure.code, sizeof code);
        po_beat_tick(r->beat);
        (void)po_life_wait(po_backoff_ms(attempts, BACKOFF_MS, BACKOFF_CAP_MS));
    }
    drain(r);
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
    r->sender = sender_new(&(sender_options){.brokers = options->brokers,
                                             .extra = options->kafka_extra,
                                             .client_id = options->pg.application_name,
                                             .wake_fd = r->wake_fd,
                                             .done = on_verdict,
                                             .arg = r});
    forget(r);
    if (!registrar_open(options->registry_url, r->wake_fd, &r->registrar, err)) {
        relay_close(&r);
        return false;
    }
    *ret_relay = r;
    return true;
}

void relay_close(relay **relay) {
    struct relay *r = *relay;
    if (!r)
        return;
    po_beat_end(r->beat);
    registrar_close(&r->registrar);
    sender_free(&r->sender);
    source_close(&r->source);
    cursor_done(&r->cursor);
    gaps_free(&r->gaps);
    keys_free(&r->keys);
    for (schema *s = r->schemas, *next; s; s = next) {
        next = s->next;
        free(s);
    }
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

json_t *relay_status(relay *r) {
    shown s = shown_now(r);
    return json_pack("{s:s, s:b, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "outbox",
                     r->outbox, "active", s.active, "connected", s.connected, "stopped", s.stopped,
                     "epoch", (json_int_t)s.epoch, "floor", (json_int_t)s.floor, "high",
                     (json_int_t)s.high, "gaps", (json_int_t)s.gaps, "unfinished",
                     (json_int_t)s.unfinished, "waiting", (json_int_t)s.waiting, "refused",
                     (json_int_t)s.refused, "schemas_waiting", (json_int_t)s.schemas_waiting,
                     "oldest_ms", (json_int_t)s.oldest_ms);
}

bool relay_active(relay *r) {
    return shown_now(r).active;
}
