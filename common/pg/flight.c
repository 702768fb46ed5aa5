// A flight: statements sent one behind the other, one sync, then their results in order. The socket
// does not block: whenever we wait we also read, so the server can always get rid of its results
// and a flight of any size cannot deadlock. Statements are prepared in the flight that first uses
// them; only a reported success makes one known, since everything behind a failure is skipped by
// the server.
#include "base/clock.h"
#include "pg/pg_impl.h"
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

void *po_grow(void *array, size_t n, size_t size) {
    void *bigger = reallocarray(array, n, size);
    if (!bigger)
        abort();
    return bigger;
}

static char *copied(const char *text) {
    char *copy = strdup(text);
    if (!copy)
        abort();
    return copy;
}

// --- What the connection has prepared

// An untyped NULL fits every parameter.
static bool types_fit(const po_prepared *known, const po_args *args) {
    if (known->n_types != args->n)
        return false;
    for (int i = 0; i < args->n; i++)
        if (args->types[i] && args->types[i] != known->types[i])
            return false;
    return true;
}

static int add_prepared(po_pg *pg, const po_stmt *stmt, const po_args *args, int variant) {
    char server_name[128];
    snprintf(server_name, sizeof server_name, variant ? "%s~%d" : "%s", stmt->name, variant);
    pg->prepared = po_grow(pg->prepared, pg->n_prepared + 1, sizeof *pg->prepared);
    po_prepared *fresh = &pg->prepared[pg->n_prepared];
    *fresh = (po_prepared){.server_name = copied(server_name),
                           .name = copied(stmt->name),
                           .sql = copied(stmt->sql),
                           .n_types = args->n};
    if (args->n > 0) {
        fresh->types = po_grow(NULL, (size_t)args->n, sizeof *fresh->types);
        memcpy(fresh->types, args->types, (size_t)args->n * sizeof *fresh->types);
    }
    return (int)pg->n_prepared++;
}

static int prepared_for(po_pg *pg, const po_stmt *stmt, const po_args *args) {
    int variants = 0;
    for (size_t i = 0; i < pg->n_prepared; i++) {
        const po_prepared *known = &pg->prepared[i];
        if (strcmp(known->name, stmt->name) != 0)
            continue;
        assert(strcmp(known->sql, stmt->sql) == 0); // a name stands for one text
        if (types_fit(known, args))
            return (int)i;
        variants++;
    }
    return add_prepared(pg, stmt, args, variants);
}

void po_flight_forget(po_pg *pg) {
    for (size_t i = 0; i < pg->n_prepared; i++) {
        free(pg->prepared[i].server_name);
        free(pg->prepared[i].name);
        free(pg->prepared[i].sql);
        free(pg->prepared[i].types);
    }
    free(pg->prepared);
    free(pg->sent);
}

// --- Sending

static void note_sent(po_pg *pg, const char *label, int prepares) {
    if (pg->n_sent == pg->cap_sent) {
        pg->cap_sent = pg->cap_sent ? 2 * pg->cap_sent : 32;
        pg->sent = po_grow(pg->sent, pg->cap_sent, sizeof *pg->sent);
    }
    pg->sent[pg->n_sent++] = (po_sent){label, prepares};
    pg->n_sends += prepares < 0;
}

static bool send_unprepared(po_pg *pg, const char *sql) {
    if (!PQsendQueryParams(pg->conn, sql, 0, NULL, NULL, NULL, NULL, 1))
        return false;
    note_sent(pg, sql, -1);
    return true;
}

static bool send_prepared(po_pg *pg, const po_stmt *stmt, const po_args *args) {
    int index = prepared_for(pg, stmt, args);
    po_prepared *known = &pg->prepared[index];
    if (known->state == PO_UNPREPARED) {
        if (!PQsendPrepare(pg->conn, known->server_name, known->sql, known->n_types, known->types))
            return false;
        known->state = PO_PREPARE_SENT;
        note_sent(pg, known->name, index);
    }
    if (!PQsendQueryPrepared(pg->conn, known->server_name, args->n, args->values, args->lengths,
                             args->formats, 1))
        return false;
    note_sent(pg, known->name, -1);
    return true;
}

bool po_flight_send(po_pg *pg, const po_stmt *stmt, const po_args *args, po_err *err) {
    static const po_args none;
    if (pg->lost)
        return po_fail(err, PO_RETRY, "08006", "the connection was lost before");
    if (args && args->bytes > PO_ARGS_MAX)
        return po_fail(err, PO_REFUSED, "54000", "%s: parameters beyond 1023 MiB", stmt->name);
    if (stmt->name ? send_prepared(pg, stmt, args ? args : &none) : send_unprepared(pg, stmt->sql))
        return true;
    bool ours = PQstatus(pg->conn) == CONNECTION_OK; // refused by libpq: parameters it cannot send
    po_pg_lose(pg, err, "08006", PQerrorMessage(pg->conn));
    return ours ? po_fail(err, PO_BUG, "not_sent", "%s: %s", stmt->name ? stmt->name : stmt->sql,
                          PQerrorMessage(pg->conn))
                : false;
}

// --- Landing

bool po_pg_drive(po_pg *pg, po_err *err) {
    for (;;) {
        int unsent = PQflush(pg->conn); // −1 marks the connection bad: PQisBusy is false then
        if (!PQisBusy(pg->conn))
            return true;
        struct pollfd fd = {PQsocket(pg->conn), (short)(unsent > 0 ? POLLIN | POLLOUT : POLLIN), 0};
        int n = poll(&fd, 1, pg->patience_ms);
        if (n == 0)
            return po_pg_lose(pg, err, "08006", "the server has been silent for too long");
        if (n < 0 && errno != EINTR)
            return po_pg_lose(pg, err, "08006", "poll failed");
        if (n > 0 && (fd.revents & ~POLLOUT))
            (void)PQconsumeInput(pg->conn); // a failure shows in the next round
    }
}

static bool take(po_pg *pg, PGresult **ret_res, po_err *err) {
    if (!po_pg_drive(pg, err))
        return false;
    *ret_res = PQgetResult(pg->conn);
    return true;
}

// A statement's one result; behind it, libpq says NULL.
static bool take_statement(po_pg *pg, const char *label, po_res **ret_res, po_err *err) {
    PGresult *res = NULL, *end = NULL;
    if (!take(pg, &res, err))
        return false;
    if (!res)
        return po_pg_lose(pg, err, "08006", "the connection ended");
    *ret_res = (po_res *)res;
    ExecStatusType status = PQresultStatus(res);
    bool fine = status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
    if (!fine && status != PGRES_PIPELINE_ABORTED)
        po_pg_failed(pg, res, label, err);
    if (pg->lost)
        return false;
    if (!take(pg, &end, err))
        return false;
    if (end) {
        PQclear(end);
        return po_pg_lose(pg, err, "08P01", "more results than statements");
    }
    return fine;
}

static bool take_sync(po_pg *pg, po_err *err) {
    PGresult *res = NULL;
    if (!take(pg, &res, err))
        return false;
    bool fine = res && PQresultStatus(res) == PGRES_PIPELINE_SYNC;
    PQclear(res);
    return fine || po_pg_lose(pg, err, "08006", "the connection ended before the sync");
}

// Only the first failure reaches *err. A failed preparation counts for the statement it was made
// for.
static bool land_all(po_pg *pg, po_res **ret_res, po_landing *landing, po_err *err) {
    bool failed = false;
    size_t send = 0;
    for (size_t i = 0; i < pg->n_sent && !pg->lost; i++) {
        const po_sent *sent = &pg->sent[i];
        PO_AUTO(po_res_done) po_res *res = NULL;
        bool fine = take_statement(pg, sent->label, &res, failed ? NULL : err);
        if (!fine && !failed) {
            failed = true;
            landing->failed_at = send;
            landing->by_server = res && PQresultErrorField((PGresult *)res, PG_DIAG_SQLSTATE);
        }
        if (sent->prepares >= 0) {
            pg->prepared[sent->prepares].state = fine ? PO_PREPARED : PO_UNPREPARED;
            continue;
        }
        if (fine)
            snprintf(landing->tag, sizeof landing->tag, "%s", PQcmdStatus((PGresult *)res));
        if (ret_res && fine)
            ret_res[send] = po_take(&res);
        send++;
    }
    return !failed;
}

bool po_flight_land(po_pg *pg, po_res **ret_res, po_landing *ret_landing, po_err *err) {
    size_t n = pg->n_sends;
    po_landing landing = {0};
    for (size_t i = 0; ret_res && i < n; i++)
        ret_res[i] = NULL;
    bool fine =
        !pg->lost ? true : po_fail(err, PO_RETRY, "08006", "the connection was lost before");
    if (fine && !PQpipelineSync(pg->conn))
        fine = po_pg_lose(pg, err, "08006", PQerrorMessage(pg->conn));
    if (fine) {
        fine = land_all(pg, ret_res, &landing, err);
        if (!pg->lost && !take_sync(pg, fine ? err : NULL) && fine) {
            fine = false;
            landing.failed_at = n; // all was done, but for the sync
        }
    }
    pg->n_sent = pg->n_sends = 0;
    for (size_t i = 0; !fine && ret_res && i < n; i++)
        po_res_done(&ret_res[i]);
    if (ret_landing)
        *ret_landing = landing;
    return fine;
}
