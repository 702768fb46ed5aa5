// For tests only: facts in one line each, on an order of USD/2 at the account "shop". Times are
// seconds.
#pragma once
#include "base/clock.h"
#include "decision/decide.h"

#define USD ((po_unit){.currency = "USD", .exponent = 2})
#define EUR ((po_unit){.currency = "EUR", .exponent = 2})

static inline fact sample(fact_kind kind, const char *object, int64_t at) {
    return (fact){.kind = kind,
                  .provider = po_s(providers[0]->name),
                  .account = po_s("shop"),
                  .object = po_s(object),
                  .unit = USD,
                  .state = STATE_PAID,
                  .amount = NO_AMOUNT,
                  .amount_most = NO_AMOUNT,
                  .at_us = at * PO_SECOND_US};
}

static inline fact paid(const char *payment, int64_t amount, int64_t at) {
    fact f = sample(FACT_PAYMENT, payment, at);
    f.rank = 4;
    f.amount = f.amount_most = amount;
    return f;
}

static inline fact unpaid(const char *payment, fact_state state, int rank) {
    fact f = sample(FACT_PAYMENT, payment, 100);
    f.state = state;
    f.rank = rank;
    return f;
}

static inline fact refund(const char *id, const char *payment, fact_state state, int64_t amount,
                          int64_t at) {
    fact f = sample(FACT_REFUND, id, at);
    f.payment = po_s(payment);
    f.state = state;
    f.rank = state == STATE_PENDING ? 1 : state == STATE_PAID ? 2 : 3;
    f.amount = f.amount_most = amount;
    return f;
}

static inline fact failed(const char *id, const char *payment, int64_t amount, int64_t at,
                          int64_t failed_at) {
    fact f = refund(id, payment, STATE_FAILED, amount, at);
    f.failed_at_us = failed_at * PO_SECOND_US;
    return f;
}

static inline fact of_charge(fact f, const char *charge) {
    f.charge = po_s(charge);
    return f;
}

static inline fact refund_total(const char *charge, const char *payment, int64_t amount,
                                int64_t at) {
    fact f = sample(FACT_REFUND_TOTAL, charge, at);
    f.payment = po_s(payment);
    f.amount = f.amount_most = amount;
    return f;
}

static inline fact bare(fact_kind kind, const char *object) {
    fact f = sample(kind, object, 500);
    f.unit = (po_unit){0};
    f.state = STATE_UNSUPPORTED;
    return f;
}

static inline fact in_unit(fact f, po_unit unit) {
    f.unit = unit;
    return f;
}

static inline fact discounted(fact f, int64_t discount) {
    f.discount = discount;
    return f;
}

// A session that asked for all that was paid, some of it as tax and shipping.
static inline fact extras(fact f, int64_t tax, int64_t shipping) {
    f.total = f.amount;
    f.tax = tax;
    f.shipping = shipping;
    return f;
}

static inline fact waived(fact f) {
    f.waived = true;
    return f;
}

static inline order order_for(int64_t price) {
    return (order){.id = po_s("o-1"),
                   .policy = providers[0]->policy,
                   .price = {price, USD},
                   .position = {.due = price}};
}
