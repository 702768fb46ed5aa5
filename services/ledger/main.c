// The ledger: every event that moves an order's money becomes one balanced journal,
// journal:ORDER:SEQUENCE, from what is booked to where the event's position says it belongs
// (target.h). Nothing is summed from events, so a repeated one, or an older one that comes late,
// changes nothing: a sequence not above the last one moves no row.
#include "migration_files.h"
#include "consumer/consumer.h"
#include "target.h"

enum { BOOK };

// One statement: the row lock of the order, the journal and its lines. The clearing leg is the
// account of the event's provider; an order paid through two accounts has a leg on each. Answers:
// moved | another position was booked under this sequence | the order is kept in another unit.
static const po_stmt sql[] = {
    [BOOK] = {"book",
              "WITH moved AS ("
              " INSERT INTO ledger.order_position AS p"
              " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $6, $7, $8, $9)"
              " ON CONFLICT (order_id) DO UPDATE SET"
              "  last_sequence = excluded.last_sequence, position = excluded.position,"
              "  net = excluded.net, moved_net = excluded.net - p.net,"
              "  revenue = excluded.revenue, moved_revenue = excluded.revenue - p.revenue,"
              "  customer_credit = excluded.customer_credit,"
              "  moved_customer_credit = excluded.customer_credit - p.customer_credit,"
              "  suspense = excluded.suspense, moved_suspense = excluded.suspense - p.suspense"
              " WHERE p.last_sequence < excluded.last_sequence"
              "  AND p.currency = excluded.currency AND p.exponent = excluded.exponent"
              " RETURNING p.*), "
              "leg AS ("
              " SELECT account, amount FROM moved, LATERAL (VALUES"
              "  ($10, moved_net), ('revenue', -moved_revenue), ('suspense', -moved_suspense),"
              "  ('customer_credit', -moved_customer_credit)) AS l (account, amount)"
              " WHERE amount <> 0), "
              "head AS ("
              " INSERT INTO ledger.journal (journal_id, order_id, sequence, position,"
              "  event_id, event_type, occurred_at)"
              " SELECT $11, $1, $2, $3, $12, $13, $14 WHERE EXISTS (SELECT FROM leg)), "
              "lines AS ("
              " INSERT INTO ledger.journal_line (journal_id, account, amount, currency, exponent)"
              " SELECT $11, account, amount, $4, $5 FROM leg) "
              "SELECT EXISTS (SELECT FROM moved),"
              " EXISTS (SELECT FROM ledger.order_position"
              "  WHERE order_id = $1 AND last_sequence = $2 AND position <> $3)"
              " OR EXISTS (SELECT FROM ledger.journal WHERE journal_id = $11 AND position <> $3),"
              " EXISTS (SELECT FROM ledger.order_position"
              "  WHERE order_id = $1 AND last_sequence < $2 AND (currency, exponent) <> ($4, $5))"},
};

static bool booked(po_consumer_tx *tx, const po_delivery *d, const po_res *rows, po_err *err) {
    if (po_res_bool(rows, 0, 0))
        return true;
    if (po_res_bool(rows, 0, 2))
        return po_fail(err, PO_REFUSED, "unit", "the order is kept in another unit");
    if (po_res_bool(rows, 0, 1))
        po_consumer_conflict(tx, d, "position of a booked sequence");
    return true;
}

// A move that no provider stated (the shop's cancel) still finds money when the ledger has not seen the events before
// it: where that lies is for a person to say, and no reason to stand still.
static po_str clearing_of(po_arena *arena, const po_payment_event *e) {
    if (e->provider.n == 0 || e->account.n == 0)
        return po_s("clearing:unknown:unknown");
    return po_s(po_printf(arena, "clearing:%.*s:%.*s", (int)e->provider.n, e->provider.p,
                          (int)e->account.n, e->account.p));
}

static bool to_target(po_consumer_tx *tx, const po_delivery *d, po_err *err) {
    (void)err;
    const po_payment_event *e = d->payment;
    target to = target_of(e);
    po_args *args = po_args_new(tx->arena);
    po_arg_text(args, e->order_id);
    po_arg_i64(args, e->sequence);
    po_arg_text(args, po_position_text(tx->arena, e));
    po_arg_text(args, po_s(e->unit.currency));
    po_arg_i32(args, e->unit.exponent);
    po_arg_i64(args, to.net);
    po_arg_i64(args, to.revenue);
    po_arg_i64(args, to.customer_credit);
    po_arg_i64(args, to.suspense);
    po_arg_text(args, clearing_of(tx->arena, e));
    po_arg_text(args, journal_key(tx->arena, e->order_id, e->sequence));
    po_arg_uuid(args, e->event_id);
    po_arg_text(args, e->type);
    po_arg_time(args, e->occurred_at_us);
    po_consumer_send(tx, d, &sql[BOOK], args, booked);
    return true;
}

static const po_consumer_route routes[] = {
    {PO_TOPIC_PAYMENTS, "payment.pending", to_target},
    {PO_TOPIC_PAYMENTS, "payment.canceled", to_target},
    {PO_TOPIC_PAYMENTS, "payment.failed", to_target},
    {PO_TOPIC_PAYMENTS, "payment.adjusted", to_target},
    {PO_TOPIC_PAYMENTS, "payment.review_required", to_target},
    {PO_TOPIC_PAYMENTS, "payment.qualified", to_target},
    {PO_TOPIC_PAYMENTS, "payment.refunded", to_target},
    {PO_TOPIC_PAYMENTS, "payment.reversed", to_target},
    {0},
};

static const po_consumer ledger = {
    .name = "ledger",
    .about = "Books every movement of an order's money as one balanced journal, append-only.",
    .routes = routes,
    .migrations = migration_files,
};

int main(int argc, char **argv) {
    return po_consumer_main(argc, argv, &ledger);
}
