// Verdicts by class, against librdkafka's own mock cluster.
#define _GNU_SOURCE // RTLD_NEXT
#include "sender.h"
#include "base/clock.h"

#include <dlfcn.h>
#include <librdkafka/rdkafka_mock.h>
#include <poll.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <cmocka.h>

enum { PRODUCE = 0, WAIT_MS = 20000 };

static atomic_int hanging; // so many destructions never return

// In place of the library's, which the sender calls.
void rd_kafka_destroy(rd_kafka_t *kafka) {
    static void (*real)(rd_kafka_t *);
    int left = atomic_load(&hanging);
    while (left > 0 && !atomic_compare_exchange_weak(&hanging, &left, left - 1))
        ;
    while (left > 0)
        pause();
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "rd_kafka_destroy");
    real(kafka);
}

typedef struct fixture {
    rd_kafka_t *host; // of the mock cluster
    rd_kafka_mock_cluster_t *mock;
    sender *sender;
    int wake_fd;
    int counts[3]; // by verdict
    char code[40]; // of the last that was not acknowledged
} fixture;

static void on_done(void *arg, void *record, verdict verdict, const po_err *err) {
    (void)record;
    fixture *f = arg;
    f->counts[verdict]++;
    if (verdict != SENDER_ACKED)
        memcpy(f->code, err->code, sizeof f->code);
}

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    char text[256];
    f->host = rd_kafka_new(RD_KAFKA_PRODUCER, rd_kafka_conf_new(), text, sizeof text);
    f->mock = rd_kafka_mock_cluster_new(f->host, 1);
    assert_int_equal(rd_kafka_mock_topic_create(f->mock, "steps", 3, 1), 0);
    f->wake_fd = eventfd(0, EFD_NONBLOCK);
    f->sender = sender_new(&(sender_options){.brokers = rd_kafka_mock_cluster_bootstraps(f->mock),
                                             .settings = "reconnect.backoff.ms=10",
                                             .client_id = "test",
                                             .wake_fd = f->wake_fd,
                                             .done = on_done,
                                             .arg = f});
    // The mock cluster does not answer for limits: as if they had been read.
    sender_topic(f->sender, po_s("steps"))->limit = 1048588;
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    sender_free(&f->sender);
    rd_kafka_mock_cluster_destroy(f->mock);
    rd_kafka_destroy(f->host);
    close(f->wake_fd);
    free(f);
    return 0;
}

static void prepare(fixture *f) {
    bool ready = false;
    po_err err = {0};
    for (int64_t until_ms = po_mono_ms() + WAIT_MS; !ready && po_mono_ms() < until_ms;)
        if (!sender_prepare(f->sender, &ready, &err))
            assert_int_equal(err.kind, PO_RETRY);
    assert_true(ready);
}

static bool send_one(fixture *f, bool alone, const char *key, size_t size, po_err *err) {
    rd_kafka_headers_t *headers = rd_kafka_headers_new(1);
    char *payload = size ? calloc(1, size) : NULL;
    return sender_send(f->sender, sender_topic(f->sender, po_s("steps")), alone, po_s(key), payload,
                       size, headers, NULL, err);
}

static void send_some(fixture *f, int n, bool alone) {
    for (int i = 0; i < n; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_true(send_one(f, alone, key, 100, NULL));
    }
}

// Waits as the loop does: by the eventfd. False when a producer is beyond repair.
static bool await(fixture *f, int verdicts) {
    bool ok = true;
    for (int64_t until_ms = po_mono_ms() + WAIT_MS; ok && po_mono_ms() < until_ms;) {
        ok = sender_poll(f->sender, NULL);
        if (f->counts[0] + f->counts[1] + f->counts[2] >= verdicts)
            break;
        struct pollfd fd = {f->wake_fd, POLLIN, 0};
        uint64_t woken;
        if (poll(&fd, 1, WAIT_MS) > 0)
            (void)!read(f->wake_fd, &woken, sizeof woken);
    }
    return ok;
}

static void test_records_and_tombstones_are_acknowledged(void **state) {
    fixture *f = *state;
    prepare(f);
    send_some(f, 50, false);
    send_some(f, 5, true);
    assert_true(send_one(f, false, "gone", 0, NULL)); // a tombstone
    assert_true(await(f, 56));
    assert_int_equal(f->counts[SENDER_ACKED], 56);
    assert_int_equal(sender_in_flight(f->sender), 0);
}

// FAULTS 57: a message for each partition, and one verdict, the worst of theirs.
static void test_a_tombstone_goes_to_every_partition(void **state) {
    fixture *f = *state;
    prepare(f);
    assert_true(send_one(f, false, "gone", 0, NULL));
    assert_int_equal(sender_in_flight(f->sender), 3);
    assert_true(await(f, 1));
    assert_int_equal(f->counts[SENDER_ACKED], 1);
    assert_int_equal(sender_in_flight(f->sender), 0);
    rd_kafka_mock_push_request_errors(f->mock, PRODUCE, 1, RD_KAFKA_RESP_ERR_INVALID_RECORD);
    assert_true(send_one(f, true, "gone", 0, NULL));
    assert_true(await(f, 2));
    assert_int_equal(f->counts[SENDER_REJECTED], 1);
    assert_string_equal(f->code, "INVALID_RECORD");
    assert_true(send_one(f, false, "gone", 0, NULL)); // in flight when the producers are dropped
    sender_reset(f->sender);
    assert_int_equal(sender_in_flight(f->sender), 0);
    prepare(f);
    assert_true(send_one(f, false, "gone", 0, NULL));
    assert_true(await(f, 3));
    assert_int_equal(f->counts[SENDER_ACKED], 2);
}

static void assert_class(fixture *f, rd_kafka_resp_err_t code, verdict verdict) {
    rd_kafka_mock_push_request_errors(f->mock, PRODUCE, 1, code);
    memset(f->counts, 0, sizeof f->counts);
    send_some(f, 1, false);
    (void)await(f, 1);
    assert_int_equal(f->counts[verdict], 1);
    assert_string_equal(f->code, rd_kafka_err2name(code));
}

static void test_what_blames_the_record_is_a_rejection(void **state) {
    fixture *f = *state;
    prepare(f);
    assert_class(f, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, SENDER_REJECTED);
    assert_class(f, RD_KAFKA_RESP_ERR_INVALID_RECORD, SENDER_REJECTED);
    memset(f->counts, 0, sizeof f->counts);
    send_some(f, 3, false); // the producer works on
    assert_true(await(f, 3));
    assert_int_equal(f->counts[SENDER_ACKED], 3);
}

// FAULTS 6: a lost ACL is no record's fault, nor is our clock.
static void test_everything_else_is_a_failure(void **state) {
    fixture *f = *state;
    static const rd_kafka_resp_err_t codes[] = {RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
                                                RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED,
                                                RD_KAFKA_RESP_ERR_POLICY_VIOLATION,
                                                RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        prepare(f);
        assert_class(f, codes[i], SENDER_FAILED);
        sender_reset(f->sender);
    }
}

static void test_what_passes_by_itself_is_no_verdict(void **state) {
    fixture *f = *state;
    prepare(f);
    rd_kafka_mock_push_request_errors(
        f->mock, PRODUCE, 3, RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT, RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS);
    send_some(f, 1, false);
    assert_true(await(f, 1));
    assert_int_equal(f->counts[SENDER_ACKED], 1);
}

// FAULTS 9: beyond repair, then a new producer.
static void test_a_fatal_error_needs_new_producers(void **state) {
    fixture *f = *state;
    prepare(f);
    send_some(f, 1, false);
    assert_true(await(f, 1));
    rd_kafka_test_fatal_error(sender_kafka(f->sender),
                              RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER, "desynchronized");
    po_err err = {0};
    assert_false(send_one(f, false, "k", 10, &err));
    assert_int_equal(err.kind, PO_RETRY);
    bool broken = false;
    for (int64_t until_ms = po_mono_ms() + WAIT_MS; !broken && po_mono_ms() < until_ms;
         poll(NULL, 0, 1))
        broken = !sender_poll(f->sender, &err);
    assert_true(broken);
    assert_string_equal(err.code, "OUT_OF_ORDER_SEQUENCE_NUMBER");
    sender_reset(f->sender);
    prepare(f);
    memset(f->counts, 0, sizeof f->counts);
    send_some(f, 3, false);
    assert_true(await(f, 3));
    assert_int_equal(f->counts[SENDER_ACKED], 3);
}

static void test_a_reset_leaves_no_verdict_behind(void **state) {
    fixture *f = *state;
    prepare(f);
    rd_kafka_mock_broker_set_down(f->mock, 1);
    send_some(f, 20, false);
    assert_int_equal(sender_in_flight(f->sender), 20);
    sender_reset(f->sender);
    assert_int_equal(sender_in_flight(f->sender), 0);
    assert_int_equal(f->counts[0] + f->counts[1] + f->counts[2], 0);
    rd_kafka_mock_broker_set_up(f->mock, 1);
    prepare(f);
    send_some(f, 20, false);
    assert_true(await(f, 20));
    assert_int_equal(f->counts[SENDER_ACKED], 20);
}

// FAULTS 41: a producer that cannot be destroyed does not stop what comes after it.
static void test_a_producer_without_end_is_left_behind(void **state) {
    fixture *f = *state;
    prepare(f);
    send_some(f, 3, false);
    atomic_store(&hanging, 1);
    sender_reset(f->sender);
    prepare(f);
    memset(f->counts, 0, sizeof f->counts);
    send_some(f, 3, false);
    assert_true(await(f, 3));
    assert_int_equal(f->counts[SENDER_ACKED], 3);
}

static void test_a_new_topic_waits_until_nothing_is_in_flight(void **state) {
    fixture *f = *state;
    bool ready;
    prepare(f);
    send_some(f, 1, false);
    sender_topic(f->sender, po_s("others"))->limit = 500000;
    assert_true(sender_prepare(f->sender, &ready, NULL));
    assert_false(ready);
    assert_true(await(f, 1));
    prepare(f);
    assert_string_equal(sender_topic(f->sender, po_s("others"))->subject, "others-value");
    assert_true(sender_wants_alone(sender_topic(f->sender, po_s("others")), 500000));
}

// A record for a partition without a leader is not answered: what is new must not wait for it for ever.
static void test_what_is_not_answered_does_not_hold_up_a_new_topic(void **state) {
    fixture *f = *state;
    bool ready = false, waits = true;
    po_err err = {0};
    prepare(f);
    send_some(f, 1, false);
    assert_true(await(f, 1));
    for (int32_t partition = 0; partition < 3; partition++)
        assert_int_equal(rd_kafka_mock_partition_set_leader(f->mock, "steps", partition, -1), 0);
    send_some(f, 3, false);
    sender_topic(f->sender, po_s("others"))->limit = 500000;
    for (int64_t until_ms = po_mono_ms() + WAIT_MS; waits && po_mono_ms() < until_ms;
         poll(NULL, 0, 10)) {
        (void)!sender_poll(f->sender, NULL);
        waits = sender_prepare(f->sender, &ready, &err);
        assert_false(ready);
    }
    assert_false(waits);
    assert_int_equal(err.kind, PO_RETRY);
    sender_reset(f->sender);
    prepare(f);
}

// FAULTS 51: a topic that takes little does not drive the others' large records out of their batches.
static void test_a_small_limit_is_one_topics_own(void **state) {
    fixture *f = *state;
    topic *steps = sender_topic(f->sender, po_s("steps"));
    topic *small = sender_topic(f->sender, po_s("small"));
    assert_int_equal(rd_kafka_mock_topic_create(f->mock, "small", 1, 1), 0);
    small->limit = 2000;
    prepare(f);
    assert_false(sender_wants_alone(steps, 900000));
    assert_false(sender_wants_alone(small, 1000));
    assert_true(sender_wants_alone(small, 1900));
    assert_true(send_one(f, false, "k", 900000, NULL));
    assert_true(sender_send(f->sender, small, false, po_s("k"), calloc(1, 900), 900,
                            rd_kafka_headers_new(1), NULL, NULL));
    assert_true(await(f, 2));
    assert_int_equal(f->counts[SENDER_ACKED], 2);
}

static size_t asked; // topics whose limits were asked for last

// In place of the library's, which the sender calls.
void rd_kafka_DescribeConfigs(rd_kafka_t *kafka, rd_kafka_ConfigResource_t **configs, size_t n,
                              const rd_kafka_AdminOptions_t *options, rd_kafka_queue_t *queue) {
    static void (*real)(rd_kafka_t *, rd_kafka_ConfigResource_t **, size_t,
                        const rd_kafka_AdminOptions_t *, rd_kafka_queue_t *);
    asked = n;
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "rd_kafka_DescribeConfigs");
    real(kafka, configs, n, options, queue);
}

// FAULTS 51: however many topics there are, the limit of each is asked for.
static void test_every_topic_is_asked_for(void **state) {
    fixture *f = *state;
    enum { MANY = 200 };
    bool ready;
    po_err err = {0};
    for (int i = 0; i < MANY; i++) {
        char name[32];
        snprintf(name, sizeof name, "topic-%d", i);
        (void)sender_topic(f->sender, po_s(name));
    }
    assert_false(sender_prepare(f->sender, &ready, &err)); // the mock cluster does not answer
    assert_int_equal(asked, MANY);
}

static void test_a_large_record_goes_alone(void **state) {
    fixture *f = *state;
    po_err err = {0};
    prepare(f);
    topic *steps = sender_topic(f->sender, po_s("steps"));
    assert_false(sender_wants_alone(steps, 1000));
    assert_true(sender_wants_alone(steps, 999900));
    assert_false(send_one(f, false, "k", 1100000, &err));
    assert_int_equal(err.kind, PO_REFUSED);
    assert_true(send_one(f, true, "k", 1100000, &err)); // the broker is the judge
    assert_true(await(f, 1));
    assert_int_equal(f->counts[SENDER_ACKED], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_tombstone_goes_to_every_partition, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_records_and_tombstones_are_acknowledged, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_what_blames_the_record_is_a_rejection, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_everything_else_is_a_failure, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_passes_by_itself_is_no_verdict, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_a_fatal_error_needs_new_producers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_reset_leaves_no_verdict_behind, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_producer_without_end_is_left_behind, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_a_new_topic_waits_until_nothing_is_in_flight, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_not_answered_does_not_hold_up_a_new_topic,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_small_limit_is_one_topics_own, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_every_topic_is_asked_for, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_large_record_goes_alone, set_up, tear_down),
    };
    return po_kafka_exit(cmocka_run_group_tests(tests, NULL, NULL)); // with one left behind
}
