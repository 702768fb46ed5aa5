// An order's facts, merged so that neither the order of arrival nor repetition matters: every field
// of a merged fact is a maximum, a minimum or a union of what was stated about its key; a charge's
// running total is one maximum of two fields. A sorted array, searched by halves: an order with ten
// thousand facts is merely slower.
#include "decision/decide.h"
#include "decision/evaluate.h"
#include <inttypes.h>
#include <stdio.h>

// Kinds sort by their names, as a database sorts the column.
static int kind_order(fact_kind kind) {
    switch (kind) {
    case FACT_EXPIRY:
        return 0;
    case FACT_MISMATCH:
        return 1;
    case FACT_PAYMENT:
        return 2;
    case FACT_REFUND:
        return 3;
    case FACT_REFUND_TOTAL:
        return 4;
    }
    return 5;
}

int fact_payment_cmp(const fact *f, po_str source, po_str alias, po_str payment) {
    int c = po_str_cmp(f->provider, source);
    if (!c)
        c = po_str_cmp(f->account, alias);
    if (!c)
        c = kind_order(f->kind) - kind_order(FACT_PAYMENT);
    return c ? c : po_str_cmp(f->object, payment);
}

static int key_cmp(const fact *a, const fact *b) {
    int c = po_str_cmp(a->provider, b->provider);
    if (!c)
        c = po_str_cmp(a->account, b->account);
    if (!c)
        c = kind_order(a->kind) - kind_order(b->kind);
    if (!c)
        c = po_str_cmp(a->object, b->object);
    if (!c)
        c = strcmp(a->unit.currency, b->unit.currency);
    return c ? c : (a->unit.exponent > b->unit.exponent) - (a->unit.exponent < b->unit.exponent);
}

void fact_set_init(fact_set *set, po_arena *arena) {
    *set = (fact_set){.arena = arena};
}

static void grow(fact_set *set) {
    if (set->n < set->cap)
        return;
    size_t cap = set->cap ? set->cap * 2 : 8;
    fact *facts = po_alloc_array(set->arena, cap, sizeof *facts);
    bool *dirty = po_alloc_array(set->arena, cap, sizeof *dirty);
    bool *moved = po_alloc_array(set->arena, cap, sizeof *moved);
    if (set->n) {
        memcpy(facts, set->facts, set->n * sizeof *facts);
        memcpy(dirty, set->dirty, set->n * sizeof *dirty);
        memcpy(moved, set->moved, set->n * sizeof *moved);
    }
    set->facts = facts;
    set->dirty = dirty;
    set->moved = moved;
    set->cap = cap;
}

// The first place whose key is not below; *ret_found when it is that key.
static size_t place_of(const fact_set *set, const fact *key, bool *ret_found) {
    size_t low = 0, high = set->n;
    *ret_found = false;
    if (set->n && key_cmp(&set->facts[set->n - 1], key) < 0) // loading in order
        return set->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int c = key_cmp(&set->facts[middle], key);
        if (c < 0) {
            low = middle + 1;
        } else {
            high = middle;
            *ret_found |= c == 0;
        }
    }
    return low;
}

static void insert(fact_set *set, size_t at, const fact *f, bool dirty) {
    grow(set);
    memmove(set->facts + at + 1, set->facts + at, (set->n - at) * sizeof *set->facts);
    memmove(set->dirty + at + 1, set->dirty + at, (set->n - at) * sizeof *set->dirty);
    memmove(set->moved + at + 1, set->moved + at, (set->n - at) * sizeof *set->moved);
    set->facts[at] = *f;
    set->dirty[at] = set->moved[at] = dirty;
    set->n++;
}

// The higher rank; of equal ranks the state that is later in the enum, so that SETTLED stands
// beside CANCELED in either order of arrival (canceled_seen keeps the other one).
static int strength(const fact *a, const fact *b) {
    int c = (a->rank > b->rank) - (a->rank < b->rank);
    return c ? c : (int)(a->state > b->state) - (int)(a->state < b->state);
}

static void merge_amount(fact *into, const fact *stated) {
    if (stated->amount == NO_AMOUNT)
        return;
    if (into->amount == NO_AMOUNT) {
        into->amount = stated->amount;
        into->amount_most = stated->amount_most;
        return;
    }
    if (stated->amount < into->amount)
        into->amount = stated->amount;
    if (stated->amount_most > into->amount_most)
        into->amount_most = stated->amount_most;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static po_str larger_text(po_str a, po_str b) { // a known one beats none
    return po_str_cmp(a, b) > 0 ? a : b;
}

// 0 = not stated.
static int64_t earlier(int64_t a, int64_t b) {
    return !a || (b && b < a) ? b : a;
}

// What was said last is the running total; of two said at once the larger.
static void merge_total(fact *into, const fact *stated) {
    if (stated->at_us < into->at_us ||
        (stated->at_us == into->at_us && stated->amount <= into->amount))
        return;
    into->at_us = stated->at_us;
    into->amount = into->amount_most = stated->amount;
}

static void merge_state(fact *into, const fact *stated) {
    int c = strength(stated, into);
    if (c > 0) {
        into->state = stated->state;
        into->rank = stated->rank;
    }
    if (into->kind == FACT_REFUND) // when it was made does not hang on what became of it
        into->at_us = earlier(into->at_us, stated->at_us);
    else if (c > 0 || (c == 0 && stated->at_us < into->at_us))
        into->at_us = stated->at_us;
}

static fact merged(const fact *old, const fact *stated) {
    fact f = *old;
    f.payment = larger_text(f.payment, stated->payment);
    if (f.kind == FACT_REFUND_TOTAL) {
        merge_total(&f, stated);
        return f;
    }
    merge_state(&f, stated);
    merge_amount(&f, stated);
    f.charge = larger_text(f.charge, stated->charge);
    f.canceled_seen |= stated->canceled_seen;
    f.waived |= stated->waived;
    f.discount = larger(f.discount, stated->discount);
    f.total = larger(f.total, stated->total);
    f.tax = larger(f.tax, stated->tax);
    f.shipping = larger(f.shipping, stated->shipping);
    f.failed_at_us = earlier(f.failed_at_us, stated->failed_at_us);
    return f;
}

static bool same(const fact *a, const fact *b) {
    return a->state == b->state && a->rank == b->rank && a->at_us == b->at_us &&
           a->failed_at_us == b->failed_at_us && a->amount == b->amount &&
           a->amount_most == b->amount_most && a->discount == b->discount && a->total == b->total &&
           a->tax == b->tax && a->shipping == b->shipping && a->canceled_seen == b->canceled_seen &&
           a->waived == b->waived && po_str_eq(a->payment, b->payment) &&
           po_str_eq(a->charge, b->charge);
}

void fact_set_settle(fact_set *set) {
    if (set->n)
        memset(set->moved, 0, set->n * sizeof *set->moved);
}

bool fact_set_merge(fact_set *set, const fact *stated) {
    bool found;
    size_t at = place_of(set, stated, &found);
    fact f = *stated;
    if (f.state == STATE_CANCELED) // CANCELED was stated, whoever made the fact
        f.canceled_seen = true;
    if (f.amount == NO_AMOUNT || f.amount_most == NO_AMOUNT || f.amount_most < f.amount)
        f.amount_most = f.amount;
    if (!found) {
        insert(set, at, &f, true);
        return true;
    }
    f = merged(&set->facts[at], &f);
    if (same(&f, &set->facts[at]))
        return false;
    set->facts[at] = f;
    set->dirty[at] = set->moved[at] = true;
    return true;
}

// Running totals were kept as one fact per statement, "CHARGE:CUMULATIVE", and a program of then may
// still write one: read as what it says of the charge.
static po_str total_object(const fact *f) {
    char ending[24];
    size_t n = (size_t)snprintf(ending, sizeof ending, ":%" PRId64, f->amount);
    bool old = f->object.n > n && memcmp(f->object.p + f->object.n - n, ending, n) == 0;
    return (po_str){f->object.p, f->object.n - (old ? n : 0)};
}

void fact_set_load(fact_set *set, const fact *loaded) {
    bool found;
    fact f = *loaded;
    if (f.kind == FACT_REFUND_TOTAL)
        f.object = total_object(loaded);
    size_t at = place_of(set, &f, &found);
    if (!found)
        insert(set, at, &f, false);
    else if (f.kind == FACT_REFUND_TOTAL)
        set->facts[at] = merged(&set->facts[at], &f);
}

// Where a fact stands to what is looked for, in the order of the set.
typedef int (*fact_cmp)(const fact *f, po_str provider, po_str account, po_str payment);

// The first fact that is not before it.
static size_t first_of(const fact_set *set, fact_cmp cmp, po_str source, po_str alias,
                       po_str payment) {
    size_t low = 0, high = set->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (cmp(&set->facts[middle], source, alias, payment) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool fact_set_has_paid(const fact_set *set, po_str source, po_str alias, po_str payment) {
    size_t i = first_of(set, fact_payment_cmp, source, alias, payment);
    for (; i < set->n && fact_payment_cmp(&set->facts[i], source, alias, payment) == 0; i++)
        if (set->facts[i].state == STATE_PAID)
            return true;
    return false;
}

// The object as the conflict's evidence has it, without building it.
static int contest_cmp(const fact *f, po_str source, po_str alias, po_str payment) {
    const po_str of = po_s(ROUTE_CONFLICT_OF);
    int c = po_str_cmp(f->provider, source);
    if (!c)
        c = po_str_cmp(f->account, alias);
    if (!c)
        c = kind_order(f->kind) - kind_order(FACT_MISMATCH);
    if (!c)
        c = po_str_cmp((po_str){f->object.p, f->object.n < of.n ? f->object.n : of.n}, of);
    return c ? c : po_str_cmp((po_str){f->object.p + of.n, f->object.n - of.n}, payment);
}

bool fact_set_contests(const fact_set *set, po_str source, po_str alias, po_str payment) {
    size_t i = first_of(set, contest_cmp, source, alias, payment);
    return i < set->n && contest_cmp(&set->facts[i], source, alias, payment) == 0;
}
