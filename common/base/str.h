// Byte views, strict number parsing, hex, and a growable buffer. Views never own; they may hold any
// byte.
#pragma once
#include "base/err.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct po_str {
    const char *p; // may be NULL when n == 0
    size_t n;      // bytes, without a NUL
} po_str;

// A file embedded at build time: its name and its text (NUL ended). Tables end with {NULL, NULL}.
typedef struct po_file {
    const char *name;
    const char *text;
} po_file;

static inline po_str po_s(const char *text) {
    return (po_str){text, text ? strlen(text) : 0};
}
bool po_str_eq(po_str a, po_str b);
bool po_str_is(po_str a, const char *text);
int po_str_cmp(po_str a, po_str b); // bytes, then length: the order of PostgreSQL's "C" collation
po_str po_str_trim(po_str s);       // spaces and tabs on both sides (HTTP OWS)

// Decimal digits with an optional '-', no sign '+', no leading zero, no space; false when it does
// not fit.
PO_MUST_CHECK bool po_parse_i64(po_str s, int64_t *ret_value);

// Lower-case hex. `out` needs 2 * n + 1 bytes.
void po_hex(const void *bytes, size_t n, char *out);
// Exactly 2 * n hex digits, lower case only; false otherwise.
PO_MUST_CHECK bool po_unhex(po_str s, void *out, size_t n);

// SHA-256 of a view.
void po_sha256(po_str s, uint8_t out[32]);

// Printable ASCII (0x21–0x7e), 1 to max bytes: the alphabet of every id that we take from outside.
PO_MUST_CHECK bool po_is_id(po_str s, size_t max);
// The most bytes of an id where nothing says less.
#define PO_ID_MAX 255

// A growable byte buffer on the heap; appends abort when memory is out. Zero is an empty buffer.
// Once something was appended, a NUL stands behind the last byte.
typedef struct po_buf {
    char *p;
    size_t n, cap;
} po_buf;
void po_buf_done(po_buf *buf); // frees, leaves it empty
void po_buf_put(po_buf *buf, const void *bytes, size_t n);
void po_buf_puts(po_buf *buf, const char *text);
void po_buf_printf(po_buf *buf, const char *fmt, ...) PO_PRINTF(2, 3);
static inline po_str po_buf_view(const po_buf *buf) {
    return (po_str){buf->p, buf->n};
}
