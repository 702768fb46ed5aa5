// Loyalty: an order gives the points that its position says (points.h), entry by entry,
// points:ORDER:SEQUENCE. A sequence not above the order's last one moves no row, so neither a
// repeated event nor an older one that comes late gives or takes anything.
#include "migration_files.h"
#include "consumer/consumer.h"
#include "points.h"

enum { MOVE, TOUCH_CUSTOMER };

static const po_stmt sql[] = {
    // The row lock of the order and the entry. $6: the new points, NULL: as they are. Answers:
    // by how much the points moved, NULL: not at all | another position under this sequence.
    [MOVE] = {"move",
              "WITH moved AS ("
              " INSERT INTO loyalty.order_points AS p"
              " VALUES ($1, $2, $3, $4, coalesce($6::bigint, 0),"
              "  coalesce($6::bigint, 0))"
              " ON CONFLICT (order_id) DO UPDATE SET"
              "  last_sequence = excluded.last_sequence, position = excluded.position,"
              "  points = coalesce($6::bigint, p.points),"
              "  moved = coalesce($6::bigint, p.points) - p.points"
              " WHERE p.last_sequence < excluded.last_sequence"
              " RETURNING p.moved), "
              "entry AS ("
              " INSERT INTO loyalty.points_entry (entry_key, order_id, customer_id, sequence,"
              "  event_id, delta, occurred_at)"
              " SELECT $5, $1, $2, $3, $7, moved, $8 FROM moved WHERE moved <> 0) "
              "SELECT (SELECT moved FROM moved), EXISTS (SELECT FROM loyalty.order_points"
              " WHERE order_id = $1 AND last_sequence = $3 AND position <> $4)"},
    // Several orders share a customer. $3: of a qualified payment, else NULL. A row proposed for
    // insertion must pass the checks even when it then is an update, hence greatest().
    [TOUCH_CUSTOMER] = {"touch_customer",
                        "INSERT INTO loyalty.customer AS c (customer_id, points, last_visit)"
                        " VALUES ($1, greatest($2, 0), $3) ON CONFLICT (customer_id) DO UPDATE SET"
                        " points = c.points + $2, last_visit = greatest(c.last_visit, $3)"},
};

static bool moved(po_consumer_tx *tx, const po_delivery *d, const po_res *rows, po_err *err) {
    (void)err;
    const po_payment_event *e = d->payment;
    if (po_res_null(rows, 0, 0)) {
        if (po_res_bool(rows, 0, 1))
            po_consumer_conflict(tx, d, "position of an applied sequence");
        return true;
    }
    bool visit = po_str_is(e->type, "payment.qualified");
    int64_t delta = po_res_i64(rows, 0, 0);
    if (delta == 0 && !visit)
        return true;
    po_args *args = po_args_new(tx->arena);
    po_arg_text(args, e->customer_id);
    po_arg_i64(args, delta);
    po_arg_time(args, visit ? e->occurred_at_us : PO_NO_TIME);
    po_consumer_send_shared(tx, e->customer_id, &sql[TOUCH_CUSTOMER], args);
    return true;
}

static bool to_target(po_consumer_tx *tx, const po_delivery *d, po_err *err) {
    const po_payment_event *e = d->payment;
    int64_t points = 0;
    bool keep = false;
    if (!points_target(tx->state, e, &points, &keep, err))
        return false;
    po_args *args = po_args_new(tx->arena);
    po_arg_text(args, e->order_id);
    po_arg_text(args, e->customer_id);
    po_arg_i64(args, e->sequence);
    po_arg_text(args, po_position_text(tx->arena, e));
    po_arg_text(args, entry_key(tx->arena, e->order_id, e->sequence));
    if (keep)
        po_arg_null(args);
    else
        po_arg_i64(args, points);
    po_arg_uuid(args, e->event_id);
    po_arg_time(args, e->occurred_at_us);
    po_consumer_send(tx, d, &sql[MOVE], args, moved);
    return true;
}

static const po_consumer_route routes[] = {
    {PO_TOPIC_PAYMENTS, "payment.adjusted", to_target},
    {PO_TOPIC_PAYMENTS, "payment.qualified", to_target},
    {PO_TOPIC_PAYMENTS, "payment.refunded", to_target},
    {PO_TOPIC_PAYMENTS, "payment.reversed", to_target},
    {0},
};

static const po_setting settings[] = {
    {"LOYALTY_RULES", PO_SET_TEXT, "USD/2=100,BTC/11=100000", 0, 0,
     "One point per that many minor units of what is due, a rule per unit, "
     "`USD/2=100,BTC/11=100000`; a unit without a rule gives none."},
    {0},
};

static bool read_rules(const po_config *config, points_rules *ret_rules, po_err *err) {
    return rules_parse(po_s(po_config_text(config, "LOYALTY_RULES")), ret_rules, err) ||
           po_wrap(err, "PAYONCE_LOYALTY_RULES");
}

static bool check(const po_config *config, po_err *err) {
    points_rules unused;
    return read_rules(config, &unused, err);
}

static bool start(const po_config *config, const po_pg_options *pg, void **ret_state, po_err *err) {
    (void)pg;
    static points_rules in_force;
    *ret_state = &in_force;
    return read_rules(config, &in_force, err);
}

static const po_consumer loyalty = {
    .name = "loyalty",
    .about = "Gives points once per paid order and takes them back in proportion.",
    .routes = routes,
    .migrations = migration_files,
    .settings = settings,
    .check = check,
    .start = start,
};

int main(int argc, char **argv) {
    return po_consumer_main(argc, argv, &loyalty);
}
