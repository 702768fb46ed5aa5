// References first, then names. The rows come sorted, so that each look is a search by halves; what
// the batch itself has taught is found by a hash.
#include "routes.h"
#include "accounts.h"
#include <stdlib.h>

const char *known_by_name(known_by by) {
    static const char *const names[] = {"shop", "money", "word", "conflict"};
    return names[by];
}

known_by known_by_parse(po_str name) {
    for (known_by by = KNOWN_BY_MONEY; by <= KNOWN_BY_CONFLICT; by++)
        if (po_str_is(name, known_by_name(by)))
            return by;
    return KNOWN_BY_SHOP;
}

bool brings_money(const observation *obs) {
    for (size_t i = 0; i < obs->n_facts; i++)
        if (obs->facts[i].kind == FACT_PAYMENT && obs->facts[i].state == STATE_PAID)
            return true;
    return false;
}

bool speaks_of_payment(const observation *obs) {
    for (size_t i = 0; i < obs->n_facts; i++)
        if (obs->facts[i].kind == FACT_PAYMENT)
            return true;
    return obs->n_refs == 0;
}

// --- What is asked

// A claim is kept as a reference of a kind of its own, which no real one can be in the way of. Two
// that differ are all there is to know.
enum { CLAIMS = 2 };
static const char *const claim_prefixes[CLAIMS] = {"named:", "also:"};

static reference claim_on(po_arena *arena, const reference *ref, size_t which) {
    const char *kind =
        po_printf(arena, "%s%.*s", claim_prefixes[which], (int)ref->kind.n, ref->kind.p);
    return (reference){po_s(kind), ref->value, {0}};
}

// Money that names an order itself asks for nobody else's word.
static bool asks_for_claims(const observation *obs) {
    return !(obs->order_id.n && speaks_of_payment(obs));
}

void routes_ask(speaker *s, po_arena *arena, known_ref *asked, size_t *n) {
    const observation *obs = s->obs;
    s->first_ref = *n;
    if (obs->disposition != OBS_FACTS)
        return;
    for (size_t i = 0; i < obs->n_refs; i++)
        asked[(*n)++] = (known_ref){
            .provider = s->provider, .kind = obs->refs[i].kind, .value = obs->refs[i].value};
    for (size_t i = 0; asks_for_claims(obs) && i < obs->n_refs; i++)
        for (size_t which = 0; which < CLAIMS; which++) {
            reference claim = claim_on(arena, &obs->refs[i], which);
            asked[(*n)++] =
                (known_ref){.provider = s->provider, .kind = claim.kind, .value = claim.value};
        }
}

static bool visitor_counts(const speaker *s) {
    return s->account && s->account->client_reference;
}

size_t routes_named(const speaker *s, po_str *out) {
    size_t n = 0;
    if (s->obs->disposition != OBS_FACTS)
        return 0;
    if (s->obs->order_id.n)
        out[n++] = s->obs->order_id;
    if (s->obs->client_reference.n && visitor_counts(s))
        out[n++] = s->obs->client_reference;
    return n;
}

// --- What is known

void routes_init(routes *r, po_arena *arena, size_t n_events) {
    r->arena = arena;
    r->n_taught = 0;
    r->cap_taught = OBS_MAX * n_events;
    r->taught = po_alloc_array(arena, r->cap_taught + 1, sizeof *r->taught);
    for (r->taught_mask = 1; r->taught_mask < 2 * r->cap_taught; r->taught_mask *= 2) {
    }
    r->taught_at = po_alloc_array(arena, r->taught_mask, sizeof *r->taught_at);
    r->taught_mask--;
}

static uint32_t *taught_slot(const routes *r, const speaker *s, const reference *ref) {
    uint64_t hash = 14695981039346656037U; // FNV-1a
    for (size_t i = 0; i < ref->value.n; i++)
        hash = (hash ^ (uint8_t)ref->value.p[i]) * 1099511628211U;
    for (size_t at = hash & r->taught_mask;; at = (at + 1) & r->taught_mask) {
        const known_ref *t = r->taught_at[at] ? &r->taught[r->taught_at[at] - 1] : NULL;
        if (!t || (po_str_eq(t->value, ref->value) && po_str_eq(t->kind, ref->kind) &&
                   po_str_eq(t->provider, s->provider) && po_str_eq(t->account, s->alias)))
            return &r->taught_at[at];
    }
}

static const known_ref *find_taught(const routes *r, const speaker *s, const reference *ref) {
    uint32_t place = r->taught_at ? *taught_slot(r, s, ref) : 0;
    return place ? &r->taught[place - 1] : NULL;
}

static bool add_taught(routes *r, const speaker *s, const reference *ref, po_str order_id,
                       known_by by) {
    uint32_t *slot = taught_slot(r, s, ref);
    if (*slot)
        return false;
    r->taught[r->n_taught++] = (known_ref){.provider = s->provider,
                                           .kind = ref->kind,
                                           .value = ref->value,
                                           .account = s->alias,
                                           .order_id = order_id,
                                           .payment = ref->payment,
                                           .by = by};
    *slot = (uint32_t)r->n_taught;
    return true;
}

// The rows of what was asked as number `index`.
static const found_ref *rows_of(const routes *r, size_t index, size_t *ret_n) {
    size_t low = 0, high = r->n_refs;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (r->refs[middle].asked < index)
            low = middle + 1;
        else
            high = middle;
    }
    for (*ret_n = 0; low + *ret_n < r->n_refs && r->refs[low + *ret_n].asked == index; ++*ret_n) {
    }
    return r->refs + low;
}

static int compare_order(const void *id, const void *order) {
    return po_str_cmp(*(const po_str *)id, ((const found_order *)order)->id);
}

static const found_order *find_order(const routes *r, po_str id) {
    return r->n_orders ? bsearch(&id, r->orders, r->n_orders, sizeof *r->orders, compare_order)
                       : NULL;
}

// The order of this name, when the event's account may pay it; else empty. An alias names an account
// only together with its provider: the order's are its policy's.
static po_str payable(const routes *r, const speaker *s, po_str id) {
    const found_order *o = id.n ? find_order(r, id) : NULL;
    const policy *policy = o ? policy_find(o->policy) : NULL;
    if (!o ||
        (s->account && !(policy && po_str_is(s->provider, policy->provider) &&
                         o->live == s->account->live && accounts_lists(o->accounts, s->alias))))
        return (po_str){0};
    return o->id;
}

// --- The route

static bool among(const po_str *list, size_t n, po_str id) {
    for (size_t i = 0; i < n; i++)
        if (po_str_eq(list[i], id))
            return true;
    return false;
}

static void add_order(route *found, po_str id) {
    if (id.n && found->n < ROUTE_ORDERS && !among(found->orders, found->n, id))
        found->orders[found->n++] = id;
}

static void add_elsewhere(route *found, po_str id) {
    if (id.n && found->n_elsewhere < ROUTE_ELSEWHERE && !among(found->orders, found->n, id) &&
        !among(found->elsewhere, found->n_elsewhere, id))
        found->elsewhere[found->n_elsewhere++] = id;
}

// The shop's reference stands above all; of others the weakest counts, since one word of it may be
// contradicted.
static void note_strength(route *found, known_by by, bool first) {
    bool shop = by == KNOWN_BY_SHOP || (!first && found->by == KNOWN_BY_SHOP);
    found->by = shop ? KNOWN_BY_SHOP : first || by > found->by ? by : found->by;
}

static void note_ref(route *found, po_str order_id, po_str payment, known_by by) {
    note_strength(found, by, found->n == 0);
    add_order(found, order_id);
    if (payment.n)
        found->payment = payment;
}

// One that pays a thing registered at another account of ours is foreign, unless its own account has
// it for the same order.
static void note_foreign(route *found, const speaker *s, const found_ref *row, po_str own) {
    if (po_str_eq(row->account, s->alias) || po_str_eq(row->order_id, own) ||
        row->live != s->account->live)
        return;
    note_strength(found, row->by, found->n == 0);
    add_order(found, row->order_id);
    found->foreign =
        accounts_lists(row->accounts, s->alias) ? "registered_elsewhere" : "foreign_account";
}

// What the look-up found of reference i; true when the event's own account has it. It leads to its
// order only in the mode that the account is of today: to the other mode's it does not lead, nor can
// it become another order's (P17).
static bool note_known(const routes *r, route *found, const speaker *s, size_t i) {
    size_t n;
    const found_ref *rows = rows_of(r, s->first_ref + i, &n);
    bool known = false;
    po_str own = {0};
    for (size_t row = 0; row < n; row++) {
        if (!po_str_eq(rows[row].account, s->alias))
            continue;
        known = true;
        if (rows[row].live == s->account->live) {
            own = rows[row].order_id;
            note_ref(found, own, rows[row].payment, rows[row].by);
        }
    }
    for (size_t row = 0; row < n && ref_is_global(s->provider, s->obs->refs[i].kind); row++)
        note_foreign(found, s, &rows[row], own);
    return known;
}

// The order that reference i is claimed for, by the first claim or another one; empty when nobody
// has. *ret_there: there is a claim, if only of the other mode.
static po_str claimed_order(const routes *r, const speaker *s, size_t i, size_t which,
                            bool *ret_there) {
    reference claim = claim_on(r->arena, &s->obs->refs[i], which);
    const known_ref *taught = find_taught(r, s, &claim);
    po_str order = {0};
    size_t n;
    const found_ref *rows = rows_of(r, s->first_ref + s->obs->n_refs + CLAIMS * i + which, &n);
    *ret_there = taught != NULL;
    for (size_t row = 0; row < n; row++)
        if (po_str_eq(rows[row].account, s->alias)) {
            *ret_there = true;
            order = rows[row].live == s->account->live ? rows[row].order_id : order;
        }
    return taught ? taught->order_id : order;
}

// Money without a name of its own takes the words of others.
static void follow_words(const routes *r, route *found, const speaker *s, po_str visitor) {
    bool there;
    for (size_t i = 0; i < s->obs->n_refs; i++)
        for (size_t which = 0; which < CLAIMS; which++)
            add_order(found, claimed_order(r, s, i, which, &there));
    add_order(found, visitor);
    found->by = KNOWN_BY_WORD;
}

// Whether the event's word stands against what its references are learnt by.
static bool contradicts(const route *found, const speaker *s, bool own) {
    bool paid = brings_money(s->obs);
    return found->by == KNOWN_BY_SHOP ? false : found->by == KNOWN_BY_MONEY ? paid : own || paid;
}

static void judge_names(route *found, const speaker *s, po_str own, po_str visitor) {
    po_str word = s->obs->order_id.n ? own : visitor;
    if (word.n && contradicts(found, s, own.n > 0))
        add_order(found, word);
    add_elsewhere(found, own);
    add_elsewhere(found, visitor);
    found->conflict = found->n > 1 || found->by == KNOWN_BY_CONFLICT;
}

route routes_find(const routes *r, const speaker *s, bool ret_unknown[OBS_MAX]) {
    const observation *obs = s->obs;
    route found = {0};
    for (size_t i = 0; i < obs->n_refs; i++) {
        ret_unknown[i] = !note_known(r, &found, s, i);
        const known_ref *taught = ret_unknown[i] ? find_taught(r, s, &obs->refs[i]) : NULL;
        if (taught) {
            ret_unknown[i] = false;
            note_ref(&found, taught->order_id, taught->payment, taught->by);
        }
    }
    po_str own = payable(r, s, obs->order_id);
    po_str visitor = visitor_counts(s) ? payable(r, s, obs->client_reference) : (po_str){0};
    found.by_word = found.n == 0;
    if (found.n == 0 && obs->order_id.n) { // waits for that order where it is not known
        add_order(&found, own);
        found.by = KNOWN_BY_MONEY;
        if (own.n)
            add_elsewhere(&found, visitor);
        return found;
    }
    if (found.n == 0)
        follow_words(r, &found, s, visitor);
    judge_names(&found, s, own, visitor);
    return found;
}

// --- Teaching

bool routes_teach(routes *r, const speaker *s, size_t i, po_str order_id, known_by by) {
    return add_taught(r, s, &s->obs->refs[i], order_id, by);
}

bool routes_claim(routes *r, const speaker *s, size_t i, po_str order_id) {
    for (size_t which = 0; which < CLAIMS; which++) {
        bool there;
        po_str claimed = claimed_order(r, s, i, which, &there);
        reference claim = claim_on(r->arena, &s->obs->refs[i], which);
        if (po_str_eq(claimed, order_id))
            return false;
        if (!there)
            return add_taught(r, s, &claim, order_id, KNOWN_BY_WORD);
    }
    return false;
}

po_str routes_payment(const routes *r, const speaker *s, size_t i) {
    const known_ref *taught = find_taught(r, s, &s->obs->refs[i]);
    size_t n;
    const found_ref *rows = rows_of(r, s->first_ref + i, &n);
    for (size_t row = 0; row < n; row++) {
        if (po_str_eq(rows[row].account, s->alias)) {
            bool ours = rows[row].live == s->account->live; // else not to be taught
            return ours ? rows[row].payment : s->obs->refs[i].payment;
        }
    }
    return taught ? taught->payment : (po_str){0};
}

bool ref_is_global(po_str provider, po_str kind) {
    const ref_kind *found = ref_kind_find(provider, kind);
    return found && found->global;
}
