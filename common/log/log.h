// JSON log lines on stdout, one write(2) per line, safe from any thread. error = someone must act,
// warn = we coped, info = lifecycle and state changes. Never a payload, never a secret.
// A line: {"ts":…,"level":…,"service":…,"msg":…, fields…}. Names are snake_case. A value is cut at
// 2 KiB.
#pragma once
#include "base/err.h"
#include "base/id.h"
#include <inttypes.h>

typedef enum po_level { PO_DEBUG, PO_INFO, PO_WARN, PO_ERROR } po_level;

// Before threads start; `service` must outlive all.
void po_log_init(const char *service, po_level least);

// Fields are (name, value) built by the macros below; the list ends by itself.
typedef struct po_field {
    const char *name;
    enum { PO_F_TEXT, PO_F_INT, PO_F_BOOL, PO_F_END } type;
    union {
        const char *text; // NULL prints null; invalid UTF-8 is replaced
        int64_t i;
    };
} po_field;
#define PO_TEXT(name, value) ((po_field){name, PO_F_TEXT, {.text = (value)}})
#define PO_INT(name, value) ((po_field){name, PO_F_INT, {.i = (int64_t)(value)}})
#define PO_BOOL(name, value) ((po_field){name, PO_F_BOOL, {.i = (value) ? 1 : 0}})

void po_log_fields(po_level level, const char *msg, const po_field *fields);
#define po_log(level, msg, ...) \
    po_log_fields(level, msg, (const po_field[]){__VA_ARGS__ __VA_OPT__(, ){0, PO_F_END, {0}}})

// The same with err's kind, code and text as fields "kind", "code", "error".
void po_log_err_fields(po_level level, const char *msg, const po_err *err, const po_field *fields);
#define po_log_err(level, msg, err, ...) \
    po_log_err_fields(level, msg, err,   \
                      (const po_field[]){__VA_ARGS__ __VA_OPT__(, ){0, PO_F_END, {0}}})

// Context inherited by every line of this thread until cleared (the message in hand), as
// "event_id", "order_id" and "traceparent"; a field of the same name wins. Values are copied, NULL
// clears.
void po_log_context(const char *event_id, const char *order_id, const char *traceparent);
