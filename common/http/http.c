// A request's way: its head is judged (edge.c) and its route found (route.c) before any byte of the
// body is read; the body is collected (body.c); the handler runs once the body is whole. If the
// handler has answered by the time it returns, the answer is sent at once; if not, the connection
// is suspended and po_reply() resumes it. Both steps happen under the listener's lock, so a reply
// from another thread comes either before the suspension (and is found here) or after it (and
// resumes).
//
// libmicrohttpd calls on_request() once with the head, then with pieces of the body, then without
// any; and again, without any, after a resume. It cannot queue an answer while it hands over pieces
// of a body, so a body that turns out too large is read on, unkept and up to a bound, and answered
// at its end.
//
// The library's daemons run on loops of ours (loop.c), and who may stay connected is the door's
// business (door.c).
//
// Closing waits for the answers that are under way: `serving` counts requests from their dispatch
// to the moment their last byte was handed to the kernel, `owed` those a handler has not answered.
#include "http/http.h"
#include "base/cleanup.h"
#include "http/body.h"
#include "http/door.h"
#include "http/edge.h"
#include "http/loop.h"
#include "http/route.h"
#include "json/json.h"
#include "log/log.h"
#include "metrics/metrics.h"
#include <assert.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    CLOSE_GRACE_S = 2, // beyond the request time-out
    PATIENCE = 3,      // a request that trickles in has this many request time-outs in all
    DRAIN_LIMITS =
        2, // of a body over the limit, this many times the limit is read before we hang up
    RETRY_AFTER_S = 1,
};

struct po_http {
    po_http_options options; // defaults filled in
    loop *loops;             // one a thread
    unsigned n_loops;
    unsigned next; // loop to be given a connection; the door's thread only
    door *door;
    int listen_fd;
    int port;
    pthread_mutex_t lock; // guards what follows and the state of every request past its reading
    pthread_cond_t quieter;
    unsigned serving, owed;
    bool quiet, closing;
};

typedef enum request_state { READING, RUNNING, SUSPENDED, ANSWERED } request_state;

struct po_request {
    po_http *http;
    loop *loop;
    struct MHD_Connection *connection;
    request_state state;
    match match;
    body body;
    size_t received; // bytes of the body, also those that were not kept
    struct timespec began;
    struct MHD_Response *answer;
    unsigned status;
    bool has_body, hang_up, authorized;
    po_arena *arena; // made when first asked for
};

// ---- metrics ----

static struct {
    pthread_once_t once;
    po_metric *requests, *seconds, *bodies;
} metrics = {.once = PTHREAD_ONCE_INIT};

static double bodies_gauge(void *arg) {
    (void)arg;
    return (double)bodies_held();
}

static void declare_metrics(void) {
    metrics.requests = po_metric_new(PO_COUNTER, "payonce_http_requests_total",
                                     "HTTP requests answered, by status.", "status");
    metrics.seconds =
        po_metric_new(PO_HISTOGRAM, "payonce_http_request_seconds",
                      "From a request's head to its answer sent, by listener.", "listener");
    metrics.bodies =
        po_metric_new(PO_GAUGE, "payonce_http_body_bytes", "Request bodies held in memory.", NULL);
    po_gauge_fn(metrics.bodies, NULL, bodies_gauge, NULL);
}

void po_http_metrics(void) {
    pthread_once(&metrics.once, declare_metrics);
    door_metrics();
}

static double seconds_since(const struct timespec *then) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - then->tv_sec) + (double)(now.tv_nsec - then->tv_nsec) / 1e9;
}

// ---- reading a request ----

po_arena *po_request_arena(po_request *r) {
    if (!r->arena)
        r->arena = po_arena_new();
    return r->arena;
}

po_str po_request_body(const po_request *r) {
    return (po_str){r->body.p, r->body.n};
}

po_str po_request_segment(const po_request *r, unsigned n) {
    assert(n < r->match.n); // the route has that many *
    return r->match.segments[n];
}

typedef struct header_search {
    po_str name, first;
    unsigned count;
} header_search;

static enum MHD_Result search_header(void *cls, enum MHD_ValueKind kind, const char *key,
                                     size_t key_size, const char *value, size_t value_size) {
    (void)kind;
    header_search *s = cls;
    if (key_size != s->name.n || strncasecmp(key, s->name.p, key_size) != 0)
        return MHD_YES;
    if (s->count++ == 0)
        s->first = po_str_trim((po_str){value, value_size});
    return MHD_YES;
}

po_str po_request_header(const po_request *r, const char *name, unsigned *ret_count) {
    header_search s = {.name = po_s(name)};
    MHD_get_connection_values_n(r->connection, MHD_HEADER_KIND, search_header, &s);
    if (ret_count)
        *ret_count = s.count;
    return s.first;
}

po_str po_request_query(po_request *r, const char *name) {
    const char *value = NULL;
    size_t n = 0;
    if (MHD_lookup_connection_value_n(r->connection, MHD_GET_ARGUMENT_KIND, name, strlen(name),
                                      &value, &n) != MHD_YES)
        return (po_str){0};
    return route_unescape(po_request_arena(r), (po_str){value, value ? n : 0});
}

// ---- answering ----

// The one way an answer is given: into the request, and a suspended connection is woken.
static void answer(po_request *r, unsigned status, struct MHD_Response *response) {
    po_http *http = r->http;
    pthread_mutex_lock(&http->lock);
    assert(r->state != ANSWERED); // exactly one answer
    request_state was = r->state;
    r->answer = response;
    r->status = status;
    r->state = ANSWERED;
    if (was == READING)
        http->serving++;
    else
        http->owed--;
    if (was == SUSPENDED) {
        MHD_resume_connection(r->connection);
        loop_wake(r->loop);
    }
    pthread_mutex_unlock(&http->lock); // from here on the request, and its loop, may be gone
}

static void add_header(struct MHD_Response *response, const char *name, const char *value) {
    if (MHD_add_response_header(response, name, value) != MHD_YES)
        abort(); // out of memory
}

static struct MHD_Response *response_new(const char *type, po_str body) {
    struct MHD_Response *response =
        MHD_create_response_from_buffer(body.n, (void *)(uintptr_t)body.p, MHD_RESPMEM_MUST_COPY);
    if (!response)
        abort(); // out of memory
    add_header(response, "Content-Type", type ? type : "application/json");
    return response;
}

static void add_retry_after(struct MHD_Response *response, unsigned seconds) {
    char text[16];
    snprintf(text, sizeof text, "%u", seconds);
    if (seconds)
        add_header(response, "Retry-After", text);
}

void po_reply(po_request *r, unsigned status, const char *type, po_str body,
              unsigned retry_after_s) {
    struct MHD_Response *response = response_new(type, body);
    add_retry_after(response, retry_after_s);
    answer(r, status, response);
}

void po_reply_json(po_request *r, unsigned status, json_t *body) {
    PO_AUTO(po_free_auto) char *text = po_json_text(body);
    json_decref(body);
    po_reply(r, status, NULL, po_s(text), 0);
}

static struct MHD_Response *error_response(const char *code, const char *message) {
    json_t *body = json_pack("{s:{s:s, s:s}}", "error", "code", code, "message", message);
    if (!body) // a message that is not UTF-8
        body = json_pack("{s:{s:s, s:s}}", "error", "code", code, "message", "");
    assert(body);
    PO_AUTO(po_free_auto) char *text = po_json_text(body);
    json_decref(body);
    return response_new(NULL, po_s(text));
}

void po_reply_error(po_request *r, unsigned status, const char *code, const char *message) {
    struct MHD_Response *response = error_response(code, message);
    if (status == MHD_HTTP_SERVICE_UNAVAILABLE)
        add_retry_after(response, RETRY_AFTER_S);
    answer(r, status, response);
}

static void reply_not_allowed(po_request *r) {
    struct MHD_Response *response =
        error_response("method_not_allowed", "the path does not know this method");
    add_header(response, "Allow", r->match.allow);
    answer(r, MHD_HTTP_METHOD_NOT_ALLOWED, response);
}

void po_request_peer(const po_request *r, char out[PO_PEER_SIZE]) {
    struct sockaddr_storage from = {0};
    socklen_t size = sizeof from;
    char host[48], port[8];
    int fd = MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    out[0] = 0;
    if (getpeername(fd, (struct sockaddr *)&from, &size) != 0 ||
        getnameinfo((struct sockaddr *)&from, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return;
    bool brackets = from.ss_family == AF_INET6;
    snprintf(out, PO_PEER_SIZE, "%s%s%s:%s", brackets ? "[" : "", host, brackets ? "]" : "", port);
}

static void tell_unauthorized(const po_request *r) {
    static po_log_site site = {.name = "refused_token", .per_second = PO_LOG_REFUSALS};
    char peer[PO_PEER_SIZE];
    if (!po_log_admit(&site))
        return;
    po_request_peer(r, peer);
    po_log(PO_WARN, "request refused", PO_TEXT("code", "unauthorized"),
           PO_TEXT("listener", r->http->options.name), PO_TEXT("peer", peer));
}

// Digests are compared, so that neither the time nor the length of a guess tells anything.
static bool same_secret(po_str a, po_str b) {
    uint8_t digest_a[32], digest_b[32];
    po_sha256(a, digest_a);
    po_sha256(b, digest_b);
    return CRYPTO_memcmp(digest_a, digest_b, sizeof digest_a) == 0;
}

bool po_request_authorized(po_request *r, const char *token) {
    static const char scheme[] = "Bearer ";
    enum { SCHEME = sizeof scheme - 1 };
    unsigned count;
    po_str value = po_request_header(r, "Authorization", &count);
    if (token[0] && count == 1 && value.n > SCHEME && strncasecmp(value.p, scheme, SCHEME) == 0 &&
        same_secret((po_str){value.p + SCHEME, value.n - SCHEME}, po_s(token))) {
        r->authorized = true;
        return true;
    }
    tell_unauthorized(r);
    struct MHD_Response *response = error_response("unauthorized", "a bearer token is needed");
    add_header(response, "WWW-Authenticate", "Bearer");
    answer(r, MHD_HTTP_UNAUTHORIZED, response);
    return false;
}

// ---- a request's way ----

static caller *caller_of(struct MHD_Connection *connection) {
    return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

// A refusal that anybody can have is no reason to keep a connection, and no proof of good will.
static bool is_wanted(const po_request *r) {
    return r->status < MHD_HTTP_BAD_REQUEST || r->authorized;
}

static bool wears_out(const po_request *r) {
    return !is_wanted(r) && r->status < MHD_HTTP_INTERNAL_SERVER_ERROR &&
           !caller_is_welcome(caller_of(r->connection));
}

static enum MHD_Result queue_answer(po_request *r) {
    caller_answered(caller_of(r->connection), is_wanted(r));
    pthread_mutex_lock(&r->http->lock); // also waits until the answering thread has let go
    bool hang_up = r->hang_up || r->http->quiet || wears_out(r);
    pthread_mutex_unlock(&r->http->lock);
    if (hang_up)
        add_header(r->answer, "Connection", "close");
    return MHD_queue_response(r->connection, r->status, r->answer);
}

static void judge_head(po_request *r, const char *method, const char *url, const char *version) {
    const po_http_options *options = &r->http->options;
    verdict v = edge_judge(r->connection, method, version, options->body_limit, &r->has_body,
                           &r->body.promised);
    r->match = route_find(options->routes, method, url);
    if (v.status == MHD_HTTP_BAD_REQUEST)
        r->hang_up = true; // where this message ends is not known
    if (v.status)
        po_reply_error(r, v.status, v.code, v.message);
    else if (!r->match.route && r->match.allow[0])
        reply_not_allowed(r);
    else if (!r->match.route)
        po_reply_error(r, MHD_HTTP_NOT_FOUND, "not_found", "no such path");
    for (unsigned i = 0; r->match.route && i < r->match.n; i++)
        if (memchr(r->match.segments[i].p, '%', r->match.segments[i].n))
            r->match.segments[i] = route_unescape(po_request_arena(r), r->match.segments[i]);
}

static po_request *request_new(loop *loop, struct MHD_Connection *connection) {
    po_request *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    r->loop = loop;
    r->http = loop->owner;
    r->connection = connection;
    r->body.owner = caller_of(connection);
    clock_gettime(CLOCK_MONOTONIC, &r->began);
    return r;
}

// False: hang up.
static bool take_body(po_request *r, po_str more) {
    const po_http_options *o = &r->http->options;
    r->received += more.n;
    if (r->state == ANSWERED)
        return r->received / DRAIN_LIMITS <= o->body_limit;
    body_result result = body_put(&r->body, more, o->body_limit, o->memory_limit);
    if (result == BODY_TAKEN || result == BODY_GAVE_WAY)
        return result == BODY_TAKEN;
    body_done(&r->body);
    r->hang_up = true;
    if (result == BODY_TOO_LARGE)
        po_reply_error(r, MHD_HTTP_CONTENT_TOO_LARGE, "too_large", "the body is over the limit");
    else
        po_reply_error(r, MHD_HTTP_SERVICE_UNAVAILABLE, "busy", "too many bodies are being held");
    return true;
}

static enum MHD_Result dispatch(po_request *r) {
    po_http *http = r->http;
    if (!body_ends(&r->body))
        return MHD_NO; // hung up on; nothing of it was done
    caller_paid(caller_of(r->connection));
    pthread_mutex_lock(&http->lock);
    bool closing = http->closing;
    if (!closing) {
        r->state = RUNNING;
        http->serving++;
        http->owed++;
    }
    pthread_mutex_unlock(&http->lock);
    if (closing) {
        po_reply_error(r, MHD_HTTP_SERVICE_UNAVAILABLE, "closing", "the service is stopping");
        return queue_answer(r);
    }
    r->match.route->handler(r, r->match.route->arg);
    pthread_mutex_lock(&http->lock);
    bool answered = r->state == ANSWERED;
    if (!answered) {
        MHD_suspend_connection(r->connection);
        r->state = SUSPENDED;
    }
    pthread_mutex_unlock(&http->lock);
    return answered ? queue_answer(r) : MHD_YES;
}

static bool is_answered(po_request *r) {
    pthread_mutex_lock(&r->http->lock);
    bool answered = r->state == ANSWERED;
    pthread_mutex_unlock(&r->http->lock);
    return answered;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **request) {
    po_request *r = *request;
    loop_moved(cls);
    if (!r) {
        *request = r = request_new(cls, connection);
        caller_speaks(caller_of(connection));
        judge_head(r, method, url, version);
        // Answered now, the body is left unread and the connection closes; without a body it can go
        // on.
        return is_answered(r) && r->has_body ? queue_answer(r) : MHD_YES;
    }
    if (*upload_size) {
        po_str more = {upload, *upload_size};
        *upload_size = 0;
        return take_body(r, more) ? MHD_YES : MHD_NO;
    }
    return is_answered(r) ? queue_answer(r) : dispatch(r);
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **request,
                         enum MHD_RequestTerminationCode how) {
    po_http *http = ((loop *)cls)->owner;
    po_request *r = *request;
    if (!r)
        return;
    caller_owes(caller_of(connection));
    if (how == MHD_REQUEST_TERMINATED_COMPLETED_OK) {
        char status[8];
        snprintf(status, sizeof status, "%u", r->status % 1000);
        po_count(metrics.requests, status, 1);
        po_observe(metrics.seconds, http->options.name, seconds_since(&r->began));
    }
    pthread_mutex_lock(&http->lock);
    assert(r->state == READING || r->state == ANSWERED);
    if (r->state == ANSWERED && --http->serving == 0)
        pthread_cond_broadcast(&http->quieter);
    pthread_mutex_unlock(&http->lock);
    if (r->answer)
        MHD_destroy_response(r->answer);
    body_done(&r->body);
    po_arena_free(&r->arena);
    free(r);
    *request = NULL;
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode what) {
    (void)connection;
    caller *c = what == MHD_CONNECTION_NOTIFY_STARTED ? loop_arrived(cls) : *context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        caller_enters(c);
    else
        caller_free(&c);
    *context = c;
}

// ---- the listener ----

static bool listen_error(po_err *err, const char *listen, const char *step) {
    return po_fail(err, PO_RETRY, "listen", "listening on %s: %s: %s", listen, step,
                   strerror(errno));
}

// "127.0.0.1:8080", "[::1]:0": the part behind the last colon is the port.
static bool resolve(const char *listen, struct addrinfo **ret_list, po_err *err) {
    char host[64];
    const char *colon = strrchr(listen, ':');
    size_t n = colon ? (size_t)(colon - listen) : sizeof host;
    bool brackets = n >= 2 && n < sizeof host && listen[0] == '[' && listen[n - 1] == ']';
    const struct addrinfo hints = {
        .ai_socktype = SOCK_STREAM,
        .ai_family = brackets ? AF_INET6 : AF_INET,
        .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
    };
    int64_t port;
    if (n < sizeof host)
        snprintf(host, sizeof host, "%.*s", (int)(brackets ? n - 2 : n), listen + brackets);
    if (n == 0 || n >= sizeof host || !po_parse_i64(po_s(colon + 1), &port) || port < 0 ||
        port > 65535 || getaddrinfo(host, colon + 1, &hints, ret_list) != 0)
        return po_fail(err, PO_REFUSED, "listen",
                       "%s is not an address such as 127.0.0.1:8080 or [::]:0", listen);
    return true;
}

static bool bind_and_listen(int fd, const struct addrinfo *address, const char *listen_text,
                            po_err *err) {
    int on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, address->ai_addr, address->ai_addrlen) != 0)
        return listen_error(err, listen_text, "bind");
    if (listen(fd, SOMAXCONN) != 0)
        return listen_error(err, listen_text, "listen");
    return true;
}

static bool open_socket(const char *listen_text, int *ret_fd, po_err *err) {
    struct addrinfo *list = NULL;
    if (!resolve(listen_text, &list, err))
        return false;
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 ? bind_and_listen(fd, list, listen_text, err)
                      : listen_error(err, listen_text, "socket");
    freeaddrinfo(list);
    if (ok)
        *ret_fd = fd;
    else if (fd >= 0)
        close(fd);
    return ok;
}

static int port_of(int fd) {
    struct sockaddr_storage address;
    socklen_t n = sizeof address;
    char text[8] = "0";
    getsockname(fd, (struct sockaddr *)&address, &n);
    getnameinfo((struct sockaddr *)&address, n, NULL, 0, text, sizeof text, NI_NUMERICSERV);
    return atoi(text);
}

// Escapes are left alone: paths are matched as sent, and "%00" must not end a text.
static size_t keep_escapes(void *cls, struct MHD_Connection *connection, char *text) {
    (void)cls;
    (void)connection;
    return strlen(text);
}

__attribute__((format(printf, 2, 0))) static void log_debug(void *cls, const char *fmt,
                                                            va_list args) {
    po_http *http = ((loop *)cls)->owner;
    char text[256];
    vsnprintf(text, sizeof text, fmt, args);
    text[strcspn(text, "\n")] = '\0';
    po_log(PO_DEBUG, "http library", PO_TEXT("listener", http->options.name),
           PO_TEXT("text", text));
}

static bool start_loop(po_http *http, loop *loop, po_err *err) {
    const po_http_options *o = &http->options;
    struct MHD_Daemon *daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG, 0,
        NULL, NULL, on_request, loop, MHD_OPTION_EXTERNAL_LOGGER, log_debug, loop,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL,
        MHD_OPTION_CONNECTION_LIMIT, o->max_connections, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
        loop, MHD_OPTION_NOTIFY_CONNECTION, on_connection, loop, MHD_OPTION_END);
    if (!daemon)
        return po_fail(err, PO_RETRY, "listen", "starting the HTTP threads on %s: %s", o->listen,
                       strerror(errno));
    loop_start(loop, daemon, o->name);
    return true;
}

static bool start_loops(po_http *http, po_err *err) {
    for (unsigned i = 0; i < http->n_loops; i++)
        if (!start_loop(http, &http->loops[i], err))
            return false;
    return true;
}

static void take_connection(caller *caller, void *arg) {
    po_http *http = arg;
    loop_take(&http->loops[http->next++ % http->n_loops], caller);
}

// What callers may hold open leaves room for another listener and for all else the process opens.
static unsigned most_connections(unsigned wanted) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        abort();
    return files.rlim_cur / 3 < wanted ? (unsigned)(files.rlim_cur / 3) : wanted;
}

static po_http *http_new(const po_http_options *options) {
    po_http *http = calloc(1, sizeof *http);
    if (!http)
        abort();
    po_http_options *o = &http->options;
    *o = *options;
    o->threads = o->threads ? o->threads : 2;
    o->body_limit = o->body_limit ? o->body_limit : 1 << 20;
    o->memory_limit = o->memory_limit ? o->memory_limit : 64 << 20;
    o->request_timeout_s = o->request_timeout_s ? o->request_timeout_s : 10;
    o->idle_timeout_s = o->idle_timeout_s ? o->idle_timeout_s : 75;
    o->max_connections = most_connections(o->max_connections ? o->max_connections : 4096);
    http->listen_fd = -1;
    http->loops = calloc(o->threads, sizeof *http->loops);
    if (!http->loops)
        abort();
    while (http->n_loops < o->threads)
        loop_init(&http->loops[http->n_loops++], http);
    pthread_mutex_init(&http->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&http->quieter, &attributes);
    pthread_condattr_destroy(&attributes);
    return http;
}

static void http_free(po_http *http) {
    for (unsigned i = 0; i < http->n_loops; i++)
        loop_done(&http->loops[i]);
    free(http->loops);
    door_free(&http->door);
    if (http->listen_fd >= 0)
        close(http->listen_fd);
    pthread_cond_destroy(&http->quieter);
    pthread_mutex_destroy(&http->lock);
    free(http);
}

bool po_http_open(const po_http_options *options, po_http **ret_http, po_err *err) {
    po_http_metrics();
    po_http *http = http_new(options);
    if (!open_socket(options->listen, &http->listen_fd, err) || !start_loops(http, err)) {
        http_free(http);
        return false;
    }
    const po_http_options *o = &http->options;
    http->door =
        door_new(&(door_options){.listen_fd = http->listen_fd,
                                 .most = o->max_connections,
                                 .most_of_one = o->max_per_address,
                                 .request_ms = (int64_t)o->request_timeout_s * 1000,
                                 .patience_ms = (int64_t)o->request_timeout_s * PATIENCE * 1000,
                                 .idle_ms = (int64_t)o->idle_timeout_s * 1000,
                                 .take = take_connection,
                                 .arg = http});
    http->port = port_of(http->listen_fd);
    po_log(PO_INFO, "listening", PO_TEXT("listener", http->options.name),
           PO_INT("port", http->port));
    *ret_http = http;
    return true;
}

int po_http_port(const po_http *http) {
    return http->port;
}

void po_http_quiesce(po_http *http) {
    pthread_mutex_lock(&http->lock);
    bool was_quiet = http->quiet;
    http->quiet = true;
    pthread_mutex_unlock(&http->lock);
    if (!was_quiet)
        door_shut(http->door);
}

static void wait_until_served(po_http *http) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += http->options.request_timeout_s + CLOSE_GRACE_S;
    pthread_mutex_lock(&http->lock);
    http->closing = true;
    while (http->serving && pthread_cond_timedwait(&http->quieter, &http->lock, &until) == 0)
        ;
    assert(http->owed == 0); // every suspended request was to be answered before
    pthread_mutex_unlock(&http->lock);
}

void po_http_close(po_http **http) {
    if (!*http)
        return;
    po_http_quiesce(*http);
    wait_until_served(*http);
    http_free(*http);
    *http = NULL;
}
