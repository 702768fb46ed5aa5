// The text of a receipt. Whatever comes from an event is either checked (addresses) or encoded (subject, body),
// so no value can add a header, a recipient or a command. The body travels as base64: pure ASCII in short lines,
// which no server on the way has a reason to touch.
#define _GNU_SOURCE // memmem, memrchr
#include "mail.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <time.h>

po_str mail_key(po_arena *arena, po_str purpose, po_str order_id) {
    return po_s(po_printf(arena, "payment_receipt:%.*s:%.*s", (int)purpose.n, purpose.p,
                          (int)order_id.n, order_id.p));
}

po_str mail_message_id(po_arena *arena, po_str key, const char *domain) {
    uint8_t digest[32];
    char hex[33];
    po_sha256(key, digest);
    po_hex(digest, 16, hex);
    return po_s(po_printf(arena, "<%s@%s>", hex, domain));
}

po_str mail_amount(po_arena *arena, po_money amount) {
    uint64_t minor = amount.minor < 0 ? 0 - (uint64_t)amount.minor : (uint64_t)amount.minor;
    uint64_t scale = 1;
    for (int i = 0; i < amount.unit.exponent; i++)
        scale *= 10;
    const char *sign = amount.minor < 0 ? "-" : "";
    const char *currency = amount.unit.currency;
    if (scale == 1)
        return po_s(po_printf(arena, "%s%" PRIu64 " %s", sign, minor, currency));
    return po_s(po_printf(arena, "%s%" PRIu64 ".%0*" PRIu64 " %s", sign, minor / scale,
                          amount.unit.exponent, minor % scale, currency));
}

static po_str base64(po_arena *arena, po_str bytes) {
    char *out = po_alloc(arena, (bytes.n + 2) / 3 * 4 + 1);
    int n = EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)bytes.p, (int)bytes.n);
    return (po_str){out, (size_t)n};
}

// The text with a space for each control character.
static po_str printable(po_arena *arena, po_str text) {
    char *out = po_alloc(arena, text.n + 1);
    for (size_t i = 0; i < text.n; i++)
        out[i] = (unsigned char)text.p[i] < 0x20 || text.p[i] == 0x7f ? ' ' : text.p[i];
    return (po_str){out, text.n};
}

// The most bytes ≤ max that end between two characters of UTF-8.
static size_t whole_characters(po_str text, size_t max) {
    if (text.n <= max)
        return text.n;
    size_t n = max;
    while (n > 0 && ((unsigned char)text.p[n] & 0xc0) == 0x80)
        n--;
    return n ? n : max; // not UTF-8 at all
}

po_str mail_header_text(po_arena *arena, po_str text) {
    enum {
        PLAIN_MAX = 60,
        WORD_MAX = 36
    }; // a word and the longest header name stay under 76 columns
    text = printable(arena, text);
    bool plain = text.n <= PLAIN_MAX && !memmem(text.p, text.n, "=?", 2);
    for (size_t i = 0; i < text.n; i++)
        plain = plain && (unsigned char)text.p[i] < 0x80;
    if (plain)
        return text;
    const char *words = "";
    for (size_t at = 0, n; at < text.n; at += n) {
        n = whole_characters((po_str){text.p + at, text.n - at}, WORD_MAX);
        po_str word = base64(arena, (po_str){text.p + at, n});
        words = po_printf(arena, "%s%s=?UTF-8?B?%s?=", words, at ? "\r\n " : "", word.p);
    }
    return po_s(words);
}

static bool is_letter_or_digit(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Non-empty runs of allowed characters between single dots.
static bool dotted(po_str text, const char *also_allowed) {
    bool after_dot = true;
    for (size_t i = 0; i < text.n; i++) {
        char c = text.p[i];
        if (c == '.' ? after_dot : !is_letter_or_digit(c) && (c == 0 || !strchr(also_allowed, c)))
            return false;
        after_dot = c == '.';
    }
    return !after_dot;
}

bool mail_domain_valid(po_str domain) {
    if (domain.n == 0 || domain.n > 253 || !dotted(domain, "-"))
        return false;
    size_t label = 0;
    for (size_t i = 0; i <= domain.n; i++) {
        if (i < domain.n && domain.p[i] != '.')
            continue;
        if (i - label > 63 || domain.p[label] == '-' || domain.p[i - 1] == '-')
            return false;
        label = i + 1;
    }
    return true;
}

bool mail_address_valid(po_str address) {
    const char *at = address.n ? memrchr(address.p, '@', address.n) : NULL;
    if (!at || address.n > 254)
        return false;
    po_str local = {address.p, (size_t)(at - address.p)};
    po_str domain = {at + 1, address.n - local.n - 1};
    return local.n <= 64 && dotted(local, "!#$%&'*+-/=?^_`{|}~") && mail_domain_valid(domain);
}

static po_str body_text(po_arena *arena, const receipt *one) {
    po_str item = printable(arena, one->item), order = printable(arena, one->order_id),
           purpose = printable(arena, one->purpose);
    return po_s(po_printf(arena,
                          "Thank you. Your payment has been received.\r\n\r\n"
                          "Amount: %s\r\nFor: %.*s, %.*s\r\nOrder: %.*s\r\n\r\n"
                          "This message confirms the payment alone; what was bought is confirmed "
                          "separately.\r\n",
                          mail_amount(arena, one->amount).p, (int)purpose.n, purpose.p, (int)item.n,
                          item.p, (int)order.n, order.p));
}

po_str mail_text(po_arena *arena, const receipt *one, po_str from, po_str to) {
    enum {
        LINE = 57,      // bytes that make a line of 76 base64 digits
        ITEM_MAX = 200, // in the subject, which servers bound; the body names the whole
    };
    char date[64];
    struct tm tm;
    time_t seconds = (time_t)(one->paid_at_us / 1000000);
    gmtime_r(&seconds, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S +0000",
             &tm); // the C locale: never set otherwise

    po_buf out = {0};
    int item = (int)whole_characters(one->item, ITEM_MAX);
    po_str subject = mail_header_text(
        arena, po_s(po_printf(arena, "Payment received: %.*s", item, one->item.p)));
    po_buf_printf(
        &out,
        "Date: %s\r\nFrom: <%.*s>\r\nTo: <%.*s>\r\nMessage-ID: %.*s\r\nSubject: %.*s\r\n"
        "Auto-Submitted: auto-generated\r\nMIME-Version: 1.0\r\n"
        "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\n",
        date, (int)from.n, from.p, (int)to.n, to.p, (int)one->message_id.n, one->message_id.p,
        (int)subject.n, subject.p);
    po_str body = body_text(arena, one);
    for (size_t at = 0; at < body.n; at += LINE) {
        size_t n = body.n - at < LINE ? body.n - at : LINE;
        po_str line = base64(arena, (po_str){body.p + at, n});
        po_buf_put(&out, line.p, line.n);
        po_buf_puts(&out, "\r\n");
    }
    po_str text = po_str_copy(arena, po_buf_view(&out));
    po_buf_done(&out);
    return text;
}
