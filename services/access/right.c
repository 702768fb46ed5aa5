// The name and the content of a right; see the header.
#include "right.h"

po_str right_key(po_arena *arena, po_str order_id, int32_t qualification) {
    int n = (int)order_id.n;
    return po_s(qualification == 1
                    ? po_printf(arena, "grant:%.*s", n, order_id.p)
                    : po_printf(arena, "grant.g%d:%.*s", qualification, n, order_id.p));
}

void right_content(po_str order_id, po_str customer_id, po_str purpose, po_str item,
                   uint8_t out[32]) {
    const po_str parts[] = {order_id, customer_id, purpose, item};
    po_buf text = {0};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        po_buf_printf(&text, "%zu:", parts[i].n); // so that no two lists of parts read the same
        po_buf_put(&text, parts[i].p, parts[i].n);
    }
    po_sha256(po_buf_view(&text), out);
    po_buf_done(&text);
}
