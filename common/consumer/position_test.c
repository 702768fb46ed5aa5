// The rows of positions on a real PostgreSQL: what is kept, and who may move it.
#include "../../tests/support/pgtest.h"
#include "consumer/position.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static po_arena *arena;
static pgtest cluster;

static po_positions *member(void) {
    po_positions *positions = po_positions_new("places");
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(2);
    rd_kafka_topic_partition_list_add(list, "t", 0);
    rd_kafka_topic_partition_list_add(list, "t", 1);
    po_positions_assign(positions, list);
    rd_kafka_topic_partition_list_destroy(list);
    return positions;
}

static po_mark mark(int64_t offset) {
    po_mark one = {.offset = offset, .time_us = 1000 * offset};
    one.id.b[15] = (uint8_t)offset;
    return one;
}

static bool same(po_mark a, po_mark b) {
    return a.offset == b.offset && a.time_us == b.time_us &&
           memcmp(a.id.b, b.id.b, sizeof a.id.b) == 0;
}

// A batch that has taken these two offsets; below 0: none of the partition.
static bool batch(po_positions *positions, po_pg *pg, int64_t first, int64_t second, po_err *err) {
    po_positions_begin(positions);
    if (first >= 0)
        po_positions_take(positions, "t", 0, mark(first));
    if (second >= 0)
        po_positions_take(positions, "t", 1, mark(second));
    PO_AUTO(po_tx_done) po_tx tx = {0};
    po_res *res[2] = {NULL, NULL};
    bool fine = po_positions_read(positions, pg, arena, err) && po_pipe_begin(pg, err) &&
                po_tx_send_begin(pg, &tx, err) && po_positions_send(positions, pg, arena, err) &&
                po_pipe_sync(pg, res, 2, err) && po_pipe_end(pg, err) &&
                po_positions_moved(positions, res[1], err) && po_tx_commit(&tx, err);
    po_res_done(&res[0]);
    po_res_done(&res[1]);
    po_positions_done(positions, fine);
    return fine;
}

// FAULTS 52: two records are kept, and the sure one moves only after it was found again.
static void keeps_the_last_record_and_a_sure_one(void **state) {
    po_pg *pg = *state;
    po_err err = {0};
    po_positions *one = member();
    assert_true(batch(one, pg, 9, -1, &err));
    assert_true(batch(one, pg, 19, 4, &err));
    po_positions *next = member();
    assert_true(po_positions_read(next, pg, arena, &err));
    po_position *at = po_positions_find(next, "t", 0);
    assert_true(same(at->last, mark(19)) && same(at->doubt, mark(19)) && same(at->sure, mark(9)));
    assert_true(same(po_positions_find(next, "t", 1)->sure, mark(4)));
    po_position_found(po_positions_find(one, "t", 0));
    assert_true(batch(one, pg, 29, -1, &err));
    po_positions_free(&next);
    next = member();
    assert_true(po_positions_read(next, pg, arena, &err));
    at = po_positions_find(next, "t", 0);
    assert_true(same(at->last, mark(29)) && same(at->sure, mark(19)));
    po_positions_free(&next);
    po_positions_free(&one);
}

// FAULTS 52: whoever does not know the row's last turn moves nothing.
static void a_fenced_member_moves_nothing(void **state) {
    po_pg *pg = *state;
    po_err err = {0};
    po_positions *fenced = member(), *owner = member();
    assert_true(batch(fenced, pg, 39, -1, &err));
    assert_true(batch(owner, pg, 49, -1, &err));
    assert_false(batch(fenced, pg, 44, 5, &err));
    assert_int_equal(err.kind, PO_RETRY);
    assert_string_equal(err.code, "position_moved");
    assert_true(batch(owner, pg, 59, -1, &err));
    po_positions *next = member();
    assert_true(po_positions_read(next, pg, arena, &err));
    assert_int_equal(po_positions_find(next, "t", 0)->last.offset, 59);
    assert_int_not_equal(po_positions_find(next, "t", 1)->last.offset, 5);
    po_positions_free(&next);
    po_positions_free(&owner);
    po_positions_free(&fenced);
}

static int setup(void **state) {
    po_log_init("position_test", PO_ERROR);
    pgtest_start(&cluster);
    arena = po_arena_new();
    po_pg *pg = pgtest_connection(&cluster);
    pgtest_exec(pg, "CREATE SCHEMA places CREATE TABLE position (topic text, partition int, turn "
                    "bigint, next_offset bigint, event_id uuid, record_time timestamptz, "
                    "sure_offset bigint, sure_id uuid, sure_time timestamptz, "
                    "PRIMARY KEY (topic, partition))");
    *state = pg;
    return 0;
}

static int teardown(void **state) {
    po_pg_close((po_pg **)state);
    po_arena_free(&arena);
    pgtest_stop(&cluster);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_the_last_record_and_a_sure_one),
        cmocka_unit_test(a_fenced_member_moves_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
