// The loop of a group member. Its design:
// - Messages in hand are `pending`, in order of arrival; a *lane* is an assigned partition. A lane
//   that a refused message blocks keeps its later messages itself (`held`) and is paused.
//   librdkafka's position is therefore always the last message it gave us, and nothing ever seeks:
//   a pause after a seek forgets the seek in some versions, and would skip what must not be skipped.
// - Everything happens on one thread: librdkafka calls back about rebalances inside a poll, and
//   polls happen only between runs. On a revocation the offsets stored so far are committed, what
//   is in hand is dropped (its offsets were not stored) and the next owner gets it again; the inbox
//   knows what was already applied.
// - Offsets are stored after run's yes, committed about once a second by librdkafka, and at
//   revocation and close by us, waiting a bounded time for the answer.
#include "consumer/loop.h"

#include "base/clock.h"
#include "consumer/meter.h"
#include "life/need.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

enum {
    IDLE_MS = 100, // the longest poll
    LINGER_MS = 5, // for a batch to fill after its first message
    COMMIT_MS = 5000,
    LEAVE_MS = 7000,
    CLOSE_MS = 9000, // all of it
    ASK_MS = 1000,   // for an answer that only a log line needs
    BACKOFF_MS = 100,
    BACKOFF_CAP_MS = 5000,
    SAME_ERROR_MS = 60000, // a client error is not logged again before
    RETRY_SHARE = 4,       // a blocked partition waits so many times as long as its last try took
    CHECK_MS = 10000,      // between two looks at the logs
    CHECK_AGAIN_MS = 2000, // when a look told nothing, or there is a doubt
    CHECKS_TOLD = 5,       // looks in a row that told nothing: that is told, once
    WITNESS_MS = 2000,     // for the answers of one look
    UNSURE_MS = 10000,     // so long a new assignment waits for what looks tell
};
static const int64_t overlap_us = 3600 * PO_SECOND_US; // clocks that wrote the timestamps differ

const po_kafka_setting po_loop_settings[] = {
    {"partition.assignment.strategy", "range"},
    {"session.timeout.ms", "10000"},
    {"enable.auto.commit", "true"},
    {"auto.commit.interval.ms", "1000"},
    {"enable.auto.offset.store", "false"},
    {"auto.offset.reset", "earliest"},
    {"topic.metadata.refresh.interval.ms",
     "20000"}, // how long an added partition waits for readers
    {"isolation.level", "read_committed"},
    {"queued.max.messages.kbytes", "16384"},
    {0},
};

typedef struct queue {
    rd_kafka_message_t **at;
    size_t n, cap;
} queue;

typedef struct lane {
    char *topic;
    int32_t partition;
    int64_t next; // the stored offset, -1 before the first
    bool seen;    // has given a message since it was assigned
    bool unsure;  // is its log the one that was read? Nothing of it is applied before that is known
    bool blocked;
    queue held; // while blocked: the refused message and those behind it
    int64_t retry_at_ms, blocked_since_us;
    po_err why;
} lane;

struct po_loop {
    po_loop_options options;
    rd_kafka_t *kafka;
    po_need *brokers;
    bool assigned; // a member that knows its lanes, perhaps none
    queue pending;
    bool paused;  // all lanes, while waiting
    int attempt;  // of the wait in progress
    size_t limit; // most messages in one run: fewer than options.batch while that is too much
    int too_much; // failures in a row that said so
    rd_kafka_resp_err_t last_error;
    int64_t last_error_ms;
    bool fatal;
    int64_t check_at_ms;
    int checks_failed; // in a row
    int64_t assigned_ms;

    pthread_mutex_t lock; // guards what po_loop_status reads, and is taken by the loop to write it
    lane *lanes;
    size_t n_lanes;
    int64_t waiting_since_us, last_commit_us; // 0: not
    po_err waiting_for;
};

static void tick(po_loop *loop) {
    if (loop->options.beat)
        po_beat_tick(loop->options.beat);
}

// --- Queues and lanes

static void queue_push(queue *q, rd_kafka_message_t *message) {
    if (q->n == q->cap) {
        q->cap = q->cap ? 2 * q->cap : 64;
        q->at = reallocarray(q->at, q->cap, sizeof *q->at);
        if (!q->at)
            abort();
    }
    q->at[q->n++] = message;
}

static void queue_drop(queue *q, size_t n) {
    for (size_t i = 0; i < n; i++)
        rd_kafka_message_destroy(q->at[i]);
    q->n -= n;
    if (q->n)
        memmove(q->at, q->at + n, q->n * sizeof *q->at);
}

static void queue_done(queue *q) {
    queue_drop(q, q->n);
    free(q->at);
    *q = (queue){0};
}

static lane *lane_find(po_loop *loop, const char *topic, int32_t partition) {
    for (size_t i = 0; i < loop->n_lanes; i++) {
        lane *one = &loop->lanes[i];
        if (one->partition == partition && strcmp(one->topic, topic) == 0)
            return one;
    }
    return NULL;
}

static lane *lane_of(po_loop *loop, const rd_kafka_message_t *message) {
    return lane_find(loop, rd_kafka_topic_name(message->rkt), message->partition);
}

static void lanes_drop(po_loop *loop) {
    pthread_mutex_lock(&loop->lock);
    for (size_t i = 0; i < loop->n_lanes; i++) {
        queue_done(&loop->lanes[i].held);
        free(loop->lanes[i].topic);
    }
    free(loop->lanes);
    loop->lanes = NULL;
    loop->n_lanes = 0;
    pthread_mutex_unlock(&loop->lock);
    queue_drop(&loop->pending, loop->pending.n);
}

static void wait_clear(po_loop *loop) {
    loop->attempt = 0;
    pthread_mutex_lock(&loop->lock);
    loop->waiting_since_us = 0;
    pthread_mutex_unlock(&loop->lock);
    po_gauge(po_meter.waiting, NULL, 0);
    po_gauge(po_meter.alarm, NULL, 0);
}

static void lanes_set(po_loop *loop, const rd_kafka_topic_partition_list_t *list) {
    lanes_drop(loop);
    if (list->cnt == 0)
        return;
    pthread_mutex_lock(&loop->lock);
    loop->lanes = calloc((size_t)list->cnt, sizeof *loop->lanes);
    if (!loop->lanes)
        abort();
    for (int i = 0; i < list->cnt; i++) {
        lane *one = &loop->lanes[loop->n_lanes++];
        *one = (lane){.partition = list->elems[i].partition, .next = -1};
        if (!(one->topic = strdup(list->elems[i].topic)))
            abort();
    }
    pthread_mutex_unlock(&loop->lock);
}

static void show_lanes(const po_loop *loop) {
    double blocked = 0;
    for (size_t i = 0; i < loop->n_lanes; i++)
        blocked += loop->lanes[i].blocked;
    po_gauge(po_meter.blocked, NULL, blocked);
    po_gauge(po_meter.partitions, NULL, (double)loop->n_lanes);
}

// --- Pausing. Only lanes that have given a message: before that librdkafka may resume elsewhere
// than it was to start. The others are paused by their first message. A pause outlives the
// assignment, so it is lifted before.

static void pause_set(po_loop *loop, bool pause, bool (*which)(const lane *one, const void *arg),
                      const void *arg) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(8);
    for (size_t i = 0; i < loop->n_lanes; i++) {
        const lane *one = &loop->lanes[i];
        if (which(one, arg))
            rd_kafka_topic_partition_list_add(list, one->topic, one->partition);
    }
    rd_kafka_resp_err_t code = RD_KAFKA_RESP_ERR_NO_ERROR;
    if (list->cnt)
        code = pause ? rd_kafka_pause_partitions(loop->kafka, list)
                     : rd_kafka_resume_partitions(loop->kafka, list);
    if (code)
        po_log(PO_WARN, pause ? "pausing failed" : "resuming failed",
               PO_TEXT("code", rd_kafka_err2name(code)));
    rd_kafka_topic_partition_list_destroy(list);
}

static bool is_free(const lane *one, const void *arg) {
    (void)arg;
    return one->seen && !one->blocked;
}

static bool is_same(const lane *one, const void *arg) {
    return one == arg;
}

static bool is_any(const lane *one, const void *arg) {
    (void)one, (void)arg;
    return true;
}

static void resume(po_loop *loop) {
    if (!loop->paused)
        return;
    loop->paused = false;
    pause_set(loop, false, is_free, NULL);
}

// --- Membership

// NULL: what is stored.
static rd_kafka_resp_err_t commit(po_loop *loop, const rd_kafka_topic_partition_list_t *offsets) {
    rd_kafka_queue_t *answers = rd_kafka_queue_new(loop->kafka);
    rd_kafka_resp_err_t code = rd_kafka_commit_queue(loop->kafka, offsets, answers, NULL, NULL);
    if (!code) {
        rd_kafka_event_t *answer = rd_kafka_queue_poll(answers, COMMIT_MS);
        code = answer ? rd_kafka_event_error(answer) : RD_KAFKA_RESP_ERR__TIMED_OUT;
        if (answer)
            rd_kafka_event_destroy(answer);
    }
    rd_kafka_queue_destroy(answers);
    return code;
}

static void commit_stored(po_loop *loop) {
    rd_kafka_resp_err_t code = commit(loop, NULL);
    if (code && code != RD_KAFKA_RESP_ERR__NO_OFFSET)
        po_log(PO_WARN, "offsets not committed: their events come again and change nothing",
               PO_TEXT("code", rd_kafka_err2name(code)));
}

static void on_rebalance(rd_kafka_t *kafka, rd_kafka_resp_err_t code,
                         rd_kafka_topic_partition_list_t *list, void *opaque) {
    po_loop *loop = opaque;
    bool assigned = code == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
    bool lost = !assigned && rd_kafka_assignment_lost(kafka);
    loop->assigned = assigned;
    if (loop->options.positions)
        po_positions_assign(loop->options.positions, assigned ? list : NULL);
    if (assigned) {
        lanes_set(loop, list);
        for (size_t i = 0; i < loop->n_lanes; i++)
            loop->lanes[i].unsure = loop->options.witness;
        loop->check_at_ms = 0;
        loop->assigned_ms = po_mono_ms();
    } else {
        if (!lost && loop->n_lanes)
            commit_stored(loop);
        pause_set(loop, false, is_any, NULL);
        loop->paused = false;
        lanes_drop(loop);
        wait_clear(loop);
    }
    show_lanes(loop);
    rd_kafka_resp_err_t failed = rd_kafka_assign(kafka, assigned ? list : NULL);
    if (failed)
        po_log(PO_ERROR, "assignment refused", PO_TEXT("code", rd_kafka_err2name(failed)));
    po_log(PO_INFO,
           assigned ? "partitions assigned"
           : lost   ? "partitions lost"
                    : "partitions revoked",
           PO_INT("partitions", list->cnt));
}

// --- Taking messages

// A partition's first message lies behind the offset that the group has committed when what lay
// between was deleted. Compaction may do that; where the partition itself begins later, by
// retention, nobody has read it and nobody will.
static void tell_missed(po_loop *loop, const lane *one, int64_t first) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_t *row =
        rd_kafka_topic_partition_list_add(list, one->topic, one->partition);
    int64_t committed = -1, low = 0;
    tick(loop); // each partition may have to wait for its answers
    rd_kafka_resp_err_t code = rd_kafka_committed(loop->kafka, list, ASK_MS);
    if (!code)
        code = row->err;
    if (!code)
        committed = row->offset;
    if (committed >= 0 && committed < first) {
        row->offset = RD_KAFKA_OFFSET_BEGINNING; // see witness.c
        code = rd_kafka_offsets_for_times(loop->kafka, list, ASK_MS);
        if (!code)
            code = row->err;
        low = row->offset;
    }
    if (code) {
        po_log(PO_WARN, "cannot tell whether events were missed", PO_TEXT("topic", one->topic),
               PO_INT("partition", one->partition), PO_TEXT("code", rd_kafka_err2name(code)));
    } else if (committed >= 0 && committed < low) {
        po_log(PO_ERROR, "events were deleted from the topic before this group had read them",
               PO_TEXT("topic", one->topic), PO_INT("partition", one->partition),
               PO_INT("committed", committed), PO_INT("begins", low));
        po_count(po_meter.missed, NULL, low - committed);
    }
    rd_kafka_topic_partition_list_destroy(list);
}

static void check_soon(po_loop *loop) {
    int64_t at = po_mono_ms() + CHECK_AGAIN_MS;
    if (loop->check_at_ms > at)
        loop->check_at_ms = at;
}

// What was taken last is asked for as soon as somebody answers. Messages go on meanwhile.
static void doubt(po_loop *loop, const lane *which) {
    for (size_t i = 0; loop->options.witness && i < loop->n_lanes; i++) {
        const lane *one = &loop->lanes[i];
        po_position *position =
            po_positions_find(loop->options.positions, one->topic, one->partition);
        if (position && (!which || which == one))
            po_position_doubt(position);
    }
    check_soon(loop);
}

static void client_error(po_loop *loop, rd_kafka_resp_err_t code, const char *text) {
    if (code == RD_KAFKA_RESP_ERR__FATAL)
        loop->fatal = true;
    doubt(loop, NULL);
    int64_t now = po_mono_ms();
    if (code == loop->last_error && now < loop->last_error_ms + SAME_ERROR_MS)
        return;
    loop->last_error = code;
    loop->last_error_ms = now;
    bool denied = code == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED ||
                  code == RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
    po_log(denied ? PO_ERROR : PO_WARN, "kafka says", PO_TEXT("code", rd_kafka_err2name(code)),
           PO_TEXT("error", text));
}

// Brokers that are lost: librdkafka tells them here, inside a poll.
static void on_error(rd_kafka_t *kafka, int code, const char *text, void *opaque) {
    (void)kafka;
    client_error(opaque, code, text);
}

// False when nothing came in time.
static bool take_one(po_loop *loop, int timeout_ms) {
    rd_kafka_message_t *message = rd_kafka_consumer_poll(loop->kafka, timeout_ms);
    if (!message)
        return false;
    lane *one = message->err ? NULL : lane_of(loop, message);
    if (message->err)
        client_error(loop, message->err, rd_kafka_message_errstr(message));
    if (!one) { // an error, or a partition that is no longer ours
        rd_kafka_message_destroy(message);
        return true;
    }
    bool first = !one->seen;
    one->seen = true;
    if (first && message->offset > 0)
        tell_missed(loop, one, message->offset);
    if (message->offset < one->next) // back by itself: the offset was none of this log
        doubt(loop, one);
    queue_push(one->blocked ? &one->held : &loop->pending, message);
    if (first && loop->paused)
        pause_set(loop, true, is_same, one);
    return true;
}

static double age_of(const rd_kafka_message_t *message) {
    rd_kafka_timestamp_type_t type;
    int64_t at_ms = rd_kafka_message_timestamp(message, &type);
    if (type == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE)
        return 0;
    int64_t age_ms = po_now_us() / 1000 - at_ms;
    return age_ms > 0 ? (double)age_ms / 1000 : 0;
}

// `latest`: what was or is being applied, or NULL. What a blocked lane holds is behind as well. With
// nothing in hand, it is 0 only when we would have been told of more.
static void show_lag(const po_loop *loop, const rd_kafka_message_t *latest) {
    double age = latest ? age_of(latest) : 0;
    for (size_t i = 0; i < loop->n_lanes; i++) {
        const lane *one = &loop->lanes[i];
        double held = one->blocked ? age_of(one->held.at[0]) : 0;
        age = held > age ? held : age;
    }
    bool unknown = age <= 0 && (!loop->assigned || po_need_away(loop->brokers, NULL));
    po_gauge(po_meter.lag, NULL, unknown ? NAN : age);
}

static void fill(po_loop *loop) {
    resume(loop);
    if (!take_one(loop, IDLE_MS)) {
        show_lag(loop, NULL);
        return;
    }
    int64_t until = po_mono_ms() + LINGER_MS;
    while (loop->pending.n < loop->options.batch && !po_stopping()) {
        int64_t left = until - po_mono_ms();
        if (!take_one(loop, left > 0 ? (int)left : 0))
            break;
    }
}

// --- Applying messages

static void store_offsets(po_loop *loop, rd_kafka_message_t **messages, size_t n) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(8);
    pthread_mutex_lock(&loop->lock);
    for (size_t i = 0; i < n; i++) {
        lane *one = lane_of(loop, messages[i]);
        if (!one)
            continue;
        one->next = messages[i]->offset + 1;
        rd_kafka_topic_partition_t *row =
            rd_kafka_topic_partition_list_find(list, one->topic, one->partition);
        if (!row)
            row = rd_kafka_topic_partition_list_add(list, one->topic, one->partition);
        row->offset = one->next;
    }
    loop->last_commit_us = po_now_us();
    pthread_mutex_unlock(&loop->lock);
    // Refused for a partition that was lost meanwhile: its next owner has the events again.
    rd_kafka_resp_err_t code = rd_kafka_offsets_store(loop->kafka, list);
    if (code)
        po_log(PO_WARN, "offset not stored", PO_TEXT("code", rd_kafka_err2name(code)));
    rd_kafka_topic_partition_list_destroy(list);
    po_gauge(po_meter.last_commit, NULL, (double)loop->last_commit_us / 1e6);
}

static void wait_over(po_loop *loop) {
    loop->attempt = 0;
    if (!loop->waiting_since_us)
        return;
    po_log(PO_INFO, "going on", PO_TEXT("after", loop->waiting_for.code),
           PO_INT("waited_ms", (po_now_us() - loop->waiting_since_us) / 1000));
    wait_clear(loop);
}

static void applied(po_loop *loop, size_t n) {
    store_offsets(loop, loop->pending.at, n);
    show_lag(loop, loop->pending.at[n - 1]);
    queue_drop(&loop->pending, n);
    wait_over(loop);
    po_count(po_meter.batches, NULL, 1);
    po_count(po_meter.batch_messages, NULL, (int64_t)n);
}

static bool is_alarm(const po_loop *loop, const po_err *err) {
    return err->kind == PO_RETRY && loop->options.is_alarm && loop->options.is_alarm(err);
}

static void wait_noted(po_loop *loop, const po_err *err) {
    bool alarm = is_alarm(loop, err);
    bool other = strcmp(err->code, loop->waiting_for.code) != 0;
    if (!loop->waiting_since_us || other)
        po_log_err(alarm ? PO_ERROR : PO_WARN, "waiting", err);
    pthread_mutex_lock(&loop->lock);
    if (!loop->waiting_since_us)
        loop->waiting_since_us = po_now_us();
    loop->waiting_for = *err;
    pthread_mutex_unlock(&loop->lock);
    po_gauge(po_meter.alarm, NULL, alarm);
    if (loop->pending.n)
        show_lag(loop, loop->pending.at[0]);
}

// One backoff. A revocation meanwhile drops what waits, which ends it.
static void wait_out(po_loop *loop, const po_err *err) {
    wait_noted(loop, err);
    if (!loop->paused) {
        loop->paused = true;
        pause_set(loop, true, is_free, NULL);
    }
    int64_t until = po_mono_ms() + po_backoff_ms(loop->attempt, BACKOFF_MS, BACKOFF_CAP_MS);
    if (loop->attempt < 16)
        loop->attempt++;
    int64_t left;
    while (loop->waiting_since_us && !po_stopping() && (left = until - po_mono_ms()) > 0) {
        tick(loop);
        po_gauge(po_meter.waiting, NULL, (double)(po_now_us() - loop->waiting_since_us) / 1e6);
        take_one(loop, left < IDLE_MS ? (int)left : IDLE_MS);
    }
}

// --- Blocked lanes

static void log_blocked(const lane *one) {
    bool waits = one->why.kind == PO_RETRY;
    po_log_err(waits ? PO_WARN : PO_ERROR,
               waits ? "partition held up by an event that waits for what others hold"
                     : "partition blocked by an event that is refused",
               &one->why, PO_TEXT("topic", one->topic), PO_INT("partition", one->partition),
               PO_INT("offset", one->held.at[0]->offset));
}

// The first pending message, alone, was refused or waits for what nobody else waits for: it and all
// behind it in its partition step aside.
static void block(po_loop *loop, const po_err *err) {
    lane *one = lane_of(loop, loop->pending.at[0]);
    pthread_mutex_lock(&loop->lock);
    one->blocked = true;
    one->blocked_since_us = po_now_us();
    one->retry_at_ms = po_mono_ms() + loop->options.blocked_retry_ms;
    one->why = *err;
    size_t kept = 0;
    for (size_t i = 0; i < loop->pending.n; i++) {
        rd_kafka_message_t *message = loop->pending.at[i];
        if (lane_of(loop, message) == one)
            queue_push(&one->held, message);
        else
            loop->pending.at[kept++] = message;
    }
    loop->pending.n = kept;
    pthread_mutex_unlock(&loop->lock);
    pause_set(loop, true, is_same, one);
    log_blocked(one);
    show_lanes(loop);
}

static void unblock(po_loop *loop, lane *one) {
    po_log(PO_INFO, "partition goes on", PO_TEXT("topic", one->topic),
           PO_INT("partition", one->partition), PO_INT("offset", one->held.at[0]->offset));
    store_offsets(loop, one->held.at, 1);
    pthread_mutex_lock(&loop->lock);
    for (size_t i = 1; i < one->held.n; i++)
        queue_push(&loop->pending, one->held.at[i]);
    one->held.n = 1;
    queue_done(&one->held);
    one->blocked = false;
    pthread_mutex_unlock(&loop->lock);
    if (!loop->paused) // else it is resumed with the others
        pause_set(loop, false, is_same, one);
    show_lanes(loop);
}

// Nothing is pending, so what a lane gives back keeps its order. What is not the event's fault
// meets the others as well, and may take as long as a connection that is not to be had: it ends the
// round, so that polling goes on.
static void retry_blocked(po_loop *loop) {
    for (size_t i = 0; i < loop->n_lanes && !po_stopping(); i++) {
        lane *one = &loop->lanes[i];
        if (!one->blocked || po_mono_ms() < one->retry_at_ms)
            continue;
        po_err err = {0};
        int64_t began_ms = po_mono_ms();
        if (loop->options.run(loop->options.arg, one->held.at, 1, &err)) {
            unblock(loop, one);
            continue;
        }
        bool waits = err.kind == PO_RETRY || err.kind == PO_UNCERTAIN;
        bool news = !waits && strcmp(err.code, one->why.code) != 0;
        pthread_mutex_lock(&loop->lock);
        // A retry that waits long takes its time from the other partitions.
        int64_t now_ms = po_mono_ms();
        one->retry_at_ms =
            now_ms + loop->options.blocked_retry_ms + RETRY_SHARE * (now_ms - began_ms);
        if (!waits)
            one->why = err;
        pthread_mutex_unlock(&loop->lock);
        if (news)
            log_blocked(one);
        if (waits)
            return;
    }
}

// --- Is it the same log?

typedef struct look {
    lane *one;
    po_position *position;
    po_verdict verdict;
    po_mark lost; // of another log: the record that is not there
} look;

typedef const po_mark *(*mark_fn)(const po_position *position);

static const po_mark *sure_of(const po_position *position) {
    return &position->sure;
}

static const po_mark *doubt_of(const po_position *position) {
    return position->doubt.offset == position->sure.offset ? NULL : &position->doubt;
}

// Asks for one mark of each partition that is the same so far.
static bool look_at(po_loop *loop, look *looks, size_t n, mark_fn mark_of, po_err *err) {
    po_question *questions = calloc(n + 1, sizeof *questions);
    look **asked = calloc(n + 1, sizeof *asked);
    if (!questions || !asked)
        abort();
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        const po_mark *mark = mark_of(looks[i].position);
        if (looks[i].verdict != PO_LOG_SAME || !mark || mark->offset < 0)
            continue;
        asked[k] = &looks[i];
        questions[k++] = (po_question){
            .topic = looks[i].one->topic, .partition = looks[i].one->partition, .mark = *mark};
    }
    bool fine = po_witness_ask(loop->options.witness, questions, k, WITNESS_MS, err);
    for (size_t i = 0; i < k; i++) {
        asked[i]->verdict = questions[i].verdict;
        asked[i]->lost = questions[i].mark;
    }
    free(questions);
    free(asked);
    return fine;
}

// Where to go on in another log; RD_KAFKA_OFFSET_INVALID: where the group is.
static bool goes_on(po_loop *loop, look *one, int64_t *ret_offset, po_err *err) {
    *ret_offset = RD_KAFKA_OFFSET_INVALID;
    if (one->verdict != PO_LOG_ANOTHER)
        return true;
    int64_t since = one->lost.time_us == PO_NO_TIME ? PO_NO_TIME : one->lost.time_us - overlap_us;
    if (po_witness_since(loop->options.witness, one->one->topic, one->one->partition, since,
                         WITNESS_MS, ret_offset, err))
        return true;
    one->verdict = PO_LOG_UNKNOWN;
    return false;
}

// A new assignment of the same partitions, since a seek may be forgotten by a pause. All that is in
// hand comes again, from where the group is or from where the other log is to be read.
static void begin_anew(po_loop *loop, const rd_kafka_topic_partition_list_t *list) {
    bool *unsure = calloc(loop->n_lanes + 1, sizeof *unsure);
    if (!unsure)
        abort();
    for (size_t i = 0; i < loop->n_lanes; i++)
        unsure[i] = loop->lanes[i].unsure;
    commit_stored(loop);
    pause_set(loop, false, is_any, NULL);
    loop->paused = false;
    lanes_set(loop, list);
    for (size_t i = 0; i < loop->n_lanes; i++)
        loop->lanes[i].unsure = unsure[i];
    free(unsure);
    show_lanes(loop);
    rd_kafka_resp_err_t failed = rd_kafka_assign(loop->kafka, list);
    if (failed)
        po_log(PO_ERROR, "assignment refused", PO_TEXT("code", rd_kafka_err2name(failed)));
}

static void tell_another(const lane *one, const po_mark *lost, int64_t from) {
    char id[PO_UUID_SIZE];
    po_uuid_text(lost->id, id);
    po_log(PO_ERROR,
           "the topic's log is another one than was read: reading what it holds from that time on",
           PO_TEXT("topic", one->topic), PO_INT("partition", one->partition),
           PO_TEXT("lost_event", id), PO_INT("lost_offset", lost->offset), PO_INT("from", from));
    po_count(po_meter.other_log, NULL, 1);
}

// By then it is read from there. librdkafka never commits a stored offset below the committed one,
// so whoever is assigned the partition next would begin where the other log was left. Until that
// is prevented the records are not forgotten, and the next look finds them missing again.
static bool go_back(po_loop *loop, lane *one, look *at, int64_t from, po_err *err) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, one->topic, one->partition)->offset = from;
    rd_kafka_resp_err_t code = commit(loop, list);
    rd_kafka_topic_partition_list_destroy(list);
    one->unsure = code != RD_KAFKA_RESP_ERR_NO_ERROR;
    if (code)
        return po_kafka_fail(err, code, "committing where another log is to be read from");
    tell_another(one, &at->lost, from);
    po_position_forget(at->position);
    return true;
}

static bool settle(po_loop *loop, look *looks, size_t n, po_err *err) {
    bool fine = true, another = false;
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new((int)n);
    for (size_t i = 0; i < n; i++) {
        look *one = &looks[i];
        int64_t offset;
        tick(loop); // each may have to wait for its answer
        fine = goes_on(loop, one, &offset, err) && fine;
        rd_kafka_topic_partition_list_add(list, one->one->topic, one->one->partition)->offset =
            offset;
        another = another || one->verdict == PO_LOG_ANOTHER;
        if (one->verdict == PO_LOG_SAME)
            po_position_found(one->position);
        if (one->verdict != PO_LOG_UNKNOWN)
            one->one->unsure = false;
    }
    if (another)
        begin_anew(loop, list); // which makes the lanes anew, in this order
    for (size_t i = 0; i < n; i++) {
        if (looks[i].verdict != PO_LOG_ANOTHER)
            continue;
        tick(loop);
        // No more once stopping: what is unsure is found missing again by whoever is next.
        if (po_stopping())
            loop->lanes[i].unsure = true;
        else
            fine = go_back(loop, &loop->lanes[i], &looks[i], list->elems[i].offset, err) && fine;
    }
    rd_kafka_topic_partition_list_destroy(list);
    return fine;
}

// Compares all lanes with what is kept. False when one cannot be told yet.
static bool check(po_loop *loop, po_err *err) {
    size_t n = loop->n_lanes;
    if (!loop->options.recall(loop->options.arg, err))
        return false;
    look *looks = calloc(n + 1, sizeof *looks);
    if (!looks)
        abort();
    for (size_t i = 0; i < n; i++)
        looks[i] =
            (look){.one = &loop->lanes[i],
                   .position = po_positions_find(loop->options.positions, loop->lanes[i].topic,
                                                 loop->lanes[i].partition),
                   .verdict = PO_LOG_SAME};
    bool fine = look_at(loop, looks, n, sure_of, err);
    fine = look_at(loop, looks, n, doubt_of, err) && fine;
    fine = settle(loop, looks, n, err) && fine;
    free(looks);
    return fine;
}

// Whoever cannot be asked is asked again: that is told once, and waited for by what is unsure alone.
static void check_if_due(po_loop *loop) {
    if (!loop->options.witness || loop->n_lanes == 0 || po_mono_ms() < loop->check_at_ms)
        return;
    po_err err = {0};
    bool fine = check(loop, &err);
    loop->checks_failed = fine ? 0 : loop->checks_failed + 1;
    if (loop->checks_failed == CHECKS_TOLD)
        po_log_err(PO_WARN, "logs not compared, later again", &err);
    loop->check_at_ms = po_mono_ms() + (fine ? CHECK_MS : CHECK_AGAIN_MS);
}

static bool is_held_up(po_loop *loop) {
    for (size_t i = 0; i < loop->pending.n; i++)
        if (lane_of(loop, loop->pending.at[i])->unsure)
            return true;
    return false;
}

// To go on is safe: what is known for sure to have been in the log stays kept, so a look that tells
// later finds another log all the same, and what was missed is read then.
static void go_on_unsure(po_loop *loop, const po_err *why) {
    po_log_err(PO_WARN, "logs not compared in time: going on, compared later", why);
    for (size_t i = 0; i < loop->n_lanes; i++)
        loop->lanes[i].unsure = false;
}

// True when all that is in hand may be applied; else it has waited, or there is nothing any more.
static bool cleared(po_loop *loop) {
    po_err err = {0};
    if (!is_held_up(loop))
        return true;
    bool fine = check(loop, &err);
    if (!fine && !po_stopping() && po_mono_ms() >= loop->assigned_ms + UNSURE_MS)
        go_on_unsure(loop, &err);
    if (!fine && is_held_up(loop)) {
        po_count(po_meter.failures, po_kind_name(err.kind), 1);
        if (!po_stopping())
            wait_out(loop, &err);
        return false;
    }
    return loop->pending.n > 0;
}

// --- How much at once

// After the second such failure in a row, or the first while less is tried already. True when the
// first message steps aside.
static bool narrow(po_loop *loop, size_t n, const po_err *err) {
    if (!loop->options.is_too_much || !loop->options.is_too_much(err)) {
        loop->too_much = 0;
        return false;
    }
    if (++loop->too_much < 2 && loop->limit == loop->options.batch)
        return false;
    if (n > 1) {
        loop->limit = n / 2;
        loop->attempt = 0;
        return false;
    }
    if (!loop->options.is_its_own(err))
        return false;
    loop->limit = loop->options.batch;
    loop->too_much = 0;
    wait_clear(loop);
    block(loop, err);
    return true;
}

static void widen(po_loop *loop, size_t n) {
    loop->too_much = 0;
    if (n < loop->limit)
        return;
    loop->limit += loop->limit / 4 + 1;
    if (loop->limit > loop->options.batch)
        loop->limit = loop->options.batch;
}

// --- Public

static void drain(po_loop *loop) {
    size_t take = loop->pending.n;
    while (loop->pending.n) {
        if (!cleared(loop)) {
            if (po_stopping())
                return;
            continue;
        }
        size_t n = take < loop->pending.n ? take : loop->pending.n;
        if (n > loop->limit)
            n = loop->limit;
        po_err err = {0};
        tick(loop);
        if (loop->options.run(loop->options.arg, loop->pending.at, n, &err)) {
            widen(loop, n);
            applied(loop, n);
            take = 2 * n;
            continue;
        }
        po_count(po_meter.failures, po_kind_name(err.kind), 1);
        if (err.kind == PO_RETRY || err.kind == PO_UNCERTAIN) {
            if (po_stopping())
                return;
            if (!narrow(loop, n, &err))
                wait_out(loop, &err);
        } else if (n > 1) {
            take = n / 2;
        } else {
            block(loop, &err);
        }
    }
}

bool po_loop_turn(po_loop *loop, po_err *err) {
    tick(loop);
    po_meter_show_waiting();
    check_if_due(loop);
    retry_blocked(loop);
    if (!loop->pending.n)
        fill(loop);
    drain(loop);
    char text[256];
    if (loop->fatal && rd_kafka_fatal_error(loop->kafka, text, sizeof text))
        return po_fail(err, PO_RETRY, "_FATAL", "%s", text);
    return true;
}

static bool ask_brokers(void *kafka, po_err *err) {
    return po_kafka_ask(kafka, err);
}

bool po_loop_open(const po_loop_options *options, rd_kafka_conf_t **conf, po_loop **ret_loop,
                  po_err *err) {
    po_loop *loop = calloc(1, sizeof *loop);
    if (!loop)
        abort();
    loop->options = *options;
    loop->limit = options->batch;
    pthread_mutex_init(&loop->lock, NULL);
    rd_kafka_conf_set_opaque(*conf, loop);
    rd_kafka_conf_set_rebalance_cb(*conf, on_rebalance);
    rd_kafka_conf_set_error_cb(*conf, on_error);
    if (!po_kafka_open(RD_KAFKA_CONSUMER, conf, &loop->kafka, err)) {
        po_loop_close(&loop);
        return false;
    }
    rd_kafka_poll_set_consumer(loop->kafka);
    po_gauge(po_meter.lag, NULL, NAN);
    loop->brokers = po_need_new("kafka", ask_brokers, loop->kafka);
    *ret_loop = loop;
    return true;
}

bool po_loop_join(po_loop *loop, po_err *err) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(2);
    for (const char *const *topic = loop->options.topics; *topic; topic++)
        rd_kafka_topic_partition_list_add(list, *topic, RD_KAFKA_PARTITION_UA);
    rd_kafka_resp_err_t code = rd_kafka_subscribe(loop->kafka, list);
    rd_kafka_topic_partition_list_destroy(list);
    return code ? po_kafka_fail(err, code, "subscribing") : true;
}

static void leave_group(po_loop *loop) {
    rd_kafka_queue_t *events = rd_kafka_queue_new(loop->kafka);
    rd_kafka_error_t *failed = rd_kafka_consumer_close_queue(loop->kafka, events);
    if (failed) {
        po_log(PO_WARN, "closing failed", PO_TEXT("error", rd_kafka_error_string(failed)));
        rd_kafka_error_destroy(failed);
    }
    int64_t until = po_mono_ms() + LEAVE_MS;
    // As events: serving callbacks from this queue aborts on an error event (2.0.2).
    while (!rd_kafka_consumer_closed(loop->kafka) && po_mono_ms() < until) {
        rd_kafka_event_t *event = rd_kafka_queue_poll(events, IDLE_MS);
        if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_REBALANCE)
            on_rebalance(loop->kafka, rd_kafka_event_error(event),
                         rd_kafka_event_topic_partition_list(event), loop);
        rd_kafka_event_destroy(event);
    }
    rd_kafka_queue_destroy(events);
}

// On a thread of its own, while the loop's waits for it.
static void end_client(void *arg) {
    po_loop *loop = arg;
    leave_group(loop);
    if (!rd_kafka_consumer_closed(loop->kafka))
        po_log(PO_WARN, "group not left in time; it notices by the session timeout");
    rd_kafka_destroy(loop->kafka);
}

void po_loop_close(po_loop **loop_ref) {
    po_loop *loop = *loop_ref;
    if (!loop)
        return;
    *loop_ref = NULL;
    queue_done(&loop->pending);
    po_need_end(loop->brokers);
    if (loop->kafka && !po_kafka_within(CLOSE_MS, end_client, loop))
        return; // what is left of it belongs to the library; the process ends anyway
    lanes_drop(loop);
    pthread_mutex_destroy(&loop->lock);
    free(loop);
}

rd_kafka_t *po_loop_kafka(po_loop *loop) {
    return loop->kafka;
}

static json_t *fault(const po_err *err, int64_t since_us) {
    char since[PO_RFC3339_SIZE];
    po_rfc3339(since_us, since);
    // Left out where it is no UTF-8, as a text that was cut may not be; the log has it all the same.
    return json_pack("{s:s,s:s,s:s,s:o*}", "since", since, "kind", po_kind_name(err->kind), "code",
                     err->code, "error", json_string(err->text));
}

json_t *po_loop_status(po_loop *loop) {
    json_t *lanes = json_array(), *status = json_pack("{s:o}", "partitions", lanes);
    pthread_mutex_lock(&loop->lock);
    for (size_t i = 0; i < loop->n_lanes; i++) {
        const lane *one = &loop->lanes[i];
        json_t *row = json_pack("{s:s,s:i,s:I}", "topic", one->topic, "partition", one->partition,
                                "next_offset", (json_int_t)one->next);
        if (one->blocked)
            json_object_set_new(row, "blocked", fault(&one->why, one->blocked_since_us));
        json_array_append_new(lanes, row);
    }
    po_need_state away;
    json_t *waiting = loop->waiting_since_us ? fault(&loop->waiting_for, loop->waiting_since_us)
                      : po_needs_away(&away) ? fault(&away.why, away.away_since_us)
                                             : json_null();
    json_object_set_new(status, "waiting", waiting);
    char at[PO_RFC3339_SIZE];
    po_rfc3339(loop->last_commit_us, at);
    json_object_set_new(status, "last_commit_at",
                        loop->last_commit_us ? json_string(at) : json_null());
    pthread_mutex_unlock(&loop->lock);
    return status;
}
