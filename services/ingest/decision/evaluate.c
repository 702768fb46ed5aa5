// The position of an order, from scratch, out of all its facts. Four steps: the facts about each
// payment are folded into one payment (two amounts of it count as the smaller, and are a
// contradiction); what a charge's running total states beyond the refunds that are named becomes a
// refund of its own; payments and refunds are walked by the provider's own times, to learn whether
// received − refunded reached due at some moment; what was seen on the way, as a set of signs,
// meets the table of rules. Sums are 128 bits wide, so that no multiset of 64-bit amounts overflows
// them; a total that does not fit 64 bits is a sign like any other.
#include "decision/evaluate.h"
#include <stdlib.h>

enum sign {
    SIGN_OVERFLOW = 1 << 0,
    SIGN_CONTRADICTION = 1 << 1,
    SIGN_PAID_AFTER_CANCEL = 1 << 2,
    SIGN_FOREIGN_CURRENCY = 1 << 3,
    SIGN_FOREIGN_PROFILE = 1 << 4,
    SIGN_FOREIGN_ACCOUNT = 1 << 5,
    SIGN_ROUTE_CONFLICT = 1 << 6,
    SIGN_MISMATCH = 1 << 7,
    SIGN_REACHED = 1 << 8,
    SIGN_AMOUNT_MISSING = 1 << 9,
    SIGN_REACHED_LESS = 1 << 10,
    SIGN_PAID = 1 << 11,
    SIGN_SHOP_CANCEL = 1 << 12,
    SIGN_PENDING = 1 << 13,
    SIGN_FAILED = 1 << 14,
    SIGN_CANCELED = 1 << 15,
    SIGN_EXPIRED = 1 << 16,
    SIGN_UNSUPPORTED = 1 << 17,
    SIGN_EXPIRY = 1 << 18,
    SIGN_REGISTERED_ELSEWHERE = 1 << 19,
    SIGN_OVER_REFUNDED = 1 << 20,
};

const rule rules[] = {
    {SIGN_OVERFLOW, ORDER_REVIEW, VERDICT_INCONSISTENT, "overflow",
     "amounts beyond 64 bits: a person looks"},
    {SIGN_CONTRADICTION, ORDER_REVIEW, VERDICT_INCONSISTENT, "contradiction",
     "two final values of one payment cannot both be true, whichever came last"},
    {SIGN_PAID_AFTER_CANCEL, ORDER_REVIEW, VERDICT_INCONSISTENT, "paid_after_cancel",
     "the shop had canceled: money for it is a person's case"},
    {SIGN_FOREIGN_CURRENCY, ORDER_REVIEW, VERDICT_INCONSISTENT, "foreign_currency",
     "paid or refunded in a currency, or a finer unit, that the order is not in: counts 0"},
    {SIGN_FOREIGN_PROFILE, ORDER_REVIEW, VERDICT_INCONSISTENT, "foreign_profile",
     "another node's invoice: its money is not the order's"},
    {SIGN_FOREIGN_ACCOUNT, ORDER_REVIEW, VERDICT_INCONSISTENT, "foreign_account",
     "an account that may not pay this order: no money moved"},
    {SIGN_REGISTERED_ELSEWHERE, ORDER_REVIEW, VERDICT_INCONSISTENT, "registered_elsewhere",
     "an account of the order, but the reference is registered at another: no money moved"},
    {SIGN_ROUTE_CONFLICT, ORDER_REVIEW, VERDICT_INCONSISTENT, "route_conflict",
     "references, or words about a payment that names no order itself, lead to two orders: it counts "
     "at neither"},
    {SIGN_MISMATCH, ORDER_REVIEW, VERDICT_INCONSISTENT, "mismatch",
     "evidence against the order, of an unlisted kind"},
    {SIGN_OVER_REFUNDED, ORDER_REVIEW, VERDICT_INCONSISTENT, "over_refunded",
     "more went back of a payment than came: counts as far as it came; ends when one of the refunds "
     "fails, or a later payment brings what is left to due"},
    {SIGN_REACHED, ORDER_PAID, VERDICT_QUALIFIED, "",
     "received − refunded reached due at some moment; later refunds do not undo that"},
    {SIGN_AMOUNT_MISSING, ORDER_REVIEW, VERDICT_INCONSISTENT, "amount_missing",
     "paid, but nobody said how much: the amount may follow"},
    {SIGN_REACHED_LESS, ORDER_REVIEW, VERDICT_UNDERPAID, "discount_not_allowed",
     "short only by a discount the order does not allow"},
    {SIGN_PAID, ORDER_REVIEW, VERDICT_UNDERPAID, "underpaid", "paid, but never as much as is due"},
    {SIGN_SHOP_CANCEL, ORDER_CANCELED, VERDICT_CANCELED, "canceled_by_shop",
     "the shop canceled, no money came"},
    {SIGN_PENDING, ORDER_OPEN, VERDICT_PENDING, "",
     "a payment is on its way or held: not paid, whatever the clock says"},
    {SIGN_EXPIRY, ORDER_CANCELED, VERDICT_CANCELED, "expired",
     "the order's own time ran out, whatever attempts failed; money may still qualify it"},
    {SIGN_EXPIRED, ORDER_CANCELED, VERDICT_CANCELED, "expired",
     "the provider's session ran out, whatever attempts failed; another may follow"},
    {SIGN_FAILED, ORDER_OPEN, VERDICT_FAILED, "", "an attempt failed; another may follow"},
    {SIGN_CANCELED, ORDER_CANCELED, VERDICT_CANCELED, "canceled",
     "the provider canceled every payment"},
    {SIGN_UNSUPPORTED, ORDER_OPEN, VERDICT_UNSUPPORTED, "",
     "a state this policy has no word for: visible, never paid"},
    {0, ORDER_OPEN, VERDICT_NONE, "", "no fact yet"},
};

static const struct {
    const char *object;
    unsigned sign;
} mismatches[] = {
    {"foreign_profile", SIGN_FOREIGN_PROFILE},
    {"foreign_account", SIGN_FOREIGN_ACCOUNT},
    {"registered_elsewhere", SIGN_REGISTERED_ELSEWHERE},
    {"named_elsewhere", 0}, // evidence, no verdict
    {"route_conflict", SIGN_ROUTE_CONFLICT},
};

// A refund that the provider names, whatever became of it.
typedef struct refund {
    const fact *fact;
    int64_t amount;            // in the order's unit
    const struct refund *next; // of the same payment
} refund;

// One payment, folded from its PAID facts, and how far the walk has come with its refunds.
typedef struct payment {
    const fact *first; // provider, account and payment key
    int64_t amount;    // in the order's unit
    int64_t at_us;
    bool counted; // a known amount in the order's currency
    const refund *refunds;
    __int128 refunded; // by what the walk has met so far
} payment;

// A charge's running total.
typedef struct total {
    const fact *fact;
    payment *payment;
    int64_t amount;
} total;

typedef struct moment {
    int64_t at_us; // of a refund: never before its payment, for the two may be of two clocks
    bool refund;   // payments first on a tie
    payment *payment;
    int64_t amount;
} moment;

typedef struct evaluation {
    const order *order;
    unsigned signs;
    bool contests; // words differ about a payment
    payment *payments;
    size_t n_payments;
    refund *refunds;
    size_t n_refunds;
    total *totals;
    size_t n_totals;
    moment *moments;
    size_t n_moments;
    __int128 received;
    int64_t discount; // the largest stated
    int64_t tax, shipping;
    __int128 unexplained;
    bool late;
} evaluation;

// An amount in the order's unit: exact from the same or a coarser unit of its currency, otherwise
// it is foreign.
static bool convert(evaluation *e, const fact *f, int64_t amount, int64_t *ret) {
    po_unit unit = e->order->price.unit;
    po_money money = {amount, f->unit};
    if (strcmp(f->unit.currency, unit.currency) != 0 || f->unit.exponent > unit.exponent)
        return false;
    if (!po_money_rescale(money, unit.exponent, &money, NULL)) {
        e->signs |= SIGN_OVERFLOW;
        money.minor = INT64_MAX;
    }
    *ret = money.minor;
    return true;
}

static unsigned state_sign(fact_state state) {
    switch (state) {
    case STATE_PENDING:
    case STATE_HELD:
        return SIGN_PENDING;
    case STATE_FAILED:
        return SIGN_FAILED;
    case STATE_EXPIRED:
        return SIGN_EXPIRED;
    case STATE_CANCELED:
        return SIGN_CANCELED;
    case STATE_PAID:
        return SIGN_PAID;
    case STATE_UNSUPPORTED:
        break;
    }
    return SIGN_UNSUPPORTED;
}

// Adds one PAID fact to its payment: a second one (of another unit) must say the same.
static void fold_paid(evaluation *e, payment *p, const fact *f, bool again) {
    int64_t amount = 0;
    bool ours = convert(e, f, f->amount < 0 ? 0 : f->amount, &amount);
    if (!ours)
        e->signs |= SIGN_FOREIGN_CURRENCY;
    if (f->canceled_seen || f->amount != f->amount_most ||
        (again && (!ours || !p->counted || amount != p->amount)))
        e->signs |= SIGN_CONTRADICTION;
    if (f->amount < 0)
        e->signs |= SIGN_AMOUNT_MISSING;
    if (!ours || f->amount < 0)
        return;
    p->amount = p->counted && p->amount < amount ? p->amount : amount;
    p->at_us = p->counted && p->at_us < f->at_us ? p->at_us : f->at_us;
    p->counted = true;
}

static bool same_payment(const fact *a, const fact *b) {
    return fact_payment_cmp(a, b->provider, b->account, b->object) == 0;
}

static bool is_contest(const fact *f) {
    const size_t n = strlen(ROUTE_CONFLICT_OF);
    return f->kind == FACT_MISMATCH && f->object.n > n &&
           memcmp(f->object.p, ROUTE_CONFLICT_OF, n) == 0;
}

// Words differ about whose payment it is: nothing of it counts.
static bool contested(const evaluation *e, const fact_set *set, const fact *f, po_str payment) {
    return e->contests && fact_set_contests(set, f->provider, f->account, payment);
}

// What it states beside its amount counts: discount, tax, shipping.
static bool is_paid_session(const evaluation *e, const fact_set *set, const fact *f) {
    return f->kind == FACT_PAYMENT && f->state == STATE_PAID && !contested(e, set, f, f->object);
}

static void fold_payments(evaluation *e, const fact_set *set) {
    const fact *last_paid = NULL;
    for (size_t i = 0; i < set->n; i++) {
        const fact *f = &set->facts[i];
        if (f->kind != FACT_PAYMENT || contested(e, set, f, f->object))
            continue;
        e->signs |= state_sign(f->state);
        if (f->state != STATE_PAID)
            continue;
        bool again = last_paid && same_payment(last_paid, f);
        if (!again)
            e->payments[e->n_payments++] = (payment){.first = f};
        fold_paid(e, &e->payments[e->n_payments - 1], f, again);
        last_paid = f;
    }
    for (size_t i = 0; i < e->n_payments; i++) {
        payment *p = &e->payments[i];
        if (!p->counted)
            continue;
        e->received += p->amount;
        e->late |= e->order->expires_at_us != 0 && p->at_us > e->order->expires_at_us;
        e->moments[e->n_moments++] = (moment){.at_us = p->at_us, .payment = p, .amount = p->amount};
    }
}

static int payment_cmp(const void *key, const void *member) {
    const fact *refund = key;
    const payment *p = member;
    int c = fact_payment_cmp(p->first, refund->provider, refund->account, refund->payment);
    return (c < 0) - (c > 0);
}

static void add_refund_moment(evaluation *e, payment *p, int64_t at_us, int64_t amount) {
    e->moments[e->n_moments++] = (moment){.at_us = at_us > p->at_us ? at_us : p->at_us,
                                          .refund = true,
                                          .payment = p,
                                          .amount = amount};
}

// Its two units of one charge stand side by side: of two totals the later counts, as in one unit.
static void gather_total(evaluation *e, payment *p, const fact *f, int64_t amount) {
    total *last = e->n_totals ? &e->totals[e->n_totals - 1] : NULL;
    if (!last || last->payment != p || !po_str_eq(last->fact->object, f->object))
        e->totals[e->n_totals++] = (total){f, p, amount};
    else if (f->at_us > last->fact->at_us ||
             (f->at_us == last->fact->at_us && amount > last->amount))
        *last = (total){f, p, amount};
}

// Refunds of payments that are not known, or do not count, have nothing to subtract from. What a
// refund says that cannot be is evidence in every state of it: a review that a person ends must not
// go away when it fails.
static void gather_refund(evaluation *e, const fact *f) {
    int64_t amount = f->amount_most;
    if (!convert(e, f, amount < 0 ? 0 : amount, &amount)) {
        e->signs |= SIGN_FOREIGN_CURRENCY;
        return;
    }
    if (f->amount != f->amount_most)
        e->signs |= SIGN_CONTRADICTION;
    payment *p = NULL;
    if (e->n_payments)
        p = bsearch(f, e->payments, e->n_payments, sizeof *p, payment_cmp);
    if (!p || !p->counted)
        return;
    if (f->kind == FACT_REFUND_TOTAL) {
        gather_total(e, p, f, amount);
        return;
    }
    refund *r = &e->refunds[e->n_refunds++];
    *r = (refund){.fact = f, .amount = amount, .next = p->refunds};
    p->refunds = r;
    if (f->state == STATE_PAID)
        add_refund_moment(e, p, f->at_us, amount);
}

// What a running total states beyond the refunds of its charge that are named. They may be in it or
// not, failed ones too: a provider's total may fall when a refund fails, or not. So it is never more
// than was refunded, and may be less until the refunds are named.
static int64_t unexplained_of(const total *t) {
    __int128 all = 0, alive = 0;
    for (const refund *r = t->payment->refunds; r; r = r->next) {
        const fact *f = r->fact;
        if (f->at_us > t->fact->at_us || (f->charge.n && !po_str_eq(f->charge, t->fact->object)))
            continue;
        all += r->amount;
        if (!f->failed_at_us || f->failed_at_us >= t->fact->at_us)
            alive += r->amount;
    }
    __int128 rest = t->amount >= all ? t->amount - all : t->amount - alive;
    return rest > 0 ? (int64_t)rest : 0;
}

static void explain_totals(evaluation *e) {
    for (size_t i = 0; i < e->n_totals; i++) {
        const total *t = &e->totals[i];
        int64_t rest = unexplained_of(t);
        e->unexplained += rest;
        if (rest)
            add_refund_moment(e, t->payment, t->fact->at_us, rest);
    }
}

static void gather_others(evaluation *e, const fact_set *set) {
    for (size_t i = 0; i < set->n; i++) {
        const fact *f = &set->facts[i];
        if ((f->kind == FACT_REFUND || f->kind == FACT_REFUND_TOTAL) &&
            !contested(e, set, f, f->payment))
            gather_refund(e, f);
        if (f->kind == FACT_EXPIRY)
            e->signs |= SIGN_EXPIRY;
        if (f->kind != FACT_MISMATCH)
            continue;
        unsigned sign = SIGN_MISMATCH;
        if (is_contest(f))
            sign = SIGN_ROUTE_CONFLICT;
        for (size_t m = 0; m < sizeof mismatches / sizeof *mismatches; m++)
            if (po_str_is(f->object, mismatches[m].object))
                sign = mismatches[m].sign;
        e->signs |= sign;
    }
}

// The largest discount a paid session states; of a waived one, all that was not received.
static void find_discount(evaluation *e, const fact_set *set) {
    for (size_t i = 0; i < set->n; i++) {
        const fact *f = &set->facts[i];
        int64_t discount = 0;
        if (!is_paid_session(e, set, f) || !convert(e, f, f->discount, &discount))
            continue;
        if (f->waived) {
            __int128 rest = e->order->price.minor - e->received;
            discount = rest > 0 ? (int64_t)rest : 0;
        }
        e->discount = discount > e->discount ? discount : e->discount;
    }
}

// What a paid session asked for above the price, as far as it is tax or shipping: the largest one.
// Tax first, so that tax inside the price changes nothing. Nothing is asked of a waived one.
static void find_extras(evaluation *e, const fact_set *set) {
    for (size_t i = 0; i < set->n; i++) {
        const fact *f = &set->facts[i];
        int64_t total = 0, discount = 0, tax = 0, shipping = 0;
        if (!is_paid_session(e, set, f) || f->waived || !convert(e, f, f->total, &total) ||
            !convert(e, f, f->discount, &discount) || !convert(e, f, f->tax, &tax) ||
            !convert(e, f, f->shipping, &shipping))
            continue;
        __int128 room = (__int128)total + discount - e->order->price.minor;
        room = room > 0 ? room : 0;
        tax = tax < room ? tax : (int64_t)room;
        shipping = shipping < room - tax ? shipping : (int64_t)(room - tax);
        __int128 extra = (__int128)tax + shipping, most = (__int128)e->tax + e->shipping;
        if (extra > most || (extra == most && tax > e->tax)) {
            e->tax = tax;
            e->shipping = shipping;
        }
    }
}

static int moment_cmp(const void *left, const void *right) {
    const moment *a = left, *b = right;
    int c = (a->at_us > b->at_us) - (a->at_us < b->at_us);
    return c ? c : (int)a->refund - (int)b->refund;
}

typedef struct walk {
    __int128 received, refunded;
    bool reached, reached_less; // due; due less a discount that is not allowed
    bool over; // more went back of a payment than came, and no payment has made good for it since
    int64_t reached_at_us;
} walk;

// Never more than what was captured goes back of a payment.
static void apply(walk *w, const moment *m) {
    payment *p = m->payment;
    if (!m->refund) {
        w->received += m->amount;
        return;
    }
    __int128 left = p->amount - (p->refunded < p->amount ? p->refunded : p->amount);
    p->refunded += m->amount;
    w->refunded += m->amount < left ? m->amount : left;
    w->over |= m->amount > left;
}

// What happens at one moment happens together: whether due was reached is asked after it.
static walk walk_moments(evaluation *e, __int128 due, __int128 less) {
    walk w = {0};
    if (e->n_moments)
        qsort(e->moments, e->n_moments, sizeof *e->moments, moment_cmp);
    for (size_t i = 0; i < e->n_moments; i++) {
        const moment *m = &e->moments[i];
        apply(&w, m);
        if (i + 1 < e->n_moments && moment_cmp(m, m + 1) == 0)
            continue;
        w.reached_less |= w.received - w.refunded >= less;
        bool reached = w.received - w.refunded >= due;
        if (reached && !w.reached)
            w.reached_at_us = m->at_us;
        w.reached |= reached;
        w.over &= !(reached && !m->refund);
    }
    return w;
}

static int64_t fit(evaluation *e, __int128 sum) {
    if (sum <= INT64_MAX)
        return (int64_t)sum;
    e->signs |= SIGN_OVERFLOW;
    return INT64_MAX;
}

static position judge(const evaluation *e, position p) {
    const rule *r = rules;
    while (r->sign && !(r->sign & e->signs))
        r++;
    p.state = r->state;
    p.verdict = r->verdict;
    p.reason = r->reason;
    return p;
}

// Not on the set's arena: that lives for a batch, which may ask thousands of times.
static void *scratch(const fact_set *set, size_t size) {
    void *rows = calloc(set->n + 1, size);
    if (!rows)
        abort();
    return rows;
}

static void gather(evaluation *e, const fact_set *set) {
    e->payments = scratch(set, sizeof *e->payments);
    e->refunds = scratch(set, sizeof *e->refunds);
    e->totals = scratch(set, sizeof *e->totals);
    e->moments = scratch(set, sizeof *e->moments);
    for (size_t i = 0; i < set->n; i++)
        e->contests |= is_contest(&set->facts[i]);
    fold_payments(e, set);
    gather_others(e, set);
    explain_totals(e);
    find_discount(e, set);
    find_extras(e, set);
}

static void drop(evaluation *e) {
    free(e->payments);
    free(e->refunds);
    free(e->totals);
    free(e->moments);
}

position evaluate(const order *o, const fact_set *set) {
    evaluation e = {.order = o};
    gather(&e, set);
    int64_t price = o->price.minor;
    __int128 extra = (__int128)e.tax + e.shipping;
    __int128 less = extra + (e.discount < price ? price - e.discount : 0);
    __int128 due = e.discount <= o->max_discount ? less : extra + price;
    walk w = walk_moments(&e, due, less);
    drop(&e);
    position p = {.due = fit(&e, due),
                  .received = fit(&e, w.received),
                  .refunded = fit(&e, w.refunded),
                  .tax = e.tax,
                  .shipping = e.shipping,
                  .unexplained = fit(&e, e.unexplained),
                  .late = e.late,
                  .paid_at_us = w.reached_at_us};
    p.partial = p.received > 0 && p.received < p.due;
    p.over = p.received > p.due;
    if (o->canceled_by_shop)
        e.signs |= SIGN_SHOP_CANCEL | (e.signs & SIGN_PAID ? SIGN_PAID_AFTER_CANCEL : 0);
    e.signs |= w.over ? SIGN_OVER_REFUNDED : 0;
    e.signs |= w.reached ? SIGN_REACHED : 0;
    e.signs |= w.reached_less ? SIGN_REACHED_LESS : 0;
    return judge(&e, p);
}
