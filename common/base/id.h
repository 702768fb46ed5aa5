// UUIDv7 (RFC 9562): time ordered ids for events and decisions. Random bits come from OpenSSL's
// RAND_bytes.
#pragma once
#include "base/str.h"

typedef struct po_uuid {
    uint8_t b[16];
} po_uuid;

#define PO_UUID_SIZE 37
po_uuid po_uuid_v7(int64_t instant_us);
void po_uuid_text(po_uuid id, char out[PO_UUID_SIZE]);
PO_MUST_CHECK bool po_uuid_parse(po_str text, po_uuid *ret_id); // 36 characters, either case
// n random bytes (lease tokens, trace ids); aborts when the generator fails.
void po_random(void *out, size_t n);
