// Results in binary. A po_res is libpq's own result under our name: there is nothing to add to it.
// Asking for a column as a type that it has not is a mistake in our SQL table: we abort with both
// named.
#include "pg/pg_impl.h"
#include <assert.h>
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>

static const PGresult *pg_of(const po_res *res) {
    return (const PGresult *)res;
}

void po_res_done(po_res **res) {
    PQclear((PGresult *)*res);
    *res = NULL;
}

int po_res_rows(const po_res *res) {
    return PQntuples(pg_of(res));
}

int64_t po_res_affected(const po_res *res) {
    // libpq hands out the command tag's count as text; it is empty for commands without one.
    return strtoll(PQcmdTuples((PGresult *)pg_of(res)), NULL, 10);
}

static void __attribute__((noreturn)) wrong_type(const po_res *res, int col, const char *wanted) {
    fprintf(stderr, "column %d (%s) has type %u and is read as %s\n", col, PQfname(pg_of(res), col),
            PQftype(pg_of(res), col), wanted);
    abort();
}

static void check_at(const po_res *res, int row, int col) {
    assert(row >= 0 && row < PQntuples(pg_of(res)) && col >= 0 && col < PQnfields(pg_of(res)));
    assert(PQfformat(pg_of(res), col) == 1);
}

static const char *value_at(const po_res *res, int row, int col, Oid type, const char *wanted) {
    check_at(res, row, col);
    if (PQftype(pg_of(res), col) != type)
        wrong_type(res, col, wanted);
    return PQgetisnull(pg_of(res), row, col) ? NULL : PQgetvalue(pg_of(res), row, col);
}

bool po_res_null(const po_res *res, int row, int col) {
    check_at(res, row, col);
    return PQgetisnull(pg_of(res), row, col);
}

bool po_res_bool(const po_res *res, int row, int col) {
    const char *wire = value_at(res, row, col, PO_OID_BOOL, "bool");
    return wire && *wire != 0;
}

static int64_t be64(const char *wire) {
    uint64_t value;
    memcpy(&value, wire, sizeof value);
    return (int64_t)be64toh(value);
}

static uint32_t be32(const char *wire) {
    uint32_t value;
    memcpy(&value, wire, sizeof value);
    return be32toh(value);
}

int64_t po_res_i64(const po_res *res, int row, int col) {
    check_at(res, row, col);
    const char *wire = PQgetvalue(pg_of(res), row, col);
    bool null = PQgetisnull(pg_of(res), row, col);
    uint16_t small;
    switch (PQftype(pg_of(res), col)) {
    case PO_OID_INT8:
        return null ? 0 : be64(wire);
    case PO_OID_INT4:
        return null ? 0 : (int32_t)be32(wire);
    case PO_OID_OID:
        return null ? 0 : be32(wire);
    case PO_OID_INT2:
        memcpy(&small, wire, null ? 0 : sizeof small);
        return null ? 0 : (int16_t)be16toh(small);
    default:
        wrong_type(res, col, "an integer");
    }
}

po_str po_res_text(const po_res *res, int row, int col) {
    check_at(res, row, col);
    po_str text = {PQgetvalue(pg_of(res), row, col), (size_t)PQgetlength(pg_of(res), row, col)};
    switch (PQftype(pg_of(res), col)) {
    case PO_OID_TEXT:
    case PO_OID_VARCHAR:
    case PO_OID_BPCHAR:
    case PO_OID_NAME:
    case PO_OID_JSON:
        break;
    case PO_OID_JSONB: // a version byte stands before the text
        if (text.n > 0)
            text = (po_str){text.p + 1, text.n - 1};
        break;
    default:
        wrong_type(res, col, "text");
    }
    return PQgetisnull(pg_of(res), row, col) ? (po_str){NULL, 0} : text;
}

po_str po_res_bytea(const po_res *res, int row, int col) {
    const char *wire = value_at(res, row, col, PO_OID_BYTEA, "bytea");
    return (po_str){wire, wire ? (size_t)PQgetlength(pg_of(res), row, col) : 0};
}

po_uuid po_res_uuid(const po_res *res, int row, int col) {
    po_uuid id = {{0}};
    const char *wire = value_at(res, row, col, PO_OID_UUID, "uuid");
    if (wire)
        memcpy(id.b, wire, sizeof id.b);
    return id;
}

// The infinities come back as the ends of int64, -infinity one above PO_NO_TIME.
int64_t po_res_time(const po_res *res, int row, int col) {
    const char *wire = value_at(res, row, col, PO_OID_TIMESTAMPTZ, "timestamptz");
    if (!wire)
        return PO_NO_TIME;
    int64_t since_2000 = be64(wire);
    if (since_2000 == INT64_MIN)
        return INT64_MIN + 1;
    return since_2000 > INT64_MAX - PO_PG_EPOCH_US ? INT64_MAX : since_2000 + PO_PG_EPOCH_US;
}
