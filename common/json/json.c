// The readers judge what they meet: a member is there once, of its type and within its range, or it
// is refused under its name. Marks (json_impl.h) are of no type.
#include "json/json_impl.h"
#include <assert.h>
#include <stdlib.h>

// ---- typed readers ----

const char *po_json_decimal(const json_t *value) {
    const char *text = json_string_value(value);
    bool number = text && !text[0] && json_string_length(value) > 0 &&
                  (text[1] == '-' || (text[1] >= '0' && text[1] <= '9'));
    return number ? text + 1 : NULL;
}

const char *po_json_string(const json_t *value) {
    const char *text = json_string_value(value);
    return text && (json_string_length(value) == 0 || *text) ? text : NULL;
}

// NULL in *ret when it is missing or null.
static bool member(const json_t *object, const char *key, const json_t **ret, po_err *err) {
    const json_t *value = json_object_get(object, key);
    if (po_json_is_mark(value, PO_JSON_TWICE))
        return po_fail(err, PO_REFUSED, "json_twice", "%s is there more than once", key);
    if (po_json_is_mark(value, PO_JSON_DEEP))
        return po_fail(err, PO_REFUSED, "json_depth", "%s is nested too deeply", key);
    *ret = json_is_null(value) ? NULL : value;
    return true;
}

static bool missing(const char *key, po_err *err) {
    return po_fail(err, PO_REFUSED, "json_missing", "%s is missing", key);
}

static bool wrong_type(const char *key, const char *wanted, po_err *err) {
    return po_fail(err, PO_REFUSED, "json_type", "%s is not %s", key, wanted);
}

// A string of the member, NULL in *ret when it is missing or null.
static bool text_member(const json_t *object, const char *key, const char *wanted, po_str *ret,
                        po_err *err) {
    const json_t *value = NULL;
    if (!member(object, key, &value, err))
        return false;
    if (po_json_is_mark(value, PO_JSON_TEXT))
        return po_fail(err, PO_REFUSED, "json_text", "%s holds a NUL or half a character", key);
    if (value && !po_json_string(value))
        return wrong_type(key, wanted, err);
    *ret = (po_str){json_string_value(value), json_string_length(value)};
    return true;
}

bool po_json_str_opt(const json_t *object, const char *key, size_t max, po_str *ret, po_err *err) {
    po_str text;
    if (!text_member(object, key, "a string", &text, err))
        return false;
    if (text.n > max)
        return po_fail(err, PO_REFUSED, "json_range", "%s is longer than %zu bytes", key, max);
    if (text.p)
        *ret = text;
    return true;
}

static bool is_there(const json_t *object, const char *key, po_err *err) {
    const json_t *value = NULL;
    return member(object, key, &value, err) && (value || missing(key, err));
}

bool po_json_str(const json_t *object, const char *key, size_t max, po_str *ret, po_err *err) {
    return is_there(object, key, err) && po_json_str_opt(object, key, max, ret, err);
}

static bool read_id(const json_t *object, const char *key, size_t max, po_str *ret, po_err *err) {
    po_str id;
    if (!text_member(object, key, "a string", &id, err))
        return false;
    if (id.p && !po_is_id(id, max))
        return po_fail(err, PO_REFUSED, "json_range",
                       "%s is not an id of 1 to %zu printable ASCII characters", key, max);
    if (id.p)
        *ret = id;
    return true;
}

bool po_json_id_opt(const json_t *object, const char *key, po_str *ret, po_err *err) {
    return read_id(object, key, PO_ID_MAX, ret, err);
}

bool po_json_id_to(const json_t *object, const char *key, size_t max, po_str *ret, po_err *err) {
    return is_there(object, key, err) && read_id(object, key, max, ret, err);
}

bool po_json_id(const json_t *object, const char *key, po_str *ret, po_err *err) {
    return po_json_id_to(object, key, PO_ID_MAX, ret, err);
}

static bool beyond_64_bits(const char *key, po_err *err) {
    return po_fail(err, PO_REFUSED, "json_range", "%s is not a 64-bit integer", key);
}

bool po_json_i64_opt(const json_t *object, const char *key, int64_t *ret, po_err *err) {
    const json_t *value = NULL;
    if (!member(object, key, &value, err))
        return false;
    const char *decimal = po_json_decimal(value);
    if (decimal && !strpbrk(decimal, ".eE"))
        return beyond_64_bits(key, err);
    if (value && !json_is_integer(value))
        return wrong_type(key, "an integer", err);
    if (value)
        *ret = json_integer_value(value);
    return true;
}

bool po_json_i64(const json_t *object, const char *key, int64_t *ret, po_err *err) {
    return is_there(object, key, err) && po_json_i64_opt(object, key, ret, err);
}

bool po_json_i64_text_opt(const json_t *object, const char *key, int64_t *ret, po_err *err) {
    po_str text;
    return text_member(object, key, "an integer written as a string", &text, err) &&
           (!text.p || po_parse_i64(text, ret) || beyond_64_bits(key, err));
}

bool po_json_bool_opt(const json_t *object, const char *key, bool *ret, po_err *err) {
    const json_t *value = NULL;
    if (!member(object, key, &value, err))
        return false;
    if (value && !json_is_boolean(value))
        return wrong_type(key, "true or false", err);
    if (value)
        *ret = json_is_true(value);
    return true;
}

bool po_json_object(const json_t *object, const char *key, const json_t **ret, po_err *err) {
    const json_t *value = NULL;
    if (!member(object, key, &value, err))
        return false;
    *ret = json_is_object(value) ? value : NULL;
    return true;
}

bool po_json_array(const json_t *object, const char *key, const json_t **ret, po_err *err) {
    const json_t *value = NULL;
    if (!member(object, key, &value, err))
        return false;
    *ret = json_is_array(value) ? value : NULL;
    return true;
}

// ---- printing ----

#define NUL_ESCAPE "\\u0000"

// Turns the marks of decimals back into numbers, in place; the other marks are no value to hand on
// and become null. In compact output a quote that is not part of a string's inside opens or closes
// one, so strings are walked to keep count.
static void restore_marks(char *text) {
    static const char mark[] = "\"" NUL_ESCAPE;
    char *out = text;
    for (const char *in = text; *in;) {
        if (*in != '"') {
            *out++ = *in++;
            continue;
        }
        bool marked = strncmp(in, mark, sizeof mark - 1) == 0;
        if (marked)
            in += sizeof mark - 1;
        else
            *out++ = *in++;
        if (marked && *in >= 'a') {
            memcpy(out, "null", 4);
            out += 4;
            in++;
        }
        while (*in != '"') {
            if (*in == '\\')
                *out++ = *in++;
            *out++ = *in++;
        }
        in++;
        if (!marked)
            *out++ = '"';
    }
    *out = '\0';
}

char *po_json_text(const json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    assert(text); // jansson keeps no text that it cannot print
    restore_marks(text);
    return text;
}
