// What a pass deletes and what it costs, against a PostgreSQL of this test's own.
#include "../../tests/support/pgtest.h"
#include "retention.h"
#include <inttypes.h>

enum { ROWS = 4000, RANGES = 10000 };

static pgtest cluster;

static void run_sql(po_pg *pg, const char *sql) {
    po_err err = {0};
    if (!po_pg_exec(pg, sql, &err))
        fail_msg("%s: %s", sql, err.text);
}

static void run_file(po_pg *pg, const char *path) {
    char sql[16384];
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    size_t n = fread(sql, 1, sizeof sql - 1, in);
    assert_true(feof(in));
    fclose(in);
    sql[n] = 0;
    run_sql(pg, sql);
}

static int64_t number(po_pg *pg, const char *sql) {
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_err err = {0};
    if (!po_pg_run(pg, &(po_stmt){NULL, sql}, NULL, &res, &err))
        fail_msg("%s: %s", sql, err.text);
    return po_res_i64(res, 0, 0);
}

static int start_cluster(void **state) {
    (void)state;
    pgtest_start(&cluster);
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    run_sql(pg, "CREATE SCHEMA owner");
    run_file(pg, PO_SOURCE_DIR "/common/outbox/outbox.sql");
    run_file(pg, PO_SOURCE_DIR "/services/relay/migrations/0001_init.sql");
    return 0;
}

static int stop_cluster(void **state) {
    (void)state;
    pgtest_stop(&cluster);
    return 0;
}

// ROWS old rows from id 1 on; every even id is an open range of its own, far beyond the rows too.
static void fill(po_pg *pg) {
    char sql[512];
    run_sql(pg, "TRUNCATE owner.outbox RESTART IDENTITY; TRUNCATE relay.cursor");
    snprintf(
        sql, sizeof sql,
        "INSERT INTO owner.outbox (topic, key, event_id, ce_type, ce_source, ce_time, sequence, "
        "created_at) SELECT 'contacts.v1', 'k', gen_random_uuid(), 't', 's', now(), i, "
        "now() - interval '2 d' FROM generate_series(1, %d) i",
        ROWS);
    run_sql(pg, sql);
    snprintf(
        sql, sizeof sql,
        "INSERT INTO relay.cursor (outbox, epoch, holder, expires_at, floor, open_lo, open_hi) "
        "SELECT 'owner', 1, 'h', now(), 100000, array_agg(2 * i), array_agg(2 * i) "
        "FROM generate_series(1, %d) i",
        RANGES);
    run_sql(pg, sql);
}

static int64_t pass(int64_t *ret_after) {
    po_pg_options options = {.dsn = cluster.dsn, .application_name = "test", .by_index = true};
    retention retention = {.outbox = "owner", .age_ms = 3600000, .personal_topics = "contacts.v1"};
    PO_AUTO(po_pg_close) po_pg *pg = NULL;
    po_err err = {0};
    int64_t deleted = 0;
    if (!po_pg_open(&options, &pg, &err) || !retention_pass(&retention, pg, &deleted, &err))
        fail_msg("%s", err.text);
    *ret_after = retention.after;
    return deleted;
}

static void test_what_is_open_stays(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    int64_t after;
    fill(pg);
    run_sql(pg, "UPDATE relay.cursor SET floor = 3000, open_lo = '{1,10,11,500,2999}', "
                "open_hi = '{3,10,20,501,2999}'");
    run_sql(pg, "UPDATE owner.outbox SET created_at = now() WHERE id = 600");
    assert_int_equal(pass(&after), 3000 - 3 - 1 - 10 - 2 - 1 - 1);
    assert_int_equal(
        number(pg, "SELECT count(*) FROM owner.outbox WHERE id <= 3000 AND NOT (id BETWEEN 1 AND 3 "
                   "OR id BETWEEN 10 AND 20 OR id IN (500, 501, 600, 2999))"),
        0);
    assert_int_equal(number(pg, "SELECT count(*) FROM owner.outbox WHERE id > 3000"), ROWS - 3000);
    assert_int_equal(after, 0);
    assert_int_equal(pass(&after), 0);
    run_sql(pg, "UPDATE relay.cursor SET floor = 4000, open_lo = '{3500}', open_hi = '{3600}'");
    assert_int_equal(pass(&after), ROWS - 3000 - 101 + 17);
    assert_int_equal(after, 599);
}

// All rows that the nodes of the logged plans have handled: returned, or looked at and thrown away.
static int64_t rows_handled(const char *log) {
    int64_t all = 0;
    double loops = 1;
    char line[4096];
    FILE *in = fopen(log, "r");
    assert_non_null(in);
    while (fgets(line, sizeof line, in)) {
        double rows = 0;
        const char *actual = strstr(line, "(actual rows="),
                   *removed = strstr(line, "Rows Removed by ");
        if (actual && sscanf(actual, "(actual rows=%lf loops=%lf", &rows, &loops) == 2)
            all += (int64_t)(rows * loops);
        else if (removed && sscanf(strchr(removed, ':'), ": %lf", &rows) == 1)
            all += (int64_t)(rows * loops);
    }
    fclose(in);
    return all;
}

// FAULTS 46: the cost of a window is window + open ranges, not their product.
static void test_the_cost_of_open_ranges_adds(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    char log[96];
    int64_t after;
    fill(pg);
    snprintf(log, sizeof log, "%s/log", cluster.folder);
    run_sql(pg, "ALTER ROLE postgres SET session_preload_libraries = 'auto_explain'; "
                "LOAD 'auto_explain'; "
                "ALTER ROLE postgres SET auto_explain.log_min_duration = 0; "
                "ALTER ROLE postgres SET auto_explain.log_analyze = on; "
                "ALTER ROLE postgres SET auto_explain.log_timing = off");
    int64_t begun_ms = po_mono_ms();
    assert_int_equal(pass(&after), ROWS / 2);
    print_message("a pass over %d rows took %" PRId64 " ms\n", ROWS, po_mono_ms() - begun_ms);
    run_sql(pg, "ALTER ROLE postgres RESET ALL");
    int64_t windows = ROWS / 1000 + 1, handled = rows_handled(log);
    assert_true(handled > ROWS); // the plans are there
    if (handled > 20 * windows * (1000 + RANGES))
        fail_msg("%" PRId64 " rows handled", handled);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_open_stays),
        cmocka_unit_test(test_the_cost_of_open_ranges_adds),
    };
    return cmocka_run_group_tests(tests, start_cluster, stop_cluster);
}
