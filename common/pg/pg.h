// PostgreSQL through libpq: typed binary parameters, named prepared statements, transactions,
// pipeline mode and a small pool. A connection is used by one thread at a time; everything blocks,
// bounded by the session's statement_timeout and TCP keepalive/user time-out. Errors: code =
// SQLSTATE, kind by class:
//   08, 53, 57, 58, 40, 55P03, 25006, 25P03, connection lost → RETRY;  22, 23, P0001 → REFUSED;
//   42, 0A, 3D, 3F, 28 → RETRY (a deployment fault: po_pg_is_deployment());  XX and all else → BUG.
// A COMMIT whose reply was lost is UNCERTAIN. After RETRY by connection loss the connection is
// dead: release it, the pool opens another. A statement outside a transaction is its own COMMIT,
// yet its loss is RETRY: run only such statements that way as may be repeated. A server silent for
// 2 * statement_timeout + 5 s is lost.
#pragma once
#include "base/arena.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "base/str.h"

typedef struct po_pg po_pg;     // one connection
typedef struct po_pool po_pool; // thread-safe

// Runtime SQL lives in one named table at the top of a module, indexed by an enum. The name is the
// prepared statement's name and the metric label; on one connection a name stands for one text.
// Prepared at first use on each connection, in the same flight; name NULL: sent unprepared.
typedef struct po_stmt {
    const char *name;
    const char *sql;
} po_stmt;

typedef struct po_pg_options {
    const char *dsn;
    const char *application_name; // "payonce-ingest"
    int connect_timeout_ms;       // 0 = 10000
    int lock_timeout_ms;          // 0 = server default
    int statement_timeout_ms;     // 0 = 30000
    int idle_in_tx_timeout_ms;    // 0 = 5000
    bool by_index; // plans use an index wherever there is one, whatever statistics say: for
                   // sessions whose plans are kept while their tables grow from nothing
} po_pg_options;

// RETRY when it cannot be had within connect_timeout_ms (code: SQLSTATE of a refused login, else 08001); REFUSED
// "invalid_dsn".
PO_MUST_CHECK bool po_pg_open(const po_pg_options *options, po_pg **ret_pg, po_err *err);
void po_pg_close(po_pg **pg);
bool po_pg_alive(const po_pg *pg); // false once the connection was lost
// For a connection that has idled, before it is used again: false when its server has ended it
// meanwhile. Asks nobody and does not block. po_pool_acquire looks by itself.
bool po_pg_still_there(po_pg *pg);
int po_pg_socket(const po_pg *pg); // for poll(2)
// True for SQLSTATE classes 42, 0A, 3D, 3F, 28: wait like RETRY, and alarm.
bool po_pg_is_deployment(const po_err *err);
bool po_pg_is(const po_err *err, const char *sqlstate);
// True when less at once may succeed where this much did not: 57014 and 25P03 (the session's own
// time-outs), 57P05, and class 53 (the server is short of something). Halve what was sent, down to
// one; a lost connection is opened anew first. A lock that was not to be had (55P03) is the
// caller's to count: the second time in a row says the same.
bool po_pg_is_too_much(const po_err *err);

PO_MUST_CHECK bool po_pool_open(const po_pg_options *options, unsigned size, po_pool **ret_pool,
                                po_err *err);
void po_pool_close(po_pool **pool);
// Waits up to timeout_ms for a connection (opening one if fewer than size are open): RETRY
// "pool_timeout" or the connection error. Never opens at po_pool_open time.
PO_MUST_CHECK bool po_pool_acquire(po_pool *pool, int timeout_ms, po_pg **ret_pg, po_err *err);
// Returns it; a dead one, or one left inside a transaction or pipeline, is closed. Accepts NULL,
// leaves NULL.
void po_pool_release(po_pool *pool, po_pg **pg);

// --- Parameters: built in order, $1 first. Zeroed is empty; memory comes from the arena; borrowed
// views must live until the statement was sent. Arrays are one-dimensional; NULL elements by a NULL
// `p` of a view. More than 1023 MiB in all cannot be sent: REFUSED 54000 from the send, and nothing
// else is the worse.
typedef struct po_args po_args;
po_args *po_args_new(po_arena *arena);
void po_arg_null(po_args *args);
void po_arg_bool(po_args *args, bool value);
void po_arg_i32(po_args *args, int32_t value);       // int4
void po_arg_i64(po_args *args, int64_t value);       // int8
void po_arg_text(po_args *args, po_str value);       // text; p == NULL is NULL
void po_arg_bytea(po_args *args, po_str value);      // bytea; p == NULL is NULL
void po_arg_uuid(po_args *args, po_uuid value);      // uuid
void po_arg_time(po_args *args, int64_t instant_us); // timestamptz; PO_NO_TIME is NULL
#define PO_NO_TIME INT64_MIN
void po_arg_i32s(po_args *args, const int32_t *values, size_t n); // int4[]
void po_arg_i64s(po_args *args, const int64_t *values, size_t n); // int8[]; PO_NO_I64 is NULL
#define PO_NO_I64 INT64_MIN
void po_arg_bools(po_args *args, const bool *values, size_t n);    // bool[]
void po_arg_texts(po_args *args, const po_str *values, size_t n);  // text[]
void po_arg_byteas(po_args *args, const po_str *values, size_t n); // bytea[]
void po_arg_uuids(po_args *args, const po_uuid *values, size_t n); // uuid[]
void po_arg_times(po_args *args, const int64_t *instants_us,
                  size_t n); // timestamptz[]; PO_NO_TIME is NULL

// --- Results: binary, owned by the caller (po_res_done in PO_AUTO). Reading a column as another
// type than it has is our mistake: abort. NULL reads as 0, false, {NULL,0}, PO_NO_TIME; ask
// po_res_null where it matters.
typedef struct po_res po_res;
void po_res_done(po_res **res);
int po_res_rows(const po_res *res);
int64_t po_res_affected(const po_res *res);
bool po_res_null(const po_res *res, int row, int col);
bool po_res_bool(const po_res *res, int row, int col);
int64_t po_res_i64(const po_res *res, int row, int col); // int2, int4, int8, oid
po_str po_res_text(const po_res *res, int row, int col); // text, varchar, name, jsonb/json as text
po_str po_res_bytea(const po_res *res, int row, int col);
po_uuid po_res_uuid(const po_res *res, int row, int col);
int64_t po_res_time(const po_res *res, int row, int col); // timestamptz → µs since 1970

// --- Statements. ret_res may be NULL. args may be NULL, and may be sent again. Not with sends
// unsynced.
PO_MUST_CHECK bool po_pg_run(po_pg *pg, const po_stmt *stmt, po_args *args, po_res **ret_res,
                             po_err *err);
// Unprepared simple SQL, possibly several commands (migrations, LISTEN, SET): no parameters, no
// result.
PO_MUST_CHECK bool po_pg_exec(po_pg *pg, const char *sql, po_err *err);

// --- Pipeline: send several, then sync once; results come in order. After the first failure the
// rest is aborted by the server; po_pipe_sync returns that first failure (text names the
// statement). Flights of any size are fine: sending never blocks, and po_pipe_sync reads while it
// writes. After a sync, po_pg_run and po_pg_exec may be mixed in.
PO_MUST_CHECK bool po_pipe_begin(po_pg *pg, po_err *err);
PO_MUST_CHECK bool po_pipe_send(po_pg *pg, const po_stmt *stmt, po_args *args, po_err *err);
// Reads everything sent since the last sync; ret_res[i] belongs to the i-th send (NULL array:
// dropped) and is to be freed; on failure all are NULL. Stays in pipeline mode. n must equal the
// number of sends.
PO_MUST_CHECK bool po_pipe_sync(po_pg *pg, po_res **ret_res, size_t n, po_err *err);
// Syncs, dropping results, if anything is still unsynced. Not needed after po_tx_commit or
// po_tx_done.
PO_MUST_CHECK bool po_pipe_end(po_pg *pg, po_err *err);

// --- Transactions: READ COMMITTED. Visible in one function; helpers take the po_tx. Leaving scope
// rolls back:
//   PO_AUTO(po_tx_done) po_tx tx = {0};
//   if (!po_tx_begin(pg, &tx, err)) return false; …; return po_tx_commit(&tx, err);
// In pipeline mode begin and commit are sent like statements (a send each, answered at the next
// sync): po_tx_commit then syncs by itself and drops the results; use po_tx_send_begin to keep
// BEGIN in the same flight.
typedef struct po_tx {
    po_pg *pg;
    bool open;
} po_tx;
PO_MUST_CHECK bool po_tx_begin(po_pg *pg, po_tx *tx, po_err *err);
// Pipeline mode: queues BEGIN without waiting; counts as one send of the next po_pipe_sync.
PO_MUST_CHECK bool po_tx_send_begin(po_pg *pg, po_tx *tx, po_err *err);
// Also flushes a pipeline in progress (results of pending sends are dropped, their failure is
// reported and rolls back). UNCERTAIN when the reply to COMMIT was lost.
PO_MUST_CHECK bool po_tx_commit(po_tx *tx, po_err *err);
void po_tx_rollback(po_tx *tx);
void po_tx_done(po_tx *tx); // rolls back if still open; leaves pipeline mode if in it
// Names: [a-z0-9_]. Not with sends unsynced.
PO_MUST_CHECK bool po_savepoint(po_tx *tx, const char *name, po_err *err);
PO_MUST_CHECK bool po_rollback_to(po_tx *tx, const char *name, po_err *err);

// --- Notifications
// Waits until a notification has come, timeout_ms have passed or stop_fd (≥ 0) is readable.
// ret_notified says whether one came; all queued ones are drained. False only when the connection
// is lost.
PO_MUST_CHECK bool po_pg_wait_notify(po_pg *pg, int timeout_ms, int stop_fd, bool *ret_notified,
                                     po_err *err);
