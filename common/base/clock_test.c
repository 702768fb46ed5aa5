#include "base/clock.h"
#include <setjmp.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

static void instants_are_printed(void **state) {
    (void)state;
    static const struct {
        int64_t us;
        const char *text;
    } rows[] = {
        {0, "1970-01-01T00:00:00.000000Z"},
        {-1, "1969-12-31T23:59:59.999999Z"},
        {1760000000123456, "2025-10-09T08:53:20.123456Z"},
        {951782400 * PO_SECOND_US, "2000-02-29T00:00:00.000000Z"},
        {253402300799 * PO_SECOND_US + 999999, "9999-12-31T23:59:59.999999Z"},
        {INT64_MAX, "294247-01-10T04:00:54.775807Z"},
    };
    char text[PO_RFC3339_SIZE];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        po_rfc3339(rows[i].us, text);
        assert_string_equal(text, rows[i].text);
    }
    po_rfc3339(INT64_MIN, text);
    assert_int_equal(text[0], '-');
}

static void instants_are_parsed(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        int64_t us;
    } rows[] = {
        {"1970-01-01T00:00:00Z", true, 0},
        {"2025-10-09T08:53:20.123456Z", true, 1760000000123456},
        {"2025-10-09T08:53:20.1234569Z", true, 1760000000123456},
        {"2025-10-09T08:53:20.5Z", true, 1760000000500000},
        {"2025-10-09T10:53:20+02:00", true, 1760000000000000},
        {"2025-10-09T04:23:20-04:30", true, 1760000000000000},
        {"2000-02-29T00:00:00Z", true, 951782400 * PO_SECOND_US},
        {"2016-12-31T23:59:60Z", true, 1483228800 * PO_SECOND_US},
        {"1900-02-29T00:00:00Z", false, 0},
        {"2025-13-01T00:00:00Z", false, 0},
        {"2025-00-01T00:00:00Z", false, 0},
        {"2025-04-31T00:00:00Z", false, 0},
        {"2025-10-09T24:00:00Z", false, 0},
        {"2025-10-09T08:60:00Z", false, 0},
        {"2025-10-09T08:53:61Z", false, 0},
        {"2025-10-09T08:53:20", false, 0},
        {"2025-10-09T08:53:20.Z", false, 0},
        {"2025-10-09T08:53:20z", false, 0},
        {"2025-10-09 08:53:20Z", false, 0},
        {"2025-10-09T08:53:20+0200", false, 0},
        {"2025-10-09T08:53:20+24:00", false, 0},
        {"2025-10-09T08:53:20Zx", false, 0},
        {"25-10-09T08:53:20Z", false, 0},
        {"", false, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t us = 4711;
        if (po_parse_rfc3339(po_s(rows[i].text), &us) != rows[i].ok)
            fail_msg("%s", rows[i].text);
        assert_int_equal(us, rows[i].ok ? rows[i].us : 4711);
    }
}

static void printing_agrees_with_the_c_library(void **state) {
    (void)state;
    for (time_t day = -200000; day < 800000; day += 379) {
        time_t t = day * 86400 + 3661;
        struct tm tm;
        char want[64], text[PO_RFC3339_SIZE];
        assert_non_null(gmtime_r(&t, &tm));
        strftime(want, sizeof want, "%Y-%m-%dT%H:%M:%S.000000Z", &tm);
        po_rfc3339((int64_t)t * PO_SECOND_US, text);
        assert_string_equal(text, want);
        int64_t back;
        assert_true(po_parse_rfc3339(po_s(text), &back));
        assert_int_equal(back, (int64_t)t * PO_SECOND_US);
    }
}

static void clocks_run(void **state) {
    (void)state;
    assert_true(po_now_us() > 1700000000 * PO_SECOND_US);
    int64_t before = po_mono_ms();
    assert_true(po_mono_ms() >= before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(instants_are_printed),
        cmocka_unit_test(instants_are_parsed),
        cmocka_unit_test(printing_agrees_with_the_c_library),
        cmocka_unit_test(clocks_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
