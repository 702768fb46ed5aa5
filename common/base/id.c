// UUIDv7: 48 bits of milliseconds, then the microseconds as a 12-bit fraction (RFC 9562, method 3),
// then 62 random bits. So ids of one process sort by the microsecond they were made in.
#include "base/id.h"
#include <assert.h>
#include <limits.h>
#include <openssl/rand.h>
#include <stdlib.h>

void po_random(void *out, size_t n) {
    assert(n <= INT_MAX);
    if (RAND_bytes(out, (int)n) != 1)
        abort();
}

po_uuid po_uuid_v7(int64_t instant_us) {
    uint64_t us = instant_us > 0 ? (uint64_t)instant_us : 0;
    uint64_t ms = us / 1000, fraction = us % 1000 * 4096 / 1000;
    po_uuid id;
    for (int i = 0; i < 6; i++)
        id.b[i] = (uint8_t)(ms >> (40 - 8 * i));
    id.b[6] = (uint8_t)(0x70 | fraction >> 8);
    id.b[7] = (uint8_t)fraction;
    po_random(id.b + 8, 8);
    id.b[8] = (uint8_t)(0x80 | (id.b[8] & 0x3f));
    return id;
}

static bool dash_before(int byte) {
    return byte == 4 || byte == 6 || byte == 8 || byte == 10;
}

void po_uuid_text(po_uuid id, char out[PO_UUID_SIZE]) {
    for (int i = 0; i < 16; i++) {
        if (dash_before(i))
            *out++ = '-';
        po_hex(&id.b[i], 1, out);
        out += 2;
    }
}

bool po_uuid_parse(po_str text, po_uuid *ret_id) {
    if (text.n != PO_UUID_SIZE - 1)
        return false;
    po_uuid id;
    const char *at = text.p;
    for (int i = 0; i < 16; i++) {
        if (dash_before(i) && *at++ != '-')
            return false;
        char pair[2];
        for (int k = 0; k < 2; k++, at++)
            pair[k] = (char)(*at >= 'A' && *at <= 'F' ? *at - 'A' + 'a' : *at);
        if (!po_unhex((po_str){pair, 2}, &id.b[i], 1))
            return false;
    }
    *ret_id = id;
    return true;
}
