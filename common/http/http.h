// An HTTP/1.1 server on libmicrohttpd: a few threads, whole bodies up to a limit, answers now or
// later (the connection is suspended meanwhile, no thread waits). Handlers run on those threads.
// The edge (docs/http-edge.md): TE together with CL, a second differing Content-Length, a
// Transfer-Encoding other than chunked, a malformed header → 400 and close; a Content-Encoding
// other than identity → 415; body over the limit → 413; headers over 32 KiB → 431; a request that
// falls silent for request_timeout, or takes three of them → closed. Keep-alive and pipelining
// work; a connection that idles is closed after idle_timeout. At the limit of connections the one
// that is wanted least gives way to a new one (docs/operations.md). A 4xx ends the connection,
// unless its request was authorized or the connection had an answer below 400, or to an authorized
// request, within idle_timeout.
#pragma once
#include "base/arena.h"
#include "base/str.h"

typedef struct po_http po_http;
typedef struct po_request po_request; // one request; its memory ends when its answer is sent

typedef struct po_http_route {
    const char *method; // "GET", "POST"
    const char *path;   // "/v1/orders/*": each * matches one non-empty segment without '/'
    // Must lead to exactly one po_reply(), now or later, from any thread.
    void (*handler)(po_request *request, void *arg);
    void *arg;
} po_http_route; // tables end with {0}; an unknown path is 404, a known path with another method
                 // 405 + Allow

typedef struct po_http_options {
    const char *name;   // "http", "admin": field of the "listening" log line, metric label and name
                        // of the threads' beats; must outlive the process
    const char *listen; // "127.0.0.1:8080", "[::]:0"; port 0 = chosen, and logged:
                        // {"msg":"listening","listener":name,"port":N}
    const po_http_route *routes;
    unsigned threads;           // 0 = 2
    size_t body_limit;          // bytes per request; 0 = 1 MiB
    size_t memory_limit;        // bodies held in the process; beyond it 503; 0 = 64 MiB
    unsigned request_timeout_s; // silence within a request (the first: from its connection); 0 = 10
    unsigned idle_timeout_s;    // from an answer to the next request's first byte; 0 = 75
    unsigned max_connections;   // 0 = 4096; never more than a third of the files we may open
    unsigned max_per_address;   // of one IPv4 address or IPv6 /64; 0 = no bound (behind a proxy)
} po_http_options;

PO_MUST_CHECK bool po_http_open(const po_http_options *options, po_http **ret_http, po_err *err);
// Declares the metrics of all listeners; po_http_open() does it too, so this is for print-metrics
// alone.
void po_http_metrics(void);
int po_http_port(const po_http *http);
// Stop accepting; open connections go on, answers say Connection: close. May be called twice.
void po_http_quiesce(po_http *http);
// Quiesces, sends the answers that are under way (at most request_timeout + 2 s) and ends. Every
// suspended request must have been answered before; requests that come in meanwhile get 503.
void po_http_close(po_http **http);

// Reading a request. Views live until the reply.
po_str po_request_body(const po_request *request);
// What the n-th * of the path matched, unescaped (so it may hold any byte).
po_str po_request_segment(const po_request *request, unsigned n);
// The header's value, OWS trimmed; ret_count (may be NULL) counts lines of that name. Empty when
// absent.
po_str po_request_header(const po_request *request, const char *name, unsigned *ret_count);
po_str po_request_query(po_request *request, const char *name); // unescaped; empty when absent
// The caller's address and port as text, "127.0.0.1:40312"; "" when it is gone. From the handler.
#define PO_PEER_SIZE 64
void po_request_peer(const po_request *request, char out[PO_PEER_SIZE]);
po_arena *po_request_arena(po_request *request); // dropped with the request; not thread-safe

// Answers; thread-safe; wakes the connection if it was suspended. `body` is copied. retry_after_s >
// 0 adds the header. `type` is the content type, NULL = application/json.
void po_reply(po_request *request, unsigned status, const char *type, po_str body,
              unsigned retry_after_s);
// {"error":{"code":…,"message":…}}; a 503 says Retry-After: 1.
void po_reply_error(po_request *request, unsigned status, const char *code, const char *message);
// A compact JSON object; takes over the reference.
struct json_t;
void po_reply_json(po_request *request, unsigned status, struct json_t *body);
// Constant-time check of "Authorization: Bearer TOKEN"; false (401 sent, and logged) when it is not
// that.
PO_MUST_CHECK bool po_request_authorized(po_request *request, const char *token);
