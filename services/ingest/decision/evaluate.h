// What the files of the decision core share with one another and with the printed tables, and
// nobody else needs.
#pragma once
#include "decision/decide.h"

// Where a fact stands to the payment of that key, in the order of a fact_set; 0 = it is one of its
// facts.
int fact_payment_cmp(const fact *f, po_str provider, po_str account, po_str payment);

// How signs in the facts become a position: the first rule whose sign is there counts.
typedef struct rule {
    unsigned sign;
    order_state state;
    verdict verdict;
    const char *reason;
    const char *why;
} rule;
extern const rule rules[]; // ends with the rule that needs no sign (sign 0)

#define REASON_IMPOSSIBLE "impossible_move"

// When a row of the transition table holds, beside its two states; rows of one pair are tried in
// their order.
typedef enum change {
    WHEN_PENDING,  // the verdict has become pending
    WHEN_FAILED,   // the verdict has become failed
    WHEN_REASON,   // the reason has changed
    WHEN_REFUNDED, // refunded rose or fell
    WHEN_MONEY,    // received or due changed
    WHEN_ELSE,
    WHEN_IMPOSSIBLE, // no facts lead here: the order is held for review instead
} change;
typedef struct transition {
    order_state from, to;
    change when;
    event_type emits;
    const char *why;
} transition;
extern const transition transitions[];
extern const size_t n_transitions;
