// Stripe, one-off payments by checkout session. Session events state the money; payment_intent and
// charge events only teach which ids belong together, so that one purchase, told in three types of
// event, counts once. Refunds are told twice too: by their own id, and as a charge's running total.
// Where a session was shown in the buyer's own currency its amounts in ours count: a session of an
// API before 2025-03-31 has them in currency_conversion, a later one has them where they always are
// (and what the buyer saw in presentment_details, which nobody reads).
//
// A payment is keyed by its payment_intent, or by the session where there is none (a waived
// payment). What cannot be read is quarantined, never guessed: an amount is an integer token, an id
// is printable ASCII.
#include "base/clock.h"
#include "providers/content.h"
#include "json/json.h"
#include "providers/signature.h"
#include "providers/words.h"

#define SECONDS_MAX 253402300799 // the end of year 9999

static const word stripe_words[] = {
    {"checkout.session.completed", "paid", STATE_PAID, 4, false, "the session's money is there"},
    {"checkout.session.completed", "no_payment_required", STATE_PAID, 4, true,
     "nothing was due: counts by the discount rule"},
    {"checkout.session.completed", "unpaid", STATE_PENDING, 1, false,
     "a delayed method: neither paid nor failed until async_payment_* says"},
    {"checkout.session.async_payment_succeeded", "paid", STATE_PAID, 4, false,
     "the delayed money came"},
    {"checkout.session.async_payment_failed", "*", STATE_FAILED, 2, false,
     "the delayed money did not come; another attempt may"},
    {"checkout.session.expired", "*", STATE_EXPIRED, 3, false, "nobody paid in the session's time"},
    {"refund.failed", "*", STATE_FAILED, 3, false,
     "the money came back to us: the refund is undone"},
    {"refund.*", "succeeded", STATE_PAID, 2, false, "the money went back to the customer"},
    {"refund.*", "failed", STATE_FAILED, 3, false, "a failed refund is undone, also after success"},
    {"refund.*", "canceled", STATE_FAILED, 3, false, "a canceled refund never moved money"},
    {"refund.*", "pending", STATE_PENDING, 1, false, "not yet returned: not counted"},
    {"refund.*", "requires_action", STATE_PENDING, 1, false, "not yet returned: not counted"},
    {"refund.*", "", STATE_PENDING, 1, false, "Stripe states no status: not counted"},
    {0},
};

// --- Units

// Exponents as Stripe counts them, where they are not 2. ISK and UGX have no minor unit, yet Stripe
// sends them × 100.
static const char zero_decimal[][4] = {"BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA",
                                       "PYG", "RWF", "VND", "VUV", "XAF", "XOF", "XPF"};
static const char three_decimal[][4] = {"BHD", "JOD", "KWD", "OMR", "TND"};

static bool listed(const char (*list)[4], size_t n, const char *currency) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], currency) == 0)
            return true;
    return false;
}

static bool stripe_unit(po_str currency, po_unit *ret_unit) {
    po_unit unit = {.exponent = 2};
    if (currency.n != 3)
        return false;
    for (size_t i = 0; i < 3; i++) {
        char c = currency.p[i];
        if (c >= 'a' && c <= 'z')
            c = (char)(c - 'a' + 'A');
        if (c < 'A' || c > 'Z')
            return false;
        unit.currency[i] = c;
    }
    if (listed(zero_decimal, sizeof zero_decimal / sizeof *zero_decimal, unit.currency))
        unit.exponent = 0;
    if (listed(three_decimal, sizeof three_decimal / sizeof *three_decimal, unit.currency))
        unit.exponent = 3;
    *ret_unit = unit;
    return true;
}

// --- Signature

typedef struct stripe_signature {
    po_str t;
    int64_t seconds;
    unsigned n_t, n_v1;
    uint8_t v1[SIGNATURES_MAX][MAC_SIZE];
    size_t n_candidates; // v1 that can be a MAC
} stripe_signature;

static bool is_key(po_str key) {
    for (size_t i = 0; i < key.n; i++) {
        char c = key.p[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_'))
            return false;
    }
    return key.n > 0;
}

static bool read_token(po_str token, stripe_signature *s) {
    const char *equals = token.n ? memchr(token.p, '=', token.n) : NULL;
    if (!equals)
        return false;
    po_str key = {token.p, (size_t)(equals - token.p)};
    po_str value = {equals + 1, token.n - key.n - 1};
    if (po_str_is(key, "t")) {
        s->t = value;
        s->n_t++;
        return timestamp_read(value, &s->seconds);
    }
    if (po_str_is(key, "v1")) {
        if (s->n_v1++ >= SIGNATURES_MAX)
            return false;
        s->n_candidates += po_unhex(value, s->v1[s->n_candidates], MAC_SIZE);
        return true;
    }
    return is_key(key);
}

// One `t`, any number of candidates; unknown keys and v0 say nothing to us.
static bool read_signature(po_str header, stripe_signature *s) {
    for (;;) {
        const char *comma = header.n ? memchr(header.p, ',', header.n) : NULL;
        po_str token = {header.p, comma ? (size_t)(comma - header.p) : header.n};
        if (!read_token(token, s))
            return false;
        if (!comma)
            return s->n_t == 1;
        header = (po_str){comma + 1, header.n - token.n - 1};
    }
}

static verify_result stripe_verify(const account *alias, const header_value *headers, po_str body,
                                   int64_t now_us) {
    verify_result there = header_once(headers[0]);
    if (there != VERIFY_OK)
        return there;
    stripe_signature s = {0};
    if (!read_signature(po_str_trim(headers[0].value), &s))
        return VERIFY_MALFORMED;
    if (!timestamp_fresh(s.seconds, now_us))
        return VERIFY_STALE;
    const po_str parts[] = {s.t, po_s("."), body};
    unsigned same = 0;
    for (const char *const *secret = alias->secrets; s.n_candidates && *secret; secret++) {
        uint8_t mac[MAC_SIZE];
        if (!**secret) // anyone can sign with the empty key
            continue;
        hmac_sha256(po_s(*secret), parts, 3, mac);
        same |= signature_matches(mac, s.v1, s.n_candidates);
    }
    return same ? VERIFY_OK : VERIFY_WRONG;
}

static bool stripe_stated_time(const header_value *headers, int64_t *ret_seconds) {
    stripe_signature s = {0};
    if (!read_signature(po_str_trim(headers[0].value), &s))
        return false;
    *ret_seconds = s.seconds;
    return true;
}

static const char *stripe_check_secret(const char *secret) {
    if (!*secret)
        return "empty";
    return po_is_id(po_s(secret), 4096) ? NULL : "has a space or a control character";
}

// --- Reading

typedef struct reading {
    const account *account;
    po_arena *arena;
    const json_t *object; // data.object
    observation *o;
    po_err err;
} reading;

static bool keep(reading *r, bool ok, po_str *text) {
    if (ok && text->p)
        *text = po_str_copy(r->arena, *text);
    return ok;
}

static bool get_id(reading *r, const json_t *object, const char *key, po_str *ret) {
    return keep(r, po_json_id(object, key, ret, &r->err), ret);
}

static bool get_id_opt(reading *r, const json_t *object, const char *key, po_str *ret) {
    return keep(r, po_json_id_opt(object, key, ret, &r->err), ret);
}

// What a visitor or a shop may have written: what is no id cannot be one of ours, and is no reason
// to quarantine. Two of them are: which one is meant, nobody knows.
static bool get_lenient_id(reading *r, const json_t *object, const char *key, po_str *ret) {
    po_str text = {0};
    po_err why = {0};
    if (!po_json_id_opt(object, key, &text, &why) && strcmp(why.code, "json_twice") == 0) {
        r->err = why;
        return false;
    }
    *ret = text.n ? po_str_copy(r->arena, text) : text;
    return true;
}

static bool get_seconds(reading *r, const json_t *object, const char *key, int64_t *ret_us) {
    int64_t seconds = 0;
    if (!po_json_i64(object, key, &seconds, &r->err))
        return false;
    if (seconds < 0 || seconds > SECONDS_MAX)
        return po_fail(&r->err, PO_REFUSED, "time_range", "%s", key);
    *ret_us = seconds * PO_SECOND_US;
    return true;
}

// Missing stays what it was.
static bool get_amount_opt(reading *r, const json_t *object, const char *key, int64_t *amount) {
    int64_t value = *amount;
    if (!po_json_i64_opt(object, key, &value, &r->err))
        return false;
    if (value < 0 && value != *amount)
        return po_fail(&r->err, PO_REFUSED, "amount_negative", "%s", key);
    *amount = value;
    return true;
}

static bool get_unit(reading *r, const json_t *object, const char *key, po_unit *ret) {
    po_str currency = {0};
    if (!po_json_str(object, key, 8, &currency, &r->err))
        return false;
    return stripe_unit(currency, ret) ||
           po_fail(&r->err, PO_REFUSED, "currency", "not three letters");
}

static void teach(reading *r, const char *kind, po_str value, po_str payment) {
    if (value.n)
        r->o->refs[r->o->n_refs++] = (reference){po_s(kind), value, payment};
}

static fact *state(reading *r, fact_kind kind, po_str object, po_str payment) {
    fact *f = &r->o->facts[r->o->n_facts++];
    *f = (fact){.kind = kind,
                .provider = po_s("stripe"),
                .account = po_s(r->account->name),
                .object = object,
                .payment = payment,
                .amount = NO_AMOUNT,
                .amount_most = NO_AMOUNT,
                .at_us = r->o->occurred_at_us};
    return f;
}

static void state_word(fact *f, const word *w) {
    f->state = w->state;
    f->rank = w->rank;
    f->waived = w->waived;
}

static bool ignore(reading *r) {
    r->o->disposition = OBS_IGNORED;
    return true;
}

// What the session calls discount, tax and shipping, in the currency of its amounts.
static bool read_session_details(reading *r, fact *f) {
    const json_t *details = NULL;
    return po_json_object(r->object, "total_details", &details, &r->err) &&
           get_amount_opt(r, details, "amount_discount", &f->discount) &&
           get_amount_opt(r, details, "amount_tax", &f->tax) &&
           get_amount_opt(r, details, "amount_shipping", &f->shipping);
}

// In the currency that the shop asked in there are but two sums, before discounts and extras and
// after all. What lies between them is known where the details name one kind of it; a proportion is
// not invented: else there is neither discount nor extra, and money above the price is just that.
static bool read_source_details(reading *r, const json_t *source, fact *f) {
    int64_t subtotal = NO_AMOUNT;
    fact buyer = {0};
    if (!get_amount_opt(r, source, "amount_subtotal", &subtotal) ||
        !read_session_details(r, &buyer))
        return false;
    if (subtotal == NO_AMOUNT || f->amount == NO_AMOUNT)
        return true;
    int64_t more = f->amount - subtotal; // both ≥ 0
    if (buyer.discount && !buyer.tax && !buyer.shipping && more < 0)
        f->discount = -more;
    else if (buyer.tax && !buyer.discount && !buyer.shipping && more > 0)
        f->tax = more;
    else if (buyer.shipping && !buyer.discount && !buyer.tax && more > 0)
        f->shipping = more;
    return true;
}

// The amounts of a session count only when it is paid: before that, amount_total is a wish.
static bool read_session_money(reading *r, fact *f) {
    const json_t *source = NULL;
    if (!po_json_object(r->object, "currency_conversion", &source, &r->err) ||
        !(source ? get_unit(r, source, "source_currency", &f->unit)
                 : get_unit(r, r->object, "currency", &f->unit)))
        return false;
    if (f->state != STATE_PAID)
        return true;
    if (!get_amount_opt(r, source ? source : r->object, "amount_total", &f->amount))
        return false;
    f->amount_most = f->amount;
    f->total = f->amount == NO_AMOUNT ? 0 : f->amount;
    return source ? read_source_details(r, source, f) : read_session_details(r, f);
}

static bool read_session(reading *r) {
    po_str id = {0}, intent = {0}, mode = {0}, status = {0};
    if (!get_id(r, r->object, "id", &id) || !get_id_opt(r, r->object, "payment_intent", &intent) ||
        !po_json_str(r->object, "mode", 64, &mode, &r->err) ||
        !po_json_str_opt(r->object, "payment_status", 64, &status, &r->err))
        return false;
    if (po_str_is(mode, "setup") || po_str_is(mode, "subscription"))
        return ignore(r);
    if (!get_lenient_id(r, r->object, "client_reference_id", &r->o->client_reference))
        return false;
    po_str payment = intent.n ? intent : id;
    teach(r, "session", id, payment);
    teach(r, "payment_intent", intent, payment);
    fact *f = state(r, FACT_PAYMENT, payment, (po_str){0});
    state_word(
        f, word_find(stripe_words, po_str_is(mode, "payment") ? r->o->type : (po_str){0}, status));
    return read_session_money(r, f);
}

static bool read_intent(reading *r) {
    po_str id = {0}, charge = {0};
    if (!get_id(r, r->object, "id", &id) || !get_id_opt(r, r->object, "latest_charge", &charge))
        return false;
    teach(r, "payment_intent", id, id);
    teach(r, "charge", charge, id);
    return true;
}

static bool read_charge(reading *r) {
    po_str id = {0}, intent = {0};
    if (!get_id(r, r->object, "id", &id) || !get_id_opt(r, r->object, "payment_intent", &intent))
        return false;
    teach(r, "payment_intent", intent, intent);
    teach(r, "charge", id, intent);
    return true;
}

static void await_payment(reading *r, po_str payment) {
    r->o->needs_payment = true;
    r->o->awaits_payment = payment;
}

static bool read_refund_total(reading *r) {
    int64_t total = NO_AMOUNT;
    if (!read_charge(r) || !po_json_i64(r->object, "amount_refunded", &total, &r->err))
        return false;
    if (total < 0)
        return po_fail(&r->err, PO_REFUSED, "amount_negative", "amount_refunded");
    const reference *charge = &r->o->refs[r->o->n_refs - 1];
    fact *f = state(r, FACT_REFUND_TOTAL, charge->value, charge->payment);
    f->state = STATE_PAID;
    f->amount = f->amount_most = total;
    await_payment(r, charge->payment);
    return get_unit(r, r->object, "currency", &f->unit);
}

static bool read_refund(reading *r) {
    po_str id = {0}, charge = {0}, intent = {0}, status = {0};
    if (!get_id(r, r->object, "id", &id) || !get_id_opt(r, r->object, "charge", &charge) ||
        !get_id_opt(r, r->object, "payment_intent", &intent) ||
        !po_json_str_opt(r->object, "status", 64, &status, &r->err))
        return false;
    if (!intent.n && !charge.n)
        return po_fail(&r->err, PO_REFUSED, "refund_without_payment",
                       "neither payment_intent nor charge");
    teach(r, "payment_intent", intent, intent);
    teach(r, "charge", charge, intent);
    fact *f = state(r, FACT_REFUND, id, intent);
    f->charge = charge;
    // The older name of refund.updated speaks of the same object.
    po_str type =
        po_str_is(r->o->type, "charge.refund.updated") ? po_s("refund.updated") : r->o->type;
    state_word(f, word_find(stripe_words, type, status));
    if (!po_json_i64(r->object, "amount", &f->amount, &r->err) ||
        !get_seconds(r, r->object, "created", &f->at_us))
        return false;
    if (f->amount < 0)
        return po_fail(&r->err, PO_REFUSED, "amount_negative", "amount");
    f->amount_most = f->amount;
    if (f->state == STATE_FAILED)
        f->failed_at_us = r->o->occurred_at_us;
    r->o->refund_id = id;
    await_payment(r, intent);
    return get_unit(r, r->object, "currency", &f->unit);
}

// Event types in use; every other is recorded and ignored.
static const struct {
    const char *type;
    bool (*read)(reading *);
} types[] = {
    {"checkout.session.completed", read_session},
    {"checkout.session.async_payment_succeeded", read_session},
    {"checkout.session.async_payment_failed", read_session},
    {"checkout.session.expired", read_session},
    {"payment_intent.created", read_intent},
    {"payment_intent.processing", read_intent},
    {"payment_intent.requires_action", read_intent},
    {"payment_intent.amount_capturable_updated", read_intent},
    {"payment_intent.partially_funded", read_intent},
    {"payment_intent.succeeded", read_intent},
    {"payment_intent.payment_failed", read_intent},
    {"payment_intent.canceled", read_intent},
    {"charge.succeeded", read_charge},
    {"charge.failed", read_charge},
    {"charge.captured", read_charge},
    {"charge.expired", read_charge},
    {"charge.refunded", read_refund_total},
    {"charge.refund.updated", read_refund},
    {"refund.created", read_refund},
    {"refund.updated", read_refund},
    {"refund.failed", read_refund},
};

static bool read_object(reading *r) {
    r->o->disposition = OBS_FACTS;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (!po_str_is(r->o->type, types[i].type))
            continue;
        if (!r->object)
            return po_fail(&r->err, PO_REFUSED, "no_object", "data.object");
        return types[i].read(r);
    }
    return ignore(r);
}

// Why the event is not this alias's: NULL when it is. `account` is there only on events of
// connected accounts.
static const char *foreign(const account *alias, bool live, po_str from) {
    return live != alias->live ? "mode" : from.n ? account_differs(alias, from) : NULL;
}

// data.object, its id, and the order that its metadata names.
static bool find_object(reading *r, const json_t *root, po_str *ret_id) {
    const json_t *data = NULL, *metadata = NULL;
    return po_json_object(root, "data", &data, &r->err) &&
           po_json_object(data, "object", &r->object, &r->err) &&
           get_lenient_id(r, r->object, "id", ret_id) &&
           po_json_object(r->object, "metadata", &metadata, &r->err) &&
           get_lenient_id(r, metadata, "order_id", &r->o->order_id);
}

static bool read_event(reading *r, const json_t *root) {
    observation *o = r->o;
    po_str kind = {0}, from = {0}, object_id = {0};
    bool live = false;
    if (!get_id(r, root, "id", &o->event_id) || !get_id(r, root, "type", &o->type) ||
        !po_json_str(root, "object", 64, &kind, &r->err))
        return false;
    if (!po_str_is(kind, "event")) // a thin event names no state; its snapshot twin does
        return po_fail(&r->err, PO_REFUSED,
                       po_str_is(kind, "v2.core.event") ? "thin_event" : "not_an_event", "object");
    if (!get_seconds(r, root, "created", &o->occurred_at_us) ||
        !get_id_opt(r, root, "account", &from) ||
        !po_json_bool_opt(root, "livemode", &live, &r->err))
        return false;
    if (!json_is_boolean(json_object_get(root, "livemode")))
        return po_fail(&r->err, PO_REFUSED, "livemode", "which mode the event is of");
    if (!find_object(r, root, &object_id))
        return false;
    const char *problem = foreign(r->account, live, from);
    bool ok = problem || read_object(r); // a stranger's event is not read further
    if (problem)
        observation_set_apart(o, problem, r->arena);
    content_digest(o, object_id);
    return ok;
}

static void stripe_read(const account *alias, const header_value *headers, po_str body,
                        po_arena *arena, observation *ret_observation) {
    (void)headers;
    *ret_observation = (observation){0};
    reading r = {.account = alias, .arena = arena, .o = ret_observation};
    json_t *root = NULL;
    if (!po_json_parse(body, &root, &r.err) || !read_event(&r, root))
        observation_quarantine(ret_observation, r.err.code, body, arena);
    json_decref(root);
}

static const ref_kind stripe_refs[] = {
    {.name = "session", .max = PO_ID_MAX, .stated = true},
    {.name = "payment_intent", .max = PO_ID_MAX, .stated = true},
    {.name = "charge", .max = PO_ID_MAX, .stated = true, .finds_payment = true},
    {0},
};

static const policy stripe_v1 = {.name = "stripe-v1",
                                 .version = 1,
                                 .provider = "stripe",
                                 .unit = stripe_unit,
                                 .words = stripe_words};

const provider stripe = {.name = "stripe",
                         .door = "webhooks",
                         .headers = {"stripe-signature"},
                         .verify = stripe_verify,
                         .stated_time = stripe_stated_time,
                         .read = stripe_read,
                         .check_secret = stripe_check_secret,
                         .reader_version = 2,
                         .digest_version = 1,
                         .ref_kinds = stripe_refs,
                         .policy = &stripe_v1};
