// Base64 and time are read one way only; a comparison looks at every candidate.
#include "providers/signature.h"
#include "base/clock.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void mac_of_empty_parts_is_the_mac_of_their_joint_bytes(void **state) {
    (void)state;
    uint8_t whole[MAC_SIZE], parts[MAC_SIZE];
    const po_str one[] = {po_s("abcdef")};
    const po_str three[] = {po_s("abc"), {NULL, 0}, po_s("def")};
    hmac_sha256(po_s("key"), one, 1, whole);
    hmac_sha256(po_s("key"), three, 3, parts);
    assert_memory_equal(whole, parts, MAC_SIZE);
    hmac_sha256(po_s("kez"), one, 1, parts);
    assert_memory_not_equal(whole, parts, MAC_SIZE);
}

static void any_candidate_matches_and_none_does_not(void **state) {
    (void)state;
    uint8_t mac[MAC_SIZE] = {1}, candidates[3][MAC_SIZE] = {{2}, {1}, {3}};
    assert_true(signature_matches(mac, (const uint8_t(*)[MAC_SIZE])candidates, 3));
    assert_true(signature_matches(mac, (const uint8_t(*)[MAC_SIZE])candidates, 2));
    assert_false(signature_matches(mac, (const uint8_t(*)[MAC_SIZE])candidates, 1));
    assert_false(signature_matches(mac, (const uint8_t(*)[MAC_SIZE])candidates, 0));
    for (size_t i = 0; i < MAC_SIZE; i++) { // whole: every byte of it counts
        candidates[1][i] ^= 1;
        assert_false(signature_matches(mac, (const uint8_t(*)[MAC_SIZE])candidates, 3));
        candidates[1][i] ^= 1;
    }
}

static void timestamps_have_one_spelling(void **state) {
    (void)state;
    static const char *const bad[] = {"",   "0",  "01", "+1",  "-1",
                                      "1 ", " 1", "1a", "0x1", "9223372036854775808"};
    int64_t seconds = 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(timestamp_read(po_s(bad[i]), &seconds));
    assert_true(timestamp_read(po_s("9223372036854775807"), &seconds));
    assert_int_equal(seconds, INT64_MAX);
    assert_false(timestamp_fresh(seconds, 1760000000 * PO_SECOND_US));
    assert_false(timestamp_fresh(1, INT64_MAX));
}

static void the_window_is_300_seconds_both_ways(void **state) {
    (void)state;
    const int64_t t = 1760000000;
    assert_true(timestamp_fresh(t, (t + 300) * PO_SECOND_US));
    assert_false(timestamp_fresh(t, (t + 301) * PO_SECOND_US));
    assert_true(timestamp_fresh(t, (t - 300) * PO_SECOND_US));
    assert_false(timestamp_fresh(t, (t - 301) * PO_SECOND_US));
}

static void base64_has_one_spelling(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int n; // -1 = refused
    } rows[] = {{"", -1},        {"AA==", 1},  {"AAA=", 2},     {"AAAA", 3},
                {"+/+/", 3},     {"AB==", -1}, {"AAB=", -1},    {"A===", -1},
                {"====", -1},    {"AA=A", -1}, {"AAA", -1},     {"AAAA\n", -1},
                {"AA AA==", -1}, {"-_-_", -1}, {"AAAAAA==", 4}, {"AAAAAAAA", -1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t out[5];
        size_t n = 0;
        assert_int_equal(base64_read(po_s(rows[i].text), out, sizeof out, &n), rows[i].n >= 0);
        if (rows[i].n >= 0)
            assert_int_equal(n, rows[i].n);
    }
}

static void a_header_counts_only_once_and_with_a_value(void **state) {
    (void)state;
    static char long_value[SIGNATURE_HEADER_MAX + 1];
    memset(long_value, 'x', sizeof long_value);
    assert_int_equal(header_once((header_value){0}), VERIFY_MISSING);
    assert_int_equal(header_once((header_value){po_s(" \t"), 1}), VERIFY_MISSING);
    assert_int_equal(header_once((header_value){po_s("x"), 1}), VERIFY_OK);
    assert_int_equal(header_once((header_value){po_s("x"), 2}), VERIFY_MALFORMED);
    assert_int_equal(header_once((header_value){{long_value, sizeof long_value - 1}, 1}),
                     VERIFY_OK);
    assert_int_equal(header_once((header_value){{long_value, sizeof long_value}, 1}),
                     VERIFY_MALFORMED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mac_of_empty_parts_is_the_mac_of_their_joint_bytes),
        cmocka_unit_test(any_candidate_matches_and_none_does_not),
        cmocka_unit_test(timestamps_have_one_spelling),
        cmocka_unit_test(the_window_is_300_seconds_both_ways),
        cmocka_unit_test(base64_has_one_spelling),
        cmocka_unit_test(a_header_counts_only_once_and_with_a_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
