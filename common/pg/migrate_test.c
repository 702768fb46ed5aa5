// Migrations against a private cluster: applied once, in order, whole or not at all; a changed one
// is refused.
#include "../../tests/support/pgtest.h"
#include "pg/migrate.h"
#include <pthread.h>

static pgtest cluster;

static const po_file first = {"0001_rooms.sql",
                              "CREATE SCHEMA house; CREATE TABLE house.room (n int);"};
static const po_file second = {"0002_chair.sql", "INSERT INTO house.room VALUES (1);"
                                                 "INSERT INTO house.room VALUES (2);"};
static const po_file changed = {"0002_chair.sql", "INSERT INTO house.room VALUES (3);"};
static const po_file broken = {"0003_broken.sql",
                               "INSERT INTO house.room VALUES (4); SELECT 1 / 0;"};
static const po_file end = {NULL, NULL};

static int start_cluster(void **state) {
    (void)state;
    pgtest_start(&cluster);
    return 0;
}

static int stop_cluster(void **state) {
    (void)state;
    pgtest_stop(&cluster);
    return 0;
}

static int drop_house(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    assert_true(po_pg_exec(pg, "DROP SCHEMA IF EXISTS house CASCADE", &err));
    return 0;
}

static void test_twice_is_once(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    const po_file before[] = {first, end}, after[] = {first, second, end};
    assert_true(po_migrate(pg, "house", before, &err));
    assert_true(po_migrate(pg, "house", after, &err));
    assert_true(po_migrate(pg, "house", after, &err));
    assert_int_equal(pgtest_number(pg, "SELECT sum(n) FROM house.room"), 3);
    assert_int_equal(pgtest_number(pg, "SELECT count(*) FROM house.schema_migration"), 2);
    // An older program finds newer files applied and has nothing to do.
    assert_true(po_migrate(pg, "house", before, &err));
}

static void test_changed_file_is_refused(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    const po_file as_it_was[] = {first, second, end}, as_it_is[] = {first, changed, end};
    assert_true(po_migrate(pg, "house", as_it_was, &err));
    assert_false(po_migrate(pg, "house", as_it_is, &err));
    assert_int_equal(err.kind, PO_REFUSED);
    assert_string_equal(err.code, "migration_changed");
    assert_non_null(strstr(err.text, "0002_chair.sql"));
    assert_int_equal(pgtest_number(pg, "SELECT sum(n) FROM house.room"), 3);
}

static void test_broken_file_leaves_nothing(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    const po_file files[] = {first, second, broken, end};
    assert_false(po_migrate(pg, "house", files, &err));
    assert_string_equal(err.code, "22012");
    assert_int_equal(pgtest_number(pg, "SELECT sum(n) FROM house.room"), 3);
    assert_int_equal(pgtest_number(pg, "SELECT count(*) FROM house.schema_migration"), 2);
}

static void *migrate(void *arg) {
    (void)arg;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_err err = {0};
    const po_file files[] = {first, second, end};
    return po_migrate(pg, "house", files, &err) ? NULL : (void *)1;
}

static void test_two_at_once_take_turns(void **state) {
    (void)state;
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, migrate, NULL), 0);
    for (int i = 0; i < 4; i++) {
        void *failed = NULL;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    assert_int_equal(pgtest_number(pg, "SELECT sum(n) FROM house.room"), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_twice_is_once, drop_house),
        cmocka_unit_test_setup(test_changed_file_is_refused, drop_house),
        cmocka_unit_test_setup(test_broken_file_leaves_nothing, drop_house),
        cmocka_unit_test_setup(test_two_at_once_take_turns, drop_house),
    };
    return cmocka_run_group_tests(tests, start_cluster, stop_cluster);
}
