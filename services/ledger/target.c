// net = received - refunded lies on clearing, against: paid → revenue up to what is due, the rest is the customer's
// credit; in any other state nobody knows yet whose it is → suspense.
#include "target.h"

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
