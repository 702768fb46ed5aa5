// From SQLSTATE to the caller's next step. The table decides; the longest listed prefix wins.
#include "pg/pg_impl.h"
#include <ctype.h>

static const struct {
    const char *prefix;
    po_kind kind;
    bool deployment; // somebody must repair the installation; until then it is like RETRY
} kinds[] = {
    {"08", PO_RETRY, false},                              // connection
    {"53", PO_RETRY, false},                              // resources
    {"57", PO_RETRY, false},                              // shut down, cancelled, timed out
    {"58", PO_RETRY, false},                              // the server's machine: an I/O error
    {"40", PO_RETRY, false},                              // serialisation, deadlock
    {"55P03", PO_RETRY, false},                           // lock not available
    {"25006", PO_RETRY, false},                           // read only: talking to a former primary
    {"25P03", PO_RETRY, false},                           // idle too long inside a transaction
    {"22", PO_REFUSED, false},                            // data
    {"23", PO_REFUSED, false},                            // constraints
    {"P0001", PO_REFUSED, false}, {"42", PO_RETRY, true}, // missing table, column, right
    {"0A", PO_RETRY, true},       {"3D", PO_RETRY, true}, // no such database
    {"3F", PO_RETRY, true},                               // no such schema
    {"28", PO_RETRY, true},                               // login
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static int row_of(const char *sqlstate) {
    for (int i = 0; i < KINDS; i++)
        if (strncmp(sqlstate, kinds[i].prefix, strlen(kinds[i].prefix)) == 0)
            return i;
    return -1;
}

po_kind po_pg_kind(const char *sqlstate) {
    int row = row_of(sqlstate);
    return row < 0 ? PO_BUG : kinds[row].kind;
}

// Codes of ours such as "pool_timeout" are no SQLSTATE.
static bool is_sqlstate(const char *code) {
    size_t n = 0;
    while (isdigit((unsigned char)code[n]) || (code[n] >= 'A' && code[n] <= 'Z'))
        n++;
    return n == 5 && !code[5];
}

bool po_pg_is_deployment(const po_err *err) {
    int row = is_sqlstate(err->code) ? row_of(err->code) : -1;
    return row >= 0 && kinds[row].deployment;
}

bool po_pg_is(const po_err *err, const char *sqlstate) {
    return strcmp(err->code, sqlstate) == 0;
}

bool po_pg_is_too_much(const po_err *err) {
    return po_pg_is(err, "57014") || po_pg_is(err, "25P03") || po_pg_is(err, "57P05") ||
           (is_sqlstate(err->code) && strncmp(err->code, "53", 2) == 0);
}

bool po_pg_find_sqlstate(const char *message, char ret_sqlstate[6]) {
    for (const char *at = strstr(message, ":  "); at; at = strstr(at + 1, ":  ")) {
        char code[6] = {0};
        memcpy(code, at + 3, strnlen(at + 3, 5));
        if (is_sqlstate(code) && at[8] == ':') {
            memcpy(ret_sqlstate, code, sizeof code);
            return true;
        }
    }
    return false;
}
