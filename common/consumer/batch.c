// One transaction for many events. Every run starts from the messages alone, so that a run that
// failed, or whose COMMIT is in doubt, is simply run again: the inbox tells what was applied. Round
// trips of a batch: BEGIN with positions and inbox; sent statements (one per CHUNK); shared statements;
// COMMIT.
#include "consumer/batch.h"

#include "avro/registry.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "consumer/meter.h"

#include <stdlib.h>

enum {
    CHUNK = 128,       // statements in flight: bounds what both ends buffer
    PRUNE_ROWS = 2000, // at once: between two batches, so it is to be quick
};

typedef struct call {
    const po_stmt *stmt;
    po_args *args;
    const po_delivery *delivery;
    po_rows_handler on_rows;
    po_str key; // of a shared statement
    size_t at;  // order of the calls, for a stable sort
} call;

typedef struct calls {
    call *at;
    size_t n, cap;
} calls;

typedef struct item {
    po_delivery delivery;
    const po_consumer_route *route; // NULL or without handler: ignored
    bool fresh;                     // not in the inbox before
} item;

typedef struct conflict {
    const po_delivery *delivery;
    const char *what;
} conflict;

struct po_batch {
    const po_consumer *consumer;
    const po_pg_options *options;
    po_registry *registry;
    po_pg *pg; // NULL while there is none
    void *state;
    po_positions *positions;
    po_stmt inbox_put, inbox_prune;
    po_arena *names; // holds the text of the two statements
    po_arena *arena; // of the run
    calls sent, shared;
    conflict *conflicts;
    size_t n_conflicts, cap_conflicts;
    bool in_doubt; // the last COMMIT had no answer
};

static void calls_push(calls *list, call one) {
    if (list->n == list->cap) {
        list->cap = list->cap ? 2 * list->cap : 64;
        list->at = reallocarray(list->at, list->cap, sizeof *list->at);
        if (!list->at)
            abort();
    }
    one.at = list->n;
    list->at[list->n++] = one;
}

// --- What handlers call

void po_consumer_send(po_consumer_tx *tx, const po_delivery *delivery, const po_stmt *stmt,
                      po_args *args, po_rows_handler on_rows) {
    calls_push(&tx->batch->sent,
               (call){.stmt = stmt, .args = args, .delivery = delivery, .on_rows = on_rows});
}

void po_consumer_send_shared(po_consumer_tx *tx, po_str key, const po_stmt *stmt, po_args *args) {
    calls_push(&tx->batch->shared,
               (call){.stmt = stmt, .args = args, .key = po_str_copy(tx->arena, key)});
}

void po_consumer_conflict(po_consumer_tx *tx, const po_delivery *delivery, const char *what) {
    po_batch *batch = tx->batch;
    if (batch->n_conflicts == batch->cap_conflicts) {
        batch->cap_conflicts = batch->cap_conflicts ? 2 * batch->cap_conflicts : 16;
        batch->conflicts =
            reallocarray(batch->conflicts, batch->cap_conflicts, sizeof *batch->conflicts);
        if (!batch->conflicts)
            abort();
    }
    batch->conflicts[batch->n_conflicts++] = (conflict){delivery, what};
}

po_str po_position_text(po_arena *arena, const po_payment_event *event) {
    char unit[PO_UNIT_SIZE];
    po_unit_text(event->unit, unit);
    return po_s(po_printf(arena,
                          "%.*s %s due %" PRId64 " received %" PRId64 " refunded %" PRId64
                          " q%" PRId32 " customer %.*s",
                          (int)event->state.n, event->state.p, unit, event->due, event->received,
                          event->refunded, event->qualification, (int)event->customer_id.n,
                          event->customer_id.p));
}

// --- From message to delivery

static bool starts_with(po_str s, const char *prefix) {
    size_t n = strlen(prefix);
    return s.n >= n && memcmp(s.p, prefix, n) == 0;
}

const po_consumer_route *po_route_find(const po_consumer_route *routes, po_str topic,
                                       po_str ce_type) {
    static const char prefix[] = "payonce.";
    if (!starts_with(ce_type, prefix))
        return NULL;
    po_str type = {ce_type.p + sizeof prefix - 1, ce_type.n - (sizeof prefix - 1)};
    for (const po_consumer_route *route = routes; route->topic; route++) {
        if (!po_str_is(topic, route->topic))
            continue;
        if (po_str_is(type, route->type) || strcmp(route->type, "*") == 0)
            return route;
    }
    return NULL;
}

// The header, the key and the body say the same three things; where they differ, dedupe and order
// would work on something else than the effect.
static bool payment_agrees(const po_delivery *d, const po_payment_event *event, po_err *err) {
    if (memcmp(d->ce.id.b, event->event_id.b, sizeof d->ce.id.b) != 0)
        return po_fail(err, PO_REFUSED, "envelope", "ce_id is not the body's event_id");
    if (!po_str_eq(d->key, event->order_id) || d->ce.sequence != event->sequence)
        return po_fail(err, PO_REFUSED, "envelope", "key or ce_sequence is not the body's");
    po_str type = {d->ce.type.p + 8, d->ce.type.n - 8}; // a route was found: it has the prefix
    if (!po_str_eq(type, event->type))
        return po_fail(err, PO_REFUSED, "envelope", "ce_type is not the body's type");
    return true;
}

static bool read_payment(po_batch *batch, po_delivery *d, po_err *err) {
    if (!d->body.p)
        return po_fail(err, PO_REFUSED, "empty", "a payment event without a body");
    po_payment_event *event = po_alloc(batch->arena, sizeof *event);
    if (!po_payment_event_read(d->writer, d->body, batch->arena, event, err))
        return false;
    d->payment = event;
    return payment_agrees(d, event, err);
}

static bool read_contact(po_batch *batch, po_delivery *d, po_err *err) {
    if (!d->body.p)
        return true;
    po_contact *contact = po_alloc(batch->arena, sizeof *contact);
    if (!po_contact_read(d->writer, d->body, batch->arena, contact, err))
        return false;
    d->contact = contact;
    if (!po_str_eq(d->key, contact->order_id))
        return po_fail(err, PO_REFUSED, "envelope", "key is not the body's order_id");
    return true;
}

// An id that the registry does not know may be a torn frame as well as a schema still to come: it
// holds up its partition and is looked up again, rather than stop everybody.
static bool schema_of(po_batch *batch, int32_t id, const po_avro_schema **ret_schema, po_err *err) {
    if (po_registry_schema(batch->registry, id, ret_schema, err))
        return true;
    if (strcmp(err->code, "unknown_schema") == 0)
        err->kind = PO_REFUSED;
    return false;
}

static bool read_body(po_batch *batch, const rd_kafka_message_t *message, po_delivery *d,
                      po_err *err) {
    if (message->payload) {
        int32_t id = 0;
        if (!po_unframe((po_str){message->payload, message->len}, &id, &d->body, err))
            return false;
        if (!schema_of(batch, id, &d->writer, err))
            return false;
    }
    bool payment = po_str_is(d->topic, PO_TOPIC_PAYMENTS);
    bool contact = po_str_is(d->topic, PO_TOPIC_CONTACTS);
    if ((payment || contact) && !po_is_event_id(d->key)) // all that a tombstone says of its order
        return po_fail(err, PO_REFUSED, "envelope", "the key is not an order's id");
    if (payment)
        return read_payment(batch, d, err);
    return !contact || read_contact(batch, d, err);
}

static bool item_read(po_batch *batch, const rd_kafka_message_t *message, item *one, po_err *err) {
    po_delivery *d = &one->delivery;
    d->topic = po_s(rd_kafka_topic_name(message->rkt));
    d->key = (po_str){message->key, message->key_len};
    d->partition = message->partition;
    d->offset = message->offset;
    if (!po_ce_read(message, &d->ce, err))
        return false;
    one->route = po_route_find(batch->consumer->routes, d->topic, d->ce.type);
    if (!one->route || !one->route->handler)
        return true;
    return read_body(batch, message, d, err);
}

// --- The inbox

static int uuid_cmp(const void *a, const void *b) {
    return memcmp(a, b, sizeof(po_uuid));
}

typedef struct numbered {
    po_uuid id;
    size_t at;
} numbered;

static int numbered_cmp(const void *a, const void *b) {
    const numbered *x = a, *y = b;
    int order = uuid_cmp(&x->id, &y->id);
    return order ? order : (x->at > y->at) - (x->at < y->at);
}

size_t po_fold(const po_uuid *ids, size_t n, po_uuid *ret_ids, size_t *ret_first) {
    if (n == 0)
        return 0;
    PO_AUTO(po_free_auto) numbered *sorted = calloc(n, sizeof *sorted);
    if (!sorted)
        abort();
    for (size_t i = 0; i < n; i++)
        sorted[i] = (numbered){ids[i], i};
    qsort(sorted, n, sizeof *sorted, numbered_cmp);
    size_t distinct = 0;
    for (size_t i = 0; i < n; i++) {
        if (i && uuid_cmp(&sorted[i].id, &sorted[i - 1].id) == 0)
            continue;
        ret_ids[distinct] = sorted[i].id;
        ret_first[distinct++] = sorted[i].at;
    }
    return distinct;
}

// Opens the transaction with the positions and the inbox insert in the same flight; marks the items
// whose event is new.
static bool inbox_put(po_batch *batch, po_tx *tx, item *items, const size_t *handled, size_t n,
                      po_err *err) {
    po_uuid *all = po_alloc_array(batch->arena, n, sizeof *all);
    po_uuid *ids = po_alloc_array(batch->arena, n, sizeof *ids);
    size_t *first = po_alloc_array(batch->arena, n, sizeof *first);
    for (size_t i = 0; i < n; i++)
        all[i] = items[handled[i]].delivery.ce.id;
    size_t distinct = po_fold(all, n, ids, first);

    po_args *args = po_args_new(batch->arena);
    po_arg_uuids(args, ids, distinct);
    po_res *res[3] = {NULL, NULL, NULL}; // of BEGIN, positions, inbox
    bool fine = po_pipe_begin(batch->pg, err) && po_tx_send_begin(batch->pg, tx, err) &&
                po_positions_send(batch->positions, batch->pg, batch->arena, err) &&
                po_pipe_send(batch->pg, &batch->inbox_put, args, err) &&
                po_pipe_sync(batch->pg, res, 3, err) && po_pipe_end(batch->pg, err) &&
                po_positions_moved(batch->positions, res[1], err);
    for (int row = 0; fine && row < po_res_rows(res[2]); row++) {
        po_uuid id = po_res_uuid(res[2], row, 0);
        const po_uuid *found = bsearch(&id, ids, distinct, sizeof *ids, uuid_cmp);
        if (found)
            items[handled[first[found - ids]]].fresh = true;
    }
    for (size_t i = 0; i < 3; i++)
        po_res_done(&res[i]);
    return fine;
}

// --- Handlers and their statements

static void context_set(const po_delivery *d) {
    char id[PO_UUID_SIZE], key[256], trace[64];
    po_uuid_text(d->ce.id, id);
    snprintf(key, sizeof key, "%.*s", (int)d->key.n, d->key.p ? d->key.p : "");
    snprintf(trace, sizeof trace, "%.*s", (int)d->ce.traceparent.n,
             d->ce.traceparent.p ? d->ce.traceparent.p : "");
    po_log_context(id, key, d->ce.traceparent.n ? trace : NULL);
}

static bool calls_answered(po_consumer_tx *tx, const call *chunk, po_res **res, size_t n,
                           po_err *err) {
    for (size_t i = 0; i < n; i++) {
        if (!chunk[i].on_rows)
            continue;
        context_set(chunk[i].delivery);
        if (!chunk[i].on_rows(tx, chunk[i].delivery, res[i], err))
            return false;
    }
    return true;
}

static bool calls_run_chunk(po_consumer_tx *tx, const call *chunk, size_t n, po_err *err) {
    po_res *res[CHUNK] = {NULL};
    bool fine = po_pipe_begin(tx->pg, err);
    for (size_t i = 0; fine && i < n; i++)
        fine = po_pipe_send(tx->pg, chunk[i].stmt, chunk[i].args, err);
    fine = fine && po_pipe_sync(tx->pg, res, n, err) && po_pipe_end(tx->pg, err) &&
           calls_answered(tx, chunk, res, n, err);
    for (size_t i = 0; i < n; i++)
        po_res_done(&res[i]);
    return fine;
}

// An answer may add calls, which moves the array: a chunk is a copy.
static bool calls_run(po_consumer_tx *tx, calls *list, po_err *err) {
    call chunk[CHUNK];
    for (size_t at = 0; at < list->n;) {
        size_t n = list->n - at < CHUNK ? list->n - at : CHUNK;
        memcpy(chunk, list->at + at, n * sizeof *chunk);
        if (!calls_run_chunk(tx, chunk, n, err))
            return false;
        at += n;
    }
    return true;
}

static int shared_cmp(const void *a, const void *b) {
    const call *x = a, *y = b;
    int order = strcmp(x->stmt->name, y->stmt->name);
    if (!order)
        order = po_str_cmp(x->key, y->key);
    return order ? order : (x->at > y->at) - (x->at < y->at);
}

static bool handle_all(po_batch *batch, item *items, size_t n, po_err *err) {
    po_consumer_tx tx = {
        .pg = batch->pg, .arena = batch->arena, .state = batch->state, .batch = batch};
    for (size_t i = 0; i < n; i++) {
        if (!items[i].fresh)
            continue;
        context_set(&items[i].delivery);
        if (!items[i].route->handler(&tx, &items[i].delivery, err))
            return false;
    }
    if (!calls_run(&tx, &batch->sent, err))
        return false;
    if (batch->shared.n)
        qsort(batch->shared.at, batch->shared.n, sizeof *batch->shared.at, shared_cmp);
    return calls_run(&tx, &batch->shared, err);
}

// Told before COMMIT: behind it the inbox knows the events, and a kill or a lost reply would leave
// nobody to tell of them. Twice is better than never.
static void tell_conflicts(const po_batch *batch) {
    for (size_t i = 0; i < batch->n_conflicts; i++) {
        context_set(batch->conflicts[i].delivery);
        po_log(PO_ERROR, "conflict: the same business key says another thing; the first stays",
               PO_TEXT("what", batch->conflicts[i].what));
        po_count(po_meter.conflicts, NULL, 1);
    }
}

static bool transact(po_batch *batch, item *items, size_t n, const size_t *handled,
                     size_t n_handled, po_err *err) {
    PO_AUTO(po_tx_done) po_tx tx = {0};
    if (!inbox_put(batch, &tx, items, handled, n_handled, err) || !handle_all(batch, items, n, err))
        return false;
    tell_conflicts(batch);
    return po_tx_commit(&tx, err);
}

// --- After COMMIT

static void tell(const item *one) {
    static po_log_site done = {.name = "effect_done"}, again = {.name = "effect_known"};
    const po_delivery *d = &one->delivery;
    if (!po_log_admit(one->fresh ? &done : &again))
        return;
    char type[256];
    snprintf(type, sizeof type, "%.*s", (int)d->ce.type.n, d->ce.type.p);
    context_set(d);
    po_log(PO_INFO, one->fresh ? "effect done" : "effect known already", PO_TEXT("type", type),
           PO_TEXT("topic", d->topic.p), PO_INT("partition", d->partition),
           PO_INT("offset", d->offset), PO_INT("sequence", d->ce.sequence));
}

static void count_all(const item *items, size_t n) {
    int64_t duplicates = 0, ignored = 0;
    for (size_t i = 0; i < n; i++) {
        const po_consumer_route *route = items[i].route;
        if (!route || !route->handler) {
            ignored++;
            continue;
        }
        tell(&items[i]);
        if (!items[i].fresh)
            duplicates++;
        else
            po_count(po_meter.events, route->type, 1);
    }
    if (duplicates)
        po_count(po_meter.duplicates, NULL, duplicates);
    if (ignored)
        po_count(po_meter.ignored, NULL, ignored);
}

static void committed(po_batch *batch, const item *items, size_t n) {
    bool any = batch->in_doubt; // its effects may be there although all now look like duplicates
    for (size_t i = 0; i < n; i++)
        any = any || items[i].fresh;
    batch->in_doubt = false;
    if (any && batch->consumer->committed)
        batch->consumer->committed(batch->state);
}

// --- Public

static bool connect_pg(po_batch *batch, po_err *err) {
    if (batch->pg && !po_pg_still_there(batch->pg))
        po_pg_close(&batch->pg);
    return batch->pg || po_pg_open(batch->options, &batch->pg, err);
}

// What is no event's fault may be this session's own: its server a former primary, its plans
// outgrown by the schema. So another one is asked, unless we only waited for somebody or lost a
// race. A session that is gone is its own failure, whatever that was called.
static void renew(po_batch *batch, po_err *err) {
    if (err->kind != PO_UNCERTAIN && !po_pg_alive(batch->pg))
        err->kind = PO_RETRY;
    bool only_others = po_pg_is(err, "55P03") || po_pg_is(err, "position_moved") ||
                       strncmp(err->code, "40", 2) == 0;
    if (err->kind == PO_RETRY && !only_others)
        po_pg_close(&batch->pg);
}

// A timestamp that PostgreSQL cannot keep is none.
static po_mark mark_of(const rd_kafka_message_t *message, po_uuid id) {
    static const int64_t latest_ms = 253402300799999; // of the year 9999
    rd_kafka_timestamp_type_t type;
    int64_t ms = rd_kafka_message_timestamp(message, &type);
    bool timed = type != RD_KAFKA_TIMESTAMP_NOT_AVAILABLE && ms >= 0 && ms <= latest_ms;
    return (po_mark){
        .offset = message->offset, .id = id, .time_us = timed ? ms * 1000 : PO_NO_TIME};
}

static bool run(po_batch *batch, rd_kafka_message_t **messages, item *items, size_t n,
                po_err *err) {
    size_t *handled = po_alloc_array(batch->arena, n, sizeof *handled), n_handled = 0;
    po_positions_begin(batch->positions);
    for (size_t i = 0; i < n; i++) {
        if (!item_read(batch, messages[i], &items[i], err))
            return false;
        po_positions_take(batch->positions, rd_kafka_topic_name(messages[i]->rkt),
                          messages[i]->partition, mark_of(messages[i], items[i].delivery.ce.id));
        if (items[i].route && items[i].route->handler)
            handled[n_handled++] = i;
    }
    // Also when there is nothing to handle: the position moves on.
    int64_t began_ms = po_mono_ms();
    if (!connect_pg(batch, err))
        return false;
    bool fine = po_positions_read(batch->positions, batch->pg, batch->arena, err) &&
                transact(batch, items, n, handled, n_handled, err);
    po_positions_done(batch->positions, fine);
    if (!fine) {
        renew(batch, err);
        return false;
    }
    po_observe(po_meter.batch_time, NULL, (double)(po_mono_ms() - began_ms) / 1000);
    committed(batch, items, n);
    count_all(items, n);
    return true;
}

bool po_batch_recall(void *arg, po_err *err) {
    po_batch *batch = arg;
    if (!po_positions_stale(batch->positions))
        return true;
    if (!connect_pg(batch, err))
        return false;
    po_arena_reset(batch->arena);
    if (po_positions_read(batch->positions, batch->pg, batch->arena, err))
        return true;
    renew(batch, err);
    return false;
}

bool po_batch_is_too_much(const po_err *err) {
    return po_pg_is_too_much(err) || po_pg_is(err, "55P03");
}

bool po_batch_is_its_own(const po_err *err) {
    return po_pg_is(err, "55P03") || po_pg_is(err, "57014");
}

po_positions *po_batch_positions(po_batch *batch) {
    return batch->positions;
}

bool po_batch_run(void *arg, rd_kafka_message_t **messages, size_t n, po_err *err) {
    po_batch *batch = arg;
    po_arena_reset(batch->arena);
    batch->sent.n = batch->shared.n = batch->n_conflicts = 0;
    item *items = po_alloc_array(batch->arena, n, sizeof *items);
    bool fine = run(batch, messages, items, n, err);
    po_log_context(NULL, NULL, NULL);
    if (fine)
        return true;
    if (n == 1 && items[0].delivery.ce.type.n) { // its headers were read
        char id[PO_UUID_SIZE];
        po_uuid_text(items[0].delivery.ce.id, id);
        po_wrap(err, "event %s", id);
    }
    if (err->kind == PO_UNCERTAIN)
        batch->in_doubt = true;
    return false;
}

bool po_batch_prune(po_batch *batch, int64_t keep_ms, bool *ret_more, po_err *err) {
    if (!connect_pg(batch, err))
        return false;
    po_arena_reset(batch->arena);
    po_args *args = po_args_new(batch->arena);
    po_arg_i64(args, keep_ms);
    po_arg_i32(args, PRUNE_ROWS);
    PO_AUTO(po_res_done) po_res *res = NULL;
    if (!po_pg_run(batch->pg, &batch->inbox_prune, args, &res, err))
        return false;
    po_count(po_meter.pruned, NULL, po_res_affected(res));
    *ret_more = po_res_affected(res) == PRUNE_ROWS;
    return true;
}

bool po_batch_open(const po_consumer *consumer, const char *registry_url,
                   const char *registry_ca_file, const po_pg_options *pg, po_batch **ret_batch,
                   po_err *err) {
    po_registry *registry = NULL;
    if (!po_registry_open(registry_url, registry_ca_file, &registry, err))
        return false;
    po_batch *batch = calloc(1, sizeof *batch);
    if (!batch)
        abort();
    *batch = (po_batch){.consumer = consumer,
                        .options = pg,
                        .registry = registry,
                        .positions = po_positions_new(consumer->name),
                        .names = po_arena_new(),
                        .arena = po_arena_new()};
    // The schema's name is the consumer's: a constant of the program, not data.
    batch->inbox_put = (po_stmt){
        "inbox_put",
        po_printf(batch->names,
                  "INSERT INTO %s.inbox (event_id) SELECT id FROM unnest($1::uuid[]) AS id "
                  "ORDER BY id ON CONFLICT DO NOTHING RETURNING event_id",
                  consumer->name)};
    batch->inbox_prune = (po_stmt){
        "inbox_prune",
        po_printf(batch->names,
                  "DELETE FROM %s.inbox WHERE event_id = ANY(ARRAY(SELECT event_id FROM %s.inbox "
                  "WHERE received_at < now() - $1 * interval '1 ms' ORDER BY received_at LIMIT $2 "
                  "FOR UPDATE SKIP LOCKED))",
                  consumer->name, consumer->name)};
    *ret_batch = batch;
    return true;
}

void po_batch_state(po_batch *batch, void *state) {
    batch->state = state;
}

void po_batch_close(po_batch **batch_ref) {
    po_batch *batch = *batch_ref;
    if (!batch)
        return;
    *batch_ref = NULL;
    po_pg_close(&batch->pg);
    po_registry_close(&batch->registry);
    po_positions_free(&batch->positions);
    po_arena_free(&batch->arena);
    po_arena_free(&batch->names);
    free(batch->sent.at);
    free(batch->shared.at);
    free(batch->conflicts);
    free(batch);
}
