// Rendering and hashing of what was read. States go by name: digests are kept longer than any
// enum's numbers.
#include "providers/content.h"
#include <inttypes.h>
#include <stdio.h>

void content_put(po_buf *content, po_str value) {
    po_buf_printf(content, "%zu:", value.n);
    po_buf_put(content, value.p, value.n);
    po_buf_puts(content, ",");
}

void content_put_i64(po_buf *content, int64_t value) {
    char text[24] = "";
    if (value != NO_AMOUNT)
        snprintf(text, sizeof text, "%" PRId64, value);
    content_put(content, po_s(text));
}

static void content_put_total(po_buf *content, const fact *f) {
    po_buf name = {0};
    po_buf_printf(&name, "%.*s:%" PRId64, (int)f->object.n, f->object.p, f->amount);
    content_put(content, po_buf_view(&name));
    po_buf_done(&name);
}

// Its charge and total are among the references and the amounts. A running total is named by what
// it says, and what is not said of a fact is left out: digests of before are compared with.
static void content_put_fact(po_buf *content, const fact *f) {
    char unit[PO_UNIT_SIZE];
    po_unit_text(f->unit, unit);
    content_put(content, po_s(fact_kind_name(f->kind)));
    if (f->kind == FACT_REFUND_TOTAL)
        content_put_total(content, f);
    else
        content_put(content, f->object);
    content_put(content, f->payment);
    content_put(content, po_s(unit));
    content_put(content, po_s(fact_state_name(f->state)));
    content_put_i64(content, f->waived);
    content_put_i64(content, f->amount);
    content_put_i64(content, f->discount);
    content_put_i64(content, f->at_us);
    if (f->tax || f->shipping) {
        content_put_i64(content, f->tax);
        content_put_i64(content, f->shipping);
    }
}

void content_digest(observation *o, po_str object) {
    po_buf content = {0};
    content_put(&content, o->type);
    content_put(&content, object);
    content_put(&content, o->order_id);
    content_put(&content, o->client_reference);
    content_put_i64(&content, (int64_t)o->n_refs);
    for (size_t i = 0; i < o->n_refs; i++) {
        content_put(&content, o->refs[i].kind);
        content_put(&content, o->refs[i].value);
        content_put(&content, o->refs[i].payment);
    }
    content_put_i64(&content, (int64_t)o->n_facts);
    for (size_t i = 0; i < o->n_facts; i++)
        content_put_fact(&content, &o->facts[i]);
    po_sha256(po_buf_view(&content), o->digest);
    po_buf_done(&content);
}

void observation_quarantine(observation *o, const char *problem, po_str body, po_arena *arena) {
    observation bare = {.disposition = OBS_QUARANTINE,
                        .event_id = o->event_id,
                        .type = o->type,
                        .problem = po_s(po_strdup(arena, problem)),
                        .occurred_at_us = o->occurred_at_us};
    po_sha256(body, bare.digest);
    if (bare.event_id.n == 0) {
        char hex[65];
        po_hex(bare.digest, sizeof bare.digest, hex);
        bare.event_id = po_s(po_printf(arena, "sha256:%s", hex));
    }
    *o = bare;
}

void observation_set_apart(observation *o, const char *problem, po_arena *arena) {
    o->disposition = OBS_FOREIGN;
    o->problem = po_s(problem);
    o->event_id = po_s(po_printf(arena, "foreign:%.*s", (int)o->event_id.n, o->event_id.p));
    o->n_refs = o->n_facts = 0;
}

const char *account_differs(const account *alias, po_str id) {
    if (!alias->id)
        return "account_unset";
    return po_str_is(id, alias->id) ? NULL : "account";
}
