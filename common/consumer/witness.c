// A client that is assigned the partitions in question for as long as the question takes. What
// stands where the record should stand tells most; for the rest the log's two ends are asked.
#include "consumer/witness.h"

#include "base/clock.h"
#include "life/life.h"

#include <stdlib.h>

enum { POLL_MS = 20, WAKE_MS = 100, CLOSE_MS = 2000 };

const po_kafka_setting po_witness_settings[] = {
    {"enable.auto.commit", "false"},
    {"enable.auto.offset.store", "false"},
    {"auto.offset.reset", "error"},
    {"enable.partition.eof", "true"},
    {"isolation.level", "read_uncommitted"}, // a record is there or not
    // One record is wanted. A broker sends its whole batch in any case.
    {"fetch.message.max.bytes", "1024"},
    {"queued.min.messages", "1"},
    {"fetch.wait.max.ms", "100"},
    {"fetch.error.backoff.ms", "100"},
    {"reconnect.backoff.max.ms", "1000"}, // a member that is assigned anew waits for the answer
    {"topic.metadata.refresh.interval.ms", "30000"},
    // Each call keeps a time of its own. This is for requests that nobody waits for any more.
    {"socket.timeout.ms", "5000"},
    {0},
};

struct po_witness {
    rd_kafka_t *kafka;
    bool no_topic; // a topic asked for is not there, or not for us
};

// Called inside a poll, for each partition and each time that the library asks. It is not logged:
// the answer to the question says so, and the member's own client tells it.
static void on_error(rd_kafka_t *kafka, int code, const char *text, void *opaque) {
    (void)kafka, (void)text;
    po_witness *witness = opaque;
    if (code == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART ||
        code == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC || code == RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION ||
        code == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
        witness->no_topic = true;
}

bool po_witness_open(rd_kafka_conf_t **conf, po_witness **ret_witness, po_err *err) {
    po_witness *witness = calloc(1, sizeof *witness);
    if (!witness)
        abort();
    rd_kafka_conf_set_opaque(*conf, witness);
    rd_kafka_conf_set_error_cb(*conf, on_error);
    if (!po_kafka_open(RD_KAFKA_CONSUMER, conf, &witness->kafka, err)) {
        free(witness);
        return false;
    }
    rd_kafka_poll_set_consumer(witness->kafka);
    *ret_witness = witness;
    return true;
}

void po_witness_close(po_witness **witness_ref) {
    po_witness *witness = *witness_ref;
    if (!witness)
        return;
    *witness_ref = NULL;
    (void)rd_kafka_assign(witness->kafka, NULL);
    if (po_kafka_destroy(&witness->kafka, CLOSE_MS))
        free(witness); // else the client has it
}

// Nothing once stopping: whatever is not answered by then is not waited for.
static int left(int64_t until_ms) {
    int64_t ms = po_stopping() ? 0 : until_ms - po_mono_ms();
    return ms > 0 ? (int)ms : 0;
}

// ListOffsets for all at once: -1 asks for the end, -2 for the beginning. Not by
// rd_kafka_query_watermark_offsets, which waits for a silent broker as long as the socket may take,
// whatever it is told (2.0.2).
static rd_kafka_resp_err_t offsets_of(po_witness *witness, rd_kafka_topic_partition_list_t *list,
                                      int64_t which, int timeout_ms) {
    for (int i = 0; i < list->cnt; i++)
        list->elems[i].offset = which;
    return rd_kafka_offsets_for_times(witness->kafka, list, timeout_ms);
}

// The same for one partition; also by a time, in milliseconds.
static rd_kafka_resp_err_t offset_of(po_witness *witness, const char *topic, int32_t partition,
                                     int64_t which, int timeout_ms, int64_t *ret_offset) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_t *row = rd_kafka_topic_partition_list_add(list, topic, partition);
    rd_kafka_resp_err_t code = offsets_of(witness, list, which, timeout_ms);
    if (!code)
        code = row->err;
    *ret_offset = row->offset;
    rd_kafka_topic_partition_list_destroy(list);
    return code;
}

// --- What stands in its place

static rd_kafka_resp_err_t assign(po_witness *witness, const po_question *questions, size_t n) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new((int)n);
    for (size_t i = 0; i < n; i++)
        rd_kafka_topic_partition_list_add(list, questions[i].topic, questions[i].partition)
            ->offset = questions[i].mark.offset;
    rd_kafka_resp_err_t code = rd_kafka_assign(witness->kafka, list);
    rd_kafka_topic_partition_list_destroy(list);
    return code;
}

static po_question *question_of(po_question *questions, size_t n,
                                const rd_kafka_message_t *message) {
    for (size_t i = 0; message->rkt && i < n; i++)
        if (questions[i].partition == message->partition &&
            strcmp(questions[i].topic, rd_kafka_topic_name(message->rkt)) == 0)
            return &questions[i];
    return NULL;
}

// A record without headers is none that was taken.
static po_verdict verdict_of(const rd_kafka_message_t *message, const po_mark *mark) {
    po_ce ce;
    po_err err;
    if (message->offset > mark->offset)
        return PO_LOG_SAME; // compacted away
    if (!po_ce_read(message, &ce, &err))
        return PO_LOG_ANOTHER;
    return memcmp(ce.id.b, mark->id.b, sizeof ce.id.b) == 0 ? PO_LOG_SAME : PO_LOG_ANOTHER;
}

// The end of the log, or an offset outside it: its ends tell. A new leader may not know its end for
// a moment, but then does not answer this either.
static po_verdict verdict_by_ends(po_witness *witness, const po_question *question,
                                  int64_t until_ms) {
    const char *topic = question->topic;
    int32_t partition = question->partition;
    int64_t at;
    if (offset_of(witness, topic, partition, RD_KAFKA_OFFSET_BEGINNING, left(until_ms), &at))
        return PO_LOG_UNKNOWN;
    if (question->mark.offset < at)
        return PO_LOG_SAME; // deleted
    if (offset_of(witness, topic, partition, RD_KAFKA_OFFSET_END, left(until_ms), &at))
        return PO_LOG_UNKNOWN;
    return question->mark.offset >= at ? PO_LOG_ANOTHER : PO_LOG_UNKNOWN;
}

static bool is_end(rd_kafka_resp_err_t code) {
    return code == RD_KAFKA_RESP_ERR__PARTITION_EOF ||
           code == RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET ||
           code == RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE;
}

// Returns how many are answered by it: 0 or 1.
static size_t answer(po_witness *witness, po_question *questions, size_t n,
                     const rd_kafka_message_t *message, int64_t until_ms) {
    po_question *one = question_of(questions, n, message);
    if (!one || one->answered)
        return 0;
    if (!message->err)
        one->verdict = verdict_of(message, &one->mark);
    else if (is_end(message->err))
        one->verdict = verdict_by_ends(witness, one, until_ms);
    one->answered = true; // also by an error: it is no use to wait for more
    return 1;
}

// A partition that is added to a broker's thread is noticed there only when it wakes, after up to a
// second (2.0.2); any other request wakes it. Where the topic is not known that would make the
// library ask for it again each time, so it is left to itself.
static void wake(po_witness *witness, const po_question *questions, size_t n, int timeout_ms) {
    int64_t low;
    size_t i = 0;
    while (i < n && questions[i].answered)
        i++;
    if (i < n && timeout_ms > 0 && !witness->no_topic)
        (void)offset_of(witness, questions[i].topic, questions[i].partition,
                        RD_KAFKA_OFFSET_BEGINNING, timeout_ms < WAKE_MS ? timeout_ms : WAKE_MS,
                        &low);
}

bool po_witness_ask(po_witness *witness, po_question *questions, size_t n, int timeout_ms,
                    po_err *err) {
    int64_t until_ms = po_mono_ms() + timeout_ms;
    for (size_t i = 0; i < n; i++) {
        questions[i].verdict = PO_LOG_UNKNOWN;
        questions[i].answered = false;
    }
    if (n == 0)
        return true;
    witness->no_topic = false;
    rd_kafka_resp_err_t code = assign(witness, questions, n);
    if (code)
        return po_kafka_fail(err, code, "asking for records taken before");
    for (size_t answered = 0; answered < n && left(until_ms) > 0;) {
        int ms = left(until_ms);
        rd_kafka_message_t *message =
            rd_kafka_consumer_poll(witness->kafka, ms < POLL_MS ? ms : POLL_MS);
        if (!message) {
            wake(witness, questions, n, left(until_ms));
            continue;
        }
        answered += answer(witness, questions, n, message, until_ms);
        rd_kafka_message_destroy(message);
    }
    code = rd_kafka_assign(witness->kafka, NULL);
    if (code)
        return po_kafka_fail(err, code, "asking for records taken before");
    for (size_t i = 0; i < n; i++)
        if (questions[i].verdict == PO_LOG_UNKNOWN)
            return po_fail(err, PO_RETRY, "log_unknown",
                           "topic %s, partition %d: cannot tell yet whether its log is still the "
                           "one that was read",
                           questions[i].topic, questions[i].partition);
    return true;
}

bool po_witness_since(po_witness *witness, const char *topic, int32_t partition, int64_t time_us,
                      int timeout_ms, int64_t *ret_offset, po_err *err) {
    int64_t until_ms = po_mono_ms() + timeout_ms, offset;
    int64_t which = time_us == PO_NO_TIME ? RD_KAFKA_OFFSET_BEGINNING
                    : time_us > 0         ? time_us / 1000
                                          : 0;
    rd_kafka_resp_err_t code = offset_of(witness, topic, partition, which, left(until_ms), &offset);
    if (!code && offset < 0) // none is as young
        code = offset_of(witness, topic, partition, RD_KAFKA_OFFSET_END, left(until_ms), &offset);
    if (code)
        return po_kafka_fail(err, code, "looking for an offset by its time");
    *ret_offset = offset;
    return true;
}

// --- Lag

static rd_kafka_topic_partition_list_t *all_partitions(po_witness *witness,
                                                       const char *const *topics, int64_t until_ms,
                                                       rd_kafka_resp_err_t *ret_code) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(16);
    *ret_code = RD_KAFKA_RESP_ERR_NO_ERROR;
    for (; *topics && !*ret_code; topics++) {
        const struct rd_kafka_metadata *known = NULL;
        rd_kafka_topic_t *topic = rd_kafka_topic_new(witness->kafka, *topics, NULL);
        *ret_code = rd_kafka_metadata(witness->kafka, 0, topic, &known, left(until_ms));
        rd_kafka_topic_destroy(topic);
        if (*ret_code)
            break;
        *ret_code = known->topic_cnt == 1 ? known->topics[0].err : RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC;
        for (int i = 0; !*ret_code && i < known->topics[0].partition_cnt; i++)
            rd_kafka_topic_partition_list_add(list, *topics, known->topics[0].partitions[i].id);
        rd_kafka_metadata_destroy(known);
    }
    return list;
}

static int64_t behind(const rd_kafka_topic_partition_list_t *begins,
                      const rd_kafka_topic_partition_list_t *ends,
                      const rd_kafka_topic_partition_list_t *committed) {
    int64_t messages = 0;
    for (int i = 0; i < ends->cnt; i++) {
        const rd_kafka_topic_partition_t *end = &ends->elems[i];
        const rd_kafka_topic_partition_t *begin = rd_kafka_topic_partition_list_find(
            (rd_kafka_topic_partition_list_t *)(uintptr_t)begins, end->topic, end->partition);
        const rd_kafka_topic_partition_t *at = rd_kafka_topic_partition_list_find(
            (rd_kafka_topic_partition_list_t *)(uintptr_t)committed, end->topic, end->partition);
        int64_t from = begin->offset;
        if (at->offset > from && at->offset <= end->offset) // else it is another log's
            from = at->offset;
        if (end->offset > from)
            messages += end->offset - from;
    }
    return messages;
}

bool po_witness_lag(po_witness *witness, const char *const *topics, int timeout_ms,
                    int64_t *ret_messages, po_err *err) {
    int64_t until_ms = po_mono_ms() + timeout_ms;
    rd_kafka_resp_err_t code;
    rd_kafka_topic_partition_list_t *committed = all_partitions(witness, topics, until_ms, &code);
    rd_kafka_topic_partition_list_t *begins = rd_kafka_topic_partition_list_copy(committed);
    rd_kafka_topic_partition_list_t *ends = rd_kafka_topic_partition_list_copy(committed);
    if (!code)
        code = rd_kafka_committed(witness->kafka, committed, left(until_ms));
    if (!code)
        code = offsets_of(witness, begins, RD_KAFKA_OFFSET_BEGINNING, left(until_ms));
    if (!code)
        code = offsets_of(witness, ends, RD_KAFKA_OFFSET_END, left(until_ms));
    if (!code)
        *ret_messages = behind(begins, ends, committed);
    rd_kafka_topic_partition_list_destroy(committed);
    rd_kafka_topic_partition_list_destroy(begins);
    rd_kafka_topic_partition_list_destroy(ends);
    return code ? po_kafka_fail(err, code, "asking how much is unread") : true;
}

// --- Partitions without a reader

static int read_by_members(const rd_kafka_ConsumerGroupDescription_t *group,
                           const rd_kafka_topic_partition_list_t *all) {
    int n = 0;
    for (size_t i = 0; i < rd_kafka_ConsumerGroupDescription_member_count(group); i++) {
        const rd_kafka_topic_partition_list_t *mine =
            rd_kafka_MemberAssignment_partitions(rd_kafka_MemberDescription_assignment(
                rd_kafka_ConsumerGroupDescription_member(group, i)));
        for (int k = 0; mine && k < mine->cnt; k++)
            n += rd_kafka_topic_partition_list_find(
                     (rd_kafka_topic_partition_list_t *)(uintptr_t)all, mine->elems[k].topic,
                     mine->elems[k].partition) != NULL;
    }
    return n;
}

static rd_kafka_resp_err_t judge_group(const rd_kafka_event_t *event,
                                       const rd_kafka_topic_partition_list_t *all,
                                       bool *ret_left_out) {
    size_t n = 0;
    rd_kafka_resp_err_t code = rd_kafka_event_error((rd_kafka_event_t *)(uintptr_t)event);
    if (code)
        return code;
    const rd_kafka_ConsumerGroupDescription_t **groups =
        rd_kafka_DescribeConsumerGroups_result_groups(
            rd_kafka_event_DescribeConsumerGroups_result((rd_kafka_event_t *)(uintptr_t)event), &n);
    if (n != 1)
        return RD_KAFKA_RESP_ERR__FAIL;
    const rd_kafka_error_t *error = rd_kafka_ConsumerGroupDescription_error(groups[0]);
    if (error)
        return rd_kafka_error_code(error);
    bool rests =
        rd_kafka_ConsumerGroupDescription_state(groups[0]) == RD_KAFKA_CONSUMER_GROUP_STATE_STABLE;
    *ret_left_out = rests && read_by_members(groups[0], all) < all->cnt;
    return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t describe(po_witness *witness, const char *group,
                                    const rd_kafka_topic_partition_list_t *all, int64_t until_ms,
                                    bool *ret_left_out) {
    char text[128];
    rd_kafka_queue_t *answers = rd_kafka_queue_new(witness->kafka);
    rd_kafka_AdminOptions_t *options =
        rd_kafka_AdminOptions_new(witness->kafka, RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS);
    int ms = left(until_ms);
    (void)rd_kafka_AdminOptions_set_request_timeout(options, ms > 1 ? ms : 1, text, sizeof text);
    rd_kafka_DescribeConsumerGroups(witness->kafka, &group, 1, options, answers);
    rd_kafka_event_t *answer = rd_kafka_queue_poll(answers, ms);
    rd_kafka_resp_err_t code =
        answer ? judge_group(answer, all, ret_left_out) : RD_KAFKA_RESP_ERR__TIMED_OUT;
    if (answer)
        rd_kafka_event_destroy(answer);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_queue_destroy(answers);
    return code;
}

bool po_witness_left_out(po_witness *witness, const char *group, const char *const *topics,
                         int timeout_ms, bool *ret_left_out, po_err *err) {
    int64_t until_ms = po_mono_ms() + timeout_ms;
    rd_kafka_resp_err_t code;
    rd_kafka_topic_partition_list_t *all = all_partitions(witness, topics, until_ms, &code);
    if (!code)
        code = describe(witness, group, all, until_ms, ret_left_out);
    rd_kafka_topic_partition_list_destroy(all);
    return code ? po_kafka_fail(err, code, "asking who reads which partition") : true;
}
