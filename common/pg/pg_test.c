// Against a private cluster: what callers rely on when a statement, a COMMIT or a connection fails.
#include "../../tests/support/pgtest.h"
#include "pg/pg_impl.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

static pgtest cluster;

static int start_cluster(void **state) {
    (void)state;
    pgtest_start(&cluster);
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    pgtest_exec(pg,
                "CREATE TABLE t (id int PRIMARY KEY, v text);"
                "CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$"
                " BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END $$;"
                "CREATE FUNCTION die_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$"
                " BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;"
                "CREATE TABLE waits (id int); CREATE TABLE dies (id int);"
                "CREATE CONSTRAINT TRIGGER w AFTER INSERT ON waits DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION wait_at_commit();"
                "CREATE CONSTRAINT TRIGGER d AFTER INSERT ON dies DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION die_at_commit();");
    return 0;
}

static int stop_cluster(void **state) {
    (void)state;
    pgtest_stop(&cluster);
    return 0;
}

// --- Values

static void test_scalars_come_back(void **state) {
    (void)state;
    static const po_stmt echo = {"echo", "SELECT $1, $2, $3, $4, $5, $6, $7, $8::int8"};
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_uuid id = po_uuid_v7(po_now_us());
    po_args *args = po_args_new(arena);
    po_arg_bool(args, true);
    po_arg_i32(args, INT32_MIN);
    po_arg_i64(args, INT64_MIN + 1);
    po_arg_text(args, po_s("grün \\ ' \""));
    po_arg_bytea(args, (po_str){"\0\1\xff", 3});
    po_arg_uuid(args, id);
    po_arg_time(args, 1767225600123456);
    po_arg_null(args);
    po_err err = {0};
    assert_true(po_pg_run(pg, &echo, args, &res, &err));
    assert_true(po_res_bool(res, 0, 0));
    assert_int_equal(po_res_i64(res, 0, 1), INT32_MIN);
    assert_int_equal(po_res_i64(res, 0, 2), INT64_MIN + 1);
    assert_true(po_str_is(po_res_text(res, 0, 3), "grün \\ ' \""));
    assert_true(po_str_eq(po_res_bytea(res, 0, 4), (po_str){"\0\1\xff", 3}));
    assert_memory_equal(po_res_uuid(res, 0, 5).b, id.b, 16);
    assert_int_equal(po_res_time(res, 0, 6), 1767225600123456);
    assert_true(po_res_null(res, 0, 7));
    assert_int_equal(po_res_i64(res, 0, 7), 0);
}

static void test_nulls_stay_apart_from_empty(void **state) {
    (void)state;
    static const po_stmt echo = {"nulls",
                                 "SELECT $1, $2, $3, $4, 'x'::name, '{\"a\":1}'::jsonb, 7::int2"};
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_args *args = po_args_new(arena);
    po_arg_text(args, (po_str){NULL, 0});
    po_arg_text(args, po_s(""));
    po_arg_bytea(args, (po_str){"", 0});
    po_arg_time(args, PO_NO_TIME);
    po_err err = {0};
    assert_true(po_pg_run(pg, &echo, args, &res, &err));
    assert_null(po_res_text(res, 0, 0).p);
    assert_false(po_res_null(res, 0, 1));
    assert_int_equal(po_res_text(res, 0, 1).n, 0);
    assert_false(po_res_null(res, 0, 2));
    assert_int_equal(po_res_time(res, 0, 3), PO_NO_TIME);
    assert_true(po_str_is(po_res_text(res, 0, 4), "x"));
    assert_true(po_str_is(po_res_text(res, 0, 5), "{\"a\": 1}"));
    assert_int_equal(po_res_i64(res, 0, 6), 7);
}

static void test_infinite_times(void **state) {
    (void)state;
    static const po_stmt times = {
        "infinite", "SELECT 'infinity'::timestamptz, '-infinity'::timestamptz, $1 = 'infinity'"};
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_args *args = po_args_new(arena);
    po_arg_time(args, INT64_MAX);
    po_err err = {0};
    assert_true(po_pg_run(pg, &times, args, &res, &err));
    assert_int_equal(po_res_time(res, 0, 0), INT64_MAX);
    assert_int_equal(po_res_time(res, 0, 1), INT64_MIN + 1);
    assert_true(po_res_bool(res, 0, 2));
    po_args *too_early = po_args_new(arena);
    po_arg_time(too_early, INT64_MIN + 1);
    assert_false(po_pg_run(pg, &times, too_early, NULL, &err));
    assert_int_equal(err.kind, PO_REFUSED);
}

static void test_arrays_come_back_in_order(void **state) {
    (void)state;
    static const po_stmt rows = {
        "arrays", "SELECT * FROM unnest($1::int4[], $2::int8[], $3::bool[], $4::text[], "
                  "$5::bytea[], $6::uuid[], $7::timestamptz[])"};
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_uuid ids[3] = {po_uuid_v7(1000), po_uuid_v7(2000), po_uuid_v7(3000)};
    po_args *args = po_args_new(arena);
    po_arg_i32s(args, (int32_t[]){-1, 0, 1}, 3);
    po_arg_i64s(args, (int64_t[]){INT64_MAX, PO_NO_I64, -5}, 3);
    po_arg_bools(args, (bool[]){true, false, true}, 3);
    po_arg_texts(args, (po_str[]){po_s("a,{}\""), {NULL, 0}, po_s("")}, 3);
    po_arg_byteas(args, (po_str[]){{"\0", 1}, {"", 0}, {NULL, 0}}, 3);
    po_arg_uuids(args, ids, 3);
    po_arg_times(args, (int64_t[]){0, PO_NO_TIME, 1767225600000001}, 3);
    po_err err = {0};
    assert_true(po_pg_run(pg, &rows, args, &res, &err));
    assert_int_equal(po_res_rows(res), 3);
    assert_int_equal(po_res_i64(res, 0, 0), -1);
    assert_int_equal(po_res_i64(res, 0, 1), INT64_MAX);
    assert_true(po_res_null(res, 1, 1));
    assert_int_equal(po_res_i64(res, 2, 1), -5);
    assert_false(po_res_bool(res, 1, 2));
    assert_true(po_str_is(po_res_text(res, 0, 3), "a,{}\""));
    assert_true(po_res_null(res, 1, 3));
    assert_false(po_res_null(res, 2, 3));
    assert_int_equal(po_res_bytea(res, 0, 4).n, 1);
    assert_true(po_res_null(res, 2, 4));
    assert_memory_equal(po_res_uuid(res, 2, 5).b, ids[2].b, 16);
    assert_int_equal(po_res_time(res, 0, 6), 0);
    assert_true(po_res_null(res, 1, 6));
    assert_int_equal(po_res_time(res, 2, 6), 1767225600000001);
}

// FAULTS 40: what PostgreSQL cannot take in one message is refused, never asserted on; the connection
// and what was sent before are none the worse. The views here are longer than their memory: nobody
// may look.
static void test_parameters_beyond_a_message_are_refused(void **state) {
    (void)state;
    static const po_stmt one = {"test_one_of", "SELECT array_length($1::text[], 1)"};
    static const po_stmt text = {"test_length_of", "SELECT length($1)"};
    const po_str half = {"x", 600u << 20}, whole = {"x", 3u << 30}, endless = {"x", SIZE_MAX / 2};
    const po_str lists[][3] = {{whole}, {half, half, half}, {endless, endless, endless}};
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    po_err err = {0};
    for (size_t i = 0; i < 3; i++) {
        po_args *args = po_args_new(arena);
        po_arg_texts(args, lists[i], i == 0 ? 1 : 3);
        assert_false(po_pg_run(pg, &one, args, NULL, &err));
        assert_int_equal(err.kind, PO_REFUSED);
        assert_string_equal(err.code, "54000");
    }
    po_args *args = po_args_new(arena);
    po_arg_text(args, whole);
    assert_true(po_pipe_begin(pg, &err) &&
                po_pipe_send(pg, &(po_stmt){"test_1", "SELECT 1"}, NULL, &err));
    assert_false(po_pipe_send(pg, &text, args, &err));
    assert_string_equal(err.code, "54000");
    assert_true(po_pipe_end(pg, &err));
    PO_AUTO(po_res_done) po_res *res = NULL;
    args = po_args_new(arena);
    po_arg_text(args, po_s("four"));
    assert_true(po_pg_run(pg, &text, args, &res, &err));
    assert_int_equal(po_res_i64(res, 0, 0), 4);
}

static void test_empty_arrays_are_no_rows(void **state) {
    (void)state;
    static const po_stmt count = {"empty", "SELECT count(*) FROM unnest($1::text[], $2::int8[])"};
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_args *args = po_args_new(arena);
    po_arg_texts(args, NULL, 0);
    po_arg_i64s(args, NULL, 0);
    po_err err = {0};
    assert_true(po_pg_run(pg, &count, args, &res, &err));
    assert_int_equal(po_res_i64(res, 0, 0), 0);
}

// A statement first sent with an untyped NULL, or with another type, must not read later bytes
// wrongly.
static void test_types_belong_to_the_statement(void **state) {
    (void)state;
    static const po_stmt echo = {"typed", "SELECT $1::text"};
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    for (int round = 0; round < 2; round++) {
        po_args *args[3] = {po_args_new(arena), po_args_new(arena), po_args_new(arena)};
        po_arg_null(args[0]);
        po_arg_i32(args[1], 12);
        po_arg_i64(args[2], 34);
        const char *wanted[3] = {NULL, "12", "34"};
        for (int i = 0; i < 3; i++) {
            PO_AUTO(po_res_done) po_res *res = NULL;
            assert_true(po_pg_run(pg, &echo, args[i], &res, &err));
            assert_true(wanted[i] ? po_str_is(po_res_text(res, 0, 0), wanted[i])
                                  : po_res_null(res, 0, 0));
        }
    }
    assert_int_equal(pgtest_number(pg, "SELECT count(*) FROM pg_prepared_statements"), 3);
}

static void test_affected_rows(void **state) {
    (void)state;
    static const po_stmt insert = {"affected",
                                   "INSERT INTO t SELECT g, 'x' FROM generate_series(900, 904) g"};
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_err err = {0};
    assert_true(po_pg_run(pg, &insert, NULL, &res, &err));
    assert_int_equal(po_res_affected(res), 5);
}

// --- Session and errors

static void test_session_is_set_up(void **state) {
    (void)state;
    static const po_stmt show = {
        "show",
        "SELECT concat_ws('|', current_setting('lock_timeout'), "
        "current_setting('statement_timeout'), "
        "current_setting('idle_in_transaction_session_timeout'), current_setting('timezone'), "
        "current_setting('client_encoding'), current_setting('default_transaction_isolation'), "
        "current_setting('application_name'), current_setting('work_mem'))"};
    char dsn[256];
    snprintf(dsn, sizeof dsn, "%s options='-c work_mem=1MB -c timezone=Asia/Tokyo'", cluster.dsn);
    po_pg_options options = {
        .dsn = dsn, .application_name = "payonce-test", .lock_timeout_ms = 250};
    PO_AUTO(po_pg_close) po_pg *pg = NULL;
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_err err = {0};
    assert_true(po_pg_open(&options, &pg, &err));
    assert_true(po_pg_run(pg, &show, NULL, &res, &err));
    po_str got = po_res_text(res, 0, 0);
    assert_true(po_str_is(got, "250ms|30s|5s|UTC|UTF8|read committed|payonce-test|1MB"));
}

static void test_failed_login_is_a_deployment_fault(void **state) {
    (void)state;
    static const struct {
        const char *more, *code;
    } cases[] = {{"dbname=nowhere", "3D000"}, {"user=nobody", "28000"}, {"port=1", "08001"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char dsn[256];
        snprintf(dsn, sizeof dsn, "%s %s", cluster.dsn, cases[i].more);
        PO_AUTO(po_pg_close) po_pg *pg = NULL;
        po_err err = {0};
        assert_false(po_pg_open(&(po_pg_options){.dsn = dsn}, &pg, &err));
        assert_int_equal(err.kind, PO_RETRY);
        assert_string_equal(err.code, cases[i].code);
        assert_int_equal(po_pg_is_deployment(&err), cases[i].code[0] != '0');
    }
    po_err err = {0};
    po_pool *pool = NULL;
    assert_false(po_pool_open(&(po_pg_options){.dsn = "password=geheim geheim"}, 1, &pool, &err));
    assert_string_equal(err.code, "invalid_dsn");
    assert_null(strstr(err.text, "geheim"));
}

static void test_kinds_of_failure(void **state) {
    (void)state;
    static const struct {
        const char *sql, *code;
        po_kind kind;
    } cases[] = {
        {"SELECT 1 / 0", "22012", PO_REFUSED},
        {"INSERT INTO t SELECT 1 FROM generate_series(1, 2)", "23505", PO_REFUSED},
        {"SELECT nothing FROM nowhere", "42P01", PO_RETRY},
        {"DO $$ BEGIN RAISE 'no'; END $$", "P0001", PO_REFUSED},
        {"DO $$ BEGIN RAISE SQLSTATE 'XX001'; END $$", "XX001", PO_BUG},
        {"DO $$ BEGIN RAISE SQLSTATE '40001'; END $$", "40001", PO_RETRY},
    };
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        po_err by_run = {0}, by_exec = {0};
        assert_false(po_pg_run(pg, &(po_stmt){NULL, cases[i].sql}, NULL, NULL, &by_run));
        assert_false(po_pg_exec(pg, cases[i].sql, &by_exec));
        assert_string_equal(by_run.code, cases[i].code);
        assert_string_equal(by_exec.code, cases[i].code);
        assert_int_equal(by_run.kind, cases[i].kind);
        assert_int_equal(by_exec.kind, cases[i].kind);
        assert_true(po_pg_alive(pg));
    }
    assert_int_equal(pgtest_number(pg, "SELECT 1"), 1);
}

static void test_constraint_is_named_and_row_is_not(void **state) {
    (void)state;
    static const po_stmt put = {"put_secret", "INSERT INTO secret VALUES ('hush'), ('hush')"};
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    pgtest_exec(pg, "CREATE TABLE secret (v text CONSTRAINT only_once PRIMARY KEY)");
    po_err err = {0};
    assert_false(po_pg_run(pg, &put, NULL, NULL, &err));
    assert_non_null(strstr(err.text, "put_secret"));
    assert_non_null(strstr(err.text, "only_once"));
    assert_null(strstr(err.text, "hush"));
}

static void test_lock_timeout(void **state) {
    (void)state;
    static const po_stmt lock = {"lock_row", "SELECT FROM t WHERE id = 500 FOR NO KEY UPDATE"};
    PO_AUTO(po_pg_close) po_pg *holder = pgtest_connection(&cluster);
    PO_AUTO(po_pg_close) po_pg *pg = NULL;
    pgtest_exec(holder, "INSERT INTO t VALUES (500, '')");
    pgtest_exec(holder, "BEGIN; UPDATE t SET v = '' WHERE id = 500");
    po_err err = {0};
    assert_true(po_pg_open(&(po_pg_options){.dsn = cluster.dsn, .lock_timeout_ms = 50}, &pg, &err));
    {
        PO_AUTO(po_tx_done) po_tx tx = {0};
        assert_true(po_tx_begin(pg, &tx, &err));
        assert_false(po_pg_run(pg, &lock, NULL, NULL, &err));
        assert_true(po_pg_is(&err, "55P03"));
        assert_int_equal(err.kind, PO_RETRY);
        assert_false(po_pg_is_deployment(&err));
    }
    assert_true(po_pg_reusable(pg));
    pgtest_exec(holder, "ROLLBACK");
    assert_true(po_pg_run(pg, &lock, NULL, NULL, &err));
}

// A column type that changes under a prepared statement: RETRY, and a fresh connection works.
static void test_outgrown_plan_ends_with_the_connection(void **state) {
    (void)state;
    static const po_stmt all = {"all_of_it", "SELECT * FROM outgrown"};
    PO_AUTO(po_pool_close) po_pool *pool = NULL;
    PO_AUTO(po_pg_close) po_pg *other = pgtest_connection(&cluster);
    pgtest_exec(other, "CREATE TABLE outgrown (a int)");
    po_err err = {0};
    po_pg *pg = NULL;
    assert_true(po_pool_open(&(po_pg_options){.dsn = cluster.dsn}, 1, &pool, &err));
    assert_true(po_pool_acquire(pool, 5000, &pg, &err));
    assert_true(po_pg_run(pg, &all, NULL, NULL, &err));
    pgtest_exec(other, "ALTER TABLE outgrown ADD b text");
    assert_false(po_pg_run(pg, &all, NULL, NULL, &err));
    assert_int_equal(err.kind, PO_RETRY);
    po_pool_release(pool, &pg);
    assert_true(po_pool_acquire(pool, 5000, &pg, &err));
    assert_true(po_pg_run(pg, &all, NULL, NULL, &err));
    po_pool_release(pool, &pg);
}

// --- Pipeline

static const po_stmt insert_t = {"insert_t", "INSERT INTO t VALUES ($1, $2)"};

static po_args *t_row(po_arena *arena, int32_t id) {
    po_args *args = po_args_new(arena);
    po_arg_i32(args, id);
    po_arg_text(args, po_s("row"));
    return args;
}

static void test_pipeline_in_one_flight(void **state) {
    (void)state;
    static const po_stmt count = {"count_t",
                                  "SELECT count(*) FROM t WHERE id BETWEEN $1 AND $1 + 9"};
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    po_res *res[4] = {0};
    PO_AUTO(po_tx_done) po_tx tx = {0};
    po_args *low = po_args_new(arena);
    po_arg_i32(low, 10);
    assert_true(po_pipe_begin(pg, &err));
    assert_true(po_tx_send_begin(pg, &tx, &err));
    assert_true(po_pipe_send(pg, &insert_t, t_row(arena, 10), &err));
    assert_true(po_pipe_send(pg, &insert_t, t_row(arena, 11), &err));
    assert_true(po_pipe_send(pg, &count, low, &err));
    assert_true(po_pipe_sync(pg, res, 4, &err));
    assert_int_equal(po_res_i64(res[3], 0, 0), 2);
    for (int i = 0; i < 4; i++)
        po_res_done(&res[i]);
    assert_true(po_pipe_send(pg, &insert_t, t_row(arena, 12), &err));
    assert_true(po_tx_commit(&tx, &err)); // lands the insert as well
    assert_true(po_pipe_end(pg, &err));
    assert_true(po_pg_reusable(pg));
    assert_int_equal(pgtest_number(pg, "SELECT count(*) FROM t WHERE id BETWEEN 10 AND 19"), 3);
}

static void test_first_failure_is_reported_and_all_rolled_back(void **state) {
    (void)state;
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    static const po_stmt broken = {"broken", "SELECT * FROM not_there"};
    static const po_stmt never = {"never", "SELECT 1 / 0"};
    po_err err = {0};
    po_res *res[4];
    {
        PO_AUTO(po_tx_done) po_tx tx = {0};
        assert_true(po_tx_send_begin(pg, &tx, &err));
        assert_true(po_pipe_send(pg, &insert_t, t_row(arena, 20), &err));
        assert_true(po_pipe_send(pg, &broken, NULL, &err));
        assert_true(po_pipe_send(pg, &never, NULL, &err));
        assert_false(po_pipe_sync(pg, res, 4, &err));
        assert_string_equal(err.code, "42P01");
        assert_non_null(strstr(err.text, "broken"));
        for (int i = 0; i < 4; i++)
            assert_null(res[i]);
    }
    assert_true(po_pg_reusable(pg));
    assert_int_equal(pgtest_number(pg, "SELECT count(*) FROM t WHERE id = 20"), 0);
    // What was skipped behind the failure is prepared when it comes again.
    assert_false(po_pg_run(pg, &never, NULL, NULL, &err));
    assert_string_equal(err.code, "22012");
    pgtest_exec(pg, "CREATE TABLE not_there (a int)");
    assert_true(po_pg_run(pg, &broken, NULL, NULL, &err));
}

static void test_failure_in_the_flight_of_commit(void **state) {
    (void)state;
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    PO_AUTO(po_tx_done) po_tx tx = {0};
    assert_true(po_tx_begin(pg, &tx, &err));
    assert_true(po_pipe_send(pg, &insert_t, t_row(arena, 30), &err));
    assert_true(po_pipe_send(pg, &insert_t, t_row(arena, 30), &err));
    assert_false(po_tx_commit(&tx, &err));
    assert_string_equal(err.code, "23505");
    assert_int_equal(err.kind, PO_REFUSED);
    assert_true(po_pg_reusable(pg));
    assert_int_equal(pgtest_number(pg, "SELECT count(*) FROM t WHERE id = 30"), 0);
}

static void test_commit_of_a_failed_transaction(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    PO_AUTO(po_tx_done) po_tx tx = {0};
    assert_true(po_tx_begin(pg, &tx, &err));
    assert_false(po_pg_exec(pg, "SELECT 1 / 0", &err));
    assert_false(po_tx_commit(&tx, &err));
    assert_int_equal(err.kind, PO_BUG);
    assert_true(po_pg_reusable(pg));
}

// 48 MiB each way in one flight: with a blocking socket both sides would wait for the other to
// read.
static void test_large_flight_does_not_deadlock(void **state) {
    (void)state;
    static const po_stmt echo = {"echo_big", "SELECT $1::bytea"};
    enum { SENDS = 96, SIZE = 512 * 1024 };
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    char *big = po_alloc(arena, SIZE);
    memset(big, 'x', SIZE);
    po_args *args = po_args_new(arena);
    po_arg_bytea(args, (po_str){big, SIZE});
    po_res *res[SENDS];
    for (int i = 0; i < SENDS; i++)
        assert_true(po_pipe_send(pg, &echo, args, &err));
    assert_true(po_pipe_sync(pg, res, SENDS, &err));
    for (int i = 0; i < SENDS; i++) {
        assert_int_equal(po_res_bytea(res[i], 0, 0).n, SIZE);
        po_res_done(&res[i]);
    }
}

// --- Transactions

static void test_leaving_scope_rolls_back(void **state) {
    (void)state;
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    for (int way = 0; way < 4; way++) {
        PO_AUTO(po_tx_done) po_tx tx = {0};
        assert_true(way == 3 ? po_tx_send_begin(pg, &tx, &err) : po_tx_begin(pg, &tx, &err));
        assert_true(po_pipe_send(pg, &insert_t, t_row(arena, 40), &err)); // way 2, 3: never synced
        if (way < 2)
            assert_true(po_pipe_sync(pg, NULL, 1, &err));
        if (way == 1)
            assert_false(po_pg_exec(pg, "SELECT 1 / 0", &err));
        po_tx_done(&tx);
        assert_true(po_pg_reusable(pg));
        assert_int_equal(pgtest_number(pg, "SELECT count(*) FROM t WHERE id = 40"), 0);
    }
}

static void test_savepoint(void **state) {
    (void)state;
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    PO_AUTO(po_tx_done) po_tx tx = {0};
    assert_true(po_tx_begin(pg, &tx, &err));
    assert_true(po_pg_run(pg, &insert_t, t_row(arena, 50), NULL, &err));
    assert_true(po_savepoint(&tx, "handler", &err));
    assert_true(po_pg_run(pg, &insert_t, t_row(arena, 51), NULL, &err));
    assert_false(po_pg_run(pg, &insert_t, t_row(arena, 51), NULL, &err));
    assert_true(po_rollback_to(&tx, "handler", &err));
    assert_true(po_pg_run(pg, &insert_t, t_row(arena, 52), NULL, &err));
    assert_true(po_tx_commit(&tx, &err));
    assert_int_equal(pgtest_number(pg, "SELECT sum(id) FROM t WHERE id BETWEEN 50 AND 59"), 102);
}

static void test_backend_killed_before_commit_is_retry(void **state) {
    (void)state;
    static const po_stmt die = {"die", "SELECT pg_terminate_backend(pg_backend_pid())"};
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    PO_AUTO(po_pg_close) po_pg *other = pgtest_connection(&cluster);
    po_err err = {0};
    {
        PO_AUTO(po_tx_done) po_tx tx = {0};
        assert_true(po_tx_begin(pg, &tx, &err));
        assert_true(po_pipe_send(pg, &insert_t, t_row(arena, 60), &err));
        assert_true(po_pipe_send(pg, &die, NULL, &err));
        assert_false(
            po_tx_commit(&tx, &err)); // the server died at a statement before COMMIT, and said so
        assert_int_equal(err.kind, PO_RETRY);
        assert_string_equal(err.code, "57P01");
    }
    assert_false(po_pg_alive(pg));
    assert_false(po_pg_run(pg, &insert_t, t_row(arena, 61), NULL, &err));
    assert_int_equal(err.kind, PO_RETRY);
    assert_int_equal(pgtest_number(other, "SELECT count(*) FROM t WHERE id BETWEEN 60 AND 69"), 0);
}

static void test_backend_killed_at_commit_is_uncertain(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    PO_AUTO(po_tx_done) po_tx tx = {0};
    assert_true(po_tx_begin(pg, &tx, &err));
    pgtest_exec(pg, "INSERT INTO dies VALUES (1)");
    assert_false(po_tx_commit(&tx, &err));
    assert_int_equal(err.kind, PO_UNCERTAIN);
    assert_false(po_pg_alive(pg));
}

// Cuts the client's connection while the server is inside COMMIT, then lets COMMIT finish.
typedef struct cut {
    atomic_bool waits; // COMMIT will
    int socket;
} cut;

static void *cut_in_commit(void *arg) {
    cut *self = arg;
    PO_AUTO(po_pg_close) po_pg *judge = pgtest_connection(&cluster);
    pgtest_exec(judge, "SELECT pg_advisory_lock(42)");
    atomic_store(&self->waits, true);
    pgtest_wait_for(judge,
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted", 1);
    shutdown(self->socket, SHUT_RDWR);
    return NULL; // closing frees the lock
}

static void lose_reply(int32_t id, bool one_flight) {
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    static const po_stmt insert_waits = {"insert_waits", "INSERT INTO waits VALUES ($1)"};
    cut cut = {.socket = po_pg_socket(pg)};
    pthread_t cutter;
    po_err err = {0};
    assert_int_equal(pthread_create(&cutter, NULL, cut_in_commit, &cut), 0);
    while (!atomic_load(&cut.waits))
        usleep(1000);
    PO_AUTO(po_tx_done) po_tx tx = {0};
    po_args *args = po_args_new(arena);
    po_arg_i32(args, id);
    assert_true(po_tx_send_begin(pg, &tx, &err));
    assert_true(po_pipe_send(pg, &insert_waits, args, &err));
    if (!one_flight)
        assert_true(po_pipe_sync(pg, NULL, 2, &err));
    assert_false(po_tx_commit(&tx, &err));
    assert_int_equal(err.kind, PO_UNCERTAIN);
    pthread_join(cutter, NULL);
    PO_AUTO(po_pg_close) po_pg *other = pgtest_connection(&cluster);
    char sql[64];
    snprintf(sql, sizeof sql, "SELECT count(*) FROM waits WHERE id = %d", id);
    pgtest_wait_for(other, sql, 1); // it had been done
}

static void test_lost_reply_to_commit_is_uncertain(void **state) {
    (void)state;
    lose_reply(1, false);
    lose_reply(2, true);
}

// A server that has stopped answering (SIGSTOP, a dead disk) is given up, and COMMIT with it is in
// doubt.
static void test_frozen_server_is_lost(void **state) {
    (void)state;
    for (int at_commit = 0; at_commit < 2; at_commit++) {
        PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
        po_err err = {0};
        PO_AUTO(po_tx_done) po_tx tx = {0};
        pid_t backend = (pid_t)pgtest_number(pg, "SELECT pg_backend_pid()");
        assert_true(po_tx_begin(pg, &tx, &err));
        pg->patience_ms = 100;
        assert_int_equal(kill(backend, SIGSTOP), 0);
        bool fine = at_commit ? po_tx_commit(&tx, &err) : po_pg_exec(pg, "SELECT 1", &err);
        kill(backend, SIGCONT);
        assert_false(fine);
        assert_int_equal(err.kind, at_commit ? PO_UNCERTAIN : PO_RETRY);
        assert_false(po_pg_alive(pg));
    }
}

static void test_idle_in_transaction_is_retry(void **state) {
    (void)state;
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *other = pgtest_connection(&cluster);
    PO_AUTO(po_pg_close) po_pg *pg = NULL;
    po_pg_options options = {
        .dsn = cluster.dsn, .application_name = "idler", .idle_in_tx_timeout_ms = 20};
    po_err err = {0};
    assert_true(po_pg_open(&options, &pg, &err));
    PO_AUTO(po_tx_done) po_tx tx = {0};
    assert_true(po_tx_begin(pg, &tx, &err));
    pgtest_wait_for(other, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idler'",
                    0);
    assert_false(po_pg_run(pg, &insert_t, t_row(arena, 70), NULL, &err));
    assert_int_equal(err.kind, PO_RETRY);
    assert_true(po_pg_is_too_much(&err)); // says why it was ended
    assert_false(po_pg_alive(pg));
}

// FAULTS 64: a session that its server has ended while it idled is known to be gone before it is
// used.
static void test_still_there(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *killer = pgtest_connection(&cluster);
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    for (int i = 0; i < 3; i++) {
        assert_true(po_pg_still_there(pg));
        assert_int_equal(pgtest_number(pg, "SELECT 1"), 1);
    }
    char sql[120];
    snprintf(sql, sizeof sql, "SELECT pg_terminate_backend(%d, 20000)",
             (int)pgtest_number(pg, "SELECT pg_backend_pid()"));
    pgtest_exec(killer, sql);
    assert_false(po_pg_still_there(pg));
    assert_false(po_pg_alive(pg));
    assert_false(po_pg_exec(pg, "SELECT 1", &err));
    assert_int_equal(err.kind, PO_RETRY);
}

// --- Pool

static void test_pool_bounds_and_reuses(void **state) {
    (void)state;
    PO_AUTO(po_pool_close) po_pool *pool = NULL;
    po_err err = {0};
    assert_true(po_pool_open(&(po_pg_options){.dsn = cluster.dsn}, 2, &pool, &err));
    po_pg *a = NULL, *b = NULL, *c = NULL;
    assert_true(po_pool_acquire(pool, 5000, &a, &err));
    assert_true(po_pool_acquire(pool, 5000, &b, &err));
    assert_false(po_pool_acquire(pool, 20, &c, &err));
    assert_string_equal(err.code, "pool_timeout");
    assert_int_equal(err.kind, PO_RETRY);
    int64_t pid = pgtest_number(a, "SELECT pg_backend_pid()");
    po_pool_release(pool, &a);
    assert_null(a);
    assert_true(po_pool_acquire(pool, 5000, &c, &err));
    assert_int_equal(pgtest_number(c, "SELECT pg_backend_pid()"), pid);
    po_pool_release(pool, &b);
    po_pool_release(pool, &c);
    po_pool_release(pool, &a); // NULL
}

static void test_pool_replaces_what_cannot_be_reused(void **state) {
    (void)state;
    PO_AUTO(po_pool_close) po_pool *pool = NULL;
    PO_AUTO(po_pg_close) po_pg *killer = pgtest_connection(&cluster);
    po_err err = {0};
    po_pg *pg = NULL;
    int64_t before = 0;
    assert_true(po_pool_open(&(po_pg_options){.dsn = cluster.dsn, .application_name = "victim"}, 1,
                             &pool, &err));
    for (int way = 0; way < 4; way++) {
        assert_true(po_pool_acquire(pool, 5000, &pg, &err));
        assert_int_not_equal(pgtest_number(pg, "SELECT pg_backend_pid()"), before);
        before = pgtest_number(pg, "SELECT pg_backend_pid()");
        po_tx tx = {0};
        if (way == 0) // left inside a transaction
            assert_true(po_tx_begin(pg, &tx, &err));
        if (way == 1) // left with something in flight
            assert_true(po_pipe_send(pg, &(po_stmt){"one", "SELECT 1"}, NULL, &err));
        if (way == 2) // dead in our hands
            assert_false(po_pg_exec(pg, "SELECT pg_terminate_backend(pg_backend_pid())", &err));
        po_pool_release(pool, &pg);
        if (way == 3) { // dies while idle: noticed before it is handed out
            pgtest_exec(killer, "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity "
                                "WHERE application_name = 'victim'");
            assert_true(po_pool_acquire(pool, 5000, &pg, &err));
            assert_int_not_equal(pgtest_number(pg, "SELECT pg_backend_pid()"), before);
            po_pool_release(pool, &pg);
        }
    }
}

static void *use_pool(void *arg) {
    po_pool *pool = arg;
    for (int i = 0; i < 50; i++) {
        po_pg *pg = NULL;
        po_err err = {0};
        if (!po_pool_acquire(pool, 20000, &pg, &err))
            return (void *)1;
        if (!po_pg_exec(pg, "SELECT 1", &err))
            return (void *)1;
        po_pool_release(pool, &pg);
    }
    return NULL;
}

static void test_pool_serves_more_threads_than_connections(void **state) {
    (void)state;
    PO_AUTO(po_pool_close) po_pool *pool = NULL;
    po_err err = {0};
    pthread_t threads[8];
    assert_true(po_pool_open(&(po_pg_options){.dsn = cluster.dsn}, 2, &pool, &err));
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_pool, pool), 0);
    for (int i = 0; i < 8; i++) {
        void *failed = NULL;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
}

// --- Notifications

static void test_notifications(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *listener = pgtest_connection(&cluster);
    PO_AUTO(po_pg_close) po_pg *sender = pgtest_connection(&cluster);
    po_err err = {0};
    bool notified = true;
    int stop[2];
    assert_int_equal(pipe(stop), 0);
    pgtest_exec(listener, "LISTEN bell");
    assert_true(po_pg_wait_notify(listener, 0, -1, &notified, &err));
    assert_false(notified);
    pgtest_exec(sender, "NOTIFY bell; NOTIFY bell");
    assert_true(po_pg_wait_notify(listener, 20000, stop[0], &notified, &err));
    assert_true(notified);
    assert_true(po_pg_wait_notify(listener, 0, -1, &notified, &err));
    assert_false(notified); // all that had come are drained
    pgtest_exec(sender, "NOTIFY bell");
    assert_int_equal(pgtest_number(listener, "SELECT 1"), 1); // arrives between statements
    assert_true(po_pg_wait_notify(listener, 20000, stop[0], &notified, &err));
    assert_true(notified);
    assert_int_equal(write(stop[1], "x", 1), 1);
    assert_true(po_pg_wait_notify(listener, 20000, stop[0], &notified, &err));
    assert_false(notified);
    pgtest_exec(
        sender,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT 1%' "
        "AND pid <> pg_backend_pid()");
    assert_false(po_pg_wait_notify(listener, 20000, -1, &notified, &err));
    assert_int_equal(err.kind, PO_RETRY);
    close(stop[0]);
    close(stop[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalars_come_back),
        cmocka_unit_test(test_nulls_stay_apart_from_empty),
        cmocka_unit_test(test_infinite_times),
        cmocka_unit_test(test_arrays_come_back_in_order),
        cmocka_unit_test(test_parameters_beyond_a_message_are_refused),
        cmocka_unit_test(test_empty_arrays_are_no_rows),
        cmocka_unit_test(test_types_belong_to_the_statement),
        cmocka_unit_test(test_affected_rows),
        cmocka_unit_test(test_session_is_set_up),
        cmocka_unit_test(test_failed_login_is_a_deployment_fault),
        cmocka_unit_test(test_kinds_of_failure),
        cmocka_unit_test(test_constraint_is_named_and_row_is_not),
        cmocka_unit_test(test_lock_timeout),
        cmocka_unit_test(test_outgrown_plan_ends_with_the_connection),
        cmocka_unit_test(test_pipeline_in_one_flight),
        cmocka_unit_test(test_first_failure_is_reported_and_all_rolled_back),
        cmocka_unit_test(test_failure_in_the_flight_of_commit),
        cmocka_unit_test(test_commit_of_a_failed_transaction),
        cmocka_unit_test(test_large_flight_does_not_deadlock),
        cmocka_unit_test(test_leaving_scope_rolls_back),
        cmocka_unit_test(test_savepoint),
        cmocka_unit_test(test_backend_killed_before_commit_is_retry),
        cmocka_unit_test(test_backend_killed_at_commit_is_uncertain),
        cmocka_unit_test(test_lost_reply_to_commit_is_uncertain),
        cmocka_unit_test(test_frozen_server_is_lost),
        cmocka_unit_test(test_idle_in_transaction_is_retry),
        cmocka_unit_test(test_still_there),
        cmocka_unit_test(test_pool_bounds_and_reuses),
        cmocka_unit_test(test_pool_replaces_what_cannot_be_reused),
        cmocka_unit_test(test_pool_serves_more_threads_than_connections),
        cmocka_unit_test(test_notifications),
    };
    return cmocka_run_group_tests(tests, start_cluster, stop_cluster);
}
