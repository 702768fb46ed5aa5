// The parsed form of a schema (schema.c) and how one is read as another (resolve.c), for these two
// and avro.c; nobody else includes it.
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

// The position of a symbol, or -1.
int po_avro_symbol(const po_avro_node *enumeration, po_str symbol);
bool po_avro_fits_int(int64_t value);

// How a value of the writer becomes one of the reader.
typedef struct po_avro_step po_avro_step;
struct po_avro_step {
    const po_avro_node *from;
    const po_avro_node *to; // of the reader, never a union; NULL: the reader has no place for it
    const char **symbols; // from an enum: the reader's symbol for each of the writer's, NULL = none
    po_avro_step *branches; // from a union: a step per branch
    const struct po_avro_plan
        *records; // from an array: how each of its records becomes one of the reader
};

enum { PO_AVRO_SKIPPED = -1 };

// How a record of the writer becomes one of the reader.
typedef struct po_avro_plan {
    const po_avro_node *writer, *reader;
    po_avro_step *steps;     // per field of the writer
    int *targets;            // per field of the writer: the reader's field, or PO_AVRO_SKIPPED
    po_avro_value *defaults; // per field of the reader; used where no target names it
} po_avro_plan;

struct po_avro_resolver {
    po_arena *arena;
    po_avro_plan root;
};
