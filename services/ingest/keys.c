// Keys of a batch: repeats inside it are folded, repeats of what was recorded before are told from
// events that say something else.
#include "batch.h"
#include <stdlib.h>

static int compare_keys(const event *a, const event *b) {
    int c = po_str_cmp(a->provider, b->provider);
    if (!c)
        c = po_str_cmp(a->alias, b->alias);
    return c ? c : po_str_cmp(a->obs.event_id, b->obs.event_id);
}

typedef struct keyed {
    event *event;
    size_t index;
} keyed;

static int compare_keyed(const void *a, const void *b) {
    const keyed *x = a, *y = b;
    int c = compare_keys(x->event, y->event);
    return c ? c : (x->index > y->index) - (x->index < y->index);
}

void keys_sort(batch *b) {
    keyed *sorted = po_alloc_array(b->arena, b->n, sizeof *sorted);
    for (size_t i = 0; i < b->n; i++)
        sorted[i] = (keyed){b->events[i], i};
    qsort(sorted, b->n, sizeof *sorted, compare_keyed);
    b->keys = po_alloc_array(b->arena, b->n, sizeof *b->keys);
    b->unique = po_alloc_array(b->arena, b->n, sizeof *b->unique);
    for (size_t i = 0; i < b->n; i++) {
        b->keys[i] = sorted[i].event;
        if (i == 0 || compare_keys(b->keys[i - 1], b->keys[i]) != 0)
            b->unique[b->n_unique++] = b->keys[i];
    }
}

// The key in the columns `first` … of a row.
static event row_key(const po_res *rows, int row, int first) {
    return (event){.provider = po_res_text(rows, row, first),
                   .alias = po_res_text(rows, row, first + 1),
                   .obs.event_id = po_res_text(rows, row, first + 2)};
}

void keys_note_recorded(batch *b, const po_res *rows) {
    for (size_t i = 0; i < b->n; i++) {
        b->events[i]->id = 0;
        b->events[i]->same = EVENT_DUPLICATE;
    }
    for (int row = 0; row < po_res_rows(rows); row++) {
        event key = row_key(rows, row, 1);
        size_t low = 0, high = b->n_unique;
        while (low < high) {
            size_t middle = (low + high) / 2;
            if (compare_keys(b->unique[middle], &key) < 0)
                low = middle + 1;
            else
                high = middle;
        }
        b->unique[low]->id = po_res_i64(rows, row, 0);
        b->unique[low]->same = EVENT_RECORDED;
    }
}

event **keys_repeats(const batch *b, size_t *ret_n) {
    event **repeats = po_alloc_array(b->arena, b->n_unique + 1, sizeof *repeats);
    *ret_n = 0;
    for (size_t i = 0; i < b->n_unique; i++)
        if (!b->unique[i]->id)
            repeats[(*ret_n)++] = b->unique[i];
    return repeats;
}

static void judge_repeats(batch *b, size_t first, size_t end, const uint8_t *stored) {
    for (size_t i = first; i < end; i++) {
        if (b->keys[i]->same != EVENT_RECORDED) {
            b->keys[i]->same =
                memcmp(b->keys[i]->obs.digest, stored, 32) == 0 ? EVENT_DUPLICATE : EVENT_CONFLICT;
        }
    }
}

// Same or different: against the recorded digest, wherever it was recorded.
bool keys_note_same(batch *b, const po_res *stored, po_err *err) {
    int row = 0;
    for (size_t first = 0, end; first < b->n; first = end) {
        for (end = first + 1; end < b->n && compare_keys(b->keys[first], b->keys[end]) == 0;
             end++) {
        }
        const event *recorded = b->keys[first];
        if (recorded->same == EVENT_RECORDED) {
            judge_repeats(b, first, end, recorded->obs.digest);
            continue;
        }
        bool more = stored && row < po_res_rows(stored);
        event key = more ? row_key(stored, row, 0) : (event){0};
        po_str digest = more ? po_res_bytea(stored, row++, 3) : (po_str){0};
        if (digest.n != 32 || compare_keys(&key, recorded) != 0) {
            return po_fail(err, PO_RETRY, "40001", "event %s was neither inserted nor found",
                           recorded->obs.event_id.p);
        }
        judge_repeats(b, first, end, (const uint8_t *)digest.p);
    }
    return true;
}

// As its unique key sorts: two sessions that are told the same conflicts take them in one order.
static int compare_conflicts(const void *a, const void *b) {
    const event *x = *(event *const *)a, *y = *(event *const *)b;
    int c = compare_keys(x, y);
    return c ? c : memcmp(x->obs.digest, y->obs.digest, sizeof x->obs.digest);
}

event **keys_conflicts(const batch *b, size_t *ret_n) {
    event **conflicts = po_alloc_array(b->arena, b->n + 1, sizeof *conflicts);
    *ret_n = 0;
    for (size_t i = 0; i < b->n; i++)
        if (b->keys[i]->same == EVENT_CONFLICT)
            conflicts[(*ret_n)++] = b->keys[i];
    qsort(conflicts, *ret_n, sizeof *conflicts, compare_conflicts);
    return conflicts;
}
