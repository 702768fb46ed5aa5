// RFC 8259, all of it: whatever is valid is read, so that a member nobody reads can do no harm. The
// grammar and UTF-8 are checked everywhere; what a reader must not be given (a key's second value,
// too deep a nesting, half a character, a number beyond 64 bits) is marked in the tree and refused
// by the reader that meets it. jansson's own parser judges the whole text alike, so it cannot be
// used; its values are the tree.
//
// One loop with a stack on the heap, a byte a level: a hostile depth costs no more than its bytes.
// A level that is not built (too deep, or the value of a key that is there twice) has no parent to
// put its values into; they are checked and dropped.
#include "base/cleanup.h"
#include "json/json_impl.h"
#include <stdlib.h>

enum { DEPTH_MAX = 64 };

typedef struct parser {
    po_str text;
    size_t at;
    po_buf open;             // '{' or '[', the innermost last
    json_t *tree[DEPTH_MAX]; // borrowed; NULL: not built
    json_t *root;            // owned
    po_buf key;              // of the value that is next
    po_buf string;           // decoded
    po_err *err;
} parser;

static void parser_done(parser *p) {
    json_decref(p->root);
    po_buf_done(&p->open);
    po_buf_done(&p->key);
    po_buf_done(&p->string);
}

// Never quotes the input: it may be personal data, and texts end in logs.
static bool refuse(parser *p, const char *what) {
    return po_fail(p->err, PO_REFUSED, "json_syntax", "%s at byte %zu", what, p->at);
}

static char peek(const parser *p) {
    return p->at < p->text.n ? p->text.p[p->at] : '\0'; // a NUL is part of no token
}

static bool take(parser *p, char c) {
    if (p->at == p->text.n || p->text.p[p->at] != c)
        return false;
    p->at++;
    return true;
}

static void skip_space(parser *p) {
    while (peek(p) == ' ' || peek(p) == '\t' || peek(p) == '\n' || peek(p) == '\r')
        p->at++;
}

// ---- the tree ----

static json_t *made(json_t *value) {
    if (!value)
        abort(); // out of memory
    return value;
}

static json_t *mark(const char text[3]) {
    return made(json_stringn_nocheck(text, 2));
}

static json_t *parent(const parser *p) {
    return p->open.n && p->open.n <= DEPTH_MAX ? p->tree[p->open.n - 1] : NULL;
}

// Takes the value over; false when it is not to be found in the tree.
static bool place(parser *p, json_t *value) {
    json_t *into = parent(p);
    bool stays = into || p->open.n == 0, fine = true;
    if (p->open.n == 0) {
        p->root = value;
    } else if (!into) {
        json_decref(value);
    } else if (json_is_array(into)) {
        fine = json_array_append_new(into, value) == 0;
    } else {
        stays = !json_object_get(into, p->key.p);
        if (!stays) {
            json_decref(value);
            value = mark(PO_JSON_TWICE);
        }
        fine = json_object_set_new_nocheck(into, p->key.p, value) == 0;
    }
    if (!fine)
        abort(); // out of memory
    return stays;
}

// ---- strings ----

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Four hex digits after `\u`.
static bool read_unit(parser *p, unsigned *ret) {
    unsigned unit = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(peek(p));
        if (digit < 0)
            return false;
        unit = unit << 4 | (unsigned)digit;
        p->at++;
    }
    *ret = unit;
    return true;
}

static void put_utf8(po_buf *out, unsigned c) {
    char bytes[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        bytes[i] = (char)(0x80 | (c & 0x3f));
    static const unsigned lead[] = {0, 0xc0, 0xe0, 0xf0};
    bytes[0] = (char)(lead[n - 1] | c);
    po_buf_put(out, bytes, n);
}

static bool is_high(unsigned unit) {
    return unit >= 0xd800 && unit <= 0xdbff;
}

static bool is_low(unsigned unit) {
    return unit >= 0xdc00 && unit <= 0xdfff;
}

// After `\u`: a character, or two of them, of which the first is half a pair.
static bool read_unicode(parser *p, po_buf *out, bool *whole) {
    unsigned unit, next = 0;
    if (!read_unit(p, &unit))
        return false;
    if (is_high(unit) && p->text.n - p->at >= 2 && memcmp(p->text.p + p->at, "\\u", 2) == 0) {
        size_t at = p->at;
        p->at += 2;
        if (!read_unit(p, &next))
            return false;
        if (is_low(next))
            unit = 0x10000 + ((unit - 0xd800) << 10) + (next - 0xdc00);
        else
            p->at = at; // another one of its own
    }
    if (unit == 0 || is_high(unit) || is_low(unit))
        *whole = false;
    else
        put_utf8(out, unit);
    return true;
}

static bool read_escape(parser *p, po_buf *out, bool *whole) {
    static const char names[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    char c = peek(p);
    p->at++;
    if (c == 'u')
        return read_unicode(p, out, whole);
    const char *name = c ? strchr(names, c) : NULL;
    if (name)
        po_buf_put(out, &bytes[name - names], 1);
    return name != NULL;
}

// Well-formed as the Unicode standard has it: no longer spelling, no surrogate, none above U+10FFFF.
static bool is_utf8(po_str s) {
    for (size_t i = 0; i < s.n;) {
        uint8_t c = (uint8_t)s.p[i++], low = 0x80, high = 0xbf;
        size_t more = c < 0x80 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
        if ((c >= 0x80 && c < 0xc2) || c > 0xf4 || s.n - i < more)
            return false;
        low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : low;
        high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : high;
        for (; more; more--, low = 0x80, high = 0xbf) {
            uint8_t next = (uint8_t)s.p[i++];
            if (next < low || next > high)
                return false;
        }
    }
    return true;
}

// The string whose opening quote is next, decoded into `out`. *ret_whole: it can be told as it is.
static bool read_string(parser *p, po_buf *out, bool *ret_whole) {
    out->n = 0;
    po_buf_puts(out, ""); // a NUL stands after nothing, too
    *ret_whole = true;
    if (!take(p, '"'))
        return refuse(p, "no string");
    for (;;) {
        size_t from = p->at;
        while (p->at < p->text.n && (uint8_t)p->text.p[p->at] >= 0x20 && peek(p) != '"' &&
               peek(p) != '\\')
            p->at++;
        po_str run = {p->text.p + from, p->at - from};
        if (!is_utf8(run))
            return refuse(p, "not UTF-8");
        po_buf_put(out, run.p, run.n);
        if (take(p, '"'))
            return true;
        if (!take(p, '\\'))
            return refuse(p, "a string that does not end, or a control character");
        if (!read_escape(p, out, ret_whole))
            return refuse(p, "no such escape");
    }
}

static bool read_text(parser *p) {
    bool whole;
    if (!read_string(p, &p->string, &whole))
        return false;
    place(p, whole ? made(json_stringn_nocheck(p->string.p, p->string.n)) : mark(PO_JSON_TEXT));
    return true;
}

// A key that cannot be told is nobody's: none that is read has such a name.
static bool read_key(parser *p) {
    bool whole;
    skip_space(p);
    if (!read_string(p, &p->key, &whole))
        return false;
    if (!whole) {
        p->key.n = 0;
        po_buf_puts(&p->key, "\xef\xbf\xbd");
    }
    skip_space(p);
    return take(p, ':') || refuse(p, "no ':'");
}

// ---- numbers and words ----

static size_t read_digits(parser *p) {
    size_t n = 0;
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        n++;
    return n;
}

// An integer of 64 bits is one; any other number is kept as its text.
static bool read_number(parser *p) {
    size_t from = p->at;
    take(p, '-');
    if (!take(p, '0') && read_digits(p) == 0)
        return refuse(p, "no value");
    if (take(p, '.') && read_digits(p) == 0)
        return refuse(p, "a malformed number");
    if (take(p, 'e') || take(p, 'E')) {
        (void)(take(p, '-') || take(p, '+'));
        if (read_digits(p) == 0)
            return refuse(p, "a malformed number");
    }
    po_str number = {p->text.p + from, p->at - from};
    int64_t value;
    if (po_parse_i64(number, &value)) {
        place(p, made(json_integer(value)));
        return true;
    }
    p->string.n = 0;
    po_buf_put(&p->string, "", 1);
    po_buf_put(&p->string, number.p, number.n);
    place(p, made(json_stringn_nocheck(p->string.p, p->string.n)));
    return true;
}

static bool read_word(parser *p, const char *word, json_t *value) {
    size_t n = strlen(word);
    if (p->text.n - p->at < n || memcmp(p->text.p + p->at, word, n) != 0)
        return refuse(p, "no value");
    p->at += n;
    place(p, value);
    return true;
}

// ---- the loop ----

// An object or array begins; *ret_whole: it ends at once.
static bool read_open(parser *p, char c, bool *ret_whole) {
    bool deep = p->open.n >= DEPTH_MAX;
    json_t *value = deep ? mark(PO_JSON_DEEP) : c == '{' ? made(json_object()) : made(json_array());
    bool built = place(p, value) && !deep;
    if (!deep)
        p->tree[p->open.n] = built ? value : NULL;
    po_buf_put(&p->open, &c, 1);
    p->at++;
    skip_space(p);
    *ret_whole = take(p, c == '{' ? '}' : ']');
    if (*ret_whole)
        p->open.n--;
    return *ret_whole || c == '[' || read_key(p);
}

static bool read_value(parser *p, bool *ret_whole) {
    *ret_whole = true;
    skip_space(p);
    switch (peek(p)) {
    case '{':
    case '[':
        return read_open(p, peek(p), ret_whole);
    case '"':
        return read_text(p);
    case 't':
        return read_word(p, "true", json_true());
    case 'f':
        return read_word(p, "false", json_false());
    case 'n':
        return read_word(p, "null", json_null());
    default:
        return read_number(p);
    }
}

// After a whole value: on to the next one, or out of all that end here.
static bool read_on(parser *p) {
    while (p->open.n) {
        char in = p->open.p[p->open.n - 1];
        skip_space(p);
        if (take(p, in == '{' ? '}' : ']')) {
            p->open.n--;
            continue;
        }
        if (!take(p, ','))
            return refuse(p, "neither ',' nor an end");
        return in == '[' || read_key(p);
    }
    return true;
}

bool po_json_parse(po_str text, json_t **ret_root, po_err *err) {
    PO_AUTO(parser_done) parser p = {.text = text, .err = err};
    bool whole;
    skip_space(&p);
    if (peek(&p) != '{' && peek(&p) != '[')
        return refuse(&p, "neither an object nor an array");
    do {
        if (!read_value(&p, &whole) || (whole && !read_on(&p)))
            return false;
    } while (p.open.n);
    skip_space(&p);
    if (p.at < text.n)
        return refuse(&p, "something after the value");
    *ret_root = po_take(&p.root);
    return true;
}
