// At-least-once, in order per partition, nothing skipped: a Kafka group member that hands batches
// of messages to `run` and stores their offsets only after it has said yes. It knows nothing of
// what a batch means.
//
// run's answers: true: applied. RETRY, UNCERTAIN: the same messages again after a backoff, without
// limit, all partitions paused, polling meanwhile. A RETRY that may be due to the batch itself, the
// second time in a row: half of it, and by and by more again after a success; one message that
// keeps to itself what it waits for holds up its partition alone. REFUSED, BUG: the batch is halved down to one
// message; that one blocks its partition (retried alone every blocked_retry_ms), the other
// partitions go on. What the topic's retention deleted unread is logged and counted.
//
// With a witness, each partition's log is compared with what is kept beside the position: before
// its first message is applied, every few seconds, and after errors. Where it is another log, that
// is logged as an error, counted, and read from the first record on that is not an hour older than
// the one that is missing.
#pragma once
#include "consumer/witness.h"
#include "life/life.h"
#include <jansson.h>

typedef struct po_loop po_loop;

typedef struct po_loop_options {
    const char *const *topics; // ends with NULL
    size_t batch;              // most messages in one run
    int64_t blocked_retry_ms;
    bool (*run)(void *arg, rd_kafka_message_t **messages, size_t n, po_err *err);
    bool (*is_alarm)(const po_err *err);    // a RETRY that someone must act on
    bool (*is_too_much)(const po_err *err); // a RETRY that less at once may cure, or NULL
    bool (*is_its_own)(const po_err *err);  // such a one that a single message may be the cause of
    void *arg;
    po_witness *witness;                    // or NULL, and then the next two as well; lent
    po_positions *positions;                // the loop says which partitions; run moves them
    bool (*recall)(void *arg, po_err *err); // reads their rows
    po_beat *beat;                          // or NULL
} po_loop_options;

// Makes a need of the brokers ("kafka", life/need.h). `conf` is taken. The loop is used by one thread; only po_loop_status may come from others.
PO_MUST_CHECK bool po_loop_open(const po_loop_options *options, rd_kafka_conf_t **conf,
                                po_loop **ret_loop, po_err *err);
PO_MUST_CHECK bool po_loop_join(po_loop *loop, po_err *err); // subscribes; then turn
// The settings a member of this kind needs, for po_kafka_conf.
extern const po_kafka_setting po_loop_settings[];
// Polls once (≤ 100 ms when nothing comes) and applies what came; longer only while waiting, never
// once stopping. False when librdkafka is beyond repair: the process has to start anew.
PO_MUST_CHECK bool po_loop_turn(po_loop *loop, po_err *err);
// Commits, leaves the group, frees; bounded by about 10 s whatever the broker or the library do (see
// po_kafka_within).
void po_loop_close(po_loop **loop);
rd_kafka_t *po_loop_kafka(po_loop *loop);
json_t *po_loop_status(po_loop *loop); // new reference
