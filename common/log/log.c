// A line is built in one buffer and written in one piece. Texts are escaped here and not by a JSON
// library: a line must come out whatever bytes it is given, so invalid UTF-8 becomes U+FFFD and a
// long text is cut.
#include "log/log.h"
#include "base/clock.h"
#include "base/cleanup.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_MAX = 2048 }; // bytes of one value

static const char *const level_names[] = {"debug", "info", "warn", "error"};

// Set once before threads start, read by all.
static const char *service_name = "payonce";
static po_level least_level = PO_INFO;

// A pipe takes pieces of more than PIPE_BUF bytes apart; the lock keeps our own lines whole.
static pthread_mutex_t write_lock = PTHREAD_MUTEX_INITIALIZER;

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

static void write_line(const po_buf *line) {
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
    write_line(&line);
}

void po_log_fields(po_level level, const char *msg, const po_field *fields) {
    po_log_err_fields(level, msg, NULL, fields);
}
