// Transactions. Whatever state the connection is in, leaving the scope leaves no transaction
// behind: a flight under way lands first, then ROLLBACK, and a connection that cannot do that is
// lost (the server rolls back when it goes). The delicate part is COMMIT: a reply that never came
// may mean either.
#include "pg/pg_impl.h"
#include <assert.h>
#include <stdio.h>

static const po_stmt begin = {"po_begin", "BEGIN ISOLATION LEVEL READ COMMITTED"};
static const po_stmt commit = {"po_commit", "COMMIT"};
static const po_stmt rollback = {"po_rollback", "ROLLBACK"};

bool po_tx_begin(po_pg *pg, po_tx *tx, po_err *err) {
    assert(!tx->open);
    if (!po_pg_run(pg, &begin, NULL, NULL, err))
        return false;
    *tx = (po_tx){pg, true};
    return true;
}

bool po_tx_send_begin(po_pg *pg, po_tx *tx, po_err *err) {
    assert(!tx->open);
    if (!po_flight_send(pg, &begin, NULL, err))
        return false;
    *tx = (po_tx){pg, true};
    return true;
}

static void leave(po_pg *pg) {
    if (pg->n_sent > 0)
        (void)po_flight_land(pg, NULL, NULL, NULL);
    if (!po_pg_alive(pg) || PQtransactionStatus(pg->conn) == PQTRANS_IDLE)
        return;
    if (!po_pg_run(pg, &rollback, NULL, NULL, NULL))
        pg->lost = true;
}

// The server answers in order. A failure that it reports for a statement before COMMIT is final:
// COMMIT was skipped. Once the connection is lost without such a report, COMMIT may have been done.
bool po_tx_commit(po_tx *tx, po_err *err) {
    assert(tx->open);
    po_pg *pg = tx->pg;
    *tx = (po_tx){0};
    if (pg->lost)
        return po_fail(err, PO_RETRY, "08006", "the connection was lost before COMMIT");
    size_t commit_at = pg->n_sends;
    po_landing landing = {0};
    po_err why = {0};
    bool sent = po_flight_send(pg, &commit, NULL, &why);
    bool fine = sent && po_flight_land(pg, NULL, &landing, &why);
    if (fine && strcmp(landing.tag, "COMMIT") == 0)
        return true;
    if (fine) // COMMIT of a failed transaction is a ROLLBACK, and no error to the server
        return po_fail(err, PO_BUG, "25P02", "COMMIT of a transaction that had failed");
    bool before_commit = landing.by_server && landing.failed_at < commit_at;
    if (pg->lost && !before_commit && why.kind != PO_BUG)
        return po_fail(err, PO_UNCERTAIN, why.code, "the reply to COMMIT was lost: %s", why.text);
    leave(pg);
    return po_fail(err, why.kind, why.code, "%s", why.text);
}

void po_tx_rollback(po_tx *tx) {
    if (tx->open)
        leave(tx->pg);
    *tx = (po_tx){0};
}

void po_tx_done(po_tx *tx) {
    po_tx_rollback(tx);
}

static bool savepoint_command(po_tx *tx, const char *command, const char *name, po_err *err) {
    assert(tx->open && *name && name[strspn(name, "abcdefghijklmnopqrstuvwxyz_0123456789")] == 0);
    char sql[96];
    int n = snprintf(sql, sizeof sql, "%s %s", command, name);
    assert(n > 0 && (size_t)n < sizeof sql);
    return po_pg_run(tx->pg, &(po_stmt){NULL, sql}, NULL, NULL, err);
}

bool po_savepoint(po_tx *tx, const char *name, po_err *err) {
    return savepoint_command(tx, "SAVEPOINT", name, err);
}

bool po_rollback_to(po_tx *tx, const char *name, po_err *err) {
    return savepoint_command(tx, "ROLLBACK TO SAVEPOINT", name, err);
}
