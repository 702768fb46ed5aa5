#include "base/money.h"
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static const po_unit usd = {"USD", 2}, eur = {"EUR", 2}, sat = {"BTC", 8}, msat = {"BTC", 11};

static void units_are_read_and_printed(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool ok;
    } rows[] = {
        {"USD/2", true},   {"BTC/11", true},  {"JPY/0", true},   {"ABCDEF7/18", true},
        {"USD/19", false}, {"USD/-1", false}, {"USD/02", false}, {"usd/2", false},
        {"/2", false},     {"USD", false},    {"USD/", false},   {"ABCDEFGH/2", false},
        {"USD/2 ", false}, {" USD/2", false}, {"US-D/2", false}, {"", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        po_unit unit = {"KEPT", 3};
        po_err err = {0};
        char text[PO_UNIT_SIZE];
        if (po_unit_parse(po_s(rows[i].text), &unit, &err) != rows[i].ok)
            fail_msg("%s", rows[i].text);
        po_unit_text(unit, text);
        assert_string_equal(text, rows[i].ok ? rows[i].text : "KEPT/3");
        if (!rows[i].ok)
            assert_int_equal(err.kind, PO_REFUSED);
    }
    assert_true(po_unit_eq(usd, (po_unit){"USD", 2}));
    assert_false(po_unit_eq(usd, eur));
    assert_false(po_unit_eq(sat, msat));
}

static void sums_are_exact_or_refused(void **state) {
    (void)state;
    enum { ADD, SUB };
    static const struct {
        int op;
        int64_t a, b;
        const char *code; // NULL = fine
        int64_t want;
    } rows[] = {
        {ADD, 30, 19, NULL, 49},
        {ADD, INT64_MAX, 0, NULL, INT64_MAX},
        {ADD, INT64_MAX, 1, "overflow", 0},
        {ADD, INT64_MIN, -1, "overflow", 0},
        {SUB, 30, 49, NULL, -19},
        {SUB, INT64_MIN, 1, "overflow", 0},
        {SUB, 0, INT64_MIN, "overflow", 0},
        {SUB, -1, INT64_MIN, NULL, INT64_MAX},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        po_money a = {rows[i].a, usd}, b = {rows[i].b, usd}, ret = {4711, eur};
        po_err err = {0};
        bool ok =
            rows[i].op == ADD ? po_money_add(a, b, &ret, &err) : po_money_sub(a, b, &ret, &err);
        assert_int_equal(ok, rows[i].code == NULL);
        assert_string_equal(err.code, ok ? "" : rows[i].code);
        assert_int_equal(ret.minor, ok ? rows[i].want : 4711);
        assert_true(po_unit_eq(ret.unit, ok ? usd : eur));
    }
    int64_t sum = 7;
    po_err err = {0};
    assert_false(po_add_i64(INT64_MAX, 1, &sum, &err));
    assert_string_equal(err.code, "overflow");
    assert_int_equal(sum, 7);
    assert_true(po_add_i64(-4, 1, &sum, &err));
    assert_int_equal(sum, -3);
}

static void different_units_never_meet(void **state) {
    (void)state;
    static const struct {
        po_unit a, b;
    } rows[] = {{{"USD", 2}, {"EUR", 2}}, {{"BTC", 8}, {"BTC", 11}}, {{"USD", 2}, {"", 0}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        po_money a = {1, rows[i].a}, b = {1, rows[i].b}, ret = {4711, usd};
        int order = 4711;
        po_err err = {0};
        assert_false(po_money_add(a, b, &ret, &err));
        assert_string_equal(err.code, "unit_mismatch");
        assert_int_equal(err.kind, PO_REFUSED);
        assert_false(po_money_sub(a, b, &ret, NULL));
        assert_false(po_money_cmp(a, b, &order, NULL));
        assert_int_equal(ret.minor, 4711);
        assert_int_equal(order, 4711);
    }
}

static void amounts_are_compared(void **state) {
    (void)state;
    int order;
    assert_true(po_money_cmp((po_money){INT64_MIN, usd}, (po_money){INT64_MAX, usd}, &order, NULL));
    assert_true(order < 0);
    assert_true(po_money_cmp((po_money){2, usd}, (po_money){1, usd}, &order, NULL));
    assert_true(order > 0);
    assert_true(po_money_cmp((po_money){2, usd}, (po_money){2, usd}, &order, NULL));
    assert_int_equal(order, 0);
}

static void rescaling_is_exact_or_refused(void **state) {
    (void)state;
    static const struct {
        int64_t minor;
        int from, to;
        const char *code;
        int64_t want;
    } rows[] = {
        {1, 8, 11, NULL, 1000},
        {29000000, 8, 11, NULL, 29000000000},
        {1999, 11, 11, NULL, 1999},
        {2000, 11, 8, NULL, 2},
        {-2000, 11, 8, NULL, -2},
        {1999, 11, 8, "inexact", 0},
        {-1, 11, 8, "inexact", 0},
        {0, 18, 0, NULL, 0},
        {0, 0, 18, NULL, 0},
        {9, 0, 18, NULL, 9000000000000000000},
        {10, 0, 18, "overflow", 0},
        {-10, 0, 18, "overflow", 0},
        {INT64_MAX, 8, 11, "overflow", 0},
        {1, 2, 19, "unit", 0},
        {1, 2, -1, "unit", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        po_money ret = {4711, usd}, a = {rows[i].minor, {"BTC", rows[i].from}};
        po_err err = {0};
        bool ok = po_money_rescale(a, rows[i].to, &ret, &err);
        assert_string_equal(err.code, rows[i].code ? rows[i].code : "");
        assert_int_equal(ok, rows[i].code == NULL);
        assert_int_equal(ret.minor, ok ? rows[i].want : 4711);
        assert_int_equal(ret.unit.exponent, ok ? rows[i].to : 2);
        assert_string_equal(ret.unit.currency, ok ? "BTC" : "USD");
    }
}

static void proportions_floor_in_128_bits(void **state) {
    (void)state;
    static const struct {
        int64_t a, b, c;
        const char *code;
        int64_t want;
    } rows[] = {
        {100, 29, 30, NULL, 96},
        {0, INT64_MAX, 1, NULL, 0},
        {INT64_MAX, INT64_MAX, INT64_MAX, NULL, INT64_MAX},
        {INT64_MAX, 2, 2, NULL, INT64_MAX},
        {INT64_MAX, 2, 1, "overflow", 0},
        {INT64_MAX, INT64_MAX, 1, "overflow", 0},
        {-1, 1, 1, "range", 0},
        {1, -1, 1, "range", 0},
        {1, 1, 0, "range", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t value = 4711;
        po_err err = {0};
        bool ok = po_mul_div(rows[i].a, rows[i].b, rows[i].c, &value, &err);
        assert_string_equal(err.code, rows[i].code ? rows[i].code : "");
        assert_int_equal(value, ok ? rows[i].want : 4711);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_are_read_and_printed),
        cmocka_unit_test(sums_are_exact_or_refused),
        cmocka_unit_test(different_units_never_meet),
        cmocka_unit_test(amounts_are_compared),
        cmocka_unit_test(rescaling_is_exact_or_refused),
        cmocka_unit_test(proportions_floor_in_128_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
