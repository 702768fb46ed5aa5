// The registry over HTTP. Calls are few, since every answer is kept for ever (an id never changes
// its schema), so each has a curl handle of its own and no lock is held while it runs: two threads
// that ask the same thing at the same time both ask, and the first answer stays.
//
// A subject is FULL_TRANSITIVE before its first version. Registries differ: some take the level of
// a subject that does not exist yet, some answer 404; with those it is set right after the first
// version, and the registration counts as done only then, so that a crash in between is mended by
// the next call.
#include "avro/registry.h"
#include "base/cleanup.h"
#include "json/json.h"
#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { CONNECT_MS = 2000, TOTAL_MS = 5000, ANSWER_MAX = 2 << 20 };

#define LEVEL "FULL_TRANSITIVE"

typedef struct known { // a schema by its id
    struct known *next;
    int32_t id;
    po_avro_schema *schema;
} known;

typedef struct registered { // an id by what was registered
    struct registered *next;
    uint8_t key[32];
    int32_t id;
} registered;

struct po_registry {
    char *base; // without a slash at the end; may hold a password: never printed
    char *ca_file;
    pthread_mutex_t lock;
    known *schemas;
    registered *ids;
};

static void curl_begin(void) {
    if (curl_global_init(CURL_GLOBAL_DEFAULT))
        abort();
}

bool po_registry_open(const char *base_url, const char *ca_file, po_registry **ret_registry,
                      po_err *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, curl_begin);
    size_t n = strlen(base_url);
    while (n && base_url[n - 1] == '/')
        n--;
    if (strncmp(base_url, "http://", 7) && strncmp(base_url, "https://", 8))
        return po_fail(err, PO_REFUSED, "registry_url",
                       "the registry's URL is not http:// or https://");
    po_registry *registry = calloc(1, sizeof *registry);
    if (!registry || !(registry->base = strndup(base_url, n)) ||
        !(registry->ca_file = strdup(ca_file)))
        abort();
    pthread_mutex_init(&registry->lock, NULL);
    *ret_registry = registry;
    return true;
}

void po_registry_close(po_registry **registry) {
    po_registry *r = *registry;
    if (!r)
        return;
    for (known *k = r->schemas, *next; k; k = next) {
        next = k->next;
        po_avro_free(&k->schema);
        free(k);
    }
    for (registered *g = r->ids, *next; g; g = next) {
        next = g->next;
        free(g);
    }
    pthread_mutex_destroy(&r->lock);
    free(r->base);
    free(r->ca_file);
    free(r);
    *registry = NULL;
}

// --- One call

typedef struct answer {
    long status;
    po_buf body;
    json_t *json; // of the body, NULL when it is none
} answer;

static void answer_done(answer *a) {
    po_buf_done(&a->body);
    json_decref(a->json);
    a->json = NULL;
}

static size_t take_body(char *bytes, size_t size, size_t n, void *to) {
    po_buf *body = to;
    if (body->n + size * n > ANSWER_MAX)
        return 0;
    po_buf_put(body, bytes, size * n);
    return size * n;
}

static void easy_done(CURL **easy) {
    curl_easy_cleanup(*easy);
}

static void list_done(struct curl_slist **list) {
    curl_slist_free_all(*list);
}

// The registry's own words, for the error text; empty when it has none.
static const char *words(const answer *a) {
    const char *message = json_string_value(json_object_get(a->json, "message"));
    return message ? message : "";
}

static bool unusable(const answer *a, const char *doing, po_err *err) {
    return po_fail(err, PO_RETRY, "registry", "%s: the registry answered %ld %.200s", doing,
                   a->status, words(a));
}

static bool is_certificate(CURLcode code) {
    return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
           code == CURLE_SSL_ISSUER_ERROR;
}

// False when the answer says nothing about the question: nobody there, overloaded, or we are not
// allowed.
static bool call(const po_registry *r, const char *method, const char *path, const char *body,
                 answer *ret, const char *doing, po_err *err) {
    PO_AUTO(easy_done) CURL *easy = curl_easy_init();
    PO_AUTO(list_done) struct curl_slist *headers = NULL;
    PO_AUTO(po_buf_done) po_buf url = {0};
    char why[CURL_ERROR_SIZE] = "";
    headers = curl_slist_append(headers,
                                "Accept: application/vnd.schemaregistry.v1+json, application/json");
    headers = curl_slist_append(headers, "Content-Type: application/vnd.schemaregistry.v1+json");
    if (!easy || !headers)
        abort();
    po_buf_printf(&url, "%s%s", r->base, path);
    curl_easy_setopt(easy, CURLOPT_URL, url.p);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    if (*r->ca_file) {
        curl_easy_setopt(easy, CURLOPT_CAINFO, r->ca_file);
        curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
    }
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
    if (body)
        curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "payonce");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)TOTAL_MS);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &ret->body);
    CURLcode code = curl_easy_perform(easy);
    if (code != CURLE_OK)
        return po_fail(err, PO_RETRY, is_certificate(code) ? "certificate" : "registry",
                       "%s: %.200s", doing, *why ? why : curl_easy_strerror(code));
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &ret->status);
    if (!po_json_parse(po_buf_view(&ret->body), &ret->json, NULL))
        ret->json = NULL;
    long s = ret->status;
    bool useful = s == 200 || (s >= 400 && s < 500 && s != 401 && s != 403 && s != 408 && s != 429);
    return useful || unusable(ret, doing, err);
}

// "/subjects/NAME/versions", the name escaped.
static char *path_of(const char *before, po_str name, const char *after) {
    PO_AUTO(po_buf_done) po_buf path = {0};
    char *escaped = curl_easy_escape(NULL, name.n ? name.p : "", (int)name.n);
    if (!escaped)
        abort();
    po_buf_printf(&path, "%s%s%s", before, escaped, after);
    curl_free(escaped);
    return po_take(&path.p);
}

// Every registry of this kind lists the types of schema it knows; a web server that is none does
// not.
bool po_registry_ask(po_registry *r, po_err *err) {
    static const char doing[] = "asking the registry";
    PO_AUTO(answer_done) answer is = {0};
    if (!call(r, "GET", "/schemas/types", NULL, &is, doing, err))
        return false;
    return (is.status == 200 && json_is_array(is.json)) || unusable(&is, doing, err);
}

// --- Registering

static bool is_level(const answer *a) {
    const char *level = json_string_value(json_object_get(a->json, "compatibilityLevel"));
    return a->status == 200 && level && !strcmp(level, LEVEL);
}

// *ret_set: false when the registry wants the subject to exist first.
static bool set_level(po_registry *r, po_str subject, bool *ret_set, po_err *err) {
    static const char doing[] = "setting the subject's compatibility";
    PO_AUTO(answer_done) answer now = {0};
    PO_AUTO(answer_done) answer after = {0};
    PO_AUTO(po_free_auto) char *path = path_of("/config/", subject, "");
    if (!call(r, "GET", path, NULL, &now, doing, err))
        return false;
    *ret_set = true;
    if (is_level(&now))
        return true;
    if (!call(r, "PUT", path, "{\"compatibility\":\"" LEVEL "\"}", &after, doing, err))
        return false;
    *ret_set = after.status == 200;
    return after.status == 200 || after.status == 404 || unusable(&after, doing, err);
}

static bool get_id(const answer *a, int32_t *ret_id) {
    const json_t *id = json_object_get(a->json, "id");
    json_int_t value = json_integer_value(id);
    if (!json_is_integer(id) || value < 1 || value > INT32_MAX)
        return false;
    *ret_id = (int32_t)value;
    return true;
}

static bool post_version(po_registry *r, po_str subject, po_str text, int32_t *ret_id,
                         po_err *err) {
    static const char doing[] = "registering a schema";
    PO_AUTO(answer_done) answer a = {0};
    PO_AUTO(po_free_auto) char *path = path_of("/subjects/", subject, "/versions");
    json_t *request = json_pack("{s:s%}", "schema", text.p, text.n);
    if (!request)
        return po_fail(err, PO_REFUSED, "invalid", "%s: its text is not UTF-8", doing);
    PO_AUTO(po_free_auto) char *body = po_json_text(request);
    json_decref(request);
    if (!call(r, "POST", path, body, &a, doing, err))
        return false;
    if (a.status == 409)
        return po_fail(err, PO_REFUSED, "incompatible",
                       "%s: incompatible with an earlier version: %.200s", doing, words(&a));
    if (a.status == 422)
        return po_fail(err, PO_REFUSED, "invalid", "%s: %.200s", doing, words(&a));
    return (a.status == 200 && get_id(&a, ret_id)) || unusable(&a, doing, err);
}

static void key_of(po_str subject, po_str text, uint8_t key[32]) {
    PO_AUTO(po_buf_done) po_buf both = {0};
    po_buf_put(&both, subject.p, subject.n);
    po_buf_put(&both, "", 1);
    po_buf_put(&both, text.p, text.n);
    po_sha256(po_buf_view(&both), key);
}

static bool find_id(po_registry *r, const uint8_t key[32], int32_t *ret_id) {
    pthread_mutex_lock(&r->lock);
    const registered *g = r->ids;
    while (g && memcmp(g->key, key, 32))
        g = g->next;
    if (g)
        *ret_id = g->id;
    pthread_mutex_unlock(&r->lock);
    return g != NULL;
}

static void keep_id(po_registry *r, const uint8_t key[32], int32_t id) {
    registered *g = calloc(1, sizeof *g);
    if (!g)
        abort();
    memcpy(g->key, key, 32);
    g->id = id;
    pthread_mutex_lock(&r->lock);
    g->next = r->ids;
    r->ids = g;
    pthread_mutex_unlock(&r->lock);
}

bool po_registry_register(po_registry *registry, po_str subject, po_str schema_text,
                          int32_t *ret_id, po_err *err) {
    uint8_t key[32];
    key_of(subject, schema_text, key);
    if (find_id(registry, key, ret_id))
        return true;
    bool set = false;
    int32_t id = 0;
    if (!set_level(registry, subject, &set, err) ||
        !post_version(registry, subject, schema_text, &id, err) ||
        (!set && !set_level(registry, subject, &set, err)))
        return false;
    if (!set)
        return po_fail(err, PO_RETRY, "registry",
                       "the registry does not take the subject's compatibility");
    keep_id(registry, key, id);
    *ret_id = id;
    return true;
}

// --- Looking up

// Called under the lock.
static const po_avro_schema *find_schema(const po_registry *r, int32_t id) {
    for (const known *k = r->schemas; k; k = k->next)
        if (k->id == id)
            return k->schema;
    return NULL;
}

// Takes *schema, or frees it when another thread was first.
static const po_avro_schema *keep_schema(po_registry *r, int32_t id, po_avro_schema **schema) {
    known *k = calloc(1, sizeof *k);
    if (!k)
        abort();
    pthread_mutex_lock(&r->lock);
    const po_avro_schema *there = find_schema(r, id);
    if (!there) {
        *k = (known){r->schemas, id, po_take(schema)};
        there = k->schema;
        r->schemas = po_take(&k);
    }
    pthread_mutex_unlock(&r->lock);
    free(k);
    po_avro_free(schema);
    return there;
}

static bool fetch(po_registry *r, int32_t id, po_avro_schema **ret_schema, po_err *err) {
    static const char doing[] = "asking for a schema";
    PO_AUTO(answer_done) answer a = {0};
    char path[40];
    snprintf(path, sizeof path, "/schemas/ids/%d", id);
    if (!call(r, "GET", path, NULL, &a, doing, err))
        return false;
    if (a.status == 404)
        return po_fail(err, PO_RETRY, "unknown_schema", "the registry does not know schema %d", id);
    const json_t *text = json_object_get(a.json, "schema");
    const char *type = json_string_value(json_object_get(a.json, "schemaType"));
    if (a.status != 200 || !json_is_string(text))
        return unusable(&a, doing, err);
    if (type && strcmp(type, "AVRO"))
        return po_fail(err, PO_REFUSED, "avro_schema", "schema %d is not Avro", id);
    if (!po_avro_parse((po_str){json_string_value(text), json_string_length(text)}, ret_schema,
                       err))
        return po_wrap(err, "schema %d", id);
    return true;
}

bool po_registry_schema(po_registry *registry, int32_t id, const po_avro_schema **ret_schema,
                        po_err *err) {
    pthread_mutex_lock(&registry->lock);
    const po_avro_schema *there = find_schema(registry, id);
    pthread_mutex_unlock(&registry->lock);
    if (!there) {
        po_avro_schema *fetched = NULL;
        if (!fetch(registry, id, &fetched, err))
            return false;
        there = keep_schema(registry, id, &fetched);
    }
    *ret_schema = there;
    return true;
}

// --- The frame

void po_frame(int32_t id, uint8_t out[PO_FRAME_SIZE]) {
    uint32_t bits = (uint32_t)id;
    out[0] = 0;
    for (int i = 0; i < 4; i++)
        out[1 + i] = (uint8_t)(bits >> (24 - 8 * i));
}

bool po_unframe(po_str message, int32_t *ret_id, po_str *ret_body, po_err *err) {
    const uint8_t *p = (const uint8_t *)message.p;
    if (message.n < PO_FRAME_SIZE || p[0] != 0 || p[1] > 0x7f)
        return po_fail(err, PO_REFUSED, "frame", "not a frame of a schema id and Avro");
    *ret_id = (int32_t)((uint32_t)p[1] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 8 | p[4]);
    *ret_body = (po_str){message.p + PO_FRAME_SIZE, message.n - PO_FRAME_SIZE};
    return true;
}
