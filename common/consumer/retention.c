// DescribeConfigs for each topic, then a comparison.
#include "consumer/retention.h"

#include <stdlib.h>

enum { ANSWER_MS = 3000 }; // for each topic
static const int64_t day_ms = 24 * 3600 * 1000;

bool po_retention_fits(const char *topic, const char *cleanup_policy, const char *retention_ms,
                       const char *segment_ms, int64_t window_ms, po_err *err) {
    if (cleanup_policy && !strstr(cleanup_policy, "delete"))
        return true;
    int64_t kept_ms = 7 * day_ms, filled_ms = 7 * day_ms;
    if (retention_ms && !po_parse_i64(po_s(retention_ms), &kept_ms))
        return po_fail(err, PO_RETRY, "retention", "topic %s: retention.ms is not a number", topic);
    if (segment_ms && !po_parse_i64(po_s(segment_ms), &filled_ms))
        return po_fail(err, PO_RETRY, "retention", "topic %s: segment.ms is not a number", topic);
    // Each is tried apart, since either may be as large as a number can be.
    if (kept_ms >= 0 && kept_ms <= window_ms && filled_ms <= window_ms &&
        kept_ms + filled_ms <= window_ms - day_ms)
        return true;
    return po_fail(err, PO_REFUSED, "setting",
                   "PAYONCE_INBOX_RETENTION: must be at least one day longer than topic %s keeps "
                   "its events (retention.ms %" PRId64 " and segment.ms %" PRId64 ")",
                   topic, kept_ms, filled_ms);
}

static const char *entry_value(const rd_kafka_ConfigResource_t *resource, const char *name) {
    size_t n = 0;
    const rd_kafka_ConfigEntry_t **entries = rd_kafka_ConfigResource_configs(resource, &n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(rd_kafka_ConfigEntry_name(entries[i]), name) == 0)
            return rd_kafka_ConfigEntry_value(entries[i]);
    return NULL;
}

static bool answer_check(rd_kafka_event_t *answer, int64_t window_ms, po_err *err) {
    if (rd_kafka_event_error(answer))
        return po_kafka_fail(err, rd_kafka_event_error(answer), "describing topics");
    size_t n = 0;
    const rd_kafka_ConfigResource_t **resources = rd_kafka_DescribeConfigs_result_resources(
        rd_kafka_event_DescribeConfigs_result(answer), &n);
    for (size_t i = 0; i < n; i++) {
        const char *topic = rd_kafka_ConfigResource_name(resources[i]);
        if (rd_kafka_ConfigResource_error(resources[i])) {
            po_kafka_fail(err, rd_kafka_ConfigResource_error(resources[i]), "describing a topic");
            return po_wrap(err, "topic %s", topic);
        }
        if (!po_retention_fits(topic, entry_value(resources[i], "cleanup.policy"),
                               entry_value(resources[i], "retention.ms"),
                               entry_value(resources[i], "segment.ms"), window_ms, err))
            return false;
    }
    return true;
}

static bool topic_check(rd_kafka_t *kafka, const char *topic, int64_t window_ms, po_err *err) {
    rd_kafka_ConfigResource_t *resource =
        rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topic);
    rd_kafka_queue_t *answers = rd_kafka_queue_new(kafka);
    rd_kafka_AdminOptions_t *options =
        rd_kafka_AdminOptions_new(kafka, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
    char text[256];
    rd_kafka_AdminOptions_set_request_timeout(options, ANSWER_MS, text, sizeof text);
    rd_kafka_DescribeConfigs(kafka, &resource, 1, options, answers);
    rd_kafka_event_t *answer = rd_kafka_queue_poll(answers, ANSWER_MS);
    bool fine = answer ? answer_check(answer, window_ms, err)
                       : po_kafka_fail(err, RD_KAFKA_RESP_ERR__TIMED_OUT, "describing topics");
    if (answer)
        rd_kafka_event_destroy(answer);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_queue_destroy(answers);
    rd_kafka_ConfigResource_destroy(resource);
    return fine;
}

bool po_retention_check(rd_kafka_t *kafka, const char *const *topics, int64_t window_ms,
                        po_err *err) {
    for (; *topics; topics++)
        if (!topic_check(kafka, *topics, window_ms, err))
            return false;
    return true;
}
