// Strict JSON reading on jansson: duplicate keys refused, depth ≤ 64, UTF-8 only, 64-bit integers,
// no NUL in strings, nothing behind the value, no BOM. A number with a fraction or an exponent
// becomes a *decimal*: its text, handed on as a JSON string marked by po_json_decimal() (never a
// double). All failures are PO_REFUSED with a short code ("json_syntax", "json_depth",
// "json_missing", "json_type", "json_range"); the text names the member, or the place, and never
// quotes the input.
#pragma once
#include "base/arena.h"
#include "base/money.h"
#include "base/str.h"
#include <jansson.h>

// A new reference owned by the caller (json_decref). The root is an object or an array. "-0", a
// number of more than 64 characters and an exponent above 308 are refused (json_range).
PO_MUST_CHECK bool po_json_parse(po_str text, json_t **ret_root, po_err *err);

// Typed readers: `object` may be any json_t; NULL or JSON null counts as missing. Borrowed results
// live as long as the root. *_opt leave *ret untouched and return true when the member is missing
// or null.
PO_MUST_CHECK bool po_json_str(const json_t *object, const char *key, size_t max, po_str *ret,
                               po_err *err);
PO_MUST_CHECK bool po_json_str_opt(const json_t *object, const char *key, size_t max, po_str *ret,
                                   po_err *err);
// An id: printable ASCII, ≤ 255 bytes.
PO_MUST_CHECK bool po_json_id(const json_t *object, const char *key, po_str *ret, po_err *err);
PO_MUST_CHECK bool po_json_id_opt(const json_t *object, const char *key, po_str *ret, po_err *err);
PO_MUST_CHECK bool po_json_i64(const json_t *object, const char *key, int64_t *ret, po_err *err);
PO_MUST_CHECK bool po_json_i64_opt(const json_t *object, const char *key, int64_t *ret,
                                   po_err *err);
// int64 written as a decimal string, as LND and proto3 JSON do.
PO_MUST_CHECK bool po_json_i64_text_opt(const json_t *object, const char *key, int64_t *ret,
                                        po_err *err);
PO_MUST_CHECK bool po_json_bool_opt(const json_t *object, const char *key, bool *ret, po_err *err);
// The object or array under key, NULL when missing, null or of another type.
json_t *po_json_object(const json_t *object, const char *key);
json_t *po_json_array(const json_t *object, const char *key);

// The text of a decimal (valid for any number that was not a plain integer), or NULL.
const char *po_json_decimal(const json_t *value);

// Compact text with sorted keys on the heap (free), decimals as they were read; the caller's json_t
// is not consumed.
char *po_json_text(const json_t *value);
