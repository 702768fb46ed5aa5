#include "json/json.h"
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static json_t *parse(const char *text) {
    json_t *root = NULL;
    po_err err = {0};
    if (!po_json_parse(po_s(text), &root, &err))
        fail_msg("%s: %s", text, err.text);
    return root;
}

#define DEEP_8 "[[[[[[[["
#define SHUT_8 "]]]]]]]]"
#define DEEP_64 DEEP_8 DEEP_8 DEEP_8 DEEP_8 DEEP_8 DEEP_8 DEEP_8 DEEP_8
#define SHUT_64 SHUT_8 SHUT_8 SHUT_8 SHUT_8 SHUT_8 SHUT_8 SHUT_8 SHUT_8
#define TEN "0123456789"

static const struct {
    const char *text, *code; // code NULL: taken
} texts[] = {
    {"{}", NULL},
    {" [1, -7, 0] ", NULL},
    {"{\"a\":1,\"a\":2}", NULL},
    {"{\"a\":{\"b\":1,\"b\":1}}", NULL},
    {"{\"ID\":1,\"id\":2}", NULL},
    {"[9223372036854775807,-9223372036854775808]", NULL},
    {"[9223372036854775808]", NULL},
    {"[-9223372036854775809]", NULL},
    {"[0.29]", NULL},
    {"[1e400]", NULL},
    {"[1e-400]", NULL},
    {"[1E+99999999999999999999]", NULL},
    {"[1e308]", NULL},
    {"[0." TEN TEN TEN TEN TEN TEN "01]", NULL},
    {"[0." TEN TEN TEN TEN TEN TEN "012]", NULL},
    {"[-0]", NULL},
    {"[-0.0]", NULL},
    {"[01]", "json_syntax"},
    {"[-01]", "json_syntax"},
    {"[01.5]", "json_syntax"},
    {"[+1]", "json_syntax"},
    {"[+1.0]", "json_syntax"},
    {"[1.]", "json_syntax"},
    {"[.5]", "json_syntax"},
    {"[1e]", "json_syntax"},
    {"[1e+]", "json_syntax"},
    {"[1.5.5]", "json_syntax"},
    {"[1.5-2]", "json_syntax"},
    {"[-]", "json_syntax"},
    {"[0x10]", "json_syntax"},
    {"[NaN]", "json_syntax"},
    {"[-Infinity]", "json_syntax"},
    {"[1.5\"a\"]", "json_syntax"},
    {"[\"a\"1.5]", "json_syntax"},
    {"{1.5:1}", "json_syntax"},
    {"{\"a\" 1.5}", "json_syntax"},
    {"[true1.5]", "json_syntax"},
    {"[\"\\u0000\"]", NULL},
    {"[\"a\\u0000b\"]", NULL},
    {"{\"a\\u0000\":1}", NULL},
    {"[\"\\u000\"]", "json_syntax"},
    {"[\"\\u00g0\"]", "json_syntax"},
    {"[\"\\x41\"]", "json_syntax"},
    {"[\"\\", "json_syntax"},
    {"[\"\\\\u0000\"]", NULL},
    {"[\"\\u0001\"]", NULL},
    {"[\"\\ud83d\\ude00\"]", NULL},
    {"[\"\\ud83d\"]", NULL},
    {"[\"\\ude00\"]", NULL},
    {"[\"\\ud83d\\ud83d\\ude00\"]", NULL},
    {"[\"\\ud83d\\u00\"]", "json_syntax"},
    {"[\"\xf0\x9f\x98\x80\xef\xbf\xbf\"]", NULL},
    {"[\"\xf4\x90\x80\x80\"]", "json_syntax"},
    {"[\"\xe0\x9f\xbf\"]", "json_syntax"},
    {"[\"\xf0\x8f\xbf\xbf\"]", "json_syntax"},
    {"[\"\xe2\x82\"]", "json_syntax"},
    {"[\"\x80\"]", "json_syntax"},
    {"{\"\xff\":1}", "json_syntax"},
    {"[\"\xff\"]", "json_syntax"},
    {"[\"\xc0\xaf\"]", "json_syntax"},
    {"[\"\xed\xa0\x80\"]", "json_syntax"},
    {"[\"\xe2\x82\xb9\"]", NULL},
    {"\xef\xbb\xbf{}", "json_syntax"},
    {"{} x", "json_syntax"},
    {"{}{}", "json_syntax"},
    {"{},", "json_syntax"},
    {"[1,]", "json_syntax"},
    {"['a']", "json_syntax"},
    {"[\"a\nb\"]", "json_syntax"},
    {"[\"unended", "json_syntax"},
    {"[\"unended\\", "json_syntax"},
    {"{\"a\":", "json_syntax"},
    {"", "json_syntax"},
    {"   ", "json_syntax"},
    {"\"text\"", "json_syntax"},
    {"1.5", "json_syntax"},
    {"null", "json_syntax"},
    {DEEP_64 SHUT_64, NULL},
    {"[" DEEP_64 SHUT_64 "]", NULL},
    {"[" DEEP_64 SHUT_64 "}", "json_syntax"},
    {"[" DEEP_64 "\xff" SHUT_64 "]", "json_syntax"},
    {"[" DEEP_64 "{\"a\":01}" SHUT_64 "]", "json_syntax"},
    {"[\"" DEEP_64 DEEP_8 "\"]", NULL},
    {"[{]}", "json_syntax"},
    {"[1 2]", "json_syntax"},
    {"{\"a\":1,}", "json_syntax"},
    {"{,}", "json_syntax"},
    {"{\"a\"}", "json_syntax"},
    {"[nul]", "json_syntax"},
    {"[truee]", "json_syntax"},
    {"\v[]", "json_syntax"},
};

static void texts_are_taken_or_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *root = NULL;
        po_err err = {0};
        bool ok = po_json_parse(po_s(texts[i].text), &root, &err);
        if (ok != (texts[i].code == NULL))
            fail_msg("%s: %s", texts[i].text, err.text);
        assert_string_equal(err.code, ok ? "" : texts[i].code);
        if (!ok)
            assert_int_equal(err.kind, PO_REFUSED);
        json_decref(root);
    }
    json_t *root = NULL;
    assert_false(po_json_parse((po_str){"{}\0", 3}, &root, NULL));
    assert_false(po_json_parse((po_str){"[\"a\0b\"]", 7}, &root, NULL));
    assert_false(po_json_parse((po_str){NULL, 0}, &root, NULL));
    assert_null(root);
}

static void a_very_deep_text_does_not_exhaust_the_stack(void **state) {
    (void)state;
    po_buf text = {0};
    for (int i = 0; i < 1000000; i++)
        po_buf_puts(&text, "{\"a\":[");
    json_t *root = NULL;
    po_err err = {0};
    assert_false(po_json_parse(po_buf_view(&text), &root, &err));
    assert_string_equal(err.code, "json_syntax");
    for (int i = 0; i < 1000000; i++)
        po_buf_puts(&text, "]}");
    assert_true(po_json_parse(po_buf_view(&text), &root, &err));
    json_decref(root);
    po_buf_done(&text);
}

// FAULTS 31: valid JSON is read, whatever stands where nobody looks; the same where somebody does is
// refused by its name, and by every reader.
static void only_what_is_read_is_judged(void **state) {
    (void)state;
    static const struct {
        const char *value, *code; // what a reader of any type says of it
    } rows[] = {
        {"1,\"x\":1", "json_twice"},
        {"1,\"\\u0078\":1", "json_twice"}, // another spelling of the same key
        {"{\"a\":1},\"x\":{\"a\":1}", "json_twice"},
        {"[],\"x\":null,\"x\":2", "json_twice"},
        {"\"a\\u0000\"", "json_text"},
        {"\"\\u0000\"", "json_text"},
        {"\"\\u00001\"", "json_text"}, // no decimal, whatever its mark is made of
        {"\"\\u0000t\"", "json_text"},
        {"\"\\ud800\"", "json_text"},
        {"\"\\udc00\\ud800\"", "json_text"},
        {"\"\\ud800\\u0041\"", "json_text"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        snprintf(text, sizeof text, "{\"id\":\"evt_1\",\"x\":%s,\"last\":7}", rows[i].value);
        json_t *root = parse(text);
        po_str id = po_s("kept"), other = po_s("kept");
        int64_t n = 0;
        bool flag = true;
        const json_t *inner = root;
        po_err errs[6] = {0};
        assert_true(po_json_id(root, "id", &id, NULL) && po_str_is(id, "evt_1"));
        assert_true(po_json_i64(root, "last", &n, NULL) && n == 7);
        bool text_only = strcmp(rows[i].code, "json_text") == 0;
        assert_false(po_json_str_opt(root, "x", 99, &other, &errs[0]));
        assert_false(po_json_id_opt(root, "x", &other, &errs[1]));
        assert_false(po_json_i64_text_opt(root, "x", &n, &errs[2]));
        assert_false(po_json_i64_opt(root, "x", &n, &errs[3]));
        assert_false(po_json_bool_opt(root, "x", &flag, &errs[4]));
        assert_int_equal(po_json_object(root, "x", &inner, &errs[5]), text_only);
        assert_int_equal(po_json_array(root, "x", &inner, NULL), text_only);
        assert_true(po_str_is(other, "kept") && n == 7 && flag &&
                    inner == (text_only ? NULL : root));
        for (int e = 0; e < 6 - text_only; e++)
            assert_string_equal(errs[e].code, text_only && e >= 3 ? "json_type" : rows[i].code);
        assert_null(po_json_string(json_object_get(root, "x")));
        assert_null(po_json_decimal(json_object_get(root, "x")));
        char *printed = po_json_text(root);
        assert_string_equal(printed, "{\"id\":\"evt_1\",\"last\":7,\"x\":null}");
        free(printed);
        json_decref(root);
    }
}

static void what_is_nested_too_deeply_cannot_be_read(void **state) {
    (void)state;
    po_buf text = {0};
    for (int i = 0; i < 66; i++)
        po_buf_puts(&text, "{\"x\":");
    po_buf_puts(&text, "1");
    for (int i = 0; i < 66; i++)
        po_buf_puts(&text, "}");
    json_t *root = parse(text.p);
    const json_t *at = root;
    po_err err = {0};
    for (int level = 1; level < 64; level++)
        assert_true(po_json_object(at, "x", &at, &err) && at);
    assert_false(po_json_object(at, "x", &at, &err));
    assert_string_equal(err.code, "json_depth");
    char *printed = po_json_text(at);
    assert_string_equal(printed, "{\"x\":null}");
    free(printed);
    json_decref(root);
    po_buf_done(&text);
}

// An integer beyond 64 bits is of the type, and out of its range.
static void integers_beyond_64_bits_are_out_of_range(void **state) {
    (void)state;
    json_t *root = parse("{\"a\":9223372036854775808,\"b\":-9223372036854775809,\"c\":-0,"
                         "\"d\":1e2,\"e\":9223372036854775807,\"f\":1.0}");
    static const char *const codes[] = {"json_range", "json_range", "json_range",
                                        "json_type",  "",           "json_type"};
    for (size_t i = 0; i < 6; i++) {
        int64_t n = 0;
        po_err err = {0};
        assert_int_equal(po_json_i64(root, (char[]){(char)('a' + i), 0}, &n, &err), !*codes[i]);
        assert_string_equal(err.code, codes[i]);
    }
    assert_string_equal(po_json_decimal(json_object_get(root, "a")), "9223372036854775808");
    json_decref(root);
}

// The parser against jansson's own, on all texts that both take.
static void the_tree_is_that_of_jansson(void **state) {
    (void)state;
    static const char *const same[] = {
        "{\"a\":[1,-2,true,false,null,\"x\"],\"b\":{\"c\":{}},\"\":[[],[{}]]}",
        "[\"\\u20bf\\ud83d\\ude00\\b\\f\\n\\r\\t\\/\\\\\\\"\\u0001\",\"\xe2\x82\xbf\"]",
        "\r\n [\t9223372036854775807 , -9223372036854775808 ]\n", "{\"\\u00e9\":1,\"e\":0}",
        "[" DEEP_8 "0" SHUT_8 "]"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        json_t *ours = parse(same[i]), *theirs = json_loads(same[i], JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(theirs);
        assert_true(json_equal(ours, theirs));
        json_decref(ours);
        json_decref(theirs);
    }
}

static void error_texts_never_quote_the_input(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{\"a\":secret}",   "{\"secret\":1,,\"secret\":2}", "[\"secret\"", "{} secret",
        "[\"secret\xff\"]",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *root = NULL;
        po_err err = {0};
        assert_false(po_json_parse(po_s(texts[i]), &root, &err));
        assert_null(strstr(err.text, "secret"));
        assert_true(err.text[0] != '\0');
    }
}

static void decimals_keep_their_text(void **state) {
    (void)state;
    json_t *root =
        parse("{\"a\":0.29,\"b\":1e-8,\"c\":[1.50,-2.5E+3,7],\"d\":\"0.29\",\"e\":4900.0}");
    assert_string_equal(po_json_decimal(json_object_get(root, "a")), "0.29");
    assert_string_equal(po_json_decimal(json_object_get(root, "b")), "1e-8");
    const json_t *c = json_object_get(root, "c");
    assert_string_equal(po_json_decimal(json_array_get(c, 0)), "1.50");
    assert_string_equal(po_json_decimal(json_array_get(c, 1)), "-2.5E+3");
    assert_null(po_json_decimal(json_array_get(c, 2)));
    assert_null(po_json_decimal(json_object_get(root, "d")));
    assert_null(po_json_decimal(json_object_get(root, "missing")));
    json_t *empty = json_string("");
    assert_null(po_json_decimal(empty));
    json_decref(empty);

    int64_t amount = 4711;
    po_str text = po_s("kept");
    po_err err = {0};
    assert_false(po_json_i64(root, "e", &amount, &err)); // an amount is an integer token
    assert_string_equal(err.code, "json_type");
    assert_false(po_json_str(root, "a", 100, &text, &err)); // and a decimal is no string
    assert_string_equal(err.code, "json_type");
    assert_false(po_json_i64_text_opt(root, "a", &amount, &err));
    assert_false(po_json_id(root, "a", &text, &err));
    assert_int_equal(amount, 4711);
    assert_true(po_str_is(text, "kept"));

    char *printed = po_json_text(root);
    assert_string_equal(
        printed, "{\"a\":0.29,\"b\":1e-8,\"c\":[1.50,-2.5E+3,7],\"d\":\"0.29\",\"e\":4900.0}");
    free(printed);
    json_decref(root);
}

static void text_is_compact_sorted_and_reads_back(void **state) {
    (void)state;
    json_t *root = parse(
        "{ \"b\" : \"q\\\"\\\\u0000\\\\\", \"a\" : [ true, null, \"\\u20bf\" ], \"\\\"\":-1.5 }");
    char *text = po_json_text(root);
    assert_string_equal(
        text, "{\"\\\"\":-1.5,\"a\":[true,null,\"\xe2\x82\xbf\"],\"b\":\"q\\\"\\\\u0000\\\\\"}");
    json_t *again = parse(text);
    assert_true(json_equal(root, again));
    json_decref(again);
    free(text);
    text = po_json_text(json_object_get(root, "\""));
    assert_string_equal(text, "-1.5");
    free(text);
    json_decref(root);
}

static const char *const members =
    "{\"s\":\"text\",\"id\":\"evt_1\",\"space\":\"a b\",\"empty\":\"\",\"n\":4900,\"t\":\"4900\","
    "\"big\":\"9223372036854775808\",\"lead\":\"01\",\"minus\":\"-1\",\"yes\":true,\"no\":false,"
    "\"null\":null,\"o\":{},\"l\":[],\"umlaut\":\"\xc3\xbc\"}";

// What each reader says of each member: "" taken, "-" not there, else the code.
static void readers_tell_types_apart(void **state) {
    (void)state;
    enum { STR, ID, I64, TEXT, BOOL };
    static const struct {
        const char *key, *codes[5];
    } rows[] = {
        {"s", {"", "", "json_type", "json_range", "json_type"}},
        {"id", {"json_range", "", "json_type", "json_range", "json_type"}},
        {"space", {"", "json_range", "json_type", "json_range", "json_type"}},
        {"empty", {"", "json_range", "json_type", "json_range", "json_type"}},
        {"umlaut", {"", "json_range", "json_type", "json_range", "json_type"}},
        {"n", {"json_type", "json_type", "", "json_type", "json_type"}},
        {"t", {"", "", "json_type", "", "json_type"}},
        {"minus", {"", "", "json_type", "", "json_type"}},
        {"lead", {"", "", "json_type", "json_range", "json_type"}},
        {"yes", {"json_type", "json_type", "json_type", "json_type", ""}},
        {"o", {"json_type", "json_type", "json_type", "json_type", "json_type"}},
        {"l", {"json_type", "json_type", "json_type", "json_type", "json_type"}},
        {"null", {"-", "-", "-", "-", "-"}},
        {"S", {"-", "-", "-", "-", "-"}},
    };
    json_t *root = parse(members);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int reader = STR; reader <= BOOL; reader++) {
            po_str text = po_s("kept");
            int64_t n = 4711;
            bool yes = true, ok = false;
            po_err err = {0};
            const char *key = rows[i].key, *want = rows[i].codes[reader];
            switch (reader) {
            case STR:
                ok = po_json_str_opt(root, key, 4, &text, &err);
                break;
            case ID:
                ok = po_json_id_opt(root, key, &text, &err);
                break;
            case I64:
                ok = po_json_i64_opt(root, key, &n, &err);
                break;
            case TEXT:
                ok = po_json_i64_text_opt(root, key, &n, &err);
                break;
            case BOOL:
                ok = po_json_bool_opt(root, key, &yes, &err);
                break;
            }
            if (ok != (want[0] == '\0' || want[0] == '-'))
                fail_msg("%s by reader %d: %s", key, reader, err.text);
            assert_string_equal(err.code, ok ? "" : want);
            if (want[0]) { // untouched
                assert_true(po_str_is(text, "kept"));
                assert_int_equal(n, 4711);
            } else if (reader == I64 || reader == TEXT) {
                assert_true(n == 4900 || n == -1);
            }
        }
    json_decref(root);
}

static void required_members_must_be_there(void **state) {
    (void)state;
    json_t *root = parse(members);
    po_str text;
    int64_t n = 0;
    bool no = true;
    po_err err = {0};
    assert_false(po_json_str(root, "null", 9, &text, &err));
    assert_string_equal(err.code, "json_missing");
    assert_false(po_json_id(root, "x", &text, &err));
    assert_string_equal(err.code, "json_missing");
    assert_false(po_json_i64(root, "x", &n, &err));
    assert_string_equal(err.code, "json_missing");
    assert_non_null(strstr(err.text, "x"));
    assert_false(po_json_i64(NULL, "n", &n, &err));
    assert_false(po_json_i64(json_object_get(root, "l"), "n", &n, &err));
    assert_true(po_json_i64(root, "n", &n, &err));
    assert_int_equal(n, 4900);
    assert_true(po_json_bool_opt(root, "no", &no, &err));
    assert_false(no);
    const json_t *inner = NULL;
    assert_true(po_json_object(root, "o", &inner, &err) && inner);
    assert_true(po_json_object(root, "l", &inner, &err) && !inner);
    assert_true(po_json_array(root, "l", &inner, &err) && inner);
    assert_true(po_json_array(root, "o", &inner, &err) && !inner);
    assert_true(po_json_object(NULL, "o", &inner, &err) && !inner);
    json_decref(root);
}

static void ids_are_bounded(void **state) {
    (void)state;
    char text[300] = "[]";
    po_str id;
    for (int n = 255; n <= 256; n++) {
        snprintf(text, sizeof text, "{\"id\":\"%0*d\"}", n, 7);
        json_t *root = parse(text);
        assert_int_equal(po_json_id(root, "id", &id, NULL), n == 255);
        json_decref(root);
    }
}

// Texts changed by chance, the same in every run. jansson takes no more than we do, and reads it
// alike; what we take beyond it is only what it has no value for.
static void chance_finds_no_difference_to_jansson(void **state) {
    (void)state;
    static const char *const seeds[] = {"{\"a\":[1,-23,true,false,null,\"xy\"],\"b\":{\"c\":{},"
                                        "\"d\":\"\\u20bf\\ud83d\\ude00\\n\"}}",
                                        "[[\"\xe2\x82\xbf\xf0\x9f\x98\x80\xc3\xbc\"],{"
                                        "\"k\\u00e9y\":9223372036854775807,\"\":[]}, 0 ]"};
    static const char bytes[] = "{}[]:,\"\\u0d8dtfn19- \t\x80\xbf\xc3\xe2\xed\xf0\x01";
    uint64_t dice = 88172645463325252u;
    size_t taken = 0;
    for (int round = 0; round < 60000; round++) {
        char text[128];
        size_t n = strlen(seeds[round % 2]);
        memcpy(text, seeds[round % 2], n + 1);
        for (int change = 0; change < 1 + round % 3; change++) {
            dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17; // xorshift
            size_t at = dice % n;
            if (dice >> 60 < 6)
                memmove(text + at, text + at + 1, n-- - at);
            else
                text[at] = bytes[(dice >> 32) % (sizeof bytes - 1)];
        }
        json_error_t why;
        json_t *theirs = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why), *ours = NULL;
        bool ok = po_json_parse((po_str){text, n}, &ours, NULL);
        taken += ok;
        if (theirs && !ok)
            fail_msg("only jansson takes %.*s", (int)n, text);
        if (theirs && !json_equal(ours, theirs) && !strstr(text, "-0"))
            fail_msg("read in two ways: %.*s", (int)n, text);
        bool odd = strstr(text, "u0000") || strstr(text, "ud") || strstr(text, "uD");
        if (!theirs && ok && !odd && json_error_code(&why) != json_error_duplicate_key &&
            json_error_code(&why) != json_error_numeric_overflow)
            fail_msg("only we take %.*s: %s", (int)n, text, why.text);
        json_decref(ours);
        json_decref(theirs);
    }
    assert_true(taken > 5000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_taken_or_refused),
        cmocka_unit_test(a_very_deep_text_does_not_exhaust_the_stack),
        cmocka_unit_test(only_what_is_read_is_judged),
        cmocka_unit_test(what_is_nested_too_deeply_cannot_be_read),
        cmocka_unit_test(integers_beyond_64_bits_are_out_of_range),
        cmocka_unit_test(the_tree_is_that_of_jansson),
        cmocka_unit_test(chance_finds_no_difference_to_jansson),
        cmocka_unit_test(error_texts_never_quote_the_input),
        cmocka_unit_test(decimals_keep_their_text),
        cmocka_unit_test(text_is_compact_sorted_and_reads_back),
        cmocka_unit_test(readers_tell_types_apart),
        cmocka_unit_test(required_members_must_be_there),
        cmocka_unit_test(ids_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
