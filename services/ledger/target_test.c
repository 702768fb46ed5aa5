// The ledger's target, a row per state and amount, and each walk of an order as a row of positions.
#include "target.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

typedef struct row {
    const char *state;
    int64_t due, received, refunded;
    target want;
} row;

static const row rows[] = {
    // state, due, received, refunded; net, revenue, credit, suspense
    {"open", 1000, 0, 0, {0, 0, 0, 0}},
    {"open", 1000, 400, 0, {400, 0, 0, 400}},        // short: whose money is not known yet
    {"open", 1000, 400, 400, {0, 0, 0, 0}},          // short, then refunded
    {"paid", 1000, 1000, 0, {1000, 1000, 0, 0}},     //
    {"paid", 1000, 1500, 0, {1500, 1000, 500, 0}},   // over
    {"paid", 1000, 1500, 300, {1200, 1000, 200, 0}}, // credit goes back first
    {"paid", 1000, 1500, 700, {800, 800, 0, 0}},     // then revenue
    {"paid", 1000, 2000, 0, {2000, 1000, 1000, 0}},  // paid twice
    {"paid", 1000, 1000, 1000, {0, 0, 0, 0}},        // full refund
    {"paid", 0, 0, 0, {0, 0, 0, 0}},                 // nothing was due
    {"paid", 0, 300, 0, {300, 0, 300, 0}},           //
    {"review", 1000, 1000, 0, {1000, 0, 0, 1000}},   // all to suspense
    {"review", 1000, 1000, 1000, {0, 0, 0, 0}},      // paid after cancel, then refunded
    {"canceled", 1000, 0, 0, {0, 0, 0, 0}},          //
    {"canceled", 1000, 1000, 0, {1000, 0, 0, 1000}}, //
    {"reversed", 1000, 1000, 0, {1000, 0, 0, 1000}}, //
    {"reversed", 1000, 0, 0, {0, 0, 0, 0}},          //
    {"paid", INT64_MAX, INT64_MAX, 0, {INT64_MAX, INT64_MAX, 0, 0}},
    {"paid", 1, INT64_MAX, 0, {INT64_MAX, 1, INT64_MAX - 1, 0}},
};

static void moves_to_the_position(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const row *r = &rows[i];
        po_payment_event event = {.state = po_s(r->state),
                                  .due = r->due,
                                  .received = r->received,
                                  .refunded = r->refunded};
        target got = {-1, -1, -1, -1};
        po_err err = {0};
        assert_true(target_of(&event, &got, &err));
        assert_int_equal(got.net, r->want.net);
        assert_int_equal(got.revenue, r->want.revenue);
        assert_int_equal(got.customer_credit, r->want.customer_credit);
        assert_int_equal(got.suspense, r->want.suspense);
        assert_int_equal(got.net, got.revenue + got.customer_credit + got.suspense);
    }
}

static void refuses_what_cannot_be(void **state) {
    (void)state;
    static const int64_t bad[][3] = {{-1, 0, 0}, {0, -1, 0}, {0, 0, -1}, {10, 5, 6}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        po_payment_event event = {
            .state = po_s("paid"), .due = bad[i][0], .received = bad[i][1], .refunded = bad[i][2]};
        target got = {7, 7, 7, 7};
        po_err err = {0};
        assert_false(target_of(&event, &got, &err));
        assert_int_equal(err.kind, PO_REFUSED);
        assert_int_equal(got.net, 7);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves_to_the_position),
        cmocka_unit_test(refuses_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
