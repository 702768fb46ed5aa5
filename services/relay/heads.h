// What becomes of rows once they are read: heads of keys go to Kafka, the rest waits behind them (keys.h). A head is
// ready (to be read again and sent), held (its schema has no id yet), sent, or refused. One thread.
//
// Kafka's failures that are no record's fault: everything sent and not acknowledged becomes ready, new producers after
// a backoff, without limit. A record's own fault: once more alone, then its key is blocked and it is tried every 5 s.
#pragma once
#include "keys.h"
#include "source.h"

typedef struct heads heads;

typedef struct heads_options {
    const char *outbox;
    const char *brokers, *kafka_settings, *client_id, *registry_url, *registry_ca_file;
    int wake_fd; // an eventfd, readable when heads_verdicts or heads_turn has something to do
    int32_t look_limit; // most rows of one look or read
} heads_options;

typedef struct heads_counts {
    size_t unfinished, waiting; // rows; of these, behind a head
    size_t sent, refused, held; // heads
    size_t schemas_waiting;
    bool stopped; // sending has failed and not yet worked again
} heads_counts;

void heads_declare_metrics(void);
PO_MUST_CHECK bool heads_open(const heads_options *options, heads **ret_heads, po_err *err);
void heads_close(heads **heads);

// A topic that will be sent to: its limits are asked for together with those of all others.
void heads_topic(heads *heads, po_str name);
// A row that was just read for the first time.
void heads_add(heads *heads, const row *row, int64_t now_ms);
// Takes in what Kafka has said.
void heads_verdicts(heads *heads);
// Does what can be done for rows that are not sent. False only when the session of `source` has failed.
PO_MUST_CHECK bool heads_turn(heads *heads, source *source, po_arena *arena, int64_t now_ms,
                              po_err *err);
// Whether a look may follow: producers are there, room for a whole look, not too many rows waiting.
bool heads_want_rows(heads *heads);
// When heads_turn has something to do by itself; INT64_MAX: when it is woken.
int64_t heads_due_ms(const heads *heads, int64_t now_ms);
// Bodies up to this size come with a look or a shared read; larger ones are read one by one.
int64_t heads_small_body(const heads *heads);

// Drops the producers; nothing is sent any more until heads_turn makes new ones.
void heads_stop(heads *heads);
// Drops all rows, sent or not.
void heads_forget(heads *heads);
const keys *heads_keys(const heads *heads);
heads_counts heads_count(const heads *heads);
