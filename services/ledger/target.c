// net = received - refunded lies on clearing, against: paid → revenue up to what is due, the rest is the customer's
// credit; in any other state nobody knows yet whose it is → suspense.
#include "target.h"

#include <inttypes.h>

target target_of(const po_payment_event *event) {
    target to = {.net = event->received - event->refunded};
    if (po_str_is(event->state, "paid")) {
        to.revenue = to.net < event->due ? to.net : event->due;
        to.customer_credit = to.net - to.revenue;
    } else {
        to.suspense = to.net;
    }
    return to;
}

po_str journal_key(po_arena *arena, po_str order_id, int64_t sequence) {
    return po_s(po_printf(arena, "journal:%.*s:%" PRId64, (int)order_id.n, order_id.p, sequence));
}
