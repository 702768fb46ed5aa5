// JSON log lines on stdout, safe from any thread. error = someone must act, warn = we coped, info =
// outcomes, lifecycle and state changes. Never a payload, never a secret, never an e-mail address.
// A line: {"ts":…,"level":…,"service":…,"msg":…, fields…}. Names are snake_case. A value is cut at
// 2 KiB.
//
// Between po_log_start and po_log_stop nothing here blocks: lines go to a buffer of 1 MiB, which a
// thread of its own writes out, so a reader of stdout that stands still delays no answer. What finds
// no room is dropped, counted (payonce_log_dropped_total) and told once there is room again. The
// last quarter of the buffer is for warn and error, the last eighth for error alone: they are not
// lost to a flood of outcomes. A program that aborts or crashes first waits for the buffer to be
// written, for a second at most. Outside of that time each line is written by its own thread.
#pragma once
#include "base/err.h"
#include "base/id.h"
#include <inttypes.h>
#include <stdatomic.h>

typedef enum po_level { PO_DEBUG, PO_INFO, PO_WARN, PO_ERROR } po_level;

// Before threads start; `service` must outlive all.
void po_log_init(const char *service, po_level least);
// `rate`: ordinary outcomes logged one by one in a second. Once the signals that end the process are
// blocked, for the thread must not take them.
void po_log_start(int64_t rate);
// Writes out what is in the buffer, for 2 s at most; what is left then is lost. May be called twice.
void po_log_stop(void);
void po_log_metrics(void); // declares; once

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

// --- Outcomes: what work does all the time. At most so many lines a second; those above are counted
// alone, without their fields being looked at, and one line a second says how many of each.

typedef struct po_log_window {
    _Atomic int64_t second, used;
} po_log_window;

// A kind of line; static, at the place that logs it.
typedef struct po_log_site {
    const char *name;   // field of the summary line, snake_case
    int64_t per_second; // 0: shares the process's rate (PAYONCE_LOG_RATE) with all such sites
    po_log_window window;
    _Atomic int64_t left_out; // since the last summary
    _Atomic bool listed;
    struct po_log_site *_Atomic next;
} po_log_site;

// For refused requests, and those that an outage turns away, apart from outcomes: anybody can send as
// many as they like, and an operator needs some of them at any time. Lines a second of each kind.
#define PO_LOG_REFUSALS 10

// True when the line may be written now; else it is counted. A site that shares the process's rate is
// of level info, one with a rate of its own of any level.
bool po_log_admit(po_log_site *site);

// An ordinary outcome, at info. `site` is the name of a po_log_site.
#define po_log_outcome(site, msg, ...)                          \
    do {                                                        \
        static po_log_site po_log_site_here = {.name = (site)}; \
        if (po_log_admit(&po_log_site_here))                    \
            po_log(PO_INFO, msg, __VA_ARGS__);                  \
    } while (0)
