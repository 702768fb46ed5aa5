// How many points an order gives, given the rules and its position: pure functions.
#pragma once
#include "event/event.h"

// One point per `per` minor units of what is due; a unit without a rule gives none.
typedef struct points_rule {
    po_unit unit;
    int64_t per; // > 0
} points_rule;

enum { MAX_RULES = 32 };
typedef struct points_rules {
    points_rule at[MAX_RULES];
    size_t n;
} points_rules;

// "USD/2=100,BTC/11=100000"; empty text: no rules. REFUSED "setting" on anything else, a unit twice included.
PO_MUST_CHECK bool rules_parse(po_str text, points_rules *ret_rules, po_err *err);

// Paid: floor(P(due) * min(net, due) / due), so a refund takes back in proportion. Reversed: 0. In any other state
// the order keeps what it has: ret_keep.
PO_MUST_CHECK bool points_target(const points_rules *rules, const po_payment_event *event,
                                 int64_t *ret_points, bool *ret_keep, po_err *err);
// "points:ORDER:SEQUENCE". What follows the last ':' is a number, so an order may hold what it likes.
po_str entry_key(po_arena *arena, po_str order_id, int64_t sequence);
