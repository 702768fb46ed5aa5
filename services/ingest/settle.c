// The flights. What an event that comes in needs (its insert, its comparison) and what an undecided
// one needs (its row held, and gone) are two short functions over the same look-ups, holds, decisions
// and writes. keys.c tells same from different, deciding.c decides, store.c and undecided_rows.c
// have the statements.
#include "base/cleanup.h"
#include "base/clock.h"
#include "batch.h"
#include "log/log.h"

static const po_stmt SET_LOCK_TIMEOUT = {"set_lock_timeout",
                                         "SELECT set_config('lock_timeout', $1::text, true)"};

// Statements sent and their results: `take` is the place of the next one.
enum { FLIGHT_MAX = 16 };
typedef struct flight {
    po_res *results[FLIGHT_MAX];
    size_t sends;
} flight;

static void flight_done(flight *f) {
    for (size_t i = 0; i < f->sends; i++)
        po_res_done(&f->results[i]);
}

static bool sync(const batch *b, flight *f, po_err *err) {
    return f->sends == 0 || po_pipe_sync(b->pg, f->results, f->sends, err);
}

// --- Looking up routes: the first flight

typedef struct look_up {
    size_t refs_at, orders_at; // in the flight; SIZE_MAX: not asked
} look_up;

static bool send_look_up(batch *b, flight *f, look_up *ret_asked, po_err *err) {
    *ret_asked = (look_up){SIZE_MAX, SIZE_MAX};
    known_ref *asked = po_alloc_array(b->arena, ROUTE_ASKS * b->n_unique + 1, sizeof *asked);
    po_str *orders = po_alloc_array(b->arena, 2 * b->n_unique + 1, sizeof *orders);
    size_t n_asked = 0, n_orders = 0;
    for (size_t i = 0; i < b->n_unique; i++) {
        speaker s = speaker_of(b->unique[i]);
        routes_ask(&s, b->arena, asked, &n_asked);
        b->unique[i]->first_ref = s.first_ref;
        n_orders += routes_named(&s, orders + n_orders);
    }
    if (n_asked) {
        ret_asked->refs_at = f->sends++;
        if (!store_send_refs(b->pg, b->arena, asked, n_asked, err))
            return false;
    }
    if (n_orders) {
        ret_asked->orders_at = f->sends++;
        return store_send_routes(b->pg, b->arena, orders, n_orders, err);
    }
    return true;
}

static void read_look_up(batch *b, const flight *f, look_up asked) {
    if (asked.refs_at != SIZE_MAX)
        b->routes.refs = store_read_refs(b->arena, f->results[asked.refs_at], &b->routes.n_refs);
    if (asked.orders_at != SIZE_MAX)
        b->routes.orders =
            store_read_routes(b->arena, f->results[asked.orders_at], &b->routes.n_orders);
}

static bool send_begin(batch *b, po_tx *tx, flight *f, po_err *err) {
    b->routes.arena = b->arena;
    f->sends = 1;
    if (!po_tx_send_begin(b->pg, tx, err))
        return false;
    if (!b->options->lock_timeout_ms)
        return true;
    po_args *args = po_args_new(b->arena);
    po_arg_text(args, po_s(po_printf(b->arena, "%d", b->options->lock_timeout_ms)));
    f->sends++;
    return po_pipe_send(b->pg, &SET_LOCK_TIMEOUT, args, err);
}

static bool look_up_fresh(batch *b, po_tx *tx, po_err *err) {
    PO_AUTO(flight_done) flight f = {0};
    look_up asked = {SIZE_MAX, SIZE_MAX};
    if (!send_begin(b, tx, &f, err) ||
        !store_send_events(b->pg, b->arena, b->unique, b->n_unique, err))
        return false;
    size_t recorded_at = f.sends++;
    if ((!b->options->record_only && !send_look_up(b, &f, &asked, err)) || !sync(b, &f, err))
        return false;
    keys_note_recorded(b, f.results[recorded_at]);
    read_look_up(b, &f, asked);
    return true;
}

static bool look_up_claimed(batch *b, po_tx *tx, po_err *err) {
    PO_AUTO(flight_done) flight f = {0};
    look_up asked;
    if (!send_begin(b, tx, &f, err) || !send_look_up(b, &f, &asked, err) || !sync(b, &f, err))
        return false;
    read_look_up(b, &f, asked);
    return true;
}

// --- Holding orders: the second flight

static bool send_hold(batch *b, flight *f, size_t *ret_at, po_err *err) {
    po_str *ids = NULL;
    size_t n = b->options->record_only ? 0 : deciding_orders(b, &ids);
    *ret_at = n ? f->sends : SIZE_MAX;
    f->sends += n ? STORE_HOLD_SENDS : 0;
    return n == 0 || store_send_hold(b->pg, b->arena, ids, n, b->options->skip_locked, err);
}

static bool read_hold(batch *b, const flight *f, size_t at, po_err *err) {
    return at == SIZE_MAX || store_read_hold(b->arena, &f->results[at], &b->held, &b->n_held, err);
}

static bool hold_fresh(batch *b, po_err *err) {
    PO_AUTO(flight_done) flight f = {0};
    size_t n, at;
    event **repeats = keys_repeats(b, &n);
    f.sends = n > 0;
    return (n == 0 || store_send_compare(b->pg, b->arena, repeats, n, err)) &&
           send_hold(b, &f, &at, err) && sync(b, &f, err) &&
           keys_note_same(b, n ? f.results[0] : NULL, err) && read_hold(b, &f, at, err);
}

// Of orders that others hold nothing is read: one may have many thousands of facts.
static bool hold_free(batch *b, const po_str *ids, size_t n, po_err *err) {
    PO_AUTO(flight_done) flight f = {.sends = 1};
    if (!store_send_lock(b->pg, b->arena, ids, n, true, err) || !sync(b, &f, err))
        return false;
    size_t n_held = (size_t)po_res_rows(f.results[0]);
    po_str *held = po_alloc_array(b->arena, n_held + 1, sizeof *held);
    for (size_t i = 0; i < n_held; i++)
        held[i] = po_res_text(f.results[0], (int)i, 0);
    if (n_held == 0)
        return true;
    if (!store_send_read(b->pg, b->arena, held, n_held, err) ||
        !po_pipe_sync(b->pg, f.results + 1, STORE_HOLD_SENDS - 1, err))
        return false;
    f.sends = STORE_HOLD_SENDS;
    return read_hold(b, &f, 0, err);
}

static bool hold_claimed(batch *b, po_err *err) {
    PO_AUTO(flight_done) flight f = {0};
    size_t at;
    if (b->options->skip_locked) {
        po_str *ids;
        size_t n = deciding_orders(b, &ids);
        return n == 0 || hold_free(b, ids, n, err);
    }
    return send_hold(b, &f, &at, err) && sync(b, &f, err) && read_hold(b, &f, at, err);
}

// --- Writing: the third flight

static bool send_wake(const batch *b, po_err *err) {
    return undecided_send_wake(b->pg, b->arena, b->woken, b->n_woken, err);
}

static bool write_fresh(batch *b, po_tx *tx, po_err *err) {
    size_t n, sends = 0;
    event **conflicts = keys_conflicts(b, &n);
    return (n == 0 || store_send_conflicts(b->pg, b->arena, conflicts, n, err)) &&
           store_send_writes(b->pg, b->arena, &b->writes, &sends, err) &&
           undecided_send_new(b->pg, b->arena, b->waitings, b->n_waitings, err) &&
           send_wake(b, err) && po_tx_commit(tx, err);
}

// Locks the undecided rows of all events. Ours: all are there still, under our token.
static bool hold_rows(batch *b, size_t sends, po_uuid token, bool *ret_ours, po_err *err) {
    PO_AUTO(flight_done) flight f = {.sends = sends + 1};
    int64_t *ids = po_alloc_array(b->arena, b->n, sizeof *ids);
    for (size_t i = 0; i < b->n; i++)
        ids[i] = b->events[i]->id;
    if (!undecided_send_hold(b->pg, b->arena, ids, b->n, token, b->woken, b->n_woken, err) ||
        !sync(b, &f, err))
        return false;
    size_t ours = 0;
    for (int row = 0; row < po_res_rows(f.results[sends]); row++)
        ours += po_res_bool(f.results[sends], row, 0);
    *ret_ours = ours == b->n;
    return true;
}

// What becomes of the rows in hand: put off, or gone. The waiting are in the events' order.
static bool send_rows(batch *b, po_err *err) {
    int64_t *decided = po_alloc_array(b->arena, b->n, sizeof *decided);
    size_t n = 0, waits = 0;
    for (size_t i = 0; i < b->n; i++)
        if (waits < b->n_waitings && b->waitings[waits].event == b->events[i]->id)
            waits++;
        else
            decided[n++] = b->events[i]->id;
    return undecided_send_gone(b->pg, b->arena, decided, n, err) &&
           undecided_send_postponed(b->pg, b->arena, b->waitings, waits, err);
}

static bool write_claimed(batch *b, po_tx *tx, po_uuid token, po_err *err) {
    size_t sends = 0;
    bool ours = false;
    if (!store_send_writes(b->pg, b->arena, &b->writes, &sends, err) ||
        !hold_rows(b, sends, token, &ours, err))
        return false;
    b->report->lost_lease = !ours;
    if (!ours) {
        po_tx_rollback(tx);
        return true;
    }
    return send_rows(b, err) && send_wake(b, err) && po_tx_commit(tx, err);
}

// --- The whole

static batch batch_of(po_pg *pg, po_arena *arena, event *const *events, size_t n,
                      const settle_options *options, settle_report *report) {
    *report = (settle_report){.phase = PHASE_RECORD};
    batch b = {.pg = pg,
               .arena = arena,
               .options = options,
               .report = report,
               .events = events,
               .n = n,
               .now_us = po_now_us()};
    keys_sort(&b);
    return b;
}

// Committed all the same when the pipeline does not end well; the pool drops the connection.
static bool ended(po_pg *pg) {
    po_err ignored;
    (void)!po_pipe_end(pg, &ignored);
    return true;
}

bool settle(po_pg *pg, po_arena *arena, event *const *events, size_t n,
            const settle_options *options, settle_report *ret_report, po_err *err) {
    batch b = batch_of(pg, arena, events, n, options, ret_report);
    PO_AUTO(po_tx_done) po_tx tx = {0};
    if (!po_pipe_begin(pg, err) || !look_up_fresh(&b, &tx, err))
        return false;
    ret_report->phase = PHASE_HOLD;
    if (!hold_fresh(&b, err))
        return false;
    deciding_all(&b);
    ret_report->phase = PHASE_WRITE;
    return write_fresh(&b, &tx, err) && ended(pg);
}

bool settle_claimed(po_pg *pg, po_arena *arena, event *const *events, size_t n, po_uuid token,
                    bool skip_locked, settle_report *ret_report, po_err *err) {
    settle_options options = {.skip_locked = skip_locked};
    batch b = batch_of(pg, arena, events, n, &options, ret_report);
    PO_AUTO(po_tx_done) po_tx tx = {0};
    if (!po_pipe_begin(pg, err) || !look_up_claimed(&b, &tx, err))
        return false;
    ret_report->phase = PHASE_HOLD;
    if (!hold_claimed(&b, err))
        return false;
    deciding_all(&b);
    ret_report->phase = PHASE_WRITE;
    return write_claimed(&b, &tx, token, err) && ended(pg);
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
