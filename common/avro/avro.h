// Avro binary for flat records, resolved by name (Avro 1.11 "Schema Resolution"): reader defaults
// apply, enum symbols map by name (never by index), int promotes to long. Supported schema: a
// record whose fields are null, boolean, int, long, string, bytes, enum, a union of null and one
// of these, or an array of records of such fields (at most PO_AVRO_RECORDS_MAX of them, by default
// none); a *writer's* schema may contain anything (other arrays, maps, nested records, fixed, float,
// double): what the reader lacks is skipped. Names of records and enums must match (without
// namespace), and two logicalTypes that differ do not resolve. Every length is bounded before it is
// believed; input never aborts; failures are PO_REFUSED "avro_schema", "avro_data",
// "avro_unresolvable".
#pragma once
#include "base/arena.h"
#include "base/str.h"

typedef struct po_avro_schema po_avro_schema; // immutable, thread-safe

// Parses schema text (JSON). The caller frees it.
PO_MUST_CHECK bool po_avro_parse(po_str text, po_avro_schema **ret_schema, po_err *err);
void po_avro_free(po_avro_schema **schema);
// SHA-256 of the very text: what outbox rows carry.
const uint8_t *po_avro_fingerprint(const po_avro_schema *schema); // 32 bytes
po_str po_avro_text(const po_avro_schema *schema);
// Index, or -1. "accounts.fee" is the field fee of the records in the array accounts.
int po_avro_field(const po_avro_schema *schema, const char *name);

typedef enum po_avro_type {
    PO_AVRO_NULL,
    PO_AVRO_BOOL,
    PO_AVRO_LONG,
    PO_AVRO_STRING,
    PO_AVRO_BYTES,
    PO_AVRO_ARRAY
} po_avro_type;
#define PO_AVRO_RECORDS_MAX 100
typedef struct po_avro_value { // enums are strings; int is long
    po_avro_type type;
    union {
        bool b;
        int64_t i;
        po_str s; // strings must be UTF-8 (checked when writing and reading)
        struct {
            const struct po_avro_value *values; // of the first record, then of the next
            size_t n;                           // records
        } records;
    };
} po_avro_value;

// One value per field, in the schema's order. Appends to out. PO_REFUSED when a value does not fit
// its field.
PO_MUST_CHECK bool po_avro_encode(const po_avro_schema *schema, const po_avro_value *values,
                                  size_t n, po_buf *out, po_err *err);

// A pair of schemas, prepared once, used for each record. Both must outlive it. PO_REFUSED when the
// reader's record cannot be read from the writer's (a field without default is missing, types do
// not promote).
typedef struct po_avro_resolver po_avro_resolver; // immutable, thread-safe
PO_MUST_CHECK bool po_avro_resolver_new(const po_avro_schema *writer, const po_avro_schema *reader,
                                        po_avro_resolver **ret_resolver, po_err *err);
void po_avro_resolver_free(po_avro_resolver **resolver);
// ret_values: one per reader field, in the arena. The body must be used up exactly.
PO_MUST_CHECK bool po_avro_decode(const po_avro_resolver *resolver, po_str body, po_arena *arena,
                                  po_avro_value **ret_values, po_err *err);
