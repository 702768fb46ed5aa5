// The stored words of states, verdicts, events, kinds and reasons: one table each way.
#include "decision/evaluate.h"

static const char *const order_states[] = {[ORDER_OPEN] = "open",
                                           [ORDER_PAID] = "paid",
                                           [ORDER_REVIEW] = "review",
                                           [ORDER_CANCELED] = "canceled",
                                           [ORDER_REVERSED] = "reversed"};
static const char *const verdicts[] = {[VERDICT_NONE] = "",
                                       [VERDICT_UNKNOWN] = "unknown",
                                       [VERDICT_PENDING] = "pending",
                                       [VERDICT_FAILED] = "failed",
                                       [VERDICT_CANCELED] = "canceled",
                                       [VERDICT_UNSUPPORTED] = "unsupported",
                                       [VERDICT_UNDERPAID] = "underpaid",
                                       [VERDICT_INCONSISTENT] = "inconsistent",
                                       [VERDICT_QUALIFIED] = "qualified"};
static const char *const event_types[] = {[EVENT_NONE] = "",
                                          [EVENT_PENDING] = "payment.pending",
                                          [EVENT_ADJUSTED] = "payment.adjusted",
                                          [EVENT_QUALIFIED] = "payment.qualified",
                                          [EVENT_REVIEW_REQUIRED] = "payment.review_required",
                                          [EVENT_CANCELED] = "payment.canceled",
                                          [EVENT_FAILED] = "payment.failed",
                                          [EVENT_REVERSED] = "payment.reversed",
                                          [EVENT_REFUNDED] = "payment.refunded"};

#define COUNT(table) (sizeof(table) / sizeof *(table))

static bool find(const char *const *names, size_t n, po_str name, size_t *ret) {
    for (size_t i = 0; i < n; i++)
        if (po_str_is(name, names[i])) {
            *ret = i;
            return true;
        }
    return false;
}

const char *order_state_name(order_state state) {
    return order_states[state];
}

const char *verdict_name(verdict v) {
    return verdicts[v];
}

const char *event_type_name(event_type type) {
    return event_types[type];
}

bool order_state_parse(po_str name, order_state *ret) {
    size_t i;
    if (!find(order_states, COUNT(order_states), name, &i))
        return false;
    *ret = (order_state)i;
    return true;
}

bool verdict_parse(po_str name, verdict *ret) {
    size_t i;
    if (!find(verdicts, COUNT(verdicts), name, &i))
        return false;
    *ret = (verdict)i;
    return true;
}

const char *reason_static(po_str reason) {
    if (po_str_is(reason, REASON_IMPOSSIBLE))
        return REASON_IMPOSSIBLE;
    for (const rule *r = rules; r->sign; r++)
        if (po_str_is(reason, r->reason))
            return r->reason;
    return "";
}
