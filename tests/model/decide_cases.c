// Decides orders that a test writes to stdin, one line at a time, and prints where each of them
// ends, so that a model in another language can judge tens of thousands of them. The very functions
// that ingest decides by, and nothing else.
//
// A line is a word and `name=value` pairs, in any order, separated by single blanks; what is left
// out has the value shown here. Amounts are minor units, times whole seconds > 0.
//
//   order price=4900 unit=USD/2 max_discount=0 expires=0     expires=0: never
//   payment id=p1 state=paid at=100 amount=none discount=0 total=0 tax=0 shipping=0 waived=0
//           unit=USD/2
//       of one payment, stated by its session; state: unsupported, pending, held, failed, expired,
//       canceled or paid, ranked 0, 1, 2, 2, 3, 4, 4: the highest rank seen counts. All but id,
//       state and at are said of paid ones only.
//   refund id=r1 payment=p1 charge= state=paid at=100 failed_at=0 amount=none unit=USD/2
//       state: unsupported, pending, paid (= succeeded), failed, ranked 0, 1, 2, 3. at: when the
//       refund was made, in whatever state; failed_at: when failed was said, with state=failed.
//       charge empty: of any charge of its payment.
//   total charge=c1 payment=p1 at=100 amount=0 unit=USD/2
//       a charge's running total
//   expiry at=100
//       the order's own time ran out
//   mismatch object=foreign_account at=100
//       evidence without money: foreign_profile, foreign_account, registered_elsewhere,
//       route_conflict, named_elsewhere or anything else
//   cancel
//       the shop's cancel; changes nothing where it is refused
//   end
//       prints the order, in one line, as
//
//   state=paid verdict=qualified reason= due=4900 received=4900 refunded=0 tax=0 shipping=0
//       unexplained=0 late=0 partial=0 over=0 paid_at=100 qualification=1 sequence=1
//       events=payment.qualified
//
// (one line of output in truth.) unexplained: what running totals state beyond the refunds that are
// named; paid_at: when the walk first reached due, 0 = never; events: what was emitted on the way,
// separated by commas.
//
// What the model must know beside the documents: a refund, and what only a running total states
// (dated by the total), is never older than its payment: an earlier time counts as the payment's.
// Of two amounts of one refund the larger counts. A failed refund without failed_at counts as not
// yet failed. A refund in another currency counts 0 and is foreign_currency in any state; so is one
// in a finer unit. A refund without its paid payment changes nothing else. A waived payment has no
// extra; of two extras of one size that with more tax. Discount, total, tax and shipping of one
// payment are each the largest stated. over_refunded ends when the sum is no longer above what
// came, or when at the moment of a later payment (a payment comes first on a tie) received −
// refunded, capped, is at least due; another refund of that payment afterwards brings it back.
//
// A line that cannot be read ends the program with 2 and a line on stderr.
#include "base/clock.h"
#include "decision/decide.h"
#include <stdlib.h>

static int line_number;

static _Noreturn void refuse(const char *what) {
    fprintf(stderr, "decide_cases: line %d: %s\n", line_number, what);
    exit(2);
}

// --- Reading a line: `word name=value name=value`

enum { PAIRS_MAX = 16 };
typedef struct line {
    const char *word;
    struct {
        const char *name, *value;
    } pairs[PAIRS_MAX];
    size_t n;
} line;

static line line_read(char *text) {
    char *rest = NULL;
    const char *word = strtok_r(text, " \n", &rest);
    line l = {.word = word ? word : ""};
    for (char *pair; (pair = strtok_r(NULL, " \n", &rest));) {
        char *value = strchr(pair, '=');
        if (!value || l.n == PAIRS_MAX)
            refuse("not name=value, or too many of them");
        *value++ = '\0';
        l.pairs[l.n].name = pair;
        l.pairs[l.n++].value = value;
    }
    return l;
}

// Takes a value out of the line, so that what is left at the end is a slip of the pen.
static const char *take_text(line *l, const char *name, const char *missing) {
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->pairs[i].name, name) == 0) {
            const char *value = l->pairs[i].value;
            l->pairs[i] = l->pairs[--l->n];
            return value;
        }
    return missing;
}

static int64_t take_number(line *l, const char *name, int64_t missing) {
    const char *text = take_text(l, name, NULL);
    if (!text)
        return missing;
    if (strcmp(text, "none") == 0)
        return NO_AMOUNT;
    char *end = NULL;
    long long value = strtoll(text, &end, 10);
    if (!*text || *end)
        refuse("not a number");
    return value;
}

static int64_t take_time(line *l, const char *name, int64_t missing) {
    return take_number(l, name, missing) * PO_SECOND_US;
}

static po_unit take_unit(line *l) {
    po_unit unit = {0};
    if (sscanf(take_text(l, "unit", "USD/2"), "%3[A-Z]/%d", unit.currency, &unit.exponent) != 2)
        refuse("unit is not USD/2 or the like");
    return unit;
}

// --- A case

typedef struct desk {
    po_arena *arena;
    order order;
    fact_set facts;
    po_buf events;
} desk;

static void desk_done(desk *d) {
    po_arena_free(&d->arena);
    po_buf_done(&d->events);
    *d = (desk){0};
}

static void begin(desk *d, line *l) {
    desk_done(d);
    d->arena = po_arena_new();
    fact_set_init(&d->facts, d->arena);
    d->order.id = po_s("o-1");
    d->order.policy = policy_find(po_s("stripe-v1"));
    d->order.price.minor = take_number(l, "price", 4900);
    d->order.price.unit = take_unit(l);
    d->order.max_discount = take_number(l, "max_discount", 0);
    d->order.expires_at_us = take_time(l, "expires", 0);
    d->order.position.due = d->order.price.minor;
    d->order.position.reason = "";
}

static po_str take_kept(desk *d, line *l, const char *name, const char *missing) {
    return po_s(po_strdup(d->arena, take_text(l, name, missing)));
}

static void note(desk *d, const decision *made) {
    if (made->emits == EVENT_NONE)
        return;
    if (d->events.n)
        po_buf_puts(&d->events, ",");
    po_buf_puts(&d->events, event_type_name(made->emits));
}

static int rank_of(fact_kind kind, fact_state state) {
    static const int payment[] = {
        [STATE_UNSUPPORTED] = 0, [STATE_PENDING] = 1,  [STATE_HELD] = 2, [STATE_FAILED] = 2,
        [STATE_EXPIRED] = 3,     [STATE_CANCELED] = 4, [STATE_PAID] = 4};
    if (kind == FACT_REFUND)
        return state == STATE_FAILED ? 3 : state == STATE_PAID ? 2 : state == STATE_PENDING;
    return payment[state];
}

static fact take_fact(desk *d, line *l, fact_kind kind, const char *object) {
    fact f = {.kind = kind,
              .provider = po_s("stripe"),
              .account = po_s("shop"),
              .object = take_kept(d, l, object, ""),
              .payment = take_kept(d, l, "payment", ""),
              .state = STATE_PAID,
              .amount = take_number(l, "amount", NO_AMOUNT),
              .at_us = take_time(l, "at", 100)};
    f.amount_most = f.amount;
    if (kind == FACT_PAYMENT || kind == FACT_REFUND || kind == FACT_REFUND_TOTAL)
        f.unit = take_unit(l);
    if (!fact_state_parse(po_s(take_text(l, "state", "paid")), &f.state))
        refuse("no such state");
    f.rank = kind == FACT_PAYMENT || kind == FACT_REFUND ? rank_of(kind, f.state) : 0;
    if (kind == FACT_REFUND)
        f.charge = take_kept(d, l, "charge", "");
    f.failed_at_us = take_time(l, "failed_at", 0);
    f.discount = take_number(l, "discount", 0);
    f.total = take_number(l, "total", 0);
    f.tax = take_number(l, "tax", 0);
    f.shipping = take_number(l, "shipping", 0);
    f.waived = take_number(l, "waived", 0) != 0;
    return f;
}

static void state(desk *d, line *l, fact_kind kind, const char *object) {
    observation obs = {.disposition = OBS_FACTS, .n_facts = 1};
    obs.facts[0] = take_fact(d, l, kind, object);
    decision made;
    decide(&d->order, &d->facts, &obs, &made);
    note(d, &made);
}

static void cancel(desk *d) {
    decision made;
    po_err refused = {0};
    if (decide_cancel(&d->order, &d->facts, &made, &refused))
        note(d, &made);
}

static void print(const desk *d) {
    const position *p = &d->order.position;
    printf("state=%s verdict=%s reason=%s due=%lld received=%lld refunded=%lld tax=%lld "
           "shipping=%lld unexplained=%lld late=%d partial=%d over=%d paid_at=%lld "
           "qualification=%d sequence=%lld events=%.*s\n",
           order_state_name(p->state), verdict_name(p->verdict), p->reason, (long long)p->due,
           (long long)p->received, (long long)p->refunded, (long long)p->tax,
           (long long)p->shipping, (long long)p->unexplained, p->late, p->partial, p->over,
           (long long)(p->paid_at_us / PO_SECOND_US), d->order.qualification,
           (long long)d->order.sequence, (int)d->events.n, d->events.p ? d->events.p : "");
}

static void obey(desk *d, line *l) {
    static const struct {
        const char *word, *object;
        fact_kind kind;
    } facts[] = {{"payment", "id", FACT_PAYMENT},
                 {"refund", "id", FACT_REFUND},
                 {"total", "charge", FACT_REFUND_TOTAL},
                 {"expiry", "object", FACT_EXPIRY},
                 {"mismatch", "object", FACT_MISMATCH}};
    bool known = strcmp(l->word, "order") == 0;
    if (known)
        begin(d, l);
    if (!d->arena)
        refuse("before any order");
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (strcmp(l->word, facts[i].word) == 0) {
            state(d, l, facts[i].kind, facts[i].object);
            known = true;
        }
    if (strcmp(l->word, "cancel") == 0)
        cancel(d);
    else if (strcmp(l->word, "end") == 0)
        print(d);
    else if (!known)
        refuse("no such word");
    if (l->n)
        refuse(l->pairs[0].name);
}

int main(void) {
    char *text = NULL;
    size_t cap = 0;
    desk d = {0};
    while (getline(&text, &cap, stdin) > 0) {
        line_number++;
        line l = line_read(text);
        if (*l.word && *l.word != '#')
            obey(&d, &l);
    }
    desk_done(&d);
    free(text);
    return 0;
}
