// A connection: how it is opened, how its session is set up, how failures are read, and the plain
// calls on it. Everything that a session must have is given at start-up, so it holds from the first
// statement on.
#include "base/clock.h"
#include "pg/pg_impl.h"
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

enum {
    CONNECT_MS = 10000,
    STATEMENT_MS = 30000,
    IDLE_IN_TX_MS = 5000,
    SILENCE_MS = 5000, // added to twice the statement time-out: a frozen server is a lost one
};

// --- Opening

static int or_default(int value, int fallback) {
    return value > 0 ? value : fallback;
}

// The DSN's own options come first, so ours win.
static bool put_session_options(po_buf *buf, const po_pg_options *options, po_err *err) {
    // libpq's words about a DSN it cannot read quote the DSN, which may hold a password.
    PQconninfoOption *given = PQconninfoParse(options->dsn, NULL);
    if (!given)
        return po_fail(err, PO_REFUSED, "invalid_dsn", "the DSN cannot be read");
    for (const PQconninfoOption *o = given; o->keyword; o++)
        if (strcmp(o->keyword, "options") == 0 && o->val)
            po_buf_printf(buf, "%s ", o->val);
    PQconninfoFree(given);
    po_buf_puts(buf, "-c TimeZone=UTC -c default_transaction_isolation=read\\ committed");
    po_buf_printf(buf, " -c statement_timeout=%d",
                  or_default(options->statement_timeout_ms, STATEMENT_MS));
    po_buf_printf(buf, " -c idle_in_transaction_session_timeout=%d",
                  or_default(options->idle_in_tx_timeout_ms, IDLE_IN_TX_MS));
    if (options->lock_timeout_ms > 0)
        po_buf_printf(buf, " -c lock_timeout=%d", options->lock_timeout_ms);
    // A scan that cannot be avoided counts as immensely expensive, and would be compiled each time.
    if (options->by_index)
        po_buf_puts(buf, " -c enable_seqscan=off -c jit=off");
    po_buf_put(buf, "", 1);
    return true;
}

// What stands before the DSN may be overridden by it; what stands behind may not.
static PGconn *start(const po_pg_options *options, const char *session_options) {
    const char *keywords[] = {"application_name", "keepalives_idle",  "keepalives_interval",
                              "keepalives_count", "tcp_user_timeout", "dbname",
                              "client_encoding",  "options",          NULL};
    const char *values[] = {options->application_name, "5", "2", "3", "10000", options->dsn, "UTF8",
                            session_options,           NULL};
    static_assert(sizeof keywords == sizeof values, "a value for each keyword");
    return PQconnectStartParams(keywords, values, 1);
}

// The first line of libpq's message: further ones name its source file.
static bool connect_failed(const PGconn *conn, po_err *err) {
    const char *message = PQerrorMessage(conn);
    char sqlstate[6] = "08001";
    (void)po_pg_find_sqlstate(message, sqlstate);
    int length = (int)strcspn(message, "\n");
    // A server that will not take us yet says so in many classes; none is the input's fault.
    return po_fail(err, PO_RETRY, sqlstate, "%.*s", length, message);
}

static bool connect_until(PGconn *conn, int64_t deadline_ms, po_err *err) {
    PostgresPollingStatusType want = PGRES_POLLING_WRITING;
    if (PQstatus(conn) == CONNECTION_BAD)
        return connect_failed(conn, err);
    // Verbose messages carry the SQLSTATE, which libpq does not hand out for a failed login
    // otherwise.
    PQsetErrorVerbosity(conn, PQERRORS_VERBOSE);
    while (want != PGRES_POLLING_OK) {
        if (want == PGRES_POLLING_FAILED)
            return connect_failed(conn, err);
        struct pollfd fd = {PQsocket(conn), want == PGRES_POLLING_READING ? POLLIN : POLLOUT, 0};
        int64_t left_ms = deadline_ms - po_mono_ms();
        int n = left_ms > 0 ? poll(&fd, 1, (int)left_ms) : 0;
        if (n == 0)
            return po_fail(err, PO_RETRY, "08001", "no connection within the time given");
        if (n > 0)
            want = PQconnectPoll(conn);
        else if (errno != EINTR)
            return po_fail(err, PO_RETRY, "08001", "poll: %s", strerror(errno));
    }
    return true;
}

static bool is_fatal(const PGresult *res) {
    const char *severity = PQresultErrorField(res, PG_DIAG_SEVERITY_NONLOCALIZED);
    return severity && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0);
}

// Notices would go to stderr, which carries no JSON; what matters comes back as an error. libpq
// hands over the last words of a server that ends an idle session as a notice, too.
static void take_notice(void *arg, const PGresult *res) {
    po_pg *pg = arg;
    pg->lost = pg->lost || is_fatal(res);
}

bool po_pg_open_within(const po_pg_options *options, int timeout_ms, po_pg **ret_pg, po_err *err) {
    int64_t deadline_ms = po_mono_ms() + timeout_ms;
    PO_AUTO(po_buf_done) po_buf session_options = {0};
    if (!put_session_options(&session_options, options, err))
        return false;
    PO_AUTO(po_pg_close) po_pg *pg = po_grow(NULL, 1, sizeof *pg);
    int statement_ms = or_default(options->statement_timeout_ms, STATEMENT_MS);
    *pg = (po_pg){.patience_ms = 2 * statement_ms + SILENCE_MS};
    pg->conn = start(options, session_options.p);
    if (!pg->conn)
        abort(); // out of memory
    if (!connect_until(pg->conn, deadline_ms, err))
        return po_wrap(err, "connecting to PostgreSQL");
    PQsetNoticeReceiver(pg->conn, take_notice, pg);
    if (PQsetnonblocking(pg->conn, 1) != 0 || !PQenterPipelineMode(pg->conn))
        return po_fail(err, PO_RETRY, "08001", "setting up the connection failed");
    *ret_pg = po_take(&pg);
    return true;
}

bool po_pg_open(const po_pg_options *options, po_pg **ret_pg, po_err *err) {
    return po_pg_open_within(options, or_default(options->connect_timeout_ms, CONNECT_MS), ret_pg,
                             err);
}

void po_pg_close(po_pg **pg) {
    po_pg *gone = po_take(pg);
    if (!gone)
        return;
    PQfinish(gone->conn);
    po_flight_forget(gone);
    free(gone);
}

// --- State and failures

bool po_pg_alive(const po_pg *pg) {
    return !pg->lost && PQstatus(pg->conn) == CONNECTION_OK;
}

// An idle connection has nothing to say, unless the server has ended it (or sent a notification).
// What was read is only looked at when libpq is asked something.
bool po_pg_still_there(po_pg *pg) {
    struct pollfd fd = {PQsocket(pg->conn), POLLIN, 0};
    while (po_pg_alive(pg) && poll(&fd, 1, 0) > 0) {
        if (!PQconsumeInput(pg->conn))
            pg->lost = true;
        (void)PQisBusy(pg->conn);
    }
    return po_pg_alive(pg);
}

int po_pg_socket(const po_pg *pg) {
    return PQsocket(pg->conn);
}

bool po_pg_reusable(const po_pg *pg) {
    return po_pg_alive(pg) && !pg->stale && pg->n_sent == 0 &&
           PQtransactionStatus(pg->conn) == PQTRANS_IDLE;
}

bool po_pg_lose(po_pg *pg, po_err *err, const char *sqlstate, const char *text) {
    pg->lost = true;
    return po_fail(err, PO_RETRY, sqlstate, "%.*s", (int)strcspn(text, "\n"), text);
}

// Detail and context are left out: they quote rows. The constraint says enough.
bool po_pg_failed(po_pg *pg, const PGresult *res, const char *label, po_err *err) {
    const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    const char *constraint = PQresultErrorField(res, PG_DIAG_CONSTRAINT_NAME);
    if (!message)
        message = PQresultErrorMessage(res);
    if (PQstatus(pg->conn) != CONNECTION_OK || is_fatal(res))
        pg->lost = true;
    // A plan that the schema has outgrown, a statement that is gone, a former primary: all end with
    // another connection.
    if (sqlstate && (strncmp(sqlstate, "0A", 2) == 0 || strcmp(sqlstate, "26000") == 0 ||
                     strcmp(sqlstate, "25006") == 0))
        pg->stale = true;
    po_kind kind = pg->lost || !sqlstate ? PO_RETRY : po_pg_kind(sqlstate);
    if (!sqlstate)
        sqlstate = pg->lost ? "08006" : "08P01";
    return po_fail(err, kind, sqlstate, "%s: %.*s%s%s", label, (int)strcspn(message, "\n"), message,
                   constraint ? " — " : "", constraint ? constraint : "");
}

// --- Statements

bool po_pg_run(po_pg *pg, const po_stmt *stmt, po_args *args, po_res **ret_res, po_err *err) {
    assert(pg->n_sent == 0); // its result would be mistaken for that of a statement in flight
    PO_AUTO(po_res_done) po_res *res = NULL;
    if (!po_flight_send(pg, stmt, args, err) || !po_flight_land(pg, &res, NULL, err))
        return false;
    if (ret_res)
        *ret_res = po_take(&res);
    return true;
}

static bool read_to_end(po_pg *pg, po_err *err) {
    bool fine = true;
    for (;;) {
        if (!po_pg_drive(pg, fine ? err : NULL))
            return false;
        PGresult *res = PQgetResult(pg->conn);
        if (!res)
            return fine;
        ExecStatusType status = PQresultStatus(res);
        if (status == PGRES_COPY_IN || status == PGRES_COPY_OUT || status == PGRES_COPY_BOTH)
            fine = po_pg_lose(pg, err, "0A000", "COPY is not for po_pg_exec");
        else if (status == PGRES_FATAL_ERROR && fine)
            fine = po_pg_failed(pg, res, "exec", err);
        PQclear(res);
        if (pg->lost)
            return false;
    }
}

bool po_pg_exec(po_pg *pg, const char *sql, po_err *err) {
    assert(pg->n_sent == 0);
    if (pg->lost)
        return po_fail(err, PO_RETRY, "08006", "the connection was lost before");
    // Several commands in one text need the simple protocol, which pipeline mode does not know.
    if (!PQexitPipelineMode(pg->conn) || !PQsendQuery(pg->conn, sql))
        return po_pg_lose(pg, err, "08006", PQerrorMessage(pg->conn));
    bool fine = read_to_end(pg, err);
    if (!pg->lost && !PQenterPipelineMode(pg->conn))
        return po_pg_lose(pg, fine ? err : NULL, "08006", "pipeline mode was refused");
    return fine;
}

// --- Pipeline: the connection always is in libpq's pipeline mode, so these only guard and land.

bool po_pipe_begin(po_pg *pg, po_err *err) {
    assert(pg->n_sent == 0);
    return po_pg_alive(pg) || po_fail(err, PO_RETRY, "08006", "the connection was lost before");
}

bool po_pipe_send(po_pg *pg, const po_stmt *stmt, po_args *args, po_err *err) {
    return po_flight_send(pg, stmt, args, err);
}

bool po_pipe_sync(po_pg *pg, po_res **ret_res, size_t n, po_err *err) {
    assert(n == pg->n_sends);
    return po_flight_land(pg, ret_res, NULL, err);
}

bool po_pipe_end(po_pg *pg, po_err *err) {
    return pg->n_sent == 0 || po_flight_land(pg, NULL, NULL, err);
}

// --- Notifications

static bool drain(po_pg *pg) {
    bool any = false;
    for (PGnotify *n = PQnotifies(pg->conn); n; n = PQnotifies(pg->conn)) {
        any = true;
        PQfreemem(n);
    }
    return any;
}

bool po_pg_wait_notify(po_pg *pg, int timeout_ms, int stop_fd, bool *ret_notified, po_err *err) {
    assert(pg->n_sent == 0);
    int64_t deadline_ms = po_mono_ms() + timeout_ms;
    for (;;) {
        if (pg->lost || !PQconsumeInput(pg->conn))
            return po_pg_lose(pg, err, "08006", PQerrorMessage(pg->conn));
        bool notified = drain(pg);
        int64_t left_ms = deadline_ms - po_mono_ms();
        if (notified || left_ms <= 0) {
            *ret_notified = notified;
            return true;
        }
        struct pollfd fds[2] = {{PQsocket(pg->conn), POLLIN, 0}, {stop_fd, POLLIN, 0}};
        int n = poll(fds, stop_fd >= 0 ? 2 : 1, (int)left_ms);
        if (n < 0 && errno != EINTR)
            return po_pg_lose(pg, err, "08006", "poll failed");
        if (n > 0 && fds[1].revents) {
            *ret_notified = false;
            return true;
        }
    }
}
