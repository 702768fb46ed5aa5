// Deciding a batch: each event finds its order, and moves it, waits, or is evidence. No row is read
// or written here; what is to be written is gathered.
#include "batch.h"
#include <stdlib.h>

speaker speaker_of(const event *e) {
    return (speaker){.account = e->account,
                     .provider = e->provider,
                     .alias = e->alias,
                     .obs = &e->obs,
                     .first_ref = e->first_ref};
}

static int compare_ids(const void *a, const void *b) {
    return po_str_cmp(*(const po_str *)a, *(const po_str *)b);
}

enum { EVENT_ORDERS = ROUTE_ORDERS + ROUTE_ELSEWHERE }; // that an event may touch

size_t deciding_orders(const batch *b, po_str **ret_ids) {
    po_str *ids = po_alloc_array(b->arena, EVENT_ORDERS * b->n_unique + 1, sizeof *ids);
    size_t n = 0;
    for (size_t i = 0; i < b->n_unique; i++) {
        const event *e = b->unique[i];
        if (!e->id || e->obs.disposition != OBS_FACTS)
            continue;
        bool unknown[OBS_MAX];
        speaker s = speaker_of(e);
        route found = routes_find(&b->routes, &s, unknown);
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

// --- Waiting

static waiting *leave_waiting(batch *b, const event *e, const char *reason) {
    waiting *w = &b->waitings[b->n_waitings++];
    *w = (waiting){.event = e->id, .reason = reason};
    return w;
}

static po_str await_own(const batch *b, const event *e, size_t i) {
    const reference *ref = &e->obs.refs[i];
    return await_ref(b->arena, e->provider, e->alias, ref->kind, ref->value);
}

static void await_refs(const batch *b, const event *e, waiting *w) {
    for (size_t i = 0; i < e->obs.n_refs; i++)
        w->awaits[w->n_awaits++] = await_own(b, e, i);
}

static void wake_ref(batch *b, const event *e, size_t i) {
    b->woken[b->n_woken++] = await_own(b, e, i);
}

static void wait_for_order(batch *b, const event *e) {
    waiting *w = leave_waiting(b, e, "order_unknown");
    await_refs(b, e, w);
    if (e->obs.order_id.n)
        w->awaits[w->n_awaits++] = await_order(b->arena, e->obs.order_id);
    bool counts = e->account && e->account->client_reference;
    w->stranger = w->n_awaits == e->obs.n_refs && !(counts && e->obs.client_reference.n);
    if (e->obs.client_reference.n) // also where it does not count: the setting may be mended
        w->awaits[w->n_awaits++] = await_order(b->arena, e->obs.client_reference);
}

// Waits until a reference is known, and claims them all where one order is named: the payment may
// lead nowhere but here.
static void wait_for_reference(batch *b, const event *e, const route *found) {
    speaker s = speaker_of(e);
    for (size_t i = 0; found->n == 1 && i < e->obs.n_refs; i++)
        if (routes_claim(&b->routes, &s, i, found->orders[0]))
            wake_ref(b, e, i);
    waiting *w =
        leave_waiting(b, e, e->obs.needs_payment ? "payment_unknown" : "reference_unknown");
    await_refs(b, e, w);
    w->stranger = e->obs.n_facts == 0 || found->n > 1; // no money hangs on it
}

// A refund is applied only when its own payment is known. True when it may be decided now.
static bool payment_known(batch *b, const event *e, const held_order *held, const route *found,
                          observation *obs) {
    po_str payment = obs->awaits_payment.n ? obs->awaits_payment : found->payment;
    if (!payment.n) {
        await_refs(b, e, leave_waiting(b, e, "payment_unknown"));
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

// --- Teaching

static void teach(batch *b, const event *e, const bool unknown[OBS_MAX], po_str order_id,
                  known_by by) {
    speaker s = speaker_of(e);
    for (size_t i = 0; i < e->obs.n_refs; i++)
        if (unknown[i] && routes_teach(&b->routes, &s, i, order_id, by))
            wake_ref(b, e, i);
}

// What the shop, or a refund, named without its payment learns it, where refunds find the payment by
// it alone.
static void learn_payments(batch *b, const event *e) {
    speaker s = speaker_of(e);
    for (size_t i = 0; i < e->obs.n_refs; i++) {
        const reference *ref = &e->obs.refs[i];
        const ref_kind *kind = ref_kind_find(e->provider, ref->kind);
        if (kind && kind->finds_payment && ref->payment.n && !routes_payment(&b->routes, &s, i).n) {
            b->writes.learned[b->writes.n_learned++] = (known_ref){.provider = e->provider,
                                                                   .kind = ref->kind,
                                                                   .value = ref->value,
                                                                   .account = e->alias,
                                                                   .payment = ref->payment};
            wake_ref(b, e, i);
        }
    }
}

static void wake_payments(batch *b, const event *e) {
    for (size_t i = 0; i < e->obs.n_facts; i++) {
        const fact *f = &e->obs.facts[i];
        if (f->kind == FACT_PAYMENT && f->state == STATE_PAID)
            b->woken[b->n_woken++] = await_payment(b->arena, e->provider, e->alias, f->object);
    }
}

// --- Deciding

static held_order *find_held(const batch *b, po_str order_id) {
    return store_find_held(b->held, b->n_held, order_id);
}

static bool hold_all(const batch *b, const po_str *ids, size_t n, held_order **ret_held) {
    for (size_t i = 0; i < n; i++) {
        ret_held[i] = find_held(b, ids[i]);
        if (!ret_held[i])
            return false;
    }
    return true;
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
    o->facts_json = store_changes_json(b->arena, &held->facts);
    b->report->emitted += o->decision.emits != EVENT_NONE;
}

// Evidence without money: the event cannot be this order's, or cannot be one order's.
static void decide_mismatch(batch *b, event *e, held_order *held, po_str reason) {
    observation *obs = po_alloc(b->arena, sizeof *obs);
    *obs = e->obs;
    obs->needs_payment = false;
    obs->profile = (po_str){0};
    obs->n_facts = 1;
    obs->facts[0] = (fact){.kind = FACT_MISMATCH,
                           .provider = e->provider,
                           .account = e->alias,
                           .object = reason,
                           .amount = NO_AMOUNT,
                           .amount_most = NO_AMOUNT,
                           .at_us = e->obs.occurred_at_us};
    decide_on(b, e, held, obs);
}

// The payment that a conflict of words is about: it counts at none of the orders. References of the
// shop's that are in conflict have let no money in.
static po_str conflict_reason(const batch *b, const event *e, const route *found) {
    po_str payment = e->obs.awaits_payment.n ? e->obs.awaits_payment : found->payment;
    for (size_t i = 0; i < e->obs.n_facts; i++)
        if (e->obs.facts[i].kind == FACT_PAYMENT)
            payment = e->obs.facts[i].object;
    for (size_t i = 0; !payment.n && i < e->obs.n_refs; i++)
        payment = e->obs.refs[i].payment;
    if (found->by == KNOWN_BY_SHOP || !payment.n)
        return po_s(ROUTE_CONFLICT);
    return po_s(po_printf(b->arena, ROUTE_CONFLICT_OF "%.*s", (int)payment.n, payment.p));
}

// What else names this payment meets the conflict, too; of the two orders its references are kept
// with the first by name, whichever came first.
static void decide_conflict(batch *b, event *e, const route *found, const bool unknown[OBS_MAX],
                            held_order *const held[ROUTE_ORDERS]) {
    po_str first = found->orders[0], reason = conflict_reason(b, e, found);
    for (size_t i = 0; i < found->n; i++) {
        first = po_str_cmp(found->orders[i], first) < 0 ? found->orders[i] : first;
        decide_mismatch(b, e, held[i], reason);
    }
    if (found->by != KNOWN_BY_SHOP) {
        teach(b, e, unknown, first, KNOWN_BY_CONFLICT);
        learn_payments(b, e);
    }
}

// The event is this order's. Only money that came makes references the order's that is named: of two
// sessions' worth of names the paid one's counts.
static void decide_own(batch *b, event *e, const route *found, const bool unknown[OBS_MAX],
                       held_order *held, held_order *const elsewhere[ROUTE_ELSEWHERE]) {
    observation *obs = po_alloc(b->arena, sizeof *obs);
    *obs = e->obs;
    if (!found->by_word || brings_money(&e->obs)) {
        teach(b, e, unknown, held->order.id, found->by);
        learn_payments(b, e);
    }
    if (obs->needs_payment && !payment_known(b, e, held, found, obs))
        return;
    for (size_t i = 0; i < found->n_elsewhere; i++)
        decide_mismatch(b, e, elsewhere[i], po_s("named_elsewhere"));
    if (obs->n_facts) {
        decide_on(b, e, held, obs);
        wake_payments(b, e);
    }
    if (!e->account)
        held->expiry_swept = true;
}

// Only money makes a name count. An event that states none (an intent, a charge, a refund) and leads
// nowhere but by name is not believed, lest its references become the named order's before the money
// has said whose they are: it waits until one of them is known, and its claim counts where the money
// names nobody. Words that differ about money that has not come move nothing.
static bool name_counts(const event *e, const route *found) {
    return speaks_of_payment(&e->obs) && (!found->conflict || brings_money(&e->obs));
}

static void decide_event(batch *b, event *e) {
    bool unknown[OBS_MAX];
    speaker s = speaker_of(e);
    route found = routes_find(&b->routes, &s, unknown);
    held_order *held[ROUTE_ORDERS] = {0}, *elsewhere[ROUTE_ELSEWHERE] = {0};
    if (found.n == 0)
        wait_for_order(b, e);
    else if (found.by_word && !name_counts(e, &found))
        wait_for_reference(b, e, &found);
    else if (!hold_all(b, found.orders, found.n, held) ||
             !hold_all(b, found.elsewhere, found.n_elsewhere, elsewhere))
        leave_waiting(b, e, "order_busy");
    else if (found.conflict)
        decide_conflict(b, e, &found, unknown, held);
    else if (found.foreign)
        decide_mismatch(b, e, held[0], po_s(found.foreign));
    else
        decide_own(b, e, &found, unknown, held[0], elsewhere);
}

void deciding_all(batch *b) {
    batch_writes *w = &b->writes;
    w->outcomes = po_alloc_array(b->arena, EVENT_ORDERS * b->n_unique + 1, sizeof *w->outcomes);
    w->learned = po_alloc_array(b->arena, OBS_MAX * b->n_unique + 1, sizeof *w->learned);
    b->waitings = po_alloc_array(b->arena, b->n_unique + 1, sizeof *b->waitings);
    b->woken = po_alloc_array(b->arena, 3 * OBS_MAX * b->n_unique + 1, sizeof *b->woken);
    routes_init(&b->routes, b->arena, b->n_unique);
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
    w->taught = b->routes.taught;
    w->n_taught = b->routes.n_taught;
    w->orders = b->held;
    w->n_orders = b->n_held;
    b->report->undecided = b->n_waitings;
}
