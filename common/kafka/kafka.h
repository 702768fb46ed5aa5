// librdkafka's configuration and headers in one place; the handles are librdkafka's own
// (rd_kafka_t), used directly by relay (producer) and the consumer SDK. librdkafka's log goes to
// our log.
#pragma once
#include "base/arena.h"
#include "base/id.h"
#include "log/log.h"
#include <librdkafka/rdkafka.h>

// Name and value; tables end with {0}.
typedef struct po_kafka_setting {
    const char *name, *value;
} po_kafka_setting;

// brokers and client.id, then the settings of `table`, then those of `extra`
// ("name=value,name=value": the operator's security settings, may be empty). PO_REFUSED
// "kafka_setting" names the setting, never its value.
PO_MUST_CHECK bool po_kafka_conf(const char *brokers, const char *client_id,
                                 const po_kafka_setting *table, const char *extra,
                                 rd_kafka_conf_t **ret_conf, po_err *err);
// Takes *conf in any case and leaves NULL. Settings that contradict each other are PO_REFUSED
// "kafka_open".
PO_MUST_CHECK bool po_kafka_open(rd_kafka_type_t type, rd_kafka_conf_t **conf,
                                 rd_kafka_t **ret_kafka, po_err *err);
// RETRY with the librdkafka name as code ("_TRANSPORT"), text from rd_kafka_err2str.
bool po_kafka_fail(po_err *err, rd_kafka_resp_err_t code, const char *doing);

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
