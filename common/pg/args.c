// Parameters in PostgreSQL's binary format, each with its type stated, so that the server never
// guesses. An array is built in one piece: header, then per element its length (−1 for NULL) and
// its bytes.
#include "pg/pg_impl.h"
#include <assert.h>
#include <endian.h>

po_args *po_args_new(po_arena *arena) {
    po_args *args = po_alloc(arena, sizeof *args);
    args->arena = arena;
    return args;
}

static void *regrown(po_arena *arena, const void *old, int n, int cap, size_t size) {
    void *bigger = po_alloc_array(arena, (size_t)cap, size);
    if (n > 0)
        memcpy(bigger, old, (size_t)n * size);
    return bigger;
}

// Adds to a size, and stays at the largest one once it does not fit.
static void grow_by(size_t *size, size_t more) {
    if (__builtin_add_overflow(*size, more, size))
        *size = SIZE_MAX;
}

static void add(po_args *args, Oid type, const void *value, size_t length) {
    grow_by(&args->bytes, length);
    if (args->bytes > PO_ARGS_MAX) {
        value = NULL;
        length = 0;
    }
    if (args->n == args->cap) {
        int cap = args->cap ? 2 * args->cap : 16;
        args->types = regrown(args->arena, args->types, args->n, cap, sizeof *args->types);
        args->values = regrown(args->arena, args->values, args->n, cap, sizeof *args->values);
        args->lengths = regrown(args->arena, args->lengths, args->n, cap, sizeof *args->lengths);
        args->formats = regrown(args->arena, args->formats, args->n, cap, sizeof *args->formats);
        args->cap = cap;
    }
    args->types[args->n] = type;
    args->values[args->n] = value;
    args->lengths[args->n] = (int)length;
    args->formats[args->n] = 1;
    args->n++;
}

static void add_copy(po_args *args, Oid type, const void *value, size_t length) {
    void *copy = po_alloc(args->arena, length);
    memcpy(copy, value, length);
    add(args, type, copy, length);
}

// --- One value's bytes

static size_t put_i32(char *at, int32_t value) {
    uint32_t wire = htobe32((uint32_t)value);
    memcpy(at, &wire, sizeof wire);
    return sizeof wire;
}

static size_t put_i64(char *at, int64_t value) {
    uint64_t wire = htobe64((uint64_t)value);
    memcpy(at, &wire, sizeof wire);
    return sizeof wire;
}

// What lies before the range of int64 becomes an instant that the server refuses (22008), not
// -infinity.
static int64_t since_2000(int64_t instant_us) {
    if (instant_us == INT64_MAX)
        return INT64_MAX; // infinity
    return instant_us <= INT64_MIN + PO_PG_EPOCH_US ? INT64_MIN + 1 : instant_us - PO_PG_EPOCH_US;
}

void po_arg_null(po_args *args) {
    add(args, 0, NULL, 0);
}

void po_arg_bool(po_args *args, bool value) {
    add_copy(args, PO_OID_BOOL, &(char){value ? 1 : 0}, 1);
}

void po_arg_i32(po_args *args, int32_t value) {
    char wire[4];
    add_copy(args, PO_OID_INT4, wire, put_i32(wire, value));
}

void po_arg_i64(po_args *args, int64_t value) {
    char wire[8];
    add_copy(args, PO_OID_INT8, wire, put_i64(wire, value));
}

void po_arg_text(po_args *args, po_str value) {
    add(args, PO_OID_TEXT, value.p, value.n);
}

void po_arg_bytea(po_args *args, po_str value) {
    add(args, PO_OID_BYTEA, value.p, value.n);
}

void po_arg_uuid(po_args *args, po_uuid value) {
    add_copy(args, PO_OID_UUID, value.b, sizeof value.b);
}

void po_arg_time(po_args *args, int64_t instant_us) {
    char wire[8];
    if (instant_us == PO_NO_TIME)
        add(args, PO_OID_TIMESTAMPTZ, NULL, 0);
    else
        add_copy(args, PO_OID_TIMESTAMPTZ, wire, put_i64(wire, since_2000(instant_us)));
}

// --- Arrays

// An array under construction; `at` is where the next element goes, NULL when it is too large.
typedef struct array {
    char *start;
    char *at;
} array;

enum { ARRAY_HEADER = 20 };

static array array_open(po_args *args, Oid element, size_t n, size_t bytes, bool nulls) {
    array a = {0};
    if (n > PO_ARGS_MAX / 4 || bytes > PO_ARGS_MAX - ARRAY_HEADER) {
        grow_by(&args->bytes, SIZE_MAX);
        return a;
    }
    a.start = a.at = po_alloc(args->arena, ARRAY_HEADER + bytes);
    a.at += put_i32(a.at, n > 0); // dimensions: an empty array has none
    a.at += put_i32(a.at, nulls);
    a.at += put_i32(a.at, (int32_t)element);
    if (n > 0) {
        a.at += put_i32(a.at, (int32_t)n);
        a.at += put_i32(a.at, 1); // lower bound
    }
    return a;
}

static void array_put(array *a, const void *bytes, size_t length) {
    if (!a->at)
        return;
    a->at += put_i32(a->at, (int32_t)length);
    memcpy(a->at, bytes, length);
    a->at += length;
}

static void array_put_null(array *a) {
    if (!a->at)
        return;
    a->at += put_i32(a->at, -1);
}

static void array_close(po_args *args, Oid type, const array *a) {
    add(args, type, a->start, (size_t)(a->at - a->start));
}

void po_arg_i32s(po_args *args, const int32_t *values, size_t n) {
    array a = array_open(args, PO_OID_INT4, n, n * 8, false);
    for (size_t i = 0; i < n; i++) {
        char wire[4];
        array_put(&a, wire, put_i32(wire, values[i]));
    }
    array_close(args, PO_OID_INT4S, &a);
}

static void i64s(po_args *args, Oid element, Oid type, const int64_t *values, size_t n) {
    bool nulls = false;
    for (size_t i = 0; i < n; i++)
        nulls |= values[i] == INT64_MIN;
    array a = array_open(args, element, n, n * 12, nulls);
    for (size_t i = 0; i < n; i++) {
        char wire[8];
        int64_t value = element == PO_OID_TIMESTAMPTZ ? since_2000(values[i]) : values[i];
        if (values[i] == INT64_MIN)
            array_put_null(&a);
        else
            array_put(&a, wire, put_i64(wire, value));
    }
    array_close(args, type, &a);
}

void po_arg_i64s(po_args *args, const int64_t *values, size_t n) {
    static_assert(PO_NO_I64 == INT64_MIN && PO_NO_TIME == INT64_MIN, "one mark for NULL");
    i64s(args, PO_OID_INT8, PO_OID_INT8S, values, n);
}

void po_arg_times(po_args *args, const int64_t *instants_us, size_t n) {
    i64s(args, PO_OID_TIMESTAMPTZ, PO_OID_TIMESTAMPTZS, instants_us, n);
}

void po_arg_bools(po_args *args, const bool *values, size_t n) {
    array a = array_open(args, PO_OID_BOOL, n, n * 5, false);
    for (size_t i = 0; i < n; i++)
        array_put(&a, &(char){values[i] ? 1 : 0}, 1);
    array_close(args, PO_OID_BOOLS, &a);
}

void po_arg_uuids(po_args *args, const po_uuid *values, size_t n) {
    array a = array_open(args, PO_OID_UUID, n, n * 20, false);
    for (size_t i = 0; i < n; i++)
        array_put(&a, values[i].b, sizeof values[i].b);
    array_close(args, PO_OID_UUIDS, &a);
}

static void strs(po_args *args, Oid element, Oid type, const po_str *values, size_t n) {
    bool nulls = false;
    size_t bytes = n * 4;
    for (size_t i = 0; i < n; i++) {
        nulls |= !values[i].p;
        grow_by(&bytes, values[i].p ? values[i].n : 0);
    }
    array a = array_open(args, element, n, bytes, nulls);
    for (size_t i = 0; i < n; i++)
        if (values[i].p)
            array_put(&a, values[i].p, values[i].n);
        else
            array_put_null(&a);
    array_close(args, type, &a);
}

void po_arg_texts(po_args *args, const po_str *values, size_t n) {
    strs(args, PO_OID_TEXT, PO_OID_TEXTS, values, n);
}

void po_arg_byteas(po_args *args, const po_str *values, size_t n) {
    strs(args, PO_OID_BYTEA, PO_OID_BYTEAS, values, n);
}
