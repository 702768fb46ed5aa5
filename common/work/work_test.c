// Due rows against a private cluster: each done once whoever competes, and nothing recorded without its lease.
#define _GNU_SOURCE // gettid, pthread_timedjoin_np
#include "../../tests/support/pgtest.h"
#include "metrics/metrics.h"
#include "work/work.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

static pgtest cluster;

static const po_stmt claim = {
    "job_claim",
    "UPDATE job j SET attempts = attempts + 1, lease_token = $2, lease_until = now() + $3 * "
    "interval '1 ms' FROM (SELECT id FROM job WHERE state = 'due' AND due_at <= now() "
    "AND due_at > now() - $4 * interval '1 ms' AND (lease_until IS NULL OR "
    "lease_until <= now()) ORDER BY due_at, id LIMIT $1 "
    "FOR UPDATE SKIP LOCKED) d WHERE j.id = d.id RETURNING j.id::text, j.attempts, "
    "(extract(epoch FROM now() - j.due_at) * 1000)::int8, j.note"};
static const po_stmt later = {
    "job_later", "UPDATE job SET due_at = now() + $3 * interval '1 ms', in_doubt = $5, "
                 "lease_token = NULL, lease_until = NULL, last_error = $4 "
                 "WHERE id = $1::int AND lease_token = $2 AND state = 'due'"};
static const po_stmt depth = {"job_depth",
                              "SELECT count(*), coalesce((extract(epoch FROM now() - "
                              "min(due_at)) * 1000)::int8, 0) FROM job WHERE state = 'due'"};
static const po_stmt settle = {
    "job_settle",
    "UPDATE job SET state = 'done', runs = runs + 1, lease_token = NULL, lease_until = NULL "
    "WHERE id = $1::int AND lease_token = $2 AND state = 'due'"};

static int start_cluster(void **state) {
    (void)state;
    pgtest_start(&cluster);
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    pgtest_exec(
        pg, "CREATE TABLE job (id int PRIMARY KEY, state text NOT NULL DEFAULT 'due', note text, "
            "due_at timestamptz NOT NULL DEFAULT now(), attempts int NOT NULL DEFAULT 0, "
            "runs int NOT NULL DEFAULT 0, lease_token uuid, lease_until timestamptz, last_error "
            "text, in_doubt bool)");
    return 0;
}

static int stop_cluster(void **state) {
    (void)state;
    pgtest_stop(&cluster);
    return 0;
}

static int empty_table(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    pgtest_exec(pg, "TRUNCATE job");
    return 0;
}

static bool settled(po_pg *pg, const po_work_item *item, po_arena *arena) {
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_err err = {0};
    po_args *args = po_args_new(arena);
    po_arg_text(args, item->id);
    po_arg_uuid(args, item->token);
    return po_pg_run(pg, &settle, args, &res, &err) && po_res_affected(res) == 1;
}

typedef po_work_outcome (*runner)(void *arg, po_pg *pg, const po_work_item *item, po_arena *arena,
                                  po_err *err);

static po_workers *start(runner run, void *arg, unsigned workers, int batch, int64_t lease_ms,
                         int64_t idle_ms) {
    po_work work = {.name = "job",
                    .claim = claim,
                    .due_ms_column = 2,
                    .later = later,
                    .depth = depth,
                    .workers = workers,
                    .batch = batch,
                    .lease_ms = lease_ms,
                    .idle_ms = idle_ms,
                    .backoff_ms = 10,
                    .backoff_cap_ms = 20,
                    .run = run,
                    .arg = arg};
    po_workers *started = NULL;
    po_err err = {0};
    assert_true(po_work_start(&work, &(po_pg_options){.dsn = cluster.dsn}, &started, &err));
    return started;
}

// --- Each row by one at a time

enum { ROWS = 200 };
static atomic_int in_hand[ROWS + 1], shared;

static po_work_outcome run_alone(void *arg, po_pg *pg, const po_work_item *item, po_arena *arena,
                                 po_err *err) {
    (void)arg;
    (void)err;
    int id = atoi(item->id.p);
    if (atomic_fetch_add(&in_hand[id], 1) != 0)
        atomic_fetch_add(&shared, 1);
    bool done = settled(pg, item, arena);
    atomic_fetch_sub(&in_hand[id], 1);
    return done ? PO_WORK_DONE : PO_WORK_SKIP;
}

static void test_two_workers_never_share_a_row(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    pgtest_exec(pg, "INSERT INTO job (id) SELECT generate_series(1, 200)");
    PO_AUTO(po_work_stop) po_workers *a = start(run_alone, NULL, 3, 7, 60000, 20);
    PO_AUTO(po_work_stop) po_workers *b = start(run_alone, NULL, 3, 7, 60000, 20);
    pgtest_wait_for(pg, "SELECT count(*) FROM job WHERE state = 'done'", ROWS);
    assert_int_equal(pgtest_number(pg, "SELECT max(runs) FROM job"), 1);
    assert_int_equal(atomic_load(&shared), 0);
}

// --- Later

static po_work_outcome run_third_time(void *arg, po_pg *pg, const po_work_item *item,
                                      po_arena *arena, po_err *err) {
    (void)arg;
    if (item->attempts == 1)
        po_fail(err, PO_RETRY, "busy", "r\xe4tselhaft\n%s", "\x01");
    if (item->attempts < 3)
        return PO_WORK_LATER;
    return settled(pg, item, arena) ? PO_WORK_DONE : PO_WORK_SKIP;
}

static void test_later_is_tried_again(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    pgtest_exec(pg,
                "INSERT INTO job (id) VALUES (1); CREATE TABLE seen (error text, due bool);"
                "CREATE FUNCTION note_later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                "IF NEW.lease_token IS NULL AND NEW.state = 'due' THEN INSERT INTO seen VALUES "
                "(NEW.last_error, "
                "NEW.due_at > now());"
                "END IF; RETURN NEW; END $$;"
                "CREATE TRIGGER t AFTER UPDATE ON job FOR EACH ROW EXECUTE FUNCTION note_later()");
    {
        PO_AUTO(po_work_stop) po_workers *w = start(run_third_time, NULL, 1, 4, 60000, 5);
        pgtest_wait_for(pg, "SELECT count(*) FROM job WHERE state = 'done' AND attempts = 3", 1);
    }
    assert_int_equal(pgtest_number(pg, "SELECT count(*) FROM seen WHERE due"), 2);
    assert_int_equal(
        pgtest_number(pg, "SELECT count(*) FROM seen WHERE error LIKE 'busy: r_tselhaft__'"), 1);
    assert_int_equal(pgtest_number(pg, "SELECT count(*) FROM seen WHERE error ~ '^[ -~]+$'"), 1);
    assert_int_equal(pgtest_number(pg, "SELECT count(*) FROM seen WHERE error IS NULL"), 1);
    pgtest_exec(pg, "DROP TRIGGER t ON job");
}

// --- FAULTS 42: the attempt is counted before the work is done, whether or not its outcome can be recorded.

// Nothing is recorded of the first two runs.
static po_work_outcome run_unrecorded(void *arg, po_pg *pg, const po_work_item *item,
                                      po_arena *arena, po_err *err) {
    (void)err;
    int *runs = arg;
    PO_AUTO(po_pg_close) po_pg *other = pgtest_connection(&cluster);
    assert_int_equal(pgtest_number(other, "SELECT attempts FROM job"), item->attempts); // committed
    if (++*runs < 3)
        return PO_WORK_SKIP;
    assert_true(item->attempts >= 3); // more when a claim took longer than its lease
    return settled(pg, item, arena) ? PO_WORK_DONE : PO_WORK_SKIP;
}

static void test_an_attempt_without_a_record_is_counted(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    int runs = 0;
    pgtest_exec(pg, "INSERT INTO job (id) VALUES (1)");
    PO_AUTO(po_work_stop) po_workers *w = start(run_unrecorded, &runs, 1, 1, 500, 5);
    pgtest_wait_for(pg, "SELECT count(*) FROM job WHERE state = 'done'", 1);
}

// An attempt that may have been done is put off as one in doubt; one that was not done is not.
static po_work_outcome run_in_doubt_once(void *arg, po_pg *pg, const po_work_item *item,
                                         po_arena *arena, po_err *err) {
    (void)arg;
    if (item->attempts == 1)
        po_fail(err, PO_UNCERTAIN, "no_reply", "it may have been done");
    else if (item->attempts == 2)
        po_fail(err, PO_RETRY, "busy", "it was not done");
    else
        return settled(pg, item, arena) ? PO_WORK_DONE : PO_WORK_SKIP;
    return PO_WORK_LATER;
}

static void test_doubt_is_told_apart(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    pgtest_exec(pg, "INSERT INTO job (id) VALUES (1); CREATE TABLE doubt (attempt int, doubt bool);"
                    "CREATE FUNCTION note_doubt() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                    "INSERT INTO doubt VALUES (NEW.attempts, NEW.in_doubt); RETURN NEW; END $$;"
                    "CREATE TRIGGER t AFTER UPDATE ON job FOR EACH ROW WHEN (NEW.lease_token IS "
                    "NULL AND NEW.state = 'due') EXECUTE FUNCTION note_doubt()");
    PO_AUTO(po_work_stop) po_workers *w = start(run_in_doubt_once, NULL, 1, 1, 60000, 5);
    pgtest_wait_for(pg, "SELECT count(*) FROM job WHERE state = 'done' AND attempts = 3", 1);
    assert_int_equal(pgtest_number(pg, "SELECT count(*) FROM doubt WHERE attempt = 1 AND doubt"),
                     1);
    assert_int_equal(
        pgtest_number(pg, "SELECT count(*) FROM doubt WHERE attempt = 2 AND NOT doubt"), 1);
    pgtest_exec(pg, "DROP TRIGGER t ON job");
}

// --- FAULTS 20: the lease runs out in the worker's hands, another finishes, the first comes back late.

typedef struct late_worker {
    po_work_outcome says;
    atomic_int came_back;
} late_worker;

static po_work_outcome run_too_long(void *arg, po_pg *pg, const po_work_item *item, po_arena *arena,
                                    po_err *err) {
    (void)pg;
    late_worker *self = arg;
    po_uuid other = po_uuid_v7(po_now_us());
    PO_AUTO(po_pg_close) po_pg *rival = pgtest_connection(&cluster);
    pgtest_wait_for(rival, "SELECT count(*) FROM job WHERE lease_until <= now()", 1);
    po_args *args = po_args_new(arena);
    po_arg_i32(args, 1);
    po_arg_uuid(args, other);
    po_arg_i64(args, 60000);
    po_arg_i64(args, 3600000);
    assert_true(po_pg_run(rival, &claim, args, NULL, err));
    po_work_item taken = *item;
    taken.token = other;
    if (self->says == PO_WORK_DONE) {
        assert_false(settled(pg, item, arena)); // in the rival's hands
        assert_true(settled(rival, &taken, arena));
        assert_false(settled(pg, item, arena)); // done
    } else {
        assert_true(settled(rival, &taken, arena));
    }
    pgtest_exec(rival, "UPDATE job SET note = 'finished by the rival'");
    atomic_store(&self->came_back, 1);
    return self->says == PO_WORK_DONE ? PO_WORK_SKIP : PO_WORK_LATER;
}

static void test_expired_lease_records_nothing(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    const po_work_outcome says[] = {PO_WORK_DONE, PO_WORK_LATER};
    for (int i = 0; i < 2; i++) {
        late_worker self = {.says = says[i]};
        pgtest_exec(pg, "TRUNCATE job; INSERT INTO job (id) VALUES (1)");
        // Looks often: a claim may have taken longer than its lease, and nothing is begun then.
        po_workers *w = start(run_too_long, &self, 1, 1, 50, 5);
        pgtest_wait_for(pg, "SELECT count(*) FROM job WHERE note = 'finished by the rival'", 1);
        po_work_stop(&w); // has recorded, or not, by then
        assert_int_equal(atomic_load(&self.came_back), 1);
        assert_int_equal(
            pgtest_number(pg, "SELECT count(*) FROM job WHERE state = 'done' AND runs = 1 AND "
                              "attempts >= 2 AND last_error IS NULL"),
            1);
    }
}

// A worker that is gone leaves a lease behind; the row is claimed again when it has run out, not before.
static void test_lease_of_a_dead_worker_runs_out(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    pgtest_exec(pg,
                "INSERT INTO job (id, lease_token, lease_until) VALUES "
                "(1, gen_random_uuid(), now() - interval '1 ms'), (2, gen_random_uuid(), now() + "
                "interval '1 h')");
    PO_AUTO(po_work_stop) po_workers *w = start(run_alone, NULL, 1, 4, 60000, 5);
    pgtest_wait_for(pg, "SELECT count(*) FROM job WHERE state = 'done'", 1);
    assert_int_equal(pgtest_number(pg, "SELECT id FROM job WHERE state = 'done'"), 1);
}

// The second row of a claim whose lease ran out while the first was done waits for a claim of its own.
static po_work_outcome run_slow_first(void *arg, po_pg *pg, const po_work_item *item,
                                      po_arena *arena, po_err *err) {
    (void)err;
    po_uuid *tokens = arg;
    int id = atoi(item->id.p);
    tokens[id] = item->token;
    if (id == 1) {
        bool done = settled(pg, item, arena);
        assert_true(done);
        pgtest_wait_for(pg, "SELECT count(*) FROM job WHERE id = 2 AND lease_until <= now()", 1);
        return PO_WORK_DONE;
    }
    return settled(pg, item, arena) ? PO_WORK_DONE : PO_WORK_SKIP;
}

static void test_rows_behind_a_slow_one(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    po_uuid tokens[3] = {0};
    pgtest_exec(pg, "INSERT INTO job (id) VALUES (1), (2)");
    po_workers *w = start(run_slow_first, tokens, 1, 2, 300, 5);
    pgtest_wait_for(pg, "SELECT count(*) FROM job WHERE state = 'done'", 2);
    po_work_stop(&w);
    assert_memory_not_equal(tokens[1].b, tokens[2].b, 16);
}

// --- FAULTS 35: rows that died stay in the index as long as anybody's snapshot

enum { DEAD = 20000 };

static void hold_dead_rows(po_pg *pg, po_pg *holder) {
    pgtest_exec(
        pg, "CREATE INDEX job_due ON job (due_at) WHERE state = 'due'; SET enable_seqscan = off;"
            "ALTER TABLE job SET (autovacuum_enabled = off)");
    pgtest_exec(holder, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM job");
    char sql[240];
    snprintf(sql, sizeof sql,
             "INSERT INTO job (id, due_at) SELECT n, now() - interval '1 h' + n * interval '1 ms' "
             "FROM generate_series(1, %d) n; DELETE FROM job",
             DEAD);
    pgtest_exec(pg, sql);
}

static void drop_dead_rows(po_pg *pg, po_pg *holder) {
    pgtest_exec(holder, "ROLLBACK");
    pgtest_exec(pg, "DROP INDEX job_due; TRUNCATE job");
}

static int64_t index_count(po_pg *pg, const char *column) {
    char sql[120];
    snprintf(sql, sizeof sql, "SELECT %s FROM pg_stat_user_indexes WHERE indexrelname = 'job_due'",
             column);
    return pgtest_number(pg, sql);
}

// By entries read for each look, whatever the machine's pace: one look in many is at all.
static void test_a_look_passes_over_rows_that_died(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    PO_AUTO(po_pg_close) po_pg *holder = pgtest_connection(&cluster);
    hold_dead_rows(pg, holder);
    char looks[160];
    snprintf(
        looks, sizeof looks,
        "SELECT (idx_scan >= %lld)::int FROM pg_stat_user_indexes WHERE indexrelname = 'job_due'",
        (long long)index_count(pg, "idx_scan") + 300);
    int64_t scans = index_count(pg, "idx_scan"), read = index_count(pg, "idx_tup_read");
    PO_AUTO(po_work_stop) po_workers *w = start(run_alone, NULL, 1, 4, 60000, 5);
    pgtest_wait_for(pg, looks, 1);
    int64_t each = (index_count(pg, "idx_tup_read") - read) / (index_count(pg, "idx_scan") - scans);
    pgtest_exec(pg, "INSERT INTO job (id) VALUES (1)"); // due now: found at once
    pgtest_wait_for(pg, "SELECT count(*) FROM job WHERE state = 'done'", 1);
    pgtest_exec(pg, "INSERT INTO job (id, due_at) VALUES (2, now() - interval '30 min')");
    pgtest_wait_for(pg, "SELECT count(*) FROM job WHERE state = 'done' -- by a look at all", 2);
    po_work_stop(&w);
    drop_dead_rows(pg, holder);
    if (each >= DEAD / 10)
        fail_msg("%lld entries are read by each look at an empty queue", (long long)each);
}

// A backlog is taken from its old end on, each claim where the one before ended, and nothing is
// left over.
static void test_a_backlog_is_taken_as_a_whole(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    pgtest_exec(pg, "INSERT INTO job (id, due_at) SELECT n, now() - (n % 7) * interval '1 min' "
                    "FROM generate_series(1, 200) n");
    PO_AUTO(po_work_stop) po_workers *w = start(run_alone, NULL, 3, 4, 60000, 5);
    pgtest_wait_for(pg, "SELECT count(*) FROM job WHERE state = 'done'", ROWS);
    assert_int_equal(pgtest_number(pg, "SELECT max(runs) FROM job"), 1);
}

// --- Waking, stopping, losing the connection

static void test_wake_cuts_the_idle_wait(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    PO_AUTO(po_work_stop) po_workers *w = start(run_alone, NULL, 2, 1, 60000, 3600000);
    for (int i = 1; i <= 20; i++) {
        char sql[96];
        snprintf(sql, sizeof sql, "INSERT INTO job (id) VALUES (%d), (%d)", i, 100 + i);
        pgtest_exec(pg, sql);
        po_work_wake(w); // whether they sleep already or are still looking
        snprintf(sql, sizeof sql, "SELECT count(*) FROM job WHERE state = 'done' -- %d", i);
        pgtest_wait_for(pg, sql, 2 * i);
    }
}

static atomic_int begun; // the thread that has

static po_work_outcome run_until_told(void *arg, po_pg *pg, const po_work_item *item,
                                      po_arena *arena, po_err *err) {
    (void)err;
    atomic_store(&begun, gettid());
    while (!atomic_load((atomic_int *)arg))
        usleep(1000);
    return settled(pg, item, arena) ? PO_WORK_DONE : PO_WORK_SKIP;
}

static void *stop_workers(void *arg) {
    po_work_stop(arg);
    return NULL;
}

static void test_stop_finishes_the_rows_in_hand(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    pgtest_exec(pg, "INSERT INTO job (id) SELECT generate_series(1, 10)");
    atomic_int go = 0;
    pthread_t stopper;
    struct timespec until;
    po_workers *w = start(run_until_told, &go, 1, 3, 60000, 5);
    while (!atomic_load(&begun))
        usleep(1000);
    assert_int_equal(pthread_create(&stopper, NULL, stop_workers, &w), 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    assert_int_equal(pthread_timedjoin_np(stopper, NULL, &until), ETIMEDOUT); // a row is in hand
    atomic_store(&go, 1);
    pthread_join(stopper, NULL);
    int64_t done = pgtest_number(pg, "SELECT count(*) FROM job WHERE state = 'done'");
    assert_true(done >= 3);
    assert_int_equal(done % 3 == 0 || done == 10, 1); // whole claims
    assert_int_equal(
        pgtest_number(pg,
                      "SELECT count(*) FROM job WHERE state = 'due' AND lease_token IS NOT NULL"),
        0);
}

static po_work_outcome run_and_lose(void *arg, po_pg *pg, const po_work_item *item, po_arena *arena,
                                    po_err *err) {
    (void)arg;
    if (item->attempts == 1) {
        assert_false(po_pg_exec(pg, "SELECT pg_terminate_backend(pg_backend_pid())", err));
        return PO_WORK_LATER;
    }
    return settled(pg, item, arena) ? PO_WORK_DONE : PO_WORK_SKIP;
}

static void test_lost_connection_is_replaced(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    pgtest_exec(pg, "INSERT INTO job (id) VALUES (1), (2), (3)");
    PO_AUTO(po_work_stop) po_workers *w = start(run_and_lose, NULL, 1, 3, 60000, 5);
    pgtest_wait_for(pg, "SELECT count(*) FROM job WHERE state = 'done' AND attempts = 2", 3);
    assert_int_equal(pgtest_number(pg, "SELECT count(*) FROM job WHERE last_error LIKE '57P01:%'"),
                     3);
}

// The table is gone for a while: the workers wait, and go on when it is back.
static void test_workers_outlive_an_outage(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    pgtest_exec(pg, "INSERT INTO job (id) VALUES (1); ALTER TABLE job RENAME TO away");
    // Sessions of workers before.
    pgtest_wait_for(pg, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'UPDATE job j%'",
                    0);
    PO_AUTO(po_work_stop) po_workers *w = start(run_alone, NULL, 2, 3, 60000, 5);
    pgtest_wait_for(
        pg, "SELECT (count(*) > 0)::int FROM pg_stat_activity WHERE query LIKE 'UPDATE job j%'", 1);
    pgtest_exec(pg, "ALTER TABLE away RENAME TO job");
    pgtest_wait_for(pg, "SELECT count(*) FROM job WHERE state = 'done'", 1);
}

static void test_metrics_are_shown(void **state) {
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    po_work_declare_metrics();
    po_metrics_write(out);
    fclose(out);
    assert_non_null(strstr(text, "payonce_work_done_total{work=\"job\"}"));
    assert_non_null(strstr(text, "payonce_work_due{work=\"job\"}"));
    assert_non_null(strstr(text, "payonce_work_oldest_due_seconds{work=\"job\"}"));
    free(text);
}

// A process ends in an order of its own and may be a while at it; no row is begun that would make it longer.
static void test_a_stopping_process_begins_no_row(void **state) {
    (void)state;
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    pgtest_exec(pg, "INSERT INTO job (id) SELECT generate_series(1, 50)");
    atomic_int go = 0;
    atomic_store(&begun, 0);
    PO_AUTO(po_work_stop) po_workers *w = start(run_until_told, &go, 1, 2, 60000, 5);
    while (!atomic_load(&begun))
        usleep(1000);
    po_stop();
    atomic_store(&go, 1);
    char worker[64];
    snprintf(worker, sizeof worker, "/proc/self/task/%d", atomic_load(&begun));
    int64_t until_ms = po_mono_ms() + PGTEST_WAIT_MS;
    while (access(worker, F_OK) == 0) { // ends by itself
        assert_true(po_mono_ms() < until_ms);
        usleep(1000);
    }
    assert_int_equal(pgtest_number(pg, "SELECT count(*) FROM job WHERE state = 'done'"), 2);
    assert_int_equal(pgtest_number(pg, "SELECT count(*) FROM job WHERE lease_token IS NOT NULL"),
                     0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_two_workers_never_share_a_row, empty_table),
        cmocka_unit_test_setup(test_later_is_tried_again, empty_table),
        cmocka_unit_test_setup(test_an_attempt_without_a_record_is_counted, empty_table),
        cmocka_unit_test_setup(test_doubt_is_told_apart, empty_table),
        cmocka_unit_test_setup(test_expired_lease_records_nothing, empty_table),
        cmocka_unit_test_setup(test_lease_of_a_dead_worker_runs_out, empty_table),
        cmocka_unit_test_setup(test_rows_behind_a_slow_one, empty_table),
        cmocka_unit_test_setup(test_a_look_passes_over_rows_that_died, empty_table),
        cmocka_unit_test_setup(test_a_backlog_is_taken_as_a_whole, empty_table),
        cmocka_unit_test_setup(test_wake_cuts_the_idle_wait, empty_table),
        cmocka_unit_test_setup(test_stop_finishes_the_rows_in_hand, empty_table),
        cmocka_unit_test_setup(test_lost_connection_is_replaced, empty_table),
        cmocka_unit_test_setup(test_workers_outlive_an_outage, empty_table),
        cmocka_unit_test(test_metrics_are_shown),
        cmocka_unit_test_setup(test_a_stopping_process_begins_no_row, empty_table), // the last
    };
    return cmocka_run_group_tests(tests, start_cluster, stop_cluster);
}
