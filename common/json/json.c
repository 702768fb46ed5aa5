// jansson reads 64-bit integers exactly but turns every other number into a double. So the text is
// scanned first: a number with a fraction or an exponent is rewritten as a string that begins with
// a NUL, which is how po_json_decimal() knows it. No other string can hold a NUL, for the scan
// refuses them. The scan also counts the depth, before jansson recurses; all else that is wrong
// with the text is left to jansson. Error texts never quote the input: it may be personal data, and
// texts end in logs.
#include "json/json.h"
#include "base/cleanup.h"
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

enum { DEPTH_MAX = 64, NUMBER_MAX = 64, EXPONENT_MAX = 308 };
#define NUL_ESCAPE "\\u0000"

// ---- the scan ----

typedef struct scanner {
    po_str text;
    size_t at;
    size_t copied; // bytes of text that stand in `out`, when anything was rewritten
    po_buf out;
    int depth;
} scanner;

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool refuse(po_err *err, const char *code, const char *what, size_t at) {
    return po_fail(err, PO_REFUSED, code, "%s at byte %zu", what, at);
}

// Skips the string whose opening quote is at `at`; an unended one is jansson's to refuse.
static bool scan_string(scanner *s, po_err *err) {
    const char *p = s->text.p;
    for (s->at++; s->at < s->text.n && p[s->at] != '"'; s->at++) {
        if (p[s->at] != '\\')
            continue;
        if (s->text.n - s->at >= 6 && memcmp(p + s->at, NUL_ESCAPE, 6) == 0)
            return refuse(err, "json_syntax", "a NUL in a string", s->at);
        s->at++;
    }
    s->at++;
    return true;
}

static size_t digits_from(po_str s, size_t at) {
    size_t n = 0;
    while (at + n < s.n && is_digit(s.p[at + n]))
        n++;
    return n;
}

// The grammar of RFC 8259 for a number that has a fraction or an exponent; ret_exponent as written.
static bool is_decimal(po_str s, int64_t *ret_exponent) {
    size_t at = s.n && s.p[0] == '-', whole = digits_from(s, at), n;
    if (whole == 0 || (whole > 1 && s.p[at] == '0'))
        return false;
    at += whole;
    if (at < s.n && s.p[at] == '.') {
        n = digits_from(s, at + 1);
        if (n == 0)
            return false;
        at += 1 + n;
    }
    *ret_exponent = 0;
    if (at < s.n && (s.p[at] == 'e' || s.p[at] == 'E')) {
        at++;
        at += at < s.n && (s.p[at] == '+' || s.p[at] == '-');
        n = digits_from(s, at);
        if (n == 0)
            return false;
        for (size_t i = at; i < at + n && *ret_exponent <= EXPONENT_MAX; i++)
            *ret_exponent = *ret_exponent * 10 + (s.p[i] - '0');
        at += n;
    }
    return at == s.n;
}

static void rewrite(scanner *s, po_str number, size_t from) {
    po_buf_put(&s->out, s->text.p + s->copied, from - s->copied);
    po_buf_puts(&s->out, "\"" NUL_ESCAPE);
    po_buf_put(&s->out, number.p, number.n);
    po_buf_puts(&s->out, "\"");
    s->copied = from + number.n;
}

static bool scan_number(scanner *s, po_err *err) {
    size_t from = s->at;
    bool decimal = false;
    for (; s->at < s->text.n; s->at++) {
        char c = s->text.p[s->at];
        bool mark = c == '.' || c == 'e' || c == 'E';
        if (!is_digit(c) && c != '-' && c != '+' && !mark)
            break;
        decimal |= mark;
    }
    po_str number = {s->text.p + from, s->at - from};
    int64_t exponent;
    if (po_str_is(number, "-0")) // two readers may disagree on its sign
        return refuse(err, "json_range", "a negative zero", from);
    if (!decimal)
        return true;
    if (!is_decimal(number, &exponent))
        return refuse(err, "json_syntax", "a malformed number", from);
    if (number.n > NUMBER_MAX || exponent > EXPONENT_MAX)
        return refuse(err, "json_range", "a number out of range", from);
    rewrite(s, number, from);
    return true;
}

static bool scan(scanner *s, po_err *err) {
    while (s->at < s->text.n) {
        char c = s->text.p[s->at];
        if (c == '"') {
            if (!scan_string(s, err))
                return false;
        } else if (is_digit(c) || c == '-' || c == '+' || c == '.') {
            if (!scan_number(s, err))
                return false;
        } else {
            s->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            if (s->depth > DEPTH_MAX)
                return refuse(err, "json_depth", "nested too deeply", s->at);
            s->at++;
        }
    }
    if (s->copied)
        po_buf_put(&s->out, s->text.p + s->copied, s->text.n - s->copied);
    return true;
}

// ---- parsing ----

static bool refuse_parse(const json_error_t *error, po_err *err) {
    switch (json_error_code(error)) {
    case json_error_numeric_overflow:
        return po_fail(err, PO_REFUSED, "json_range", "an integer does not fit 64 bits, line %d",
                       error->line);
    case json_error_duplicate_key:
        return po_fail(err, PO_REFUSED, "json_syntax", "a key appears twice, line %d", error->line);
    case json_error_invalid_utf8:
        return po_fail(err, PO_REFUSED, "json_syntax", "not UTF-8, line %d", error->line);
    case json_error_end_of_input_expected:
        return po_fail(err, PO_REFUSED, "json_syntax", "something behind the value, line %d",
                       error->line);
    default:
        return po_fail(err, PO_REFUSED, "json_syntax", "not JSON, line %d", error->line);
    }
}

static void scanner_done(scanner *s) {
    po_buf_done(&s->out);
}

bool po_json_parse(po_str text, json_t **ret_root, po_err *err) {
    PO_AUTO(scanner_done) scanner s = {.text = text};
    if (!scan(&s, err))
        return false;
    po_str clean = s.copied ? po_buf_view(&s.out) : text;
    json_error_t error;
    json_t *root = json_loadb(clean.n ? clean.p : "", clean.n,
                              JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!root)
        return refuse_parse(&error, err);
    *ret_root = root;
    return true;
}

// ---- typed readers ----

const char *po_json_decimal(const json_t *value) {
    if (!json_is_string(value) || json_string_length(value) == 0 || json_string_value(value)[0])
        return NULL;
    return json_string_value(value) + 1;
}

static const json_t *member(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static bool missing(const char *key, po_err *err) {
    return po_fail(err, PO_REFUSED, "json_missing", "%s is missing", key);
}

static bool wrong_type(const char *key, const char *wanted, po_err *err) {
    return po_fail(err, PO_REFUSED, "json_type", "%s is not %s", key, wanted);
}

bool po_json_str_opt(const json_t *object, const char *key, size_t max, po_str *ret, po_err *err) {
    const json_t *value = member(object, key);
    if (!value)
        return true;
    if (!json_is_string(value) || po_json_decimal(value))
        return wrong_type(key, "a string", err);
    if (json_string_length(value) > max)
        return po_fail(err, PO_REFUSED, "json_range", "%s is longer than %zu bytes", key, max);
    *ret = (po_str){json_string_value(value), json_string_length(value)};
    return true;
}

bool po_json_str(const json_t *object, const char *key, size_t max, po_str *ret, po_err *err) {
    return member(object, key) ? po_json_str_opt(object, key, max, ret, err) : missing(key, err);
}

bool po_json_id_opt(const json_t *object, const char *key, po_str *ret, po_err *err) {
    enum { ID_MAX = 255 };
    po_str id = {0};
    if (!member(object, key))
        return true;
    if (!po_json_str_opt(object, key, SIZE_MAX, &id, err))
        return false;
    if (!po_is_id(id, ID_MAX))
        return po_fail(err, PO_REFUSED, "json_range",
                       "%s is not an id of 1 to %d printable ASCII characters", key, ID_MAX);
    *ret = id;
    return true;
}

bool po_json_id(const json_t *object, const char *key, po_str *ret, po_err *err) {
    return member(object, key) ? po_json_id_opt(object, key, ret, err) : missing(key, err);
}

bool po_json_i64_opt(const json_t *object, const char *key, int64_t *ret, po_err *err) {
    const json_t *value = member(object, key);
    if (!value)
        return true;
    if (!json_is_integer(value))
        return wrong_type(key, "an integer", err);
    *ret = json_integer_value(value);
    return true;
}

bool po_json_i64(const json_t *object, const char *key, int64_t *ret, po_err *err) {
    return member(object, key) ? po_json_i64_opt(object, key, ret, err) : missing(key, err);
}

bool po_json_i64_text_opt(const json_t *object, const char *key, int64_t *ret, po_err *err) {
    const json_t *value = member(object, key);
    if (!value)
        return true;
    if (!json_is_string(value) || po_json_decimal(value))
        return wrong_type(key, "an integer written as a string", err);
    if (!po_parse_i64((po_str){json_string_value(value), json_string_length(value)}, ret))
        return po_fail(err, PO_REFUSED, "json_range", "%s is not a 64-bit integer", key);
    return true;
}

bool po_json_bool_opt(const json_t *object, const char *key, bool *ret, po_err *err) {
    const json_t *value = member(object, key);
    if (!value)
        return true;
    if (!json_is_boolean(value))
        return wrong_type(key, "true or false", err);
    *ret = json_is_true(value);
    return true;
}

json_t *po_json_object(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    return json_is_object(value) ? value : NULL;
}

json_t *po_json_array(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    return json_is_array(value) ? value : NULL;
}

// ---- printing ----

// Turns the marked strings of decimals back into numbers, in place. In compact output a quote that
// is not part of a string's inside opens or closes one, so strings are walked to keep count.
static void restore_decimals(char *text) {
    static const char mark[] = "\"" NUL_ESCAPE;
    char *out = text;
    for (const char *in = text; *in;) {
        if (*in != '"') {
            *out++ = *in++;
            continue;
        }
        bool decimal = strncmp(in, mark, sizeof mark - 1) == 0;
        if (decimal)
            in += sizeof mark - 1;
        else
            *out++ = *in++;
        while (*in != '"') {
            if (*in == '\\')
                *out++ = *in++;
            *out++ = *in++;
        }
        in++;
        if (!decimal)
            *out++ = '"';
    }
    *out = '\0';
}

char *po_json_text(const json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    assert(text); // jansson keeps no text that it cannot print
    restore_decimals(text);
    return text;
}
