// Decisions: facts of an order in, position and at most one outgoing event out. A pure function of
// recorded facts under a named policy and version: no clock, row or socket. Any permutation of a
// multiset of facts ends in the same facts, verdict and order state (P7); tested by permuting.
#pragma once
#include "providers/provider.h"
#include <stdio.h>

typedef enum order_state {
    ORDER_OPEN,
    ORDER_PAID,
    ORDER_REVIEW,
    ORDER_CANCELED,
    ORDER_REVERSED
} order_state;

typedef enum verdict {
    VERDICT_NONE, // no fact yet
    VERDICT_UNKNOWN,
    VERDICT_PENDING,
    VERDICT_FAILED,
    VERDICT_CANCELED,
    VERDICT_UNSUPPORTED,
    VERDICT_UNDERPAID,
    VERDICT_INCONSISTENT,
    VERDICT_QUALIFIED,
} verdict;

// What the order's money amounts to, recomputed from all facts each time.
typedef struct position {
    order_state state;
    verdict verdict;
    const char *reason; // static text: "", "underpaid", "discount_not_allowed", "amount_missing",
        // "over_refunded", "contradiction", "paid_after_cancel", "foreign_currency", "foreign_profile",
        // "foreign_account", "registered_elsewhere", "route_conflict", "expired", "canceled_by_shop", "overflow", …
    int64_t due, received, refunded; // in the order's unit; received − refunded ≥ 0
    int64_t tax, shipping;           // of due: what a paid session added to the price, apart
    int64_t unexplained; // refunds that only a charge's running total states, no refund names:
                         // part of refunded as far as it was captured
    bool late, partial,
        over; // partial: 0 < received < due; over: received > due; late: a counted payment's
              // own time > expiry
    int64_t paid_at_us; // when the walk first reached due (PO 0 when never): evidence
} position;

// The order as decisions see it; loaded under its row lock, written once.
typedef struct order {
    po_str id;
    const policy *policy;
    po_money price;        // in the policy's unit
    int64_t max_discount;  // minor, same unit
    int64_t expires_at_us; // 0 = never
    po_str profile;        // the node that may receive it; empty = any
    bool canceled_by_shop;
    position position;
    int32_t qualification; // 0 before the first
    int64_t sequence;      // last one given out
} order;

// A growing set of an order's facts, sorted by key: provider, account, name of the kind, object,
// currency, exponent, as bytes. Loading in that order (ORDER BY … COLLATE "C") is linear; any other
// order is right, and slower. `dirty` facts are new or changed since loading.
typedef struct fact_set {
    fact *facts;
    bool *dirty, *moved;
    size_t n, cap;
    po_arena *arena;
} fact_set;
void fact_set_init(fact_set *set, po_arena *arena);
void fact_set_load(fact_set *set, const fact *loaded); // appends a stored fact, clean
void fact_set_settle(fact_set *set);                   // what has moved is told
// Merges one stated fact; true when anything changed. Text is not copied: it must live as long as
// the set.
bool fact_set_merge(fact_set *set, const fact *stated);
// Evidence that references, or words, lead to several orders; OF names the payment that words differ
// about: it counts at none of them.
#define ROUTE_CONFLICT "route_conflict"
#define ROUTE_CONFLICT_OF ROUTE_CONFLICT ":"
// The payment key is in such a conflict.
bool fact_set_contests(const fact_set *set, po_str provider, po_str account, po_str payment);
// The payment key's fact in state PAID exists.
bool fact_set_has_paid(const fact_set *set, po_str provider, po_str account, po_str payment);

// Position from scratch. Amount arithmetic that overflows ends in review "overflow".
position evaluate(const order *order, const fact_set *facts);

typedef enum event_type {
    EVENT_NONE,
    EVENT_PENDING,
    EVENT_ADJUSTED,
    EVENT_QUALIFIED,
    EVENT_REVIEW_REQUIRED,
    EVENT_CANCELED,
    EVENT_FAILED,
    EVENT_REVERSED,
    EVENT_REFUNDED,
} event_type;

// The table that decides what is emitted: (from, to, what changed) → event, why. A missing pair is
// an explicit row.
typedef struct decision {
    position after;
    event_type emits;      // EVENT_NONE: nothing changed that others must know
    int64_t delta;         // change of (received − refunded)
    int32_t qualification; // after
    int64_t sequence;      // given out, when it emits; else 0
    const char *why;       // the table row's sentence
} decision;

// Merges the observation's facts and moves the order: *order gets the new position, qualification
// and (only when something is emitted) sequence + 1. Running it again emits nothing (P6).
void decide(order *order, fact_set *facts, const observation *observation, decision *ret_decision);
// The shop's cancel: sets canceled_by_shop and moves the order. PO_REFUSED "paid" when the order is
// paid or reversed, "in_review" when it is in review, with money or without; a repeat emits nothing.
PO_MUST_CHECK bool decide_cancel(order *order, fact_set *facts, decision *ret_decision,
                                 po_err *err);

const char *order_state_name(order_state state); // "open", …
const char *verdict_name(verdict verdict);       // "" for NONE
const char *event_type_name(event_type type);    // "payment.qualified"; "" for NONE
// Inverse of the names for reading rows; false when unknown.
bool order_state_parse(po_str name, order_state *ret);
bool verdict_parse(po_str name, verdict *ret);
const char *reason_static(po_str reason); // the static text of a stored reason; "" when unknown

// docs/states.md: the fact → verdict tables of each policy and the table of transitions.
void decide_print_states(FILE *out);
