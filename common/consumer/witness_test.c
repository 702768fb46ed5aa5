// The witness against librdkafka's mock cluster: what it is told by a broker that answers, and that
// it is back in time from one that does not.
#include "consumer/witness.h"

#include "base/clock.h"
#include "life/life.h"

#include <librdkafka/rdkafka_mock.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>
#include <cmocka.h>

enum {
    TIMEOUT_MS = 1000,
    LATE_MS = 15000, // far above the time-out of a question, far below that of a socket
    MESSAGES = 5,
};
static const char *const topics[] = {"t", NULL};

static rd_kafka_t *producer;
static rd_kafka_mock_cluster_t *cluster;
static po_witness *witness;

static void hush(bool silent) {
    rd_kafka_mock_broker_set_rtt(cluster, 1, silent ? 600000 : 0);
}

// Of a record that is there, and of one behind the end, which the log's ends tell.
static bool ask(int64_t offset, po_verdict *ret_verdict) {
    po_err err = {0};
    po_question question = {.topic = "t", .mark = {.offset = offset, .time_us = PO_NO_TIME}};
    bool fine = po_witness_ask(witness, &question, 1, TIMEOUT_MS, &err);
    *ret_verdict = question.verdict;
    return fine;
}

static bool ask_each(void) {
    po_err err = {0};
    po_verdict verdict;
    int64_t n = 0;
    bool left_out = false;
    // Each is called, whatever the others say.
    int fine = ask(0, &verdict);
    fine += po_witness_since(witness, "t", 0, PO_NO_TIME, TIMEOUT_MS, &n, &err);
    fine += po_witness_since(witness, "t", 0, PO_SECOND_US, TIMEOUT_MS, &n, &err);
    fine += po_witness_lag(witness, topics, TIMEOUT_MS, &n, &err);
    fine += po_witness_left_out(witness, "witness-test", topics, TIMEOUT_MS, &left_out, &err);
    return fine > 0;
}

static void answers_are_the_logs(void **state) {
    (void)state;
    po_verdict verdict = PO_LOG_UNKNOWN;
    po_err err = {0};
    int64_t offset = -1;
    int64_t until_ms = po_mono_ms() + 60000;
    while (!ask(0, &verdict) && po_mono_ms() < until_ms)
        ;
    assert_int_equal(verdict, PO_LOG_SAME);
    assert_true(ask(MESSAGES, &verdict));
    assert_int_equal(verdict, PO_LOG_ANOTHER);
    assert_true(po_witness_since(witness, "t", 0, PO_NO_TIME, 60000, &offset, &err));
    assert_int_equal(offset, 0);
}

// It knows the leader, so it asks that one. librdkafka 2.0.2 has calls that wait for 60 s then.
static void a_silent_broker_is_not_waited_for(void **state) {
    (void)state;
    hush(true);
    int64_t began_ms = po_mono_ms();
    bool any = ask_each();
    int64_t took_ms = po_mono_ms() - began_ms;
    hush(false);
    assert_false(any);
    assert_true(took_ms < LATE_MS);
}

// Last, since a process stops once.
static void nothing_is_waited_for_once_stopping(void **state) {
    (void)state;
    po_err err = {0};
    int64_t n = 0;
    po_question question = {.topic = "t", .mark = {.offset = 0, .time_us = PO_NO_TIME}};
    po_stop();
    hush(true);
    int64_t began_ms = po_mono_ms();
    assert_false(po_witness_ask(witness, &question, 1, 2 * LATE_MS, &err));
    assert_false(po_witness_since(witness, "t", 0, PO_NO_TIME, 2 * LATE_MS, &n, &err));
    assert_false(po_witness_lag(witness, topics, 2 * LATE_MS, &n, &err));
    int64_t took_ms = po_mono_ms() - began_ms;
    hush(false);
    assert_true(took_ms < LATE_MS);
}

static void produce(void) {
    for (int i = 0; i < MESSAGES; i++) {
        po_ce ce = {.type = po_s("payonce.test"),
                    .source = po_s("/test"),
                    .subject = po_s("k"),
                    .sequence = i};
        assert_int_equal(rd_kafka_producev(producer, RD_KAFKA_V_TOPIC("t"), RD_KAFKA_V_PARTITION(0),
                                           RD_KAFKA_V_KEY("k", 1), RD_KAFKA_V_VALUE("v", 1),
                                           RD_KAFKA_V_HEADERS(po_ce_headers(&ce)),
                                           RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                                           RD_KAFKA_V_END),
                         RD_KAFKA_RESP_ERR_NO_ERROR);
    }
    assert_int_equal(rd_kafka_flush(producer, 60000), RD_KAFKA_RESP_ERR_NO_ERROR);
}

static int setup(void **state) {
    (void)state;
    char why[256];
    po_err err = {0};
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "test.mock.num.brokers", "1", why, sizeof why);
    producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof why);
    cluster = rd_kafka_handle_mock_cluster(producer);
    rd_kafka_mock_topic_create(cluster, "t", 1, 1);
    produce();
    po_kafka_setting table[32] = {{"group.id", "witness-test"}};
    for (size_t i = 0; po_witness_settings[i].name; i++)
        table[i + 1] = po_witness_settings[i];
    conf = NULL;
    assert_true(po_kafka_conf(rd_kafka_mock_cluster_bootstraps(cluster), "witness-test", table, "",
                              &conf, &err));
    assert_true(po_witness_open(&conf, &witness, &err));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    po_witness_close(&witness);
    rd_kafka_destroy(producer);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_logs),
        cmocka_unit_test(a_silent_broker_is_not_waited_for),
        cmocka_unit_test(nothing_is_waited_for_once_stopping),
    };
    po_log_init("witness_test", PO_ERROR);
    return po_kafka_exit(cmocka_run_group_tests(tests, setup, teardown));
}
