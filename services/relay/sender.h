// The way into Kafka: an idempotent producer (acks=all, no time-out of its own, the partitioner of the Java
// clients) and verdicts by class. A record that is rejected in a batch may be innocent, so there is another
// producer that puts each record into a batch of its own. One thread.
#pragma once
#include "kafka/kafka.h"

typedef struct sender sender;

typedef struct topic { // lives as long as the sender
    struct topic *next;
    char *name, *subject;         // subject: "<name>-value"
    int64_t limit;                // its max.message.bytes as last read, 0: not yet
    int partitions;               // as read since the last sender_poll, 0: not yet
    int class;                    // which producer batches its records
    rd_kafka_topic_t *handles[2]; // together, alone
} topic;

typedef enum verdict {
    SENDER_ACKED,
    SENDER_REJECTED, // the record's fault, or that of another in its batch
    SENDER_FAILED, // anything else: not stored for all we know, and nobody's fault; sender_reset is due
} verdict;

typedef struct sender_options {
    const char *brokers, *settings, *client_id; // settings: the text of KAFKA_SETTINGS
    int wake_fd; // an eventfd that becomes readable when verdicts have come
    // Called by sender_poll, once for each record that sender_send has taken.
    void (*done)(void *arg, void *record, verdict verdict, const po_err *err);
    void *arg;
} sender_options;

sender *sender_new(const sender_options *options);
void sender_free(sender **sender); // as sender_reset

// Interned by name.
topic *sender_topic(sender *sender, po_str name);

// Makes the producers if there are none, or none that know the limits of all topics (then once nothing is in
// flight). ret_ready: sender_send may be called. RETRY, and sender_reset is due, when brokers are away, or when what is
// in flight is not answered for 5 s; blocks up to 3 s.
PO_MUST_CHECK bool sender_prepare(sender *sender, bool *ret_ready, po_err *err);

// Whether a record of this size (key and headers included) may be too large for a batch. Once prepared.
bool sender_wants_alone(const topic *topic, size_t size);
// Takes over payload (malloc; NULL: tombstone) and headers, whatever comes of it. REFUSED: no broker would take
// this record. RETRY with librdkafka's code: not sent, sender_reset is due. A tombstone goes to every partition of the
// topic, since its key may have lived in another one before partitions were added; the first after a sender_poll
// blocks up to 3 s while it asks how many there are. Its one verdict comes when all are known.
PO_MUST_CHECK bool sender_send(sender *sender, topic *topic, bool alone, po_str key, void *payload,
                               size_t size, rd_kafka_headers_t *headers, void *record, po_err *err);

// Delivers the verdicts that have come; false when a producer is beyond repair: sender_reset is due.
PO_MUST_CHECK bool sender_poll(sender *sender, po_err *err);
size_t sender_in_flight(const sender *sender); // messages: a tombstone's are several
// Drops the producers; what is in flight has no verdict any more and may be stored or not.
void sender_reset(sender *sender);
// For tests of what librdkafka does by itself: a fatal error, as the broker would cause one.
rd_kafka_t *sender_kafka(sender *sender);

#define SENDER_MOST_BYTES (8 << 20) // of one record
#define SENDER_MOST_RECORDS 100000  // in flight
