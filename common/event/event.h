// The events of payonce as C values: one reader and one writer per schema. Field docs:
// schemas/*.avsc, printed in docs/events.md. Text is lent by the caller (write) or by the arena
// (read).
#pragma once
#include "avro/registry.h"
#include "base/id.h"
#include "base/money.h"

#define PO_TOPIC_PAYMENTS "payments.v1"
#define PO_TOPIC_CONTACTS "contacts.v1"

// What every text and time of an event keeps to, whoever wrote it, so that no consumer has to ask:
// PostgreSQL takes no U+0000 and keeps no index entry above 2,704 bytes.
#define PO_EVENT_TEXT_MAX 1000 // bytes of any text
#define PO_EVENT_ID_MAX 255    // bytes of an order's or a customer's id, at least 1
bool po_is_event_id(po_str s); // 1 to PO_EVENT_ID_MAX bytes without U+0000

// What lies on one account, in the order's unit; a struct, so that clearing moves account by account.
typedef struct po_leg {
    po_str provider, account; // the provider's name, the account's
    int64_t received, refunded, disputed, fee;
} po_leg;
#define PO_LEGS_MAX PO_AVRO_RECORDS_MAX

typedef struct po_payment_event {
    po_uuid event_id;
    po_str type; // "payment.pending | adjusted | qualified | review_required | canceled | failed |
        //  reversed | refunded | dispute_opened | dispute_closed" with the prefix "payment."
    po_str order_id, customer_id;
    po_str purpose; // deposit | invoice | package | membership | course
    po_str item;
    po_str state; // open | paid | review | canceled | reversed: the order's after this event
    po_unit unit; // of all amounts
    int64_t due, received, refunded, delta; // position after the event; delta is a check only
    int32_t qualification;                  // 0 before the first
    bool late, partial, over;
    po_str provider, account; // the provider's name, the account's
    po_str provider_event_id;
    po_uuid decision_id;
    po_str policy; // "PROVIDER-v1"
    int32_t policy_version;
    po_str verdict, reason;                // reason may be empty
    po_str refund_id;                      // evidence; empty = null
    bool receipt;                          // the order has a contact
    int64_t occurred_at_us, decided_at_us; // milliseconds on the wire
    int64_t sequence;                      // of the order, rising, with holes
    po_str right;           // "" (as type and state say) | grant | hold | revoke | none
    const po_leg *accounts; // n_accounts of them, lent as text is; none: not stated, never nothing
    size_t n_accounts;      // at most PO_LEGS_MAX
    int64_t tax, shipping;  // of due: what was added to the price
    int64_t disputed;       // withdrawn by disputes and not reinstated
    po_str dispute_id;      // evidence; empty = null
    int64_t period_start_us, period_end_us; // 0 = null; milliseconds on the wire
} po_payment_event;

typedef struct po_contact {
    po_str order_id;
    po_str email, language; // language may be empty
} po_contact;

// The writer schemas of this build, parsed once (thread-safe); their text and fingerprint go to the
// outbox.
const po_avro_schema *po_payment_event_schema(void);
const po_avro_schema *po_contact_schema(void);

PO_MUST_CHECK bool po_payment_event_write(const po_payment_event *event, po_buf *out, po_err *err);
PO_MUST_CHECK bool po_contact_write(const po_contact *contact, po_buf *out, po_err *err);
// body: bare Avro written with `writer`. A text or a time that no event may hold is REFUSED "event",
// when writing too. An event comes out with no negative amount (delta may be), refunded ≤ received,
// and qualified only in state paid with qualification ≥ 1; else REFUSED "position". Whether its
// accounts add up is the reader's to ask, and what an unknown `right` means to it. What an older
// writer did not know is "", 0 or none: not stated.
PO_MUST_CHECK bool po_payment_event_read(const po_avro_schema *writer, po_str body, po_arena *arena,
                                         po_payment_event *ret_event, po_err *err);
PO_MUST_CHECK bool po_contact_read(const po_avro_schema *writer, po_str body, po_arena *arena,
                                   po_contact *ret_contact, po_err *err);

// docs/events.md: a table per schema from its own docs.
#include <stdio.h>
void po_events_markdown(FILE *out);
