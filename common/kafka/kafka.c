// What librdkafka needs to be told once: its configuration (ours, then the operator's), where its
// log goes, and CloudEvents headers. A setting's value is never repeated in an error: it may be a
// password; nor is a name that librdkafka does not know, since it may be a piece of one.
// The operator's settings are a list of what may be set, not of what may not: a setting that a later
// librdkafka brings is closed until somebody has thought about it.
#include "kafka/kafka.h"
#include "base/clock.h"
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// The library says some things again with each try, for each partition. So many lines a second of
// each level; the rest is counted.
enum { LINES = 3 };

static void to_log(const rd_kafka_t *kafka, int severity, const char *facility, const char *text) {
    // librdkafka's "error" is a lost broker, with which it copes by itself.
    po_level level = severity <= 2   ? PO_ERROR
                     : severity <= 4 ? PO_WARN
                     : severity <= 6 ? PO_INFO
                                     : PO_DEBUG;
    static po_log_site sites[] = {
        [PO_DEBUG] = {.name = "librdkafka_debug", .per_second = LINES},
        [PO_INFO] = {.name = "librdkafka_info", .per_second = LINES},
        [PO_WARN] = {.name = "librdkafka_warn", .per_second = LINES},
        [PO_ERROR] = {.name = "librdkafka_error", .per_second = LINES},
    };
    if (!po_log_admit(&sites[level]))
        return;
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

// --- The operator's settings

// What the file may set; README.md says so too, and a test compares.
static const struct open_setting {
    const char *name;
    bool shown; // its value is no secret
} open_settings[] = {
    {"broker.address.family", true},
    {"broker.address.ttl", true},
    {"client.rack", true},
    {"connections.max.idle.ms", true},
    {"enable.ssl.certificate.verification", true},
    {"reconnect.backoff.max.ms", true},
    {"reconnect.backoff.ms", true},
    {"sasl.kerberos.keytab", true},
    {"sasl.kerberos.kinit.cmd", false},
    {"sasl.kerberos.min.time.before.relogin", true},
    {"sasl.kerberos.principal", true},
    {"sasl.kerberos.service.name", true},
    {"sasl.mechanism", true},
    {"sasl.mechanisms", true},
    {"sasl.oauthbearer.client.id", true},
    {"sasl.oauthbearer.client.secret", false},
    {"sasl.oauthbearer.config", false},
    {"sasl.oauthbearer.extensions", false},
    {"sasl.oauthbearer.method", true},
    {"sasl.oauthbearer.scope", true},
    {"sasl.oauthbearer.token.endpoint.url", false},
    {"sasl.password", false},
    {"sasl.username", true},
    {"security.protocol", true},
    {"socket.connection.setup.timeout.ms", true},
    {"socket.keepalive.enable", true},
    {"ssl.ca.location", true},
    {"ssl.certificate.location", true},
    {"ssl.cipher.suites", true},
    {"ssl.crl.location", true},
    {"ssl.curves.list", true},
    {"ssl.endpoint.identification.algorithm", true},
    {"ssl.key.location", true},
    {"ssl.key.password", false},
    {"ssl.keystore.location", true},
    {"ssl.keystore.password", false},
    {"ssl.sigalgs.list", true},
};
enum { N_OPEN = sizeof open_settings / sizeof *open_settings };

static int find_open(po_str name) {
    for (int i = 0; i < N_OPEN; i++)
        if (po_str_is(name, open_settings[i].name))
            return i;
    return -1;
}

typedef struct line {
    unsigned number; // from 1
    bool equals;
    po_str name, value;
} line;

static po_str cut(po_str *text, char at) {
    const char *end = text->n ? memchr(text->p, at, text->n) : NULL;
    size_t n = end ? (size_t)(end - text->p) : text->n;
    po_str piece = {text->p, n};
    n += end != NULL;
    *text = (po_str){text->p + n, text->n - n};
    return piece;
}

// The next "name=value"; false at the end. Empty lines and comments are passed over. Blanks before
// and after the name and before the value do not count; the rest of the line is the value as it
// stands.
static bool next_line(po_str *text, line *l) {
    while (text->n) {
        po_str rest = cut(text, '\n');
        l->number++;
        if (rest.n && rest.p[rest.n - 1] == '\r')
            rest.n--;
        while (rest.n && (*rest.p == ' ' || *rest.p == '\t'))
            rest = (po_str){rest.p + 1, rest.n - 1};
        if (rest.n == 0 || *rest.p == '#')
            continue;
        l->equals = memchr(rest.p, '=', rest.n);
        l->name = po_str_trim(cut(&rest, '='));
        while (rest.n && (*rest.p == ' ' || *rest.p == '\t'))
            rest = (po_str){rest.p + 1, rest.n - 1};
        l->value = rest;
        return true;
    }
    return false;
}

static char *heap_copy(po_str s) {
    char *text = strndup(s.n ? s.p : "", s.n);
    if (!text)
        abort();
    return text;
}

// Also a setting of topics, or one that takes no text.
static bool is_known(po_str name) {
    rd_kafka_conf_t *scratch = rd_kafka_conf_new();
    char *text = heap_copy(name), why[8];
    bool known = rd_kafka_conf_set(scratch, text, "", why, sizeof why) != RD_KAFKA_CONF_UNKNOWN;
    free(text);
    rd_kafka_conf_destroy(scratch);
    return known;
}

static bool refuse_line(po_err *err, const line *l, const char *what) {
    return po_fail(err, PO_REFUSED, "kafka_setting", "line %u of the Kafka settings %s", l->number,
                   what);
}

// librdkafka itself opens them only when it starts.
static bool names_file(const char *name, const char *value) {
    return strncmp(name, "ssl.", 4) == 0 && strstr(name, ".location") && *value &&
           strcmp(value, "probe") != 0; // of ssl.ca.location: where systems keep them
}

static bool set_line(rd_kafka_conf_t *conf, const line *l, bool seen[N_OPEN], po_err *err) {
    if (!l->equals)
        return refuse_line(err, l, "has no '='");
    int at = find_open(l->name);
    if (at < 0)
        return is_known(l->name)
                   ? po_fail(err, PO_REFUSED, "kafka_setting",
                             "Kafka setting %.*s is not the operator's: the program's promises "
                             "rest on what it says",
                             (int)l->name.n, l->name.p)
                   : refuse_line(err, l, "names no setting of librdkafka");
    if (seen[at])
        return po_fail(err, PO_REFUSED, "kafka_setting", "Kafka setting %s is there twice",
                       open_settings[at].name);
    seen[at] = true;
    char *value = heap_copy(l->value);
    bool ok = set(conf, open_settings[at].name, value, err) &&
              (!names_file(open_settings[at].name, value) || access(value, R_OK) == 0 ||
               refuse_line(err, l, "names a file that cannot be read"));
    explicit_bzero(value, strlen(value));
    free(value);
    return ok;
}

static bool set_file(rd_kafka_conf_t *conf, const char *file, po_err *err) {
    bool seen[N_OPEN] = {0};
    line l = {0};
    for (po_str text = po_s(file); next_line(&text, &l);)
        if (!set_line(conf, &l, seen, err))
            return false;
    return true;
}

bool po_kafka_show(const po_setting *setting, const char *text, po_buf *out) {
    if (strcmp(setting->name, "KAFKA_SETTINGS") != 0)
        return false;
    line l = {0};
    for (po_str rest = po_s(text); next_line(&rest, &l);) {
        int at = find_open(l.name);
        if (at < 0) // refused, so never in force
            continue;
        bool shown = open_settings[at].shown;
        po_buf_printf(out, "%s%s=%.*s", out->n ? "\n" : "", open_settings[at].name,
                      shown ? (int)l.value.n : 3, shown ? l.value.p : "***");
    }
    return true;
}

// --- The client

bool po_kafka_conf(const char *brokers, const char *client_id, const po_kafka_setting *table,
                   const char *file, rd_kafka_conf_t **ret_conf, po_err *err) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_log_cb(conf, to_log);
    // A broker closing an idle connection is no news.
    bool ok = set(conf, "log.connection.close", "false", err) &&
              set(conf, "bootstrap.servers", brokers, err) &&
              set(conf, "client.id", client_id, err);
    for (; ok && table && table->name; table++)
        ok = set(conf, table->name, table->value, err);
    if (!ok || !set_file(conf, file, err)) {
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

// --- The end

typedef struct ending {
    void (*end)(void *arg);
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ended, abandoned;
} ending;

static atomic_bool any_abandoned;

static void ending_free(ending *e) {
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->changed);
    free(e);
}

static void *run_ending(void *arg) {
    ending *e = arg;
    e->end(e->arg);
    pthread_mutex_lock(&e->lock);
    e->ended = true;
    bool mine = e->abandoned; // nobody waits any more
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->lock);
    if (mine)
        ending_free(e);
    return NULL;
}

bool po_kafka_within(int ms, void (*end)(void *arg), void *arg) {
    ending *e = calloc(1, sizeof *e);
    if (!e)
        abort();
    *e = (ending){.end = end, .arg = arg};
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->changed, &attr);
    pthread_condattr_destroy(&attr);
    int64_t until_ms = po_mono_ms() + ms;
    const struct timespec until = {.tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000};
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_ending, e) != 0)
        abort();
    pthread_mutex_lock(&e->lock);
    while (!e->ended && pthread_cond_timedwait(&e->changed, &e->lock, &until) == 0)
        ;
    bool ended = e->ended;
    e->abandoned = !ended;
    pthread_mutex_unlock(&e->lock);
    if (ended) {
        pthread_join(thread, NULL);
        ending_free(e);
        return true;
    }
    pthread_detach(thread);
    atomic_store(&any_abandoned, true);
    po_log(PO_WARN, "the Kafka library does not end: going on without it", PO_INT("waited_ms", ms));
    return false;
}

static void destroy(void *kafka) {
    rd_kafka_destroy(kafka);
}

bool po_kafka_destroy(rd_kafka_t **kafka, int ms) {
    rd_kafka_t *gone = *kafka;
    *kafka = NULL;
    return !gone || po_kafka_within(ms, destroy, gone);
}

int po_kafka_exit(int code) {
    if (!atomic_load(&any_abandoned))
        return code;
    fflush(NULL);
    _exit(code);
}

bool po_kafka_fail(po_err *err, rd_kafka_resp_err_t code, const char *doing) {
    return po_fail(err, PO_RETRY, rd_kafka_err2name(code), "%s: %s", doing, rd_kafka_err2str(code));
}

// The brokers' own list, without topics but those this client uses.
bool po_kafka_ask(rd_kafka_t *kafka, po_err *err) {
    enum { ANSWER_MS = 3000 };
    const struct rd_kafka_metadata *metadata = NULL;
    rd_kafka_resp_err_t code = rd_kafka_metadata(kafka, 0, NULL, &metadata, ANSWER_MS);
    if (code)
        return po_kafka_fail(err, code, "asking the brokers");
    rd_kafka_metadata_destroy(metadata);
    return true;
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
    if (!po_is_id(ce.type, PO_ID_MAX))
        return bad(err, TYPE, "is not an event type");
    if (!po_is_id(ce.source, PO_ID_MAX))
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
