// Time. Instants are int64 microseconds since 1970-01-01 UTC (`_us`); durations name their unit.
// Decisions never call this: they are given instants as facts.
#pragma once
#include "base/str.h"

#define PO_SECOND_US 1000000LL

int64_t po_now_us(void);  // wall clock
int64_t po_mono_ms(void); // monotonic milliseconds, for deadlines and ages

// "2026-01-31T12:00:00.000000Z"; out needs PO_RFC3339_SIZE bytes.
#define PO_RFC3339_SIZE 32
void po_rfc3339(int64_t instant_us, char out[PO_RFC3339_SIZE]);
// RFC 3339 with 'Z' or a numeric offset, 0 to 6 fraction digits (more are cut off).
PO_MUST_CHECK bool po_parse_rfc3339(po_str s, int64_t *ret_us);
