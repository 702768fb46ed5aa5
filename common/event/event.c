// The events of payonce: for each a table of its members in the order of its schema, and one reader
// and one writer that follow the table.
#include "event/event.h"
#include "event/codec.h"

#include <inttypes.h>

#define MEMBER(form, field, member) \
    { field, PO_FORM_##form, offsetof(STRUCT, member), NULL }
#define LIST(field, member, items) \
    { field, PO_FORM_LIST, offsetof(STRUCT, member), items }
#define CODEC(file_, members_)                                                     \
    {                                                                              \
        .file = file_, .size = sizeof(STRUCT), .members = members_,                \
        .n = sizeof members_ / sizeof *members_, .lock = PTHREAD_MUTEX_INITIALIZER \
    }

#define STRUCT po_leg
static const po_member leg_members[] = {
    MEMBER(TEXT, "provider", provider), MEMBER(TEXT, "account", account),
    MEMBER(LONG, "received", received), MEMBER(LONG, "refunded", refunded),
    MEMBER(LONG, "disputed", disputed), MEMBER(LONG, "fee", fee),
};
static const po_items legs = {offsetof(po_payment_event, n_accounts), sizeof(STRUCT), leg_members,
                              sizeof leg_members / sizeof *leg_members};
#undef STRUCT

#define STRUCT po_payment_event
static const po_member payment_members[] = {
    MEMBER(UUID, "event_id", event_id),
    MEMBER(TEXT, "type", type),
    MEMBER(ID, "order_id", order_id),
    MEMBER(ID, "customer_id", customer_id),
    MEMBER(TEXT, "purpose", purpose),
    MEMBER(TEXT, "item", item),
    MEMBER(TEXT, "state", state),
    MEMBER(CURRENCY, "currency", unit),
    MEMBER(EXPONENT, "exponent", unit),
    MEMBER(LONG, "due", due),
    MEMBER(LONG, "received", received),
    MEMBER(LONG, "refunded", refunded),
    MEMBER(LONG, "delta", delta),
    MEMBER(INT, "qualification", qualification),
    MEMBER(BOOL, "late", late),
    MEMBER(BOOL, "partial", partial),
    MEMBER(BOOL, "over", over),
    MEMBER(TEXT, "provider", provider),
    MEMBER(TEXT, "account", account),
    MEMBER(TEXT, "provider_event_id", provider_event_id),
    MEMBER(UUID, "decision_id", decision_id),
    MEMBER(TEXT, "policy", policy),
    MEMBER(INT, "policy_version", policy_version),
    MEMBER(TEXT, "verdict", verdict),
    MEMBER(TEXT, "reason", reason),
    MEMBER(TEXT_NULL, "refund_id", refund_id),
    MEMBER(BOOL, "receipt", receipt),
    MEMBER(MILLIS, "occurred_at", occurred_at_us),
    MEMBER(MILLIS, "decided_at", decided_at_us),
    MEMBER(LONG, "sequence", sequence),
    MEMBER(TEXT, "right", right),
    LIST("accounts", accounts, &legs),
    MEMBER(LONG, "tax", tax),
    MEMBER(LONG, "shipping", shipping),
    MEMBER(LONG, "disputed", disputed),
    MEMBER(TEXT_NULL, "dispute_id", dispute_id),
    MEMBER(MILLIS_NULL, "period_start", period_start_us),
    MEMBER(MILLIS_NULL, "period_end", period_end_us),
};
static po_codec payment_codec = CODEC("payment_event.avsc", payment_members);
#undef STRUCT

#define STRUCT po_contact
static const po_member contact_members[] = {
    MEMBER(ID, "order_id", order_id),
    MEMBER(TEXT, "email", email),
    MEMBER(TEXT, "language", language),
};
static po_codec contact_codec = CODEC("contact.avsc", contact_members);
#undef STRUCT

const po_avro_schema *po_payment_event_schema(void) {
    return po_codec_schema(&payment_codec);
}

const po_avro_schema *po_contact_schema(void) {
    return po_codec_schema(&contact_codec);
}

bool po_payment_event_write(const po_payment_event *event, po_buf *out, po_err *err) {
    return po_codec_write(&payment_codec, event, out, err);
}

bool po_contact_write(const po_contact *contact, po_buf *out, po_err *err) {
    return po_codec_write(&contact_codec, contact, out, err);
}

// Asked here and not by each consumer: one that does not ask would give for what another does not
// book.
static bool can_be(const po_payment_event *e, po_err *err) {
    if (e->due < 0 || e->refunded < 0 || e->received < e->refunded)
        return po_fail(err, PO_REFUSED, "position",
                       "due %" PRId64 ", received %" PRId64 ", refunded %" PRId64 " cannot be",
                       e->due, e->received, e->refunded);
    if (e->tax < 0 || e->shipping < 0 || e->disputed < 0)
        return po_fail(err, PO_REFUSED, "position",
                       "tax %" PRId64 ", shipping %" PRId64 ", disputed %" PRId64 " cannot be",
                       e->tax, e->shipping, e->disputed);
    for (size_t i = 0; i < e->n_accounts; i++) {
        const po_leg *leg = &e->accounts[i];
        if (leg->received < 0 || leg->refunded < 0 || leg->disputed < 0 || leg->fee < 0)
            return po_fail(err, PO_REFUSED, "position", "a negative amount on account %.*s",
                           (int)leg->account.n, leg->account.p);
    }
    if (po_str_is(e->type, "payment.qualified") &&
        (!po_str_is(e->state, "paid") || e->qualification < 1))
        return po_fail(err, PO_REFUSED, "position", "qualified, in state %.*s, by qualification %d",
                       (int)e->state.n, e->state.p, e->qualification);
    return true;
}

bool po_payment_event_read(const po_avro_schema *writer, po_str body, po_arena *arena,
                           po_payment_event *ret_event, po_err *err) {
    po_payment_event event;
    if (!po_codec_read(&payment_codec, writer, body, arena, &event, err) || !can_be(&event, err))
        return false;
    *ret_event = event;
    return true;
}

bool po_contact_read(const po_avro_schema *writer, po_str body, po_arena *arena,
                     po_contact *ret_contact, po_err *err) {
    return po_codec_read(&contact_codec, writer, body, arena, ret_contact, err);
}
