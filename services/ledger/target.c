// net = received - refunded lies on clearing, against: paid → revenue up to what is due, the rest is the customer's
// credit; in any other state nobody knows yet whose it is → suspense.
#include "target.h"

#include <inttypes.h>

bool target_of(const po_payment_event *event, target *ret_target, po_err *err) {
    if (event->due < 0 || event->refunded < 0 || event->received < event->refunded)
        return po_fail(err, PO_REFUSED, "position",
                       "due %" PRId64 ", received %" PRId64 ", refunded %" PRId64 " cannot be",
                       event->due, event->received, event->refunded);
    target to = {.net = event->received - event->refunded};
    if (po_str_is(event->state, "paid")) {
        to.revenue = to.net < event->due ? to.net : event->due;
        to.customer_credit = to.net - to.revenue;
    } else {
        to.suspense = to.net;
    }
    *ret_target = to;
    return true;
}
