// Commands of the shop. Each is one transaction: insert, then compare in a second statement (a
// repeat that raced the first sees the first's row then); the order's lock; references (sorted);
// undecided rows; the outbox.
#include "orders.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "doors.h"
#include "event/event.h"
#include "json/json.h"
#include "life/life.h"
#include "log/log.h"
#include "metrics/metrics.h"
#include "registration.h"
#include "store.h"
#include "undecided_rows.h"
#include "waiters.h"
#include <pthread.h>
#include <stdlib.h>

enum {
    PUT_ORDER,
    LOCK_ORDER,
    READ_CONTACT,
    PUT_REFS,
    COUNT_REFS,
    PUT_CONTACT,
    RAISE_SEQUENCE,
    SHOW_ORDER
};
static const po_stmt SQL[] = {
    [PUT_ORDER] = {"put_order",
                   "INSERT INTO ingest.shop_order (order_id, customer_id, purpose, item, policy, "
                   "profile, accounts, live, currency,"
                   " exponent, price, max_discount, revoke_on_refund, expires_at, content, "
                   "content_version, due)"
                   " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, "
                   "$16, $11)"
                   " ON CONFLICT DO NOTHING RETURNING order_id"},
    [LOCK_ORDER] = {"lock_order", "SELECT content, policy, array_to_string(accounts, ' '), "
                                  "content_version FROM "
                                  "ingest.shop_order WHERE order_id = $1"
                                  " FOR NO KEY UPDATE"},
    // Behind the lock, in a statement of its own: a locking one would not see anew what it joins.
    [READ_CONTACT] = {"read_contact",
                      "SELECT email, language FROM ingest.order_contact WHERE order_id = $1"},
    [PUT_REFS] =
        {"put_order_refs",
         "INSERT INTO ingest.order_ref (provider, kind, value, account, order_id, payment)"
         " SELECT $1, kind, value, account, $2, '' FROM unnest($3::text[], $4::text[], $5::text[])"
         " AS u(kind, value, account) ON CONFLICT DO NOTHING"},
    [COUNT_REFS] = {"count_order_refs",
                    "SELECT count((SELECT 1 FROM ingest.order_ref r WHERE r.provider = $1 AND "
                    "r.kind = u.kind AND r.value = u.value"
                    " AND r.account = u.account AND r.order_id = $2))"
                    " FROM unnest($3::text[], $4::text[], $5::text[]) AS u(kind, value, account)"},
    [PUT_CONTACT] =
        {"put_contact",
         "INSERT INTO ingest.order_contact (order_id, email, language) VALUES ($1, $2, $3)"
         " ON CONFLICT (order_id) DO UPDATE SET email = excluded.email, language = "
         "excluded.language"},
    [RAISE_SEQUENCE] = {"raise_sequence", "UPDATE ingest.shop_order SET sequence = sequence + 1, "
                                          "has_contact = true WHERE order_id = $1"
                                          " RETURNING sequence"},
    [SHOW_ORDER] = {"show_order", "SELECT order_id, customer_id, purpose, item, policy, state, "
                                  "verdict, reason, currency, exponent, price, due,"
                                  " received, refunded, late, partial, over, qualification, "
                                  "sequence, tax, shipping FROM ingest.shop_order"
                                  " WHERE order_id = $1"},
};

typedef struct answer {
    unsigned status;
    json_t *view;
} answer;

// A call with all that it needs, for its request may be answered, and gone, before it is done.
typedef struct job {
    waiter waiter;
    po_arena *arena;
    trace trace;
    po_str body, order_id; // order_id: of the path
    // Fills the answer, or fails with the error to answer.
    bool (*run)(orders *o, const struct job *job, po_pg *pg, answer *ret_answer, po_err *err);
    struct job *next;
} job;

struct orders {
    orders_options options;
    pthread_mutex_t lock;
    pthread_cond_t filled;
    job *first, *last;
    size_t depth;
    size_t bytes; // bodies of all jobs
    bool closing;
    waiters *waiters;
    pthread_t *threads;
    unsigned running;
};

#define ORDERS_QUEUE 2000
#define ORDERS_BYTES (16U << 20)

static po_metric *m_calls;

void orders_declare_metrics(void) {
    m_calls = po_metric_new(PO_COUNTER, "payonce_ingest_order_calls_total",
                            "Calls of the orders API answered, by code.", "code");
}

// --- Answers

static const struct {
    const char *code;
    unsigned status;
} statuses[] = {
    {"invalid", 400},   {"json_syntax", 400}, {"json_depth", 400},    {"json_missing", 400},
    {"json_type", 400}, {"json_range", 400},  {"unit_mismatch", 400}, {"inexact", 400},
    {"overflow", 400},  {"not_found", 404},   {"order_differs", 409}, {"reference_taken", 409},
    {"paid", 409},      {"in_review", 409},   {"json_twice", 400},    {"json_text", 400}};

// What fails under another code than these is the database's: its words are for the log alone.
static unsigned status_of(const po_err *err) {
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (strcmp(err->code, statuses[i].code) == 0)
            return statuses[i].status;
    return 503;
}

static void answer_error(po_request *request, const po_err *err) {
    unsigned status = status_of(err);
    if (status == 503) {
        static po_log_site site = {.name = "order_call_not_done", .per_second = PO_LOG_REFUSALS};
        if (po_log_admit(&site))
            po_log_err(PO_WARN, "order call not done", err);
        po_count(m_calls, "unavailable", 1);
        po_reply(request, 503, NULL,
                 po_s("{\"error\":{\"code\":\"unavailable\",\"message\":\"send it again\"}}"), 1);
        return;
    }
    po_count(m_calls, status == 400 ? "invalid" : err->code, 1);
    po_reply_error(request, status, status == 400 ? "invalid" : err->code, err->text);
}

static void set_text(json_t *view, const char *name, const po_res *row, int col) {
    po_str s = po_res_text(row, 0, col);
    json_object_set_new(view, name, json_stringn(s.p, s.n));
}

static bool show(po_pg *pg, po_arena *arena, po_str order_id, json_t **ret_view, po_err *err) {
    static const char *const texts[] = {"order_id", "customer_id", "purpose", "item",    "policy",
                                        "state",    "verdict",     "reason",  "currency"};
    static const char *const numbers[] = {"exponent", "price", "due", "received", "refunded"};
    static const char *const flags[] = {"late", "partial", "over"};
    po_args *args = po_args_new(arena);
    po_arg_text(args, order_id);
    PO_AUTO(po_res_done) po_res *row = NULL;
    if (!po_pg_run(pg, &SQL[SHOW_ORDER], args, &row, err))
        return false;
    if (po_res_rows(row) == 0)
        return po_fail(err, PO_REFUSED, "not_found", "no such order");
    json_t *view = json_object();
    for (int i = 0; i < 9; i++)
        set_text(view, texts[i], row, i);
    for (int i = 0; i < 5; i++)
        json_object_set_new(view, numbers[i], json_integer(po_res_i64(row, 0, 9 + i)));
    for (int i = 0; i < 3; i++)
        json_object_set_new(view, flags[i], json_boolean(po_res_bool(row, 0, 14 + i)));
    json_object_set_new(view, "qualification", json_integer(po_res_i64(row, 0, 17)));
    json_object_set_new(view, "sequence", json_integer(po_res_i64(row, 0, 18)));
    json_object_set_new(view, "tax", json_integer(po_res_i64(row, 0, 19)));
    json_object_set_new(view, "shipping", json_integer(po_res_i64(row, 0, 20)));
    *ret_view = view;
    return true;
}

static void answer_view(po_request *request, const answer *answer) {
    po_count(m_calls, answer->status == 201 ? "created" : "ok", 1);
    po_reply_json(request, answer->status, answer->view);
}

// The command goes on, and may be done all the same; its repeat finds it so.
static void answer_late(po_request *request, int64_t waited_ms) {
    (void)waited_ms;
    po_count(m_calls, "late", 1);
    po_reply(
        request, 503, NULL,
        po_s("{\"error\":{\"code\":\"late\",\"message\":\"no answer in time; send it again\"}}"),
        1);
}

// --- Steps inside a command's transaction

static bool insert_order(po_tx *tx, po_arena *arena, const registration *r, bool *ret_new,
                         po_err *err) {
    po_args *args = po_args_new(arena);
    const po_str texts[] = {r->order_id, r->customer_id,        r->purpose,
                            r->item,     po_s(r->policy->name), r->profile};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        po_arg_text(args, texts[i].p ? texts[i] : po_s(""));
    po_arg_texts(args, r->accounts, r->n_accounts);
    po_arg_bool(args, r->live);
    po_arg_text(args, po_s(r->price.unit.currency));
    po_arg_i32(args, r->price.unit.exponent);
    po_arg_i64(args, r->price.minor);
    po_arg_i64(args, r->max_discount);
    po_arg_bool(args, r->revoke_on_refund);
    po_arg_time(args, r->expires_at_us ? r->expires_at_us : PO_NO_TIME);
    uint8_t content[32];
    registration_digest(r, REGISTRATION_VERSION, content);
    po_arg_bytea(args, (po_str){(const char *)content, sizeof content});
    po_arg_i32(args, REGISTRATION_VERSION);
    PO_AUTO(po_res_done) po_res *rows = NULL;
    if (!po_pg_run(tx->pg, &SQL[PUT_ORDER], args, &rows, err))
        return false;
    *ret_new = po_res_rows(rows) == 1;
    return true;
}

static po_args *ref_args(po_arena *arena, const char *provider, po_str order_id,
                         const struct stated_ref *refs, size_t n) {
    po_str *kinds = po_alloc_array(arena, n, sizeof *kinds);
    po_str *values = po_alloc_array(arena, n, sizeof *values);
    po_str *owners = po_alloc_array(arena, n, sizeof *owners);
    for (size_t i = 0; i < n; i++) {
        kinds[i] = refs[i].kind;
        values[i] = refs[i].value;
        owners[i] = refs[i].account;
    }
    po_args *args = po_args_new(arena);
    po_arg_text(args, po_s(provider));
    po_arg_text(args, order_id);
    po_arg_texts(args, kinds, n);
    po_arg_texts(args, values, n);
    po_arg_texts(args, owners, n);
    return args;
}

// Insert, then count in a second statement: one that another order owns is not ours (P17).
static bool insert_refs(po_tx *tx, po_arena *arena, const char *provider, po_str order_id,
                        const struct stated_ref *refs, size_t n, po_err *err) {
    PO_AUTO(po_res_done) po_res *rows = NULL;
    if (n == 0)
        return true;
    if (!po_pg_run(tx->pg, &SQL[PUT_REFS], ref_args(arena, provider, order_id, refs, n), NULL,
                   err) ||
        !po_pg_run(tx->pg, &SQL[COUNT_REFS], ref_args(arena, provider, order_id, refs, n), &rows,
                   err))
        return false;
    return po_res_i64(rows, 0, 0) == (int64_t)n ||
           po_fail(err, PO_REFUSED, "reference_taken", "a reference belongs to another order");
}

static bool append_contact(po_tx *tx, po_arena *arena, const registration *r, trace trace,
                           po_err *err) {
    po_args *args = po_args_new(arena), *raise = po_args_new(arena);
    po_arg_text(args, r->order_id);
    po_arg_text(args, r->email);
    po_arg_text(args, r->language);
    po_arg_text(raise, r->order_id);
    PO_AUTO(po_res_done) po_res *rows = NULL;
    PO_AUTO(po_buf_done) po_buf body = {0};
    po_contact contact = {r->order_id, r->email, r->language};
    if (!po_pg_run(tx->pg, &SQL[PUT_CONTACT], args, NULL, err) ||
        !po_pg_run(tx->pg, &SQL[RAISE_SEQUENCE], raise, &rows, err) ||
        !po_contact_write(&contact, &body, err))
        return false;
    int64_t now_us = po_now_us();
    po_outbox_row row = {.topic = po_s(PO_TOPIC_CONTACTS),
                         .key = r->order_id,
                         .event_id = po_uuid_v7(now_us),
                         .ce_type = po_s("payonce.contact.set"),
                         .ce_source = po_s("/payonce/ingest"),
                         .ce_time_us = now_us,
                         .sequence = po_res_i64(rows, 0, 0),
                         .traceparent = trace.parent,
                         .tracestate = trace.state,
                         .schema_fp = po_avro_fingerprint(po_contact_schema()),
                         .body = po_buf_view(&body)};
    return po_pg_run(tx->pg, &ingest_outbox.put, po_outbox_args(arena, &row, 1), NULL, err);
}

static bool wake(po_tx *tx, po_arena *arena, const char *provider, po_str order_id,
                 const struct stated_ref *refs, size_t n, po_err *err) {
    po_str *keys = po_alloc_array(arena, n + 1, sizeof *keys);
    keys[0] = await_order(arena, order_id);
    for (size_t i = 0; i < n; i++) {
        keys[i + 1] =
            await_ref(arena, po_s(provider), refs[i].account, refs[i].kind, refs[i].value);
    }
    return undecided_wake(tx->pg, arena, keys, n + 1, err);
}

// --- Register

static bool is_contact_new(po_tx *tx, po_arena *arena, const registration *r, bool *ret_new,
                           po_err *err) {
    po_args *args = po_args_new(arena);
    po_arg_text(args, r->order_id);
    PO_AUTO(po_res_done) po_res *row = NULL;
    if (!po_pg_run(tx->pg, &SQL[READ_CONTACT], args, &row, err))
        return false;
    bool same = po_res_rows(row) == 1 && po_str_eq(po_res_text(row, 0, 0), r->email) &&
                po_str_eq(po_res_text(row, 0, 1), r->language);
    *ret_new = r->email.n && !same;
    return true;
}

// A repeat: the same content, or 409; another address replaces the old one.
static bool compare_order(po_tx *tx, po_arena *arena, const registration *r, trace trace,
                          bool *ret_contact, po_err *err) {
    po_args *args = po_args_new(arena);
    po_arg_text(args, r->order_id);
    PO_AUTO(po_res_done) po_res *row = NULL;
    if (!po_pg_run(tx->pg, &SQL[LOCK_ORDER], args, &row, err))
        return false;
    if (po_res_rows(row) == 0) {
        return po_fail(err, PO_RETRY, "40001", "order %s was neither inserted nor found",
                       r->order_id.p);
    }
    int64_t version = po_res_i64(row, 0, 3);
    if (version < 1 || version > REGISTRATION_VERSION) {
        return po_fail(err, PO_RETRY, "content_version",
                       "order %s was registered by a later release", r->order_id.p);
    }
    uint8_t content[32];
    registration_digest(r, (int)version, content);
    if (!po_str_eq(po_res_bytea(row, 0, 0), (po_str){(const char *)content, sizeof content})) {
        return po_fail(err, PO_REFUSED, "order_differs",
                       "the order is registered with other content");
    }
    return is_contact_new(tx, arena, r, ret_contact, err) &&
           (!*ret_contact || append_contact(tx, arena, r, trace, err));
}

static bool run_register(orders *o, const job *job, po_pg *pg, answer *ret_answer, po_err *err) {
    po_arena *arena = job->arena;
    registration r;
    json_t *body = NULL, *view = NULL;
    bool ok = po_json_parse(job->body, &body, err) &&
              registration_read(body, o->options.accounts, arena, &r, err);
    json_decref(body);
    PO_AUTO(po_tx_done) po_tx tx = {0};
    bool is_new = false, contact = false;
    if (!ok || !po_tx_begin(pg, &tx, err) || !insert_order(&tx, arena, &r, &is_new, err))
        return false;
    if (is_new) {
        contact = r.email.n > 0;
        ok = (!contact || append_contact(&tx, arena, &r, job->trace, err)) &&
             insert_refs(&tx, arena, r.policy->provider, r.order_id, r.refs, r.n_refs, err) &&
             wake(&tx, arena, r.policy->provider, r.order_id, r.refs, r.n_refs, err);
    } else {
        ok = compare_order(&tx, arena, &r, job->trace, &contact, err);
    }
    if (!ok || !show(pg, arena, r.order_id, &view, err) || !po_tx_commit(&tx, err)) {
        json_decref(view);
        return false;
    }
    if (contact)
        po_ring_ring(o->options.ring);
    *ret_answer = (answer){is_new ? 201 : 200, view};
    return true;
}

// --- Show

static bool run_show(orders *o, const job *job, po_pg *pg, answer *ret_answer, po_err *err) {
    (void)o;
    ret_answer->status = 200;
    return show(pg, job->arena, job->order_id, &ret_answer->view, err);
}

// --- Cancel

static bool hold_one(po_pg *pg, po_tx *tx, po_arena *arena, po_str order_id, held_order **ret_held,
                     po_err *err) {
    po_res *results[1 + STORE_HOLD_SENDS] = {0};
    size_t n = 0;
    bool ok = po_pipe_begin(pg, err) && po_tx_send_begin(pg, tx, err) &&
              store_send_hold(pg, arena, &order_id, 1, false, err) &&
              po_pipe_sync(pg, results, 1 + STORE_HOLD_SENDS, err) &&
              store_read_hold(arena, results + 1, ret_held, &n, err);
    for (size_t i = 0; i < 1 + STORE_HOLD_SENDS; i++)
        po_res_done(&results[i]);
    return ok && (n == 1 || po_fail(err, PO_REFUSED, "not_found", "no such order"));
}

static bool write_cancel(po_pg *pg, po_tx *tx, po_arena *arena, held_order *held,
                         const decision *decision, trace trace, po_err *err) {
    int64_t now_us = po_now_us();
    outcome canceled = {.held = held,
                        .decision = *decision,
                        .decision_id = po_uuid_v7(now_us),
                        .provider = po_s("payonce"),
                        .alias = po_s("orders"),
                        .provider_event_id = po_s("cancel"),
                        .occurred_at_us = now_us,
                        .decided_at_us = now_us,
                        .trace = trace,
                        .facts_json = store_changes_json(arena, &held->facts)};
    held->changed = true;
    batch_writes writes = {.orders = held, .n_orders = 1, .outcomes = &canceled, .n_outcomes = 1};
    size_t sends;
    return store_send_writes(pg, arena, &writes, &sends, err) && po_tx_commit(tx, err);
}

static bool run_cancel(orders *o, const job *job, po_pg *pg, answer *ret_answer, po_err *err) {
    po_arena *arena = job->arena;
    held_order *held = NULL;
    decision decision;
    PO_AUTO(po_tx_done) po_tx tx = {0};
    if (!hold_one(pg, &tx, arena, job->order_id, &held, err))
        return false;
    bool repeat = held->order.canceled_by_shop;
    if (!decide_cancel(&held->order, &held->facts, &decision, err) ||
        (!repeat && !write_cancel(pg, &tx, arena, held, &decision, job->trace, err)))
        return false;
    po_tx_done(&tx);
    if (!repeat && decision.emits != EVENT_NONE)
        po_ring_ring(o->options.ring);
    ret_answer->status = 200;
    return show(pg, arena, job->order_id, &ret_answer->view, err);
}

// --- Add references

static bool add_refs(po_tx *tx, po_arena *arena, po_str order_id, const json_t *list, po_err *err) {
    po_args *args = po_args_new(arena);
    po_arg_text(args, order_id);
    PO_AUTO(po_res_done) po_res *row = NULL;
    if (!po_pg_run(tx->pg, &SQL[LOCK_ORDER], args, &row, err))
        return false;
    if (po_res_rows(row) == 0)
        return po_fail(err, PO_REFUSED, "not_found", "no such order");
    const policy *policy = policy_find(po_res_text(row, 0, 1));
    struct stated_ref *refs;
    size_t n;
    if (!policy)
        return po_fail(err, PO_BUG, "order_row", "the order's policy is not of this version");
    return registration_read_refs(list, policy, po_res_text(row, 0, 2), arena, &refs, &n, err) &&
           insert_refs(tx, arena, policy->provider, order_id, refs, n, err) &&
           wake(tx, arena, policy->provider, order_id, refs, n, err);
}

static bool run_add_refs(orders *o, const job *job, po_pg *pg, answer *ret_answer, po_err *err) {
    (void)o;
    json_t *body = NULL, *view = NULL;
    const json_t *list = NULL;
    PO_AUTO(po_tx_done) po_tx tx = {0};
    bool ok = po_json_parse(job->body, &body, err) &&
              po_json_array(body, "references", &list, err) &&
              (json_array_size(list) > 0 ||
               po_fail(err, PO_REFUSED, "invalid", "references: an array, not empty"));
    ok = ok && po_tx_begin(pg, &tx, err) && add_refs(&tx, job->arena, job->order_id, list, err) &&
         show(pg, job->arena, job->order_id, &view, err) && po_tx_commit(&tx, err);
    json_decref(body);
    if (!ok) {
        json_decref(view);
        return false;
    }
    *ret_answer = (answer){200, view};
    return true;
}

// --- Threads

static job *next_job(orders *o) {
    pthread_mutex_lock(&o->lock);
    while (!o->first && !o->closing)
        pthread_cond_wait(&o->filled, &o->lock);
    job *taken = o->first;
    if (taken) {
        o->first = taken->next;
        o->last = o->first ? o->last : NULL;
        o->depth--;
    }
    pthread_mutex_unlock(&o->lock);
    return taken;
}

// A session that its server has ended meanwhile is replaced before it is used.
static bool connect(orders *o, po_pg **pg, po_err *err) {
    if (*pg && !po_pg_still_there(*pg))
        po_pg_close(pg);
    return *pg || store_open(o->options.pg, o->options.accounts, pg, err);
}

// A session that fails for no fault of the call is replaced: its plans may be outgrown, its server
// a former primary. One that was lost before COMMIT has done nothing: the call is made once more.
static bool run_job(orders *o, const job *job, po_pg **pg, answer *ret_answer, po_err *err) {
    bool done = false, lost = true;
    for (int attempt = 0; !done && lost && attempt < 2 && connect(o, pg, err); attempt++) {
        done = job->run(o, job, *pg, ret_answer, err);
        lost = !done && err->kind == PO_RETRY && !po_pg_alive(*pg);
        if (!done && err->kind != PO_REFUSED && !po_pg_is(err, "55P03"))
            po_pg_close(pg);
    }
    return done;
}

static void finish(orders *o, job *job, bool done, const answer *answer, const po_err *err) {
    po_request *request = waiter_take(&job->waiter);
    if (request && done)
        answer_view(request, answer);
    else if (request)
        answer_error(request, err);
    else
        json_decref(answer->view);
    waiters_remove(o->waiters, &job->waiter);
    pthread_mutex_lock(&o->lock);
    o->bytes -= job->body.n;
    pthread_mutex_unlock(&o->lock);
    po_arena *arena = job->arena;
    po_arena_free(&arena);
}

// A command's outcome; reads change nothing and are not told.
static void tell_call(const job *job, bool done, const answer *answer, const po_err *err) {
    if (job->run == run_show)
        return;
    const char *named = json_string_value(json_object_get(answer->view, "order_id"));
    po_log_outcome("order_call", "order call",
                   PO_TEXT("call", job->run == run_register ? "register"
                                   : job->run == run_cancel ? "cancel"
                                                            : "add_references"),
                   PO_TEXT("order_id", named ? named : job->order_id.p),
                   PO_INT("status", done ? answer->status : 0),
                   PO_TEXT("code", done ? "ok" : err->code),
                   PO_TEXT("traceparent", job->trace.parent.p));
}

static void *orders_main(void *arg) {
    orders *o = arg;
    po_pg *pg = NULL;
    for (job *job; (job = next_job(o)) != NULL;) {
        po_err err = {0};
        answer answer = {0};
        // Answered late while it was waiting: its repeat will do it.
        bool done = waiter_waits(&job->waiter) && run_job(o, job, &pg, &answer, &err);
        tell_call(job, done, &answer, &err);
        finish(o, job, done, &answer, &err);
    }
    po_pg_close(&pg);
    return NULL;
}

static bool put(orders *o, job *job, po_request *request) {
    pthread_mutex_lock(&o->lock);
    bool room = o->depth < ORDERS_QUEUE && o->bytes + job->body.n <= ORDERS_BYTES && !o->closing;
    if (room) {
        waiters_add(o->waiters, &job->waiter, request);
        *(o->last ? &o->last->next : &o->first) = job;
        o->last = job;
        o->depth++;
        o->bytes += job->body.n;
        pthread_cond_signal(&o->filled);
    }
    pthread_mutex_unlock(&o->lock);
    return room;
}

static void enqueue(po_request *request, orders *o, bool names_order,
                    bool (*run)(orders *, const job *, po_pg *, answer *, po_err *)) {
    if (!po_request_authorized(request, o->options.token))
        return; // answered: 401
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    job *made = po_alloc(arena, sizeof *made);
    made->arena = arena;
    made->body = po_str_copy(arena, po_request_body(request));
    if (names_order) {
        made->order_id = po_str_copy(arena, po_request_segment(request, 0));
        if (!po_is_id(made->order_id, REGISTRATION_ID_MAX)) {
            answer_error(request, &(po_err){PO_REFUSED, "not_found", "no such order"});
            return;
        }
    }
    made->trace = doors_trace(request, arena);
    made->run = run;
    if (put(o, made, request)) {
        arena = NULL; // the job's
    } else {
        answer_error(
            request,
            &(po_err){.kind = PO_RETRY, .code = "busy", .text = "too many calls are waiting"});
    }
}

void orders_register(po_request *request, void *orders) {
    enqueue(request, orders, false, run_register);
}

void orders_show(po_request *request, void *orders) {
    enqueue(request, orders, true, run_show);
}

void orders_cancel(po_request *request, void *orders) {
    enqueue(request, orders, true, run_cancel);
}

void orders_add_refs(po_request *request, void *orders) {
    enqueue(request, orders, true, run_add_refs);
}

bool orders_open(const orders_options *options, orders **ret_orders, po_err *err) {
    orders *o = calloc(1, sizeof *o);
    if (!o || !(o->threads = calloc(options->threads, sizeof *o->threads)))
        abort();
    o->options = *options;
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->filled, NULL);
    if (!waiters_open(answer_late, &o->waiters, err)) {
        orders_close(&o);
        return false;
    }
    for (; o->running < options->threads; o->running++) {
        if (pthread_create(&o->threads[o->running], NULL, orders_main, o) != 0) {
            orders_close(&o);
            return po_fail(err, PO_RETRY, "thread", "cannot start a thread of the orders API");
        }
    }
    *ret_orders = o;
    return true;
}

void orders_finish(orders *o) {
    if (!o)
        return;
    pthread_mutex_lock(&o->lock);
    o->closing = true;
    pthread_cond_broadcast(&o->filled);
    pthread_mutex_unlock(&o->lock);
    for (; o->running; o->running--)
        pthread_join(o->threads[o->running - 1], NULL);
    waiters_close(&o->waiters);
}

void orders_close(orders **orders) {
    struct orders *o = *orders;
    if (!o)
        return;
    orders_finish(o);
    pthread_cond_destroy(&o->filled);
    pthread_mutex_destroy(&o->lock);
    free(o->threads);
    free(o);
    *orders = NULL;
}
