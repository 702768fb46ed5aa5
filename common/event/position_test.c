// Positions that can be and those that cannot: what no decision leads to is no event for any reader.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "event/event.h"
#include <cmocka.h>

static po_arena *arena;

static int setup(void **state) {
    (void)state;
    arena = po_arena_new();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    po_arena_free(&arena);
    return 0;
}

static po_payment_event refunded(void) {
    return (po_payment_event){.type = po_s("payment.refunded"),
                              .order_id = po_s("order-1"),
                              .customer_id = po_s("customer-1"),
                              .state = po_s("paid"),
                              .unit = {"USD", 2},
                              .due = 10,
                              .received = 10,
                              .refunded = 1,
                              .qualification = 1};
}

// What a reader makes of what was written: NULL, or the code of its refusal.
static const char *written_and_read(const po_payment_event *e, po_payment_event *ret_read) {
    static po_err err;
    PO_AUTO(po_buf_done) po_buf out = {0};
    ret_read->delta = 5;
    if (po_payment_event_write(e, &out, &err) &&
        po_payment_event_read(po_payment_event_schema(), po_buf_view(&out), arena, ret_read, &err))
        return NULL;
    assert_int_equal(err.kind, PO_REFUSED);
    assert_int_equal(ret_read->delta, 5); // untouched
    return err.code;
}

static void cannot_be(const po_payment_event *e) {
    po_payment_event read;
    const char *code = written_and_read(e, &read);
    assert_non_null(code);
    assert_string_equal(code, "position");
}

static void test_positions_that_cannot_be(void **state) {
    (void)state;
    static const struct {
        const char *type, *state;
        int64_t due, received, refunded;
        int32_t qualification;
        bool can_be;
    } cases[] = {
        {"payment.qualified", "paid", 0, 0, 0, 1, true},
        {"payment.refunded", "paid", INT64_MAX, INT64_MAX, INT64_MAX, 1, true},
        {"payment.pending", "open", 10, 0, 0, 0, true},
        {"payment.refunded", "paid", -1, 0, 0, 1, false},
        {"payment.refunded", "paid", 10, -1, 0, 1, false},
        {"payment.refunded", "paid", 10, 5, -1, 1, false},
        {"payment.refunded", "paid", 10, 5, 6, 1, false},
        {"payment.qualified", "review", 10, 10, 0, 1, false},
        {"payment.qualified", "paid", 10, 10, 0, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        po_payment_event e = refunded(), read;
        e.type = po_s(cases[i].type);
        e.state = po_s(cases[i].state);
        e.due = cases[i].due;
        e.received = cases[i].received;
        e.refunded = cases[i].refunded;
        e.qualification = cases[i].qualification;
        if (cases[i].can_be)
            assert_null(written_and_read(&e, &read));
        else
            cannot_be(&e);
    }
}

// Parts of due and of what was received are never negative.
static void test_parts(void **state) {
    (void)state;
    static const size_t parts[] = {offsetof(po_payment_event, tax),
                                   offsetof(po_payment_event, shipping),
                                   offsetof(po_payment_event, disputed)};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        po_payment_event e = refunded(), read;
        int64_t *part = (int64_t *)((char *)&e + parts[i]);
        *part = INT64_MAX;
        assert_null(written_and_read(&e, &read));
        *part = -1;
        cannot_be(&e);
    }
}

// Legs that do not add up are read: what to make of them is the reader's business.
static void test_legs(void **state) {
    (void)state;
    static const size_t amounts[] = {offsetof(po_leg, received), offsetof(po_leg, refunded),
                                     offsetof(po_leg, disputed), offsetof(po_leg, fee)};
    po_leg legs[PO_LEGS_MAX + 1];
    for (size_t i = 0; i <= PO_LEGS_MAX; i++)
        legs[i] = (po_leg){po_s("p"), po_s(po_printf(arena, "a%zu", i)), INT64_MAX, 7, 9, 11};
    po_payment_event e = refunded(), read;
    e.accounts = legs;
    for (e.n_accounts = 0; e.n_accounts <= PO_LEGS_MAX; e.n_accounts++) {
        assert_null(written_and_read(&e, &read));
        assert_int_equal(read.n_accounts, e.n_accounts);
        for (size_t i = 0; i < e.n_accounts; i++)
            assert_true(po_str_eq(read.accounts[i].account, legs[i].account) &&
                        read.accounts[i].received == INT64_MAX && read.accounts[i].fee == 11);
    }
    assert_string_equal(written_and_read(&e, &read), "avro_data"); // one too many
    e.n_accounts = PO_LEGS_MAX;
    for (size_t i = 0; i < sizeof amounts / sizeof *amounts; i++) {
        int64_t *amount = (int64_t *)((char *)&legs[i * 33] + amounts[i]), was = *amount;
        *amount = -1;
        cannot_be(&e);
        *amount = was;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_positions_that_cannot_be),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_legs),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
