// What the verify() functions of providers share: HMAC-SHA256, comparison in constant time, strict
// base64, the time window. Pure; any thread; a MAC that cannot be computed aborts, for it must
// never read as "no match needed".
#pragma once
#include "providers/provider.h"

#define MAC_SIZE 32
#define SIGNATURES_MAX 16         // candidates in one header
#define SIGNATURE_HEADER_MAX 4096 // bytes of one header
#define TOLERANCE_S 300           // both ways; 300 is inside, 301 is not

void hmac_sha256(po_str key, const po_str *parts, size_t n_parts, uint8_t out[MAC_SIZE]);

// True when any candidate is the MAC; looks at all of them, whatever it finds.
bool signature_matches(const uint8_t mac[MAC_SIZE], const uint8_t (*candidates)[MAC_SIZE],
                       size_t n_candidates);

// Unix seconds, 1–19 digits without a leading 0: text and number say the same, so the text itself
// can be signed.
PO_MUST_CHECK bool timestamp_read(po_str text, int64_t *ret_seconds);
bool timestamp_fresh(int64_t seconds, int64_t now_us);

// Canonical base64 (RFC 4648 §4, padded, no spaces, unused bits zero); false otherwise or above
// cap.
PO_MUST_CHECK bool base64_read(po_str text, uint8_t *out, size_t cap, size_t *ret_n);

// VERIFY_OK for a header that is there once; an empty value counts as missing.
verify_result header_once(header_value header);
