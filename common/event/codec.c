// Structs to records and back. The schema of this build is our own text: a member without a field,
// or the other way round, is a mistake of ours and ends the program at first use. Everything read
// is checked: its types by Avro, and here what Avro has no type for.
#include "event/codec.h"
#include "event/event.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "base/money.h"
#include "schema_files.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

// A writer's schema, copied so that it may end before us, and how to read what it wrote.
typedef struct po_codec_reader {
    struct po_codec_reader *next;
    po_avro_schema *writer;
    po_avro_resolver *resolver;
} po_codec_reader;

static po_str schema_text(const char *file) {
    for (const po_file *f = schema_files; f->name; f++)
        if (!strcmp(f->name, file))
            return po_s(f->text);
    abort();
}

static void check_members(const po_codec *codec, const po_avro_schema *schema) {
    for (size_t i = 0; i < codec->n; i++) {
        const po_member *member = &codec->members[i];
        assert(po_avro_field(schema, member->field) == (int)i);
        for (size_t k = 0; member->items && k < member->items->n; k++) {
            char path[128];
            snprintf(path, sizeof path, "%s.%s", member->field, member->items->members[k].field);
            assert(po_avro_field(schema, path) == (int)k);
        }
    }
}

const po_avro_schema *po_codec_schema(po_codec *codec) {
    pthread_mutex_lock(&codec->lock);
    if (!codec->schema) {
        po_err err;
        if (!po_avro_parse(schema_text(codec->file), &codec->schema, &err))
            abort();
        check_members(codec, codec->schema);
    }
    pthread_mutex_unlock(&codec->lock);
    return codec->schema;
}

static int64_t millis(int64_t us) {
    return us / 1000 - (us % 1000 < 0);
}

static po_avro_value to_list(const po_member *member, const void *from, po_arena *arena);

// What has to be made for the value lies in the arena.
static po_avro_value to_value(const po_member *member, const void *from, po_arena *arena) {
    const char *at = (const char *)from + member->offset;
    switch (member->form) {
    case PO_FORM_TEXT:
    case PO_FORM_ID:
        return (po_avro_value){PO_AVRO_STRING, .s = *(const po_str *)at};
    case PO_FORM_TEXT_NULL: {
        po_str text = *(const po_str *)at;
        return (po_avro_value){text.n ? PO_AVRO_STRING : PO_AVRO_NULL, .s = text};
    }
    case PO_FORM_UUID: {
        char *uuid = po_alloc(arena, PO_UUID_SIZE);
        po_uuid_text(*(const po_uuid *)at, uuid);
        return (po_avro_value){PO_AVRO_STRING, .s = po_s(uuid)};
    }
    case PO_FORM_BOOL:
        return (po_avro_value){PO_AVRO_BOOL, .b = *(const bool *)at};
    case PO_FORM_INT:
        return (po_avro_value){PO_AVRO_LONG, .i = *(const int32_t *)at};
    case PO_FORM_LONG:
        return (po_avro_value){PO_AVRO_LONG, .i = *(const int64_t *)at};
    case PO_FORM_MILLIS:
        return (po_avro_value){PO_AVRO_LONG, .i = millis(*(const int64_t *)at)};
    case PO_FORM_MILLIS_NULL: {
        int64_t us = *(const int64_t *)at;
        return (po_avro_value){us ? PO_AVRO_LONG : PO_AVRO_NULL, .i = millis(us)};
    }
    case PO_FORM_CURRENCY:
        return (po_avro_value){PO_AVRO_STRING, .s = po_s(((const po_unit *)at)->currency)};
    case PO_FORM_EXPONENT:
        return (po_avro_value){PO_AVRO_LONG, .i = ((const po_unit *)at)->exponent};
    case PO_FORM_LIST:
        return to_list(member, from, arena);
    }
    abort();
}

static po_avro_value to_list(const po_member *member, const void *from, po_arena *arena) {
    const po_items *items = member->items;
    const char *item = *(const char *const *)((const char *)from + member->offset);
    size_t n = *(const size_t *)((const char *)from + items->count_offset);
    po_avro_value *values = po_alloc_array(arena, n * items->n, sizeof *values);
    for (size_t i = 0; i < n; i++, item += items->size)
        for (size_t k = 0; k < items->n; k++)
            values[i * items->n + k] = to_value(&items->members[k], item, arena);
    return (po_avro_value){PO_AVRO_ARRAY, .records = {values, n}};
}

static bool is_currency(po_str s) {
    if (s.n == 0 || s.n >= sizeof((po_unit *)0)->currency)
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (!((s.p[i] >= 'A' && s.p[i] <= 'Z') || (s.p[i] >= '0' && s.p[i] <= '9')))
            return false;
    return true;
}

static bool is_text(po_str s, size_t max) {
    return s.n <= max && (s.n == 0 || !memchr(s.p, 0, s.n));
}

bool po_is_event_id(po_str s) {
    return s.n > 0 && is_text(s, PO_EVENT_ID_MAX);
}

// 0001-01-01T00:00:00Z and the last millisecond of 9999: what RFC 3339 can say.
static const int64_t first_ms = -62135596800000, last_ms = 253402300799999;

static bool is_sound(const po_member *member, const po_avro_value *value);

static bool is_sound_list(const po_items *items, const po_avro_value *value) {
    for (size_t i = 0; i < value->records.n * items->n; i++)
        if (!is_sound(&items->members[i % items->n], &value->records.values[i]))
            return false;
    return true;
}

static bool is_sound_time(int64_t ms) {
    return ms >= first_ms && ms <= last_ms;
}

// What Avro's types do not say; asked of each value before it is written and after it was read.
static bool is_sound(const po_member *member, const po_avro_value *value) {
    po_uuid id;
    switch (member->form) {
    case PO_FORM_TEXT:
        return is_text(value->s, PO_EVENT_TEXT_MAX);
    case PO_FORM_TEXT_NULL:
        return value->type == PO_AVRO_NULL || is_text(value->s, PO_EVENT_TEXT_MAX);
    case PO_FORM_ID:
        return po_is_event_id(value->s);
    case PO_FORM_UUID:
        return po_uuid_parse(value->s, &id);
    case PO_FORM_CURRENCY:
        return is_currency(value->s);
    case PO_FORM_EXPONENT:
        return value->i >= 0 && value->i <= 18;
    case PO_FORM_MILLIS:
        return is_sound_time(value->i);
    case PO_FORM_MILLIS_NULL:
        return value->type == PO_AVRO_NULL || is_sound_time(value->i);
    case PO_FORM_LIST:
        return is_sound_list(member->items, value);
    default:
        return true;
    }
}

static bool unsound(const po_codec *codec, const po_member *member, po_err *err) {
    return po_fail(err, PO_REFUSED, "event", "%s: %s is not what it should be", codec->file,
                   member->field);
}

bool po_codec_write(po_codec *codec, const void *from, po_buf *out, po_err *err) {
    const po_avro_schema *schema = po_codec_schema(codec);
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    po_avro_value *values = po_alloc_array(arena, codec->n, sizeof *values);
    for (size_t i = 0; i < codec->n; i++) {
        values[i] = to_value(&codec->members[i], from, arena);
        if (!is_sound(&codec->members[i], &values[i]))
            return unsound(codec, &codec->members[i], err);
    }
    return po_avro_encode(schema, values, codec->n, out, err);
}

static void from_list(const po_member *member, const po_avro_value *value, void *to,
                      po_arena *arena);

// The value is sound. Text stays where the decoder put it: in the caller's arena.
static void from_value(const po_member *member, const po_avro_value *value, void *to,
                       po_arena *arena) {
    char *at = (char *)to + member->offset;
    switch (member->form) {
    case PO_FORM_TEXT:
    case PO_FORM_ID:
        *(po_str *)at = value->s;
        return;
    case PO_FORM_TEXT_NULL:
        *(po_str *)at = value->type == PO_AVRO_NULL ? (po_str){0} : value->s;
        return;
    case PO_FORM_UUID:
        if (!po_uuid_parse(value->s, (po_uuid *)at))
            abort();
        return;
    case PO_FORM_BOOL:
        *(bool *)at = value->b;
        return;
    case PO_FORM_INT:
        *(int32_t *)at = (int32_t)value->i;
        return;
    case PO_FORM_LONG:
        *(int64_t *)at = value->i;
        return;
    case PO_FORM_MILLIS:
        *(int64_t *)at = value->i * 1000;
        return;
    case PO_FORM_MILLIS_NULL:
        *(int64_t *)at = value->type == PO_AVRO_NULL ? 0 : value->i * 1000;
        return;
    case PO_FORM_LIST:
        from_list(member, value, to, arena);
        return;
    case PO_FORM_CURRENCY:
        memcpy(((po_unit *)at)->currency, value->s.p, value->s.n); // the struct began as zeros
        return;
    case PO_FORM_EXPONENT:
        ((po_unit *)at)->exponent = (int)value->i;
        return;
    }
    abort();
}

static void from_list(const po_member *member, const po_avro_value *value, void *to,
                      po_arena *arena) {
    const po_items *items = member->items;
    size_t n = value->records.n;
    char *list = n ? po_alloc_array(arena, n, items->size) : NULL;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < items->n; k++)
            from_value(&items->members[k], &value->records.values[i * items->n + k],
                       list + i * items->size, arena);
    *(void **)((char *)to + member->offset) = list;
    *(size_t *)((char *)to + items->count_offset) = n;
}

static void reader_free(po_codec_reader **reader) {
    if (!*reader)
        return;
    po_avro_resolver_free(&(*reader)->resolver);
    po_avro_free(&(*reader)->writer);
    free(*reader);
    *reader = NULL;
}

// Schemas are few: one per version that is still in the topic. Called under the lock.
static bool find_reader(po_codec *codec, const po_avro_schema *writer, const po_avro_resolver **ret,
                        po_err *err) {
    for (const po_codec_reader *r = codec->readers; r; r = r->next)
        if (!memcmp(po_avro_fingerprint(r->writer), po_avro_fingerprint(writer), 32)) {
            *ret = r->resolver;
            return true;
        }
    PO_AUTO(reader_free) po_codec_reader *reader = calloc(1, sizeof *reader);
    if (!reader)
        abort();
    if (!po_avro_parse(po_avro_text(writer), &reader->writer, err) ||
        !po_avro_resolver_new(reader->writer, codec->schema, &reader->resolver, err))
        return false;
    *ret = reader->resolver;
    reader->next = codec->readers;
    codec->readers = po_take(&reader);
    return true;
}

bool po_codec_read(po_codec *codec, const po_avro_schema *writer, po_str body, po_arena *arena,
                   void *ret_struct, po_err *err) {
    const po_avro_resolver *resolver = NULL;
    po_codec_schema(codec);
    pthread_mutex_lock(&codec->lock);
    bool ok = find_reader(codec, writer, &resolver, err);
    pthread_mutex_unlock(&codec->lock);
    po_avro_value *values;
    if (!ok || !po_avro_decode(resolver, body, arena, &values, err))
        return false;
    for (size_t i = 0; i < codec->n; i++)
        if (!is_sound(&codec->members[i], &values[i]))
            return unsound(codec, &codec->members[i], err);
    memset(ret_struct, 0, codec->size);
    for (size_t i = 0; i < codec->n; i++)
        from_value(&codec->members[i], &values[i], ret_struct, arena);
    return true;
}
