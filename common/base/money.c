// Integer money. Every operation either is exact or is refused; nothing rounds, except the floor
// that po_mul_div() says it takes.
#include "base/money.h"
#include <inttypes.h>
#include <stdio.h>

enum { EXPONENT_MAX = 18 };

bool po_unit_eq(po_unit a, po_unit b) {
    return a.exponent == b.exponent && strcmp(a.currency, b.currency) == 0;
}

void po_unit_text(po_unit unit, char out[PO_UNIT_SIZE]) {
    snprintf(out, PO_UNIT_SIZE, "%.7s/%d", unit.currency, unit.exponent);
}

bool po_unit_parse(po_str text, po_unit *ret_unit, po_err *err) {
    po_unit unit = {0};
    size_t n = 0;
    while (n < text.n &&
           ((text.p[n] >= 'A' && text.p[n] <= 'Z') || (text.p[n] >= '0' && text.p[n] <= '9')))
        n++;
    int64_t exponent = -1;
    bool ok = n > 0 && n < sizeof unit.currency && n < text.n && text.p[n] == '/' &&
              po_parse_i64((po_str){text.p + n + 1, text.n - n - 1}, &exponent) && exponent >= 0 &&
              exponent <= EXPONENT_MAX;
    if (!ok)
        return po_fail(err, PO_REFUSED, "unit", "not a unit such as USD/2");
    memcpy(unit.currency, text.p, n);
    unit.exponent = (int)exponent;
    *ret_unit = unit;
    return true;
}

static bool same_unit(po_money a, po_money b, po_err *err) {
    if (po_unit_eq(a.unit, b.unit))
        return true;
    char ta[PO_UNIT_SIZE], tb[PO_UNIT_SIZE];
    po_unit_text(a.unit, ta);
    po_unit_text(b.unit, tb);
    return po_fail(err, PO_REFUSED, "unit_mismatch", "%s against %s", ta, tb);
}

static bool overflow(po_err *err, const char *what) {
    return po_fail(err, PO_REFUSED, "overflow", "%s does not fit 64 bits", what);
}

bool po_add_i64(int64_t a, int64_t b, int64_t *ret_sum, po_err *err) {
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return overflow(err, "a sum");
    *ret_sum = sum;
    return true;
}

bool po_money_add(po_money a, po_money b, po_money *ret_sum, po_err *err) {
    po_money sum = a;
    if (!same_unit(a, b, err) || !po_add_i64(a.minor, b.minor, &sum.minor, err))
        return false;
    *ret_sum = sum;
    return true;
}

bool po_money_sub(po_money a, po_money b, po_money *ret_difference, po_err *err) {
    po_money difference = a;
    if (!same_unit(a, b, err))
        return false;
    if (__builtin_sub_overflow(a.minor, b.minor, &difference.minor))
        return overflow(err, "a difference");
    *ret_difference = difference;
    return true;
}

bool po_money_cmp(po_money a, po_money b, int *ret_order, po_err *err) {
    if (!same_unit(a, b, err))
        return false;
    *ret_order = (a.minor > b.minor) - (a.minor < b.minor);
    return true;
}

bool po_money_rescale(po_money a, int exponent, po_money *ret_money, po_err *err) {
    if (exponent < 0 || exponent > EXPONENT_MAX || a.unit.exponent < 0 ||
        a.unit.exponent > EXPONENT_MAX)
        return po_fail(err, PO_REFUSED, "unit", "exponent outside 0 to %d", EXPONENT_MAX);
    int64_t factor = 1;
    int steps = exponent - a.unit.exponent;
    for (int i = steps < 0 ? -steps : steps; i > 0; i--)
        factor *= 10;
    po_money money = {.unit = a.unit};
    money.unit.exponent = exponent;
    if (steps >= 0) {
        if (__builtin_mul_overflow(a.minor, factor, &money.minor))
            return overflow(err, "a rescaled amount");
    } else {
        if (a.minor % factor != 0)
            return po_fail(err, PO_REFUSED, "inexact",
                           "%" PRId64 " has no exact value at exponent %d", a.minor, exponent);
        money.minor = a.minor / factor;
    }
    *ret_money = money;
    return true;
}

bool po_mul_div(int64_t a, int64_t b, int64_t c, int64_t *ret_value, po_err *err) {
    if (a < 0 || b < 0 || c <= 0)
        return po_fail(err, PO_BUG, "range", "mul_div of a negative, or by none");
    __int128 value = (__int128)a * b / c;
    if (value > INT64_MAX)
        return overflow(err, "a proportion");
    *ret_value = (int64_t)value;
    return true;
}
