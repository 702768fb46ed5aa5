// How one schema is read as another: worked out once per pair. For each field of the writer a step
// that says where its value goes (or that it is skipped), and for each field of the reader the value
// it has when the writer lacks it. Matching is by name throughout, enum symbols included, so
// inserting a symbol never turns one into another.
#include "avro/schema.h"
#include "base/cleanup.h"
#include "json/json.h"
#include <stdlib.h>

static bool is_flat(const po_avro_node *node) {
    if (node->kind != AVRO_UNION)
        return node->kind <= AVRO_ENUM;
    for (size_t i = 0; i < node->n; i++)
        if (node->of[i]->kind > AVRO_ENUM)
            return false;
    return true;
}

static bool is_readable(const po_avro_node *node) {
    if (node->kind != AVRO_ARRAY || node->of[0]->kind != AVRO_RECORD)
        return is_flat(node);
    for (size_t i = 0; i < node->of[0]->n; i++)
        if (!is_flat(node->of[0]->of[i]))
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
    if (to->kind == AVRO_ARRAY && from->kind == AVRO_ARRAY)
        return from->of[0]->kind == AVRO_RECORD && !strcmp(to->of[0]->name, from->of[0]->name);
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
        int index = po_avro_symbol(to, po_s(from->names[i]));
        map[i] = index >= 0 ? to->names[index] : to->fallback;
    }
    return map;
}

static bool plan_record(po_arena *arena, const po_avro_node *writer, const po_avro_node *reader,
                        po_avro_plan *ret, po_err *err);

// False when nothing that the writer can write there has a place in the reader's type.
static bool plan_value(po_arena *arena, const po_avro_node *from, const po_avro_node *reader,
                       po_avro_step *ret) {
    *ret = (po_avro_step){.from = from};
    if (from->kind == AVRO_UNION) {
        bool any = false;
        ret->branches = po_alloc_array(arena, from->n, sizeof *ret->branches);
        for (size_t i = 0; i < from->n; i++)
            any |= plan_value(arena, from->of[i], reader, &ret->branches[i]);
        return any;
    }
    const po_avro_node *to = target_of(reader, from);
    if (to && from->kind == AVRO_ENUM)
        ret->symbols = map_symbols(arena, from, to);
    if (to && from->kind == AVRO_ARRAY) {
        po_avro_plan *records = po_alloc(arena, sizeof *records);
        if (!plan_record(arena, from->of[0], to->of[0], records, NULL))
            return false;
        ret->records = records;
    }
    ret->to = to;
    return to != NULL;
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
        return json_is_integer(json) && (node->kind == AVRO_LONG || po_avro_fits_int(ret->i));
    case AVRO_STRING:
    case AVRO_ENUM:
        *ret = (po_avro_value){.type = PO_AVRO_STRING, .s = po_s(text)};
        return text && (node->kind == AVRO_STRING || po_avro_symbol(node, ret->s) >= 0);
    case AVRO_BYTES:
        *ret = (po_avro_value){.type = PO_AVRO_BYTES};
        return text && latin1(arena, text, &ret->s);
    case AVRO_ARRAY: // a default that is not empty is nobody's
        *ret = (po_avro_value){.type = PO_AVRO_ARRAY};
        return json_is_array(json) && json_array_size(json) == 0;
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

static bool plan_fields(po_arena *arena, po_avro_plan *p, bool *filled, po_err *err) {
    for (size_t i = 0; i < p->writer->n; i++) {
        p->targets[i] = PO_AVRO_SKIPPED;
        for (size_t k = 0; k < p->reader->n; k++)
            if (!strcmp(p->writer->names[i], p->reader->names[k]))
                p->targets[i] = (int)k;
        if (p->targets[i] == PO_AVRO_SKIPPED)
            continue;
        size_t k = (size_t)p->targets[i];
        filled[k] = true;
        if (!plan_value(arena, p->writer->of[i], p->reader->of[k], &p->steps[i]))
            return unresolvable(p->reader, k, "the writer's type cannot be read as the reader's",
                                err);
    }
    return true;
}

static bool plan_defaults(po_arena *arena, po_avro_plan *p, const bool *filled, po_err *err) {
    for (size_t k = 0; k < p->reader->n; k++) {
        const json_t *json = p->reader->defaults[k];
        if (filled[k])
            continue;
        if (!json)
            return unresolvable(p->reader, k, "the writer has no such field, and it has no default",
                                err);
        if (!default_value(arena, p->reader->of[k], json, &p->defaults[k]))
            return unresolvable(p->reader, k, "its default is not of its type", err);
    }
    return true;
}

static bool plan_record(po_arena *arena, const po_avro_node *writer, const po_avro_node *reader,
                        po_avro_plan *ret, po_err *err) {
    *ret = (po_avro_plan){.writer = writer,
                          .reader = reader,
                          .steps = po_alloc_array(arena, writer->n, sizeof *ret->steps),
                          .targets = po_alloc_array(arena, writer->n, sizeof *ret->targets),
                          .defaults = po_alloc_array(arena, reader->n, sizeof *ret->defaults)};
    bool *filled = po_alloc_array(arena, reader->n, sizeof *filled);
    return plan_fields(arena, ret, filled, err) && plan_defaults(arena, ret, filled, err);
}

// Asked first: planning recurses as deep as what is readable, so not for ever.
static bool check_reader(const po_avro_node *reader, po_err *err) {
    for (size_t k = 0; k < reader->n; k++)
        if (!is_readable(reader->of[k]))
            return po_fail(err, PO_REFUSED, "avro_schema", "%s.%s: not a type that is read",
                           reader->name, reader->names[k]);
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
    if (!check_reader(to, err) || !plan_record(r->arena, from, to, &r->root, err))
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
