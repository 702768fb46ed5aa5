// The fields in the order of the page; whatever a later step relies on is checked here.
#include "registration.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "providers/content.h"
#include "json/json.h"
#include <stdlib.h>

// docs/orders.md says them too.
enum { MAX_LIST = 100, EMAIL_MAX = 254, LANGUAGE_MAX = 35 };

static bool invalid(po_err *err, const char *what) {
    return po_fail(err, PO_REFUSED, "invalid", "%s", what);
}

static bool is_word(po_str s, const char *const *words) {
    for (size_t i = 0; words[i]; i++)
        if (po_str_is(s, words[i]))
            return true;
    return false;
}

static bool read_names(const json_t *body, po_arena *arena, registration *r, po_err *err) {
    static const char *const purposes[] = {"deposit",    "invoice", "package",
                                           "membership", "course",  NULL};
    po_str policy = {0};
    if (!po_json_id_to(body, "order_id", REGISTRATION_ID_MAX, &r->order_id, err) ||
        !po_json_id_to(body, "customer_id", REGISTRATION_ID_MAX, &r->customer_id, err) ||
        !po_json_id_to(body, "item", REGISTRATION_ID_MAX, &r->item, err) ||
        !po_json_str(body, "purpose", 20, &r->purpose, err) ||
        !po_json_str(body, "policy", 40, &policy, err) ||
        !po_json_str_opt(body, "profile", PO_ID_MAX, &r->profile, err))
        return false;
    r->policy = policy_find(policy);
    if (!r->policy)
        return invalid(err, "policy: not one of ours");
    if (!is_word(r->purpose, purposes))
        return invalid(err, "purpose: deposit, invoice, package, membership or course");
    if (r->profile.n && !po_is_id(r->profile, PO_ID_MAX))
        return invalid(err, "profile: printable ASCII without spaces");
    if (memchr(r->order_id.p, '/', r->order_id.n))
        return invalid(err, "order_id: no '/'");
    r->profile = po_str_copy(arena, r->profile);
    return true;
}

static bool read_amount(const json_t *body, registration *r, po_err *err) {
    const json_t *amount = NULL;
    po_str currency = {0};
    int64_t exponent = 0, discount = 0;
    if (!po_json_object(body, "amount", &amount, err) ||
        !po_json_i64(amount, "minor", &r->price.minor, err) ||
        !po_json_str(amount, "currency", 7, &currency, err) ||
        !po_json_i64(amount, "exponent", &exponent, err) ||
        !po_json_i64_opt(body, "max_discount", &discount, err))
        return po_wrap(err, "amount");
    po_unit unit;
    if (!r->policy->unit(currency, &unit) || !po_str_is(currency, unit.currency))
        return invalid(err, "amount.currency: not one this policy can receive, in upper case");
    if (exponent < 0 || exponent > 18 || r->price.minor < 0)
        return invalid(err, "amount: minor ≥ 0, exponent 0 to 18");
    if (discount < 0 || discount > r->price.minor)
        return invalid(err, "max_discount: 0 to the amount");
    r->price.unit = unit;
    r->price.unit.exponent = (int)exponent;
    po_money most = {discount, r->price.unit};
    if (!po_money_rescale(r->price, unit.exponent, &r->price, err) ||
        !po_money_rescale(most, unit.exponent, &most, err)) {
        err->kind = PO_REFUSED;
        return po_wrap(err, "amount");
    }
    r->max_discount = most.minor;
    return true;
}

static int compare_text(const void *a, const void *b) {
    return po_str_cmp(*(const po_str *)a, *(const po_str *)b);
}

static bool read_accounts(const json_t *body, const accounts *all, po_arena *arena, registration *r,
                          po_err *err) {
    const json_t *list = NULL;
    if (!po_json_array(body, "accounts", &list, err))
        return false;
    size_t n = json_array_size(list);
    if (n == 0 || n > MAX_LIST) {
        return po_fail(err, PO_REFUSED, "invalid",
                       "accounts: 1 to %d names of those that may pay the order", MAX_LIST);
    }
    r->accounts = po_alloc_array(arena, n, sizeof *r->accounts);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(list, i);
        po_str name = po_s(po_json_string(one));
        const account *account =
            name.p ? accounts_named(all, po_s(r->policy->provider), name) : NULL;
        if (!account)
            return invalid(err, "accounts: not the name of one at the policy's provider");
        if (i && account->live != r->live)
            return invalid(err, "accounts: all of one mode, live or test");
        r->live = account->live;
        r->accounts[r->n_accounts++] = po_str_copy(arena, name);
    }
    qsort(r->accounts, r->n_accounts, sizeof *r->accounts, compare_text);
    for (size_t i = 1; i < r->n_accounts; i++)
        if (po_str_eq(r->accounts[i - 1], r->accounts[i]))
            return invalid(err, "accounts: a name is there twice");
    return true;
}

static int compare_refs(const void *a, const void *b) {
    const struct stated_ref *x = a, *y = b;
    int c = po_str_cmp(x->kind, y->kind);
    if (!c)
        c = po_str_cmp(x->value, y->value);
    return c ? c : po_str_cmp(x->account, y->account);
}

bool registration_read_refs(const json_t *list, const policy *policy, po_str allowed,
                            po_arena *arena, struct stated_ref **ret_refs, size_t *ret_n,
                            po_err *err) {
    size_t n = json_array_size(list), kept = 0;
    if (n > MAX_LIST)
        return po_fail(err, PO_REFUSED, "invalid", "references: at most %d", MAX_LIST);
    struct stated_ref *refs = po_alloc_array(arena, n + 1, sizeof *refs);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(list, i);
        if (!po_json_id(one, "account", &refs[i].account, err) ||
            !po_json_id(one, "kind", &refs[i].kind, err) ||
            !po_json_id(one, "value", &refs[i].value, err))
            return po_wrap(err, "references");
        const ref_kind *kind = ref_kind_find(po_s(policy->provider), refs[i].kind);
        if (!kind || !kind->stated || !accounts_lists(allowed, refs[i].account)) {
            return invalid(err,
                           "references: a kind of the policy's provider, an account of the order");
        }
        if (refs[i].value.n > kind->max) {
            return po_fail(err, PO_REFUSED, "invalid", "references: a %s has at most %zu bytes",
                           kind->name, kind->max);
        }
        refs[i] = (struct stated_ref){po_str_copy(arena, refs[i].account),
                                      po_str_copy(arena, refs[i].kind),
                                      po_str_copy(arena, refs[i].value)};
    }
    qsort(refs, n, sizeof *refs, compare_refs);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || compare_refs(&refs[kept - 1], &refs[i]) != 0)
            refs[kept++] = refs[i];
    *ret_refs = refs;
    *ret_n = kept;
    return true;
}

static bool read_terms(const json_t *body, registration *r, po_err *err) {
    po_str expires = {0};
    r->revoke_on_refund = true;
    if (!po_json_str_opt(body, "expires_at", 40, &expires, err) ||
        !po_json_bool_opt(body, "revoke_on_refund", &r->revoke_on_refund, err))
        return false;
    if (expires.n && (!po_parse_rfc3339(expires, &r->expires_at_us) || r->expires_at_us <= 0))
        return invalid(err, "expires_at: RFC 3339");
    return true;
}

// What a mail server can be given without quoting: one '@', no spaces, controls or brackets.
static bool is_address(po_str s) {
    const char *at = s.n ? memchr(s.p, '@', s.n) : NULL;
    if (!at || at == s.p || at == s.p + s.n - 1 || !po_is_id(s, EMAIL_MAX))
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (strchr("<>()[],;:\\\"", s.p[i]) || (s.p[i] == '@' && s.p + i != at))
            return false;
    return true;
}

static bool read_contact(const json_t *body, po_arena *arena, registration *r, po_err *err) {
    const json_t *contact = NULL;
    if (!po_json_object(body, "contact", &contact, err))
        return false;
    if (!contact)
        return true;
    r->language = po_s("");
    if (!po_json_str(contact, "email", EMAIL_MAX, &r->email, err) ||
        !po_json_str_opt(contact, "language", LANGUAGE_MAX, &r->language, err))
        return po_wrap(err, "contact");
    if (!is_address(r->email) || (r->language.n && !po_is_id(r->language, LANGUAGE_MAX))) {
        return invalid(err,
                       "contact: email is one plain address, language a tag such as en or pt-BR");
    }
    r->email = po_str_copy(arena, r->email);
    r->language = po_str_copy(arena, r->language);
    return true;
}

// Version 1: length before text, yet the lists run into each other. (Two orders that are let in do
// not: an account is there once, and a reference's account is one of them.)
static void digest_text(po_buf *buf, po_str s) {
    po_buf_printf(buf, "%zu:", s.n);
    po_buf_put(buf, s.p ? s.p : "", s.n);
}

static void render_1(const registration *r, po_buf *buf) {
    const po_str texts[] = {r->order_id, r->customer_id,        r->purpose,
                            r->item,     po_s(r->policy->name), r->profile};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        digest_text(buf, texts[i]);
    po_buf_printf(buf, "%lld %s/%d %lld %d %lld;", (long long)r->price.minor,
                  r->price.unit.currency, r->price.unit.exponent, (long long)r->max_discount,
                  r->revoke_on_refund, (long long)r->expires_at_us);
    for (size_t i = 0; i < r->n_accounts; i++)
        digest_text(buf, r->accounts[i]);
    for (size_t i = 0; i < r->n_refs; i++) {
        digest_text(buf, r->refs[i].kind);
        digest_text(buf, r->refs[i].value);
        digest_text(buf, r->refs[i].account);
    }
}

// Version 2: netstrings, and each list begins with its length: no two contents render alike.
static void render_2(const registration *r, po_buf *buf) {
    const po_str texts[] = {r->order_id, r->customer_id,        r->purpose,
                            r->item,     po_s(r->policy->name), r->profile};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        content_put(buf, texts[i]);
    content_put_i64(buf, r->price.minor);
    content_put(buf, po_s(r->price.unit.currency));
    content_put_i64(buf, r->price.unit.exponent);
    content_put_i64(buf, r->max_discount);
    content_put_i64(buf, r->revoke_on_refund);
    content_put_i64(buf, r->expires_at_us);
    content_put_i64(buf, (int64_t)r->n_accounts);
    for (size_t i = 0; i < r->n_accounts; i++)
        content_put(buf, r->accounts[i]);
    content_put_i64(buf, (int64_t)r->n_refs);
    for (size_t i = 0; i < r->n_refs; i++) {
        content_put(buf, r->refs[i].kind);
        content_put(buf, r->refs[i].value);
        content_put(buf, r->refs[i].account);
    }
}

void registration_digest(const registration *r, int version, uint8_t out[32]) {
    PO_AUTO(po_buf_done) po_buf buf = {0};
    (version == 1 ? render_1 : render_2)(r, &buf);
    po_sha256(po_buf_view(&buf), out);
}

// A misspelt or mistyped member is refused, never passed over.
static bool check_members(json_t *body, po_err *err) {
    static const char *const known[] = {
        "order_id", "customer_id",  "purpose",          "item",       "amount",
        "policy",   "accounts",     "profile",          "references", "expires_at",
        "contact",  "max_discount", "revoke_on_refund", NULL};
    const char *key;
    json_t *value;
    json_object_foreach(body, key, value) {
        if (!is_word(po_s(key), known)) {
            return po_fail(err, PO_REFUSED, "invalid", "%s: not a member of an order",
                           po_is_id(po_s(key), 100) ? key : "a name not quoted here");
        }
    }
    const json_t *refs = NULL, *contact = NULL, *stated = json_object_get(body, "contact");
    if (!po_json_array(body, "references", &refs, err) ||
        !po_json_object(body, "contact", &contact, err))
        return false;
    if ((!refs && json_object_get(body, "references")) ||
        (!contact && stated && !json_is_null(stated)))
        return invalid(err, "references is an array, contact an object");
    return true;
}

bool registration_read(json_t *body, const accounts *accounts, po_arena *arena,
                       registration *ret_registration, po_err *err) {
    registration r = {0};
    if (!json_is_object(body))
        return invalid(err, "the body is not an object");
    if (!check_members(body, err) || !read_names(body, arena, &r, err) ||
        !read_amount(body, &r, err) || !read_accounts(body, accounts, arena, &r, err))
        return false;
    po_buf allowed = {0};
    for (size_t i = 0; i < r.n_accounts; i++) {
        po_buf_puts(&allowed, i ? " " : "");
        po_buf_put(&allowed, r.accounts[i].p, r.accounts[i].n);
    }
    const json_t *refs = NULL;
    bool ok = po_json_array(body, "references", &refs, err) &&
              registration_read_refs(refs, r.policy, po_buf_view(&allowed), arena, &r.refs,
                                     &r.n_refs, err) &&
              read_terms(body, &r, err) && read_contact(body, arena, &r, err);
    po_buf_done(&allowed);
    if (!ok)
        return false;
    r.order_id = po_str_copy(arena, r.order_id);
    r.customer_id = po_str_copy(arena, r.customer_id);
    r.item = po_str_copy(arena, r.item);
    r.purpose = po_str_copy(arena, r.purpose);
    *ret_registration = r;
    return true;
}
