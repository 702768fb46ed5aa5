// Scope cleanup: PO_AUTO(done_fn) before a declaration runs done_fn(&variable) when the scope is
// left. Hand-over is explicit: `*ret_x = po_take(&x);` leaves NULL behind. A function uses this or
// goto, not both.
#pragma once
#include <stddef.h>

#define PO_AUTO(fn) __attribute__((cleanup(fn)))

#define po_take(pointer_address)                    \
    __extension__({                                 \
        __auto_type po_take_at = (pointer_address); \
        __auto_type po_take_value = *po_take_at;    \
        *po_take_at = NULL;                         \
        po_take_value;                              \
    })

// PO_AUTO(po_free_auto) char *text = …;
void po_free_auto(void *pointer_address);
