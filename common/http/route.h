// Finding the handler of a path. Paths are matched as they were sent, segment by segment, before
// any escape is decoded: "%2F" never makes a segment. Internal to http/.
#pragma once
#include "http/http.h"

enum { SEGMENTS_MAX = 4, ALLOW_SIZE = 64 };

typedef struct match {
    const po_http_route *route;    // NULL: none
    po_str segments[SEGMENTS_MAX]; // what each * matched, still escaped
    unsigned n;
    char allow[ALLOW_SIZE]; // the methods of a known path, when only the method was wrong; else ""
} match;

match route_find(const po_http_route *routes, const char *method, const char *path);
// Decodes "%HH"; what is no escape stays as it is. The result is on the arena only when it differs.
po_str route_unescape(po_arena *arena, po_str text);
