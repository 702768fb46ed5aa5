// Schema text to nodes. JSON is read strictly and is at most 64 deep, so the parser may recurse; a
// named type is known from its name on, so nodes may lead back to a record (which only a writer's
// schema may do: readers are flat). Everything lives in the schema's arena.
#include "avro/schema.h"
#include "base/cleanup.h"
#include "json/json.h"
#include <stdlib.h>

// Names are looked for one by one, so what a text of this size can cost is about half a second.
enum { TEXT_MAX = 128 << 10, MEMBERS_MAX = 4096 };

static const struct {
    const char *word;
    po_avro_kind kind;
} primitives[] = {
    {"null", AVRO_NULL},   {"boolean", AVRO_BOOLEAN}, {"int", AVRO_INT},
    {"long", AVRO_LONG},   {"string", AVRO_STRING},   {"bytes", AVRO_BYTES},
    {"float", AVRO_FLOAT}, {"double", AVRO_DOUBLE},
};

typedef struct named {
    const struct named *next;
    const char *full;
    const po_avro_node *node;
} named;

typedef struct parser {
    po_arena *arena;
    const named *names;
    po_err *err;
} parser;

static const po_avro_node *parse_type(parser *p, const json_t *json, const char *space);

static bool refuse(parser *p, const char *what, const char *of) {
    return po_fail(p->err, PO_REFUSED, "avro_schema", "schema: %s%s%.100s", what, of ? ": " : "",
                   of ? of : "");
}

static bool is_name(const char *s) {
    if (!s || !*s || (*s >= '0' && *s <= '9'))
        return false;
    for (; *s; s++)
        if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') ||
              *s == '_'))
            return false;
    return true;
}

static const char *text_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static po_avro_node *node_new(parser *p, po_avro_kind kind) {
    po_avro_node *node = po_alloc(p->arena, sizeof *node);
    node->kind = kind;
    return node;
}

static const char *qualify(parser *p, const char *space, const char *name) {
    return *space ? po_printf(p->arena, "%s.%s", space, name) : name;
}

// A name without a dot means one of the enclosing namespace.
static const po_avro_node *find_named(parser *p, const char *name, const char *space) {
    const char *full = strchr(name, '.') ? name : qualify(p, space, name);
    for (const named *n = p->names; n; n = n->next)
        if (!strcmp(n->full, full))
            return n->node;
    refuse(p, "unknown type", name);
    return NULL;
}

static const po_avro_node *parse_word(parser *p, const char *word, const json_t *object,
                                      const char *space) {
    for (size_t i = 0; i < sizeof primitives / sizeof *primitives; i++) {
        if (strcmp(primitives[i].word, word))
            continue;
        po_avro_node *node = node_new(p, primitives[i].kind);
        node->logical = po_strdup(p->arena, text_of(object, "logicalType"));
        return node;
    }
    return find_named(p, word, space);
}

// Gives the node its name and makes it known; *space becomes the namespace inside it.
static bool declare(parser *p, po_avro_node *node, const json_t *json, const char **space) {
    const char *name = text_of(json, "name"), *own = text_of(json, "namespace");
    const char *dot = name ? strrchr(name, '.') : NULL;
    if (dot)
        *space = po_str_copy(p->arena, (po_str){name, (size_t)(dot - name)}).p;
    else if (own)
        *space = po_strdup(p->arena, own);
    node->name = po_strdup(p->arena, dot ? dot + 1 : name);
    if (!is_name(node->name))
        return refuse(p, "a type without a proper name", name);
    named *entry = po_alloc(p->arena, sizeof *entry);
    *entry = (named){p->names, qualify(p, *space, node->name), node};
    for (const named *n = p->names; n; n = n->next)
        if (!strcmp(n->full, entry->full))
            return refuse(p, "two types of one name", entry->full);
    p->names = entry;
    return true;
}

// The i-th name of a record's fields or an enum's symbols.
static bool put_name(parser *p, po_avro_node *node, size_t i, const char *name) {
    if (!is_name(name))
        return refuse(p, "a field or symbol without a proper name in", node->name);
    for (size_t k = 0; k < i; k++)
        if (!strcmp(node->names[k], name))
            return refuse(p, "two members of one name", name);
    node->names[i] = po_strdup(p->arena, name);
    return true;
}

static bool count(parser *p, po_avro_node *node, const json_t *array) {
    node->n = json_array_size(array);
    if (!json_is_array(array) || node->n > MEMBERS_MAX)
        return refuse(p, "no list, or too long a list, of members", node->name);
    node->of = po_alloc_array(p->arena, node->n, sizeof *node->of);
    node->names = po_alloc_array(p->arena, node->n, sizeof *node->names);
    node->defaults = po_alloc_array(p->arena, node->n, sizeof *node->defaults);
    return true;
}

static const po_avro_node *parse_record(parser *p, const json_t *json, const char *space) {
    po_avro_node *node = node_new(p, AVRO_RECORD);
    const json_t *fields = json_object_get(json, "fields");
    if (!declare(p, node, json, &space) || !count(p, node, fields))
        return NULL;
    for (size_t i = 0; i < node->n; i++) {
        const json_t *field = json_array_get(fields, i);
        if (!put_name(p, node, i, text_of(field, "name")))
            return NULL;
        node->of[i] = parse_type(p, json_object_get(field, "type"), space);
        node->defaults[i] = json_object_get(field, "default");
        if (!node->of[i])
            return NULL;
    }
    return node;
}

static const po_avro_node *parse_enum(parser *p, const json_t *json, const char *space) {
    po_avro_node *node = node_new(p, AVRO_ENUM);
    const json_t *symbols = json_object_get(json, "symbols");
    if (!declare(p, node, json, &space) || !count(p, node, symbols))
        return NULL;
    const char *fallback = text_of(json, "default");
    for (size_t i = 0; i < node->n; i++) {
        if (!put_name(p, node, i, json_string_value(json_array_get(symbols, i))))
            return NULL;
        if (fallback && !strcmp(fallback, node->names[i]))
            node->fallback = node->names[i];
    }
    if (json_object_get(json, "default") && !node->fallback)
        return refuse(p, "the default is no symbol of", node->name), NULL;
    return node;
}

static const po_avro_node *parse_fixed(parser *p, const json_t *json, const char *space) {
    po_avro_node *node = node_new(p, AVRO_FIXED);
    const json_t *size = json_object_get(json, "size");
    if (!declare(p, node, json, &space))
        return NULL;
    if (!json_is_integer(size) || json_integer_value(size) < 0)
        return refuse(p, "no size of", node->name), NULL;
    node->n = (size_t)json_integer_value(size);
    return node;
}

static const po_avro_node *parse_items(parser *p, po_avro_kind kind, const json_t *items,
                                       const char *space) {
    po_avro_node *node = node_new(p, kind);
    node->n = 1;
    node->of = po_alloc_array(p->arena, 1, sizeof *node->of);
    node->of[0] = parse_type(p, items, space);
    return node->of[0] ? node : NULL;
}

static const po_avro_node *parse_union(parser *p, const json_t *json, const char *space) {
    po_avro_node *node = node_new(p, AVRO_UNION);
    if (!count(p, node, json))
        return NULL;
    for (size_t i = 0; i < node->n; i++) {
        node->of[i] = parse_type(p, json_array_get(json, i), space);
        if (!node->of[i])
            return NULL;
        if (node->of[i]->kind == AVRO_UNION)
            return refuse(p, "a union inside a union", NULL), NULL;
    }
    return node;
}

static const po_avro_node *parse_type(parser *p, const json_t *json, const char *space) {
    if (json_is_array(json))
        return parse_union(p, json, space);
    if (json_is_string(json))
        return parse_word(p, json_string_value(json), NULL, space);
    const json_t *type = json_object_get(json, "type");
    if (!json_is_string(type)) {
        if (json_is_object(type) || json_is_array(type))
            return parse_type(p, type, space);
        return refuse(p, "a type is missing", text_of(json, "name")), NULL;
    }
    const char *word = json_string_value(type);
    if (!strcmp(word, "record"))
        return parse_record(p, json, space);
    if (!strcmp(word, "enum"))
        return parse_enum(p, json, space);
    if (!strcmp(word, "fixed"))
        return parse_fixed(p, json, space);
    if (!strcmp(word, "array"))
        return parse_items(p, AVRO_ARRAY, json_object_get(json, "items"), space);
    if (!strcmp(word, "map"))
        return parse_items(p, AVRO_MAP, json_object_get(json, "values"), space);
    return parse_word(p, word, json, space);
}

bool po_avro_parse(po_str text, po_avro_schema **ret_schema, po_err *err) {
    if (text.n > TEXT_MAX)
        return po_fail(err, PO_REFUSED, "avro_schema", "schema: more than %d bytes", TEXT_MAX);
    po_err why = {0};
    json_t *json = NULL;
    if (!po_json_parse(text, &json, &why))
        return po_fail(err, PO_REFUSED, "avro_schema", "schema: %s", why.text);
    PO_AUTO(po_avro_free) po_avro_schema *schema = calloc(1, sizeof *schema);
    if (!schema)
        abort();
    schema->json = json;
    schema->arena = po_arena_new();
    schema->text = po_str_copy(schema->arena, text);
    po_sha256(text, schema->fingerprint);
    parser p = {.arena = schema->arena, .err = err};
    schema->root = parse_type(&p, json, "");
    if (!schema->root)
        return false;
    if (schema->root->kind != AVRO_RECORD)
        return refuse(&p, "not a record", NULL);
    *ret_schema = po_take(&schema);
    return true;
}

void po_avro_free(po_avro_schema **schema) {
    if (!*schema)
        return;
    json_decref((*schema)->json);
    po_arena_free(&(*schema)->arena);
    free(*schema);
    *schema = NULL;
}

const uint8_t *po_avro_fingerprint(const po_avro_schema *schema) {
    return schema->fingerprint;
}

po_str po_avro_text(const po_avro_schema *schema) {
    return schema->text;
}

static int field_of(const po_avro_node *record, po_str name) {
    for (size_t i = 0; i < record->n; i++)
        if (po_str_is(name, record->names[i]))
            return (int)i;
    return -1;
}

int po_avro_field(const po_avro_schema *schema, const char *name) {
    const char *dot = strchr(name, '.');
    if (!dot)
        return field_of(schema->root, po_s(name));
    int outer = field_of(schema->root, (po_str){name, (size_t)(dot - name)});
    const po_avro_node *array = outer < 0 ? NULL : schema->root->of[outer];
    if (!array || array->kind != AVRO_ARRAY || array->of[0]->kind != AVRO_RECORD)
        return -1;
    return field_of(array->of[0], po_s(dot + 1));
}

bool po_avro_fits_int(int64_t value) {
    return value >= INT32_MIN && value <= INT32_MAX;
}

int po_avro_symbol(const po_avro_node *node, po_str symbol) {
    for (size_t i = 0; i < node->n; i++)
        if (po_str_is(symbol, node->names[i]))
            return (int)i;
    return -1;
}
