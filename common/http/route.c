// A route's path and the request's are walked side by side; a table has a handful of rows, so they
// are tried in order.
#include "http/route.h"
#include <assert.h>
#include <stdio.h>

static bool path_matches(const char *pattern, const char *path, match *m) {
    m->n = 0;
    while (*pattern) {
        if (*pattern != '*') {
            if (*pattern++ != *path++)
                return false;
            continue;
        }
        size_t n = strcspn(path, "/");
        if (n == 0)
            return false;
        assert(m->n < SEGMENTS_MAX);
        m->segments[m->n++] = (po_str){path, n};
        path += n;
        pattern++;
    }
    return *path == '\0';
}

match route_find(const po_http_route *routes, const char *method, const char *path) {
    match m = {0};
    for (const po_http_route *r = routes; r->method; r++) {
        if (!path_matches(r->path, path, &m))
            continue;
        if (strcmp(r->method, method) == 0) {
            m.route = r;
            return m;
        }
        size_t n = strlen(m.allow);
        snprintf(m.allow + n, sizeof m.allow - n, "%s%s", n ? ", " : "", r->method);
    }
    return m;
}

static int nibble(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

po_str route_unescape(po_arena *arena, po_str text) {
    if (!text.n || !memchr(text.p, '%', text.n))
        return text;
    char *out = po_alloc(arena, text.n + 1);
    size_t n = 0;
    for (size_t i = 0; i < text.n; n++) {
        int high = text.n - i > 2 && text.p[i] == '%' ? nibble(text.p[i + 1]) : -1;
        int low = high >= 0 ? nibble(text.p[i + 2]) : -1;
        out[n] = text.p[i];
        if (low >= 0)
            out[n] = (char)(high << 4 | low);
        i += low >= 0 ? 3 : 1;
    }
    return (po_str){out, n};
}
