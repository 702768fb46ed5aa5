// LND, by observation: a watcher or the reconciler looks at an invoice and posts what it saw,
// signed by the Standard Webhooks scheme (docs/observations.md). Amounts are millisatoshi and stay
// so. ACCEPTED is not paid, and an amount counts only with SETTLED: LND leaves amt_paid_msat on
// invoices whose HTLCs were held and then canceled.
//
// Two observers of one state say the same, so nothing that depends on the observer or on LND's own
// bookkeeping (observed_at, add_index, settle_index) is part of the content.
#include "base/clock.h"
#include "providers/content.h"
#include "json/json.h"
#include "providers/signature.h"
#include "providers/words.h"

#define SECONDS_MAX 253402300799 // the end of year 9999
#define HASH_HEX 64

static const word lightning_words[] = {
    {"invoice", "OPEN", STATE_PENDING, 1, false, "nothing came yet"},
    {"invoice", "ACCEPTED", STATE_HELD, 2, false, "held, not paid: the money can still go back"},
    {"invoice", "CANCELED", STATE_CANCELED, 3, false, "final: the invoice takes no money any more"},
    {"invoice", "SETTLED", STATE_PAID, 3, false, "final: the money is ours"},
    {0},
};

// --- Signature: HMAC-SHA256 over `id.timestamp.body`, base64, `v1,` before it

enum { HEADER_ID, HEADER_TIMESTAMP, HEADER_SIGNATURE };
enum { KEY_MIN = 24, KEY_MAX = 64 };
static const char secret_prefix[] = "whsec_";

static const char *read_secret(const char *secret, uint8_t key[KEY_MAX], size_t *ret_n) {
    size_t n = sizeof secret_prefix - 1;
    if (!*secret)
        return "empty";
    if (strncmp(secret, secret_prefix, n) != 0)
        return "does not begin with whsec_";
    if (!base64_read(po_s(secret + n), key, KEY_MAX, ret_n))
        return "is not base64 of at most 64 bytes";
    return *ret_n < KEY_MIN ? "has fewer than 24 bytes" : NULL;
}

static const char *lightning_check_secret(const char *secret) {
    uint8_t key[KEY_MAX];
    size_t n;
    return read_secret(secret, key, &n);
}

// Space-separated `VERSION,VALUE`; versions other than v1 (asymmetric ones) say nothing to us.
static bool read_signatures(po_str header, uint8_t (*candidates)[MAC_SIZE], size_t *ret_n) {
    *ret_n = 0;
    for (size_t seen = 0; seen < SIGNATURES_MAX; seen++) {
        const char *space = memchr(header.p, ' ', header.n);
        po_str token = {header.p, space ? (size_t)(space - header.p) : header.n};
        const char *comma = token.n ? memchr(token.p, ',', token.n) : NULL;
        if (!comma)
            return false;
        po_str value = {comma + 1, token.n - (size_t)(comma + 1 - token.p)};
        size_t n = 0;
        if (po_str_is((po_str){token.p, (size_t)(comma - token.p)}, "v1") &&
            base64_read(value, candidates[*ret_n], MAC_SIZE, &n) && n == MAC_SIZE)
            ++*ret_n;
        if (!space)
            return true;
        header = (po_str){space + 1, header.n - token.n - 1};
    }
    return false;
}

static bool read_message_id(po_str text, po_str *ret_id) {
    po_str id = po_str_trim(text);
    if (!po_is_id(id, PO_ID_MAX) ||
        memchr(id.p, '.', id.n)) // a '.' would move the border of the signed parts
        return false;
    *ret_id = id;
    return true;
}

static verify_result lightning_verify(const account *alias, const header_value *headers,
                                      po_str body, int64_t now_us) {
    for (size_t i = 0; i < 3; i++) {
        verify_result there = header_once(headers[i]);
        if (there != VERIFY_OK)
            return there;
    }
    po_str id, timestamp = po_str_trim(headers[HEADER_TIMESTAMP].value);
    int64_t seconds;
    uint8_t candidates[SIGNATURES_MAX][MAC_SIZE];
    size_t n_candidates;
    if (!read_message_id(headers[HEADER_ID].value, &id) || !timestamp_read(timestamp, &seconds) ||
        !read_signatures(po_str_trim(headers[HEADER_SIGNATURE].value), candidates, &n_candidates))
        return VERIFY_MALFORMED;
    if (!timestamp_fresh(seconds, now_us))
        return VERIFY_STALE;
    const po_str parts[] = {id, po_s("."), timestamp, po_s("."), body};
    unsigned same = 0;
    for (const char *const *secret = alias->secrets; n_candidates && *secret; secret++) {
        uint8_t key[KEY_MAX], mac[MAC_SIZE];
        size_t n;
        if (read_secret(*secret, key, &n))
            continue;
        hmac_sha256((po_str){(const char *)key, n}, parts, 5, mac);
        same |= signature_matches(mac, (const uint8_t(*)[MAC_SIZE])candidates, n_candidates);
    }
    return same ? VERIFY_OK : VERIFY_WRONG;
}

static bool lightning_stated_time(const header_value *headers, int64_t *ret_seconds) {
    return timestamp_read(po_str_trim(headers[HEADER_TIMESTAMP].value), ret_seconds);
}

// --- Reading

typedef struct invoice {
    po_str node, profile, hash, set_id, state;
    int64_t amt_paid_msat, creation_date, settle_date;
    int64_t observed_at_us;
} invoice;

static bool read_hash(const json_t *object, const char *key, bool needed, po_str *ret,
                      po_err *err) {
    uint8_t bytes[HASH_HEX / 2];
    if (!(needed ? po_json_str(object, key, HASH_HEX, ret, err)
                 : po_json_str_opt(object, key, HASH_HEX, ret, err)))
        return false;
    if (!needed && ret->n == 0)
        return true;
    return po_unhex(*ret, bytes, sizeof bytes) ||
           po_fail(err, PO_REFUSED, "hash", "%s is not 64 hex digits", key);
}

// 0 stands for missing, as in LND's own JSON.
static bool read_date(const json_t *object, const char *key, int64_t *ret, po_err *err) {
    *ret = 0;
    if (!po_json_i64_text_opt(object, key, ret, err))
        return false;
    return (*ret >= 0 && *ret <= SECONDS_MAX) || po_fail(err, PO_REFUSED, "time_range", "%s", key);
}

static bool read_amount(const json_t *object, invoice *in, po_err *err) {
    int64_t amount = NO_AMOUNT;
    if (!po_json_i64_text_opt(object, "amt_paid_msat", &amount, err))
        return false;
    if (amount < 0 && amount != NO_AMOUNT)
        return po_fail(err, PO_REFUSED, "amount_negative", "amt_paid_msat");
    in->amt_paid_msat = po_str_is(in->state, "SETTLED") ? amount : NO_AMOUNT;
    return true;
}

static bool read_invoice(const json_t *root, invoice *in, po_err *err) {
    po_str kind = {0}, observed = {0};
    if (!po_json_str(root, "kind", 64, &kind, err))
        return false;
    if (!po_str_is(kind, "invoice"))
        return po_fail(err, PO_REFUSED, "kind", "not an invoice");
    const json_t *object = NULL;
    if (!po_json_object(root, "object", &object, err) ||
        !po_json_id_opt(root, "node", &in->node, err) ||
        !po_json_id(root, "profile", &in->profile, err) ||
        !po_json_str(root, "observed_at", 64, &observed, err) ||
        !po_json_id(object, "state", &in->state, err) ||
        !read_hash(object, "payment_hash", true, &in->hash, err) ||
        !read_hash(object, "set_id", false, &in->set_id, err) || !read_amount(object, in, err) ||
        !read_date(object, "creation_date", &in->creation_date, err) ||
        !read_date(object, "settle_date", &in->settle_date, err))
        return false;
    if (!po_parse_rfc3339(observed, &in->observed_at_us))
        return po_fail(err, PO_REFUSED, "time", "observed_at");
    return in->creation_date > 0 || po_fail(err, PO_REFUSED, "json_missing", "creation_date");
}

// The input that the observation's id derives from as well: docs/observations.md states it field by
// field.
static void invoice_digest(const invoice *in, uint8_t out[32]) {
    po_buf content = {0};
    content_put(&content, po_s("payonce.invoice.1"));
    content_put(&content, in->profile);
    content_put(&content, in->hash);
    content_put(&content, in->set_id);
    content_put(&content, in->state);
    content_put_i64(&content, in->amt_paid_msat);
    content_put_i64(&content, in->creation_date);
    content_put_i64(&content, in->settle_date);
    po_sha256(po_buf_view(&content), out);
    po_buf_done(&content);
}

// The time of the fact is LND's own, so that it is the same whoever looked: settle_date, else
// creation_date.
static void state_invoice(const account *alias, const invoice *in, po_arena *arena,
                          observation *o) {
    po_str hash = po_str_copy(arena, in->hash);
    po_str payment = hash;
    if (in->set_id.n)
        payment = po_s(po_printf(arena, "%s:%.*s", hash.p, (int)in->set_id.n, in->set_id.p));
    const word *w = word_find(lightning_words, po_s("invoice"), in->state);
    bool settled = w->state == STATE_PAID && in->settle_date > 0;
    int64_t at_us = (settled ? in->settle_date : in->creation_date) * PO_SECOND_US;
    o->disposition = OBS_FACTS;
    o->type = po_s(po_printf(arena, "invoice.%.*s", (int)in->state.n, in->state.p));
    o->occurred_at_us = settled ? at_us : in->observed_at_us;
    o->profile = po_str_copy(arena, in->profile);
    // An AMP invoice is paid once per set: its hash leads to the order, and to no single payment.
    o->refs[o->n_refs++] =
        (reference){po_s("payment_hash"), hash, in->set_id.n ? (po_str){0} : payment};
    o->facts[o->n_facts++] = (fact){.kind = FACT_PAYMENT,
                                    .provider = po_s("lightning"),
                                    .account = po_s(alias->name),
                                    .object = payment,
                                    .unit = {.currency = "BTC", .exponent = 11},
                                    .state = w->state,
                                    .rank = w->rank,
                                    .canceled_seen = w->state == STATE_CANCELED,
                                    .amount = in->amt_paid_msat,
                                    .amount_most = in->amt_paid_msat,
                                    .at_us = at_us};
    invoice_digest(in, o->digest);
    // A node that is configured must be named; one that is named must be configured.
    const char *problem = alias->id || in->node.n ? account_differs(alias, in->node) : NULL;
    if (problem)
        observation_set_apart(o, problem, arena);
}

static void lightning_read(const account *alias, const header_value *headers, po_str body,
                           po_arena *arena, observation *ret_observation) {
    observation *o = ret_observation;
    *o = (observation){0};
    po_err err = {0};
    json_t *root = NULL;
    invoice in = {0};
    po_str id = {0};
    if (read_message_id(headers[HEADER_ID].value, &id))
        o->event_id = po_str_copy(arena, id);
    bool ok = o->event_id.n > 0 || po_fail(&err, PO_REFUSED, "webhook_id", "unreadable");
    if (ok && po_json_parse(body, &root, &err) && read_invoice(root, &in, &err))
        state_invoice(alias, &in, arena, o);
    else
        observation_quarantine(o, err.code, body, arena);
    json_decref(root);
}

static const ref_kind lightning_refs[] = {
    // Hex digits. Whoever knows the hash can pay it at any node.
    {.name = "payment_hash", .max = HASH_HEX, .stated = true, .global = true},
    {0},
};

// Millisatoshi, the finest that Lightning moves; a price in satoshi is rescaled on entry.
static bool lightning_unit(po_str currency, po_unit *ret_unit) {
    if (!po_str_is(currency, "BTC"))
        return false;
    *ret_unit = (po_unit){.currency = "BTC", .exponent = 11};
    return true;
}

static const policy lightning_v1 = {.name = "lightning-v1",
                                    .version = 1,
                                    .provider = "lightning",
                                    .unit = lightning_unit,
                                    .words = lightning_words};

const provider lightning = {.name = "lightning",
                            .door = "observations",
                            .headers = {"webhook-id", "webhook-timestamp", "webhook-signature"},
                            .verify = lightning_verify,
                            .stated_time = lightning_stated_time,
                            .read = lightning_read,
                            .check_secret = lightning_check_secret,
                            .reader_version = 1,
                            .digest_version = 1,
                            .ref_kinds = lightning_refs,
                            .policy = &lightning_v1};
