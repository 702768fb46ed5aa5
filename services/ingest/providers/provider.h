// A provider is a small struct chosen by name: how its requests are verified, what its events say,
// and by which policy its orders are decided. Adding one: a file with its struct, a line in
// providers[] (docs/adding-a-provider.md); its name stands nowhere else. Pure: no clock, row or
// socket; never asserts on data; safe from any thread.
#pragma once
#include "base/arena.h"
#include "base/money.h"
#include "base/str.h"

// --- Facts: what an event says about an order's money. All merge commutatively and idempotently
// (facts.h).
typedef enum fact_kind {
    FACT_PAYMENT, // object = payment key; a state, highest rank wins
    FACT_REFUND,  // object = refund id, `payment` set; state pending < paid (= succeeded) < failed
    FACT_REFUND_TOTAL, // object = charge id, `payment` set; what the provider says was refunded of
                       // it so far: (at_us, amount), the largest pair
    FACT_EXPIRY,   // object = ""; the order's own expiry passed (sweep); outranked by every payment
    FACT_MISMATCH, // object = reason ("foreign_account", "registered_elsewhere", "foreign_profile",
                   // "route_conflict", "named_elsewhere"): evidence, no money
} fact_kind;

typedef enum fact_state {
    STATE_UNSUPPORTED, // the provider's word is not known to the policy
    STATE_PENDING,     // OPEN, unpaid, processing
    STATE_HELD,        // ACCEPTED: not paid
    STATE_FAILED,
    STATE_EXPIRED,
    STATE_CANCELED,
    STATE_PAID, // SETTLED, paid, no_payment_required; of a refund: succeeded
} fact_state;

#define NO_AMOUNT INT64_MIN

// The key of a fact within its order: (provider, account, kind, object, unit).
typedef struct fact {
    fact_kind kind;
    po_str provider, account; // account = its name
    po_str object, payment;   // payment: the payment key a refund belongs to, else empty
    po_str charge;            // of a refund: the charge it is of, or empty
    po_unit unit;             // the provider's unit of the amounts
    fact_state state;         // of the highest rank seen
    int rank;                 // provider's own order of states
    bool canceled_seen;       // CANCELED was stated at some time (contradiction with PAID)
    bool waived;              // no_payment_required was stated
    int64_t amount;      // stated with PAID (or a refund's amount); NO_AMOUNT while missing. The
                         // smallest one.
    int64_t amount_most; // the largest one: differs from amount = contradiction
    int64_t discount;    // largest discount stated by a paid session; 0 = none
    int64_t total, tax, shipping; // largest ones stated by a paid session: what it asked for in
                                  // all, and what of that the provider calls tax and shipping
    int64_t at_us; // earliest time the provider states for the winning state; of a refund: when it
                   // was made
    int64_t failed_at_us; // of a refund: earliest time that says failed; 0 = not stated
} fact;

const char *fact_kind_name(fact_kind kind);
const char *fact_state_name(fact_state state);
// Inverse of the names for reading rows; false when unknown.
bool fact_kind_parse(po_str name, fact_kind *ret);
bool fact_state_parse(po_str name, fact_state *ret);

// A route to an order, and what an event teaches when its order is known.
typedef struct reference {
    po_str kind; // one of the provider's (ref_kind)
    po_str value;
    po_str payment; // the payment key it belongs to, empty when not known
} reference;

typedef enum disposition {
    OBS_FACTS,   // has facts and/or references to apply
    OBS_IGNORED, // a type we do not use: recorded, nothing to decide
    OBS_FOREIGN, // of another account or mode: recorded apart (event_id has the prefix "foreign:"),
                 // never decided
    OBS_QUARANTINE, // verified but unreadable: recorded with id "sha256:<hex>" or its own id, never
                    // decided
} disposition;

#define OBS_MAX 6
typedef struct observation {
    disposition disposition;
    po_str event_id;        // the provider's, ≤ PO_ID_MAX printable ASCII
    po_str type;            // the provider's word, "checkout.session.completed"; "" when unreadable
    po_str problem;         // why quarantined or foreign: a short code
    uint8_t digest[32];     // content digest: SHA-256 over what was read
    int64_t occurred_at_us; // the provider's time of the event
    reference refs[OBS_MAX]; // in order of strength
    size_t n_refs;
    po_str order_id;         // metadata.order_id, or empty
    po_str client_reference; // client_reference_id, or empty; used only if the account allows it
    fact facts[OBS_MAX];
    size_t n_facts;
    po_str refund_id;      // evidence for the outgoing event, or empty
    po_str awaits_payment; // a refund: the payment key that must be *paid* among the order's facts
                           // first; empty when the payment must be found through a reference
                           // of a kind that finds it
    bool needs_payment;    // true for refunds: undecided until its own payment is known
    po_str profile;        // lightning: the node's profile, compared with the order's
} observation;

// --- Accounts: what we have at a provider, in one mode, with its secrets (docs/accounts.md).
typedef struct account {
    const struct provider *provider;
    const char *name;           // for ever: rows, references, facts, orders and events hold it
    const char *const *aliases; // path segments that lead here, one or more, NULL ended
    bool live;
    const char *id;             // the provider's account id (of LND: the node's public key), or
                                // NULL: then no event that names one is this account's
    bool client_reference;      // client_reference_id may name an order
    const char *const *secrets; // NULL ended, none empty (refused at start)
} account;

typedef struct header_value { // a request header: value OWS-trimmed, count of lines of that name
    po_str value;
    unsigned count;
} header_value;

typedef enum verify_result {
    VERIFY_OK,
    VERIFY_MISSING,
    VERIFY_MALFORMED,
    VERIFY_WRONG,
    VERIFY_STALE
} verify_result;

// A kind of reference: what an order is found by.
typedef struct ref_kind {
    const char *name;
    size_t max;         // bytes of a value
    bool stated;        // the shop may state it with an order
    bool finds_payment; // a refund may name its payment by it alone: it learns that payment
    bool global; // names one payable thing in the world: an account of ours that did not register
                 // it is told of it, too
} ref_kind;

// What an order is decided by: the provider's words, and the unit its orders are kept in.
typedef struct policy {
    const char *name; // "PROVIDER-v1": stored with the order and every decision
    int version;
    const char *provider;
    // The finest unit the policy can receive for a currency; orders are kept in it.
    bool (*unit)(po_str currency, po_unit *ret_unit);
    const struct word *words; // what its provider's words mean (words.h), for docs/states.md
} policy;

typedef struct provider {
    const char *name;       // path segment and column value
    const char *door;       // "webhooks" or "observations": first path segment
    const char *headers[4]; // names that verify() and read() are given, NULL ended
    // What the headers alone refuse (STALE too: 300 s both ways) costs no look at the body; a stale
    // answer says nothing about the signature. All candidates × secrets are compared in constant
    // time (PROVIDERS a1, e).
    verify_result (*verify)(const account *account, const header_value *headers, po_str body,
                            int64_t now_us);
    // The time that a signature of the right shape states, for the log.
    bool (*stated_time)(const header_value *headers, int64_t *ret_seconds);
    // Reads a verified body; everything in ret lives in the arena or the body. Never fails: what
    // cannot be read is a QUARANTINE observation. `event_id` of quarantined ones: own id when
    // readable, else "sha256:<hex>".
    void (*read)(const account *account, const header_value *headers, po_str body, po_arena *arena,
                 observation *ret_observation);
    // A secret's problem ("empty", "not base64", …) or NULL.
    const char *(*check_secret)(const char *secret);
    // Raised with any change of what read() makes of a body: stored readings say which made them.
    int reader_version;
    // Raised when the same reading gets another digest: digests are compared under one version.
    int digest_version;
    const ref_kind *ref_kinds; // ended by a row without a name
    const policy *policy;
} provider;

extern const provider *const providers[]; // NULL ended
// All NULL when unknown.
const provider *provider_find(po_str name);
const policy *policy_find(po_str name);
const ref_kind *ref_kind_find(po_str provider, po_str kind);
