// What a batch decided, written: references, facts, decisions, orders and the outbox. Sorted by their
// unique keys where another session may write the same; store.c says why statements look as they do.
#include "base/cleanup.h"
#include "base/clock.h"
#include "columns.h"
#include "event/event.h"
#include "store.h"
#include <jansson.h>
#include <stdlib.h>

enum { PUT_FACTS, PUT_DECISIONS, MOVE_ORDERS, PUT_REFS, LEARN_PAYMENTS };
static const po_stmt SQL[] = {
    [PUT_FACTS] =
        {"put_facts",
         "INSERT INTO ingest.fact (order_id, provider, account, kind, object, currency, exponent, "
         "payment, state, rank,"
         " canceled_seen, waived, amount, amount_most, discount, at, charge, failed_at, total, tax, "
         "shipping)"
         " SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], "
         "$6::text[], $7::int4[],"
         " $8::text[], $9::text[], $10::int4[], $11::bool[], $12::bool[], $13::int8[], "
         "$14::int8[], $15::int8[],"
         " $16::timestamptz[], $17::text[], $18::timestamptz[], $19::int8[], $20::int8[], "
         "$21::int8[])"
         " ON CONFLICT (order_id, provider, account, kind, object, currency, exponent) DO UPDATE "
         "SET"
         " payment = excluded.payment, state = excluded.state, rank = excluded.rank,"
         " canceled_seen = excluded.canceled_seen, waived = excluded.waived, amount = "
         "excluded.amount,"
         " amount_most = excluded.amount_most, discount = excluded.discount, at = excluded.at,"
         " charge = excluded.charge, failed_at = excluded.failed_at, total = excluded.total,"
         " tax = excluded.tax, shipping = excluded.shipping"},
    [PUT_DECISIONS] =
        {"put_decisions",
         "INSERT INTO ingest.decision (decision_id, order_id, event, policy, policy_version, "
         "verdict, reason, why,"
         " emits, state, due, received, refunded, qualification, sequence, facts, facts_are, decided_at)"
         " SELECT a, b, nullif(c, 0), d, e, f, g, h, i, j, k, l, m, n, o, p::jsonb, 'changed', q"
         " FROM unnest($1::uuid[], $2::text[], $3::int8[], $4::text[], $5::int4[], $6::text[], "
         "$7::text[], $8::text[],"
         " $9::text[], $10::text[], $11::int8[], $12::int8[], $13::int8[], $14::int4[], "
         "$15::int8[], $16::text[],"
         " $17::timestamptz[]) AS u(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q)"},
    [MOVE_ORDERS] =
        {"move_orders",
         "UPDATE ingest.shop_order s SET state = u.state, verdict = u.verdict, reason = u.reason, "
         "due = u.due,"
         " received = u.received, refunded = u.refunded, late = u.late, partial = u.partial, over "
         "= u.over,"
         " qualification = u.qualification, sequence = u.sequence, canceled_by_shop = u.canceled,"
         " expiry_swept = u.swept, has_contact = u.contact, tax = u.tax, shipping = u.shipping,"
         " unexplained = u.unexplained"
         " FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int8[], $6::int8[], "
         "$7::int8[], $8::bool[],"
         " $9::bool[], $10::bool[], $11::int4[], $12::int8[], $13::bool[], $14::bool[], "
         "$15::bool[], $16::int8[], $17::int8[], $18::int8[])"
         " AS u(order_id, state, verdict, reason, due, received, refunded, late, partial, over, "
         "qualification,"
         " sequence, canceled, swept, contact, tax, shipping, unexplained)"
         " WHERE s.order_id = ANY (ARRAY[u.order_id])"},
    [PUT_REFS] = {"put_refs",
                  "INSERT INTO ingest.order_ref (provider, kind, value, account, order_id, payment,"
                  " known_by) SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], "
                  "$5::text[], $6::text[], $7::text[])"},
    [LEARN_PAYMENTS] = {"learn_payments",
                        "UPDATE ingest.order_ref r SET payment = u.payment"
                        " FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])"
                        " AS u(provider, kind, value, account, payment)"
                        " WHERE r.provider = u.provider AND r.kind = u.kind AND r.value = u.value "
                        "AND r.account = u.account"
                        " AND r.payment = ''"},
};

typedef struct fact_row {
    po_str order_id;
    const fact *fact;
} fact_row;

static int compare_fact_rows(const void *a, const void *b) {
    const fact_row *x = a, *y = b;
    int c = po_str_cmp(x->order_id, y->order_id);
    if (!c)
        c = po_str_cmp(x->fact->provider, y->fact->provider);
    if (!c)
        c = po_str_cmp(x->fact->account, y->fact->account);
    if (!c)
        c = strcmp(fact_kind_name(x->fact->kind), fact_kind_name(y->fact->kind));
    return c ? c : po_str_cmp(x->fact->object, y->fact->object);
}

static bool send_facts(po_pg *pg, po_arena *arena, const batch_writes *writes, size_t *sends,
                       po_err *err) {
    size_t n = 0;
    for (size_t o = 0; o < writes->n_orders; o++)
        for (size_t f = 0; f < writes->orders[o].facts.n; f++)
            n += writes->orders[o].facts.dirty[f];
    if (!n)
        return true;
    fact_row *rows = po_alloc_array(arena, n, sizeof *rows);
    size_t at = 0;
    for (size_t o = 0; o < writes->n_orders; o++) {
        const fact_set *set = &writes->orders[o].facts;
        for (size_t f = 0; f < set->n; f++)
            if (set->dirty[f])
                rows[at++] = (fact_row){writes->orders[o].order.id, &set->facts[f]};
    }
    qsort(rows, n, sizeof *rows, compare_fact_rows);
    po_args *args = po_args_new(arena);
    TEXTS(args, arena, rows, n, order_id);
    COLUMN(po_str, po_arg_texts, rows[i].fact->provider);
    COLUMN(po_str, po_arg_texts, rows[i].fact->account);
    COLUMN(po_str, po_arg_texts, po_s(fact_kind_name(rows[i].fact->kind)));
    COLUMN(po_str, po_arg_texts, text_or_empty(rows[i].fact->object));
    COLUMN(po_str, po_arg_texts, po_s(rows[i].fact->unit.currency));
    COLUMN(int32_t, po_arg_i32s, rows[i].fact->unit.exponent);
    COLUMN(po_str, po_arg_texts, text_or_empty(rows[i].fact->payment));
    COLUMN(po_str, po_arg_texts, po_s(fact_state_name(rows[i].fact->state)));
    COLUMN(int32_t, po_arg_i32s, rows[i].fact->rank);
    COLUMN(bool, po_arg_bools, rows[i].fact->canceled_seen);
    COLUMN(bool, po_arg_bools, rows[i].fact->waived);
    COLUMN(int64_t, po_arg_i64s,
           rows[i].fact->amount == NO_AMOUNT ? PO_NO_I64 : rows[i].fact->amount);
    COLUMN(int64_t, po_arg_i64s,
           rows[i].fact->amount_most == NO_AMOUNT ? PO_NO_I64 : rows[i].fact->amount_most);
    COLUMN(int64_t, po_arg_i64s, rows[i].fact->discount);
    COLUMN(int64_t, po_arg_times, rows[i].fact->at_us ? rows[i].fact->at_us : PO_NO_TIME);
    COLUMN(po_str, po_arg_texts, text_or_empty(rows[i].fact->charge));
    COLUMN(int64_t, po_arg_times,
           rows[i].fact->failed_at_us ? rows[i].fact->failed_at_us : PO_NO_TIME);
    COLUMN(int64_t, po_arg_i64s, rows[i].fact->total);
    COLUMN(int64_t, po_arg_i64s, rows[i].fact->tax);
    COLUMN(int64_t, po_arg_i64s, rows[i].fact->shipping);
    *sends += 1;
    return po_pipe_send(pg, &SQL[PUT_FACTS], args, err);
}

static bool send_decisions(po_pg *pg, po_arena *arena, const batch_writes *writes, size_t *sends,
                           po_err *err) {
    size_t n = writes->n_outcomes;
    const outcome *o = writes->outcomes;
    if (!n)
        return true;
    po_args *args = po_args_new(arena);
    COLUMN(po_uuid, po_arg_uuids, o[i].decision_id);
    COLUMN(po_str, po_arg_texts, o[i].held->order.id);
    COLUMN(int64_t, po_arg_i64s, o[i].event);
    COLUMN(po_str, po_arg_texts, po_s(o[i].held->order.policy->name));
    COLUMN(int32_t, po_arg_i32s, o[i].held->order.policy->version);
    COLUMN(po_str, po_arg_texts, po_s(verdict_name(o[i].decision.after.verdict)));
    COLUMN(po_str, po_arg_texts, po_s(o[i].decision.after.reason));
    COLUMN(po_str, po_arg_texts, po_s(o[i].decision.why));
    COLUMN(po_str, po_arg_texts, po_s(event_type_name(o[i].decision.emits)));
    COLUMN(po_str, po_arg_texts, po_s(order_state_name(o[i].decision.after.state)));
    COLUMN(int64_t, po_arg_i64s, o[i].decision.after.due);
    COLUMN(int64_t, po_arg_i64s, o[i].decision.after.received);
    COLUMN(int64_t, po_arg_i64s, o[i].decision.after.refunded);
    COLUMN(int32_t, po_arg_i32s, o[i].decision.qualification);
    COLUMN(int64_t, po_arg_i64s, o[i].decision.sequence);
    COLUMN(po_str, po_arg_texts, po_s(o[i].facts_json));
    COLUMN(int64_t, po_arg_times, o[i].decided_at_us);
    *sends += 1;
    return po_pipe_send(pg, &SQL[PUT_DECISIONS], args, err);
}

static bool send_orders(po_pg *pg, po_arena *arena, const batch_writes *writes, size_t *sends,
                        po_err *err) {
    const held_order **moved = po_alloc_array(arena, writes->n_orders + 1, sizeof *moved);
    size_t n = 0;
    for (size_t i = 0; i < writes->n_orders; i++)
        if (writes->orders[i].changed)
            moved[n++] = &writes->orders[i];
    if (!n)
        return true;
    po_args *args = po_args_new(arena);
    COLUMN(po_str, po_arg_texts, moved[i]->order.id);
    COLUMN(po_str, po_arg_texts, po_s(order_state_name(moved[i]->order.position.state)));
    COLUMN(po_str, po_arg_texts, po_s(verdict_name(moved[i]->order.position.verdict)));
    COLUMN(po_str, po_arg_texts, po_s(moved[i]->order.position.reason));
    COLUMN(int64_t, po_arg_i64s, moved[i]->order.position.due);
    COLUMN(int64_t, po_arg_i64s, moved[i]->order.position.received);
    COLUMN(int64_t, po_arg_i64s, moved[i]->order.position.refunded);
    COLUMN(bool, po_arg_bools, moved[i]->order.position.late);
    COLUMN(bool, po_arg_bools, moved[i]->order.position.partial);
    COLUMN(bool, po_arg_bools, moved[i]->order.position.over);
    COLUMN(int32_t, po_arg_i32s, moved[i]->order.qualification);
    COLUMN(int64_t, po_arg_i64s, moved[i]->order.sequence);
    COLUMN(bool, po_arg_bools, moved[i]->order.canceled_by_shop);
    COLUMN(bool, po_arg_bools, moved[i]->expiry_swept);
    COLUMN(bool, po_arg_bools, moved[i]->has_contact);
    COLUMN(int64_t, po_arg_i64s, moved[i]->order.position.tax);
    COLUMN(int64_t, po_arg_i64s, moved[i]->order.position.shipping);
    COLUMN(int64_t, po_arg_i64s, moved[i]->order.position.unexplained);
    *sends += 1;
    return po_pipe_send(pg, &SQL[MOVE_ORDERS], args, err);
}

static int compare_taught(const void *a, const void *b) {
    const known_ref *x = a, *y = b;
    int c = po_str_cmp(x->provider, y->provider);
    if (!c)
        c = po_str_cmp(x->kind, y->kind);
    if (!c)
        c = po_str_cmp(x->value, y->value);
    return c ? c : po_str_cmp(x->account, y->account);
}

// The columns of their key.
static po_args *ref_keys(po_arena *arena, const known_ref *refs, size_t n) {
    po_args *args = po_args_new(arena);
    TEXTS(args, arena, refs, n, provider);
    TEXTS(args, arena, refs, n, kind);
    TEXTS(args, arena, refs, n, value);
    TEXTS(args, arena, refs, n, account);
    return args;
}

static bool send_refs(po_pg *pg, po_arena *arena, const batch_writes *writes, size_t *sends,
                      po_err *err) {
    known_ref *refs = writes->taught;
    size_t n = writes->n_taught;
    if (!n)
        return true;
    qsort(refs, n, sizeof *refs, compare_taught);
    po_args *args = ref_keys(arena, refs, n);
    TEXTS(args, arena, refs, n, order_id);
    TEXTS(args, arena, refs, n, payment);
    COLUMN(po_str, po_arg_texts, po_s(known_by_name(refs[i].by)));
    *sends += 1;
    return po_pipe_send(pg, &SQL[PUT_REFS], args, err);
}

static bool send_learned(po_pg *pg, po_arena *arena, const batch_writes *writes, size_t *sends,
                         po_err *err) {
    const known_ref *refs = writes->learned;
    size_t n = writes->n_learned;
    if (!n)
        return true;
    po_args *args = ref_keys(arena, refs, n);
    TEXTS(args, arena, refs, n, payment);
    *sends += 1;
    return po_pipe_send(pg, &SQL[LEARN_PAYMENTS], args, err);
}

static bool send_outbox(po_pg *pg, po_arena *arena, const batch_writes *writes, size_t *sends,
                        po_err *err) {
    po_outbox_row *rows =
        po_alloc_array(arena, writes->n_outcomes + writes->n_contacts + 1, sizeof *rows);
    size_t n = 0;
    for (; n < writes->n_contacts; n++)
        rows[n] = writes->contacts[n];
    for (size_t i = 0; i < writes->n_outcomes; i++)
        if (writes->outcomes[i].decision.emits != EVENT_NONE &&
            !store_payment_row(arena, &writes->outcomes[i], &rows[n++], err))
            return false;
    if (!n)
        return true;
    *sends += 1;
    return po_pipe_send(pg, &ingest_outbox.put, po_outbox_args(arena, rows, n), err);
}

bool store_send_writes(po_pg *pg, po_arena *arena, const batch_writes *writes, size_t *ret_sends,
                       po_err *err) {
    *ret_sends = 0;
    return send_refs(pg, arena, writes, ret_sends, err) &&
           send_learned(pg, arena, writes, ret_sends, err) &&
           send_facts(pg, arena, writes, ret_sends, err) &&
           send_decisions(pg, arena, writes, ret_sends, err) &&
           send_orders(pg, arena, writes, ret_sends, err) &&
           send_outbox(pg, arena, writes, ret_sends, err);
}

bool store_payment_row(po_arena *arena, const outcome *outcome, po_outbox_row *ret_row,
                       po_err *err) {
    const held_order *held = outcome->held;
    const decision *d = &outcome->decision;
    po_payment_event event = {
        .event_id = po_uuid_v7(outcome->decided_at_us),
        .type = po_s(event_type_name(d->emits)),
        .order_id = held->order.id,
        .customer_id = held->customer_id,
        .purpose = held->purpose,
        .item = held->item,
        .state = po_s(order_state_name(d->after.state)),
        .unit = held->order.price.unit,
        .due = d->after.due,
        .received = d->after.received,
        .refunded = d->after.refunded,
        .delta = d->delta,
        .qualification = d->qualification,
        .late = d->after.late,
        .partial = d->after.partial,
        .over = d->after.over,
        .provider = outcome->provider,
        .account = outcome->alias,
        .provider_event_id = outcome->provider_event_id,
        .decision_id = outcome->decision_id,
        .policy = po_s(held->order.policy->name),
        .policy_version = held->order.policy->version,
        .verdict = po_s(verdict_name(d->after.verdict)),
        .reason = po_s(d->after.reason),
        .refund_id = outcome->refund_id,
        .receipt = held->has_contact,
        .occurred_at_us = outcome->occurred_at_us,
        .decided_at_us = outcome->decided_at_us,
        .sequence = d->sequence,
    };
    PO_AUTO(po_buf_done) po_buf body = {0};
    if (!po_payment_event_write(&event, &body, err))
        return po_wrap(err, "writing %s of order %s", event.type.p, event.order_id.p);
    *ret_row = (po_outbox_row){
        .topic = po_s(PO_TOPIC_PAYMENTS),
        .key = event.order_id,
        .event_id = event.event_id,
        .ce_type = po_s(po_printf(arena, "payonce.%s", event.type.p)),
        .ce_source = po_s("/payonce/ingest"),
        .ce_time_us = outcome->occurred_at_us,
        .sequence = event.sequence,
        .traceparent = outcome->trace.parent,
        .tracestate = outcome->trace.state,
        .schema_fp = po_avro_fingerprint(po_payment_event_schema()),
        .body = po_str_copy(arena, po_buf_view(&body)),
    };
    return true;
}

static json_t *text_json(po_str s) {
    return json_stringn(s.p ? s.p : "", s.n);
}

char *store_changes_json(po_arena *arena, fact_set *facts) {
    json_t *list = json_array();
    for (size_t i = 0; i < facts->n; i++) {
        const fact *f = &facts->facts[i];
        if (!facts->moved[i])
            continue;
        char unit[PO_UNIT_SIZE], at[PO_RFC3339_SIZE] = "";
        po_unit_text(f->unit, unit);
        if (f->at_us)
            po_rfc3339(f->at_us, at);
        json_t *one =
            json_pack("{ss so so so ss ss ss sI sb sb}", "kind", fact_kind_name(f->kind),
                      "provider", text_json(f->provider), "account", text_json(f->account),
                      "object", text_json(f->object), "unit", unit, "state",
                      fact_state_name(f->state), "at", at, "discount", (json_int_t)f->discount,
                      "canceled_seen", f->canceled_seen, "waived", f->waived);
        if (f->payment.n)
            json_object_set_new(one, "payment", text_json(f->payment));
        if (f->charge.n)
            json_object_set_new(one, "charge", text_json(f->charge));
        if (f->failed_at_us) {
            po_rfc3339(f->failed_at_us, at);
            json_object_set_new(one, "failed_at", json_string(at));
        }
        if (f->tax || f->shipping) {
            json_object_set_new(one, "total", json_integer(f->total));
            json_object_set_new(one, "tax", json_integer(f->tax));
            json_object_set_new(one, "shipping", json_integer(f->shipping));
        }
        if (f->amount != NO_AMOUNT)
            json_object_set_new(one, "amount", json_integer(f->amount));
        if (f->amount_most != f->amount)
            json_object_set_new(one, "amount_most", json_integer(f->amount_most));
        json_array_append_new(list, one);
    }
    char *text = json_dumps(list, JSON_COMPACT);
    char *copy = po_strdup(arena, text ? text : "[]");
    free(text);
    json_decref(list);
    fact_set_settle(facts);
    return copy;
}
