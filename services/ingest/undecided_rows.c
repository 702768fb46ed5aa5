// One statement for each thing that becomes of rows, set-based (store.c says why they look as they
// do). Rows are locked by event, so that two workers may wake each other's.
#include "undecided_rows.h"
#include "columns.h"
#include "store.h"

enum { PUT, HOLD, DROP, POSTPONE, WAKE };
static const po_stmt SQL[] = {
    // What awaits nothing can be decided now. The look at what waits is for what was uncommitted
    // when it was read; a stranger, whom its references wake, is looked at twice in all.
    [PUT] = {"put_undecided",
             "INSERT INTO ingest.undecided (event, reason, awaits, unmatched, woken_at, due_at, "
             "last_error)"
             " SELECT a, b, string_to_array(c, E'\\n'), d,"
             " CASE WHEN c = '' AND NOT d THEN clock_timestamp() END, now() + interval '1 second', "
             "e"
             " FROM unnest($1::int8[], $2::text[], $3::text[], $4::bool[], $5::text[])"
             " AS u(a, b, c, d, e)"},
    // Those in hand and those to be woken, in one order: two workers may wake each other's.
    [HOLD] = {"hold_undecided",
              "SELECT event = ANY($1::int8[]) AND lease_token = $2 FROM ingest.undecided"
              " WHERE event = ANY (ARRAY(SELECT unnest($1::int8[]) UNION SELECT event"
              " FROM ingest.undecided WHERE awaits && $3::text[]))"
              " ORDER BY event + 0 FOR UPDATE"},
    [DROP] = {"drop_undecided", "DELETE FROM ingest.undecided WHERE event = ANY($1::int8[])"},
    // ≤ 30 s apart for the first hour, then thinning out; after 72 h unmatched: kept, woken by its
    // references only. So is a stranger once no transaction is under way that began before it came.
    [POSTPONE] = {"postpone_undecided",
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
    // By the clock, not by the transaction's begin: claims begin where the last one ended.
    [WAKE] = {"wake_undecided",
              "UPDATE ingest.undecided SET woken_at = clock_timestamp(), lease_token = "
              "NULL, lease_until = NULL, unmatched = false"
              " WHERE event = ANY (ARRAY(SELECT event FROM ingest.undecided WHERE awaits "
              "&& $1::text[] ORDER BY event + 0"
              " FOR UPDATE))"},
};

po_str await_order(po_arena *arena, po_str order_id) {
    return po_s(po_printf(arena, "order:%.*s", (int)order_id.n, order_id.p));
}

po_str await_ref(po_arena *arena, po_str provider, po_str account, po_str kind, po_str value) {
    po_str scope = ref_is_global(provider, kind) ? po_s("") : account;
    return po_s(po_printf(arena, "ref:%.*s:%.*s:%.*s:%.*s", (int)provider.n, provider.p,
                          (int)scope.n, scope.p, (int)kind.n, kind.p, (int)value.n, value.p));
}

po_str await_payment(po_arena *arena, po_str provider, po_str account, po_str payment) {
    return po_s(po_printf(arena, "pay:%.*s:%.*s:%.*s", (int)provider.n, provider.p, (int)account.n,
                          account.p, (int)payment.n, payment.p));
}

// What new rows and those put off have in common: event, reason, awaits, stranger.
static po_args *row_columns(po_arena *arena, const waiting *rows, size_t n) {
    po_args *args = po_args_new(arena);
    COLUMN(int64_t, po_arg_i64s, rows[i].event);
    COLUMN(po_str, po_arg_texts, po_s(rows[i].reason));
    COLUMN(po_str, po_arg_texts, store_join(arena, rows[i].awaits, rows[i].n_awaits));
    COLUMN(bool, po_arg_bools, rows[i].stranger);
    return args;
}

bool undecided_send_new(po_pg *pg, po_arena *arena, const waiting *rows, size_t n, po_err *err) {
    if (!n)
        return true;
    po_args *args = row_columns(arena, rows, n);
    TEXTS(args, arena, rows, n, error);
    return po_pipe_send(pg, &SQL[PUT], args, err);
}

bool undecided_send_hold(po_pg *pg, po_arena *arena, const int64_t *events, size_t n, po_uuid token,
                         const po_str *woken, size_t n_woken, po_err *err) {
    po_args *args = po_args_new(arena);
    po_arg_i64s(args, events, n);
    po_arg_uuid(args, token);
    po_arg_texts(args, woken, n_woken);
    return po_pipe_send(pg, &SQL[HOLD], args, err);
}

bool undecided_send_gone(po_pg *pg, po_arena *arena, const int64_t *events, size_t n, po_err *err) {
    if (!n)
        return true;
    po_args *args = po_args_new(arena);
    po_arg_i64s(args, events, n);
    return po_pipe_send(pg, &SQL[DROP], args, err);
}

bool undecided_send_postponed(po_pg *pg, po_arena *arena, const waiting *rows, size_t n,
                              po_err *err) {
    return !n || po_pipe_send(pg, &SQL[POSTPONE], row_columns(arena, rows, n), err);
}

static po_args *key_args(po_arena *arena, const po_str *keys, size_t n) {
    po_args *args = po_args_new(arena);
    po_arg_texts(args, keys, n);
    return args;
}

bool undecided_send_wake(po_pg *pg, po_arena *arena, const po_str *keys, size_t n, po_err *err) {
    return !n || po_pipe_send(pg, &SQL[WAKE], key_args(arena, keys, n), err);
}

bool undecided_wake(po_pg *pg, po_arena *arena, const po_str *keys, size_t n, po_err *err) {
    return po_pg_run(pg, &SQL[WAKE], key_args(arena, keys, n), NULL, err);
}
