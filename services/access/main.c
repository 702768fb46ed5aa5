// access: the right to what was bought, kept in this service's own table and so created in the very transaction
// that takes the event in: no network, nothing in doubt. Three statements per qualified payment, in order: earlier
// generations of the order end (a further qualification says that the one before was taken back), the right is
// inserted under its stable key, and a request that finds its key taken is compared with what was granted. The
// recipient of a right is never overwritten. A late copy of an earlier generation ends nothing and comes to life
// no more.
#include "consumer/consumer.h"
#include "migration_files.h"
#include "right.h"

enum { ST_SUPERSEDE, ST_GRANT, ST_CONFLICT };
static const po_stmt statements[] = {
    // $1 order, $2 qualification, $3 decided at
    [ST_SUPERSEDE] = {"supersede",
                      "UPDATE access.access_right SET state = 'revoked', revoked_at = $3 "
                      "WHERE order_id = $1 AND qualification < $2 AND state = 'granted'"},
    // $1 key, $2 order, $3 customer, $4 purpose, $5 item, $6 qualification, $7 content, $8 decided at.
    // A row comes back when it was news.
    [ST_GRANT] =
        {"grant",
         "INSERT INTO access.access_right (operation_key, order_id, customer_id, purpose, item, "
         "qualification, content, granted_at, state, revoked_at) "
         "SELECT $1, $2, $3, $4, $5, $6, $7, $8, "
         "CASE WHEN later THEN 'revoked' ELSE 'granted' END, CASE WHEN later THEN $8 END "
         "FROM (SELECT EXISTS (SELECT FROM access.access_right WHERE order_id = $2 "
         "AND qualification > $6) AS later) AS generation "
         "ON CONFLICT (operation_key) DO NOTHING RETURNING true"},
    // $1 key, $2 content, $3 order, $4 customer, $5 purpose, $6 item, $7 event, $8 decided at. A row comes back for a
    // contradiction that is news.
    [ST_CONFLICT] = {"conflict",
                     "INSERT INTO access.conflict (operation_key, content, order_id, customer_id, "
                     "purpose, item, "
                     "event_id, decided_at) SELECT $1, $2, $3, $4, $5, $6, $7, $8 "
                     "FROM access.access_right WHERE operation_key = $1 AND content <> $2 "
                     "ON CONFLICT DO NOTHING RETURNING true"},
};

static bool on_compared(po_consumer_tx *tx, const po_delivery *delivery, const po_res *rows,
                        po_err *err) {
    (void)err;
    if (po_res_rows(rows) > 0)
        po_consumer_conflict(tx, delivery, "order, recipient, purpose or item of this right");
    return true;
}

static po_str content_of(po_arena *arena, const po_payment_event *event) {
    uint8_t *content = po_alloc(arena, 32);
    right_content(event->order_id, event->customer_id, event->purpose, event->item, content);
    return (po_str){(const char *)content, 32};
}

// The key was taken. What it was granted for is read by a statement of its own: it may have been committed by
// another session after the insert's snapshot.
static bool on_granted(po_consumer_tx *tx, const po_delivery *delivery, const po_res *rows,
                       po_err *err) {
    (void)err;
    if (po_res_rows(rows) > 0)
        return true;
    const po_payment_event *event = delivery->payment;
    po_args *args = po_args_new(tx->arena);
    po_arg_text(args, right_key(tx->arena, event->order_id, event->qualification));
    po_arg_bytea(args, content_of(tx->arena, event));
    po_arg_text(args, event->order_id);
    po_arg_text(args, event->customer_id);
    po_arg_text(args, event->purpose);
    po_arg_text(args, event->item);
    po_arg_uuid(args, event->event_id);
    po_arg_time(args, event->decided_at_us);
    po_consumer_send(tx, delivery, &statements[ST_CONFLICT], args, on_compared);
    return true;
}

static bool on_qualified(po_consumer_tx *tx, const po_delivery *delivery, po_err *err) {
    (void)err;
    const po_payment_event *event = delivery->payment;
    if (event->qualification > 1) {
        po_args *args = po_args_new(tx->arena);
        po_arg_text(args, event->order_id);
        po_arg_i32(args, event->qualification);
        po_arg_time(args, event->decided_at_us);
        po_consumer_send(tx, delivery, &statements[ST_SUPERSEDE], args, NULL);
    }
    po_args *args = po_args_new(tx->arena);
    po_arg_text(args, right_key(tx->arena, event->order_id, event->qualification));
    po_arg_text(args, event->order_id);
    po_arg_text(args, event->customer_id);
    po_arg_text(args, event->purpose);
    po_arg_text(args, event->item);
    po_arg_i32(args, event->qualification);
    po_arg_bytea(args, content_of(tx->arena, event));
    po_arg_time(args, event->decided_at_us);
    po_consumer_send(tx, delivery, &statements[ST_GRANT], args, on_granted);
    return true;
}

static const po_consumer_route routes[] = {
    {PO_TOPIC_PAYMENTS, "payment.qualified", on_qualified},
    {PO_TOPIC_PAYMENTS, "*", NULL}, // no other event gives a right
    {0},
};

static const po_consumer consumer = {
    .name = "access",
    .about = "Gives the right to what was bought, once per paid order.",
    .routes = routes,
    .migrations = migration_files,
};

int main(int argc, char **argv) {
    return po_consumer_main(argc, argv, &consumer);
}
