// The SQL of ingest, set-based: recording, finding and holding here, writing in store_write.c.
// Parameters are columns, cut out of C structs (columns.h).
// A statement's plan is kept, perhaps from the first event of an empty database until its tables
// are analysed, so each has one sensible plan by its shape: the session scans no table that has an
// index, and a batch is looked up row by row. LATERAL … OFFSET 0, and `= ANY (ARRAY[column])` where
// the table is written, keep the planner from walking the table instead and searching each row in
// the batch; `+ 0` keeps it from walking the key for its order.
#include "store.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "columns.h"
#include "event/event.h"
#include "identity.h"
#include <stdlib.h>

const po_outbox ingest_outbox = PO_OUTBOX("ingest");

enum {
    PUT_EVENTS,
    FIND_REFS,
    FIND_ROUTES,
    COMPARE_EVENTS,
    PUT_CONFLICTS,
    LOCK_ORDERS,
    LOCK_ORDERS_SKIP,
    READ_ORDERS,
    READ_FACTS
};
static const po_stmt SQL[] = {
    [PUT_EVENTS] =
        {"put_events",
         "INSERT INTO ingest.provider_event (provider, account, event_id, type, disposition, "
         "problem, digest,"
         " raw_sha256, raw, headers, traceparent, tracestate, occurred_at)"
         " SELECT provider, account, event_id, type, disposition, problem, digest, raw_sha256, raw,"
         " CASE WHEN headers = '' THEN '{}' ELSE string_to_array(headers, E'\\n') END, "
         "traceparent, tracestate,"
         " occurred_at"
         " FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], "
         "$7::bytea[],"
         " $8::bytea[], $9::bytea[], $10::text[], $11::text[], $12::text[], $13::timestamptz[])"
         " AS u(provider, account, event_id, type, disposition, problem, digest, raw_sha256, raw, "
         "headers,"
         " traceparent, tracestate, occurred_at)"
         " ON CONFLICT DO NOTHING RETURNING id, provider, account, event_id"},
    [FIND_REFS] =
        {"find_refs",
         "SELECT u.i, r.account, r.order_id, r.payment, o.live, array_to_string(o.accounts, ' '),"
         " r.known_by"
         " FROM unnest($1::int4[], $2::text[], $3::text[], $4::text[]) AS u(i, provider, kind, "
         "value)"
         " CROSS JOIN LATERAL (SELECT account, order_id, payment, known_by FROM ingest.order_ref r"
         " WHERE r.provider = u.provider AND r.kind = u.kind AND r.value = u.value OFFSET 0) r"
         " LEFT JOIN LATERAL (SELECT live, accounts FROM ingest.shop_order o"
         " WHERE o.order_id = r.order_id OFFSET 0) o ON true ORDER BY u.i"},
    [FIND_ROUTES] =
        {"find_routes",
         "SELECT order_id, live, array_to_string(accounts, ' '), policy FROM ingest.shop_order"
         " WHERE order_id = ANY($1::text[]) ORDER BY order_id"},
    [COMPARE_EVENTS] = {"compare_events",
                        "SELECT u.provider, u.account, u.event_id, e.digest"
                        " FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS "
                        "u(provider, account, event_id, i)"
                        " CROSS JOIN LATERAL (SELECT digest FROM ingest.provider_event e WHERE "
                        "e.provider = u.provider"
                        " AND e.account = u.account AND e.event_id = u.event_id OFFSET 0) e"
                        " ORDER BY u.i"},
    [PUT_CONFLICTS] =
        {"put_conflicts",
         "INSERT INTO ingest.event_conflict (provider, account, event_id, digest, raw_sha256, raw)"
         " SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::bytea[], "
         "$6::bytea[])"
         " ON CONFLICT DO NOTHING"},
    [LOCK_ORDERS] =
        {"lock_orders",
         "SELECT order_id FROM ingest.shop_order WHERE order_id = ANY($1::text[]) ORDER BY order_id"
         " FOR NO KEY UPDATE"},
    [LOCK_ORDERS_SKIP] =
        {"lock_orders_skip",
         "SELECT order_id FROM ingest.shop_order WHERE order_id = ANY($1::text[]) ORDER BY order_id"
         " FOR NO KEY UPDATE SKIP LOCKED"},
    [READ_ORDERS] =
        {"read_orders",
         "SELECT order_id, policy, currency, exponent, price, max_discount, "
         "expires_at, profile, canceled_by_shop,"
         " state, verdict, reason, due, received, refunded, late, partial, over, "
         "qualification, sequence,"
         " customer_id, purpose, item, has_contact, expiry_swept, tax, shipping, unexplained"
         " FROM ingest.shop_order WHERE order_id = ANY($1::text[]) ORDER BY order_id"},
    [READ_FACTS] =
        {"read_facts",
         "SELECT order_id, provider, account, kind, object, currency, exponent, "
         "payment, state, rank, canceled_seen,"
         " waived, amount, amount_most, discount, at, charge, failed_at, total, tax, shipping"
         " FROM ingest.fact WHERE order_id = ANY($1::text[])"
         " ORDER BY order_id, provider, account, kind, object, currency, exponent"},
};

// A commit that could be taken back would let ids run backwards and paid events vanish.
static bool check_durable(po_pg *pg, po_err *err) {
    static const po_stmt show = {"show_synchronous_commit",
                                 "SELECT current_setting('synchronous_commit')"};
    PO_AUTO(po_res_done) po_res *row = NULL;
    if (!po_pg_run(pg, &show, NULL, &row, err))
        return false;
    return !po_str_is(po_res_text(row, 0, 0), "off") ||
           po_fail(err, PO_REFUSED, "setting",
                   "DSN: the database commits with synchronous_commit = off");
}

// The schemas of this build, known to relay before the first event refers to them.
static bool publish_schemas(po_pg *pg, po_err *err) {
    static const char *const subjects[] = {PO_TOPIC_PAYMENTS "-value", PO_TOPIC_CONTACTS "-value"};
    const po_avro_schema *const schemas[] = {po_payment_event_schema(), po_contact_schema()};
    for (size_t i = 0; i < 2; i++)
        if (!po_outbox_register(&ingest_outbox, pg, po_avro_fingerprint(schemas[i]),
                                po_s(subjects[i]), po_avro_text(schemas[i]), err))
            return false;
    return true;
}

bool store_open(const po_pg_options *options, accounts *accounts, po_pg **ret_pg, po_err *err) {
    PO_AUTO(po_pg_close) po_pg *pg = NULL;
    if (!po_pg_open(options, &pg, err) || !check_durable(pg, err) ||
        (accounts && !identity_check(pg, accounts, err)) || !publish_schemas(pg, err))
        return false;
    *ret_pg = po_take(&pg);
    return true;
}

static po_str digest_view(const uint8_t *bytes) {
    return (po_str){(const char *)bytes, 32};
}

static const char *disposition_name(disposition disposition) {
    static const char *const names[] = {"facts", "ignored", "foreign", "quarantined"};
    return names[disposition];
}

po_str store_join(po_arena *arena, const po_str *lines, size_t n) {
    size_t size = 0;
    for (size_t i = 0; i < n; i++)
        size += lines[i].n + 1;
    char *out = po_alloc(arena, size + 1);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (i)
            out[at++] = '\n';
        if (lines[i].n)
            memcpy(out + at, lines[i].p, lines[i].n);
        at += lines[i].n;
    }
    return (po_str){out, at};
}

// --- Recording

static void event_keys(po_args *args, po_arena *arena, event *const *events, size_t n) {
    COLUMN(po_str, po_arg_texts, events[i]->provider);
    COLUMN(po_str, po_arg_texts, events[i]->alias);
    COLUMN(po_str, po_arg_texts, events[i]->obs.event_id);
}

bool store_send_events(po_pg *pg, po_arena *arena, event *const *events, size_t n, po_err *err) {
    po_args *args = po_args_new(arena);
    event_keys(args, arena, events, n);
    COLUMN(po_str, po_arg_texts, text_or_empty(events[i]->obs.type));
    COLUMN(po_str, po_arg_texts, po_s(disposition_name(events[i]->obs.disposition)));
    COLUMN(po_str, po_arg_texts, text_or_empty(events[i]->obs.problem));
    COLUMN(po_str, po_arg_byteas, digest_view(events[i]->obs.digest));
    COLUMN(po_str, po_arg_byteas, digest_view(events[i]->raw_sha256));
    COLUMN(po_str, po_arg_byteas, events[i]->raw);
    COLUMN(po_str, po_arg_texts, store_join(arena, events[i]->headers, events[i]->n_headers));
    COLUMN(po_str, po_arg_texts, text_or_empty(events[i]->trace.parent));
    COLUMN(po_str, po_arg_texts, text_or_empty(events[i]->trace.state));
    COLUMN(int64_t, po_arg_times,
           events[i]->obs.occurred_at_us ? events[i]->obs.occurred_at_us : PO_NO_TIME);
    return po_pipe_send(pg, &SQL[PUT_EVENTS], args, err);
}

bool store_send_compare(po_pg *pg, po_arena *arena, event *const *events, size_t n, po_err *err) {
    po_args *args = po_args_new(arena);
    event_keys(args, arena, events, n);
    return po_pipe_send(pg, &SQL[COMPARE_EVENTS], args, err);
}

bool store_send_conflicts(po_pg *pg, po_arena *arena, event *const *events, size_t n, po_err *err) {
    po_args *args = po_args_new(arena);
    event_keys(args, arena, events, n);
    COLUMN(po_str, po_arg_byteas, digest_view(events[i]->obs.digest));
    COLUMN(po_str, po_arg_byteas, digest_view(events[i]->raw_sha256));
    COLUMN(po_str, po_arg_byteas, events[i]->raw);
    return po_pipe_send(pg, &SQL[PUT_CONFLICTS], args, err);
}

// --- Finding

bool store_send_refs(po_pg *pg, po_arena *arena, const known_ref *asked, size_t n, po_err *err) {
    po_args *args = po_args_new(arena);
    COLUMN(int32_t, po_arg_i32s, (int32_t)i);
    TEXTS(args, arena, asked, n, provider);
    TEXTS(args, arena, asked, n, kind);
    TEXTS(args, arena, asked, n, value);
    return po_pipe_send(pg, &SQL[FIND_REFS], args, err);
}

static bool send_ids(po_pg *pg, po_arena *arena, int statement, const po_str *order_ids, size_t n,
                     po_err *err) {
    po_args *args = po_args_new(arena);
    po_arg_texts(args, order_ids, n);
    return po_pipe_send(pg, &SQL[statement], args, err);
}

bool store_send_routes(po_pg *pg, po_arena *arena, const po_str *order_ids, size_t n, po_err *err) {
    return send_ids(pg, arena, FIND_ROUTES, order_ids, n, err);
}

static po_str copy_text(po_arena *arena, const po_res *res, int row, int col) {
    return po_str_copy(arena, po_res_text(res, row, col));
}

found_ref *store_read_refs(po_arena *arena, const po_res *rows, size_t *ret_n) {
    *ret_n = (size_t)po_res_rows(rows);
    found_ref *refs = po_alloc_array(arena, *ret_n + 1, sizeof *refs);
    for (int row = 0; row < po_res_rows(rows); row++)
        refs[row] = (found_ref){.asked = (size_t)po_res_i64(rows, row, 0),
                                .account = copy_text(arena, rows, row, 1),
                                .order_id = copy_text(arena, rows, row, 2),
                                .payment = copy_text(arena, rows, row, 3),
                                .live = po_res_bool(rows, row, 4),
                                .accounts = copy_text(arena, rows, row, 5),
                                .by = known_by_parse(po_res_text(rows, row, 6))};
    return refs;
}

found_order *store_read_routes(po_arena *arena, const po_res *rows, size_t *ret_n) {
    *ret_n = (size_t)po_res_rows(rows);
    found_order *orders = po_alloc_array(arena, *ret_n + 1, sizeof *orders);
    for (int row = 0; row < po_res_rows(rows); row++)
        orders[row] = (found_order){.id = copy_text(arena, rows, row, 0),
                                    .live = po_res_bool(rows, row, 1),
                                    .accounts = copy_text(arena, rows, row, 2),
                                    .policy = copy_text(arena, rows, row, 3)};
    return orders;
}

// --- Holding orders

bool store_send_lock(po_pg *pg, po_arena *arena, const po_str *order_ids, size_t n,
                     bool skip_locked, po_err *err) {
    return send_ids(pg, arena, skip_locked ? LOCK_ORDERS_SKIP : LOCK_ORDERS, order_ids, n, err);
}

bool store_send_read(po_pg *pg, po_arena *arena, const po_str *order_ids, size_t n, po_err *err) {
    return send_ids(pg, arena, READ_ORDERS, order_ids, n, err) &&
           send_ids(pg, arena, READ_FACTS, order_ids, n, err);
}

bool store_send_hold(po_pg *pg, po_arena *arena, const po_str *order_ids, size_t n,
                     bool skip_locked, po_err *err) {
    return store_send_lock(pg, arena, order_ids, n, skip_locked, err) &&
           store_send_read(pg, arena, order_ids, n, err);
}

static bool read_unit(po_unit *unit, const po_res *res, int row, int col) {
    po_str currency = po_res_text(res, row, col);
    if (currency.n >= sizeof unit->currency)
        return false;
    memcpy(unit->currency, currency.p, currency.n);
    unit->exponent = (int)po_res_i64(res, row, col + 1);
    return true;
}

static bool read_order(po_arena *arena, const po_res *res, int row, held_order *held, po_err *err) {
    order *o = &held->order;
    o->id = copy_text(arena, res, row, 0);
    o->policy = policy_find(po_res_text(res, row, 1));
    position *p = &o->position;
    if (!o->policy || !read_unit(&o->price.unit, res, row, 2) ||
        !order_state_parse(po_res_text(res, row, 9), &p->state) ||
        !verdict_parse(po_res_text(res, row, 10), &p->verdict)) {
        return po_fail(err, PO_BUG, "order_row", "order %s is not readable by this version",
                       o->id.p);
    }
    o->price.minor = po_res_i64(res, row, 4);
    o->max_discount = po_res_i64(res, row, 5);
    o->expires_at_us = po_res_null(res, row, 6) ? 0 : po_res_time(res, row, 6);
    o->profile = copy_text(arena, res, row, 7);
    o->canceled_by_shop = po_res_bool(res, row, 8);
    p->reason = reason_static(po_res_text(res, row, 11));
    p->due = po_res_i64(res, row, 12);
    p->received = po_res_i64(res, row, 13);
    p->refunded = po_res_i64(res, row, 14);
    p->late = po_res_bool(res, row, 15);
    p->partial = po_res_bool(res, row, 16);
    p->over = po_res_bool(res, row, 17);
    o->qualification = (int32_t)po_res_i64(res, row, 18);
    o->sequence = po_res_i64(res, row, 19);
    held->customer_id = copy_text(arena, res, row, 20);
    held->purpose = copy_text(arena, res, row, 21);
    held->item = copy_text(arena, res, row, 22);
    held->has_contact = po_res_bool(res, row, 23);
    held->expiry_swept = po_res_bool(res, row, 24);
    p->tax = po_res_i64(res, row, 25);
    p->shipping = po_res_i64(res, row, 26);
    p->unexplained = po_res_i64(res, row, 27);
    fact_set_init(&held->facts, arena);
    return true;
}

static bool read_fact(po_arena *arena, const po_res *res, int row, fact *f, po_err *err) {
    f->provider = copy_text(arena, res, row, 1);
    f->account = copy_text(arena, res, row, 2);
    f->object = copy_text(arena, res, row, 4);
    f->payment = copy_text(arena, res, row, 7);
    f->rank = (int)po_res_i64(res, row, 9);
    f->canceled_seen = po_res_bool(res, row, 10);
    f->waived = po_res_bool(res, row, 11);
    f->amount = po_res_null(res, row, 12) ? NO_AMOUNT : po_res_i64(res, row, 12);
    f->amount_most = po_res_null(res, row, 13) ? NO_AMOUNT : po_res_i64(res, row, 13);
    f->discount = po_res_i64(res, row, 14);
    f->at_us = po_res_null(res, row, 15) ? 0 : po_res_time(res, row, 15);
    f->charge = copy_text(arena, res, row, 16);
    f->failed_at_us = po_res_null(res, row, 17) ? 0 : po_res_time(res, row, 17);
    f->total = po_res_i64(res, row, 18);
    f->tax = po_res_i64(res, row, 19);
    f->shipping = po_res_i64(res, row, 20);
    if (!fact_kind_parse(po_res_text(res, row, 3), &f->kind) || !read_unit(&f->unit, res, row, 5) ||
        !fact_state_parse(po_res_text(res, row, 8), &f->state)) {
        return po_fail(err, PO_BUG, "fact_row",
                       "a fact of the order is not readable by this version");
    }
    return true;
}

static int compare_held(const void *key, const void *row) {
    return po_str_cmp(*(const po_str *)key, ((const held_order *)row)->order.id);
}

held_order *store_find_held(held_order *held, size_t n, po_str order_id) {
    return n ? bsearch(&order_id, held, n, sizeof *held, compare_held) : NULL;
}

bool store_read_hold(po_arena *arena, po_res *const *results, held_order **ret_orders,
                     size_t *ret_n, po_err *err) {
    const po_res *locked = results[0], *orders = results[1], *facts = results[2];
    size_t n = 0;
    held_order *held = po_alloc_array(arena, (size_t)po_res_rows(locked), sizeof *held);
    for (int row = 0, lock = 0; row < po_res_rows(orders); row++) {
        po_str id = po_res_text(orders, row, 0);
        while (lock < po_res_rows(locked) && po_str_cmp(po_res_text(locked, lock, 0), id) < 0)
            lock++;
        if (lock == po_res_rows(locked) || !po_str_eq(po_res_text(locked, lock, 0), id))
            continue; // not ours: held elsewhere, or registered after the lock statement
        if (!read_order(arena, orders, row, &held[n++], err))
            return false;
    }
    for (int row = 0; row < po_res_rows(facts); row++) {
        po_str id = po_res_text(facts, row, 0);
        held_order *owner = store_find_held(held, n, id);
        fact loaded = {0};
        if (owner && !read_fact(arena, facts, row, &loaded, err))
            return false;
        if (owner)
            fact_set_load(&owner->facts, &loaded);
    }
    *ret_orders = held;
    *ret_n = n;
    return true;
}
