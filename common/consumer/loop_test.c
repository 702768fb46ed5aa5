// The loop against librdkafka's mock cluster: whatever run answers, each partition's messages are
// applied in order, none skipped, none twice, and an offset is committed only behind what was
// applied. Unlike a broker the mock refuses every commit from the moment a member joins or leaves until all
// have the new assignment: what was applied meanwhile comes again.
#include "consumer/loop.h"

#include "base/clock.h"
#include "consumer/meter.h"

#include <librdkafka/rdkafka_mock.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { PARTITIONS = 3, PER_PARTITION = 400, TURNS_MS = 60000, EACH = -2 };
static const char *const topics[] = {"t", NULL};

static rd_kafka_t *producer;
static rd_kafka_mock_cluster_t *cluster;

// What the tests let run answer, and what it was given.
typedef struct sink {
    int64_t applied[PARTITIONS]; // the next offset of each partition
    int64_t total;
    int64_t calls, fail_every; // every n-th call fails, with one kind after the other
    bool down;                 // every call fails as if the database were away
    bool again;                // messages may come twice: after a rebalance
    int32_t poison_partition;  // -1: none; EACH: all
    int64_t poison_offset;
    int doubts; // calls with the poison alone that are in doubt; the last one ends it
    int64_t most;
    size_t can;               // more at once is too much; 0: any number
    int32_t locked_partition; // with an offset: this message waits for a lock
    int64_t locked_offset;    // 0: none
    int64_t too_much;         // calls that were
} sink;

static bool poisoned(sink *s, size_t n, po_err *err) {
    if (n > 1 || s->doubts == 0)
        return po_fail(err, PO_REFUSED, "poison", "as the test wants");
    if (--s->doubts == 0)
        s->poison_partition = -1;
    return po_fail(err, PO_UNCERTAIN, "doubt", "as the test wants");
}

static bool sink_run(void *arg, rd_kafka_message_t **messages, size_t n, po_err *err) {
    sink *s = arg;
    s->calls++;
    if ((int64_t)n > s->most)
        s->most = (int64_t)n;
    if (s->can && n > s->can) {
        s->too_much++;
        return po_fail(err, PO_RETRY, "57014", "as the test wants");
    }
    for (size_t i = 0; s->locked_offset && i < n; i++)
        if (messages[i]->partition == s->locked_partition &&
            messages[i]->offset == s->locked_offset)
            return po_fail(err, PO_RETRY, "55P03", "as the test wants");
    if (s->down)
        return po_fail(err, PO_RETRY, "down", "as the test wants");
    static const po_kind kinds[] = {PO_RETRY, PO_BUG, PO_UNCERTAIN};
    if (s->fail_every && s->calls % s->fail_every == 0)
        return po_fail(err, kinds[s->calls / s->fail_every % 3], "test", "as the test wants");
    for (size_t i = 0; i < n; i++)
        if ((messages[i]->partition == s->poison_partition || s->poison_partition == EACH) &&
            messages[i]->offset == s->poison_offset)
            return poisoned(s, n, err);
    for (size_t i = 0; i < n; i++) {
        // The payload is the offset as text, so a mix-up inside librdkafka would show as well.
        int64_t said = -1;
        assert_true(po_parse_i64((po_str){messages[i]->payload, messages[i]->len}, &said));
        assert_int_equal(said, messages[i]->offset);
        if (s->again && said < s->applied[messages[i]->partition])
            continue;
        assert_int_equal(said, s->applied[messages[i]->partition]);
        s->applied[messages[i]->partition]++;
        s->total++;
    }
    return true;
}

static bool is_too_much(const po_err *err) {
    return strcmp(err->code, "57014") == 0 || strcmp(err->code, "55P03") == 0;
}

static po_uuid id_of(int32_t partition, int64_t offset) {
    po_uuid id = {{0}};
    id.b[0] = (uint8_t)partition;
    id.b[14] = (uint8_t)(offset >> 8);
    id.b[15] = (uint8_t)offset;
    return id;
}

// What a group knows of the log: the record before `next`, by its id or by another's.
typedef struct memory {
    po_positions *positions;
    int64_t next;
    bool another;
} memory;
static memory remembered;

static bool recall(void *arg, po_err *err) {
    (void)arg, (void)err;
    for (int32_t p = 0; p < PARTITIONS; p++) {
        po_position *one = po_positions_find(remembered.positions, "t", p);
        if (!one || one->known)
            continue;
        one->known = true;
        one->last = (po_mark){.offset = remembered.next - 1,
                              .id = id_of(remembered.another ? 99 : p, remembered.next - 1),
                              .time_us = PO_NO_TIME};
        one->sure = one->doubt = one->last;
    }
    return true;
}

static rd_kafka_conf_t *conf_for(const char *group, const po_kafka_setting *settings) {
    po_kafka_setting table[32] = {{"group.id", group}};
    size_t n = 1;
    while (settings[n - 1].name) {
        table[n] = settings[n - 1];
        n++;
    }
    table[n++] = (po_kafka_setting){"session.timeout.ms", "7000"};
    table[n] = (po_kafka_setting){"heartbeat.interval.ms", "500"};
    rd_kafka_conf_t *conf = NULL;
    po_err err = {0};
    assert_true(
        po_kafka_conf(rd_kafka_mock_cluster_bootstraps(cluster), group, table, "", &conf, &err));
    return conf;
}

static po_loop *join_with(const char *group, sink *s, po_witness *witness) {
    rd_kafka_conf_t *conf = conf_for(group, po_loop_settings);
    po_loop *loop = NULL;
    po_err err = {0};
    po_loop_options options = {.topics = topics,
                               .batch = 50,
                               .blocked_retry_ms = 200,
                               .run = sink_run,
                               .arg = s,
                               .is_too_much = is_too_much,
                               .is_its_own = is_too_much,
                               .witness = witness,
                               .positions = witness ? remembered.positions : NULL,
                               .recall = recall};
    assert_true(po_loop_open(&options, &conf, &loop, &err));
    assert_true(po_loop_join(loop, &err));
    return loop;
}

static po_loop *join(const char *group, sink *s) {
    return join_with(group, s, NULL);
}

static void turn_until(po_loop *loop, const int64_t *value, int64_t wanted) {
    po_err err = {0};
    int64_t until = po_mono_ms() + TURNS_MS;
    while (*value < wanted && po_mono_ms() < until)
        assert_true(po_loop_turn(loop, &err));
    assert_true(*value >= wanted);
}

static int64_t committed(const char *group, int32_t partition) {
    char why[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    assert_int_equal(rd_kafka_conf_set(conf, "bootstrap.servers",
                                       rd_kafka_mock_cluster_bootstraps(cluster), why, sizeof why),
                     RD_KAFKA_CONF_OK);
    assert_int_equal(rd_kafka_conf_set(conf, "group.id", group, why, sizeof why), RD_KAFKA_CONF_OK);
    rd_kafka_t *kafka = rd_kafka_new(RD_KAFKA_CONSUMER, conf, why, sizeof why);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, "t", partition);
    assert_int_equal(rd_kafka_committed(kafka, list, 10000), RD_KAFKA_RESP_ERR_NO_ERROR);
    int64_t offset = list->elems[0].offset;
    rd_kafka_topic_partition_list_destroy(list);
    rd_kafka_destroy(kafka);
    return offset;
}

static void waits_and_halves_and_goes_on(void **state) {
    (void)state;
    sink s = {.fail_every = 5, .poison_partition = -1};
    po_loop *loop = join("waits", &s);
    turn_until(loop, &s.total, PARTITIONS * PER_PARTITION);
    assert_true(s.most > 1 && s.most <= 50);
    po_loop_close(&loop);
    for (int32_t p = 0; p < PARTITIONS; p++)
        assert_int_equal(committed("waits", p), PER_PARTITION);
}

static size_t blocked(po_loop *loop) {
    json_t *status = po_loop_status(loop), *row = NULL;
    size_t n = 0, i = 0;
    json_array_foreach(json_object_get(status, "partitions"), i, row) n +=
        json_object_get(row, "blocked") != NULL;
    json_decref(status);
    return n;
}

static void a_refused_event_blocks_its_partition_only(void **state) {
    (void)state;
    sink s = {.poison_partition = 1, .poison_offset = 7};
    po_loop *loop = join("blocks", &s);
    turn_until(loop, &s.total, (PARTITIONS - 1) * PER_PARTITION + 7);
    // It goes on waiting through retries, and through a wait of all that pauses and resumes the
    // others.
    int64_t calls = s.calls;
    turn_until(loop, &s.calls, calls + 3);
    assert_int_equal(s.applied[1], 7);
    assert_int_equal(blocked(loop), 1);

    s.poison_partition = -1;
    turn_until(loop, &s.total, PARTITIONS * PER_PARTITION);
    po_loop_close(&loop);
    assert_int_equal(committed("blocks", 1), PER_PARTITION);
}

// A COMMIT without an answer is nobody's fault: the same again, and no partition is blocked for it.
static void what_is_in_doubt_is_run_again_and_blocks_nothing(void **state) {
    (void)state;
    sink s = {.poison_partition = 1, .poison_offset = 7, .doubts = 2};
    po_loop *loop = join("doubts", &s);
    po_err err = {0};
    int64_t until = po_mono_ms() + TURNS_MS;
    while (s.total < PARTITIONS * PER_PARTITION && po_mono_ms() < until) {
        assert_true(po_loop_turn(loop, &err));
        assert_int_equal(blocked(loop), 0);
    }
    assert_int_equal(s.total, PARTITIONS * PER_PARTITION);
    assert_int_equal(s.doubts, 0);
    po_loop_close(&loop);
}

static void a_blocked_partition_commits_nothing_behind_the_event(void **state) {
    (void)state;
    sink s = {.poison_partition = 1, .poison_offset = 7};
    po_loop *loop = join("stays", &s);
    turn_until(loop, &s.total, (PARTITIONS - 1) * PER_PARTITION + 7);
    po_loop_close(&loop);
    assert_int_equal(committed("stays", 1), 7);
    // The next member starts at the very event.
    s.poison_partition = -1;
    loop = join("stays", &s);
    turn_until(loop, &s.total, PARTITIONS * PER_PARTITION);
    po_loop_close(&loop);
}

static void a_member_that_comes_takes_over_without_a_gap(void **state) {
    (void)state;
    sink s = {.fail_every = 3, .again = true, .poison_partition = -1};
    po_loop *first = join("shares", &s);
    turn_until(first, &s.total, 100);
    // Both feed one sink: a gap would fail there.
    po_loop *second = join("shares", &s);
    po_err err = {0};
    int64_t until = po_mono_ms() + TURNS_MS;
    while (s.total < PARTITIONS * PER_PARTITION && po_mono_ms() < until) {
        assert_true(po_loop_turn(first, &err));
        assert_true(po_loop_turn(second, &err));
    }
    assert_int_equal(s.total, PARTITIONS * PER_PARTITION);
    // Before anybody leaves, for that begins a rebalance.
    for (int32_t p = 0; p < PARTITIONS; p++) {
        while (committed("shares", p) < PER_PARTITION && po_mono_ms() < until) {
            assert_true(po_loop_turn(first, &err));
            assert_true(po_loop_turn(second, &err));
        }
        assert_int_equal(committed("shares", p), PER_PARTITION);
    }
    po_loop_close(&first);
    po_loop_close(&second);
}

// Each call may take as long as a connection to a database that is not there: blocked partitions do
// not add up.
static void blocked_partitions_ask_a_missing_database_one_at_a_time(void **state) {
    (void)state;
    sink s = {.poison_partition = EACH, .poison_offset = 7};
    po_loop *loop = join("asks", &s);
    turn_until(loop, &s.total, PARTITIONS * 7);
    po_err err = {0};
    int64_t until = po_mono_ms() + TURNS_MS;
    while (blocked(loop) < PARTITIONS && po_mono_ms() < until)
        assert_true(po_loop_turn(loop, &err));
    assert_int_equal(blocked(loop), PARTITIONS);
    s.down = true;
    for (int asked = 0; asked < 2 * PARTITIONS && po_mono_ms() < until;) {
        usleep(250000); // all are due
        int64_t calls = s.calls;
        assert_true(po_loop_turn(loop, &err));
        assert_true(s.calls - calls <= 1);
        asked += s.calls > calls;
    }
    assert_true(po_mono_ms() < until);
    s.down = false;
    s.poison_partition = -1;
    turn_until(loop, &s.total, PARTITIONS * PER_PARTITION);
    po_loop_close(&loop);
}

// A member that waits, all paused, loses its partitions to another; what it gets then must flow.
static void waiting_does_not_outlive_the_assignment(void **state) {
    (void)state;
    sink s = {.again = true, .poison_partition = -1};
    po_loop *first = join("hands", &s);
    turn_until(first, &s.total, 1);
    s.down = true;
    po_loop *second = join("hands", &s);
    po_err err = {0};
    turn_until(first, &s.calls, s.calls + 1); // that turn ends by the revocation alone
    json_t *status = po_loop_status(first);
    assert_true(json_is_null(json_object_get(status, "waiting")));
    json_decref(status);
    s.down = false;
    int64_t until = po_mono_ms() + TURNS_MS;
    while (s.total < PARTITIONS * PER_PARTITION && po_mono_ms() < until) {
        assert_true(po_loop_turn(first, &err));
        assert_true(po_loop_turn(second, &err));
    }
    assert_int_equal(s.total, PARTITIONS * PER_PARTITION);
    po_loop_close(&first);
    po_loop_close(&second);
}

// FAULTS 52: a group that has read to the end, and knows the last record by this id or by another's.
static void joins_again(const char *group, bool another, sink *ret_sink) {
    sink first = {.poison_partition = -1};
    po_loop *loop = join(group, &first);
    turn_until(loop, &first.total, PARTITIONS * PER_PARTITION);
    po_loop_close(&loop);
    assert_int_equal(committed(group, 0), PER_PARTITION);

    po_err err = {0};
    po_witness *witness = NULL;
    rd_kafka_conf_t *conf = conf_for(group, po_witness_settings);
    remembered = (memory){
        .positions = po_positions_new("unused"), .next = PER_PARTITION, .another = another};
    assert_true(po_witness_open(&conf, &witness, &err));
    loop = join_with(group, ret_sink, witness);
    // All have been asked: then either all comes again, or nothing more is to be done.
    int64_t until = po_mono_ms() + TURNS_MS;
    bool told = false;
    while (!told && po_mono_ms() < until) {
        assert_true(po_loop_turn(loop, &err));
        told = true;
        for (int32_t p = 0; p < PARTITIONS; p++) {
            const po_position *one = po_positions_find(remembered.positions, "t", p);
            told = told && one && one->known && one->doubt.offset < 0;
        }
    }
    assert_true(told);
    if (another)
        turn_until(loop, &ret_sink->total, PARTITIONS * PER_PARTITION);
    po_loop_close(&loop);
    po_witness_close(&witness);
    po_positions_free(&remembered.positions);
}

static void the_same_log_is_read_on(void **state) {
    (void)state;
    sink s = {.poison_partition = -1};
    joins_again("same", false, &s);
    assert_int_equal(s.total, 0);
}

static void another_log_is_read_from_its_beginning(void **state) {
    (void)state;
    sink s = {.poison_partition = -1};
    joins_again("another", true, &s);
    assert_int_equal(s.total, PARTITIONS * PER_PARTITION);
}

// FAULTS 52: its messages are in hand by the time that is known. None of them counts before.
static void a_log_that_ends_below_is_read_from_its_beginning(void **state) {
    (void)state;
    sink s = {.poison_partition = -1};
    po_err err = {0};
    po_witness *witness = NULL;
    rd_kafka_conf_t *conf = conf_for("below", po_witness_settings);
    remembered = (memory){.positions = po_positions_new("unused"), .next = 2 * PER_PARTITION};
    assert_true(po_witness_open(&conf, &witness, &err));
    po_loop *loop = join_with("below", &s, witness);
    turn_until(loop, &s.total, PARTITIONS * PER_PARTITION);
    po_loop_close(&loop);
    for (int32_t p = 0; p < PARTITIONS; p++)
        assert_int_equal(committed("below", p), PER_PARTITION);
    po_witness_close(&witness);
    po_positions_free(&remembered.positions);
}

// FAULTS 44: a batch that needs longer than a statement may take is no event's fault, but its own.
static void a_batch_that_is_too_much_is_halved_and_grows_again(void **state) {
    (void)state;
    sink s = {.poison_partition = -1, .can = 7};
    po_loop *loop = join("much", &s);
    turn_until(loop, &s.total, 100);
    assert_true(s.too_much >= 2);
    s.can = 0;
    s.most = 0;
    turn_until(loop, &s.total, PARTITIONS * PER_PARTITION);
    assert_true(s.most > 25 && s.most <= 50);
    assert_int_equal(blocked(loop), 0);
    po_loop_close(&loop);
}

// FAULTS 44: nobody else waits for the lock that one event waits for.
static void a_locked_row_holds_up_its_partition_only(void **state) {
    (void)state;
    sink s = {.poison_partition = -1, .locked_partition = 1, .locked_offset = 7};
    po_loop *loop = join("locked", &s);
    turn_until(loop, &s.total, (PARTITIONS - 1) * PER_PARTITION + 7);
    assert_int_equal(s.applied[1], 7);
    assert_int_equal(blocked(loop), 1);
    s.locked_offset = 0;
    turn_until(loop, &s.total, PARTITIONS * PER_PARTITION);
    assert_int_equal(blocked(loop), 0);
    po_loop_close(&loop);
    assert_int_equal(committed("locked", 1), PER_PARTITION);
}

static void closing_is_bounded_without_a_broker(void **state) {
    (void)state;
    sink s = {.poison_partition = -1};
    po_loop *loop = join("closes", &s);
    turn_until(loop, &s.total, 1);
    rd_kafka_mock_broker_set_down(cluster, 1);
    int64_t began = po_mono_ms();
    po_loop_close(&loop);
    assert_true(po_mono_ms() - began < 20000);
    rd_kafka_mock_broker_set_up(cluster, 1);
}

static void produce(void) {
    for (int32_t p = 0; p < PARTITIONS; p++)
        for (int i = 0; i < PER_PARTITION; i++) {
            char text[16];
            int n = snprintf(text, sizeof text, "%d", i);
            po_ce ce = {.id = id_of(p, i),
                        .type = po_s("payonce.test"),
                        .source = po_s("/test"),
                        .subject = po_s("k"),
                        .sequence = i};
            assert_int_equal(
                rd_kafka_producev(producer, RD_KAFKA_V_TOPIC("t"), RD_KAFKA_V_PARTITION(p),
                                  RD_KAFKA_V_KEY("k", 1), RD_KAFKA_V_VALUE(text, (size_t)n),
                                  RD_KAFKA_V_HEADERS(po_ce_headers(&ce)),
                                  RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_END),
                RD_KAFKA_RESP_ERR_NO_ERROR);
        }
    assert_int_equal(rd_kafka_flush(producer, 20000), RD_KAFKA_RESP_ERR_NO_ERROR);
}

static int setup(void **state) {
    (void)state;
    char why[256];
    po_log_init("loop_test", PO_ERROR);
    po_meter_declare();
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "test.mock.num.brokers", "1", why, sizeof why);
    producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof why);
    cluster = rd_kafka_handle_mock_cluster(producer);
    rd_kafka_mock_topic_create(cluster, "t", PARTITIONS, 1);
    produce();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    rd_kafka_destroy(producer);
    return 0;
}

// Each test in a process of its own, with a cluster of its own, and all at once: they mostly wait for a group to form,
// since the mock lets a group's first member wait 3 s, and a later one nearly the session's time.
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_and_halves_and_goes_on),
        cmocka_unit_test(a_refused_event_blocks_its_partition_only),
        cmocka_unit_test(what_is_in_doubt_is_run_again_and_blocks_nothing),
        cmocka_unit_test(a_blocked_partition_commits_nothing_behind_the_event),
        cmocka_unit_test(blocked_partitions_ask_a_missing_database_one_at_a_time),
        cmocka_unit_test(a_member_that_comes_takes_over_without_a_gap),
        cmocka_unit_test(waiting_does_not_outlive_the_assignment),
        cmocka_unit_test(the_same_log_is_read_on),
        cmocka_unit_test(another_log_is_read_from_its_beginning),
        cmocka_unit_test(a_log_that_ends_below_is_read_from_its_beginning),
        cmocka_unit_test(a_batch_that_is_too_much_is_halved_and_grows_again),
        cmocka_unit_test(a_locked_row_holds_up_its_partition_only),
        cmocka_unit_test(closing_is_bounded_without_a_broker),
    };
    enum { N = sizeof tests / sizeof *tests };
    pid_t running[N];
    for (size_t i = 0; i < N; i++) {
        running[i] = fork();
        if (running[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            const struct CMUnitTest one[] = {tests[i]};
            exit(cmocka_run_group_tests(one, setup, teardown));
        }
    }
    int failed = 0;
    for (size_t i = 0; i < N; i++) {
        int status = 1;
        failed += running[i] < 0 || waitpid(running[i], &status, 0) != running[i] || status != 0;
    }
    return failed;
}
