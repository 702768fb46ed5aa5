// Views compare as bytes, numbers and hex are read strictly: what two readers could read in two
// ways is refused.
#include "base/str.h"
#include <assert.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

bool po_str_eq(po_str a, po_str b) {
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

bool po_str_is(po_str a, const char *text) {
    return po_str_eq(a, po_s(text));
}

int po_str_cmp(po_str a, po_str b) {
    size_t least = a.n < b.n ? a.n : b.n;
    int order = least ? memcmp(a.p, b.p, least) : 0;
    return order ? order : (a.n > b.n) - (a.n < b.n);
}

static bool is_ows(char c) {
    return c == ' ' || c == '\t';
}

po_str po_str_trim(po_str s) {
    while (s.n && is_ows(s.p[0]))
        s = (po_str){s.p + 1, s.n - 1};
    while (s.n && is_ows(s.p[s.n - 1]))
        s.n--;
    return s;
}

bool po_parse_i64(po_str s, int64_t *ret_value) {
    bool negative = s.n > 0 && s.p[0] == '-';
    if (negative)
        s = (po_str){s.p + 1, s.n - 1};
    if (s.n == 0 || s.n > 19)
        return false;
    if (s.p[0] == '0' && (s.n > 1 || negative)) // also "-0", which says no more than "0" does
        return false;
    int64_t value = 0; // counts down, for the negative range is the wider one
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_sub_overflow(value, s.p[i] - '0', &value))
            return false;
    }
    if (!negative && __builtin_sub_overflow((int64_t)0, value, &value))
        return false;
    *ret_value = value;
    return true;
}

void po_hex(const void *bytes, size_t n, char *out) {
    static const char digits[] = "0123456789abcdef";
    const uint8_t *b = bytes;
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[b[i] >> 4];
        out[2 * i + 1] = digits[b[i] & 15];
    }
    out[2 * n] = '\0';
}

static int nibble(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool po_unhex(po_str s, void *out, size_t n) {
    if (s.n % 2 != 0 || s.n / 2 != n)
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (nibble(s.p[i]) < 0)
            return false;
    uint8_t *bytes = out;
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(nibble(s.p[2 * i]) << 4 | nibble(s.p[2 * i + 1]));
    return true;
}

void po_sha256(po_str s, uint8_t out[32]) {
    if (!EVP_Digest(s.n ? s.p : "", s.n, out, NULL, EVP_sha256(), NULL))
        abort();
}

bool po_is_id(po_str s, size_t max) {
    if (s.n == 0 || s.n > max)
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] < 0x21 || s.p[i] > 0x7e)
            return false;
    return true;
}

void po_buf_done(po_buf *buf) {
    free(buf->p);
    *buf = (po_buf){0};
}

// Room for n more bytes and the NUL behind them.
static void buf_reserve(po_buf *buf, size_t n) {
    if (n > SIZE_MAX / 4 - buf->n)
        abort();
    size_t need = buf->n + n + 1;
    if (need <= buf->cap)
        return;
    size_t cap = buf->cap ? buf->cap : 64;
    while (cap < need)
        cap *= 2;
    buf->p = realloc(buf->p, cap);
    if (!buf->p)
        abort();
    buf->cap = cap;
}

void po_buf_put(po_buf *buf, const void *bytes, size_t n) {
    buf_reserve(buf, n);
    if (n)
        memcpy(buf->p + buf->n, bytes, n);
    buf->n += n;
    buf->p[buf->n] = '\0';
}

void po_buf_puts(po_buf *buf, const char *text) {
    po_buf_put(buf, text, strlen(text));
}

void po_buf_printf(po_buf *buf, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    assert(n >= 0);
    buf_reserve(buf, (size_t)n);
    vsnprintf(buf->p + buf->n, (size_t)n + 1, fmt, again);
    va_end(again);
    buf->n += (size_t)n;
}
