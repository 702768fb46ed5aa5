// A producer's batch limit holds for all its topics, and must be below each one's max.message.bytes: else a full
// batch of good records would be rejected. So topics are put into classes by their limit, read from the cluster when
// producers are made; each class in use has a producer, and a topic with a small limit costs the others nothing. One
// more producer has no such limit: the broker judges each of its records by what the topic allows today.
// Codes: only those that blame the record are rejections. Everything else, known or not, is a failure: all that is
// unacknowledged is sent again by new producers. New ones for every failure, not only for fatal ones: that also
// forgets what librdkafka has concluded about topics and sequence numbers.
// Tombstones: compaction works within a partition, and Kafka moves no record when partitions are added. So the value
// that a tombstone must erase lies wherever its key has ever belonged, and all partitions get one (FAULTS 57).
#include "sender.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/queue.h>

enum {
    DEFAULT_LIMIT = 1000000, // when a topic's own may not be read, or it does not exist yet
    LEAST_LIMIT = 1000,      // librdkafka's
    OVERHEAD = 512,          // headers of batch and record
    ADMIN_TIMEOUT_MS = 3000,
    DESTROY_MS = 4000, // of all producers; left to themselves after that, within the lease
    DRAIN_MS = 5000,   // what is in flight has so long to be answered before producers are replaced
};

// Ways into Kafka: class n takes topics that allow DEFAULT_LIMIT >> n; the last one is alone.
enum { CLASSES = 11, ALONE = CLASSES, WAYS };

typedef struct tombstone { // one that is in flight
    LIST_ENTRY(tombstone) link;
    void *record;
    bool given_up; // nobody waits for the verdict
    int left;      // messages without one
    verdict worst; // of the others
    po_err err;    // of the worst
} tombstone;

struct sender {
    sender_options options;
    rd_kafka_t *producers[WAYS]; // by class as far as they are in use, and ALONE
    topic *topics;
    size_t in_flight; // messages
    bool ready;       // every class in use has its producer
    bool stale;       // a topic was named, or a limit has changed, since they were made
    int64_t stale_ms; // since when
    bool broken;      // by a fatal error
    po_err fault;
    LIST_HEAD(, tombstone) tombstones;
};

static const po_kafka_setting common_settings[] = {
    {"enable.idempotence", "true"},
    {"acks", "all"},
    {"partitioner", "murmur2_random"},
    {"message.timeout.ms", "0"},
    {"socket.nagle.disable", "true"},
    {"topic.metadata.propagation.max.ms", "5000"}, // an unknown topic alarms sooner than by default
    {"queue.buffering.max.messages", "200000"},    // our own bounds are tighter
    {"queue.buffering.max.kbytes", "131072"},
    {0},
};

// --- Verdicts

static bool blames_record(rd_kafka_resp_err_t code) {
    switch (code) {
    case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
    case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
    case RD_KAFKA_RESP_ERR_INVALID_RECORD:
    case RD_KAFKA_RESP_ERR_INVALID_MSG:
    case RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE:
        return true;
    default:
        return false;
    }
}

static void set_stale(sender *s) {
    if (!s->stale)
        s->stale_ms = po_mono_ms();
    s->stale = true;
}

static void forget_limits(sender *s) {
    for (topic *t = s->topics; t; t = t->next)
        t->limit = 0;
    set_stale(s);
}

static void tombstone_verdict(sender *s, tombstone *one, verdict verdict, const po_err *err) {
    if (verdict > one->worst) {
        one->worst = verdict;
        one->err = *err;
    }
    if (--one->left > 0)
        return;
    LIST_REMOVE(one, link);
    if (!one->given_up)
        s->options.done(s->options.arg, one->record, one->worst, &one->err);
    free(one);
}

static void on_delivery(rd_kafka_t *kafka, const rd_kafka_message_t *message, void *opaque) {
    sender *s = opaque;
    s->in_flight--;
    po_err err = {0};
    verdict verdict = SENDER_ACKED;
    if (message->err) {
        (void)po_kafka_fail(&err, message->err, "delivering");
        verdict = blames_record(message->err) ? SENDER_REJECTED : SENDER_FAILED;
        if (verdict == SENDER_REJECTED)
            err.kind = PO_REFUSED;
        if (message->err == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE && kafka != s->producers[ALONE])
            forget_limits(s); // a topic's limit has been lowered
    }
    if (message->len == 0) // a frame is never empty
        tombstone_verdict(s, message->_private, verdict, &err);
    else
        s->options.done(s->options.arg, message->_private, verdict, &err);
}

static void on_error(rd_kafka_t *kafka, int code, const char *reason, void *opaque) {
    (void)reason;
    sender *s = opaque;
    if (code != RD_KAFKA_RESP_ERR__FATAL || s->broken)
        return;
    char text[256];
    rd_kafka_resp_err_t fatal = rd_kafka_fatal_error(kafka, text, sizeof text);
    s->broken = true;
    po_fail(&s->fault, PO_RETRY, rd_kafka_err2name(fatal), "the producer is beyond repair: %s",
            text);
}

// --- The limits of topics

static void read_limit(topic *topic, const rd_kafka_ConfigResource_t *resource) {
    size_t n;
    const rd_kafka_ConfigEntry_t **entries = rd_kafka_ConfigResource_configs(resource, &n);
    for (size_t i = 0; i < n; i++) {
        const char *value = rd_kafka_ConfigEntry_value(entries[i]);
        if (strcmp(rd_kafka_ConfigEntry_name(entries[i]), "max.message.bytes") == 0 && value)
            (void)!po_parse_i64(po_s(value), &topic->limit);
    }
}

static bool read_limits(sender *s, rd_kafka_event_t *event, po_err *err) {
    if (!event)
        return po_fail(err, PO_RETRY, "_TIMED_OUT", "reading the limits of topics");
    rd_kafka_resp_err_t failed = rd_kafka_event_error(event);
    if (failed == RD_KAFKA_RESP_ERR__TIMED_OUT || failed == RD_KAFKA_RESP_ERR__TRANSPORT)
        return po_kafka_fail(err, failed, "reading the limits of topics");
    if (failed) { // as when we are not allowed to ask
        po_log(PO_WARN, "the limits of topics cannot be read",
               PO_TEXT("code", rd_kafka_err2name(failed)));
        return true;
    }
    const rd_kafka_DescribeConfigs_result_t *result = rd_kafka_event_DescribeConfigs_result(event);
    size_t n;
    const rd_kafka_ConfigResource_t **resources =
        rd_kafka_DescribeConfigs_result_resources(result, &n);
    for (size_t i = 0; i < n; i++) {
        topic *topic = sender_topic(s, po_s(rd_kafka_ConfigResource_name(resources[i])));
        rd_kafka_resp_err_t code = rd_kafka_ConfigResource_error(resources[i]);
        if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
            read_limit(topic, resources[i]);
        else
            po_log(PO_WARN, "the limit of a topic cannot be read", PO_TEXT("topic", topic->name),
                   PO_TEXT("code", rd_kafka_err2name(code)));
    }
    return true;
}

static bool ask_limits(sender *s, po_err *err) {
    size_t n = 0;
    for (topic *t = s->topics; t; t = t->next)
        n += t->limit == 0;
    if (n == 0)
        return true;
    PO_AUTO(po_free_auto) rd_kafka_ConfigResource_t **wanted = calloc(n, sizeof *wanted);
    if (!wanted)
        abort();
    n = 0;
    for (topic *t = s->topics; t; t = t->next)
        if (t->limit == 0)
            wanted[n++] = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, t->name);
    rd_kafka_t *kafka = s->producers[ALONE];
    rd_kafka_AdminOptions_t *options =
        rd_kafka_AdminOptions_new(kafka, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
    char text[128];
    rd_kafka_AdminOptions_set_request_timeout(options, ADMIN_TIMEOUT_MS, text, sizeof text);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(kafka);
    rd_kafka_DescribeConfigs(kafka, wanted, n, options, queue);
    rd_kafka_event_t *event = rd_kafka_queue_poll(queue, ADMIN_TIMEOUT_MS);
    bool ok = read_limits(s, event, err);
    if (event)
        rd_kafka_event_destroy(event);
    rd_kafka_queue_destroy(queue);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_ConfigResource_destroy_array(wanted, n);
    return ok;
}

// --- Producers

static bool open_producer(sender *s, int way, const po_kafka_setting *more, po_err *err) {
    rd_kafka_conf_t *conf = NULL;
    const sender_options *o = &s->options;
    if (!po_kafka_conf(o->brokers, o->client_id, common_settings, o->settings, &conf, err))
        return false;
    char text[256];
    for (; more->name; more++) {
        if (rd_kafka_conf_set(conf, more->name, more->value, text, sizeof text) == RD_KAFKA_CONF_OK)
            continue;
        rd_kafka_conf_destroy(conf);
        return po_fail(err, PO_BUG, "kafka_setting", "%s", text);
    }
    rd_kafka_conf_set_opaque(conf, s);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_conf_set_error_cb(conf, on_error);
    if (!po_kafka_open(RD_KAFKA_PRODUCER, &conf, &s->producers[way], err))
        return false;
    static const uint64_t one = 1;
    rd_kafka_queue_t *verdicts = rd_kafka_queue_get_main(s->producers[way]);
    rd_kafka_queue_io_event_enable(verdicts, o->wake_fd, &one, sizeof one);
    rd_kafka_queue_destroy(verdicts);
    return true;
}

typedef struct doomed {
    rd_kafka_t *all[WAYS];
    size_t n;
} doomed;

static void destroy_all(void *arg) {
    doomed *gone = arg;
    for (size_t i = 0; i < gone->n; i++)
        rd_kafka_destroy(gone->all[i]);
}

// Up to `end`, from 0.
static void close_producers(sender *s, int end) {
    doomed *gone = calloc(1, sizeof *gone);
    if (!gone)
        abort();
    s->ready = false;
    for (topic *t = s->topics; t; t = t->next)
        for (int i = 0; i < (end > ALONE ? 2 : 1); i++) {
            if (t->handles[i])
                rd_kafka_topic_destroy(t->handles[i]);
            t->handles[i] = NULL;
        }
    for (int way = 0; way < end; way++) {
        if (!s->producers[way])
            continue;
        // The wake-up is ours: it must not be rung by a producer that outlives us.
        rd_kafka_queue_t *verdicts = rd_kafka_queue_get_main(s->producers[way]);
        rd_kafka_queue_io_event_enable(verdicts, -1, NULL, 0);
        rd_kafka_queue_destroy(verdicts);
        gone->all[gone->n++] = s->producers[way];
        s->producers[way] = NULL;
    }
    if (gone->n == 0 || po_kafka_within(DESTROY_MS, destroy_all, gone))
        free(gone);
}

static bool open_alone(sender *s, po_err *err) {
    static const po_kafka_setting settings[] = {
        {"linger.ms", "0"}, {"batch.num.messages", "1"}, {"message.max.bytes", "8400000"}, {0}};
    _Static_assert(SENDER_MOST_BYTES <= 8400000, "the largest record fits");
    return open_producer(s, ALONE, settings, err);
}

static int64_t class_limit(int class) {
    int64_t limit = DEFAULT_LIMIT >> class;
    return limit > LEAST_LIMIT ? limit : LEAST_LIMIT;
}

static int class_of(const topic *t) {
    int class = 0;
    while (t->limit > 0 && class < CLASSES - 1 && class_limit(class) > t->limit)
        class ++;
    return class;
}

static bool open_together(sender *s, int class, po_err *err) {
    char limit[24];
    snprintf(limit, sizeof limit, "%lld", (long long)class_limit(class));
    const po_kafka_setting settings[] = {
        {"linger.ms", "1"}, {"batch.size", limit}, {"message.max.bytes", limit}, {0}};
    return open_producer(s, class, settings, err);
}

// Class 0 in any case, since a topic that is named later begins there.
static bool open_classes(sender *s, po_err *err) {
    if (!s->producers[0] && !open_together(s, 0, err))
        return false;
    for (topic *t = s->topics; t; t = t->next) {
        t->class = class_of(t);
        if (!s->producers[t->class] && !open_together(s, t->class, err))
            return false;
    }
    return true;
}

bool sender_prepare(sender *s, bool *ret_ready, po_err *err) {
    *ret_ready = s->ready && !s->stale;
    if (*ret_ready)
        return true;
    if (s->in_flight > 0) // one partition without a leader must not hold up all others
        return po_mono_ms() - s->stale_ms < DRAIN_MS ||
               po_fail(err, PO_RETRY, "_IN_FLIGHT", "%zu records are not answered", s->in_flight);
    close_producers(s, CLASSES);
    if (!s->producers[ALONE] && !open_alone(s, err))
        return false;
    if (!ask_limits(s, err) || !open_classes(s, err))
        return false;
    s->stale = false;
    s->ready = *ret_ready = true;
    return true;
}

void sender_reset(sender *s) {
    close_producers(s, WAYS);
    for (tombstone *one; (one = LIST_FIRST(&s->tombstones));) {
        LIST_REMOVE(one, link);
        free(one);
    }
    s->in_flight = 0;
    s->broken = false;
}

sender *sender_new(const sender_options *options) {
    sender *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->options = *options;
    LIST_INIT(&s->tombstones);
    return s;
}

void sender_free(sender **sender) {
    if (!*sender)
        return;
    sender_reset(*sender);
    for (topic *t = (*sender)->topics, *next; t; t = next) {
        next = t->next;
        free(t->name);
        free(t->subject);
        free(t);
    }
    free(*sender);
    *sender = NULL;
}

topic *sender_topic(sender *s, po_str name) {
    for (topic *t = s->topics; t; t = t->next)
        if (po_str_is(name, t->name))
            return t;
    po_buf subject = {0};
    po_buf_printf(&subject, "%.*s-value", (int)name.n, name.p);
    topic *t = calloc(1, sizeof *t);
    char *own_name = strndup(name.p, name.n);
    if (!t || !own_name)
        abort();
    *t = (topic){.next = s->topics, .name = own_name, .subject = subject.p};
    s->topics = t;
    set_stale(s);
    return t;
}

// --- Sending

bool sender_wants_alone(const topic *topic, size_t size) {
    return size + OVERHEAD > (size_t)class_limit(topic->class);
}

static bool take_failed(po_err *err, rd_kafka_resp_err_t code) {
    (void)po_kafka_fail(err, code, "sending");
    if (err && blames_record(code))
        err->kind = PO_REFUSED;
    return false;
}

// Takes over payload and headers when it succeeds.
static rd_kafka_resp_err_t produce(sender *s, int way, rd_kafka_topic_t *topic, int32_t partition,
                                   po_str key, void *payload, size_t size,
                                   rd_kafka_headers_t *headers, void *opaque) {
    rd_kafka_resp_err_t code =
        rd_kafka_producev(s->producers[way], RD_KAFKA_V_RKT(topic), RD_KAFKA_V_PARTITION(partition),
                          RD_KAFKA_V_KEY(key.p, key.n), RD_KAFKA_V_VALUE(payload, size),
                          RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_FREE), RD_KAFKA_V_HEADERS(headers),
                          RD_KAFKA_V_OPAQUE(opaque), RD_KAFKA_V_END);
    if (!code)
        s->in_flight++;
    return code;
}

// librdkafka itself hears of new partitions only after minutes. A row goes out after the one before it on its key was
// acknowledged, which a sender_poll told; so what that one met is known here.
static rd_kafka_resp_err_t count_partitions(sender *s, int way, topic *topic,
                                            rd_kafka_topic_t *handle) {
    const struct rd_kafka_metadata *found = NULL;
    if (topic->partitions > 0)
        return RD_KAFKA_RESP_ERR_NO_ERROR;
    rd_kafka_resp_err_t code =
        rd_kafka_metadata(s->producers[way], 0, handle, &found, ADMIN_TIMEOUT_MS);
    if (code)
        return code;
    code = found->topic_cnt == 1 ? found->topics[0].err : RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC;
    topic->partitions = code ? 0 : found->topics[0].partition_cnt;
    rd_kafka_metadata_destroy(found);
    return !code && topic->partitions < 1 ? RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC : code;
}

static rd_kafka_resp_err_t send_tombstone(sender *s, int way, topic *topic,
                                          rd_kafka_topic_t *handle, po_str key,
                                          const rd_kafka_headers_t *headers, void *record) {
    rd_kafka_resp_err_t code = count_partitions(s, way, topic, handle);
    if (code)
        return code;
    tombstone *one = calloc(1, sizeof *one);
    if (!one)
        abort();
    *one = (tombstone){.record = record, .worst = SENDER_ACKED};
    for (; !code && one->left < topic->partitions; one->left += !code) {
        rd_kafka_headers_t *copy = rd_kafka_headers_copy(headers);
        code = produce(s, way, handle, one->left, key, NULL, 0, copy, one);
        if (code)
            rd_kafka_headers_destroy(copy);
    }
    one->given_up =
        code !=
        RD_KAFKA_RESP_ERR_NO_ERROR; // not sent, for the caller; what is on its way does no harm
    if (one->left > 0)
        LIST_INSERT_HEAD(&s->tombstones, one, link);
    else
        free(one);
    return code;
}

bool sender_send(sender *s, topic *topic, bool alone, po_str key, void *payload, size_t size,
                 rd_kafka_headers_t *headers, void *record, po_err *err) {
    int way = alone ? ALONE : topic->class;
    rd_kafka_topic_t **handle = &topic->handles[alone];
    rd_kafka_resp_err_t code = RD_KAFKA_RESP_ERR_NO_ERROR;
    if (!*handle && !(*handle = rd_kafka_topic_new(s->producers[way], topic->name, NULL)))
        code = rd_kafka_last_error();
    if (!code && payload)
        code = produce(s, way, *handle, RD_KAFKA_PARTITION_UA, key, payload, size, headers, record);
    else if (!code)
        code = send_tombstone(s, way, topic, *handle, key, headers, record);
    if (code || !payload)
        rd_kafka_headers_destroy(headers);
    if (!code)
        return true;
    free(payload);
    return take_failed(err, code);
}

bool sender_poll(sender *s, po_err *err) {
    for (topic *t = s->topics; t; t = t->next)
        t->partitions = 0;
    for (int way = 0; way < WAYS; way++)
        if (s->producers[way])
            rd_kafka_poll(s->producers[way], 0);
    if (!s->broken)
        return true;
    if (err)
        *err = s->fault;
    return false;
}

size_t sender_in_flight(const sender *s) {
    return s->in_flight;
}

rd_kafka_t *sender_kafka(sender *s) {
    return s->producers[0];
}
