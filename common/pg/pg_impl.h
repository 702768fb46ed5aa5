// Inside common/pg only: what its files share. A connection lives in libpq's pipeline mode from
// open to close, so that one path sends and reads statements: a single statement is a flight of
// one.
#pragma once
#include "pg/pg.h"
#include <libpq-fe.h>

// OIDs of PostgreSQL's built-in types; they never change (pg_type.dat).
enum {
    PO_OID_BOOL = 16,
    PO_OID_BYTEA = 17,
    PO_OID_NAME = 19,
    PO_OID_INT8 = 20,
    PO_OID_INT2 = 21,
    PO_OID_INT4 = 23,
    PO_OID_TEXT = 25,
    PO_OID_OID = 26,
    PO_OID_JSON = 114,
    PO_OID_BOOLS = 1000,
    PO_OID_BYTEAS = 1001,
    PO_OID_INT4S = 1007,
    PO_OID_TEXTS = 1009,
    PO_OID_INT8S = 1016,
    PO_OID_BPCHAR = 1042,
    PO_OID_VARCHAR = 1043,
    PO_OID_TIMESTAMPTZ = 1184,
    PO_OID_TIMESTAMPTZS = 1185,
    PO_OID_UUID = 2950,
    PO_OID_UUIDS = 2951,
    PO_OID_JSONB = 3802,
};

// PostgreSQL counts microseconds from 2000-01-01.
#define PO_PG_EPOCH_US 946684800000000LL

// The shape that libpq asks for. A type of 0 is an untyped NULL.
struct po_args {
    po_arena *arena;
    int n, cap;
    Oid *types;
    const char **values;
    int *lengths;
    int *formats;
    size_t bytes; // of all values; above PO_ARGS_MAX they are incomplete and never sent
};

// PostgreSQL takes a message below 1 GiB, and ends the session for a longer one.
#define PO_ARGS_MAX ((size_t)1023 << 20)

// A statement as this connection knows it. The same statement with other parameter types is another
// one.
typedef struct po_prepared {
    char *server_name;
    char *name;
    char *sql;
    Oid *types;
    int n_types;
    enum { PO_UNPREPARED, PO_PREPARE_SENT, PO_PREPARED } state;
} po_prepared;

// One message group of the flight under way. `prepares` is the index of the statement being
// prepared, or −1.
typedef struct po_sent {
    const char *label;
    int prepares;
} po_sent;

struct po_pg {
    PGconn *conn;
    bool lost;       // nothing more can be done with it
    bool stale;      // works, but must not be used again from the pool
    int patience_ms; // without a byte from the server for so long, it is lost; −1 waits for ever
    po_prepared *prepared;
    size_t n_prepared;
    po_sent *sent;
    size_t n_sent, cap_sent;
    size_t n_sends; // of these, the statements that a caller sent
};

// How a flight ended. failed_at counts the caller's sends; by_server: the server itself said so.
typedef struct po_landing {
    size_t failed_at;
    bool by_server;
    char tag[16]; // command tag of the last statement
} po_landing;

po_kind po_pg_kind(const char *sqlstate);
// The SQLSTATE in a verbose message of libpq ("…FATAL:  28P01: …"); false when there is none.
bool po_pg_find_sqlstate(const char *message, char ret_sqlstate[6]);

bool po_pg_open_within(const po_pg_options *options, int timeout_ms, po_pg **ret_pg, po_err *err);
// No transaction, nothing in flight, not dead, not stale.
bool po_pg_reusable(const po_pg *pg);
// Marks the connection lost and fails with RETRY.
bool po_pg_lose(po_pg *pg, po_err *err, const char *sqlstate, const char *text);
// Fails with what the server said in `res`.
bool po_pg_failed(po_pg *pg, const PGresult *res, const char *label, po_err *err);
// Waits until PQgetResult would not block, moving data both ways.
bool po_pg_drive(po_pg *pg, po_err *err);

// stmt->name NULL: sent unprepared.
bool po_flight_send(po_pg *pg, const po_stmt *stmt, const po_args *args, po_err *err);
bool po_flight_land(po_pg *pg, po_res **ret_res, po_landing *ret_landing, po_err *err);
void po_flight_forget(po_pg *pg); // frees the bookkeeping

void *po_grow(void *array, size_t n, size_t size); // realloc that aborts when memory is out
