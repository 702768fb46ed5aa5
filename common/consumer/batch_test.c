// The pure parts of a batch and of the retention check, and what an event is called whose session is gone.
#include "../../tests/support/pgtest.h"
#include "consumer/batch.h"
#include "consumer/meter.h"
#include "consumer/retention.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static po_uuid uuid(uint8_t last) {
    po_uuid id = {{0}};
    id.b[15] = last;
    return id;
}

static void folds_to_first_occurrences(void **state) {
    (void)state;
    const po_uuid ids[] = {uuid(9), uuid(3), uuid(9), uuid(1), uuid(3), uuid(3)};
    po_uuid got[6];
    size_t first[6];
    assert_int_equal(po_fold(ids, 6, got, first), 3);
    static const uint8_t want[] = {1, 3, 9};
    static const size_t want_first[] = {3, 1, 0};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(got[i].b[15], want[i]);
        assert_int_equal(first[i], want_first[i]);
    }
    assert_int_equal(po_fold(ids, 0, got, first), 0);
    assert_int_equal(po_fold(ids, 1, got, first), 1);
    assert_int_equal(first[0], 0);
}

static bool handler(po_consumer_tx *tx, const po_delivery *delivery, po_err *err) {
    (void)tx, (void)delivery, (void)err;
    return true;
}

static void finds_the_first_route(void **state) {
    (void)state;
    static const po_consumer_route routes[] = {
        {"payments.v1", "payment.qualified", handler},
        {"payments.v1", "payment.pending", NULL},
        {"payments.v1", "*", handler},
        {"contacts.v1", "contact.set", handler},
        {0},
    };
    static const struct {
        const char *topic, *type;
        int want; // -1: none
    } rows[] = {
        {"payments.v1", "payonce.payment.qualified", 0},
        {"payments.v1", "payonce.payment.pending", 1},
        {"payments.v1", "payonce.payment.other", 2},
        {"payments.v1", "payment.qualified", -1},
        {"payments.v1", "payonce", -1},
        {"payments.v1", "", -1},
        {"contacts.v1", "payonce.contact.set", 3},
        {"contacts.v1", "payonce.contact.erased", -1},
        {"other", "payonce.payment.qualified", -1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const po_consumer_route *got =
            po_route_find(routes, po_s(rows[i].topic), po_s(rows[i].type));
        assert_ptr_equal(got, rows[i].want < 0 ? NULL : &routes[rows[i].want]);
    }
}

static void says_the_position(void **state) {
    (void)state;
    po_arena *arena = po_arena_new();
    po_payment_event event = {.state = po_s("paid"),
                              .unit = {"BTC", 11},
                              .due = 1000,
                              .received = 1200,
                              .refunded = 50,
                              .qualification = 2,
                              .customer_id = po_s("c-7"),
                              .sequence = 9};
    po_str text = po_position_text(arena, &event);
    assert_true(po_str_is(text, "paid BTC/11 due 1000 received 1200 refunded 50 q2 customer c-7"));
    event.sequence = 10; // no part of it, and no id is
    event.event_id = uuid(4);
    assert_true(po_str_eq(po_position_text(arena, &event), text));
    po_arena_free(&arena);
}

static void the_window_covers_the_topic(void **state) {
    (void)state;
    static const int64_t day = 24 * 3600 * 1000;
    static const struct {
        const char *policy, *retention_ms, *segment_ms;
        int64_t window_days;
        bool want;
        po_kind kind;
    } rows[] = {
        // FAULTS 51: a record lives up to retention.ms and segment.ms.
        {"delete", "604800000", "86400000", 9, true, 0},
        {"delete", "604800001", "86400000", 9, false, PO_REFUSED},
        {"delete", "604800000", "86400001", 9, false, PO_REFUSED},
        {"delete", "604800000", "86400000", 8, false, PO_REFUSED},
        {"delete", "604800000", NULL, 14, false, PO_REFUSED}, // a segment's default is a week
        {"delete", "604800000", NULL, 15, true, 0},
        {"delete", "604800000", "9223372036854775807", 3650, false, PO_REFUSED},
        {"compact", "604800000", NULL, 1, true, 0},
        {"compact,delete", "604800000", "86400000", 7, false, PO_REFUSED},
        {"delete", "-1", "1", 3650, false, PO_REFUSED}, // kept for ever: no window covers it
        {NULL, NULL, NULL, 15, true, 0},
        {NULL, NULL, NULL, 14, false, PO_REFUSED},
        {"delete", "soon", NULL, 15, false, PO_RETRY},
        {"delete", NULL, "soon", 15, false, PO_RETRY},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        po_err err = {0};
        assert_int_equal(po_retention_fits("t", rows[i].policy, rows[i].retention_ms,
                                           rows[i].segment_ms, rows[i].window_days * day, &err),
                         rows[i].want);
        assert_int_equal(err.kind, rows[i].kind);
    }
}

// A message of the consumer's topic without headers: refused before any database is asked. librdkafka makes
// messages, no one else: this is one that it could not deliver.
static void on_undelivered(rd_kafka_t *kafka, const rd_kafka_message_t *message, void *opaque) {
    (void)kafka;
    rd_kafka_message_t *messages[] = {(rd_kafka_message_t *)(uintptr_t)message};
    po_err err = {0};
    assert_false(po_batch_run(opaque, messages, 1, &err));
    assert_int_equal(err.kind, PO_REFUSED);
    assert_string_equal(err.code, "headers");
}

static void run_without_headers(po_batch *batch) {
    char why[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "bootstrap.servers", "127.0.0.1:9", why, sizeof why);
    rd_kafka_conf_set(conf, "message.timeout.ms", "1", why, sizeof why);
    rd_kafka_conf_set(conf, "log_level", "0", why, sizeof why);
    rd_kafka_conf_set_dr_msg_cb(conf, on_undelivered);
    rd_kafka_conf_set_opaque(conf, batch);
    rd_kafka_t *kafka = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof why);
    assert_int_equal(rd_kafka_producev(kafka, RD_KAFKA_V_TOPIC("payments.v1"),
                                       RD_KAFKA_V_VALUE((void *)(uintptr_t) "x", 1),
                                       RD_KAFKA_V_END),
                     RD_KAFKA_RESP_ERR_NO_ERROR);
    assert_int_equal(rd_kafka_flush(kafka, 20000), RD_KAFKA_RESP_ERR_NO_ERROR);
    rd_kafka_destroy(kafka);
}

static void pg_exec(const pgtest *cluster, const char *sql) {
    PGconn *conn = PQconnectdb(cluster->dsn);
    PGresult *res = PQexec(conn, sql);
    assert_true(PQresultStatus(res) == PGRES_COMMAND_OK || PQresultStatus(res) == PGRES_TUPLES_OK);
    PQclear(res);
    PQfinish(conn);
}

static int count(const pgtest *cluster, const char *sql) {
    PGconn *conn = PQconnectdb(cluster->dsn);
    PGresult *res = PQexec(conn, sql);
    assert_int_equal(PQresultStatus(res), PGRES_TUPLES_OK);
    int n = atoi(PQgetvalue(res, 0, 0));
    PQclear(res);
    PQfinish(conn);
    return n;
}

// By when it was received, whatever time its id tells.
static void the_inbox_forgets_what_is_old_alone(void **state) {
    const pgtest *cluster = *state;
    static const po_consumer consumer = {.name = "forgets"};
    const po_pg_options pg = {.dsn = cluster->dsn, .application_name = "batch_test"};
    po_batch *batch = NULL;
    po_err err = {0};
    bool more = true;
    pg_exec(cluster,
            "CREATE SCHEMA forgets CREATE TABLE inbox (event_id uuid PRIMARY KEY, received_at "
            "timestamptz NOT NULL DEFAULT now());"
            "INSERT INTO forgets.inbox SELECT gen_random_uuid(), now() - i * interval '1 min' "
            "FROM generate_series(0, 5009) AS i");
    assert_true(po_batch_open(&consumer, "http://127.0.0.1:9", "", &pg, &batch, &err));
    // FAULTS 51: another member is at some of them, which is no reason to wait, nor to stop.
    PGconn *other = PQconnectdb(cluster->dsn);
    PQclear(PQexec(other, "BEGIN"));
    PQclear(PQexec(other, "SELECT FROM forgets.inbox ORDER BY received_at LIMIT 10 FOR UPDATE"));
    for (int chunk = 0; chunk < 2; chunk++) {
        assert_true(po_batch_prune(batch, 330000, &more, &err)); // 5.5 min
        assert_true(more);
    }
    assert_true(po_batch_prune(batch, 330000, &more, &err));
    assert_false(more);
    assert_int_equal(count(cluster, "SELECT count(*) FROM forgets.inbox"), 16);
    PQfinish(other);
    do {
        assert_true(po_batch_prune(batch, 330000, &more, &err));
    } while (more || count(cluster, "SELECT count(*) FROM forgets.inbox") > 6);
    assert_int_equal(count(cluster, "SELECT count(*) FROM forgets.inbox"), 6);
    assert_int_equal(
        count(cluster,
              "SELECT count(*) FROM forgets.inbox WHERE received_at < now() - interval '6 min'"),
        0);
    po_batch_close(&batch);
}

// FAULTS 64: a session that ended while nothing was to do is replaced before it is used. Nor is it
// waited for when the event itself is refused: that would be to wait for ever, and all partitions
// with it.
static void a_lost_session_costs_no_batch(void **state) {
    const pgtest *cluster = *state;
    static const po_consumer_route routes[] = {{PO_TOPIC_PAYMENTS, "*", handler}, {0}};
    static const po_consumer consumer = {.name = "visits", .routes = routes};
    const po_pg_options pg = {.dsn = cluster->dsn, .application_name = "batch_test"};
    po_batch *batch = NULL;
    po_err err = {0};
    bool more = false;
    pg_exec(cluster, "CREATE SCHEMA visits CREATE TABLE inbox (event_id uuid PRIMARY KEY,"
                     " received_at timestamptz NOT NULL DEFAULT now())");
    assert_true(po_batch_open(&consumer, "http://127.0.0.1:9", "", &pg, &batch, &err));
    assert_true(po_batch_prune(batch, 1000, &more, &err));
    pg_exec(cluster, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                     " WHERE application_name = 'batch_test'");
    assert_true(po_batch_prune(batch, 1000, &more, &err));
    pg_exec(cluster, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                     " WHERE application_name = 'batch_test'");
    run_without_headers(batch);
    po_batch_close(&batch);
}

static int setup(void **state) {
    static pgtest cluster;
    po_log_init("batch_test", PO_ERROR);
    po_meter_declare();
    pgtest_start(&cluster);
    *state = &cluster;
    return 0;
}

static int teardown(void **state) {
    pgtest_stop(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folds_to_first_occurrences),
        cmocka_unit_test(finds_the_first_route),
        cmocka_unit_test(says_the_position),
        cmocka_unit_test(the_window_covers_the_topic),
        cmocka_unit_test(the_inbox_forgets_what_is_old_alone),
        cmocka_unit_test(a_lost_session_costs_no_batch),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
