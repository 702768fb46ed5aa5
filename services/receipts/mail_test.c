// P26: one key, one Message-ID, the same bytes each time; exact amounts; and no value that adds a header.
#define _GNU_SOURCE // memmem
#include "base/cleanup.h"
#include "mail.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <openssl/evp.h>
#include <stdlib.h>

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

static void test_key_and_message_id(void **state) {
    (void)state;
    po_str key = mail_key(arena, po_s("course"), po_s("o-1"));
    assert_string_equal(key.p, "payment_receipt:course:o-1");
    // printf %s payment_receipt:course:o-1 | sha256sum
    assert_string_equal(mail_message_id(arena, key, "shop.example").p,
                        "<e222bbd5fcda7445782a89220bb5eaf5@shop.example>");
}

// FAULTS 45: no two mails share a key or a Message-ID, whatever an order is called.
static void test_keys_are_injective(void **state) {
    (void)state;
    static const char *const purposes[] = {"deposit", "invoice", "package", "membership", "course"};
    static const char *const orders[] = {"X", "course:X", ":X", "X:", "payment_receipt:course:X",
                                         ":"};
    enum { PURPOSES = sizeof purposes / sizeof *purposes, ORDERS = sizeof orders / sizeof *orders };
    po_str keys[PURPOSES * ORDERS];
    const char *ids[PURPOSES * ORDERS];
    for (size_t n = 0; n < PURPOSES * ORDERS; n++) {
        keys[n] = mail_key(arena, po_s(purposes[n / ORDERS]), po_s(orders[n % ORDERS]));
        ids[n] = mail_message_id(arena, keys[n], "shop.example").p;
        for (size_t j = 0; j < n; j++) {
            assert_string_not_equal(keys[j].p, keys[n].p);
            assert_string_not_equal(ids[j], ids[n]);
        }
    }
}

static void test_amount(void **state) {
    (void)state;
    static const struct {
        int64_t minor;
        po_unit unit;
        const char *text;
    } rows[] = {
        {1250, {"USD", 2}, "12.50 USD"},
        {0, {"USD", 2}, "0.00 USD"},
        {7, {"USD", 2}, "0.07 USD"},
        {500, {"JPY", 0}, "500 JPY"},
        {1234567, {"KWD", 3}, "1234.567 KWD"},
        {12345678901, {"BTC", 11}, "0.12345678901 BTC"},
        {1, {"BTC", 11}, "0.00000000001 BTC"},
        {-5, {"EUR", 2}, "-0.05 EUR"},
        {INT64_MAX, {"BTC", 18}, "9.223372036854775807 BTC"},
        {INT64_MIN, {"JPY", 0}, "-9223372036854775808 JPY"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_string_equal(mail_amount(arena, (po_money){rows[i].minor, rows[i].unit}).p,
                            rows[i].text);
}

static void test_header_text(void **state) {
    (void)state;
    static const struct {
        const char *text, *header;
    } rows[] = {
        {"Payment received: go-101", "Payment received: go-101"},
        {"", ""},
        {"Brot für die Welt", "=?UTF-8?B?QnJvdCBmw7xyIGRpZSBXZWx0?="},
        {"a\r\nBcc: eve@example.org", "a  Bcc: eve@example.org"},
        {"=?UTF-8?B?AAAA?=", "=?UTF-8?B?PT9VVEYtOD9CP0FBQUE/PQ==?="},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_string_equal(mail_header_text(arena, po_s(rows[i].text)).p, rows[i].header);
}

// What an encoded header says: the words decoded and put together, as a reader does.
static char *decoded(const char *header) {
    char *out = po_alloc(arena, strlen(header) + 1);
    size_t n = 0;
    for (const char *at = header; (at = strstr(at, "?B?"));) {
        at += 3;
        const char *end = strstr(at, "?=");
        assert_non_null(end);
        int got =
            EVP_DecodeBlock((unsigned char *)out + n, (const unsigned char *)at, (int)(end - at));
        assert_true(got >= 0);
        for (const char *pad = end; pad[-1] == '='; pad--)
            got--;
        // A word holds whole characters only (RFC 2047, 5).
        assert_true(((unsigned char)out[n] & 0xc0) != 0x80);
        n += (size_t)got;
        out[n] = 0;
        at = end;
    }
    return out;
}

static void test_long_header_text(void **state) {
    (void)state;
    po_buf text = {0};
    for (int i = 0; i < 50; i++)
        po_buf_puts(&text, i % 2 ? "Чай " : "漢字€");
    po_buf_put(&text, "", 1);
    const char *header = mail_header_text(arena, po_s(text.p)).p;
    assert_string_equal(decoded(header), text.p);
    size_t line = strlen("Subject: ");
    for (const char *c = header; *c; c++) {
        line = *c == '\n' ? 0 : line + 1;
        assert_true(line <= 76);
        assert_true(*c != '\n' || c[1] == ' ');
    }
    po_buf_done(&text);
    // Neither control characters nor bytes that are no UTF-8 get through as they are, or loop.
    char noise[400];
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (char)(i % 2 ? 0x80 : i);
    po_str header_text = mail_header_text(arena, (po_str){noise, sizeof noise});
    for (size_t i = 0; i < header_text.n; i++)
        assert_true((unsigned char)header_text.p[i] < 0x80);
}

static void test_addresses(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool valid;
    } rows[] = {
        {"a@b", true},
        {"ann@example.org", true},
        {"Ann.B+tag_1@mail.example.co.uk", true},
        {"o'hara#1@xn--bcher-kva.example", true},
        {"", false},
        {"@example.org", false},
        {"ann@", false},
        {"ann", false},
        {"ann@example..org", false},
        {"ann@.org", false},
        {"ann@-x.org", false},
        {"ann@x-.org", false},
        {".ann@example.org", false},
        {"ann.@example.org", false},
        {"a..b@example.org", false},
        {"a b@example.org", false},
        {"a@b@example.org", false},
        {"ann@example.org\r\nBcc: eve@example.org", false},
        {"ann\r\nRCPT TO:<eve>@example.org", false},
        {"ann@example.org>", false},
        {"<ann@example.org", false},
        {"\"ann\"@example.org", false},
        {"ann,eve@example.org", false},
        {"änn@example.org", false},
        {"ann@bücher.example", false},
        {"ann@[127.0.0.1]", false},
        {"ann@exa_mple.org", false},
        {"0123456789012345678901234567890123456789012345678901234567890123456789@x.org", false},
        {"a@0123456789012345678901234567890123456789012345678901234567890123456789.org", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (mail_address_valid(po_s(rows[i].text)) != rows[i].valid)
            fail_msg("%s: not %s", rows[i].text, rows[i].valid ? "valid" : "invalid");
    assert_false(mail_address_valid((po_str){"ann\0@example.org", 16}));
    assert_false(mail_address_valid((po_str){NULL, 0}));
    assert_false(mail_domain_valid((po_str){NULL, 0}));
}

// The body as its reader sees it.
static char *body_of(const char *text) {
    const char *at = strstr(text, "\r\n\r\n");
    assert_non_null(at);
    char *out = po_alloc(arena, strlen(text) + 1);
    size_t n = 0;
    for (at += 4; *at;) {
        const char *end = strstr(at, "\r\n");
        assert_non_null(end);
        assert_true(end - at <= 76);
        int got =
            EVP_DecodeBlock((unsigned char *)out + n, (const unsigned char *)at, (int)(end - at));
        assert_true(got >= 0);
        n += (size_t)got;
        at = end + 2;
    }
    return out;
}

static int lines_starting(const char *text, const char *start) {
    int n = strncmp(text, start, strlen(start)) == 0;
    const char *end = strstr(text, "\r\n\r\n");
    for (const char *at = text; (at = strstr(at, "\r\n")) && at < end; at += 2)
        n += strncmp(at + 2, start, strlen(start)) == 0;
    return n;
}

static void test_text(void **state) {
    (void)state;
    receipt one = {.message_id = po_s("<00@shop.example>"),
                   .order_id = po_s("o-1"),
                   .purpose = po_s("course"),
                   .item = po_s("Чай\r\nBcc: eve@example.org\r\n\r\nboo"),
                   .amount = {1250, {"USD", 2}},
                   .paid_at_us = 1751371200000000};
    po_str text = mail_text(arena, &one, po_s("shop@shop.example"), po_s("ann@example.org"));
    assert_int_equal(strlen(text.p), text.n);
    for (size_t i = 0; i < text.n; i++)
        assert_true((unsigned char)text.p[i] < 0x80);
    assert_int_equal(lines_starting(text.p, "Date: Tue, 01 Jul 2025 12:00:00 +0000"), 1);
    assert_int_equal(lines_starting(text.p, "From: <shop@shop.example>\r\n"), 1);
    assert_int_equal(lines_starting(text.p, "To: <ann@example.org>\r\n"), 1);
    assert_int_equal(lines_starting(text.p, "Message-ID: <00@shop.example>\r\n"), 1);
    assert_int_equal(lines_starting(text.p, "Subject: "), 1);
    assert_int_equal(lines_starting(text.p, "Bcc"), 0);
    char *body = body_of(text.p);
    assert_non_null(strstr(body, "Amount: 12.50 USD\r\n"));
    assert_non_null(strstr(body, "For: course, Чай  Bcc: eve@example.org    boo\r\n"));
    assert_non_null(strstr(body, "Order: o-1\r\n"));
    // A repeated delivery is the same mail, byte for byte.
    po_str again = mail_text(arena, &one, po_s("shop@shop.example"), po_s("ann@example.org"));
    assert_true(po_str_eq(text, again));
}

// An item of any length makes a mail: its subject is cut between two characters, its body is not.
static void test_long_item(void **state) {
    (void)state;
    enum { N = 60000 };
    char *item = po_alloc(arena, N + 1);
    for (size_t i = 0; i < N; i += 2)
        memcpy(item + i, "ü", 2);
    receipt one = {.message_id = po_s("<00@shop.example>"),
                   .order_id = po_s("o-1"),
                   .purpose = po_s("course"),
                   .item = {item, N},
                   .amount = {1250, {"USD", 2}}};
    po_str text = mail_text(arena, &one, po_s("shop@shop.example"), po_s("ann@example.org"));
    assert_true(strstr(text.p, "\r\n\r\n") - text.p < 1000);
    assert_non_null(strstr(body_of(text.p), po_str_copy(arena, one.item).p));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_are_injective),
        cmocka_unit_test(test_key_and_message_id),
        cmocka_unit_test(test_amount),
        cmocka_unit_test(test_header_text),
        cmocka_unit_test(test_long_header_text),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_long_item),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
