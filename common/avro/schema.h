// The parsed form of a schema, shared by the parser (schema.c) and by avro.c; nobody else includes
// it.
#pragma once
#include "avro/avro.h"
#include <jansson.h>

typedef enum po_avro_kind { // up to AVRO_ENUM: what a reader's field may be
    AVRO_NULL,
    AVRO_BOOLEAN,
    AVRO_INT,
    AVRO_LONG,
    AVRO_STRING,
    AVRO_BYTES,
    AVRO_ENUM,
    AVRO_FLOAT,
    AVRO_DOUBLE,
    AVRO_FIXED,
    AVRO_ARRAY,
    AVRO_MAP,
    AVRO_UNION,
    AVRO_RECORD,
} po_avro_kind;

typedef struct po_avro_node po_avro_node;
struct po_avro_node {
    po_avro_kind kind;
    const char *name;        // record, enum, fixed: without the namespace; else NULL
    const char *logical;     // logicalType, or NULL
    size_t n;                // how many fields, branches, symbols or items; of a fixed: its bytes
    const po_avro_node **of; // types of the fields, branches or items; may lead back to a record
    const char **names;      // of fields or symbols
    const json_t **defaults; // of fields, NULL where there is none
    const char *fallback;    // an enum's default symbol, or NULL
};

struct po_avro_schema {
    po_arena *arena;
    json_t *json;
    po_str text;
    uint8_t fingerprint[32];
    const po_avro_node *root; // a record
};
