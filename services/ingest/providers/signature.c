// Strictness here means one reading only: whatever two implementations could understand differently
// is refused, and what is compared is compared whole.
#include "providers/signature.h"
#include "base/clock.h"
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdlib.h>

// Fetching an algorithm searches OpenSSL's providers under a lock; a constant handle spares every
// request that.
static EVP_MAC *hmac;
static pthread_once_t hmac_once = PTHREAD_ONCE_INIT;

static void hmac_fetch(void) {
    hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    if (!hmac)
        abort();
}

void hmac_sha256(po_str key, const po_str *parts, size_t n_parts, uint8_t out[MAC_SIZE]) {
    pthread_once(&hmac_once, hmac_fetch);
    char digest[] = "SHA256";
    const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                 OSSL_PARAM_construct_end()};
    EVP_MAC_CTX *ctx = EVP_MAC_CTX_new(hmac);
    bool ok = ctx && EVP_MAC_init(ctx, (const uint8_t *)key.p, key.n, params);
    for (size_t i = 0; ok && i < n_parts; i++)
        ok = parts[i].n == 0 || EVP_MAC_update(ctx, (const uint8_t *)parts[i].p, parts[i].n);
    size_t n = 0;
    if (!ok || !EVP_MAC_final(ctx, out, &n, MAC_SIZE) || n != MAC_SIZE)
        abort();
    EVP_MAC_CTX_free(ctx);
}

bool signature_matches(const uint8_t mac[MAC_SIZE], const uint8_t (*candidates)[MAC_SIZE],
                       size_t n_candidates) {
    unsigned same = 0;
    for (size_t i = 0; i < n_candidates; i++)
        same |= CRYPTO_memcmp(mac, candidates[i], MAC_SIZE) == 0;
    return same != 0;
}

bool timestamp_read(po_str text, int64_t *ret_seconds) {
    if (text.n == 0 || text.p[0] < '1' || text.p[0] > '9')
        return false;
    return po_parse_i64(text, ret_seconds);
}

bool timestamp_fresh(int64_t seconds, int64_t now_us) {
    int64_t age;
    if (__builtin_sub_overflow(now_us / PO_SECOND_US, seconds, &age))
        return false;
    return age >= -TOLERANCE_S && age <= TOLERANCE_S;
}

static int base64_digit(char c) {
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool base64_read(po_str text, uint8_t *out, size_t cap, size_t *ret_n) {
    if (text.n == 0 || text.n % 4 != 0)
        return false;
    size_t pad = (text.p[text.n - 1] == '=') +
                 (size_t)(text.p[text.n - 1] == '=' && text.p[text.n - 2] == '=');
    size_t n = text.n / 4 * 3 - pad;
    if (n > cap)
        return false;
    uint32_t bits = 0;
    size_t held = 0, written = 0;
    for (size_t i = 0; i < text.n - pad; i++) {
        int digit = base64_digit(text.p[i]);
        if (digit < 0)
            return false;
        bits = bits << 6 | (uint32_t)digit;
        held += 6;
        if (held >= 8) {
            held -= 8;
            out[written++] = (uint8_t)(bits >> held);
        }
    }
    if (bits & ((1u << held) - 1)) // a second spelling of the same bytes
        return false;
    *ret_n = written;
    return true;
}

verify_result header_once(header_value header) {
    if (header.count == 0 || (header.count == 1 && po_str_trim(header.value).n == 0))
        return VERIFY_MISSING;
    return header.count == 1 && header.value.n <= SIGNATURE_HEADER_MAX ? VERIFY_OK
                                                                       : VERIFY_MALFORMED;
}
