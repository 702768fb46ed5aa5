// Avro binary. Writing takes values in the schema's order. Reading goes through a resolver, which
// is worked out once per pair of schemas: for each field of the writer a step that says where its
// value goes (or that it is skipped), and for each field of the reader the value it has when the
// writer lacks it. Matching is by name throughout, enum symbols included, so inserting a symbol
// never turns one into another.
//
// Input is hostile: a length is compared with what is left before it is used; nesting is bounded,
// because a writer's type may contain itself; and work is bounded, because an element may take no
// bytes at all, so that a count alone could keep us busy for ever.
#include "avro/schema.h"
#include "base/cleanup.h"
#include "json/json.h"
#include <assert.h>
#include <stdlib.h>

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

static bool fits_int(int64_t value) {
    return value >= INT32_MIN && value <= INT32_MAX;
}

// The position of a symbol, or -1.
static int symbol_index(const po_avro_node *node, po_str symbol) {
    for (size_t i = 0; i < node->n; i++)
        if (po_str_is(symbol, node->names[i]))
            return (int)i;
    return -1;
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
        if (value->type != PO_AVRO_LONG || (node->kind == AVRO_INT && !fits_int(value->i)))
            return false;
        put_long(out, value->i);
        return true;
    case AVRO_STRING:
        return value->type == PO_AVRO_STRING && is_utf8(value->s) && put_bytes(out, value->s);
    case AVRO_BYTES:
        return value->type == PO_AVRO_BYTES && put_bytes(out, value->s);
    case AVRO_ENUM: {
        int index = value->type == PO_AVRO_STRING ? symbol_index(node, value->s) : -1;
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
    return kind == AVRO_LONG || fits_int(*ret) || broken(c, "an int of more than 32 bits");
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

// --- Resolving

// How a value of the writer becomes one of the reader.
typedef struct step step;
struct step {
    const po_avro_node *from;
    const po_avro_node *to; // of the reader, never a union; NULL: the reader has no place for it
    const char **symbols; // from an enum: the reader's symbol for each of the writer's, NULL = none
    step *branches;       // from a union: a step per branch
};

enum { SKIPPED = -1 };

struct po_avro_resolver {
    po_arena *arena;
    const po_avro_node *writer, *reader;
    step *steps;             // per field of the writer
    int *targets;            // per field of the writer: the reader's field, or SKIPPED
    po_avro_value *defaults; // per field of the reader; used where no target names it
};

static bool is_flat(const po_avro_node *node) {
    if (node->kind != AVRO_UNION)
        return node->kind <= AVRO_ENUM;
    for (size_t i = 0; i < node->n; i++)
        if (node->of[i]->kind > AVRO_ENUM)
            return false;
    return true;
}

static bool is_text(const po_avro_node *node) {
    return node->kind == AVRO_STRING || node->kind == AVRO_BYTES;
}

// Neither is a union. Avro lets a reader overlook another logicalType; milliseconds taken for
// microseconds would be wrong in silence, so where both state one they must agree.
static bool takes(const po_avro_node *to, const po_avro_node *from) {
    if (to->logical && from->logical && strcmp(to->logical, from->logical))
        return false;
    if (to->kind == AVRO_ENUM && from->kind == AVRO_ENUM)
        return !strcmp(to->name, from->name);
    return to->kind == from->kind || (to->kind == AVRO_LONG && from->kind == AVRO_INT) ||
           (is_text(to) && is_text(from));
}

static const po_avro_node *target_of(const po_avro_node *reader, const po_avro_node *from) {
    if (reader->kind != AVRO_UNION)
        return takes(reader, from) ? reader : NULL;
    for (size_t i = 0; i < reader->n; i++)
        if (takes(reader->of[i], from))
            return reader->of[i];
    return NULL;
}

static const char **map_symbols(po_arena *arena, const po_avro_node *from, const po_avro_node *to) {
    const char **map = po_alloc_array(arena, from->n, sizeof *map);
    for (size_t i = 0; i < from->n; i++) {
        int index = symbol_index(to, po_s(from->names[i]));
        map[i] = index >= 0 ? to->names[index] : to->fallback;
    }
    return map;
}

// False when nothing that the writer can write there has a place in the reader's type.
static bool plan(po_arena *arena, const po_avro_node *from, const po_avro_node *reader, step *ret) {
    *ret = (step){.from = from};
    if (from->kind == AVRO_UNION) {
        bool any = false;
        ret->branches = po_alloc_array(arena, from->n, sizeof *ret->branches);
        for (size_t i = 0; i < from->n; i++)
            any |= plan(arena, from->of[i], reader, &ret->branches[i]);
        return any;
    }
    ret->to = target_of(reader, from);
    if (ret->to && from->kind == AVRO_ENUM)
        ret->symbols = map_symbols(arena, from, ret->to);
    return ret->to != NULL;
}

// Avro writes the default of bytes as text whose code points are the bytes.
static bool latin1(po_arena *arena, const char *utf8, po_str *ret) {
    char *out = po_alloc(arena, strlen(utf8) + 1);
    size_t n = 0;
    for (const uint8_t *p = (const uint8_t *)utf8; *p; p++) {
        if (*p > 0xc3)
            return false;
        uint8_t lead = *p;
        out[n++] = (char)(lead < 0x80 ? lead : (uint8_t)(lead << 6 | (*++p & 0x3f)));
    }
    *ret = (po_str){out, n};
    return true;
}

static bool default_value(po_arena *arena, const po_avro_node *node, const json_t *json,
                          po_avro_value *ret) {
    const char *text = po_json_string(json);
    switch (node->kind) {
    case AVRO_NULL:
        *ret = (po_avro_value){.type = PO_AVRO_NULL};
        return json_is_null(json);
    case AVRO_BOOLEAN:
        *ret = (po_avro_value){.type = PO_AVRO_BOOL, .b = json_is_true(json)};
        return json_is_boolean(json);
    case AVRO_INT:
    case AVRO_LONG:
        *ret = (po_avro_value){.type = PO_AVRO_LONG, .i = json_integer_value(json)};
        return json_is_integer(json) && (node->kind == AVRO_LONG || fits_int(ret->i));
    case AVRO_STRING:
    case AVRO_ENUM:
        *ret = (po_avro_value){.type = PO_AVRO_STRING, .s = po_s(text)};
        return text && (node->kind == AVRO_STRING || symbol_index(node, ret->s) >= 0);
    case AVRO_BYTES:
        *ret = (po_avro_value){.type = PO_AVRO_BYTES};
        return text && latin1(arena, text, &ret->s);
    case AVRO_UNION: // a default is one of the first branch
        return node->n && default_value(arena, node->of[0], json, ret);
    default:
        return false;
    }
}

static bool unresolvable(const po_avro_node *record, size_t field, const char *problem,
                         po_err *err) {
    return po_fail(err, PO_REFUSED, "avro_unresolvable", "%s.%s: %s", record->name,
                   record->names[field], problem);
}

static bool plan_fields(po_avro_resolver *r, bool *filled, po_err *err) {
    for (size_t i = 0; i < r->writer->n; i++) {
        r->targets[i] = SKIPPED;
        for (size_t k = 0; k < r->reader->n; k++)
            if (!strcmp(r->writer->names[i], r->reader->names[k]))
                r->targets[i] = (int)k;
        if (r->targets[i] == SKIPPED)
            continue;
        size_t k = (size_t)r->targets[i];
        filled[k] = true;
        if (!plan(r->arena, r->writer->of[i], r->reader->of[k], &r->steps[i]))
            return unresolvable(r->reader, k, "the writer's type cannot be read as the reader's",
                                err);
    }
    return true;
}

static bool plan_defaults(po_avro_resolver *r, const bool *filled, po_err *err) {
    for (size_t k = 0; k < r->reader->n; k++) {
        const json_t *json = r->reader->defaults[k];
        if (!is_flat(r->reader->of[k]))
            return po_fail(err, PO_REFUSED, "avro_schema", "%s.%s: not a type that is read",
                           r->reader->name, r->reader->names[k]);
        if (filled[k])
            continue;
        if (!json)
            return unresolvable(r->reader, k, "the writer has no such field, and it has no default",
                                err);
        if (!default_value(r->arena, r->reader->of[k], json, &r->defaults[k]))
            return unresolvable(r->reader, k, "its default is not of its type", err);
    }
    return true;
}

bool po_avro_resolver_new(const po_avro_schema *writer, const po_avro_schema *reader,
                          po_avro_resolver **ret_resolver, po_err *err) {
    const po_avro_node *from = writer->root, *to = reader->root;
    if (strcmp(from->name, to->name))
        return po_fail(err, PO_REFUSED, "avro_unresolvable", "a record %s cannot be read as %s",
                       from->name, to->name);
    PO_AUTO(po_avro_resolver_free) po_avro_resolver *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    r->arena = po_arena_new();
    r->writer = from;
    r->reader = to;
    r->steps = po_alloc_array(r->arena, from->n, sizeof *r->steps);
    r->targets = po_alloc_array(r->arena, from->n, sizeof *r->targets);
    r->defaults = po_alloc_array(r->arena, to->n, sizeof *r->defaults);
    bool *filled = po_alloc_array(r->arena, to->n, sizeof *filled);
    if (!plan_fields(r, filled, err) || !plan_defaults(r, filled, err))
        return false;
    *ret_resolver = po_take(&r);
    return true;
}

void po_avro_resolver_free(po_avro_resolver **resolver) {
    if (!*resolver)
        return;
    po_arena_free(&(*resolver)->arena);
    free(*resolver);
    *resolver = NULL;
}

// --- Decoding

static bool get_text(cursor *c, const step *s, po_arena *arena, po_avro_value *ret) {
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

static bool get_symbol(cursor *c, const step *s, po_arena *arena, po_avro_value *ret) {
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

static bool get_value(cursor *c, const step *s, po_arena *arena, po_avro_value *ret) {
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
    default: // string or bytes: nothing else has a place
        return get_text(c, s, arena, ret);
    }
}

static po_avro_value *defaults_copy(const po_avro_resolver *r, po_arena *arena) {
    po_avro_value *values = po_alloc_array(arena, r->reader->n, sizeof *values);
    for (size_t k = 0; k < r->reader->n; k++) {
        values[k] = r->defaults[k];
        if (values[k].type == PO_AVRO_STRING || values[k].type == PO_AVRO_BYTES)
            values[k].s = po_str_copy(arena, values[k].s);
    }
    return values;
}

bool po_avro_decode(const po_avro_resolver *resolver, po_str body, po_arena *arena,
                    po_avro_value **ret_values, po_err *err) {
    const po_avro_node *writer = resolver->writer;
    const uint8_t *start = (const uint8_t *)(body.n ? body.p : "");
    cursor c = {.p = start, .end = start + body.n, .work = SPARE_WORK + 4 * body.n};
    po_avro_value *values = defaults_copy(resolver, arena);
    for (size_t i = 0; i < writer->n; i++) {
        int target = resolver->targets[i];
        bool ok = target == SKIPPED ? skip(&c, writer->of[i], 0)
                                    : get_value(&c, &resolver->steps[i], arena, &values[target]);
        if (!ok)
            return po_fail(err, PO_REFUSED, c.code, "%s.%s: %s", writer->name, writer->names[i],
                           c.problem);
    }
    if (c.p != c.end)
        return po_fail(err, PO_REFUSED, "avro_data", "%s: %zu bytes too many", writer->name,
                       left(&c));
    *ret_values = values;
    return true;
}
