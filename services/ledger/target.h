// Where an order's money belongs, given its position: a pure function.
#pragma once
#include "event/event.h"

// Minor units, all ≥ 0; net (on the clearing accounts) = revenue + customer_credit + suspense.
typedef struct target {
    int64_t net, revenue, customer_credit, suspense;
} target;

target target_of(const po_payment_event *event);
// "journal:ORDER:SEQUENCE". What follows the last ':' is a number, so an order may hold what it likes.
po_str journal_key(po_arena *arena, po_str order_id, int64_t sequence);
