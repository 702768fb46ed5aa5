// Points: rules as text, and the target of each position.
#include "base/cleanup.h"
#include "points.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const char rule_text[] = "USD/2=100, BTC/11=100000,JPY/0=1";

static void reads_rules(void **state) {
    (void)state;
    points_rules got = {0};
    po_err err = {0};
    assert_true(rules_parse(po_s(rule_text), &got, &err));
    assert_int_equal(got.n, 3);
    assert_string_equal(got.at[1].unit.currency, "BTC");
    assert_int_equal(got.at[1].unit.exponent, 11);
    assert_int_equal(got.at[1].per, 100000);
    assert_true(rules_parse(po_s(""), &got, &err));
    assert_int_equal(got.n, 0);
}

static void refuses_bad_rules(void **state) {
    (void)state;
    static const char *const bad[] = {"USD/2",
                                      "USD/2=",
                                      "USD/2=0",
                                      "USD/2=-1",
                                      "USD=1",
                                      "USD/2=1,",
                                      ",USD/2=1",
                                      "USD/2=1,,JPY/0=1",
                                      "USD/2=1.5",
                                      "USD/2=1,USD/2=2",
                                      "usd/2=1",
                                      "=1",
                                      "USD/2=99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        points_rules got = {.n = 7};
        po_err err = {0};
        if (rules_parse(po_s(bad[i]), &got, &err))
            fail_msg("taken: %s", bad[i]);
        assert_int_equal(err.kind, PO_REFUSED);
        assert_int_equal(got.n, 7);
    }
}

typedef struct row {
    const char *state, *currency;
    int exponent;
    int64_t due, received, refunded, want;
    bool keep;
} row;

static const row rows[] = {
    {"paid", "USD", 2, 1000, 1000, 0, 10, false},
    {"paid", "USD", 2, 1099, 1099, 0, 10, false},                  // no part of a point
    {"paid", "USD", 2, 99, 99, 0, 0, false},                       //
    {"paid", "USD", 2, 1000, 2000, 0, 10, false},                  // paid twice gives none (P25)
    {"paid", "USD", 2, 1000, 1000, 100, 9, false},                 // taken back in proportion
    {"paid", "USD", 2, 1000, 1000, 101, 8, false},                 // rounded down
    {"paid", "USD", 2, 1000, 1500, 400, 10, false},                // the credit goes back first
    {"paid", "USD", 2, 1000, 1000, 1000, 0, false},                // full refund
    {"paid", "USD", 2, 0, 0, 0, 0, false},                         // nothing due, no points
    {"paid", "USD", 2, 0, 500, 0, 0, false},                       //
    {"paid", "EUR", 2, 1000, 1000, 0, 0, false},                   // no rule
    {"paid", "USD", 3, 1000, 1000, 0, 0, false},                   // another unit
    {"paid", "BTC", 11, 250000, 250000, 0, 2, false},              //
    {"paid", "JPY", 0, INT64_MAX, INT64_MAX, 0, INT64_MAX, false}, // needs 128 bits
    {"reversed", "USD", 2, 1000, 1000, 0, 0, false},
    {"review", "USD", 2, 1000, 1000, 0, 0, true},
    {"open", "USD", 2, 1000, 400, 0, 0, true},
    {"canceled", "USD", 2, 1000, 0, 0, 0, true},
};

static void moves_to_the_position(void **state) {
    (void)state;
    points_rules by = {0};
    po_err err = {0};
    assert_true(rules_parse(po_s(rule_text), &by, &err));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const row *r = &rows[i];
        po_payment_event event = {.state = po_s(r->state),
                                  .unit = {.exponent = r->exponent},
                                  .due = r->due,
                                  .received = r->received,
                                  .refunded = r->refunded};
        strcpy(event.unit.currency, r->currency);
        int64_t points = -1;
        bool keep = !r->keep;
        assert_true(points_target(&by, &event, &points, &keep, &err));
        assert_int_equal(keep, r->keep);
        if (!keep)
            assert_int_equal(points, r->want);
    }
}

// FAULTS 45: no two of them share a key, whatever an order is called.
static void keys_are_injective(void **state) {
    (void)state;
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    static const char *const orders[] = {"X", "X:1", "X:1:1", ":X", "X:", "1", "1:1", "X:11", ":"};
    static const int64_t sequences[] = {1, 11, 2, 111, INT64_MAX};
    enum {
        ORDERS = sizeof orders / sizeof *orders,
        SEQUENCES = sizeof sequences / sizeof *sequences
    };
    const char *keys[ORDERS * SEQUENCES];
    for (size_t n = 0; n < ORDERS * SEQUENCES; n++) {
        keys[n] = entry_key(arena, po_s(orders[n / SEQUENCES]), sequences[n % SEQUENCES]).p;
        for (size_t j = 0; j < n; j++)
            assert_string_not_equal(keys[j], keys[n]);
    }
    assert_string_equal(keys[0], "points:X:1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_injective),
        cmocka_unit_test(reads_rules),
        cmocka_unit_test(refuses_bad_rules),
        cmocka_unit_test(moves_to_the_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
