// What librdkafka needs to be told once: its configuration (ours, then the operator's), where its
// log goes, and CloudEvents headers. A setting's value is never repeated in an error: it may be a
// password.
#include "kafka/kafka.h"
#include "base/clock.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static void to_log(const rd_kafka_t *kafka, int severity, const char *facility, const char *text) {
    // librdkafka's "error" is a lost broker, with which it copes by itself.
    po_level level = severity <= 2   ? PO_ERROR
                     : severity <= 4 ? PO_WARN
                     : severity <= 6 ? PO_INFO
                                     : PO_DEBUG;
    po_log(level, "librdkafka", PO_TEXT("client", kafka ? rd_kafka_name(kafka) : NULL),
           PO_TEXT("facility", facility), PO_TEXT("text", text));
}

static bool set(rd_kafka_conf_t *conf, const char *name, const char *value, po_err *err) {
    char why[8];
    switch (rd_kafka_conf_set(conf, name, value, why, sizeof why)) {
    case RD_KAFKA_CONF_OK:
        return true;
    case RD_KAFKA_CONF_UNKNOWN:
        return po_fail(err, PO_REFUSED, "kafka_setting", "Kafka setting %.100s is not known", name);
    default:
        return po_fail(err, PO_REFUSED, "kafka_setting", "Kafka setting %.100s has a bad value",
                       name);
    }
}

// "name=value,name=value"; blanks around an item, and empty items, do not count.
static bool set_extra(rd_kafka_conf_t *conf, const char *extra, po_err *err) {
    bool ok = true;
    for (const char *p = extra; ok && *p;) {
        size_t n = strcspn(p, ",");
        po_str item = po_str_trim((po_str){p, n});
        p += n + (p[n] == ',');
        if (item.n == 0)
            continue;
        char *text = strndup(item.p, item.n);
        if (!text)
            abort();
        char *equals = strchr(text, '=');
        if (equals)
            *equals = 0;
        ok = equals ? set(conf, text, equals + 1, err)
                    : po_fail(err, PO_REFUSED, "kafka_setting", "a Kafka setting without '='");
        free(text);
    }
    return ok;
}

bool po_kafka_conf(const char *brokers, const char *client_id, const po_kafka_setting *table,
                   const char *extra, rd_kafka_conf_t **ret_conf, po_err *err) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_log_cb(conf, to_log);
    // A broker closing an idle connection is no news.
    bool ok = set(conf, "log.connection.close", "false", err) &&
              set(conf, "bootstrap.servers", brokers, err) &&
              set(conf, "client.id", client_id, err);
    for (; ok && table && table->name; table++)
        ok = set(conf, table->name, table->value, err);
    if (!ok || !set_extra(conf, extra ? extra : "", err)) {
        rd_kafka_conf_destroy(conf);
        return false;
    }
    *ret_conf = conf;
    return true;
}

bool po_kafka_open(rd_kafka_type_t type, rd_kafka_conf_t **conf, rd_kafka_t **ret_kafka,
                   po_err *err) {
    char why[256];
    rd_kafka_t *kafka = rd_kafka_new(type, *conf, why, sizeof why);
    bool refused = !kafka && rd_kafka_last_error() == RD_KAFKA_RESP_ERR__INVALID_ARG;
    if (!kafka)
        rd_kafka_conf_destroy(*conf);
    *conf = NULL;
    if (!kafka)
        return po_fail(err, refused ? PO_REFUSED : PO_RETRY, "kafka_open", "opening Kafka: %s",
                       why);
    *ret_kafka = kafka;
    return true;
}

bool po_kafka_fail(po_err *err, rd_kafka_resp_err_t code, const char *doing) {
    return po_fail(err, PO_RETRY, rd_kafka_err2name(code), "%s: %s", doing, rd_kafka_err2str(code));
}

// --- CloudEvents headers

static void add(rd_kafka_headers_t *headers, const char *name, po_str value) {
    if (rd_kafka_header_add(headers, name, -1, value.n ? value.p : "", (ssize_t)value.n))
        abort(); // only when memory is out
}

rd_kafka_headers_t *po_ce_headers(const po_ce *ce) {
    char id[PO_UUID_SIZE], time[PO_RFC3339_SIZE], sequence[24];
    po_uuid_text(ce->id, id);
    po_rfc3339(ce->time_us, time);
    snprintf(sequence, sizeof sequence, "%" PRId64, ce->sequence);
    rd_kafka_headers_t *headers = rd_kafka_headers_new(10);
    add(headers, "ce_specversion", po_s("1.0"));
    add(headers, "ce_id", po_s(id));
    add(headers, "ce_type", ce->type);
    add(headers, "ce_source", ce->source);
    add(headers, "ce_time", po_s(time));
    add(headers, "ce_subject", ce->subject);
    add(headers, "ce_sequence", po_s(sequence));
    add(headers, "content-type", po_s("application/avro"));
    if (ce->traceparent.n)
        add(headers, "traceparent", ce->traceparent);
    if (ce->tracestate.n)
        add(headers, "tracestate", ce->tracestate);
    return headers;
}

typedef enum header {
    SPECVERSION,
    ID,
    TYPE,
    SOURCE,
    TIME,
    SUBJECT,
    SEQUENCE,
    CONTENT_TYPE,
    REQUIRED,
    TRACEPARENT = REQUIRED,
    TRACESTATE,
    HEADERS,
} header;

static const char *const names[HEADERS] = {
    [SPECVERSION] = "ce_specversion",
    [ID] = "ce_id",
    [TYPE] = "ce_type",
    [SOURCE] = "ce_source",
    [TIME] = "ce_time",
    [SUBJECT] = "ce_subject",
    [SEQUENCE] = "ce_sequence",
    [CONTENT_TYPE] = "content-type",
    [TRACEPARENT] = "traceparent",
    [TRACESTATE] = "tracestate",
};

typedef struct seen {
    po_str value[HEADERS];
    unsigned count[HEADERS];
} seen;

static void collect(const rd_kafka_headers_t *headers, seen *s) {
    const char *name;
    const void *value;
    size_t n;
    for (size_t i = 0; !rd_kafka_header_get_all(headers, i, &name, &value, &n); i++)
        for (header h = 0; h < HEADERS; h++)
            if (!strcmp(name, names[h])) {
                s->value[h] = (po_str){value, value ? n : 0};
                s->count[h]++;
            }
}

static bool bad(po_err *err, header h, const char *problem) {
    return po_fail(err, PO_REFUSED, "headers", "header %s %s", names[h], problem);
}

static bool known_once(const seen *s, po_err *err) {
    for (header h = 0; h < REQUIRED; h++) {
        if (s->count[h] > 1)
            return bad(err, h, "is there more than once");
        if (s->value[h].n == 0)
            return bad(err, h, "is missing or empty");
    }
    return true;
}

// W3C Trace Context, version 00: "00-" 32 hex "-" 16 hex "-" 2 hex; ids of zeros say nothing.
static bool is_traceparent(po_str s) {
    static const char shape[] = "00-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
    if (s.n != sizeof shape - 1)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        bool hex = (s.p[i] >= '0' && s.p[i] <= '9') || (s.p[i] >= 'a' && s.p[i] <= 'f');
        if (shape[i] == 'x' ? !hex : s.p[i] != shape[i])
            return false;
    }
    return memcmp(s.p + 3, "00000000000000000000000000000000", 32) != 0 &&
           memcmp(s.p + 36, "0000000000000000", 16) != 0;
}

// A trace is for looking only: a bad one is dropped, as the recommendation asks, and never stops an
// event.
static void read_trace(const seen *s, po_ce *ce) {
    if (s->count[TRACEPARENT] != 1 || !is_traceparent(s->value[TRACEPARENT]))
        return;
    ce->traceparent = s->value[TRACEPARENT];
    if (s->count[TRACESTATE] == 1 && s->value[TRACESTATE].n <= 512)
        ce->tracestate = s->value[TRACESTATE];
}

bool po_ce_read(const rd_kafka_message_t *message, po_ce *ret_ce, po_err *err) {
    rd_kafka_headers_t *headers = NULL;
    if (rd_kafka_message_headers(message, &headers))
        return po_fail(err, PO_REFUSED, "headers", "a message without headers");
    seen s = {0};
    collect(headers, &s);
    if (!known_once(&s, err))
        return false;
    po_ce ce = {.type = s.value[TYPE], .source = s.value[SOURCE], .subject = s.value[SUBJECT]};
    if (!po_str_is(s.value[SPECVERSION], "1.0"))
        return bad(err, SPECVERSION, "is not 1.0");
    if (!po_str_is(s.value[CONTENT_TYPE], "application/avro"))
        return bad(err, CONTENT_TYPE, "is not application/avro");
    if (!po_uuid_parse(s.value[ID], &ce.id))
        return bad(err, ID, "is not a UUID");
    if (!po_is_id(ce.type, 255))
        return bad(err, TYPE, "is not an event type");
    if (!po_is_id(ce.source, 255))
        return bad(err, SOURCE, "is not a URI");
    if (!po_parse_rfc3339(s.value[TIME], &ce.time_us))
        return bad(err, TIME, "is not an RFC 3339 time");
    if (!po_str_eq(ce.subject, (po_str){message->key, message->key_len}))
        return bad(err, SUBJECT, "is not the message's key");
    if (!po_parse_i64(s.value[SEQUENCE], &ce.sequence) || ce.sequence < 0)
        return bad(err, SEQUENCE, "is not a number of 0 or more");
    read_trace(&s, &ce);
    *ret_ce = ce;
    return true;
}
