// A codec carries C structs to Avro records and back by a table of members: the schema is an
// embedded .avsc file, and a row says which of its fields is which member. A new field is a line in
// the schema, a member and a row. Used by event.c alone.
#pragma once
#include "avro/avro.h"
#include <pthread.h>

typedef enum po_form { // how a member is written
    PO_FORM_TEXT,      // po_str ↔ string, at most PO_EVENT_TEXT_MAX bytes, no U+0000
    PO_FORM_ID,        // the same, but as po_is_event_id
    PO_FORM_TEXT_NULL, // po_str ↔ null or string; empty is null
    PO_FORM_UUID,      // po_uuid ↔ string
    PO_FORM_BOOL,      // bool ↔ boolean
    PO_FORM_INT,       // int32_t ↔ int
    PO_FORM_LONG,      // int64_t ↔ long
    PO_FORM_MILLIS, // int64_t microseconds ↔ long timestamp-millis, rounded down; years 1 to 9999
    PO_FORM_CURRENCY,    // po_unit's currency ↔ string; never empty
    PO_FORM_EXPONENT,    // po_unit's exponent ↔ int, 0 to 18
    PO_FORM_MILLIS_NULL, // the same as MILLIS ↔ null or long timestamp-millis; 0 is null
    PO_FORM_LIST,        // pointer to structs ↔ array of records, at most PO_AVRO_RECORDS_MAX
} po_form;

typedef struct po_member {
    const char *field;
    po_form form;
    size_t offset;                // of the member; of the po_unit for its two forms
    const struct po_items *items; // of a list
} po_member;

// The structs of a list. None of their members is a list.
typedef struct po_items {
    size_t count_offset; // of the size_t that says how many there are, beside the pointer
    size_t size;         // of one struct
    const po_member *members;
    size_t n;
} po_items;

typedef struct po_codec {
    const char *file;         // in schemas/
    size_t size;              // of the struct
    const po_member *members; // one per field of the schema
    size_t n;
    // What is worked out at first use; readers are kept by the writer's fingerprint for ever.
    pthread_mutex_t lock;
    po_avro_schema *schema;
    struct po_codec_reader *readers;
} po_codec;

const po_avro_schema *po_codec_schema(po_codec *codec);
PO_MUST_CHECK bool po_codec_write(po_codec *codec, const void *from, po_buf *out, po_err *err);
// *ret_struct is filled as a whole, or untouched.
PO_MUST_CHECK bool po_codec_read(po_codec *codec, const po_avro_schema *writer, po_str body,
                                 po_arena *arena, void *ret_struct, po_err *err);
