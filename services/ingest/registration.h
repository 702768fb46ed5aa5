// An order as the shop's server states it (docs/orders.md): read, checked, put into the policy's
// unit. Pure.
#pragma once
#include "accounts.h"
#include "decision/decide.h"
#include <jansson.h>

#define REGISTRATION_ID_MAX 100 // bytes of order_id, customer_id and item: printable ASCII

typedef struct registration {
    po_str order_id, customer_id, purpose, item;
    const policy *policy;
    po_str profile;
    po_str *accounts; // sorted names
    size_t n_accounts;
    bool live;
    po_money price; // in the policy's unit
    int64_t max_discount;
    bool revoke_on_refund;
    int64_t expires_at_us; // 0 = never
    struct stated_ref {
        po_str account, kind, value;
    } * refs; // sorted by (kind, value, account), no repeats
    size_t n_refs;
    po_str email, language; // email empty: no contact
} registration;

// PO_REFUSED "invalid" names the field. Text lives in the arena.
PO_MUST_CHECK bool registration_read(json_t *body, const accounts *accounts, po_arena *arena,
                                     registration *ret_registration, po_err *err);
// SHA-256 of everything but the contact, after normalising, as this version renders it (1 to
// REGISTRATION_VERSION). A stored one is compared under its own version.
#define REGISTRATION_VERSION 2
void registration_digest(const registration *registration, int version, uint8_t out[32]);

// The references of POST …/references, for an order of this policy and these accounts (as "a b c").
PO_MUST_CHECK bool registration_read_refs(const json_t *list, const policy *policy, po_str allowed,
                                          po_arena *arena, struct stated_ref **ret_refs,
                                          size_t *ret_n, po_err *err);
