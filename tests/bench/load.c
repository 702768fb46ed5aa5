// A provider that never waits: signed Stripe webhooks over keep-alive connections, one request at a time on each,
// from one epoll thread. Every event is the template with its own ten digits in the place of "@@@@@@@@@@", signed
// before the clock starts. Bounded in events and in time; an answer other than 200 is sent again, as a provider does.
// A connection that was closed while it idled is opened again (`reopened`). A request that met such a close, cut before
// any byte of its answer on a connection that had answered before, is repeated once at once (`repeated`); one that is cut
// otherwise (`cut`) is sent again like a refused one.
// Prints one JSON object: answers by kind, rate, and latencies from the moment an event was due to its whole answer.
//
// With --rate events are due evenly, whether or not earlier ones were answered: a stall shows in the latencies of
// all that it delayed. Without it each connection sends as soon as it may.
#include "base/arena.h"
#include "base/clock.h"
#include "base/str.h"
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MARK = 10, MAC_HEX = 64, MOST_MARKS = 32, ANSWER_MOST = 4096, LINGER_MS = 5000 };

typedef struct settings {
    const char *path, *secret, *template_file;
    int port;
    int64_t first, count, connections, seconds, rate;
} settings;

typedef struct connection {
    int fd;        // -1: closed
    int64_t event; // index of the event under way, -1: idle
    size_t got;
    bool used, repeats; // has answered before; the event was cut once
    char answer[ANSWER_MOST];
} connection;

typedef struct load {
    settings s;
    char *body; // template, then whichever event is being rendered
    size_t body_n, marks[MOST_MARKS], n_marks;
    char *macs; // MAC_HEX each
    int64_t signed_at;
    int64_t *due_us;
    uint32_t *latency_us;
    connection *all;
    int epoll;
    int64_t *idle; // a stack of idle connections
    size_t n_idle;
    int64_t *again; // events to be sent again
    size_t n_again, cap_again;
    int64_t started_us, next, recorded, duplicates, refused, reopened, repeated, cut;
} load;

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

static int64_t mono_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void *allocate(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    if (!p)
        abort();
    return p;
}

// --- Events

static void read_template(load *l) {
    FILE *file = fopen(l->s.template_file, "re");
    if (!file)
        die("cannot open %s", l->s.template_file);
    l->body = allocate(1 << 16, 1);
    l->body_n = fread(l->body, 1, (1 << 16) - 1, file);
    fclose(file);
    for (char *at = l->body; (at = strstr(at, "@@@@@@@@@@")) && l->n_marks < MOST_MARKS; at += MARK)
        l->marks[l->n_marks++] = (size_t)(at - l->body);
    if (l->n_marks == 0)
        die("no @@@@@@@@@@ in %s", l->s.template_file);
}

static void render(load *l, int64_t i) {
    char digits[24];
    snprintf(digits, sizeof digits, "%0*lld", MARK, (long long)(l->s.first + i));
    for (size_t m = 0; m < l->n_marks; m++)
        memcpy(l->body + l->marks[m], digits, MARK);
}

static void sign(load *l, int64_t i, char *ret_hex) {
    char time_text[24];
    unsigned char mac[EVP_MAX_MD_SIZE];
    char *text = allocate(l->body_n + sizeof time_text, 1);
    int n = snprintf(time_text, sizeof time_text, "%lld.", (long long)l->signed_at);
    memcpy(text, time_text, (size_t)n);
    render(l, i);
    memcpy(text + n, l->body, l->body_n);
    if (!HMAC(EVP_sha256(), l->s.secret, (int)strlen(l->s.secret), (unsigned char *)text,
              (size_t)n + l->body_n, mac, NULL))
        die("HMAC failed");
    for (int b = 0; b < MAC_HEX / 2; b++)
        snprintf(ret_hex + 2 * b, 3, "%02x", mac[b]);
    free(text);
}

static void sign_all(load *l) {
    l->macs = allocate((size_t)l->s.count * MAC_HEX + 1, 1);
    l->signed_at = time(NULL);
    for (int64_t i = 0; i < l->s.count; i++)
        sign(l, i, l->macs + i * MAC_HEX);
}

// --- Connections

static void open_connection(load *l, connection *c) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)l->s.port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to) != 0)
        die("connection %td: %s", c - l->all, strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct epoll_event want = {.events = EPOLLIN, .data.u64 = (uint64_t)(c - l->all)};
    epoll_ctl(l->epoll, EPOLL_CTL_ADD, c->fd, &want);
    c->used = false;
}

static void connect_all(load *l) {
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    size_t n = (size_t)l->s.connections;
    l->all = allocate(n, sizeof *l->all);
    l->idle = allocate(n, sizeof *l->idle);
    for (size_t i = 0; i < n; i++) {
        l->all[i].event = -1;
        open_connection(l, &l->all[i]);
        l->idle[l->n_idle++] = (int64_t)i;
    }
}

static void close_connection(connection *c) {
    close(c->fd);
    c->fd = -1;
}

static void lose(load *l, connection *c);

static void send_event(load *l, connection *c, int64_t i) {
    static char out[(1 << 16) + 1024];
    render(l, i);
    int n = snprintf(out, 1024,
                     "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Stripe-Signature: t=%lld,v1=%.*s\r\nContent-Length: %zu\r\n\r\n",
                     l->s.path, (long long)l->signed_at, MAC_HEX, l->macs + i * MAC_HEX, l->body_n);
    memcpy(out + n, l->body, l->body_n);
    size_t all = (size_t)n + l->body_n;
    if (c->fd < 0) {
        open_connection(l, c);
        l->reopened++;
    }
    c->event = i;
    c->got = 0;
    ssize_t sent = send(c->fd, out, all, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
        lose(l, c);
    else if (sent != (ssize_t)all) // nothing else is under way here, so the kernel has room for it
        die("sending: %s", strerror(errno));
}

static void send_later(load *l, int64_t i) {
    if (l->n_again == l->cap_again) {
        l->cap_again = l->cap_again ? 2 * l->cap_again : 64;
        l->again = reallocarray(l->again, l->cap_again, sizeof *l->again);
        if (!l->again)
            abort();
    }
    l->again[l->n_again++] = i;
}

static void rest(load *l, connection *c) {
    c->event = -1;
    c->repeats = false;
    l->idle[l->n_idle++] = c - l->all;
}

// The server has closed the connection.
static void lose(load *l, connection *c) {
    int64_t i = c->event;
    bool again = c->used && c->got == 0 && !c->repeats;
    close_connection(c);
    if (i < 0)
        return; // it idled, and is opened when it is needed
    if (again) {
        l->repeated++;
        c->repeats = true;
        send_event(l, c, i);
        return;
    }
    l->cut++;
    rest(l, c);
    send_later(l, i);
}

static void take_answer(load *l, connection *c, const char *body) {
    int64_t i = c->event;
    c->used = true;
    rest(l, c);
    if (strncmp(c->answer, "HTTP/1.1 200", 12) != 0) {
        l->refused++;
        send_later(l, i);
        return;
    }
    l->latency_us[l->recorded + l->duplicates] = (uint32_t)(mono_us() - l->due_us[i]);
    *(strstr(body, "recorded") ? &l->recorded : &l->duplicates) += 1;
}

static void receive(load *l, connection *c) {
    ssize_t n = recv(c->fd, c->answer + c->got, ANSWER_MOST - 1 - c->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        lose(l, c);
        return;
    }
    c->got += (size_t)n;
    c->answer[c->got] = 0;
    const char *end = strstr(c->answer, "\r\n\r\n"), *length = strstr(c->answer, "Content-Length:");
    if (end && !length)
        die("an answer without a length");
    if (end && c->got >= (size_t)(end + 4 - c->answer) + strtoul(length + 15, NULL, 10))
        take_answer(l, c, end + 4);
    else if (c->got == ANSWER_MOST - 1)
        die("an answer too long");
}

// --- The run

static bool take_next(load *l, int64_t now_us, int64_t *ret_event) {
    if (l->n_again > 0) {
        *ret_event = l->again[--l->n_again];
        return true;
    }
    int64_t due_us = now_us;
    if (l->s.rate)
        due_us = l->started_us + l->next * 1000000 / l->s.rate;
    if (l->next == l->s.count || due_us > now_us || now_us - l->started_us > l->s.seconds * 1000000)
        return false;
    l->due_us[l->next] = due_us;
    *ret_event = l->next++;
    return true;
}

static bool all_sent(const load *l, int64_t now_us) {
    return l->next == l->s.count || now_us - l->started_us > l->s.seconds * 1000000;
}

static void play(load *l) {
    struct epoll_event ready[256];
    l->started_us = mono_us();
    int64_t give_up_us = l->started_us + l->s.seconds * 1000000 + LINGER_MS * 1000;
    for (int64_t event, now_us; (now_us = mono_us()) < give_up_us;) {
        while (l->n_idle > 0 && take_next(l, now_us, &event))
            send_event(l, &l->all[l->idle[--l->n_idle]], event);
        if (all_sent(l, now_us) && l->n_again == 0 && l->n_idle == (size_t)l->s.connections)
            return;
        int n = epoll_wait(l->epoll, ready, 256, l->s.rate ? 1 : 100);
        for (int i = 0; i < n; i++)
            receive(l, &l->all[ready[i].data.u64]);
    }
    die("answers are missing: %lld sent, %lld answered", (long long)l->next,
        (long long)(l->recorded + l->duplicates));
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void report(load *l, double seconds) {
    size_t n = (size_t)(l->recorded + l->duplicates);
    qsort(l->latency_us, n, sizeof *l->latency_us, by_value);
    json_t *latency = json_object();
    static const struct {
        const char *name;
        double at;
    } points[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p999", 0.999}, {"max", 1}};
    for (size_t i = 0; n > 0 && i < sizeof points / sizeof *points; i++) {
        size_t at = (size_t)(points[i].at * (double)(n - 1));
        json_object_set_new(latency, points[i].name, json_real(l->latency_us[at] / 1e3));
    }
    json_t *out =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:i, s:o}", "sent", (json_int_t)l->next,
                  "recorded", (json_int_t)l->recorded, "duplicate", (json_int_t)l->duplicates,
                  "sent_again", (json_int_t)l->refused, "reopened", (json_int_t)l->reopened,
                  "repeated", (json_int_t)l->repeated, "cut", (json_int_t)l->cut, "seconds", seconds, "rate",
                  (double)n / seconds, "body_bytes", (int)l->body_n, "latency_ms", latency);
    json_dumpf(out, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(out);
}

static settings read_settings(int argc, char **argv) {
    settings s = {.path = "/webhooks/stripe/shop", .count = 1000, .connections = 64, .seconds = 20};
    static const struct option options[] = {{"path", 1, 0, 'p'},        {"secret", 1, 0, 's'},
                                            {"template", 1, 0, 't'},    {"port", 1, 0, 'P'},
                                            {"first", 1, 0, 'f'},       {"count", 1, 0, 'n'},
                                            {"connections", 1, 0, 'c'}, {"rate", 1, 0, 'r'},
                                            {"seconds", 1, 0, 'd'},     {0}};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) >= 0;) {
        int64_t number = 0;
        if (strchr("pst?", c) == NULL && (!po_parse_i64(po_s(optarg), &number) || number < 0))
            die("'%s' is not a number", optarg);
        switch (c) {
        case 'p':
            s.path = optarg;
            break;
        case 's':
            s.secret = optarg;
            break;
        case 't':
            s.template_file = optarg;
            break;
        case 'P':
            s.port = (int)number;
            break;
        case 'f':
            s.first = number;
            break;
        case 'n':
            s.count = number;
            break;
        case 'c':
            s.connections = number;
            break;
        case 'r':
            s.rate = number;
            break;
        case 'd':
            s.seconds = number;
            break;
        default:
            exit(2);
        }
    }
    if (!s.secret || !s.template_file || !s.port || !s.connections)
        die("wanted: --port --secret --template");
    return s;
}

int main(int argc, char **argv) {
    load l = {.s = read_settings(argc, argv)};
    read_template(&l);
    sign_all(&l);
    l.due_us = allocate((size_t)l.s.count, sizeof *l.due_us);
    l.latency_us = allocate((size_t)l.s.count, sizeof *l.latency_us);
    connect_all(&l);
    play(&l);
    report(&l, (double)(mono_us() - l.started_us) / 1e6);
    for (int64_t i = 0; i < l.s.connections; i++)
        if (l.all[i].fd >= 0)
            close_connection(&l.all[i]);
    close(l.epoll);
    void *all[] = {l.body, l.macs, l.due_us, l.latency_us, l.all, l.idle, l.again};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    return 0;
}
