// Avro binary. Writing takes values in the schema's order. Reading follows the steps of a resolver
// (resolve.c).
//
// Input is hostile: a length is compared with what is left before it is used; nesting is bounded,
// because a writer's type may contain itself; and work is bounded, because an element may take no
// bytes at all, so that a count alone could keep us busy for ever.
#include "avro/schema.h"
#include <assert.h>

enum { NESTING_MAX = 64, SPARE_WORK = 65536 };

static bool is_utf8(po_str s) {
    const uint8_t *p = (const uint8_t *)s.p, *end = p + s.n;
    while (p < end) {
        uint8_t lead = *p++;
        if (lead < 0x80)
            continue;
        int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
        if (lead < 0xc2 || lead > 0xf4 || end - p < more)
            return false;
        // The second byte excludes overlong forms, surrogates and what lies above U+10FFFF.
        uint8_t least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        uint8_t most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        if (*p < least || *p > most)
            return false;
        for (p++; --more; p++)
            if (*p < 0x80 || *p > 0xbf)
                return false;
    }
    return true;
}

// --- Writing

static void put_long(po_buf *out, int64_t value) {
    uint64_t zigzag = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    uint8_t bytes[10];
    size_t n = 0;
    for (; zigzag >= 0x80; zigzag >>= 7)
        bytes[n++] = (uint8_t)(zigzag | 0x80);
    bytes[n++] = (uint8_t)zigzag;
    po_buf_put(out, bytes, n);
}

static bool put_bytes(po_buf *out, po_str bytes) {
    put_long(out, (int64_t)bytes.n);
    po_buf_put(out, bytes.p, bytes.n);
    return true;
}

static bool put_value(const po_avro_node *node, const po_avro_value *value, po_buf *out);

// One block, then the empty one that ends the array.
static bool put_records(const po_avro_node *record, const po_avro_value *array, po_buf *out) {
    if (array->type != PO_AVRO_ARRAY || record->kind != AVRO_RECORD ||
        array->records.n > PO_AVRO_RECORDS_MAX)
        return false;
    size_t n = array->records.n * record->n;
    if (array->records.n)
        put_long(out, (int64_t)array->records.n);
    for (size_t i = 0; i < n; i++)
        if (!put_value(record->of[i % record->n], &array->records.values[i], out))
            return false;
    put_long(out, 0);
    return true;
}

// False when the value does not fit; what was appended until then is the caller's to drop.
static bool put_value(const po_avro_node *node, const po_avro_value *value, po_buf *out) {
    switch (node->kind) {
    case AVRO_NULL:
        return value->type == PO_AVRO_NULL;
    case AVRO_BOOLEAN:
        if (value->type == PO_AVRO_BOOL)
            po_buf_put(out, value->b ? "\1" : "\0", 1);
        return value->type == PO_AVRO_BOOL;
    case AVRO_INT:
    case AVRO_LONG:
        if (value->type != PO_AVRO_LONG || (node->kind == AVRO_INT && !po_avro_fits_int(value->i)))
            return false;
        put_long(out, value->i);
        return true;
    case AVRO_STRING:
        return value->type == PO_AVRO_STRING && is_utf8(value->s) && put_bytes(out, value->s);
    case AVRO_BYTES:
        return value->type == PO_AVRO_BYTES && put_bytes(out, value->s);
    case AVRO_ENUM: {
        int index = value->type == PO_AVRO_STRING ? po_avro_symbol(node, value->s) : -1;
        if (index >= 0)
            put_long(out, index);
        return index >= 0;
    }
    case AVRO_UNION:
        for (size_t i = 0, start = out->n; i < node->n; i++, out->n = start) {
            put_long(out, (int64_t)i);
            if (put_value(node->of[i], value, out))
                return true;
        }
        return false;
    case AVRO_ARRAY:
        return put_records(node->of[0], value, out);
    default: // what only strangers write
        return false;
    }
}

bool po_avro_encode(const po_avro_schema *schema, const po_avro_value *values, size_t n,
                    po_buf *out, po_err *err) {
    const po_avro_node *record = schema->root;
    assert(n == record->n);
    size_t start = out->n;
    for (size_t i = 0; i < n; i++) {
        if (put_value(record->of[i], &values[i], out))
            continue;
        out->n = start;
        return po_fail(err, PO_REFUSED, "avro_data", "%s.%s: the value does not fit its type",
                       record->name, record->names[i]);
    }
    return true;
}

// --- Reading bytes

typedef struct cursor {
    const uint8_t *p, *end;
    size_t work;                // values that may still be skipped
    const char *code, *problem; // of the failure
} cursor;

static bool broken(cursor *c, const char *problem) {
    c->code = "avro_data";
    c->problem = problem;
    return false;
}

static size_t left(const cursor *c) {
    return (size_t)(c->end - c->p);
}

static bool get_long(cursor *c, int64_t *ret) {
    uint64_t zigzag = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (c->p == c->end)
            return broken(c, "the data ends early");
        uint8_t byte = *c->p++;
        if (shift == 63 && byte > 1)
            break;
        zigzag |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *ret = (int64_t)(zigzag >> 1) ^ -(int64_t)(zigzag & 1);
            return true;
        }
    }
    return broken(c, "a number of more than 64 bits");
}

static bool get_raw(cursor *c, size_t n, po_str *ret) {
    if (n > left(c))
        return broken(c, "the data ends early");
    *ret = (po_str){(const char *)c->p, n};
    c->p += n;
    return true;
}

static bool get_bytes(cursor *c, po_str *ret) {
    int64_t n;
    if (!get_long(c, &n))
        return false;
    if (n < 0)
        return broken(c, "a negative length");
    return get_raw(c, (size_t)n, ret);
}

static bool get_index(cursor *c, size_t n, size_t *ret) {
    int64_t index;
    if (!get_long(c, &index))
        return false;
    if (index < 0 || (uint64_t)index >= n)
        return broken(c, "a symbol or branch that does not exist");
    *ret = (size_t)index;
    return true;
}

static bool get_bool(cursor *c, bool *ret) {
    po_str byte;
    if (!get_raw(c, 1, &byte))
        return false;
    if (*byte.p & ~1)
        return broken(c, "a boolean that is neither 0 nor 1");
    *ret = *byte.p;
    return true;
}

static bool get_integer(cursor *c, po_avro_kind kind, int64_t *ret) {
    if (!get_long(c, ret))
        return false;
    return kind == AVRO_LONG || po_avro_fits_int(*ret) || broken(c, "an int of more than 32 bits");
}

// --- Skipping

static bool skip(cursor *c, const po_avro_node *node, unsigned depth);

// Blocks of items until an empty one. A negative count is followed by the block's size in bytes.
static bool skip_blocks(cursor *c, const po_avro_node *node, unsigned depth) {
    int64_t n, size;
    po_str ignored;
    for (;;) {
        if (!get_long(c, &n))
            return false;
        if (n == 0)
            return true;
        if (n < 0) {
            if (!get_long(c, &size))
                return false;
            if (size < 0)
                return broken(c, "a negative length");
            if (!get_raw(c, (size_t)size, &ignored))
                return false;
            continue;
        }
        for (; n; n--)
            if ((node->kind == AVRO_MAP && !get_bytes(c, &ignored)) || !skip(c, node->of[0], depth))
                return false;
    }
}

static bool skip(cursor *c, const po_avro_node *node, unsigned depth) {
    if (depth++ == NESTING_MAX || c->work-- == 0)
        return broken(c, "nested too deep, or too many values");
    int64_t ignored;
    po_str bytes;
    size_t branch;
    bool flag;
    switch (node->kind) {
    case AVRO_NULL:
        return true;
    case AVRO_BOOLEAN:
        return get_bool(c, &flag);
    case AVRO_INT:
    case AVRO_LONG:
        return get_integer(c, node->kind, &ignored);
    case AVRO_STRING:
    case AVRO_BYTES:
        return get_bytes(c, &bytes);
    case AVRO_ENUM:
        return get_index(c, node->n, &branch);
    case AVRO_FLOAT:
        return get_raw(c, 4, &bytes);
    case AVRO_DOUBLE:
        return get_raw(c, 8, &bytes);
    case AVRO_FIXED:
        return get_raw(c, node->n, &bytes);
    case AVRO_ARRAY:
    case AVRO_MAP:
        return skip_blocks(c, node, depth);
    case AVRO_UNION:
        return get_index(c, node->n, &branch) && skip(c, node->of[branch], depth);
    case AVRO_RECORD:
        for (size_t i = 0; i < node->n; i++)
            if (!skip(c, node->of[i], depth))
                return false;
        return true;
    }
    return broken(c, "an unknown type");
}

// --- Decoding

static bool get_text(cursor *c, const po_avro_step *s, po_arena *arena, po_avro_value *ret) {
    po_str bytes;
    if (!get_bytes(c, &bytes))
        return false;
    bool string = s->to->kind == AVRO_STRING;
    if (string && !is_utf8(bytes))
        return broken(c, "a string that is not UTF-8");
    *ret = (po_avro_value){.type = string ? PO_AVRO_STRING : PO_AVRO_BYTES,
                           .s = po_str_copy(arena, bytes)};
    return true;
}

static bool get_symbol(cursor *c, const po_avro_step *s, po_arena *arena, po_avro_value *ret) {
    size_t index;
    if (!get_index(c, s->from->n, &index))
        return false;
    if (!s->symbols[index]) {
        c->code = "avro_unresolvable";
        c->problem = "a symbol that the reader does not know";
        return false;
    }
    *ret =
        (po_avro_value){.type = PO_AVRO_STRING, .s = po_str_copy(arena, po_s(s->symbols[index]))};
    return true;
}

static bool get_records(cursor *c, const po_avro_plan *p, po_arena *arena, po_avro_value *ret);

static bool get_value(cursor *c, const po_avro_step *s, po_arena *arena, po_avro_value *ret) {
    if (s->branches) {
        size_t branch;
        if (!get_index(c, s->from->n, &branch))
            return false;
        s = &s->branches[branch];
    }
    if (!s->to) {
        c->code = "avro_unresolvable";
        c->problem = "a value of a type that the reader does not know";
        return false;
    }
    switch (s->from->kind) {
    case AVRO_NULL:
        *ret = (po_avro_value){.type = PO_AVRO_NULL};
        return true;
    case AVRO_BOOLEAN:
        *ret = (po_avro_value){.type = PO_AVRO_BOOL};
        return get_bool(c, &ret->b);
    case AVRO_INT:
    case AVRO_LONG:
        *ret = (po_avro_value){.type = PO_AVRO_LONG};
        return get_integer(c, s->from->kind, &ret->i);
    case AVRO_ENUM:
        return get_symbol(c, s, arena, ret);
    case AVRO_ARRAY:
        return get_records(c, s->records, arena, ret);
    default: // string or bytes: nothing else has a place
        return get_text(c, s, arena, ret);
    }
}

static void put_defaults(const po_avro_plan *p, po_arena *arena, po_avro_value *values) {
    for (size_t k = 0; k < p->reader->n; k++) {
        values[k] = p->defaults[k];
        if (values[k].type == PO_AVRO_STRING || values[k].type == PO_AVRO_BYTES)
            values[k].s = po_str_copy(arena, values[k].s);
    }
}

// *ret_at: the writer's field that failed.
static bool get_record(cursor *c, const po_avro_plan *p, po_arena *arena, po_avro_value *values,
                       size_t *ret_at) {
    put_defaults(p, arena, values);
    for (size_t i = 0; i < p->writer->n; i++) {
        int target = p->targets[i];
        *ret_at = i;
        if (target == PO_AVRO_SKIPPED ? !skip(c, p->writer->of[i], 0)
                                      : !get_value(c, &p->steps[i], arena, &values[target]))
            return false;
    }
    return true;
}

// The count of a block's records, and where it must end; NULL where it does not say.
static bool get_block(cursor *c, size_t before, size_t *ret_n, const uint8_t **ret_end) {
    int64_t n, size;
    *ret_end = NULL;
    if (!get_long(c, &n))
        return false;
    int64_t most = (int64_t)(PO_AVRO_RECORDS_MAX - before);
    if (n > most || n < -most)
        return broken(c, "more records than an array may have");
    *ret_n = (size_t)(n < 0 ? -n : n);
    if (n >= 0)
        return true;
    if (!get_long(c, &size))
        return false;
    if (size < 0 || (uint64_t)size > left(c))
        return broken(c, "a block beyond the end");
    *ret_end = c->p + size;
    return true;
}

static po_avro_value *grown(po_arena *arena, const po_avro_value *values, size_t n, size_t more) {
    po_avro_value *all = po_alloc_array(arena, n + more, sizeof *all);
    if (n)
        memcpy(all, values, n * sizeof *all);
    return all;
}

static bool get_records(cursor *c, const po_avro_plan *p, po_arena *arena, po_avro_value *ret) {
    size_t n, at, total = 0, fields = p->reader->n;
    const uint8_t *end;
    po_avro_value *all = NULL;
    for (;;) {
        if (!get_block(c, total, &n, &end))
            return false;
        if (n == 0)
            break;
        all = grown(arena, all, total * fields, n * fields);
        for (; n; n--, total++)
            if (!get_record(c, p, arena, all + total * fields, &at))
                return false;
        if (end && c->p != end)
            return broken(c, "a block that is not as long as it says");
    }
    *ret = (po_avro_value){.type = PO_AVRO_ARRAY, .records = {all, total}};
    return true;
}

bool po_avro_decode(const po_avro_resolver *resolver, po_str body, po_arena *arena,
                    po_avro_value **ret_values, po_err *err) {
    const po_avro_plan *p = &resolver->root;
    const uint8_t *start = (const uint8_t *)(body.n ? body.p : "");
    cursor c = {.p = start, .end = start + body.n, .work = SPARE_WORK + 4 * body.n};
    po_avro_value *values = po_alloc_array(arena, p->reader->n, sizeof *values);
    size_t at = 0;
    if (!get_record(&c, p, arena, values, &at))
        return po_fail(err, PO_REFUSED, c.code, "%s.%s: %s", p->writer->name, p->writer->names[at],
                       c.problem);
    if (c.p != c.end)
        return po_fail(err, PO_REFUSED, "avro_data", "%s: %zu bytes too many", p->writer->name,
                       left(&c));
    *ret_values = values;
    return true;
}
