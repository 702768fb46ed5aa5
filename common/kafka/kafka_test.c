// Settings, the log, and CloudEvents headers read strictly. Messages are real ones of librdkafka:
// produced to a broker that does not exist and purged, which hands them back with key and headers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "kafka/kafka.h"
#include <cmocka.h>

typedef struct outcome {
    bool delivered, ok;
    po_ce ce; // its views do not outlive the message: compared inside the callback
    po_err err;
    const po_ce *expected;
} outcome;

static bool same(const po_ce *a, const po_ce *b) {
    return !memcmp(&a->id, &b->id, sizeof a->id) && po_str_eq(a->type, b->type) &&
           po_str_eq(a->source, b->source) && a->time_us == b->time_us &&
           po_str_eq(a->subject, b->subject) && a->sequence == b->sequence &&
           po_str_eq(a->traceparent, b->traceparent) && po_str_eq(a->tracestate, b->tracestate);
}

static void delivered(rd_kafka_t *kafka, const rd_kafka_message_t *message, void *opaque) {
    (void)kafka;
    outcome *o = opaque;
    o->delivered = true;
    o->ok = po_ce_read(message, &o->ce, &o->err);
    if (o->ok && o->expected)
        assert_true(same(&o->ce, o->expected));
}

static rd_kafka_t *producer(outcome *o) {
    static const po_kafka_setting table[] = {{"acks", "all"}, {"enable.idempotence", "true"}, {0}};
    rd_kafka_conf_t *conf = NULL;
    rd_kafka_t *kafka = NULL;
    po_err err = {0};
    assert_true(
        po_kafka_conf("127.0.0.1:1", "test", table, "reconnect.backoff.ms=1000\n", &conf, &err));
    rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    rd_kafka_conf_set_opaque(conf, o);
    assert_true(po_kafka_open(RD_KAFKA_PRODUCER, &conf, &kafka, &err));
    assert_null(conf);
    return kafka;
}

// Takes the headers; the tombstone has no body.
static void pass(rd_kafka_t *kafka, outcome *o, const char *key, rd_kafka_headers_t *headers) {
    const po_ce *expected = o->expected;
    *o = (outcome){.expected = expected};
    assert_int_equal(rd_kafka_producev(kafka, RD_KAFKA_V_TOPIC("t"),
                                       RD_KAFKA_V_KEY(key, key ? strlen(key) : 0),
                                       RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_END),
                     RD_KAFKA_RESP_ERR_NO_ERROR);
    rd_kafka_purge(kafka, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
    for (int i = 0; i < 500 && !o->delivered; i++)
        rd_kafka_poll(kafka, 20);
    assert_true(o->delivered);
}

static po_ce example(void) {
    po_ce ce = {.type = po_s("payonce.payment.qualified"),
                .source = po_s("/payonce/ingest"),
                .subject = po_s("order-1"),
                .sequence = 7,
                .traceparent = po_s("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
                .tracestate = po_s("a=1")};
    assert_true(po_parse_rfc3339(po_s("2026-01-31T12:00:00.123456Z"), &ce.time_us));
    assert_true(po_uuid_parse(po_s("019a0000-0000-7000-8000-000000000001"), &ce.id));
    return ce;
}

static void test_round_trip(void **state) {
    (void)state;
    po_ce ce = example();
    outcome o = {.expected = &ce};
    rd_kafka_t *kafka = producer(&o);
    pass(kafka, &o, "order-1", po_ce_headers(&ce));
    assert_true(o.ok);
    ce.traceparent = ce.tracestate = (po_str){0};
    pass(kafka, &o, "order-1", po_ce_headers(&ce));
    assert_true(o.ok);
    rd_kafka_destroy(kafka);
}

// Each header with what is wrong about it; NULL: left out.
static void test_strict(void **state) {
    (void)state;
    static const struct {
        const char *name, *value;
    } cases[] = {
        {"ce_specversion", NULL},
        {"ce_specversion", "0.3"},
        {"ce_specversion", ""},
        {"ce_id", NULL},
        {"ce_id", "019a0000"},
        {"ce_id", ""},
        {"ce_type", NULL},
        {"ce_type", "two words"},
        {"ce_source", NULL},
        {"ce_source", "\n"},
        {"ce_time", NULL},
        {"ce_time", "yesterday"},
        {"ce_subject", NULL},
        {"ce_subject", "order-2"},
        {"ce_sequence", NULL},
        {"ce_sequence", "-1"},
        {"ce_sequence", "07"},
        {"ce_sequence", "7 "},
        {"ce_sequence", "9223372036854775808"},
        {"content-type", NULL},
        {"content-type", "application/json"},
    };
    outcome o = {0};
    rd_kafka_t *kafka = producer(&o);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        po_ce ce = example();
        rd_kafka_headers_t *headers = po_ce_headers(&ce);
        assert_int_equal(rd_kafka_header_remove(headers, cases[i].name),
                         RD_KAFKA_RESP_ERR_NO_ERROR);
        if (cases[i].value)
            rd_kafka_header_add(headers, cases[i].name, -1, cases[i].value, -1);
        pass(kafka, &o, "order-1", headers);
        if (o.ok)
            fail_msg("%s: %s was taken", cases[i].name, cases[i].value);
        assert_int_equal(o.err.kind, PO_REFUSED);
        assert_string_equal(o.err.code, "headers");
        assert_non_null(strstr(o.err.text, cases[i].name));
    }
    rd_kafka_destroy(kafka);
}

static void test_twice_and_none(void **state) {
    (void)state;
    outcome o = {0};
    rd_kafka_t *kafka = producer(&o);
    po_ce ce = example();
    rd_kafka_headers_t *headers = po_ce_headers(&ce);
    rd_kafka_header_add(headers, "ce_id", -1, "019a0000-0000-7000-8000-000000000001", -1);
    pass(kafka, &o, "order-1", headers);
    assert_false(o.ok);
    pass(kafka, &o, NULL, po_ce_headers(&ce)); // no key
    assert_false(o.ok);
    pass(kafka, &o, "order-1", rd_kafka_headers_new(1));
    assert_false(o.ok);
    headers = po_ce_headers(&ce);
    rd_kafka_header_remove(headers, "ce_type");
    rd_kafka_header_add(headers, "ce_type", -1, NULL, 0); // a null value
    pass(kafka, &o, "order-1", headers);
    assert_false(o.ok);
    headers = po_ce_headers(&ce);
    rd_kafka_header_add(headers, "someone-elses", -1, "x", -1);
    pass(kafka, &o, "order-1", headers);
    assert_true(o.ok);
    rd_kafka_destroy(kafka);
}

// A bad trace never stops an event.
static void test_trace_is_dropped(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "",
        "x",
        "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
    };
    outcome o = {0};
    rd_kafka_t *kafka = producer(&o);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        po_ce ce = example();
        ce.traceparent = po_s(wrong[i]);
        pass(kafka, &o, "order-1", po_ce_headers(&ce));
        assert_true(o.ok);
        assert_int_equal(o.ce.traceparent.n, 0);
        assert_int_equal(o.ce.tracestate.n, 0);
    }
    rd_kafka_destroy(kafka);
}

static void refused(const po_kafka_setting *table, const char *extra, const char *words) {
    rd_kafka_conf_t *conf = NULL;
    po_err err = {0};
    assert_false(po_kafka_conf("127.0.0.1:1", "test", table, extra, &conf, &err));
    assert_null(conf);
    assert_int_equal(err.kind, PO_REFUSED);
    if (!strstr(err.text, words))
        fail_msg("%s: %s", words, err.text);
    assert_null(strstr(err.text, "hunter2"));
}

static void test_settings(void **state) {
    (void)state;
    static const po_kafka_setting unknown[] = {{"no.such", "1"}, {0}};
    refused(unknown, "", "no.such is not known");
    refused(NULL, "security.protocol=hunter2", "security.protocol has a bad value");
    refused(NULL, "# hunter2=\n\nhunter2", "line 3 of the Kafka settings has no '='");
    refused(NULL, "hunter2=1", "line 1 of the Kafka settings names no setting");
    refused(NULL, "=hunter2", "names no setting");
    refused(NULL, "sasl.password=hunter2\nsasl.password=hunter2", "sasl.password is there twice");
    rd_kafka_conf_t *conf = NULL;
    po_err err = {0};
    static const po_kafka_setting contradiction[] = {
        {"enable.idempotence", "true"}, {"acks", "1"}, {0}};
    assert_true(po_kafka_conf("b:1", "me", contradiction, "", &conf, &err));
    rd_kafka_t *kafka = NULL;
    assert_false(po_kafka_open(RD_KAFKA_PRODUCER, &conf, &kafka, &err));
    assert_int_equal(err.kind, PO_REFUSED);
    assert_null(conf);
}

// FAULTS 60: a password may hold whatever a line can hold.
static void test_any_value_can_be_written(void **state) {
    (void)state;
    static const char file[] = "  # of the operator\n"
                               "security.protocol = SASL_SSL\r\n"
                               "\tsasl.username=me\n"
                               "sasl.password=a=b,c#d\\e f ";
    rd_kafka_conf_t *conf = NULL;
    po_err err = {0};
    assert_true(po_kafka_conf("b:1", "me", NULL, file, &conf, &err));
    static const char *const wanted[][2] = {{"security.protocol", "sasl_ssl"},
                                            {"sasl.username", "me"},
                                            {"sasl.password", "a=b,c#d\\e f "}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        char value[64];
        size_t size = sizeof value;
        assert_int_equal(rd_kafka_conf_get(conf, wanted[i][0], value, &size), RD_KAFKA_CONF_OK);
        assert_string_equal(value, wanted[i][1]);
    }
    rd_kafka_conf_destroy(conf);
}

// FAULTS 60: what is printed hides every value that is not known to be harmless.
static void test_values_are_hidden_when_shown(void **state) {
    (void)state;
    static const po_setting setting = {"KAFKA_SETTINGS", PO_SET_SECRET, "", 0, 0, ""};
    static const po_setting other = {"ADMIN_TOKEN", PO_SET_SECRET, "", 0, 0, ""};
    po_buf out = {0};
    assert_false(po_kafka_show(&other, "hunter2", &out));
    assert_true(
        po_kafka_show(&setting, "sasl.username=me\n#hunter2\nsasl.password=hunter2\nx=y", &out));
    assert_string_equal(out.p, "sasl.username=me\nsasl.password=***");
    po_buf_done(&out);
}

// FAULTS 61: what a program's promises rest on, whether it sets it or leaves the default.
static void test_promises_are_not_open(void **state) {
    (void)state;
    static const char *const names[] = {
        "bootstrap.servers",
        "metadata.broker.list",
        "client.id",
        "group.id",
        "group.instance.id",
        "enable.auto.commit",
        "auto.commit.interval.ms",
        "enable.auto.offset.store",
        "auto.offset.reset",
        "isolation.level",
        "session.timeout.ms",
        "max.poll.interval.ms",
        "heartbeat.interval.ms",
        "check.crcs",
        "enable.idempotence",
        "acks",
        "request.required.acks",
        "max.in.flight",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "partitioner",
        "plugin.library.paths",
        "opaque",
        "log_cb",
        "allow.auto.create.topics",
        "partition.assignment.strategy",
        "message.max.bytes",
        "retries",
        "transactional.id",
        "enable.sasl.oauthbearer.unsecure.jwt",
        "ssl.engine.location",
        "max.in.flight.requests.per.connection",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char line[128];
        snprintf(line, sizeof line, "%s=1", names[i]);
        refused(NULL, line, names[i]);
    }
}

static bool readme_lists(const char *name) {
    static char text[8192];
    char quoted[128];
    FILE *file = fopen(PO_SOURCE_DIR "/common/kafka/README.md", "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    char *table = strstr(text, "|---|"), *end = strstr(table, "\n\n");
    *end = 0;
    snprintf(quoted, sizeof quoted, "`%s`", name);
    return strstr(table, quoted) != NULL;
}

// Every setting that librdkafka has is open if and only if README.md says so.
static void test_readme_lists_what_is_open(void **state) {
    (void)state;
    static const po_setting setting = {"KAFKA_SETTINGS", PO_SET_SECRET, "", 0, 0, ""};
    rd_kafka_conf_t *all = rd_kafka_conf_new();
    size_t n = 0, open = 0;
    const char **dump = rd_kafka_conf_dump(all, &n);
    for (size_t i = 0; i + 1 < n; i += 2) {
        char line[128];
        po_buf shown = {0};
        snprintf(line, sizeof line, "%s=1", dump[i]);
        assert_true(po_kafka_show(&setting, line, &shown));
        if (readme_lists(dump[i]) != (shown.n > 0))
            fail_msg("%s", dump[i]);
        open += shown.n > 0;
        po_buf_done(&shown);
    }
    assert_true(open > 10 && n > 100);
    rd_kafka_conf_dump_free(dump, n);
    rd_kafka_conf_destroy(all);
}

static void test_fail(void **state) {
    (void)state;
    po_err err = {0};
    assert_false(po_kafka_fail(&err, RD_KAFKA_RESP_ERR__TRANSPORT, "polling"));
    assert_int_equal(err.kind, PO_RETRY);
    assert_string_equal(err.code, "_TRANSPORT");
    assert_non_null(strstr(err.text, "polling: "));
}

static void for_ever(void *arg) {
    (void)arg;
    for (;;)
        pause();
}

static void count(void *arg) {
    ++*(int *)arg;
}

// FAULTS 41: what a library never ends is given up, and the process leaves with its code all the same.
static void test_an_end_without_end_is_given_up(void **state) {
    (void)state;
    int counted = 0;
    assert_true(po_kafka_within(600000, count, &counted));
    assert_int_equal(counted, 1);
    assert_int_equal(po_kafka_exit(7), 7); // nothing was given up: the usual way out
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        bool ended = po_kafka_within(100, for_ever, NULL);
        (void)po_kafka_exit(ended ? 0 : 7);
        for_ever(NULL);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

// What librdkafka has to say while a client lives shortly, and how long that was.
static void hear(char *ret_text, size_t size, int64_t *ret_ms) {
    char path[] = "/tmp/payonce-kafka-log-XXXXXX";
    int file = mkstemp(path), before = dup(STDOUT_FILENO);
    assert_true(file >= 0 && before >= 0);
    fflush(stdout);
    po_log_init("kafka_test", PO_DEBUG);
    dup2(file, STDOUT_FILENO);
    rd_kafka_conf_t *conf = NULL;
    rd_kafka_t *kafka = NULL;
    po_err err = {0};
    const po_kafka_setting table[] = {
        {"topic.metadata.refresh.interval.ms", "100"}, {"debug", "all"}, {0}};
    *ret_ms = po_mono_ms();
    bool ok = po_kafka_conf("127.0.0.1:1", "log-test", table, "", &conf, &err) &&
              po_kafka_open(RD_KAFKA_CONSUMER, &conf, &kafka, &err);
    if (ok)
        rd_kafka_destroy(kafka);
    *ret_ms = po_mono_ms() - *ret_ms;
    dup2(before, STDOUT_FILENO);
    po_log_init("kafka_test", PO_ERROR);
    close(before);
    ssize_t n = pread(file, ret_text, size - 1, 0);
    close(file);
    unlink(path);
    assert_true(ok);
    assert_true(n >= 0);
    ret_text[n] = 0;
}

// It comes out as our lines, a few a second: without the bound these are dozens.
static void test_log(void **state) {
    (void)state;
    static char text[1 << 20];
    int64_t took_ms;
    hear(text, sizeof text, &took_ms);
    assert_non_null(strstr(text, "\"msg\":\"librdkafka\""));
    assert_non_null(strstr(text, "log-test"));
    int64_t lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    assert_in_range(lines, 1, 3 * (took_ms / 1000 + 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_strict),
        cmocka_unit_test(test_twice_and_none),
        cmocka_unit_test(test_trace_is_dropped),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_any_value_can_be_written),
        cmocka_unit_test(test_values_are_hidden_when_shown),
        cmocka_unit_test(test_promises_are_not_open),
        cmocka_unit_test(test_readme_lists_what_is_open),
        cmocka_unit_test(test_fail),
        cmocka_unit_test(test_an_end_without_end_is_given_up),
        cmocka_unit_test(test_log),
    };
    po_log_init("kafka_test", PO_ERROR); // the broker is never there

    return cmocka_run_group_tests(tests, NULL, NULL);
}
