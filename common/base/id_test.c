#include "base/id.h"
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static void v7_carries_time_version_and_variant(void **state) {
    (void)state;
    char text[PO_UUID_SIZE];
    po_uuid_text(po_uuid_v7(0x0123456789abLL * 1000 + 500), text);
    assert_memory_equal(text, "01234567-89ab-7800-", 19);
    assert_int_equal(strlen(text), 36);
    assert_non_null(strchr("89ab", text[19]));
}

static void ids_sort_by_time_and_differ(void **state) {
    (void)state;
    char last[PO_UUID_SIZE] = "", text[PO_UUID_SIZE];
    for (int64_t us = 1760000000000000; us < 1760000000005000; us++) {
        po_uuid_text(po_uuid_v7(us), text);
        assert_true(strcmp(text, last) != 0);
        if (us % 10 == 0) // the 12-bit fraction tells 1/4096 ms apart
            assert_true(strcmp(text, last) > 0);
        memcpy(last, text, sizeof last);
    }
    po_uuid a = po_uuid_v7(1), b = po_uuid_v7(1);
    assert_memory_not_equal(a.b, b.b, 16);
    a = po_uuid_v7(-5); // before 1970: the smallest time there is
    assert_memory_equal(a.b, "\0\0\0\0\0\0\x70\0", 8);
}

static void text_reads_back(void **state) {
    (void)state;
    po_uuid id = po_uuid_v7(1760000000000000), back = {{0}};
    char text[PO_UUID_SIZE];
    po_uuid_text(id, text);
    assert_true(po_uuid_parse(po_s(text), &back));
    assert_memory_equal(id.b, back.b, 16);
    assert_true(po_uuid_parse(po_s("01234567-89AB-7cde-8123-456789abcdef"), &back));
    static const char *bad[] = {
        "",
        "01234567-89ab-7cde-8123-456789abcde",
        "01234567-89ab-7cde-8123-456789abcdefa",
        "01234567-89ab-7cde-8123-456789abcdeg",
        "0123456789ab-7cde-8123-456789abcdef-",
        "{1234567-89ab-7cde-8123-456789abcde}",
        "01234567-89ab-7cde-8123-4567-9abcdef",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(po_uuid_parse(po_s(bad[i]), &back));
    assert_int_equal(back.b[15], 0xef);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v7_carries_time_version_and_variant),
        cmocka_unit_test(ids_sort_by_time_and_differ),
        cmocka_unit_test(text_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
