// The stored words of facts: one table each way.
#include "providers/provider.h"

static const char *const fact_kinds[] = {[FACT_PAYMENT] = "payment",
                                         [FACT_REFUND] = "refund",
                                         [FACT_REFUND_TOTAL] = "refund_total",
                                         [FACT_EXPIRY] = "expiry",
                                         [FACT_MISMATCH] = "mismatch"};
static const char *const fact_states[] = {[STATE_UNSUPPORTED] = "unsupported",
                                          [STATE_PENDING] = "pending",
                                          [STATE_HELD] = "held",
                                          [STATE_FAILED] = "failed",
                                          [STATE_EXPIRED] = "expired",
                                          [STATE_CANCELED] = "canceled",
                                          [STATE_PAID] = "paid"};

#define COUNT(table) (sizeof(table) / sizeof *(table))

static bool find(const char *const *names, size_t n, po_str name, size_t *ret) {
    for (size_t i = 0; i < n; i++)
        if (po_str_is(name, names[i])) {
            *ret = i;
            return true;
        }
    return false;
}

const char *fact_kind_name(fact_kind kind) {
    return fact_kinds[kind];
}

const char *fact_state_name(fact_state state) {
    return fact_states[state];
}

bool fact_kind_parse(po_str name, fact_kind *ret) {
    size_t i;
    if (!find(fact_kinds, COUNT(fact_kinds), name, &i))
        return false;
    *ret = (fact_kind)i;
    return true;
}

bool fact_state_parse(po_str name, fact_state *ret) {
    size_t i;
    if (!find(fact_states, COUNT(fact_states), name, &i))
        return false;
    *ret = (fact_state)i;
    return true;
}
