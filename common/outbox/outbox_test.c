// The canonical table with what it must refuse, the writer's batch, and the ring, against a private
// cluster.
#include "../../tests/support/pgtest.h"
#include "outbox/outbox.h"
#include <poll.h>
#include <pthread.h>

static pgtest cluster;
static const po_outbox outbox = PO_OUTBOX("owner");
static const uint8_t fp[32] = {1, 2, 3};

static po_res *query(po_pg *pg, const char *sql) {
    po_res *res = NULL;
    po_err err = {0};
    if (!po_pg_run(pg, &(po_stmt){sql, sql}, NULL, &res, &err))
        fail_msg("%s", err.text);
    return res;
}

// outbox.sql stands beside this file.
static void create_tables(po_pg *pg) {
    char sql[8192] = "CREATE SCHEMA owner;";
    po_err err = {0};
    FILE *in = fopen(PO_SOURCE_DIR "/common/outbox/outbox.sql", "r");
    assert_non_null(in);
    size_t n = strlen(sql);
    n += fread(sql + n, 1, sizeof sql - n - 1, in);
    assert_true(feof(in));
    fclose(in);
    sql[n] = 0;
    if (!po_pg_exec(pg, sql, &err))
        fail_msg("%s", err.text);
}

static int start_cluster(void **state) {
    (void)state;
    pgtest_start(&cluster);
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    create_tables(pg);
    return 0;
}

static int stop_cluster(void **state) {
    (void)state;
    pgtest_stop(&cluster);
    return 0;
}

static po_outbox_row good_row(int64_t sequence) {
    return (po_outbox_row){.topic = po_s("payments.v1"),
                           .key = po_s("order-1"),
                           .event_id = po_uuid_v7(1767225600000000 + sequence),
                           .ce_type = po_s("payonce.payment.qualified"),
                           .ce_source = po_s("/payonce/ingest"),
                           .ce_time_us = 1767225600000000,
                           .sequence = sequence,
                           .traceparent = po_s("00-aa-bb-01"),
                           .schema_fp = fp,
                           .body = {"\0\1", 2}};
}

static void test_batch_keeps_its_order(void **state) {
    (void)state;
    enum { N = 300 };
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_outbox_row rows[N];
    po_err err = {0};
    for (int i = 0; i < N; i++)
        rows[i] = good_row(N - i);
    rows[7].topic = po_s("contacts.v1"); // a tombstone
    rows[7].schema_fp = NULL;
    rows[7].body = (po_str){NULL, 0};
    assert_true(po_pg_run(pg, &outbox.put, po_outbox_args(arena, rows, N), NULL, &err));
    PO_AUTO(po_res_done)
    po_res *res = query(
        pg, "SELECT sequence, topic, key, event_id, ce_type, ce_source, ce_time, traceparent, "
            "tracestate, schema_fp, body FROM owner.outbox ORDER BY id");
    assert_int_equal(po_res_rows(res), N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(po_res_i64(res, i, 0), N - i);
        assert_memory_equal(po_res_uuid(res, i, 3).b, rows[i].event_id.b, 16);
    }
    assert_true(po_str_is(po_res_text(res, 0, 1), "payments.v1"));
    assert_true(po_str_is(po_res_text(res, 0, 2), "order-1"));
    assert_true(po_str_is(po_res_text(res, 0, 4), "payonce.payment.qualified"));
    assert_true(po_str_is(po_res_text(res, 0, 5), "/payonce/ingest"));
    assert_int_equal(po_res_time(res, 0, 6), 1767225600000000);
    assert_true(po_str_is(po_res_text(res, 0, 7), "00-aa-bb-01"));
    assert_true(po_res_null(res, 0, 8));
    assert_true(po_str_eq(po_res_bytea(res, 0, 9), (po_str){(const char *)fp, 32}));
    assert_true(po_str_eq(po_res_bytea(res, 0, 10), (po_str){"\0\1", 2}));
    assert_true(po_res_null(res, 7, 9));
    assert_true(po_res_null(res, 7, 10));
}

// FAULTS 10: an empty key, or a tombstone where nothing is compacted, never gets in.
static void test_what_the_table_refuses(void **state) {
    (void)state;
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_outbox_row rows[7];
    for (int i = 0; i < 7; i++)
        rows[i] = good_row(1);
    rows[0].key = po_s("");
    rows[1].key = (po_str){NULL, 0};
    rows[2].topic = po_s("");
    rows[3].body = (po_str){NULL, 0};
    rows[4].schema_fp = NULL;
    rows[5].ce_time_us = PO_NO_TIME;
    rows[6].key = po_s("a\xff");
    for (int i = 0; i < 7; i++) {
        po_err err = {0};
        assert_false(po_pg_run(pg, &outbox.put, po_outbox_args(arena, &rows[i], 1), NULL, &err));
        assert_int_equal(err.kind, PO_REFUSED);
    }
    po_err err = {0};
    assert_false(po_pg_exec(pg, "INSERT INTO owner.outbox (id) VALUES (7)", &err)); // ids are drawn
}

static void test_schema_is_known_once(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    for (int i = 0; i < 2; i++) {
        assert_true(
            po_outbox_register(&outbox, pg, fp, po_s("payments.v1-value"), po_s("{}"), &err));
        assert_true(
            po_outbox_register(&outbox, pg, fp, po_s("contacts.v1-value"), po_s("{}"), &err));
    }
    PO_AUTO(po_res_done) po_res *res = query(pg, "SELECT count(*) FROM owner.outbox_schema");
    assert_int_equal(po_res_i64(res, 0, 0), 2);
}

// --- The ring

static po_pg *listener(void) {
    po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    assert_true(po_pg_exec(pg, "LISTEN outbox_owner", &err));
    return pg;
}

static bool heard(po_pg *pg, int timeout_ms) {
    bool notified = false;
    po_err err = {0};
    assert_true(po_pg_wait_notify(pg, timeout_ms, -1, &notified, &err));
    return notified;
}

// Notifications up to the one with the payload "end".
static int count_until_end(PGconn *conn) {
    for (int n = 0;; n++) {
        PGnotify *note = PQnotifies(conn);
        for (; !note; note = PQnotifies(conn)) {
            struct pollfd fd = {PQsocket(conn), POLLIN, 0};
            assert_int_equal(poll(&fd, 1, 20000), 1);
            assert_true(PQconsumeInput(conn));
        }
        bool end = strcmp(note->extra, "end") == 0;
        PQfreemem(note);
        if (end)
            return n;
    }
}

static void test_a_ring_is_heard(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = listener();
    PO_AUTO(po_ring_close) po_ring *ring = NULL;
    po_err err = {0};
    assert_true(po_ring_open(&(po_pg_options){.dsn = cluster.dsn}, "owner", &ring, &err));
    for (int i = 0; i < 3; i++) {
        po_ring_ring(ring);
        assert_true(heard(pg, 20000));
    }
}

static void test_closing_rings_what_was_wanted(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = listener();
    for (int i = 0; i < 3; i++) {
        po_ring *ring = NULL;
        po_err err = {0};
        assert_true(po_ring_open(&(po_pg_options){.dsn = cluster.dsn}, "owner", &ring, &err));
        po_ring_ring(ring);
        po_ring_close(&ring);
        assert_null(ring);
        assert_true(heard(pg, 20000));
    }
}

// 40,000 rings are few notifications: one each 2 ms at most.
static void test_many_rings_are_few_notifications(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_ring *ring = NULL;
    po_err err = {0};
    PGconn *counter = PQconnectdb(cluster.dsn);
    PQclear(PQexec(counter, "LISTEN outbox_owner"));
    assert_true(po_ring_open(&(po_pg_options){.dsn = cluster.dsn}, "owner", &ring, &err));
    int64_t start_ms = po_mono_ms();
    for (int i = 0; i < 40000; i++)
        po_ring_ring(ring);
    po_ring_close(&ring);
    int64_t took_ms = po_mono_ms() - start_ms;
    assert_true(po_pg_exec(pg, "NOTIFY outbox_owner, 'end'", &err));
    int rings = count_until_end(counter);
    assert_true(rings >= 1 && rings <= took_ms / 2 + 2);
    PQfinish(counter);
}

static void test_ring_survives_its_connection(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = listener();
    PO_AUTO(po_ring_close) po_ring *ring = NULL;
    po_err err = {0};
    po_pg_options options = {.dsn = cluster.dsn, .application_name = "ringer"};
    assert_true(po_ring_open(&options, "owner", &ring, &err));
    po_ring_ring(ring);
    assert_true(heard(pg, 20000));
    assert_true(po_pg_exec(pg,
                           "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity "
                           "WHERE application_name = 'ringer'",
                           &err));
    po_ring_ring(ring);
    assert_true(heard(pg, 20000));
}

// Neither the caller nor the end of the program waits for a database that is away.
static void test_ring_without_a_database(void **state) {
    (void)state;
    po_ring *ring = NULL;
    po_err err = {0};
    po_pg_options options = {.dsn = "host=/nowhere"};
    assert_true(po_ring_open(&options, "owner", &ring, &err));
    po_ring_ring(ring);
    po_ring_close(&ring);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_keeps_its_order),
        cmocka_unit_test(test_what_the_table_refuses),
        cmocka_unit_test(test_schema_is_known_once),
        cmocka_unit_test(test_a_ring_is_heard),
        cmocka_unit_test(test_closing_rings_what_was_wanted),
        cmocka_unit_test(test_many_rings_are_few_notifications),
        cmocka_unit_test(test_ring_survives_its_connection),
        cmocka_unit_test(test_ring_without_a_database),
    };
    return cmocka_run_group_tests(tests, start_cluster, stop_cluster);
}
