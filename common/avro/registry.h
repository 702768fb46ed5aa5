// A Confluent-compatible schema registry (REST, application/vnd.schemaregistry.v1+json) and its
// wire frame: 0x00, 4-byte big-endian schema id, Avro binary. Calls block (connect 2 s, total 5 s).
// A certificate that is not trusted → RETRY "certificate": someone must act. Unreachable, 5xx, 429, 401/403, answers that make no sense → RETRY "registry"; 409 or 422 on
// registration → REFUSED "incompatible" or "invalid"; unknown id (404) → RETRY "unknown_schema" (it
// may be replicated later). Safe from any thread; answers are cached for ever.
#pragma once
#include "avro/avro.h"

typedef struct po_registry po_registry;
// No network. ca_file: PEM, the only certificates trusted over https; "" = the system's. Both are copied.
PO_MUST_CHECK bool po_registry_open(const char *base_url, const char *ca_file,
                                    po_registry **ret_registry, po_err *err);
void po_registry_close(po_registry **registry);

// Registers text under the subject; sets the subject's compatibility to FULL_TRANSITIVE before its
// first version (or right after it, where the registry wants the subject to exist), and mends it
// before any later one.
PO_MUST_CHECK bool po_registry_register(po_registry *registry, po_str subject, po_str schema_text,
                                        int32_t *ret_id, po_err *err);
// The schema by id, lent by the registry for its lifetime. PO_REFUSED "avro_schema" when it is no
// Avro record.
PO_MUST_CHECK bool po_registry_schema(po_registry *registry, int32_t id,
                                      const po_avro_schema **ret_schema, po_err *err);

// Whether it is there and is a registry: one small GET.
PO_MUST_CHECK bool po_registry_ask(po_registry *registry, po_err *err);

#define PO_FRAME_SIZE 5
void po_frame(int32_t id, uint8_t out[PO_FRAME_SIZE]);
// PO_REFUSED "frame" when it is not a frame.
PO_MUST_CHECK bool po_unframe(po_str message, int32_t *ret_id, po_str *ret_body, po_err *err);
