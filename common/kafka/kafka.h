// librdkafka's configuration and headers in one place; the handles are librdkafka's own
// (rd_kafka_t), used directly by relay (producer) and the consumer SDK. librdkafka's log goes to
// our log: three lines a second of each level in a process; those above are counted (log/log.h).
#pragma once
#include "base/arena.h"
#include "base/id.h"
#include "config/config.h"
#include "log/log.h"
#include <librdkafka/rdkafka.h>

// Name and value; tables end with {0}.
typedef struct po_kafka_setting {
    const char *name, *value;
} po_kafka_setting;

// Where Kafka is, for the settings table of every program that speaks to it.
#define PO_KAFKA_SETTINGS                                                           \
    {"KAFKA_BROKERS",                                                               \
     PO_SET_SERVERS,                                                                \
     NULL,                                                                          \
     0,                                                                             \
     0,                                                                             \
     "Kafka's bootstrap servers, `host:port,host:port`."},                          \
    {                                                                               \
        "KAFKA_SETTINGS", PO_SET_SECRET, "", 0, 64 << 10,                           \
            "How to reach them: librdkafka's settings of security and connection, " \
            "`name=value` a line ([which](../common/kafka/README.md))."             \
    }

// brokers and client.id, then the settings of `table`, then those of `file` (the text of
// KAFKA_SETTINGS, may be empty). PO_REFUSED "kafka_setting" names the setting, or the line of a name
// that librdkafka does not know; never a value. What the program's promises rest on is not open to
// the file: README.md.
PO_MUST_CHECK bool po_kafka_conf(const char *brokers, const char *client_id,
                                 const po_kafka_setting *table, const char *file,
                                 rd_kafka_conf_t **ret_conf, po_err *err);
// For print-config: po_config_show of KAFKA_SETTINGS; values that are not on the list of those that
// may be seen are "***".
bool po_kafka_show(const po_setting *setting, const char *text, po_buf *out);
// Takes *conf in any case and leaves NULL. Settings that contradict each other are PO_REFUSED
// "kafka_open".
PO_MUST_CHECK bool po_kafka_open(rd_kafka_type_t type, rd_kafka_conf_t **conf,
                                 rd_kafka_t **ret_kafka, po_err *err);
// librdkafka joins threads of its own without limit when it closes or destroys a client, and in some states they
// never end (a topic that was deleted and made anew). So whatever may do that is called through here: `end(arg)`
// runs on a thread of its own. False when it has not returned within `ms`: it goes on by itself, so everything it
// uses must be left alone for ever; the process then ends through po_kafka_exit.
bool po_kafka_within(int ms, void (*end)(void *arg), void *arg);
// rd_kafka_destroy within `ms`, NULL afterwards in any case; an abandoned client calls nothing of ours but the
// log. Accepts NULL.
bool po_kafka_destroy(rd_kafka_t **kafka, int ms);
// The end of main: returns `code`, or leaves with it at once when a client was abandoned, since its threads still
// run and would meet the libraries' tidying up.
int po_kafka_exit(int code);
// RETRY with the librdkafka name as code ("_TRANSPORT"), text from rd_kafka_err2str.
bool po_kafka_fail(po_err *err, rd_kafka_resp_err_t code, const char *doing);

// Whether brokers are there: a request of its own, answered within 3 s or RETRY. From any thread.
PO_MUST_CHECK bool po_kafka_ask(rd_kafka_t *kafka, po_err *err);

// CloudEvents 1.0 Kafka binary binding. Required on tombstones too. Views are lent by the message.
typedef struct po_ce {
    po_uuid id;                     // ce_id
    po_str type;                    // ce_type, "payonce.payment.qualified"
    po_str source;                  // ce_source
    int64_t time_us;                // ce_time
    po_str subject;                 // ce_subject = the key
    int64_t sequence;               // ce_sequence, decimal
    po_str traceparent, tracestate; // may be empty
} po_ce;
// A new list: ce_*, ce_specversion 1.0, content-type application/avro, traceparent/tracestate when
// not empty.
rd_kafka_headers_t *po_ce_headers(const po_ce *ce);
// PO_REFUSED "headers" when one is missing, malformed or there twice, or ce_subject is not the key.
// A malformed trace is dropped: it is for looking only.
PO_MUST_CHECK bool po_ce_read(const rd_kafka_message_t *message, po_ce *ret_ce, po_err *err);
