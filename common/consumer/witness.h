// Whether a partition's log is still the one that was read: a record that was taken is fetched once
// more and compared by its id. By a client of its own, because the member's neither can read a
// partition in two places nor reports that a log was replaced (measured with librdkafka 2.0.2 on
// Kafka 4.1: a topic deleted and made anew within the back-off of a fetch is read on without a
// word). Used by one thread. Every question keeps its time-out, also where a broker is silent, and is
// over at once when the process is stopping (life.h).
#pragma once
#include "consumer/position.h"

typedef enum po_verdict {
    PO_LOG_UNKNOWN, // nobody has answered: ask again
    PO_LOG_SAME,    // the record is there, or was deleted or compacted away, as it may be
    PO_LOG_ANOTHER, // another record is in its place, or the log ends below
} po_verdict;

typedef struct po_question {
    const char *topic; // lent
    int32_t partition;
    po_mark mark;
    po_verdict verdict; // the answer
    bool answered;      // the witness's own
} po_question;

typedef struct po_witness po_witness;
// The settings it needs, for po_kafka_conf, beside a group.id, under which it never joins.
extern const po_kafka_setting po_witness_settings[];
// `conf` is taken.
PO_MUST_CHECK bool po_witness_open(rd_kafka_conf_t **conf, po_witness **ret_witness, po_err *err);
// Accepts NULL, leaves NULL. Bounded: a client that cannot be joined ends with the process.
void po_witness_close(po_witness **witness);

// Asks all at once, waiting up to timeout_ms for those that are silent. False, RETRY, when a
// verdict is PO_LOG_UNKNOWN: the others count all the same.
PO_MUST_CHECK bool po_witness_ask(po_witness *witness, po_question *questions, size_t n,
                                  int timeout_ms, po_err *err);
// The first offset whose record is not older than time_us (PO_NO_TIME: the first of all), or the
// log's end.
PO_MUST_CHECK bool po_witness_since(po_witness *witness, const char *topic, int32_t partition,
                                    int64_t time_us, int timeout_ms, int64_t *ret_offset,
                                    po_err *err);
// How many records of these topics, which end with NULL, lie behind what the group has committed,
// over all partitions, whoever reads them; deleted ones do not count.
PO_MUST_CHECK bool po_witness_lag(po_witness *witness, const char *const *topics, int timeout_ms,
                                  int64_t *ret_messages, po_err *err);
// Whether the group is at rest, and yet some partition of these topics has no reader.
PO_MUST_CHECK bool po_witness_left_out(po_witness *witness, const char *group,
                                       const char *const *topics, int timeout_ms,
                                       bool *ret_left_out, po_err *err);
