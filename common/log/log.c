// A line is built in one buffer by the thread that logs it, and goes from there to the ring, or
// straight to stdout. Texts are escaped here and not by a JSON library: a line must come out
// whatever bytes it is given, so invalid UTF-8 becomes U+FFFD and a long text is cut.
//
// The ring's ends only rise: what lies between them is to be written, and only its writer moves the
// lower one, after the bytes are out. So the lock is held for a copy and never for a write.
#include "log/log.h"
#include "base/clock.h"
#include "base/cleanup.h"
#include "metrics/metrics.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    TEXT_MAX = 2048, // bytes of one value
    RING = 1 << 20,
    STOP_MS = 2000,
    CRASH_MS = 1000,
    SUMMARY_MS = 1000,
    SITES_MAX = 32, // in one summary
};

static const char *const level_names[] = {"debug", "info", "warn", "error"};

// Set once before threads start, read by all.
static const char *service_name = "payonce";
static po_level least_level = PO_INFO;

// How a line leaves: by its own thread, by way of the ring, or not at all (the end was not waited
// for).
enum { DIRECT, BUFFERED, LOST };
static atomic_int way = DIRECT;

// A pipe takes pieces of more than PIPE_BUF bytes apart; the lock keeps direct lines whole.
static pthread_mutex_t write_lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t filled, emptied;
    atomic_size_t from, to; // changed under the lock; the crash handler reads them without
    bool stopping;
    pthread_t writer;
    int64_t dropped, dropped_errors; // not told yet
    char bytes[RING];
} ring = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Atomic int64_t outcome_rate = INT64_MAX;
static po_log_window outcomes;
static po_log_site *_Atomic sites; // that have left lines out
static po_metric *dropped_total;

static _Thread_local struct { char event_id[256], order_id[256], traceparent[64]; } context;

void po_log_init(const char *service, po_level least) {
    service_name = service;
    least_level = least;
}

static void copy_text(char *out, size_t size, const char *text) {
    snprintf(out, size, "%s", text ? text : "");
}

void po_log_context(const char *event_id, const char *order_id, const char *traceparent) {
    copy_text(context.event_id, sizeof context.event_id, event_id);
    copy_text(context.order_id, sizeof context.order_id, order_id);
    copy_text(context.traceparent, sizeof context.traceparent, traceparent);
}

// Bytes of the valid UTF-8 character at s (RFC 3629), 0 when there is none. s ends with a NUL.
static size_t utf8_length(const unsigned char *s) {
    if (s[0] < 0x80)
        return 1;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool beyond =
        (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf4 && s[1] > 0x8f); // surrogates, > U+10FFFF
    return overlong || beyond ? 0 : n;
}

static void put_text(po_buf *line, const char *text) {
    if (!text) {
        po_buf_puts(line, "null");
        return;
    }
    po_buf_puts(line, "\"");
    const unsigned char *s = (const unsigned char *)text;
    size_t left = TEXT_MAX;
    while (*s) {
        size_t n = utf8_length(s), take = n ? n : 1;
        if (take > left) {
            po_buf_puts(line, "…");
            break;
        }
        if (n == 0)
            po_buf_puts(line, "\xef\xbf\xbd");
        else if (*s == '"' || *s == '\\')
            po_buf_printf(line, "\\%c", *s);
        else if (*s < 0x20)
            po_buf_printf(line, "\\u%04x", *s);
        else
            po_buf_put(line, s, n);
        s += take;
        left -= take;
    }
    po_buf_puts(line, "\"");
}

static void put_field(po_buf *line, const po_field *field) {
    po_buf_puts(line, ",");
    put_text(line, field->name);
    po_buf_puts(line, ":");
    if (field->type == PO_F_TEXT)
        put_text(line, field->text);
    else if (field->type == PO_F_INT)
        po_buf_printf(line, "%" PRId64, field->i);
    else
        po_buf_puts(line, field->i ? "true" : "false");
}

// The context gives way to a field that says the same of another message.
static void put_context(po_buf *line, const char *name, const char *value, const po_field *fields) {
    if (!value[0])
        return;
    for (const po_field *f = fields; f->type != PO_F_END; f++)
        if (strcmp(f->name, name) == 0)
            return;
    put_field(line, &PO_TEXT(name, value));
}

static void write_direct(const po_buf *line) {
    size_t done = 0;
    pthread_mutex_lock(&write_lock);
    while (done < line->n) {
        ssize_t n = write(STDOUT_FILENO, line->p + done, line->n - done);
        if (n < 0 && errno != EINTR)
            break; // nowhere to tell
        done += n > 0 ? (size_t)n : 0;
    }
    pthread_mutex_unlock(&write_lock);
}

static void count_dropped(const char *level, int64_t lines) {
    if (dropped_total)
        po_count(dropped_total, level, lines);
}

// False when the buffer is closed since `way` was looked at.
static bool buffer_line(po_level level, const po_buf *line) {
    static const size_t most[] = {[PO_DEBUG] = RING / 4 * 3,
                                  [PO_INFO] = RING / 4 * 3,
                                  [PO_WARN] = RING / 8 * 7,
                                  [PO_ERROR] = RING};
    pthread_mutex_lock(&ring.lock);
    size_t to = ring.to, at = to % RING;
    bool open = atomic_load(&way) == BUFFERED;
    bool room = open && to - ring.from + line->n <= most[level];
    if (room) {
        size_t first = line->n < RING - at ? line->n : RING - at;
        memcpy(ring.bytes + at, line->p, first);
        memcpy(ring.bytes, line->p + first, line->n - first);
        ring.to = to + line->n;
        pthread_cond_signal(&ring.filled);
    } else if (open) {
        ring.dropped++;
        ring.dropped_errors += level == PO_ERROR;
    }
    pthread_mutex_unlock(&ring.lock);
    if (open && !room)
        count_dropped(level_names[level], 1);
    return open;
}

static void write_line(po_level level, const po_buf *line) {
    if (atomic_load(&way) == BUFFERED && buffer_line(level, line))
        return;
    if (atomic_load(&way) == DIRECT)
        write_direct(line);
    else
        count_dropped(level_names[level], 1);
}

void po_log_err_fields(po_level level, const char *msg, const po_err *err, const po_field *fields) {
    if (level < least_level)
        return;
    PO_AUTO(po_buf_done) po_buf line = {0};
    char now[PO_RFC3339_SIZE];
    po_rfc3339(po_now_us(), now);
    po_buf_printf(&line, "{\"ts\":\"%s\",\"level\":\"%s\",\"service\":", now, level_names[level]);
    put_text(&line, service_name);
    po_buf_puts(&line, ",\"msg\":");
    put_text(&line, msg);
    for (const po_field *f = fields; f->type != PO_F_END; f++)
        put_field(&line, f);
    put_context(&line, "event_id", context.event_id, fields);
    put_context(&line, "order_id", context.order_id, fields);
    put_context(&line, "traceparent", context.traceparent, fields);
    if (err) {
        put_field(&line, &PO_TEXT("kind", po_kind_name(err->kind)));
        put_field(&line, &PO_TEXT("code", err->code));
        put_field(&line, &PO_TEXT("error", err->text));
    }
    po_buf_puts(&line, "}\n");
    write_line(level, &line);
}

void po_log_fields(po_level level, const char *msg, const po_field *fields) {
    po_log_err_fields(level, msg, NULL, fields);
}

// --- Outcomes

static bool window_take(po_log_window *window, int64_t most) {
    int64_t now_s = po_mono_ms() / 1000, second = atomic_load(&window->second);
    if (second != now_s && atomic_compare_exchange_strong(&window->second, &second, now_s))
        atomic_store(&window->used, 0);
    // Looked at before it is raised: under load that is all there is to do.
    return atomic_load(&window->used) < most && atomic_fetch_add(&window->used, 1) < most;
}

static void site_list(po_log_site *site) {
    if (atomic_exchange(&site->listed, true))
        return;
    po_log_site *first = atomic_load(&sites);
    do
        atomic_store(&site->next, first);
    while (!atomic_compare_exchange_weak(&sites, &first, site));
}

bool po_log_admit(po_log_site *site) {
    bool own = site->per_second > 0;
    if (!own && PO_INFO < least_level)
        return false;
    if (window_take(own ? &site->window : &outcomes, own ? site->per_second : outcome_rate))
        return true;
    atomic_fetch_add(&site->left_out, 1);
    if (!atomic_load(&site->listed))
        site_list(site);
    return false;
}

static void tell_left_out(void) {
    po_field fields[SITES_MAX + 1];
    size_t n = 0;
    po_level level = PO_INFO;
    for (po_log_site *site = atomic_load(&sites); site && n < SITES_MAX; site = site->next) {
        int64_t left_out = atomic_exchange(&site->left_out, 0);
        if (left_out > 0)
            fields[n++] = PO_INT(site->name, left_out);
        if (left_out > 0 && site->per_second > 0)
            level = PO_WARN;
    }
    fields[n] = (po_field){0, PO_F_END, {0}};
    if (n > 0)
        po_log_fields(level, "further outcomes, counted alone", fields);
}

// --- The writer

static void tell_dropped(void) {
    pthread_mutex_lock(&ring.lock);
    int64_t lines = ring.dropped, errors = ring.dropped_errors;
    bool room = ring.to - ring.from < RING / 2;
    if (room)
        ring.dropped = ring.dropped_errors = 0;
    pthread_mutex_unlock(&ring.lock);
    if (room && lines)
        po_log(PO_WARN, "log lines dropped: their reader was too slow", PO_INT("lines", lines),
               PO_INT("errors", errors));
}

static int64_t lines_in(const char *bytes, size_t n) {
    int64_t lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += bytes[i] == '\n';
    return lines;
}

// As much as one call takes; where stdout is of no use, all of it is gone.
static size_t write_some(const char *bytes, size_t n) {
    ssize_t done = write(STDOUT_FILENO, bytes, n);
    if (done >= 0)
        return (size_t)done;
    if (errno == EAGAIN) // somebody who shares it has made it so
        (void)poll(&(struct pollfd){STDOUT_FILENO, POLLOUT, 0}, 1, 100);
    if (errno == EAGAIN || errno == EINTR)
        return 0;
    count_dropped("unwritable", lines_in(bytes, n));
    return n;
}

static void wait_filled(int64_t until_ms) {
    struct timespec at = {.tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000};
    while (ring.from == ring.to && !ring.stopping &&
           pthread_cond_timedwait(&ring.filled, &ring.lock, &at) == 0) {
    }
}

static void *write_all(void *arg) {
    (void)arg;
    int64_t summary_ms = po_mono_ms() + SUMMARY_MS;
    pthread_mutex_lock(&ring.lock);
    while (ring.from != ring.to || !ring.stopping) {
        wait_filled(summary_ms);
        size_t from = ring.from, at = from % RING, n = ring.to - from;
        pthread_mutex_unlock(&ring.lock);
        size_t done = n ? write_some(ring.bytes + at, n < RING - at ? n : RING - at) : 0;
        if (po_mono_ms() >= summary_ms) {
            tell_left_out();
            tell_dropped();
            summary_ms = po_mono_ms() + SUMMARY_MS;
        }
        pthread_mutex_lock(&ring.lock);
        ring.from = from + done;
        pthread_cond_signal(&ring.emptied);
    }
    pthread_mutex_unlock(&ring.lock);
    return NULL;
}

// --- Start, stop, crash

static const int crashes[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
enum { CRASHES = sizeof crashes / sizeof *crashes };
static struct sigaction before[CRASHES];

// The writer goes on while a thread is in here; only its own crash is not waited for. Then what was
// to happen happens: an abort goes on, a fault comes again.
static void on_crash(int number) {
    int saved = errno;
    bool own = pthread_equal(pthread_self(), ring.writer);
    for (int ms = 0; !own && ms < CRASH_MS && ring.from != ring.to; ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (size_t i = 0; i < CRASHES; i++)
        if (crashes[i] == number)
            sigaction(number, &before[i], NULL);
    errno = saved;
}

static void watch_crashes(void) {
    struct sigaction action = {.sa_handler = on_crash};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < CRASHES; i++)
        if (sigaction(crashes[i], &action, &before[i]) != 0)
            abort();
}

void po_log_metrics(void) {
    dropped_total =
        po_metric_new(PO_COUNTER, "payonce_log_dropped_total",
                      "Log lines that found no room since stdout's reader was too slow, "
                      "by level; unwritable: stdout was of no use.",
                      "level");
    for (size_t i = 0; i < sizeof level_names / sizeof *level_names; i++)
        count_dropped(level_names[i], 0);
}

void po_log_start(int64_t rate) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ring.filled, &monotonic);
    pthread_cond_init(&ring.emptied, &monotonic);
    pthread_condattr_destroy(&monotonic);
    atomic_store(&outcome_rate, rate);
    ring.stopping = false;
    if (pthread_create(&ring.writer, NULL, write_all, NULL) != 0)
        abort();
    atomic_store(&way, BUFFERED);
    watch_crashes();
}

// Under the lock; false when it takes too long.
static bool wait_emptied(int64_t until_ms) {
    struct timespec at = {.tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000};
    while (ring.from != ring.to && pthread_cond_timedwait(&ring.emptied, &ring.lock, &at) == 0) {
    }
    return ring.from == ring.to;
}

void po_log_stop(void) {
    if (atomic_load(&way) != BUFFERED)
        return;
    int64_t until_ms = po_mono_ms() + STOP_MS;
    tell_left_out();
    pthread_mutex_lock(&ring.lock);
    (void)wait_emptied(until_ms);
    pthread_mutex_unlock(&ring.lock);
    tell_dropped(); // now that there is room
    pthread_mutex_lock(&ring.lock);
    bool all = wait_emptied(until_ms);
    ring.stopping = true;
    pthread_cond_signal(&ring.filled);
    atomic_store(&way, all ? DIRECT : LOST); // under the lock: no line comes behind the last one
    pthread_mutex_unlock(&ring.lock);
    if (all)
        pthread_join(ring.writer, NULL);
    else
        pthread_detach(ring.writer); // it may stand in its write for ever
    for (size_t i = 0; i < CRASHES; i++)
        sigaction(crashes[i], &before[i], NULL);
}
