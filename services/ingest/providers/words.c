// Looking words up.
#include "providers/words.h"

static const word unknown_word = {.state = STATE_UNSUPPORTED};

static bool matches(const char *pattern, po_str text) {
    size_t n = strlen(pattern);
    if (n > 0 && pattern[n - 1] == '*')
        return text.n >= n - 1 && memcmp(text.p ? text.p : "", pattern, n - 1) == 0;
    return po_str_is(text, pattern);
}

const word *word_find(const word *words, po_str type, po_str status) {
    for (const word *w = words; w->type; w++)
        if (matches(w->type, type) && matches(w->status, status))
            return w;
    return &unknown_word;
}
