// The dedupe window against the topics' retention: what may still be delivered must still be known.
#pragma once
#include "kafka/kafka.h"

// Reads the topics' configuration from the brokers. REFUSED "setting" when window_ms < retention.ms
// + segment.ms (a segment is deleted whole, so its first record waits for its last) + 1 day on a topic that deletes by time (a compacted one keeps for ever and is deduped by its
// sequence); RETRY otherwise, after 3 s for a topic that nobody describes. From any thread.
PO_MUST_CHECK bool po_retention_check(rd_kafka_t *kafka, const char *const *topics,
                                      int64_t window_ms, po_err *err);
// The pure part: one topic. Each text may be NULL (the broker's default: delete, 7 days, 7 days).
PO_MUST_CHECK bool po_retention_fits(const char *topic, const char *cleanup_policy,
                                     const char *retention_ms, const char *segment_ms,
                                     int64_t window_ms, po_err *err);
