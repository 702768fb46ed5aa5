// Moving an order: merge what was stated, take the position from all facts, and find in one table
// what the move from the old state to the new one tells the world. The position is a function of
// the facts alone; only the event depends on where the order stood, so a second run of the same
// facts moves nothing and emits nothing.
#include "decision/evaluate.h"

const transition transitions[] = {
    {ORDER_OPEN, ORDER_OPEN, WHEN_PENDING, EVENT_PENDING,
     "a payment is on its way or held: not paid"},
    {ORDER_OPEN, ORDER_OPEN, WHEN_FAILED, EVENT_FAILED,
     "the attempt failed; the order stays open for another"},
    {ORDER_OPEN, ORDER_OPEN, WHEN_ELSE, EVENT_NONE,
     "nothing others must know: no money moves while open"},
    {ORDER_OPEN, ORDER_PAID, WHEN_ELSE, EVENT_QUALIFIED, "due was reached"},
    {ORDER_OPEN, ORDER_REVIEW, WHEN_ELSE, EVENT_REVIEW_REQUIRED,
     "money or evidence that does not add up to paid"},
    {ORDER_OPEN, ORDER_CANCELED, WHEN_ELSE, EVENT_CANCELED, "canceled or expired without money"},
    {ORDER_OPEN, ORDER_REVERSED, WHEN_IMPOSSIBLE, EVENT_REVIEW_REQUIRED,
     "only a paid order is reversed"},

    {ORDER_PAID, ORDER_OPEN, WHEN_IMPOSSIBLE, EVENT_REVIEW_REQUIRED,
     "facts are never withdrawn: paid stays paid"},
    {ORDER_PAID, ORDER_PAID, WHEN_REFUNDED, EVENT_REFUNDED,
     "refunded rose or fell; the order stays paid"},
    {ORDER_PAID, ORDER_PAID, WHEN_MONEY, EVENT_ADJUSTED,
     "a further payment, or another due: same right, other money"},
    {ORDER_PAID, ORDER_PAID, WHEN_ELSE, EVENT_NONE, "the same again, or a weaker fact"},
    {ORDER_PAID, ORDER_REVIEW, WHEN_ELSE, EVENT_REVIEW_REQUIRED,
     "a contradiction, more refunded than came, or an older refund that shows due was never "
     "reached; what was sent stays"},
    {ORDER_PAID, ORDER_CANCELED, WHEN_IMPOSSIBLE, EVENT_REVIEW_REQUIRED,
     "money outranks every cancel"},
    {ORDER_PAID, ORDER_REVERSED, WHEN_ELSE, EVENT_REVERSED, "the network took the payment back"},

    {ORDER_REVIEW, ORDER_OPEN, WHEN_IMPOSSIBLE, EVENT_REVIEW_REQUIRED,
     "money and evidence never go away"},
    {ORDER_REVIEW, ORDER_PAID, WHEN_ELSE, EVENT_QUALIFIED,
     "money ended the review: due was reached, or no more is refunded than came"},
    {ORDER_REVIEW, ORDER_REVIEW, WHEN_REASON, EVENT_REVIEW_REQUIRED,
     "still in review, for another reason"},
    {ORDER_REVIEW, ORDER_REVIEW, WHEN_REFUNDED, EVENT_REFUNDED,
     "refunded rose or fell while in review"},
    {ORDER_REVIEW, ORDER_REVIEW, WHEN_MONEY, EVENT_ADJUSTED, "money moved, still in review"},
    {ORDER_REVIEW, ORDER_REVIEW, WHEN_ELSE, EVENT_NONE, "the same again, or a weaker fact"},
    {ORDER_REVIEW, ORDER_CANCELED, WHEN_IMPOSSIBLE, EVENT_REVIEW_REQUIRED,
     "money and evidence never go away"},
    {ORDER_REVIEW, ORDER_REVERSED, WHEN_IMPOSSIBLE, EVENT_REVIEW_REQUIRED,
     "only a paid order is reversed"},

    {ORDER_CANCELED, ORDER_OPEN, WHEN_FAILED, EVENT_FAILED,
     "another attempt after the provider's cancel, and it failed: open again"},
    {ORDER_CANCELED, ORDER_OPEN, WHEN_ELSE, EVENT_PENDING,
     "a payment after expiry or cancel, not final yet: open again"},
    {ORDER_CANCELED, ORDER_PAID, WHEN_ELSE, EVENT_QUALIFIED,
     "paid after expiry: counts, and is flagged late"},
    {ORDER_CANCELED, ORDER_REVIEW, WHEN_ELSE, EVENT_REVIEW_REQUIRED,
     "money after the shop's cancel, or not enough"},
    {ORDER_CANCELED, ORDER_CANCELED, WHEN_ELSE, EVENT_NONE,
     "canceled once; only the reason may differ"},
    {ORDER_CANCELED, ORDER_REVERSED, WHEN_IMPOSSIBLE, EVENT_REVIEW_REQUIRED,
     "only a paid order is reversed"},

    {ORDER_REVERSED, ORDER_OPEN, WHEN_IMPOSSIBLE, EVENT_REVIEW_REQUIRED,
     "a reversed payment is still a payment"},
    {ORDER_REVERSED, ORDER_PAID, WHEN_ELSE, EVENT_QUALIFIED, "paid anew: the next qualification"},
    {ORDER_REVERSED, ORDER_REVIEW, WHEN_ELSE, EVENT_REVIEW_REQUIRED,
     "reversed, and something else does not add up"},
    {ORDER_REVERSED, ORDER_CANCELED, WHEN_IMPOSSIBLE, EVENT_REVIEW_REQUIRED,
     "a reversed payment is still a payment"},
    {ORDER_REVERSED, ORDER_REVERSED, WHEN_REFUNDED, EVENT_REFUNDED,
     "refunded rose or fell while reversed"},
    {ORDER_REVERSED, ORDER_REVERSED, WHEN_MONEY, EVENT_ADJUSTED, "money moved, still reversed"},
    {ORDER_REVERSED, ORDER_REVERSED, WHEN_ELSE, EVENT_NONE, "the same again, or a weaker fact"},
};
const size_t n_transitions = sizeof transitions / sizeof *transitions;

static bool holds(change when, const position *before, const position *after) {
    switch (when) {
    case WHEN_PENDING:
        return after->verdict == VERDICT_PENDING && before->verdict != VERDICT_PENDING;
    case WHEN_FAILED:
        return after->verdict == VERDICT_FAILED && before->verdict != VERDICT_FAILED;
    case WHEN_REASON:
        return strcmp(before->reason ? before->reason : "", after->reason) != 0;
    case WHEN_REFUNDED:
        return before->refunded != after->refunded;
    case WHEN_MONEY:
        return before->received != after->received || before->due != after->due ||
               before->tax != after->tax || before->shipping != after->shipping;
    case WHEN_ELSE:
    case WHEN_IMPOSSIBLE:
        break;
    }
    return true;
}

static const transition *transition_find(const position *before, const position *after) {
    for (size_t i = 0; i < n_transitions; i++) {
        const transition *t = &transitions[i];
        if (t->from == before->state && t->to == after->state && holds(t->when, before, after))
            return t;
    }
    return NULL; // every pair of states ends with a row that holds: tested
}

// A move that no facts can make means that stored facts or our code are damaged: the order waits
// for a person.
static position held_for_review(position p) {
    p.state = ORDER_REVIEW;
    p.verdict = VERDICT_INCONSISTENT;
    p.reason = REASON_IMPOSSIBLE;
    return p;
}

static int64_t net(const position *p) {
    return p->received - p->refunded; // both ≥ 0, so differences of two nets fit too
}

static void move(order *o, const fact_set *facts, decision *ret) {
    position before = o->position;
    position after = evaluate(o, facts);
    const transition *t = transition_find(&before, &after);
    const char *why = t->why;
    if (t->when == WHEN_IMPOSSIBLE) {
        after = held_for_review(after);
        t = transition_find(&before, &after);
    }
    *ret = (decision){.after = after,
                      .emits = t->emits,
                      .delta = net(&after) - net(&before),
                      .qualification = o->qualification,
                      .why = why};
    // A new qualification only after a reversal; back from review, or topped up, it is the same
    // one.
    if (t->emits == EVENT_QUALIFIED && (before.state == ORDER_REVERSED || o->qualification == 0))
        ret->qualification = o->qualification + 1;
    if (t->emits != EVENT_NONE)
        ret->sequence = ++o->sequence;
    o->qualification = ret->qualification;
    o->position = after;
}

static bool foreign_profile(const order *o, const observation *obs) {
    return o->profile.n && obs->profile.n && !po_str_eq(o->profile, obs->profile);
}

void decide(order *o, fact_set *facts, const observation *obs, decision *ret) {
    if (foreign_profile(o, obs) && obs->n_facts) {
        fact evidence = {.kind = FACT_MISMATCH,
                         .provider = obs->facts[0].provider,
                         .account = obs->facts[0].account,
                         .object = po_s("foreign_profile"),
                         .amount = NO_AMOUNT,
                         .amount_most = NO_AMOUNT,
                         .at_us = obs->facts[0].at_us};
        fact_set_merge(facts, &evidence);
    } else {
        for (size_t i = 0; i < obs->n_facts; i++)
            fact_set_merge(facts, &obs->facts[i]);
    }
    move(o, facts, ret);
}

bool decide_cancel(order *o, fact_set *facts, decision *ret, po_err *err) {
    order_state now = o->position.state; // any money or evidence has made it paid or review
    if (now == ORDER_REVIEW)
        return po_fail(err, PO_REFUSED, "in_review", "the order is in review");
    if (now == ORDER_PAID || now == ORDER_REVERSED)
        return po_fail(err, PO_REFUSED, "paid", "the order is %s", order_state_name(now));
    o->canceled_by_shop = true;
    move(o, facts, ret);
    return true;
}
