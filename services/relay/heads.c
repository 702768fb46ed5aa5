// Memory is bounded: rows that wait are kept as ids alone, and bodies are read when there is room for them.
#include "heads.h"
#include "avro/registry.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "life/life.h"
#include "log/log.h"
#include "metrics/metrics.h"
#include "registrar.h"
#include "sender.h"

#include <stdlib.h>

enum {
    REFUSED_MS = 5000,
    MISSING_MS = 1000, // a schema whose text is not there yet
    BACKOFF_MS = 200,
    BACKOFF_CAP_MS = 5000,
    MOST_WAITING = 200000, // rows that are read and not sent
    MOST_BYTES = 16 << 20, // bodies: half of it in flight when a look begins, half for the look
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

struct heads {
    heads_options options;
    const char *outbox;
    keys *keys;
    sender *sender;
    registrar *registrar;
    schema *schemas;
    source *source;                       // lent for the length of heads_turn
    po_arena *arena;                      // the same
    topic *last_topic;                    // of the row before
    key_list ready, large, sent, refused; // large: ready, and too large for a shared read
    size_t n_refused, n_held;             // n_refused: reported and unfinished
    size_t n_sent, bytes_sent;
    int64_t n_acked; // since last counted
    bool sending;    // producers are there, and no backoff
    bool failed;     // since the last verdicts
    po_err failure;
    int attempts; // failures since something was acknowledged
    int64_t stopped_until_ms;
    bool full_reported;
};

static struct { po_metric *published, *publish_seconds, *failures; } metrics;

void heads_declare_metrics(void) {
    metrics.published = po_metric_new(PO_COUNTER, "payonce_relay_published_total",
                                      "Rows acknowledged by Kafka.", "outbox");
    metrics.publish_seconds = po_metric_new(
        PO_HISTOGRAM, "payonce_relay_publish_seconds",
        "From the start of the writer's transaction to Kafka's acknowledgement.", "outbox");
    metrics.failures = po_metric_new(
        PO_COUNTER, "payonce_relay_send_failures_total",
        "Times that sending stopped for a reason that is no record's fault.", "outbox");
}

// --- Heads and their lists

static void make_ready(heads *h, key *key) {
    key->state = KEY_READY;
    key->bytes = 0;
    TAILQ_INSERT_TAIL(&h->ready, key, link);
}

// The head is in no list.
static void finish(heads *h, key *key) {
    if (key->reported) {
        h->n_refused--;
        po_log(PO_INFO, "a refused row is published after all", PO_TEXT("outbox", h->outbox),
               PO_INT("id", key->id));
    }
    struct key *next = keys_finish(h->keys, key);
    if (next)
        make_ready(h, next);
}

static void refuse(heads *h, key *key, const po_err *why) {
    key->state = KEY_REFUSED;
    key->retry_at_ms = po_mono_ms() + REFUSED_MS;
    TAILQ_INSERT_TAIL(&h->refused, key, link);
    if (key->reported)
        return;
    key->reported = true;
    h->n_refused++;
    po_log_err(PO_ERROR, "a row is refused: its key is blocked", why, PO_TEXT("outbox", h->outbox),
               PO_TEXT("topic", key->topic->name), PO_INT("id", key->id));
}

static void fail_sending(heads *h, const po_err *err) {
    if (h->failed)
        return;
    h->failed = true;
    h->failure = *err;
}

// The event and its trace are on the topic under this key; a head is kept without them.
static void tell_published(const heads *h, const key *key) {
    static po_log_site site = {.name = "row_published"};
    if (!po_log_admit(&site))
        return;
    char name[256];
    snprintf(name, sizeof name, "%.*s", (int)key->size, key->name);
    po_log(PO_INFO, "row published", PO_TEXT("outbox", h->outbox),
           PO_TEXT("topic", key->topic->name), PO_TEXT("order_id", name), PO_INT("id", key->id));
}

static void on_verdict(void *arg, void *record, verdict verdict, const po_err *err) {
    heads *h = arg;
    key *key = record;
    if (verdict == SENDER_FAILED) { // stays in `sent` until all of them are taken back
        fail_sending(h, err);
        return;
    }
    TAILQ_REMOVE(&h->sent, key, link);
    h->n_sent--;
    h->bytes_sent -= key->bytes;
    if (verdict == SENDER_ACKED) {
        h->n_acked++;
        int64_t took_us = po_now_us() - key->created_us; // of two clocks
        po_observe(metrics.publish_seconds, h->outbox, took_us > 0 ? (double)took_us / 1e6 : 0);
        tell_published(h, key);
        if (h->attempts > 0)
            po_log(PO_INFO, "sending again", PO_TEXT("outbox", h->outbox));
        h->attempts = 0;
        finish(h, key);
    } else if (key->alone) {
        refuse(h, key, err);
    } else {
        key->alone = true;
        make_ready(h, key);
    }
}

// Stop, and begin again with all that is unacknowledged, after a while.
static void take_back(heads *h) {
    if (h->attempts == 0)
        po_log_err(PO_ERROR, "sending has stopped", &h->failure, PO_TEXT("outbox", h->outbox));
    po_count(metrics.failures, h->outbox, 1);
    sender_reset(h->sender);
    for (key *key; (key = TAILQ_FIRST(&h->sent));) {
        TAILQ_REMOVE(&h->sent, key, link);
        make_ready(h, key);
    }
    h->n_sent = h->bytes_sent = 0;
    h->stopped_until_ms = po_mono_ms() + po_backoff_ms(h->attempts++, BACKOFF_MS, BACKOFF_CAP_MS);
    h->failed = false;
}

// --- Schemas

static schema *schema_of(heads *h, topic *topic, po_str fp) {
    for (schema **at = &h->schemas; *at; at = &(*at)->next) {
        schema *s = *at;
        if (s->topic != topic || memcmp(s->fp, fp.p, sizeof s->fp) != 0)
            continue;
        *at = s->next; // to the front: most rows have the same
        s->next = h->schemas;
        h->schemas = s;
        return s;
    }
    schema *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->topic = topic;
    memcpy(s->fp, fp.p, sizeof s->fp);
    TAILQ_INIT(&s->held);
    s->next = h->schemas;
    h->schemas = s;
    return s;
}

static void hold(heads *h, schema *schema, key *key) {
    key->state = KEY_HELD;
    TAILQ_INSERT_TAIL(&schema->held, key, link);
    schema->n_held++;
    h->n_held++;
}

static bool ask_schema(heads *h, schema *schema, po_err *err) {
    po_str text, fp = {(const char *)schema->fp, sizeof schema->fp};
    po_str subject = po_s(schema->topic->subject);
    if (!source_schema(h->source, h->arena, fp, subject, &text, err))
        return false;
    if (text.p) {
        registrar_ask(h->registrar, subject, text, &schema->registration);
        schema->asked = true;
        return true;
    }
    if (schema->missing_until_ms == 0)
        po_log(PO_ERROR, "the text of a schema is missing: its rows wait",
               PO_TEXT("outbox", h->outbox), PO_TEXT("subject", subject.p));
    schema->missing_until_ms = po_mono_ms() + MISSING_MS;
    return true;
}

// Asks for what rows are held for, and lets them go once it is known.
static bool turn_schemas(heads *h, int64_t now_ms, po_err *err) {
    for (schema *s = h->schemas; s; s = s->next) {
        if (s->n_held == 0)
            continue;
        if (!s->asked && now_ms >= s->missing_until_ms && !ask_schema(h, s, err))
            return false;
        if (atomic_load(&s->registration.id) == 0)
            continue;
        for (key *key; (key = TAILQ_FIRST(&s->held));) {
            TAILQ_REMOVE(&s->held, key, link);
            make_ready(h, key);
        }
        h->n_held -= s->n_held;
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

static void send_framed(heads *h, key *key, const row *row, int32_t schema_id) {
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
    key->alone |= sender_wants_alone(key->topic, all);
    key->created_us = row->created_us;
    po_err err = {0};
    if (sender_send(h->sender, key->topic, key->alone, row->key, payload, size, headers_of(row),
                    key, &err)) {
        key->state = KEY_SENT;
        key->bytes = size;
        h->n_sent++;
        h->bytes_sent += size;
        TAILQ_INSERT_TAIL(&h->sent, key, link);
    } else if (err.kind == PO_REFUSED) {
        refuse(h, key, &err);
    } else {
        fail_sending(h, &err);
        make_ready(h, key);
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
static void dispatch(heads *h, key *key, const row *row) {
    po_err why = {0};
    if (refused_by_us(row, &why)) {
        refuse(h, key, &why);
        return;
    }
    if (h->failed) {
        make_ready(h, key);
        return;
    }
    int32_t schema_id = 0;
    if (!row->tombstone) {
        schema *schema = schema_of(h, key->topic, row->schema_fp);
        schema_id = atomic_load(&schema->registration.id);
        if (schema_id == 0) {
            hold(h, schema, key);
            return;
        }
        if (!row->body.p) { // left out by a shared read
            key->state = KEY_READY;
            key->bytes = (size_t)row->size;
            TAILQ_INSERT_TAIL(&h->large, key, link);
            return;
        }
    }
    send_framed(h, key, row, schema_id);
}

int64_t heads_small_body(const heads *h) {
    return MOST_BYTES / 2 / h->options.look_limit;
}

// Half of what may be in memory is free, for rows that are yet to be read.
static bool room(const heads *h) {
    return !h->failed && h->n_sent + (size_t)h->options.look_limit <= SENDER_MOST_RECORDS &&
           h->bytes_sent <= MOST_BYTES / 2;
}

// --- Reading again

static int by_id(const void *a, const void *b) {
    int64_t x = (*(key *const *)a)->id, y = (*(key *const *)b)->id;
    return (x > y) - (x < y);
}

// Reads the heads of these keys (in no list) and sends them. On failure they are ready again.
static bool read_heads(heads *h, key **list, size_t n, int64_t body_limit, po_err *err) {
    PO_AUTO(po_res_done) po_res *rows = NULL;
    qsort(list, n, sizeof *list, by_id);
    int64_t *ids = po_alloc_array(h->arena, n, sizeof *ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = list[i]->id;
    if (!source_read(h->source, h->arena, ids, n, body_limit, &rows, err)) {
        for (size_t i = 0; i < n; i++)
            make_ready(h, list[i]);
        return false;
    }
    int at = 0, found = po_res_rows(rows);
    for (size_t i = 0; i < n; i++) {
        row row = {0};
        if (at < found)
            row = source_row(rows, at);
        if (at < found && row.id == ids[i]) {
            dispatch(h, list[i], &row);
            at++;
            continue;
        }
        po_log(PO_ERROR, "a row has gone before it was published", PO_TEXT("outbox", h->outbox),
               PO_INT("id", ids[i]));
        finish(h, list[i]);
    }
    return true;
}

static bool send_ready(heads *h, po_err *err) {
    size_t most = (size_t)h->options.look_limit, n = 0;
    if (!room(h))
        return true;
    key **list = po_alloc_array(h->arena, most, sizeof(key *));
    for (key *key; n < most && (key = TAILQ_FIRST(&h->ready)); n++) {
        TAILQ_REMOVE(&h->ready, key, link);
        list[n] = key;
    }
    return n == 0 || read_heads(h, list, n, heads_small_body(h), err);
}

static bool send_large(heads *h, po_err *err) {
    for (key *key; !h->failed && (key = TAILQ_FIRST(&h->large));) {
        if (h->bytes_sent > 0 && h->bytes_sent + key->bytes > MOST_BYTES / 2)
            break;
        TAILQ_REMOVE(&h->large, key, link);
        if (!read_heads(h, &key, 1, SENDER_MOST_BYTES, err))
            return false;
    }
    return true;
}

static void retry_refused(heads *h, int64_t now_ms) {
    for (key *key; (key = TAILQ_FIRST(&h->refused)) && key->retry_at_ms <= now_ms;) {
        TAILQ_REMOVE(&h->refused, key, link);
        key->alone = true;
        make_ready(h, key);
    }
}

// --- The calls

void heads_topic(heads *h, po_str name) {
    (void)sender_topic(h->sender, name);
}

void heads_add(heads *h, const row *row, int64_t now_ms) {
    if (!h->last_topic || !po_str_is(row->topic, h->last_topic->name))
        h->last_topic = sender_topic(h->sender, row->topic);
    key *key = keys_add(h->keys, h->last_topic, row->key, row->id, now_ms);
    if (key)
        dispatch(h, key, row);
}

void heads_verdicts(heads *h) {
    po_err err = {0};
    if (!sender_poll(h->sender, &err))
        fail_sending(h, &err);
    if (h->n_acked > 0)
        po_count(metrics.published, h->outbox, h->n_acked);
    h->n_acked = 0;
    if (h->failed)
        take_back(h);
}

bool heads_turn(heads *h, source *source, po_arena *arena, int64_t now_ms, po_err *err) {
    po_err failure = {0};
    h->source = source;
    h->arena = arena;
    h->sending = false;
    if (!turn_schemas(h, now_ms, err))
        return false;
    if (now_ms < h->stopped_until_ms)
        return true;
    if (!sender_prepare(h->sender, &h->sending, &failure))
        fail_sending(h, &failure);
    if (!h->sending)
        return true;
    if (keys_count(h->keys) == 0)
        h->attempts = 0;
    retry_refused(h, now_ms);
    return send_ready(h, err) && send_large(h, err);
}

// When it is the waiting ids that fill us, one key or schema holds everything up: say which.
static bool is_full(heads *h) {
    size_t waiting = keys_count(h->keys) - h->n_sent + keys_waiting(h->keys);
    bool full = waiting + (size_t)h->options.look_limit > MOST_WAITING;
    if (full && !h->full_reported) {
        const key *longest = keys_longest(h->keys);
        PO_AUTO(po_buf_done) po_buf name = {0};
        po_buf_printf(&name, "%.*s", longest ? (int)longest->size : 0,
                      longest ? longest->name : "");
        po_log(PO_ERROR, "too many rows wait: no more are read", PO_TEXT("outbox", h->outbox),
               PO_INT("waiting", waiting), PO_INT("held_keys", h->n_held),
               PO_TEXT("topic", longest ? longest->topic->name : NULL), PO_TEXT("key", name.p),
               PO_INT("behind_it", longest ? longest->n : 0));
    }
    h->full_reported = full;
    return full;
}

bool heads_want_rows(heads *h) {
    return h->sending && room(h) && !is_full(h);
}

int64_t heads_due_ms(const heads *h, int64_t now_ms) {
    if (now_ms < h->stopped_until_ms)
        return h->stopped_until_ms;
    return h->sending && !TAILQ_EMPTY(&h->ready) && room(h) ? now_ms : INT64_MAX;
}

const keys *heads_keys(const heads *h) {
    return h->keys;
}

heads_counts heads_count(const heads *h) {
    heads_counts counts = {.unfinished = keys_count(h->keys) + keys_waiting(h->keys),
                           .waiting = keys_waiting(h->keys),
                           .sent = h->n_sent,
                           .refused = h->n_refused,
                           .held = h->n_held,
                           .stopped = h->attempts > 0};
    for (const schema *one = h->schemas; one; one = one->next)
        counts.schemas_waiting += one->n_held > 0;
    return counts;
}

void heads_stop(heads *h) {
    sender_reset(h->sender);
}

void heads_forget(heads *h) {
    sender_reset(h->sender);
    keys_free(&h->keys);
    h->keys = keys_new();
    TAILQ_INIT(&h->ready);
    TAILQ_INIT(&h->large);
    TAILQ_INIT(&h->sent);
    TAILQ_INIT(&h->refused);
    for (schema *s = h->schemas; s; s = s->next) {
        TAILQ_INIT(&s->held);
        s->n_held = 0;
    }
    h->n_refused = h->n_held = h->n_sent = h->bytes_sent = 0;
    h->failed = false;
}

bool heads_open(const heads_options *options, heads **ret_heads, po_err *err) {
    heads *h = calloc(1, sizeof *h);
    if (!h)
        abort();
    h->options = *options;
    h->outbox = options->outbox;
    h->sender = sender_new(&(sender_options){.brokers = options->brokers,
                                             .settings = options->kafka_settings,
                                             .client_id = options->client_id,
                                             .wake_fd = options->wake_fd,
                                             .done = on_verdict,
                                             .arg = h});
    heads_forget(h);
    if (!registrar_open(options->registry_url, options->registry_ca_file, options->wake_fd,
                        &h->registrar, err)) {
        heads_close(&h);
        return false;
    }
    *ret_heads = h;
    return true;
}

void heads_close(heads **heads) {
    struct heads *h = *heads;
    if (!h)
        return;
    registrar_close(&h->registrar);
    sender_free(&h->sender);
    keys_free(&h->keys);
    for (schema *s = h->schemas, *next; s; s = next) {
        next = s->next;
        free(s);
    }
    free(h);
    *heads = NULL;
}
