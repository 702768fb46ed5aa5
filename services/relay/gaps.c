// Ranges live in parallel arrays, because their bounds are parameters of the next look as they are. A look merges
// them with the ids it returned into a second set of arrays, which then takes the place of the first.
// All gaps that were unsampled at one sample share one set of holders, counted by reference: pieces of a gap keep it.
#include "gaps.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

// H of the gaps that were first sampled together. None of them once empty.
typedef struct holders {
    struct holders *next;
    size_t refs; // gaps
    size_t n;
    uint64_t ids[]; // ascending
} holders;

typedef enum mark { UNSAMPLED, HELD, CHECKED_EMPTY } mark;

typedef struct gap_mark {
    mark mark;
    holders *by; // HELD only
    int64_t since_ms;
} gap_mark;

typedef struct ranges {
    int64_t *lo, *hi;
    gap_mark *marks;
    size_t n, cap;
} ranges;

struct gaps {
    int64_t high;
    ranges now, next; // next: where a look merges to
    holders *sets;
};

static void *grow(void *p, size_t n, size_t size) {
    p = reallocarray(p, n, size);
    if (!p)
        abort();
    return p;
}

static void ranges_add(ranges *r, int64_t lo, int64_t hi, gap_mark mark) {
    if (r->n == r->cap) {
        r->cap = r->cap ? r->cap * 2 : 64;
        r->lo = grow(r->lo, r->cap, sizeof *r->lo);
        r->hi = grow(r->hi, r->cap, sizeof *r->hi);
        r->marks = grow(r->marks, r->cap, sizeof *r->marks);
    }
    if (mark.by)
        mark.by->refs++;
    r->lo[r->n] = lo;
    r->hi[r->n] = hi;
    r->marks[r->n] = mark;
    r->n++;
}

static void ranges_clear(ranges *r) {
    for (size_t i = 0; i < r->n; i++)
        if (r->marks[i].by)
            r->marks[i].by->refs--;
    r->n = 0;
}

static void ranges_done(ranges *r) {
    free(r->lo);
    free(r->hi);
    free(r->marks);
}

static void sets_sweep(gaps *g, bool all) {
    for (holders **at = &g->sets; *at;) {
        holders *set = *at;
        if (set->refs > 0 && !all) {
            at = &set->next;
            continue;
        }
        *at = set->next;
        free(set);
    }
}

gaps *gaps_new(int64_t high) {
    gaps *g = calloc(1, sizeof *g);
    if (!g)
        abort();
    g->high = high;
    return g;
}

void gaps_free(gaps **gaps) {
    if (!*gaps)
        return;
    sets_sweep(*gaps, true);
    ranges_done(&(*gaps)->now);
    ranges_done(&(*gaps)->next);
    free(*gaps);
    *gaps = NULL;
}

void gaps_restore(gaps *g, int64_t lo, int64_t hi) {
    assert(lo <= hi && hi <= g->high && (g->now.n == 0 || g->now.hi[g->now.n - 1] < lo));
    ranges_add(&g->now, lo, hi, (gap_mark){0});
}

int64_t gaps_high(const gaps *g) {
    return g->high;
}

size_t gaps_ranges(const gaps *g, const int64_t **ret_lo, const int64_t **ret_hi) {
    *ret_lo = g->now.lo;
    *ret_hi = g->now.hi;
    return g->now.n;
}

int64_t gaps_since_ms(const gaps *g, size_t range) {
    assert(range < g->now.n);
    return g->now.marks[range].since_ms;
}

// --- The look

typedef struct look {
    int64_t covered; // the look speaks for every id up to this one
    int64_t dead;
} look;

// What is left of a gap between two returned ids, or at its ends.
static void keep_piece(gaps *g, look *look, int64_t lo, int64_t hi, gap_mark mark) {
    if (lo > hi)
        return;
    if (mark.mark == CHECKED_EMPTY && hi <= look->covered)
        look->dead += hi - lo + 1;
    else
        ranges_add(&g->next, lo, hi, mark);
}

// Takes the returned ids out of one gap; returns the first id that is not in it.
static size_t merge_gap(gaps *g, look *look, size_t range, const int64_t *ids, size_t n,
                        size_t at) {
    int64_t lo = g->now.lo[range], hi = g->now.hi[range];
    for (; at < n && ids[at] <= hi; at++) {
        assert(ids[at] >= lo); // a row is never read twice
        keep_piece(g, look, lo, ids[at] - 1, g->now.marks[range]);
        lo = ids[at] + 1;
    }
    keep_piece(g, look, lo, hi, g->now.marks[range]);
    return at;
}

int64_t gaps_look(gaps *g, const int64_t *ids, size_t n, bool all, int64_t now_ms) {
    look look = {.covered = all ? INT64_MAX : n > 0 ? ids[n - 1] : 0};
    size_t at = 0;
    for (size_t range = 0; range < g->now.n; range++)
        at = merge_gap(g, &look, range, ids, n, at);
    for (; at < n; at++) {
        assert(ids[at] > g->high);
        keep_piece(g, &look, g->high + 1, ids[at] - 1, (gap_mark){.since_ms = now_ms});
        g->high = ids[at];
    }
    ranges old = g->now;
    ranges_clear(&old);
    g->now = g->next;
    g->next = old;
    return look.dead;
}

// --- The sample

bool gaps_want_sample(const gaps *g) {
    for (size_t i = 0; i < g->now.n; i++)
        if (g->now.marks[i].mark != CHECKED_EMPTY)
            return true;
    return false;
}

bool gaps_unsampled(const gaps *g) {
    for (size_t i = 0; i < g->now.n; i++)
        if (g->now.marks[i].mark == UNSAMPLED)
            return true;
    return false;
}

// Keeps of the set who is still there; both are ascending.
static bool set_intersect(holders *set, const uint64_t *ids, size_t n) {
    size_t kept = 0, at = 0, before = set->n;
    for (size_t i = 0; i < set->n; i++) {
        while (at < n && ids[at] < set->ids[i])
            at++;
        if (at < n && ids[at] == set->ids[i])
            set->ids[kept++] = set->ids[i];
    }
    set->n = kept;
    return kept < before;
}

static holders *set_new(gaps *g, const uint64_t *ids, size_t n) {
    holders *set = malloc(sizeof *set + n * sizeof *ids);
    if (!set)
        abort();
    *set = (holders){.next = g->sets, .n = n};
    if (n > 0)
        memcpy(set->ids, ids, n * sizeof *ids);
    g->sets = set;
    return set;
}

bool gaps_sample(gaps *g, const uint64_t *ids, size_t n) {
    bool shrunk = false;
    for (holders *set = g->sets; set; set = set->next)
        shrunk |= set_intersect(set, ids, n);
    holders *fresh = NULL;
    for (size_t i = 0; i < g->now.n; i++) {
        gap_mark *mark = &g->now.marks[i];
        if (mark->mark == UNSAMPLED) {
            if (!fresh)
                fresh = set_new(g, ids, n);
            mark->mark = HELD;
            mark->by = fresh;
            fresh->refs++;
        }
        if (mark->mark == HELD && mark->by->n == 0) {
            mark->by->refs--;
            mark->by = NULL;
            mark->mark = CHECKED_EMPTY;
            shrunk = true;
        }
    }
    sets_sweep(g, false);
    return shrunk;
}

void gaps_forget_samples(gaps *g) {
    for (size_t i = 0; i < g->now.n; i++) {
        g->now.marks[i].mark = UNSAMPLED;
        g->now.marks[i].by = NULL;
    }
    sets_sweep(g, true);
}
