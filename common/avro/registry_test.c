// The registry client against a server in this program that plays a script: each request must be
// the next line's, and gets that line's answer. So the order of calls, what is asked never again,
// and every fault are told exactly.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "avro/registry.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include <cmocka.h>

enum { CUT = -1, HOLD = -2 }; // instead of a status: close without an answer; answer never

typedef struct line {
    const char *request; // "GET /config/a"
    int status;
    const char *body, *expects; // expects: a piece of the request's body
} line;

typedef struct server {
    int listening;
    pthread_t thread;
    const line *next; // ends with {0}
    const char *wrong;
    char url[64];
} server;

// The whole request, NUL ended; false when the client went away.
static bool take_request(int fd, char *request, size_t size) {
    size_t n = 0, want = SIZE_MAX;
    while (n < want && n < size - 1) {
        ssize_t got = read(fd, request + n, size - 1 - n);
        if (got <= 0)
            return false;
        request[n += (size_t)got] = 0;
        const char *end = strstr(request, "\r\n\r\n"), *length = strstr(request, "Content-Length:");
        if (end)
            want = (size_t)(end + 4 - request) +
                   (length && length < end ? strtoul(length + 15, NULL, 10) : 0);
    }
    return true;
}

static void reply(int fd, const line *l) {
    PO_AUTO(po_buf_done) po_buf out = {0};
    po_buf_printf(&out, "HTTP/1.1 %d X\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
                  l->status, strlen(l->body), l->body);
    for (size_t sent = 0; sent < out.n;) {
        ssize_t n = send(fd, out.p + sent, out.n - sent, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        sent += (size_t)n;
    }
}

static void serve(server *s, int fd) {
    char request[16384] = "", rest[16];
    if (!take_request(fd, request, sizeof request))
        return;
    const line *l = s->next;
    size_t n = l->request ? strlen(l->request) : 0;
    if (!n || strncmp(request, l->request, n) || request[n] != ' ' ||
        (l->expects && !strstr(strstr(request, "\r\n\r\n"), l->expects))) {
        s->wrong = n ? l->request : "no more requests";
        fprintf(stderr, "got: %s\n", request);
        return;
    }
    s->next++;
    if (l->status == HOLD)
        while (read(fd, rest, sizeof rest) > 0) // until the client gives up
            continue;
    else if (l->status != CUT)
        reply(fd, l);
}

static void *run(void *arg) {
    server *s = arg;
    int fd;
    while ((fd = accept(s->listening, NULL, NULL)) >= 0) {
        serve(s, fd);
        close(fd);
    }
    return NULL;
}

static void server_begin(server *s, const line *script) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    *s = (server){.listening = socket(AF_INET, SOCK_STREAM, 0), .next = script};
    assert_int_equal(bind(s->listening, (struct sockaddr *)&at, size), 0);
    assert_int_equal(listen(s->listening, 16), 0);
    assert_int_equal(getsockname(s->listening, (struct sockaddr *)&at, &size), 0);
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%d/base/", ntohs(at.sin_port));
    assert_int_equal(pthread_create(&s->thread, NULL, run, s), 0);
}

// Nothing was asked that the script does not have.
static void server_stop(server *s) {
    shutdown(s->listening, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->listening);
    if (s->wrong)
        fail_msg("expected: %s", s->wrong);
}

// And the script was played to its end.
static void server_end(server *s) {
    server_stop(s);
    assert_null(s->next->request);
}

#define TEXT "{\"type\":\"record\",\"name\":\"R\",\"fields\":[]}"
#define ESCAPED "{\\\"type\\\":\\\"record\\\",\\\"name\\\":\\\"R\\\",\\\"fields\\\":[]}"
#define CONFIG "/base/config/pay%2Fments-value"
#define VERSIONS "/base/subjects/pay%2Fments-value/versions"
#define FULL "{\"compatibilityLevel\":\"FULL_TRANSITIVE\"}"
#define NO_SUBJECT "{\"error_code\":40401,\"message\":\"no subject\"}"

static void test_register(void **state) {
    (void)state;
    static const line config_first[] = {
        {"GET " CONFIG, 404, NO_SUBJECT, NULL},
        {"PUT " CONFIG, 200, FULL, "{\"compatibility\":\"FULL_TRANSITIVE\"}"},
        {"POST " VERSIONS, 200, "{\"id\":7}", "{\"schema\":\"" ESCAPED "\"}"},
        {0}};
    static const line subject_first[] = {
        {"GET " CONFIG, 404, NO_SUBJECT, NULL},
        {"PUT " CONFIG, 404, NO_SUBJECT, NULL},
        {"POST " VERSIONS, 200, "{\"id\":7}", NULL},
        {"GET " CONFIG, 200, "{\"compatibilityLevel\":\"NONE\"}", NULL},
        {"PUT " CONFIG, 200, FULL, NULL},
        {0}};
    static const line set_before[] = {
        {"GET " CONFIG, 200, FULL, NULL}, {"POST " VERSIONS, 200, "{\"id\":7}", NULL}, {0}};
    const line *scripts[] = {config_first, subject_first, set_before};
    for (size_t i = 0; i < 3; i++) {
        server s;
        po_err err = {0};
        PO_AUTO(po_registry_close) po_registry *registry = NULL;
        server_begin(&s, scripts[i]);
        assert_true(po_registry_open(s.url, "", &registry, &err));
        for (int again = 0; again < 2; again++) { // the second answer comes from memory
            int32_t id = 0;
            if (!po_registry_register(registry, po_s("pay/ments-value"), po_s(TEXT), &id, &err))
                fail_msg("%s: %s", err.code, err.text);
            assert_int_equal(id, 7);
        }
        server_end(&s);
    }
}

// A crash between the first version and its level is mended by the next call; so is a level that
// never comes.
static void test_register_half_done(void **state) {
    (void)state;
    static const line script[] = {
        {"GET " CONFIG, 404, NO_SUBJECT, NULL},      {"PUT " CONFIG, 404, NO_SUBJECT, NULL},
        {"POST " VERSIONS, 200, "{\"id\":7}", NULL}, {"GET " CONFIG, 503, "", NULL},
        {"GET " CONFIG, 404, NO_SUBJECT, NULL},      {"PUT " CONFIG, 404, NO_SUBJECT, NULL},
        {"POST " VERSIONS, 200, "{\"id\":7}", NULL}, {"GET " CONFIG, 404, NO_SUBJECT, NULL},
        {"PUT " CONFIG, 404, NO_SUBJECT, NULL},      {"GET " CONFIG, 200, FULL, NULL},
        {"POST " VERSIONS, 200, "{\"id\":7}", NULL}, {0}};
    server s;
    po_err err = {0};
    int32_t id = 0;
    PO_AUTO(po_registry_close) po_registry *registry = NULL;
    server_begin(&s, script);
    assert_true(po_registry_open(s.url, "", &registry, &err));
    for (int i = 0; i < 2; i++) {
        err = (po_err){0};
        assert_false(
            po_registry_register(registry, po_s("pay/ments-value"), po_s(TEXT), &id, &err));
        assert_int_equal(err.kind, PO_RETRY);
        assert_int_equal(id, 0);
    }
    assert_true(po_registry_register(registry, po_s("pay/ments-value"), po_s(TEXT), &id, &err));
    assert_int_equal(id, 7);
    server_end(&s);
}

static void test_register_faults(void **state) {
    (void)state;
    static const struct {
        int status;
        const char *body;
        po_kind kind;
        const char *code;
    } cases[] = {
        {409, "{\"error_code\":409,\"message\":\"b is new\"}", PO_REFUSED, "incompatible"},
        {422, "{\"error_code\":42201}", PO_REFUSED, "invalid"},
        {500, "{\"error_code\":50001}", PO_RETRY, "registry"},
        {503, "", PO_RETRY, "registry"},
        {429, "", PO_RETRY, "registry"},
        {401, "", PO_RETRY, "registry"},
        {403, "", PO_RETRY, "registry"},
        {404, "", PO_RETRY, "registry"},
        {302, "", PO_RETRY, "registry"},
        {200, "<html>", PO_RETRY, "registry"},
        {200, "[]", PO_RETRY, "registry"},
        {200, "{\"id\":\"7\"}", PO_RETRY, "registry"},
        {200, "{\"id\":2147483648}", PO_RETRY, "registry"},
        {200, "{\"id\":-1}", PO_RETRY, "registry"},
        {200, "{\"id\":0}", PO_RETRY, "registry"},
        {CUT, "", PO_RETRY, "registry"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const line script[] = {{"GET " CONFIG, 200, FULL, NULL},
                               {"POST " VERSIONS, cases[i].status, cases[i].body, NULL},
                               {0}};
        server s;
        po_err err = {0};
        int32_t id = 5;
        PO_AUTO(po_registry_close) po_registry *registry = NULL;
        server_begin(&s, script);
        assert_true(po_registry_open(s.url, "", &registry, &err));
        assert_false(
            po_registry_register(registry, po_s("pay/ments-value"), po_s(TEXT), &id, &err));
        assert_int_equal(err.kind, cases[i].kind);
        assert_string_equal(err.code, cases[i].code);
        assert_int_equal(id, 5);
        server_end(&s);
    }
}

static void test_schema(void **state) {
    (void)state;
    static const line script[] = {
        {"GET /base/schemas/ids/9", 404, "{\"error_code\":40403}", NULL},
        {"GET /base/schemas/ids/9", 500, "", NULL},
        {"GET /base/schemas/ids/9", 200, "garbage", NULL},
        {"GET /base/schemas/ids/9", 200, "{\"schema\":5}", NULL},
        {"GET /base/schemas/ids/9", 200,
         "{\"schema\":\"syntax = \\\"proto3\\\";\",\"schemaType\":\"PROTOBUF\"}", NULL},
        {"GET /base/schemas/ids/9", 200, "{\"schema\":\"{}\"}", NULL},
        {"GET /base/schemas/ids/9", 200,
         "{\"schema\":\"" ESCAPED "\",\"schemaType\":\"AVRO\",\"references\":[]}", NULL},
        {0}};
    static const struct {
        po_kind kind;
        const char *code;
    } faults[] = {{PO_RETRY, "unknown_schema"}, {PO_RETRY, "registry"},
                  {PO_RETRY, "registry"},       {PO_RETRY, "registry"},
                  {PO_REFUSED, "avro_schema"},  {PO_REFUSED, "avro_schema"}};
    server s;
    po_err err = {0};
    const po_avro_schema *schema = NULL, *again = NULL;
    PO_AUTO(po_registry_close) po_registry *registry = NULL;
    server_begin(&s, script);
    assert_true(po_registry_open(s.url, "", &registry, &err));
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        assert_false(po_registry_schema(registry, 9, &schema, &err));
        assert_int_equal(err.kind, faults[i].kind);
        assert_string_equal(err.code, faults[i].code);
        assert_null(schema);
    }
    assert_true(po_registry_schema(registry, 9, &schema, &err));
    assert_true(po_str_is(po_avro_text(schema), TEXT));
    assert_true(po_registry_schema(registry, 9, &again, &err));
    assert_ptr_equal(schema, again);
    server_end(&s);
}

// A server that never answers costs a bounded time; none at all is told at once.
static void test_silence(void **state) {
    (void)state;
    static const line script[] = {{"GET /base/schemas/ids/9", HOLD, "", NULL}, {0}};
    server s;
    po_err err = {0};
    const po_avro_schema *schema = NULL;
    PO_AUTO(po_registry_close) po_registry *registry = NULL;
    server_begin(&s, script);
    assert_true(po_registry_open(s.url, "", &registry, &err));
    int64_t start = po_mono_ms();
    assert_false(po_registry_schema(registry, 9, &schema, &err));
    int64_t took = po_mono_ms() - start;
    assert_int_equal(err.kind, PO_RETRY);
    assert_true(took >= 4000 && took < 15000);
    server_end(&s);
    assert_false(po_registry_schema(registry, 9, &schema, &err)); // nobody listens there any more
    assert_int_equal(err.kind, PO_RETRY);
    assert_string_equal(err.code, "registry");
}

static void test_url(void **state) {
    (void)state;
    po_registry *registry = NULL;
    po_err err = {0};
    assert_false(po_registry_open("file:///etc/passwd", "", &registry, &err));
    assert_int_equal(err.kind, PO_REFUSED);
    assert_false(po_registry_open("", "", &registry, &err));
    assert_null(registry);
}

static void *ask(void *registry) {
    const po_avro_schema *schema = NULL;
    po_err err = {0};
    return po_registry_schema(registry, 9, &schema, &err) ? (void *)schema : NULL;
}

// Threads that ask at the same time get the same schema, whoever was first.
static void test_threads(void **state) {
    (void)state;
    enum { N = 8 };
    line script[N + 1] = {{0}};
    for (size_t i = 0; i < N; i++)
        script[i] = (line){"GET /base/schemas/ids/9", 200, "{\"schema\":\"" ESCAPED "\"}", NULL};
    server s;
    po_err err = {0};
    pthread_t threads[N];
    void *got[N];
    PO_AUTO(po_registry_close) po_registry *registry = NULL;
    server_begin(&s, script);
    assert_true(po_registry_open(s.url, "", &registry, &err));
    for (size_t i = 0; i < N; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask, registry), 0);
    for (size_t i = 0; i < N; i++)
        pthread_join(threads[i], &got[i]);
    for (size_t i = 0; i < N; i++) {
        assert_non_null(got[i]);
        assert_ptr_equal(got[i], got[0]);
    }
    server_stop(&s); // how many asked the server is a matter of time
}

static void test_frame(void **state) {
    (void)state;
    uint8_t frame[PO_FRAME_SIZE];
    int32_t id = 5;
    po_str body = {0};
    po_err err = {0};
    po_frame(0x01020304, frame);
    assert_memory_equal(frame, "\0\1\2\3\4", 5);
    assert_true(po_unframe((po_str){"\0\x7f\2\3\xff"
                                    "ab",
                                    7},
                           &id, &body, &err));
    assert_int_equal(id, 0x7f0203ff);
    assert_true(po_str_is(body, "ab"));
    assert_true(po_unframe((po_str){"\0\0\0\0\1", 5}, &id, &body, &err));
    assert_int_equal(id, 1);
    assert_int_equal(body.n, 0);
    const po_str wrong[] = {
        {NULL, 0}, {"\0\0\0\1", 4}, {"\1\0\0\0\1a", 6}, {"{\"a\":1}", 7}, {"\0\xff\0\0\1", 5}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(po_unframe(wrong[i], &id, &body, &err));
        assert_int_equal(err.kind, PO_REFUSED);
        assert_string_equal(err.code, "frame");
    }
    assert_int_equal(id, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_register),        cmocka_unit_test(test_register_half_done),
        cmocka_unit_test(test_register_faults), cmocka_unit_test(test_schema),
        cmocka_unit_test(test_silence),         cmocka_unit_test(test_url),
        cmocka_unit_test(test_threads),         cmocka_unit_test(test_frame),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
