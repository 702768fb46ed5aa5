// What is refused before a handler sees it: messages that two readers could read in two ways (the
// ground of request smuggling), and bodies we do not take. Internal to http/.
#pragma once
#include "base/str.h"
#include <microhttpd.h>

typedef struct verdict {
    unsigned status; // 0 = let it pass
    const char *code, *message;
} verdict;

// `method` and `version` are those that the library hands to the first call for a request, which is
// where this belongs. `ret_has_body`: a body follows, by whatever framing; `ret_length`: its
// Content-Length, 0 without one.
verdict edge_judge(struct MHD_Connection *connection, const char *method, const char *version,
                   size_t body_limit, bool *ret_has_body, size_t *ret_length);
