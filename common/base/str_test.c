#include "base/str.h"
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static void numbers_are_read_strictly(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        int64_t value;
    } rows[] = {
        {"0", true, 0},
        {"7", true, 7},
        {"-1", true, -1},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"99999999999999999999", false, 0},
        {"", false, 0},
        {"-", false, 0},
        {"-0", false, 0},
        {"00", false, 0},
        {"01", false, 0},
        {"-01", false, 0},
        {"+1", false, 0},
        {" 1", false, 0},
        {"1 ", false, 0},
        {"1.0", false, 0},
        {"1e2", false, 0},
        {"0x10", false, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t value = 4711;
        if (po_parse_i64(po_s(rows[i].text), &value) != rows[i].ok)
            fail_msg("%s", rows[i].text);
        assert_int_equal(value, rows[i].ok ? rows[i].value : 4711);
    }
    int64_t value;
    assert_false(po_parse_i64((po_str){"1\0", 2}, &value));
    assert_false(po_parse_i64((po_str){NULL, 0}, &value));
}

static void views_compare_as_bytes(void **state) {
    (void)state;
    assert_true(po_str_eq((po_str){NULL, 0}, po_s("")));
    assert_true(po_str_is(po_s("abc"), "abc"));
    assert_false(po_str_is((po_str){"abc\0", 4}, "abc"));
    assert_true(po_str_cmp(po_s("a"), po_s("b")) < 0);
    assert_true(po_str_cmp(po_s("ab"), po_s("a")) > 0);
    assert_true(po_str_cmp(po_s("Z"), po_s("a")) < 0);
    assert_true(po_str_cmp(po_s("\xff"), po_s("a")) > 0);
    assert_int_equal(po_str_cmp((po_str){NULL, 0}, po_s("")), 0);
    assert_true(po_str_is(po_str_trim(po_s(" \t a b \t")), "a b"));
    assert_int_equal(po_str_trim(po_s(" \t ")).n, 0);
    assert_true(po_str_is(po_str_trim(po_s("\na")), "\na"));
}

static void hex_is_lower_case_and_exact(void **state) {
    (void)state;
    char text[9];
    po_hex("\x00\x7f\xab\xff", 4, text);
    assert_string_equal(text, "007fabff");
    uint8_t bytes[4] = {1, 2, 3, 4};
    assert_false(po_unhex(po_s("007FABFF"), bytes, 4));
    assert_false(po_unhex(po_s("007fabf"), bytes, 4));
    assert_false(po_unhex(po_s("007fabfff"), bytes, 4));
    assert_false(po_unhex(po_s("007fabfg"), bytes, 4));
    assert_memory_equal(bytes, "\1\2\3\4", 4);
    assert_true(po_unhex(po_s(text), bytes, 4));
    assert_memory_equal(bytes, "\x00\x7f\xab\xff", 4);
}

static void sha256_of_known_texts(void **state) {
    (void)state;
    uint8_t digest[32];
    char text[65];
    po_sha256(po_s("abc"), digest);
    po_hex(digest, 32, text);
    assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    po_sha256((po_str){NULL, 0}, digest);
    po_hex(digest, 32, text);
    assert_string_equal(text, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

static void ids_are_printable_ascii(void **state) {
    (void)state;
    assert_true(po_is_id(po_s("evt_1!~"), 255));
    assert_true(po_is_id(po_s("abc"), 3));
    assert_false(po_is_id(po_s("abcd"), 3));
    assert_false(po_is_id(po_s(""), 3));
    assert_false(po_is_id(po_s("a b"), 9));
    assert_false(po_is_id(po_s("a\x7f"), 9));
    assert_false(po_is_id(po_s("\xc3\xa4"), 9));
    assert_false(po_is_id((po_str){"a\0b", 3}, 9));
}

static void buffers_grow(void **state) {
    (void)state;
    po_buf buf = {0};
    assert_int_equal(po_buf_view(&buf).n, 0);
    po_buf_put(&buf, "a\0b", 3);
    po_buf_puts(&buf, "-");
    for (int i = 0; i < 1000; i++)
        po_buf_printf(&buf, "%03d", i);
    assert_int_equal(buf.n, 3004);
    assert_memory_equal(buf.p, "a\0b-000001", 10);
    assert_string_equal(buf.p + 3001, "999");
    po_buf_done(&buf);
    assert_null(buf.p);
    po_buf_put(&buf, NULL, 0);
    assert_string_equal(buf.p, "");
    po_buf_done(&buf);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_read_strictly),   cmocka_unit_test(views_compare_as_bytes),
        cmocka_unit_test(hex_is_lower_case_and_exact), cmocka_unit_test(sha256_of_known_texts),
        cmocka_unit_test(ids_are_printable_ascii),     cmocka_unit_test(buffers_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
