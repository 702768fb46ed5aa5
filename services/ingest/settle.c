// Record, then decide, in one transaction. The batch keeps what its flights brought; find_routes()
// and decide_event() are the thoughts, the rest moves columns.
#include "settle.h"
#include "accounts.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "log/log.h"
#include <stdlib.h>

enum { SET_LOCK_TIMEOUT, HOLD_UNDECIDED, DROP_UNDECIDED, POSTPONE_UNDECIDED };
static const po_stmt SQL[] = {
    [SET_LOCK_TIMEOUT] = {"set_lock_timeout", "SELECT set_config('lock_timeout', $1::text, true)"},
    // Those in hand and those to be woken, in one order: two workers may wake each other's.
    [HOLD_UNDECIDED] = {"hold_undecided",
                        "SELECT event = ANY($1::int8[]) AND lease_token = $2 FROM ingest.undecided"
                        " WHERE event = ANY (ARRAY(SELECT unnest($1::int8[]) UNION SELECT event"
                        " FROM ingest.undecided WHERE awaits && $3::text[]))"
                        " ORDER BY event + 0 FOR UPDATE"},
    [DROP_UNDECIDED] = {"drop_undecided",
                        "DELETE FROM ingest.undecided WHERE event = ANY($1::int8[])"},
    // ≤ 30 s apart for the first hour, then thinning out; after 72 h unmatched: kept, woken by its
    // references only. So is a stranger once no transaction is under way that began before it came.
    [POSTPONE_UNDECIDED] =
        {"postpone_undecided",
         "UPDATE ingest.undecided u SET reason = w.reason,"
         " awaits = string_to_array(w.awaits, E'\\n'), woken_at = NULL,"
         " lease_token = NULL, lease_until = NULL, last_error = '',"
         " unmatched = w.stranger OR created_at < now() - interval '72 hours',"
         " due_at = CASE WHEN created_at < now() - interval '72 hours' THEN NULL"
         " WHEN w.stranger THEN CASE WHEN created_at > now() - interval '4 minutes' THEN"
         " created_at + interval '5 minutes' END"
         " ELSE now() + CASE WHEN w.awaits = '' THEN interval '50 milliseconds'"
         " WHEN created_at > now() - interval '10 minutes' THEN least(interval "
         "'1 second' * 2 ^ least(attempts - 1, 5),"
         " interval '30 seconds') ELSE least(greatest(interval '30 seconds', "
         "(now() - created_at) / 120),"
         " interval '1 hour') END END"
         " FROM unnest($1::int8[], $2::text[], $3::text[], $4::bool[])"
         " AS w(event, reason, awaits, stranger) WHERE u.event = ANY (ARRAY[w.event])"},
};

typedef struct batch {
    po_pg *pg;
    po_arena *arena;
    const settle_options *options;
    settle_report *report;
    event *const *events; // in batch order
    size_t n;
    event **keys;   // sorted by key; repeats adjacent, batch order among them
    event **unique; // the first of each key
    size_t n_unique;

    known_ref *asked; // references looked up; an event's begin at its first_ref
    size_t n_asked;
    po_res *refs, *routes; // results of the look-ups, or NULL
    held_order *held;
    size_t n_held;

    batch_writes writes;
    uint32_t *taught_at; // see taught_slot(); NULL before deciding
    size_t taught_mask;
    int64_t now_us;
} batch;

// --- Keys

static int compare_keys(const event *a, const event *b) {
    int c = po_str_cmp(a->provider, b->provider);
    if (!c)
        c = po_str_cmp(a->alias, b->alias);
    return c ? c : po_str_cmp(a->obs.event_id, b->obs.event_id);
}

typedef struct keyed {
    event *event;
    size_t index;
} keyed;

static int compare_keyed(const void *a, const void *b) {
    const keyed *x = a, *y = b;
    int c = compare_keys(x->event, y->event);
    return c ? c : (x->index > y->index) - (x->index < y->index);
}

// Sorts by key, folds repeats inside the batch.
static void sort_keys(batch *b) {
    keyed *sorted = po_alloc_array(b->arena, b->n, sizeof *sorted);
    for (size_t i = 0; i < b->n; i++)
        sorted[i] = (keyed){b->events[i], i};
    qsort(sorted, b->n, sizeof *sorted, compare_keyed);
    b->keys = po_alloc_array(b->arena, b->n, sizeof *b->keys);
    b->unique = po_alloc_array(b->arena, b->n, sizeof *b->unique);
    for (size_t i = 0; i < b->n; i++) {
        b->keys[i] = sorted[i].event;
        if (i == 0 || compare_keys(b->keys[i - 1], b->keys[i]) != 0)
            b->unique[b->n_unique++] = b->keys[i];
    }
}

// The key in the columns `first` … of a row.
static event row_key(const po_res *rows, int row, int first) {
    return (event){.provider = po_res_text(rows, row, first),
                   .alias = po_res_text(rows, row, first + 1),
                   .obs.event_id = po_res_text(rows, row, first + 2)};
}

// --- Flight 1: record, look up routes

// A claim: an event without money named an order, so a payment of this reference that leads nowhere
// else is that order's. Kept as a reference of a kind of its own, which no real one can be in the
// way of.
static po_str claim_kind(const batch *b, const reference *ref) {
    return po_s(po_printf(b->arena, "named:%.*s", (int)ref->kind.n, ref->kind.p));
}

// Of each event its references, then the claims on them.
static void ask_refs(batch *b) {
    b->asked = po_alloc_array(b->arena, 2 * b->n_unique * OBS_MAX + 1, sizeof *b->asked);
    for (size_t i = 0; i < b->n_unique; i++) {
        event *e = b->unique[i];
        e->first_ref = b->n_asked;
        for (size_t r = 0; e->obs.disposition == OBS_FACTS && r < e->obs.n_refs; r++) {
            b->asked[b->n_asked++] = (known_ref){.provider = e->provider,
                                                 .kind = e->obs.refs[r].kind,
                                                 .value = e->obs.refs[r].value};
        }
        for (size_t r = 0; e->obs.disposition == OBS_FACTS && r < e->obs.n_refs; r++) {
            b->asked[b->n_asked++] = (known_ref){.provider = e->provider,
                                                 .kind = claim_kind(b, &e->obs.refs[r]),
                                                 .value = e->obs.refs[r].value};
        }
    }
}

static size_t named_orders(const batch *b, po_str *out) {
    size_t n = 0;
    for (size_t i = 0; i < b->n_unique; i++) {
        const event *e = b->unique[i];
        if (e->obs.disposition != OBS_FACTS)
            continue;
        if (e->obs.order_id.n)
            out[n++] = e->obs.order_id;
        if (e->obs.client_reference.n && e->account && e->account->client_reference)
            out[n++] = e->obs.client_reference;
    }
    return n;
}

static bool send_first(batch *b, size_t *ret_sends, po_tx *tx, po_err *err) {
    if (!po_tx_send_begin(b->pg, tx, err))
        return false;
    *ret_sends = 1;
    if (b->options->lock_timeout_ms) {
        po_args *args = po_args_new(b->arena);
        po_arg_text(args, po_s(po_printf(b->arena, "%d", b->options->lock_timeout_ms)));
        *ret_sends += 1;
        if (!po_pipe_send(b->pg, &SQL[SET_LOCK_TIMEOUT], args, err))
            return false;
    }
    if (!b->options->token) {
        *ret_sends += 1;
        if (!store_send_events(b->pg, b->arena, b->unique, b->n_unique, err))
            return false;
    }
    return true;
}

// rows (id, provider, account, event_id) of the events that are new.
static void note_recorded(batch *b, const po_res *rows) {
    for (size_t i = 0; i < b->n; i++) {
        b->events[i]->id = 0;
        b->events[i]->same = EVENT_DUPLICATE;
    }
    for (int row = 0; row < po_res_rows(rows); row++) {
        event key = row_key(rows, row, 1);
        size_t low = 0, high = b->n_unique;
        while (low < high) {
            size_t middle = (low + high) / 2;
            if (compare_keys(b->unique[middle], &key) < 0)
                low = middle + 1;
            else
                high = middle;
        }
        b->unique[low]->id = po_res_i64(rows, row, 0);
        b->unique[low]->same = EVENT_RECORDED;
    }
}

static bool first_flight(batch *b, po_tx *tx, po_err *err) {
    size_t sends = 0;
    ask_refs(b);
    po_str *orders = po_alloc_array(b->arena, 2 * b->n_unique, sizeof *orders);
    size_t n_orders = b->options->record_only ? 0 : named_orders(b, orders);
    if (b->options->record_only)
        b->n_asked = 0;
    if (!send_first(b, &sends, tx, err))
        return false;
    size_t recorded_at = sends - 1, refs_at = sends, routes_at = sends + (b->n_asked > 0);
    if (b->n_asked && !store_send_refs(b->pg, b->arena, b->asked, b->n_asked, err))
        return false;
    if (n_orders && !store_send_routes(b->pg, b->arena, orders, n_orders, err))
        return false;
    sends = routes_at + (n_orders > 0);
    po_res *results[6] = {0};
    bool ok = po_pipe_sync(b->pg, results, sends, err);
    if (ok && !b->options->token)
        note_recorded(b, results[recorded_at]);
    if (ok && b->n_asked)
        b->refs = po_take(&results[refs_at]);
    if (ok && n_orders)
        b->routes = po_take(&results[routes_at]);
    for (size_t i = 0; i < sends; i++)
        po_res_done(&results[i]);
    return ok;
}

// --- Routes: which orders an event speaks of

// A reference beats a name, and the name that the shop's server wrote (metadata) beats the one that
// a visitor can set: the event is the order's that the strongest leads to. An order that only a
// weaker one names gets evidence.
typedef struct route {
    po_str orders[2]; // two different ones = two references in conflict
    size_t n;
    const char *foreign; // found by a reference that another account of ours registered: the reason
    bool named;          // by a name alone: no reference is known
    po_str elsewhere[2]; // other orders that are named
    size_t n_elsewhere;
    po_str payment; // of a known charge
} route;
enum { ROUTE_MAX = 4 }; // orders that an event may touch

static void add_route(route *r, po_str order_id) {
    for (size_t i = 0; i < r->n; i++)
        if (po_str_eq(r->orders[i], order_id))
            return;
    if (r->n < 2)
        r->orders[r->n++] = order_id;
}

static void note_ref(route *r, po_str order_id, po_str payment) {
    add_route(r, order_id);
    if (payment.n)
        r->payment = payment;
}

// First row of `rows` whose order id is not below this one; they come by id.
static int route_row(const po_res *rows, po_str order_id) {
    int low = 0, high = po_res_rows(rows);
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (po_str_cmp(po_res_text(rows, middle, 0), order_id) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// An alias names an account only together with its provider: the order's are its policy's.
static bool may_pay(const po_res *rows, int row, const event *e) {
    const policy *policy = policy_find(po_res_text(rows, row, 3));
    return policy && po_str_is(e->provider, policy->provider) &&
           po_res_bool(rows, row, 1) == e->account->live &&
           accounts_lists(po_res_text(rows, row, 2), e->alias);
}

static void note_named(const batch *b, route *r, const event *e, po_str order_id) {
    if (!order_id.n || !b->routes)
        return;
    int row = route_row(b->routes, order_id);
    if (row == po_res_rows(b->routes) || !po_str_eq(po_res_text(b->routes, row, 0), order_id) ||
        (e->account && !may_pay(b->routes, row, e)))
        return;
    if (r->n == 0) {
        r->named = true;
        add_route(r, order_id);
    }
    bool there = po_str_eq(order_id, r->orders[0]) ||
                 (r->n == 2 && po_str_eq(order_id, r->orders[1])) ||
                 (r->n_elsewhere && po_str_eq(order_id, r->elsewhere[0]));
    if (!there)
        r->elsewhere[r->n_elsewhere++] = order_id;
}

// First row of b->refs whose index is not below `index`.
static int ref_row(const batch *b, size_t index) {
    int low = 0, high = b->refs ? po_res_rows(b->refs) : 0;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if ((size_t)po_res_i64(b->refs, middle, 0) < index)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Taught references by a hash of their value: its slot holds the place in writes.taught + 1, or 0.
static uint32_t *taught_slot(const batch *b, const event *e, const reference *ref) {
    uint64_t hash = 14695981039346656037U; // FNV-1a
    for (size_t i = 0; i < ref->value.n; i++)
        hash = (hash ^ (uint8_t)ref->value.p[i]) * 1099511628211U;
    for (size_t at = hash & b->taught_mask;; at = (at + 1) & b->taught_mask) {
        const known_ref *t = b->taught_at[at] ? &b->writes.taught[b->taught_at[at] - 1] : NULL;
        if (!t || (po_str_eq(t->value, ref->value) && po_str_eq(t->kind, ref->kind) &&
                   po_str_eq(t->provider, e->provider) && po_str_eq(t->account, e->alias)))
            return &b->taught_at[at];
    }
}

static const known_ref *find_taught(const batch *b, const event *e, const reference *ref) {
    uint32_t place = b->taught_at ? *taught_slot(b, e, ref) : 0;
    return place ? &b->writes.taught[place - 1] : NULL;
}

// What the look-up found of reference i; true when the event's own account has it. It leads to its
// order only in the mode that the account is of today: to the other mode's it does not lead, nor can
// it become another order's (P17). One that pays a thing registered at another account of ours is
// foreign, unless its own account has it for the same order.
static bool note_known(const batch *b, route *r, const event *e, size_t i) {
    int first = ref_row(b, e->first_ref + i), end = ref_row(b, e->first_ref + i + 1);
    bool known = false;
    po_str own = {0};
    for (int row = first; row < end; row++) {
        if (!po_str_eq(po_res_text(b->refs, row, 1), e->alias))
            continue;
        known = true;
        if (po_res_bool(b->refs, row, 4) == e->account->live) {
            own = po_res_text(b->refs, row, 2);
            note_ref(r, own, po_res_text(b->refs, row, 3));
        }
    }
    for (int row = first; row < end && ref_is_global(e->provider, e->obs.refs[i].kind); row++) {
        if (!po_str_eq(po_res_text(b->refs, row, 1), e->alias) &&
            !po_str_eq(po_res_text(b->refs, row, 2), own) &&
            po_res_bool(b->refs, row, 4) == e->account->live) {
            add_route(r, po_res_text(b->refs, row, 2));
            r->foreign = accounts_lists(po_res_text(b->refs, row, 5), e->alias)
                             ? "registered_elsewhere"
                             : "foreign_account";
        }
    }
    return known;
}

// The order that reference i is claimed for; empty when nobody has. *ret_there: there is a claim, if
// only of the other mode.
static po_str claimed_order(const batch *b, const event *e, size_t i, bool *ret_there) {
    size_t index = e->first_ref + e->obs.n_refs + i;
    po_str order = {0};
    reference claim = {claim_kind(b, &e->obs.refs[i]), e->obs.refs[i].value, {0}};
    const known_ref *taught = find_taught(b, e, &claim);
    *ret_there = taught != NULL;
    for (int row = ref_row(b, index), end = ref_row(b, index + 1); row < end; row++) {
        if (po_str_eq(po_res_text(b->refs, row, 1), e->alias)) {
            *ret_there = true;
            order = po_res_bool(b->refs, row, 4) == e->account->live ? po_res_text(b->refs, row, 2)
                                                                     : order;
        }
    }
    return taught ? taught->order_id : order;
}

static void note_claims(const batch *b, route *r, const event *e) {
    for (size_t i = 0; i < e->obs.n_refs && r->n == 0; i++) {
        bool there;
        po_str order = claimed_order(b, e, i, &there);
        if (order.n) {
            r->named = true;
            add_route(r, order);
        }
    }
}

// ret_unknown[i]: reference i of the event is not known for its own account.
static route find_routes(const batch *b, const event *e, bool ret_unknown[OBS_MAX]) {
    route found = {0};
    for (size_t i = 0; i < e->obs.n_refs; i++) {
        ret_unknown[i] = !note_known(b, &found, e, i);
        const known_ref *taught = ret_unknown[i] ? find_taught(b, e, &e->obs.refs[i]) : NULL;
        if (taught) {
            ret_unknown[i] = false;
            note_ref(&found, taught->order_id, taught->payment);
        }
    }
    // What the shop's server wrote beats what a visitor can set: on the event itself, or on another
    // one of this payment. An event that says a name of its own waits for that order.
    note_named(b, &found, e, e->obs.order_id);
    if (!e->obs.order_id.n)
        note_claims(b, &found, e);
    if (e->account && e->account->client_reference)
        note_named(b, &found, e, e->obs.client_reference);
    return found;
}

// --- Flight 2: repeats, orders, facts

static int compare_ids(const void *a, const void *b) {
    return po_str_cmp(*(const po_str *)a, *(const po_str *)b);
}

// Every order that an event of the batch may move, sorted, once. In-batch teaching adds none: the
// teacher's order is here already.
static size_t orders_to_hold(const batch *b, po_str **ret_ids) {
    po_str *ids = po_alloc_array(b->arena, ROUTE_MAX * b->n_unique + 1, sizeof *ids);
    size_t n = 0;
    for (size_t i = 0; i < b->n_unique; i++) {
        const event *e = b->unique[i];
        if (!e->id || e->obs.disposition != OBS_FACTS)
            continue;
        bool unknown[OBS_MAX];
        route found = find_routes(b, e, unknown);
        for (size_t r = 0; r < found.n; r++)
            ids[n++] = found.orders[r];
        for (size_t r = 0; r < found.n_elsewhere; r++)
            ids[n++] = found.elsewhere[r];
    }
    qsort(ids, n, sizeof *ids, compare_ids);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || !po_str_eq(ids[kept - 1], ids[i]))
            ids[kept++] = ids[i];
    *ret_ids = ids;
    return kept;
}

static void judge_repeats(batch *b, size_t first, size_t end, const uint8_t *stored) {
    for (size_t i = first; i < end; i++) {
        if (b->keys[i]->same != EVENT_RECORDED) {
            b->keys[i]->same =
                memcmp(b->keys[i]->obs.digest, stored, 32) == 0 ? EVENT_DUPLICATE : EVENT_CONFLICT;
        }
    }
}

// Same or different: against the recorded digest, wherever it was recorded. `stored` has the keys
// that the insert left out, in our order.
static bool note_same(batch *b, const po_res *stored, po_err *err) {
    int row = 0;
    for (size_t first = 0, end; first < b->n; first = end) {
        for (end = first + 1; end < b->n && compare_keys(b->keys[first], b->keys[end]) == 0;
             end++) {
        }
        const event *recorded = b->keys[first];
        if (recorded->same == EVENT_RECORDED) {
            judge_repeats(b, first, end, recorded->obs.digest);
            continue;
        }
        bool more = stored && row < po_res_rows(stored);
        event key = more ? row_key(stored, row, 0) : (event){0};
        po_str digest = more ? po_res_bytea(stored, row++, 3) : (po_str){0};
        if (digest.n != 32 || compare_keys(&key, recorded) != 0) {
            return po_fail(err, PO_RETRY, "40001", "event %s was neither inserted nor found",
                           recorded->obs.event_id.p);
        }
        judge_repeats(b, first, end, (const uint8_t *)digest.p);
    }
    return true;
}

static bool second_flight(batch *b, po_err *err) {
    event **repeats = po_alloc_array(b->arena, b->n_unique + 1, sizeof *repeats);
    size_t n_repeats = 0;
    for (size_t i = 0; !b->options->token && i < b->n_unique; i++)
        if (!b->unique[i]->id)
            repeats[n_repeats++] = b->unique[i];
    po_str *ids = NULL;
    size_t n_ids = b->options->record_only ? 0 : orders_to_hold(b, &ids);
    if (n_repeats && !store_send_compare(b->pg, b->arena, repeats, n_repeats, err))
        return false;
    if (n_ids && !store_send_hold(b->pg, b->arena, ids, n_ids, b->options->skip_locked, err))
        return false;
    size_t sends = (n_repeats ? 1U : 0U) + (n_ids ? STORE_HOLD_SENDS : 0U);
    po_res *results[1 + STORE_HOLD_SENDS] = {0};
    bool ok = sends == 0 || po_pipe_sync(b->pg, results, sends, err);
    ok = ok && (b->options->token || note_same(b, n_repeats ? results[0] : NULL, err));
    ok = ok && (n_ids == 0 ||
                store_read_hold(b->arena, &results[n_repeats > 0], &b->held, &b->n_held, err));
    for (size_t i = 0; i < sends; i++)
        po_res_done(&results[i]);
    return ok;
}

// --- Deciding

static held_order *find_held(const batch *b, po_str order_id) {
    return store_find_held(b->held, b->n_held, order_id);
}

static waiting *leave_waiting(batch *b, const event *e, const char *reason) {
    waiting *w = &b->writes.waitings[b->writes.n_waitings++];
    *w = (waiting){.event = e->id, .reason = reason};
    return w;
}

static void wait_for_order(batch *b, const event *e) {
    waiting *w = leave_waiting(b, e, "order_unknown");
    for (size_t i = 0; i < e->obs.n_refs; i++) {
        w->awaits[w->n_awaits++] =
            await_ref(b->arena, e->provider, e->alias, e->obs.refs[i].kind, e->obs.refs[i].value);
    }
    if (e->obs.order_id.n)
        w->awaits[w->n_awaits++] = await_order(b->arena, e->obs.order_id);
    bool counts = e->account && e->account->client_reference;
    w->stranger = w->n_awaits == e->obs.n_refs && !(counts && e->obs.client_reference.n);
    if (e->obs.client_reference.n) // also where it does not count: the setting may be mended
        w->awaits[w->n_awaits++] = await_order(b->arena, e->obs.client_reference);
}

// Waits until a reference is known, and claims them all: the payment may lead nowhere but here.
static void wait_for_reference(batch *b, const event *e, po_str order_id) {
    for (size_t i = 0; i < e->obs.n_refs; i++) {
        bool there;
        const reference *ref = &e->obs.refs[i];
        reference claim = {claim_kind(b, ref), ref->value, {0}};
        (void)claimed_order(b, e, i, &there);
        if (there)
            continue;
        b->writes.taught[b->writes.n_taught++] =
            (known_ref){e->provider, claim.kind, claim.value, e->alias, order_id, po_s("")};
        *taught_slot(b, e, &claim) = (uint32_t)b->writes.n_taught;
        b->writes.woken[b->writes.n_woken++] =
            await_ref(b->arena, e->provider, e->alias, ref->kind, ref->value);
    }
    waiting *w =
        leave_waiting(b, e, e->obs.needs_payment ? "payment_unknown" : "reference_unknown");
    for (size_t i = 0; i < e->obs.n_refs; i++) {
        w->awaits[w->n_awaits++] =
            await_ref(b->arena, e->provider, e->alias, e->obs.refs[i].kind, e->obs.refs[i].value);
    }
    w->stranger = e->obs.n_facts == 0; // no money hangs on it
}

static void teach(batch *b, const event *e, const bool unknown[OBS_MAX], po_str order_id) {
    for (size_t i = 0; i < e->obs.n_refs; i++) {
        const reference *ref = &e->obs.refs[i];
        uint32_t *slot = unknown[i] ? taught_slot(b, e, ref) : NULL;
        if (!slot || *slot)
            continue;
        b->writes.taught[b->writes.n_taught++] =
            (known_ref){e->provider, ref->kind, ref->value, e->alias, order_id, ref->payment};
        *slot = (uint32_t)b->writes.n_taught;
        b->writes.woken[b->writes.n_woken++] =
            await_ref(b->arena, e->provider, e->alias, ref->kind, ref->value);
    }
}

static po_str known_payment(const batch *b, const event *e, size_t i) {
    const known_ref *taught = find_taught(b, e, &e->obs.refs[i]);
    for (int row = ref_row(b, e->first_ref + i), end = ref_row(b, e->first_ref + i + 1); row < end;
         row++) {
        if (po_str_eq(po_res_text(b->refs, row, 1), e->alias)) {
            bool ours = po_res_bool(b->refs, row, 4) == e->account->live; // else not to be taught
            return ours ? po_res_text(b->refs, row, 3) : e->obs.refs[i].payment;
        }
    }
    return taught ? taught->payment : (po_str){0};
}

// A charge that the shop, or a refund, named without its payment learns it: by the charge alone its
// refunds find it.
static void learn_payments(batch *b, const event *e) {
    for (size_t i = 0; i < e->obs.n_refs; i++) {
        const reference *ref = &e->obs.refs[i];
        if (po_str_is(ref->kind, "charge") && ref->payment.n && !known_payment(b, e, i).n) {
            b->writes.learned[b->writes.n_learned++] = (known_ref){.provider = e->provider,
                                                                   .kind = ref->kind,
                                                                   .value = ref->value,
                                                                   .account = e->alias,
                                                                   .payment = ref->payment};
            b->writes.woken[b->writes.n_woken++] =
                await_ref(b->arena, e->provider, e->alias, ref->kind, ref->value);
        }
    }
}

static void wake_payments(batch *b, const event *e) {
    for (size_t i = 0; i < e->obs.n_facts; i++) {
        const fact *f = &e->obs.facts[i];
        if (f->kind == FACT_PAYMENT && f->state == STATE_PAID) {
            b->writes.woken[b->writes.n_woken++] =
                await_payment(b->arena, e->provider, e->alias, f->object);
        }
    }
}

static void decide_on(batch *b, event *e, held_order *held, const observation *obs) {
    outcome *o = &b->writes.outcomes[b->writes.n_outcomes++];
    e->outcome = o;
    decide(&held->order, &held->facts, obs, &o->decision);
    held->changed = true;
    o->held = held;
    o->decision_id = po_uuid_v7(b->now_us);
    o->event = e->id;
    o->provider = e->provider;
    o->alias = e->alias;
    o->provider_event_id = e->obs.event_id;
    o->refund_id = e->obs.refund_id;
    o->occurred_at_us = e->obs.occurred_at_us;
    o->decided_at_us = b->now_us;
    o->trace = e->trace;
    o->facts_json = store_facts_json(b->arena, &held->facts);
    b->report->emitted += o->decision.emits != EVENT_NONE;
}

// Evidence without money: the event cannot be this order's, or cannot be one order's.
static void decide_mismatch(batch *b, event *e, held_order *held, const char *reason) {
    observation *obs = po_alloc(b->arena, sizeof *obs);
    *obs = e->obs;
    obs->needs_payment = false;
    obs->profile = (po_str){0};
    obs->n_facts = 1;
    obs->facts[0] = (fact){.kind = FACT_MISMATCH,
                           .provider = e->provider,
                           .account = e->alias,
                           .object = po_s(reason),
                           .amount = NO_AMOUNT,
                           .amount_most = NO_AMOUNT,
                           .at_us = e->obs.occurred_at_us};
    decide_on(b, e, held, obs);
}

// A refund is applied only when its own payment is known. True when it may be decided now.
static bool payment_known(batch *b, const event *e, const held_order *held, const route *found,
                          observation *obs) {
    po_str payment = obs->awaits_payment.n ? obs->awaits_payment : found->payment;
    if (!payment.n) {
        waiting *w = leave_waiting(b, e, "payment_unknown");
        for (size_t i = 0; i < obs->n_refs; i++) {
            w->awaits[w->n_awaits++] =
                await_ref(b->arena, e->provider, e->alias, obs->refs[i].kind, obs->refs[i].value);
        }
        return false;
    }
    if (!fact_set_has_paid(&held->facts, e->provider, e->alias, payment)) {
        waiting *w = leave_waiting(b, e, "payment_unknown");
        w->awaits[w->n_awaits++] = await_payment(b->arena, e->provider, e->alias, payment);
        return false;
    }
    for (size_t i = 0; i < obs->n_facts; i++)
        if (obs->facts[i].kind == FACT_REFUND || obs->facts[i].kind == FACT_REFUND_TOTAL)
            obs->facts[i].payment = payment;
    return true;
}

// Only money makes a name count. An event that states none (an intent, a charge, a refund) and leads
// nowhere but by name is not believed, lest its references become the named order's before the money
// has said whose they are: it waits until one of them is known, and its claim counts where the money
// leads nowhere.
static bool name_counts(const event *e) {
    for (size_t i = 0; i < e->obs.n_facts; i++)
        if (e->obs.facts[i].kind == FACT_PAYMENT)
            return true;
    return e->obs.n_refs == 0;
}

// And only money that came teaches by it: of two sessions' worth of names the paid one's counts.
static bool may_teach(const event *e, const route *found) {
    bool paid = false;
    for (size_t i = 0; i < e->obs.n_facts; i++)
        paid |= e->obs.facts[i].kind == FACT_PAYMENT && e->obs.facts[i].state == STATE_PAID;
    return !found->named || paid;
}

static bool hold_all(const batch *b, const po_str *ids, size_t n, held_order **ret_held) {
    for (size_t i = 0; i < n; i++) {
        ret_held[i] = find_held(b, ids[i]);
        if (!ret_held[i])
            return false;
    }
    return true;
}

static void decide_event(batch *b, event *e) {
    bool unknown[OBS_MAX];
    route found = find_routes(b, e, unknown);
    if (found.n == 0) {
        wait_for_order(b, e);
        return;
    }
    if (found.named && !name_counts(e)) {
        wait_for_reference(b, e, found.orders[0]);
        return;
    }
    held_order *held[2] = {0}, *elsewhere[2] = {0};
    if (!hold_all(b, found.orders, found.n, held) ||
        !hold_all(b, found.elsewhere, found.n_elsewhere, elsewhere)) {
        leave_waiting(b, e, "order_busy");
        return;
    }
    if (found.n == 2 || found.foreign) {
        for (size_t i = 0; i < found.n; i++)
            decide_mismatch(b, e, held[i], found.n == 2 ? "route_conflict" : found.foreign);
        return;
    }
    observation *obs = po_alloc(b->arena, sizeof *obs);
    *obs = e->obs;
    if (may_teach(e, &found)) {
        teach(b, e, unknown, held[0]->order.id);
        learn_payments(b, e);
    }
    if (obs->needs_payment && !payment_known(b, e, held[0], &found, obs))
        return;
    for (size_t i = 0; i < found.n_elsewhere; i++)
        decide_mismatch(b, e, elsewhere[i], "named_elsewhere");
    if (obs->n_facts) {
        decide_on(b, e, held[0], obs);
        wake_payments(b, e);
    }
    if (!e->account)
        held[0]->expiry_swept = true;
}

static void decide_all(batch *b) {
    batch_writes *w = &b->writes;
    w->outcomes = po_alloc_array(b->arena, ROUTE_MAX * b->n_unique + 1, sizeof *w->outcomes);
    w->taught = po_alloc_array(b->arena, OBS_MAX * b->n_unique + 1, sizeof *w->taught);
    for (b->taught_mask = 1; b->taught_mask < 2 * OBS_MAX * b->n_unique; b->taught_mask *= 2) {
    }
    b->taught_at = po_alloc_array(b->arena, b->taught_mask, sizeof *b->taught_at);
    b->taught_mask--;
    w->learned = po_alloc_array(b->arena, b->n_unique + 1,
                                sizeof *w->learned); // an event names at most one charge
    w->waitings = po_alloc_array(b->arena, b->n_unique + 1, sizeof *w->waitings);
    w->woken = po_alloc_array(b->arena, 2 * OBS_MAX * b->n_unique + 1, sizeof *w->woken);
    for (size_t i = 0; i < b->n; i++) {
        event *e = b->events[i];
        e->outcome = NULL; // of an attempt that failed
        if (!e->id || e->obs.disposition != OBS_FACTS)
            continue;
        if (b->options->record_only)
            leave_waiting(b, e, "failed")->error = po_s(b->options->record_only);
        else
            decide_event(b, e);
    }
    w->orders = b->held;
    w->n_orders = b->n_held;
    b->report->undecided = w->n_waitings;
}

// --- Flight 3: write, COMMIT

static int compare_taught(const void *a, const void *b) {
    const known_ref *x = a, *y = b;
    int c = po_str_cmp(x->provider, y->provider);
    if (!c)
        c = po_str_cmp(x->kind, y->kind);
    if (!c)
        c = po_str_cmp(x->value, y->value);
    return c ? c : po_str_cmp(x->account, y->account);
}

// As its unique key sorts: two sessions that are told the same conflicts take them in one order.
static int compare_conflicts(const void *a, const void *b) {
    const event *x = *(event *const *)a, *y = *(event *const *)b;
    int c = compare_keys(x, y);
    return c ? c : memcmp(x->obs.digest, y->obs.digest, sizeof x->obs.digest);
}

static bool send_conflicts(batch *b, size_t *sends, po_err *err) {
    event **conflicts = po_alloc_array(b->arena, b->n + 1, sizeof *conflicts);
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++)
        if (b->keys[i]->same == EVENT_CONFLICT)
            conflicts[n++] = b->keys[i];
    if (n == 0 || b->options->token)
        return true;
    qsort(conflicts, n, sizeof *conflicts, compare_conflicts);
    *sends += 1;
    return store_send_conflicts(b->pg, b->arena, conflicts, n, err);
}

// Locks the undecided rows of all events, behind `sends` statements that wait for their sync. Ours:
// all are there still, under our token.
static bool hold_rows(batch *b, size_t sends, bool *ret_ours, po_err *err) {
    int64_t *ids = po_alloc_array(b->arena, b->n, sizeof *ids);
    for (size_t i = 0; i < b->n; i++)
        ids[i] = b->events[i]->id;
    po_args *args = po_args_new(b->arena);
    po_arg_i64s(args, ids, b->n);
    po_arg_uuid(args, *b->options->token);
    po_arg_texts(args, b->writes.woken, b->writes.n_woken);
    po_res **results = po_alloc_array(b->arena, sends + 1, sizeof *results);
    bool ok = po_pipe_send(b->pg, &SQL[HOLD_UNDECIDED], args, err) &&
              po_pipe_sync(b->pg, results, sends + 1, err);
    size_t ours = 0;
    for (int row = 0; ok && row < po_res_rows(results[sends]); row++)
        ours += po_res_bool(results[sends], row, 0);
    *ret_ours = ours == b->n;
    for (size_t i = 0; ok && i <= sends; i++)
        po_res_done(&results[i]);
    return ok;
}

static bool send_postponed(batch *b, const waiting *rows, size_t n, po_err *err) {
    int64_t *ids = po_alloc_array(b->arena, n, sizeof *ids);
    po_str *reasons = po_alloc_array(b->arena, n, sizeof *reasons);
    po_str *awaits = po_alloc_array(b->arena, n, sizeof *awaits);
    bool *strangers = po_alloc_array(b->arena, n, sizeof *strangers);
    for (size_t i = 0; i < n; i++) {
        strangers[i] = rows[i].stranger;
        ids[i] = rows[i].event;
        reasons[i] = po_s(rows[i].reason);
        awaits[i] = store_join(b->arena, rows[i].awaits, rows[i].n_awaits);
    }
    po_args *args = po_args_new(b->arena);
    po_arg_i64s(args, ids, n);
    po_arg_texts(args, reasons, n);
    po_arg_texts(args, awaits, n);
    po_arg_bools(args, strangers, n);
    return po_pipe_send(b->pg, &SQL[POSTPONE_UNDECIDED], args, err);
}

// What becomes of the undecided rows in hand: put off, or gone. `waitings` are in the events' order.
static bool send_rows(batch *b, const waiting *waitings, size_t n_waitings, po_err *err) {
    int64_t *decided = po_alloc_array(b->arena, b->n, sizeof *decided);
    size_t n = 0, waits = 0;
    for (size_t i = 0; i < b->n; i++)
        if (waits < n_waitings && waitings[waits].event == b->events[i]->id)
            waits++;
        else
            decided[n++] = b->events[i]->id;
    po_args *args = po_args_new(b->arena);
    po_arg_i64s(args, decided, n);
    return (n == 0 || po_pipe_send(b->pg, &SQL[DROP_UNDECIDED], args, err)) &&
           (waits == 0 || send_postponed(b, waitings, waits, err));
}

static bool third_flight(batch *b, po_tx *tx, po_err *err) {
    size_t sends = 0;
    if (b->writes.n_taught)
        qsort(b->writes.taught, b->writes.n_taught, sizeof *b->writes.taught, compare_taught);
    size_t waits = b->writes.n_waitings;
    if (b->options->token)
        b->writes.n_waitings = 0; // the rows are there already
    if (!send_conflicts(b, &sends, err) ||
        !store_send_writes(b->pg, b->arena, &b->writes, &sends, err))
        return false;
    if (b->options->token) {
        bool ours = false;
        if (!hold_rows(b, sends, &ours, err))
            return false;
        b->report->lost_lease = !ours;
        if (!ours) {
            po_tx_rollback(tx);
            return true;
        }
        if (!send_rows(b, b->writes.waitings, waits, err))
            return false;
    }
    return store_send_wake(b->pg, b->arena, &b->writes, &sends, err) && po_tx_commit(tx, err);
}

bool settle(po_pg *pg, po_arena *arena, event *const *events, size_t n,
            const settle_options *options, settle_report *ret_report, po_err *err) {
    *ret_report = (settle_report){.phase = PHASE_RECORD};
    batch b = {.pg = pg,
               .arena = arena,
               .options = options,
               .report = ret_report,
               .events = events,
               .n = n,
               .now_us = po_now_us()};
    sort_keys(&b);
    PO_AUTO(po_tx_done) po_tx tx = {0};
    bool ok = po_pipe_begin(pg, err) && first_flight(&b, &tx, err);
    if (ok) {
        ret_report->phase = PHASE_HOLD;
        ok = second_flight(&b, err);
    }
    if (ok) {
        decide_all(&b);
        ret_report->phase = PHASE_WRITE;
        ok = third_flight(&b, &tx, err);
    }
    po_res_done(&b.refs);
    po_res_done(&b.routes);
    po_err ignored;
    if (ok && !po_pipe_end(pg, &ignored))
        return true; // committed all the same; the pool drops the connection
    return ok;
}

event settle_expiry_event(po_arena *arena, po_str order_id, int64_t expires_at_us) {
    event e = {.provider = po_s("payonce"), .alias = po_s("clock"), .raw = po_s("")};
    e.obs = (observation){.disposition = OBS_FACTS,
                          .event_id =
                              po_s(po_printf(arena, "expired:%.*s", (int)order_id.n, order_id.p)),
                          .type = po_s("order.expired"),
                          .occurred_at_us = expires_at_us,
                          .order_id = order_id,
                          .n_facts = 1};
    e.obs.facts[0] = (fact){.kind = FACT_EXPIRY,
                            .provider = e.provider,
                            .account = e.alias,
                            .state = STATE_EXPIRED,
                            .amount = NO_AMOUNT,
                            .amount_most = NO_AMOUNT,
                            .at_us = expires_at_us};
    po_sha256(e.obs.event_id, e.obs.digest);
    po_sha256(e.raw, e.raw_sha256);
    return e;
}
