// libmicrohttpd takes the first of two lengths and lets chunked win over a length; here the header
// lines are walked once more and such a message is refused instead (RFC 9112, 6.1 and 6.3).
//
// Some of what a head holds never reaches the library's list of headers: a NUL ends a value, a
// folded line is lost with its header, a bare LF ends a line. Its lines are therefore also judged
// where they lie. The library parses in place: in its buffer the CR and LF after a line and the
// colon after a name have become NULs, and all else stands as it came.
#include "http/edge.h"
#include <strings.h>

// The library whose way with a head is known here; http_test.c tells when another one is installed.
static const char known_library[] = "0.9.75";

typedef struct framing {
    po_str length; // the first Content-Length
    unsigned lengths, encodings, hosts;
    bool lengths_differ, foreign_encoding, foreign_content, malformed;
} framing;

static bool is_word(po_str value, const char *word) {
    return value.n == strlen(word) && strncasecmp(value.p, word, value.n) == 0;
}

// A name such as "Content-Length " is another header to the library, and the same one to others.
static bool is_name(po_str name) {
    for (size_t i = 0; i < name.n; i++)
        if (name.p[i] <= ' ' || name.p[i] > '~' || strchr("\"(),/:;<=>?@[\\]{}", name.p[i]))
            return false;
    return name.n > 0;
}

static bool is_value(po_str value) {
    for (size_t i = 0; i < value.n; i++)
        if ((value.p[i] >= 0 && value.p[i] < ' ' && value.p[i] != '\t') || value.p[i] == 0x7f)
            return false;
    return true;
}

// Takes a text and the NULs that end it, exactly `n` of them.
static bool take_text(po_str *left, size_t n, po_str *ret_text) {
    *ret_text = (po_str){left->p, strnlen(left->p, left->n)};
    for (size_t i = 0; i < n; i++)
        if (ret_text->n + i >= left->n || left->p[ret_text->n + i])
            return false;
    left->p += ret_text->n + n;
    left->n -= ret_text->n + n;
    return true;
}

// `lines`: what follows the request line's text, to the end of the head.
static bool lines_are_plain(po_str lines) {
    po_str text;
    if (!take_text(&lines, 2, &text) || text.n)
        return false;
    while (lines.n > 2)
        if (!take_text(&lines, 1, &text) || !is_name(text) || !take_text(&lines, 2, &text))
            return false;
    return lines.n == 2 && take_text(&lines, 2, &text) && !text.n;
}

static bool head_is_plain(struct MHD_Connection *connection, const char *method,
                          const char *version) {
    if (strcmp(MHD_get_version(), known_library) != 0)
        return true;
    const char *lines = version + strlen(version);
    const char *end =
        method +
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE)->header_size;
    return end > lines && lines_are_plain((po_str){lines, (size_t)(end - lines)});
}

static enum MHD_Result see(void *cls, enum MHD_ValueKind kind, const char *key, size_t key_size,
                           const char *value, size_t value_size) {
    (void)kind;
    framing *f = cls;
    po_str name = {key, key_size}, text = po_str_trim((po_str){value, value_size});
    f->malformed |= !is_name(name) || !is_value(text);
    if (is_word(name, "content-length")) {
        f->lengths_differ |= f->lengths > 0 && !po_str_eq(f->length, text);
        f->length = text;
        f->lengths++;
    } else if (is_word(name, "transfer-encoding")) {
        // The library knows the word alone: with a blank after it, it would wait for ever.
        f->foreign_encoding |= !is_word((po_str){value, value_size}, "chunked");
        f->encodings++;
    } else if (is_word(name, "content-encoding")) {
        f->foreign_content |= !is_word(text, "identity");
    } else if (is_word(name, "host")) {
        f->hosts++;
    }
    return MHD_YES;
}

static verdict bad(const char *message) {
    return (verdict){MHD_HTTP_BAD_REQUEST, "bad_request", message};
}

verdict edge_judge(struct MHD_Connection *connection, const char *method, const char *version,
                   size_t body_limit, bool *ret_has_body, size_t *ret_length) {
    framing f = {0};
    MHD_get_connection_values_n(connection, MHD_HEADER_KIND, see, &f);
    int64_t length = 0;
    bool length_ok = f.lengths == 0 || (po_parse_i64(f.length, &length) && length >= 0);
    *ret_has_body = f.encodings > 0 || length > 0 || !length_ok;
    *ret_length = length > 0 ? (size_t)length : 0;
    if (f.malformed || f.hosts > 1 || !head_is_plain(connection, method, version))
        return bad("a malformed header");
    if (f.encodings && f.lengths)
        return bad("Transfer-Encoding and Content-Length in one message");
    if (f.encodings > 1 || f.foreign_encoding)
        return bad("the only Transfer-Encoding is chunked, once");
    if (f.encodings && strcmp(version, MHD_HTTP_VERSION_1_1) != 0)
        return bad("Transfer-Encoding needs HTTP/1.1");
    if (f.lengths_differ || !length_ok)
        return bad("Content-Length is not one number");
    if (f.foreign_content)
        return (verdict){MHD_HTTP_UNSUPPORTED_MEDIA_TYPE, "content_encoding",
                         "the only Content-Encoding is identity"};
    if ((uint64_t)length > body_limit)
        return (verdict){MHD_HTTP_CONTENT_TOO_LARGE, "too_large", "the body is over the limit"};
    return (verdict){0};
}
