// JSON on jansson's values. All of RFC 8259 is read, and nothing else (UTF-8 only, nothing after the
// value, no BOM): a text that is valid never fails because of a member that nobody reads. Members
// that are read are judged by their reader: there once (whatever the spelling of their key), of
// their type, within their range, a text without a NUL or half a surrogate pair, nested no deeper
// than 64. A number that is no integer of 64 bits is a *decimal*: its text, handed on as a JSON
// string marked by po_json_decimal() (never a double). All failures are PO_REFUSED with a short
// code ("json_syntax" of the text; "json_missing", "json_twice", "json_type", "json_range",
// "json_text", "json_depth" of a member); the message names the member, or the place, and never
// quotes the input.
#pragma once
#include "base/arena.h"
#include "base/money.h"
#include "base/str.h"
#include <jansson.h>

// A new reference owned by the caller (json_decref). The root is an object or an array. Values that
// no reader can take (see above) stand in it as marks, which are strings to jansson: look at members
// through the readers, at elements of arrays through po_json_string() and po_json_decimal().
PO_MUST_CHECK bool po_json_parse(po_str text, json_t **ret_root, po_err *err);

// Typed readers: `object` may be any json_t; NULL or JSON null counts as missing. Borrowed results
// live as long as the root. *_opt leave *ret untouched and return true when the member is missing
// or null.
PO_MUST_CHECK bool po_json_str(const json_t *object, const char *key, size_t max, po_str *ret,
                               po_err *err);
PO_MUST_CHECK bool po_json_str_opt(const json_t *object, const char *key, size_t max, po_str *ret,
                                   po_err *err);
// An id: printable ASCII, 1 to PO_ID_MAX bytes, or to `max`; the message says which.
PO_MUST_CHECK bool po_json_id_to(const json_t *object, const char *key, size_t max, po_str *ret,
                                 po_err *err);
PO_MUST_CHECK bool po_json_id(const json_t *object, const char *key, po_str *ret, po_err *err);
PO_MUST_CHECK bool po_json_id_opt(const json_t *object, const char *key, po_str *ret, po_err *err);
PO_MUST_CHECK bool po_json_i64(const json_t *object, const char *key, int64_t *ret, po_err *err);
PO_MUST_CHECK bool po_json_i64_opt(const json_t *object, const char *key, int64_t *ret,
                                   po_err *err);
// int64 written as a decimal string, as LND and proto3 JSON do.
PO_MUST_CHECK bool po_json_i64_text_opt(const json_t *object, const char *key, int64_t *ret,
                                        po_err *err);
PO_MUST_CHECK bool po_json_bool_opt(const json_t *object, const char *key, bool *ret, po_err *err);
// The object or array under key; NULL in *ret when it is missing, null or of another type.
PO_MUST_CHECK bool po_json_object(const json_t *object, const char *key, const json_t **ret,
                                  po_err *err);
PO_MUST_CHECK bool po_json_array(const json_t *object, const char *key, const json_t **ret,
                                 po_err *err);

// The text of a string (it holds no NUL), or NULL for any other value.
const char *po_json_string(const json_t *value);
// The text of a decimal as RFC 8259 has it, of any length and exponent ("-0" and integers beyond 64
// bits too), or NULL.
const char *po_json_decimal(const json_t *value);

// Compact text with sorted keys on the heap (free), decimals as they were read, other marks as null;
// the caller's json_t is not consumed.
char *po_json_text(const json_t *value);
