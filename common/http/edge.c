// libmicrohttpd takes the first of two lengths and lets chunked win over a length; here the header
// lines are walked once more and such a message is refused instead (RFC 9112, 6.1 and 6.3).
#include "http/edge.h"
#include <strings.h>

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
        f->foreign_encoding |= !is_word(text, "chunked");
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

verdict edge_judge(struct MHD_Connection *connection, const char *version, size_t body_limit,
                   bool *ret_has_body) {
    framing f = {0};
    MHD_get_connection_values_n(connection, MHD_HEADER_KIND, see, &f);
    int64_t length = 0;
    bool length_ok = f.lengths == 0 || (po_parse_i64(f.length, &length) && length >= 0);
    *ret_has_body = f.encodings > 0 || length > 0 || !length_ok;
    if (f.malformed || f.hosts > 1)
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
