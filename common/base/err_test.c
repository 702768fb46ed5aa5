#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static void fail_fills_and_returns_false(void **state) {
    (void)state;
    po_err err = {0};
    assert_false(po_fail(&err, PO_RETRY, "08006", "connection %d lost", 7));
    assert_int_equal(err.kind, PO_RETRY);
    assert_string_equal(err.code, "08006");
    assert_string_equal(err.text, "connection 7 lost");
    assert_false(po_fail(NULL, PO_BUG, "x", "nobody listens"));
    assert_false(po_wrap(NULL, "nobody"));
}

static void fail_may_quote_the_error_it_replaces(void **state) {
    (void)state;
    po_err err = {0};
    po_fail(&err, PO_RETRY, "a", "inner");
    po_fail(&err, PO_BUG, err.code, "outer of %s", err.text);
    assert_string_equal(err.text, "outer of inner");
    assert_string_equal(err.code, "a");
}

static void wrap_puts_phrases_in_front(void **state) {
    (void)state;
    po_err err = {0};
    po_fail(&err, PO_UNCERTAIN, "lost", "no reply");
    assert_false(po_wrap(&err, "committing batch %d", 3));
    assert_false(po_wrap(&err, "writer"));
    assert_string_equal(err.text, "writer: committing batch 3: no reply");
    assert_int_equal(err.kind, PO_UNCERTAIN);
}

static void long_texts_are_cut_not_overrun(void **state) {
    (void)state;
    char big[2000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    po_err err = {0};
    po_fail(&err, PO_BUG, big, "%s", big);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_int_equal(strlen(err.code), sizeof err.code - 1);
    po_wrap(&err, "%s", big);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
}

static void kinds_have_names(void **state) {
    (void)state;
    assert_string_equal(po_kind_name(PO_RETRY), "retry");
    assert_string_equal(po_kind_name(PO_REFUSED), "refused");
    assert_string_equal(po_kind_name(PO_UNCERTAIN), "uncertain");
    assert_string_equal(po_kind_name(PO_BUG), "bug");
}

static char *hand_over(void) {
    PO_AUTO(po_free_auto) char *text = strdup("kept");
    PO_AUTO(po_free_auto) char *dropped = strdup("freed here"); // a leak would fail under ASan
    assert_non_null(dropped);
    return po_take(&text);
}

static void take_hands_over(void **state) {
    (void)state;
    char *text = hand_over();
    assert_string_equal(text, "kept");
    po_free_auto(&text);
    assert_null(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_fills_and_returns_false),
        cmocka_unit_test(fail_may_quote_the_error_it_replaces),
        cmocka_unit_test(wrap_puts_phrases_in_front),
        cmocka_unit_test(long_texts_are_cut_not_overrun),
        cmocka_unit_test(kinds_have_names),
        cmocka_unit_test(take_hands_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
