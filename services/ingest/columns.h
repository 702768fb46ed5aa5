// Columns of a set: parameters cut out of C structs, n values of one field. In scope of the macros:
// args, arena and n.
#pragma once
#include "pg/pg.h"
#include <stddef.h>

static inline po_str text_or_empty(po_str s) {
    return s.p ? s : po_s("");
}

#define FIELD(type, base, stride, offset, i) \
    (*(const type *)((const char *)(base) + (i) * (stride) + (offset)))

static inline void texts(po_args *args, po_arena *arena, const void *rows, size_t n, size_t stride,
                         size_t offset) {
    po_str *out = po_alloc_array(arena, n, sizeof *out);
    for (size_t i = 0; i < n; i++)
        out[i] = text_or_empty(FIELD(po_str, rows, stride, offset, i));
    po_arg_texts(args, out, n);
}
#define TEXTS(args, arena, rows, n, field) \
    texts(args, arena, rows, n, sizeof *(rows), offsetof(__typeof__(*(rows)), field))

// A column of any expression over row `r` of type T.
#define COLUMN(T, put, value)                            \
    do {                                                 \
        T *column = po_alloc_array(arena, n, sizeof(T)); \
        for (size_t i = 0; i < n; i++)                   \
            column[i] = (value);                         \
        put(args, column, n);                            \
    } while (0)
