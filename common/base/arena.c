// An arena is a chain of blocks, the newest first. Small pieces are cut from the newest block; a
// piece that is large gets a block of its own behind it, so that the rest of the newest one is not
// wasted.
#include "base/arena.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum { ALIGN = 16, BLOCK = 8 * 1024, LARGE = BLOCK / 4 };

typedef struct block {
    struct block *next;
    size_t size, used;
    _Alignas(ALIGN) char bytes[];
} block;

struct po_arena {
    block *newest; // never NULL, and of BLOCK bytes
    size_t used;
};

static block *block_new(size_t size) {
    block *b = malloc(sizeof *b + size);
    if (!b)
        abort();
    b->next = NULL;
    b->size = size;
    b->used = 0;
    return b;
}

static void blocks_free(block *b) {
    while (b) {
        block *next = b->next;
        free(b);
        b = next;
    }
}

po_arena *po_arena_new(void) {
    po_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        abort();
    arena->newest = block_new(BLOCK);
    return arena;
}

void po_arena_free(po_arena **arena) {
    if (!*arena)
        return;
    blocks_free((*arena)->newest);
    free(*arena);
    *arena = NULL;
}

void po_arena_reset(po_arena *arena) {
    blocks_free(arena->newest->next);
    arena->newest->next = NULL;
    arena->newest->used = 0;
    arena->used = 0;
}

static block *block_for(po_arena *arena, size_t size) {
    block *newest = arena->newest;
    if (size <= newest->size - newest->used)
        return newest;
    block *b = block_new(size > LARGE ? size : BLOCK);
    if (size > LARGE) {
        b->next = newest->next;
        newest->next = b;
    } else {
        b->next = newest;
        arena->newest = b;
    }
    return b;
}

void *po_alloc(po_arena *arena, size_t size) {
    if (size > SIZE_MAX / 2)
        abort();
    size_t rounded = size ? (size + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    block *b = block_for(arena, rounded);
    char *piece = b->bytes + b->used;
    b->used += rounded;
    arena->used += rounded;
    return memset(piece, 0, rounded);
}

void *po_alloc_array(po_arena *arena, size_t n, size_t size) {
    size_t total;
    if (__builtin_mul_overflow(n, size, &total))
        abort();
    return po_alloc(arena, total);
}

po_str po_str_copy(po_arena *arena, po_str view) {
    char *copy = po_alloc(arena, view.n + 1);
    if (view.n)
        memcpy(copy, view.p, view.n);
    return (po_str){copy, view.n};
}

char *po_strdup(po_arena *arena, const char *text) {
    if (!text)
        return NULL;
    size_t n = strlen(text);
    return memcpy(po_alloc(arena, n + 1), text, n);
}

char *po_printf(po_arena *arena, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    assert(n >= 0);
    char *text = po_alloc(arena, (size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text;
}

size_t po_arena_used(const po_arena *arena) {
    return arena->used;
}
