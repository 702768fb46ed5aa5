// Which orders an event speaks of: what was looked up in, a route out. Pure: no row, clock or socket.
//
// An event finds its order by what is stronger first:
//   1. a known reference: registered by the shop, or learnt from an event that had found its order;
//   2. the name that the shop's server wrote on the event itself (metadata), where it brings money:
//      others wait until one of their references is known, and leave their name as a claim;
//   3. where money names no order of its own: the words of others. Those are the claims on its
//      references, and the name that a visitor has set on it (client_reference_id).
// So that no order of arrival matters, a reference remembers what it was learnt by (known_by), and
// two words of one strength that differ are a conflict whenever the second one comes, before the
// money or after it: it counts at neither order, and both go to review (`route_conflict`). A visitor
// against the shop's server on one event is no conflict: the server's word counts alone. A weaker
// word against a stronger one is evidence (`named_elsewhere`) and moves nothing.
#pragma once
#include "decision/decide.h"

// What a reference was learnt by: how strong it is against names.
typedef enum known_by {
    KNOWN_BY_SHOP,     // registered; or learnt of such a one: no name is against it
    KNOWN_BY_MONEY,    // the paid event names its order itself
    KNOWN_BY_WORD,     // the word of another event, or of a visitor
    KNOWN_BY_CONFLICT, // words differ: its money is nobody's until a person has decided
} known_by;

// A reference in hand: looked up or taught.
typedef struct known_ref {
    po_str provider, kind, value, account;
    po_str order_id, payment;
    known_by by;
} known_ref;

// A row that the look-up of references brought.
typedef struct found_ref {
    size_t asked; // index of the known_ref that was asked for
    po_str account, order_id, payment;
    bool live;       // the order's mode …
    po_str accounts; // … and the accounts that may pay it, as "a b c"
    known_by by;
} found_ref;

// A row that the look-up of orders by name brought.
typedef struct found_order {
    po_str id, accounts, policy; // accounts as above
    bool live;
} found_order;

// Who speaks: an event, and where its look-ups begin.
typedef struct speaker {
    const account *account; // NULL: ours (the clock)
    po_str provider, alias;
    const observation *obs;
    size_t first_ref;
} speaker;

// What a batch knows of routes: the rows looked up for it, and what its own events have taught since.
typedef struct routes {
    po_arena *arena;
    const found_ref *refs; // by `asked`
    size_t n_refs;
    const found_order *orders; // by id
    size_t n_orders;
    known_ref *taught;
    size_t n_taught, cap_taught;
    uint32_t *taught_at; // by hash; the place in `taught` + 1, or 0
    size_t taught_mask;
} routes;

enum { ROUTE_ORDERS = 3, ROUTE_ELSEWHERE = 3 };

typedef struct route {
    po_str orders[ROUTE_ORDERS]; // more than one: a conflict
    size_t n;
    bool conflict;       // of references or of words, also where one order alone is known of it
    bool by_word;        // no reference is known: a name alone leads there
    known_by by;         // what the event's references are learnt by when it teaches them
    const char *foreign; // found by a reference that another account of ours registered: the reason
    po_str elsewhere[ROUTE_ELSEWHERE]; // other orders that are named
    size_t n_elsewhere;
    po_str payment; // of a known reference
} route;

// How many look-ups an event may ask for: each reference, and two claims on it.
enum { ROUTE_ASKS = 3 * OBS_MAX };
// Puts what must be looked up for the event behind asked[*n], and its own place there into *s.
void routes_ask(speaker *s, po_arena *arena, known_ref *asked, size_t *n);
// The orders that it names, and that count; at most two.
size_t routes_named(const speaker *s, po_str *out);

// Room for what n events may teach. `refs` and `orders` are set by the caller.
void routes_init(routes *r, po_arena *arena, size_t n_events);

// ret_unknown[i]: reference i of the event is not known for its own account.
route routes_find(const routes *r, const speaker *s, bool ret_unknown[OBS_MAX]);

// Makes reference i known to all that follow; false when it is taught already.
bool routes_teach(routes *r, const speaker *s, size_t i, po_str order_id, known_by by);
// Claims reference i for the order that the event names, unless it, or two others, have it; false
// when there was nothing to add.
bool routes_claim(routes *r, const speaker *s, size_t i, po_str order_id);
// The payment that reference i is known to belong to; empty when not known.
po_str routes_payment(const routes *r, const speaker *s, size_t i);

// It states money that came.
bool brings_money(const observation *obs);
// It says something of a payment: its own name counts at once.
bool speaks_of_payment(const observation *obs);
// Kinds that name one payable thing in the world, whatever account it is registered at.
bool ref_is_global(po_str provider, po_str kind);

const char *known_by_name(known_by by); // "shop", "money", "word", "conflict"
known_by known_by_parse(po_str name);   // what is not known is the strongest
