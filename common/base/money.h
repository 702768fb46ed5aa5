// Money is a 64-bit integer plus its unit (currency, exponent): USD/2 is cents, BTC/8 satoshi,
// BTC/11 msat, JPY/0 yen. No floats anywhere. Arithmetic between different units, overflow and
// inexact rescaling are refused (PO_REFUSED: "unit_mismatch", "overflow", "inexact"); ret_* stay
// untouched on failure.
#pragma once
#include "base/err.h"
#include "base/str.h"

typedef struct po_unit {
    char currency[8]; // upper case letters and digits, NUL ended ("" = none)
    int exponent;     // minor units are 10^-exponent of the currency, 0 to 18
} po_unit;

typedef struct po_money {
    int64_t minor;
    po_unit unit;
} po_money;

bool po_unit_eq(po_unit a, po_unit b);
// "BTC/11". out needs PO_UNIT_SIZE bytes.
#define PO_UNIT_SIZE 16
void po_unit_text(po_unit unit, char out[PO_UNIT_SIZE]);
PO_MUST_CHECK bool po_unit_parse(po_str text, po_unit *ret_unit, po_err *err);

PO_MUST_CHECK bool po_money_add(po_money a, po_money b, po_money *ret_sum, po_err *err);
PO_MUST_CHECK bool po_money_sub(po_money a, po_money b, po_money *ret_difference, po_err *err);
// ret_order: negative, zero, positive.
PO_MUST_CHECK bool po_money_cmp(po_money a, po_money b, int *ret_order, po_err *err);
// Exact, same currency, or refused.
PO_MUST_CHECK bool po_money_rescale(po_money a, int exponent, po_money *ret_money, po_err *err);

// floor(a * b / c) for a, b ≥ 0 and c > 0, with a 128-bit product; refused when it does not fit.
PO_MUST_CHECK bool po_mul_div(int64_t a, int64_t b, int64_t c, int64_t *ret_value, po_err *err);
// Checked int64 addition, "overflow" when refused.
PO_MUST_CHECK bool po_add_i64(int64_t a, int64_t b, int64_t *ret_sum, po_err *err);
