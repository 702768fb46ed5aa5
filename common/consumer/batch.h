// What a batch of messages means: decode, one transaction {inbox, handlers, sent and shared
// statements}, COMMIT. The `run` of po_loop.
#pragma once
#include "consumer/consumer.h"
#include "consumer/position.h"

typedef struct po_batch po_batch;

// `consumer` and `pg` are lent for its lifetime; opens no connection yet.
PO_MUST_CHECK bool po_batch_open(const po_consumer *consumer, const char *registry_url,
                                 const char *registry_ca_file, const po_pg_options *pg,
                                 po_batch **ret_batch, po_err *err);
void po_batch_close(po_batch **batch);
void po_batch_state(po_batch *batch, void *state); // what handlers get
bool po_batch_run(void *batch, rd_kafka_message_t **messages, size_t n, po_err *err);
// The positions that a batch moves, and the way to read their rows: for the loop.
po_positions *po_batch_positions(po_batch *batch);
PO_MUST_CHECK bool po_batch_recall(void *batch, po_err *err);
// Deletes one chunk of inbox rows older than keep_ms; ret_more: there may be others.
PO_MUST_CHECK bool po_batch_prune(po_batch *batch, int64_t keep_ms, bool *ret_more, po_err *err);

// A RETRY that a smaller batch may cure: see po_pg_is_too_much; and a lock that was not to be had.
bool po_batch_is_too_much(const po_err *err);
// Of these, what one event alone may wait for: not what the whole server is short of.
bool po_batch_is_its_own(const po_err *err);

// The pure parts.
const po_consumer_route *po_route_find(const po_consumer_route *routes, po_str topic,
                                       po_str ce_type);
// Writes each distinct id once, sorted, to ret_ids, and for each the index of its first occurrence.
size_t po_fold(const po_uuid *ids, size_t n, po_uuid *ret_ids, size_t *ret_first);
