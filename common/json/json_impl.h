// What the parser leaves in the tree for the readers, and nobody else needs.
#pragma once
#include "json/json.h"

// A string that begins with a NUL is none: it stands for what jansson has no value for. A real
// string never begins so, since one that holds a NUL is itself such a mark. Behind the NUL stands
// the text of a number, or one of these.
#define PO_JSON_TWICE "\0t" // the object has this key more than once
#define PO_JSON_DEEP "\0d"  // an object or array nested too deeply
#define PO_JSON_TEXT "\0s"  // a string that holds a NUL or half a surrogate pair

static inline bool po_json_is_mark(const json_t *value, const char mark[3]) {
    return json_is_string(value) && json_string_length(value) == 2 &&
           memcmp(json_string_value(value), mark, 2) == 0;
}
