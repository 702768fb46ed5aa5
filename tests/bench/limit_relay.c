// What Kafka alone can take of relay's work: the records that relay would send of an outbox, same bytes, same
// producer (relay's own sender), but from memory. On the way it measures what PostgreSQL alone can give: the same
// looks with nothing done to the rows; and what a look costs when there is nothing to find above the retained rows.
#include "base/cleanup.h"
#include "base/clock.h"
#include "avro/registry.h"
#include "sender.h"
#include "source.h"
#include <getopt.h>
#include <jansson.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_LIMIT = 2048, BODY_LIMIT = 4096, IDLE_LOOKS = 500, PATIENCE_MS = 60000 };

typedef struct record {
    po_str key;
    void *payload;
    size_t size;
    rd_kafka_headers_t *headers;
    size_t bytes; // key, value and headers
} record;

typedef struct bench {
    const char *dsn, *outbox, *brokers, *topic;
    po_arena *arena;
    record *records;
    size_t n, acked;
    int64_t last_id;
    int wake_fd;
} bench;

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

static int64_t mono_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

// --- Reading

static void keep(bench *b, const row *row) {
    record *r = &b->records[b->n++];
    r->key = po_str_copy(b->arena, row->key);
    r->size = PO_FRAME_SIZE + row->body.n;
    r->payload = malloc(r->size);
    if (!r->payload)
        abort();
    po_frame(1, r->payload);
    memcpy((char *)r->payload + PO_FRAME_SIZE, row->body.p, row->body.n);
    r->headers = po_ce_headers(&(po_ce){.id = row->event_id,
                                        .type = row->ce_type,
                                        .source = row->ce_source,
                                        .time_us = row->ce_time_us,
                                        .subject = row->key,
                                        .sequence = row->sequence,
                                        .traceparent = row->traceparent,
                                        .tracestate = row->tracestate});
    r->bytes = r->key.n + r->size;
    const char *name;
    const void *value;
    for (size_t i = 0, n; !rd_kafka_header_get_all(r->headers, i, &name, &value, &n); i++)
        r->bytes += strlen(name) + n;
}

// Rows per second of looking alone; the rows are kept, outside the clock.
static double read_all(bench *b, source *source, size_t most) {
    po_err err = {0};
    int64_t reading_us = 0;
    gaps *gaps = gaps_new(0);
    for (bool all = false; !all && b->n < most;) {
        PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
        PO_AUTO(po_res_done) po_res *rows = NULL;
        int64_t began_us = mono_us();
        if (!source_look(source, arena, gaps, LOOK_LIMIT, BODY_LIMIT, &rows, &err))
            die("looking: %s: %s", err.code, err.text);
        reading_us += mono_us() - began_us;
        all = po_res_rows(rows) < LOOK_LIMIT;
        for (int i = 0; i < po_res_rows(rows) && b->n < most; i++) {
            row row = source_row(rows, i);
            b->last_id = row.id;
            keep(b, &row);
        }
        gaps_free(&gaps); // holes are nobody's here: go on above them
        gaps = gaps_new(b->last_id);
    }
    gaps_free(&gaps);
    return (double)b->n / ((double)reading_us / 1e6);
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

// Median of a look that finds nothing, in µs.
static int64_t idle_look(source *source, int64_t high) {
    static int64_t took_us[IDLE_LOOKS];
    gaps *gaps = gaps_new(high);
    po_err err = {0};
    for (int i = 0; i < IDLE_LOOKS; i++) {
        PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
        PO_AUTO(po_res_done) po_res *rows = NULL;
        int64_t began_us = mono_us();
        if (!source_look(source, arena, gaps, LOOK_LIMIT, BODY_LIMIT, &rows, &err))
            die("looking: %s: %s", err.code, err.text);
        took_us[i] = mono_us() - began_us;
        if (po_res_rows(rows) > 0)
            die("an idle look found rows");
    }
    gaps_free(&gaps);
    qsort(took_us, IDLE_LOOKS, sizeof *took_us, by_value);
    return took_us[IDLE_LOOKS / 2];
}

// --- Producing

static void on_verdict(void *arg, void *record, verdict verdict, const po_err *err) {
    (void)record;
    bench *b = arg;
    if (verdict != SENDER_ACKED)
        die("not acknowledged: %s", err->text);
    b->acked++;
}

static void poll_verdicts(const bench *b, sender *sender) {
    struct pollfd fd = {b->wake_fd, POLLIN, 0};
    uint64_t woken;
    po_err err = {0};
    if (poll(&fd, 1, PATIENCE_MS) == 0)
        die("Kafka is silent");
    (void)!read(b->wake_fd, &woken, sizeof woken);
    if (!sender_poll(sender, &err))
        die("%s: %s", err.code, err.text);
}

static double produce_all(bench *b) {
    b->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    sender *sender = sender_new(&(sender_options){.brokers = b->brokers,
                                                  .settings = "",
                                                  .client_id = "payonce-bench",
                                                  .wake_fd = b->wake_fd,
                                                  .done = on_verdict,
                                                  .arg = b});
    topic *topic = sender_topic(sender, po_s(b->topic));
    po_err err = {0};
    for (bool ready = false; !ready;)
        if (!sender_prepare(sender, &ready, &err))
            die("%s: %s", err.code, err.text);
    int64_t began_us = mono_us();
    for (size_t i = 0; i < b->n; i++) {
        record *r = &b->records[i];
        while (sender_in_flight(sender) >= SENDER_MOST_RECORDS)
            poll_verdicts(b, sender);
        if (!sender_send(sender, topic, false, r->key, r->payload, r->size, r->headers, r, &err))
            die("%s: %s", err.code, err.text);
    }
    while (b->acked < b->n)
        poll_verdicts(b, sender);
    double seconds = (double)(mono_us() - began_us) / 1e6;
    sender_free(&sender);
    close(b->wake_fd);
    return (double)b->n / seconds;
}

static bench read_settings(int argc, char **argv, int64_t *ret_count) {
    bench b = {.outbox = "ingest"};
    static const struct option options[] = {{"dsn", 1, 0, 'D'},     {"outbox", 1, 0, 'o'},
                                            {"brokers", 1, 0, 'b'}, {"topic", 1, 0, 't'},
                                            {"count", 1, 0, 'n'},   {0}};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) >= 0;) {
        switch (c) {
        case 'D':
            b.dsn = optarg;
            break;
        case 'o':
            b.outbox = optarg;
            break;
        case 'b':
            b.brokers = optarg;
            break;
        case 't':
            b.topic = optarg;
            break;
        case 'n':
            if (!po_parse_i64(po_s(optarg), ret_count) || *ret_count < 1)
                die("'%s' is not a count", optarg);
            break;
        default:
            exit(2);
        }
    }
    if (!b.dsn || !b.brokers || !b.topic || !*ret_count)
        die("wanted: --dsn --brokers --topic --count");
    return b;
}

int main(int argc, char **argv) {
    int64_t count = 0;
    bench b = read_settings(argc, argv, &count);
    source source;
    po_err err = {0};
    if (!source_open(&(po_pg_options){.dsn = b.dsn}, b.outbox, &source, &err))
        die("%s: %s", err.code, err.text);
    b.arena = po_arena_new();
    b.records = calloc((size_t)count, sizeof *b.records);
    if (!b.records)
        abort();
    double read_rate = read_all(&b, &source, (size_t)count);
    int64_t idle_us = idle_look(&source, INT64_MAX / 2);
    source_close(&source);
    size_t bytes = 0;
    for (size_t i = 0; i < b.n; i++)
        bytes += b.records[i].bytes;
    double rate = produce_all(&b);
    json_t *out = json_pack("{s:I, s:f, s:f, s:f, s:I}", "records", (json_int_t)b.n, "record_bytes",
                            (double)bytes / (double)b.n, "read_rate", read_rate, "produce_rate",
                            rate, "idle_look_us", (json_int_t)idle_us);
    json_dumpf(out, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(out);
    free(b.records);
    po_arena_free(&b.arena);
    return 0;
}
