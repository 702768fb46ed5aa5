// Errors: `bool f(…, po_err *err)`. The kind tells the caller its next step; libraries fill it,
// loops log it, once, where the decision is taken. Every function here is safe in any thread.
#pragma once
#include <stdarg.h>
#include <stdbool.h>

#define PO_MUST_CHECK __attribute__((warn_unused_result))
#define PO_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

typedef enum po_kind {
    PO_RETRY = 1, // not done, and not the input's fault: the same call may work later
    PO_REFUSED,   // never will be done: the input is at fault
    PO_UNCERTAIN, // may have happened (a lost reply): look before repeating
    PO_BUG,       // our own mistake or an unlisted failure
} po_kind;

// A value, not a handle. `code` is the machine's word for the cause (an SQLSTATE, a Kafka error
// name, or a short token of ours such as "too_large"); `text` is for people. Zeroed = no error.
typedef struct po_err {
    po_kind kind;
    char code[40];
    char text[512];
} po_err;

// Fills *err (which may be NULL) and returns false, so that `return po_fail(err, …);` reads as one
// thought.
bool po_fail(po_err *err, po_kind kind, const char *code, const char *fmt, ...) PO_PRINTF(4, 5);

// Puts one phrase in front of the text ("recording event: …") and returns false.
bool po_wrap(po_err *err, const char *fmt, ...) PO_PRINTF(2, 3);

// "retry", "refused", "uncertain", "bug".
const char *po_kind_name(po_kind kind);
