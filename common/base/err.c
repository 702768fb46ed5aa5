// Errors are plain values: the text is built beside the old one, so that a caller may quote
// err->text while filling err again.
#include "base/err.h"
#include <stdio.h>
#include <string.h>

bool po_fail(po_err *err, po_kind kind, const char *code, const char *fmt, ...) {
    if (!err)
        return false;
    po_err fresh = {.kind = kind};
    snprintf(fresh.code, sizeof fresh.code, "%s", code ? code : "");
    va_list args;
    va_start(args, fmt);
    vsnprintf(fresh.text, sizeof fresh.text, fmt, args);
    va_end(args);
    *err = fresh;
    return false;
}

bool po_wrap(po_err *err, const char *fmt, ...) {
    if (!err)
        return false;
    char phrase[sizeof err->text], both[2 * sizeof err->text + 2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(phrase, sizeof phrase, fmt, args);
    va_end(args);
    snprintf(both, sizeof both, "%s: %s", phrase, err->text);
    memcpy(err->text, both, sizeof err->text - 1); // the end of a very long story is cut off
    err->text[sizeof err->text - 1] = '\0';
    return false;
}

const char *po_kind_name(po_kind kind) {
    switch (kind) {
    case PO_RETRY:
        return "retry";
    case PO_REFUSED:
        return "refused";
    case PO_UNCERTAIN:
        return "uncertain";
    case PO_BUG:
        return "bug";
    }
    return "none";
}
