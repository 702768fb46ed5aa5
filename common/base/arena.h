// One arena per message or request, dropped whole. Allocation never fails: it aborts when memory is
// out. Not thread-safe; what outlives the arena is copied on purpose. Memory is zeroed and 16-byte
// aligned.
#pragma once
#include "base/err.h"
#include "base/str.h"
#include <stddef.h>

typedef struct po_arena po_arena;

po_arena *po_arena_new(void);
void po_arena_free(po_arena **arena); // accepts NULL, leaves NULL
void po_arena_reset(po_arena *arena); // everything allocated is gone; keeps one block for reuse

void *po_alloc(po_arena *arena, size_t size);
// n * size, overflow aborts.
void *po_alloc_array(po_arena *arena, size_t n, size_t size);
char *po_strdup(po_arena *arena, const char *text); // NULL stays NULL
po_str po_str_copy(po_arena *arena, po_str view);   // NUL ended behind the view
char *po_printf(po_arena *arena, const char *fmt, ...) PO_PRINTF(2, 3);
size_t po_arena_used(const po_arena *arena); // bytes handed out since the last reset
