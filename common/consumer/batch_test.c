// The pure parts of a batch and of the retention check.
#include "consumer/batch.h"
#include "consumer/retention.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static po_uuid uuid(uint8_t last) {
    po_uuid id = {{0}};
    id.b[15] = last;
    return id;
}

static void folds_to_first_occurrences(void **state) {
    (void)state;
    const po_uuid ids[] = {uuid(9), uuid(3), uuid(9), uuid(1), uuid(3), uuid(3)};
    po_uuid got[6];
    size_t first[6];
    assert_int_equal(po_fold(ids, 6, got, first), 3);
    static const uint8_t want[] = {1, 3, 9};
    static const size_t want_first[] = {3, 1, 0};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(got[i].b[15], want[i]);
        assert_int_equal(first[i], want_first[i]);
    }
    assert_int_equal(po_fold(ids, 0, got, first), 0);
    assert_int_equal(po_fold(ids, 1, got, first), 1);
    assert_int_equal(first[0], 0);
}

static bool handler(po_consumer_tx *tx, const po_delivery *delivery, po_err *err) {
    (void)tx, (void)delivery, (void)err;
    return true;
}

static void finds_the_first_route(void **state) {
    (void)state;
    static const po_consumer_route routes[] = {
        {"payments.v1", "payment.qualified", handler},
        {"payments.v1", "payment.pending", NULL},
        {"payments.v1", "*", handler},
        {"contacts.v1", "contact.set", handler},
        {0},
    };
    static const struct {
        const char *topic, *type;
        int want; // -1: none
    } rows[] = {
        {"payments.v1", "payonce.payment.qualified", 0},
        {"payments.v1", "payonce.payment.pending", 1},
        {"payments.v1", "payonce.payment.other", 2},
        {"payments.v1", "payment.qualified", -1},
        {"payments.v1", "payonce", -1},
        {"payments.v1", "", -1},
        {"contacts.v1", "payonce.contact.set", 3},
        {"contacts.v1", "payonce.contact.erased", -1},
        {"other", "payonce.payment.qualified", -1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const po_consumer_route *got =
            po_route_find(routes, po_s(rows[i].topic), po_s(rows[i].type));
        assert_ptr_equal(got, rows[i].want < 0 ? NULL : &routes[rows[i].want]);
    }
}

static void says_the_position(void **state) {
    (void)state;
    po_arena *arena = po_arena_new();
    po_payment_event event = {.state = po_s("paid"),
                              .unit = {"BTC", 11},
                              .due = 1000,
                              .received = 1200,
                              .refunded = 50,
                              .qualification = 2,
                              .customer_id = po_s("c-7"),
                              .sequence = 9};
    po_str text = po_position_text(arena, &event);
    assert_true(po_str_is(text, "paid BTC/11 due 1000 received 1200 refunded 50 q2 customer c-7"));
    event.sequence = 10; // no part of it, and no id is
    event.event_id = uuid(4);
    assert_true(po_str_eq(po_position_text(arena, &event), text));
    po_arena_free(&arena);
}

static void the_window_covers_the_topic(void **state) {
    (void)state;
    static const int64_t day = 24 * 3600 * 1000;
    static const struct {
        const char *policy, *retention_ms;
        int64_t window_days;
        bool want;
        po_kind kind;
    } rows[] = {
        {"delete", "604800000", 8, true, 0},
        {"delete", "604800001", 8, false, PO_REFUSED},
        {"delete", "604800000", 7, false, PO_REFUSED},
        {"compact", "604800000", 1, true, 0},
        {"compact,delete", "604800000", 7, false, PO_REFUSED},
        {"delete", "-1", 3650, false, PO_REFUSED}, // kept for ever: no window covers it
        {NULL, NULL, 8, true, 0},
        {NULL, NULL, 7, false, PO_REFUSED},
        {"delete", "soon", 8, false, PO_RETRY},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        po_err err = {0};
        assert_int_equal(po_retention_fits("t", rows[i].policy, rows[i].retention_ms,
                                           rows[i].window_days * day, &err),
                         rows[i].want);
        assert_int_equal(err.kind, rows[i].kind);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folds_to_first_occurrences),
        cmocka_unit_test(finds_the_first_route),
        cmocka_unit_test(says_the_position),
        cmocka_unit_test(the_window_covers_the_topic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
