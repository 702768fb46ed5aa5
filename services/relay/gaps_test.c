// The way of reading against its rules: small cases by name, then a model of PostgreSQL (ids drawn before commit,
// a table lock from before the draw until after the commit) under random transactions, limits and reconnects.
#include "gaps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static size_t ranges(const gaps *g) {
    const int64_t *lo, *hi;
    return gaps_ranges(g, &lo, &hi);
}

static void assert_range(const gaps *g, size_t i, int64_t lo, int64_t hi) {
    const int64_t *los, *his;
    assert_true(i < gaps_ranges(g, &los, &his));
    assert_int_equal(los[i], lo);
    assert_int_equal(his[i], hi);
}

#define LOOK(g, all, ...)                        \
    gaps_look(g, (const int64_t[]){__VA_ARGS__}, \
              sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), all, 1)
#define SAMPLE(g, ...)                              \
    gaps_sample(g, (const uint64_t[]){__VA_ARGS__}, \
                sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

static void test_consecutive_ids_leave_no_gap(void **state) {
    (void)state;
    gaps *g = gaps_new(10);
    assert_int_equal(LOOK(g, true, 11, 12, 13), 0);
    assert_int_equal(gaps_high(g), 13);
    assert_int_equal(ranges(g), 0);
    assert_false(gaps_want_sample(g));
    gaps_free(&g);
}

static void test_missing_ids_become_gaps(void **state) {
    (void)state;
    gaps *g = gaps_new(0);
    assert_int_equal(LOOK(g, true, 3, 4, 8), 0);
    assert_int_equal(ranges(g), 2);
    assert_range(g, 0, 1, 2);
    assert_range(g, 1, 5, 7);
    assert_true(gaps_unsampled(g));
    gaps_free(&g);
}

static void test_a_gap_nobody_holds_dies_at_the_next_look_only(void **state) {
    (void)state;
    gaps *g = gaps_new(0);
    assert_int_equal(LOOK(g, true, 3), 0);
    assert_true(gaps_sample(g, NULL, 0));
    assert_int_equal(ranges(g), 1); // its holder may have committed since the look
    assert_false(gaps_want_sample(g));
    assert_int_equal(gaps_look(g, NULL, 0, true, 1), 2);
    assert_int_equal(ranges(g), 0);
    gaps_free(&g);
}

static void test_a_row_found_after_the_sample_is_not_dead(void **state) {
    (void)state;
    gaps *g = gaps_new(0);
    assert_int_equal(LOOK(g, true, 3), 0);
    assert_true(gaps_sample(g, NULL, 0));
    assert_int_equal(LOOK(g, true, 1), 1); // 2 was rolled back
    assert_int_equal(ranges(g), 0);
    gaps_free(&g);
}

static void test_only_who_was_there_at_the_first_sample_holds(void **state) {
    (void)state;
    gaps *g = gaps_new(0);
    assert_int_equal(LOOK(g, true, 2), 0);
    assert_false(SAMPLE(g, 7, 9));
    assert_int_equal(gaps_look(g, NULL, 0, true, 1), 0);
    assert_true(SAMPLE(g, 9, 12)); // 7 is gone; 12 came later and cannot hold it
    assert_true(gaps_want_sample(g));
    assert_true(SAMPLE(g, 12));
    assert_false(gaps_want_sample(g));
    assert_int_equal(gaps_look(g, NULL, 0, true, 1), 1);
    gaps_free(&g);
}

static void test_a_limited_look_decides_only_up_to_its_last_id(void **state) {
    (void)state;
    gaps *g = gaps_new(0);
    assert_int_equal(LOOK(g, true, 5, 10, 20), 0);
    assert_true(gaps_sample(g, NULL, 0));
    assert_int_equal(LOOK(g, false, 7), 4 + 1); // 1–4 and 6
    assert_int_equal(ranges(g), 2);
    assert_range(g, 0, 8, 9);
    assert_range(g, 1, 11, 19);
    assert_int_equal(gaps_high(g), 20);
    assert_int_equal(LOOK(g, false, 21), 2 + 9); // the limit lay above all gaps
    assert_int_equal(ranges(g), 0);
    gaps_free(&g);
}

static void test_pieces_keep_their_holders(void **state) {
    (void)state;
    gaps *g = gaps_new(0);
    assert_int_equal(LOOK(g, true, 10), 0);
    assert_false(SAMPLE(g, 4));
    assert_int_equal(LOOK(g, true, 5), 0);
    assert_range(g, 0, 1, 4);
    assert_range(g, 1, 6, 9);
    assert_false(gaps_unsampled(g));
    assert_true(gaps_sample(g, NULL, 0));
    assert_int_equal(gaps_look(g, NULL, 0, true, 1), 8);
    gaps_free(&g);
}

static void test_a_new_session_knows_nothing_of_holders(void **state) {
    (void)state;
    gaps *g = gaps_new(0);
    assert_int_equal(LOOK(g, true, 3), 0);
    assert_true(gaps_sample(g, NULL, 0)); // checked empty
    gaps_forget_samples(g);
    assert_int_equal(gaps_look(g, NULL, 0, true, 1), 0);
    assert_int_equal(ranges(g), 1);
    assert_false(SAMPLE(g, 5)); // such as a prepared transaction that was recovered
    assert_true(gaps_want_sample(g));
    gaps_free(&g);
}

static void test_restored_gaps_are_unsampled_and_old(void **state) {
    (void)state;
    gaps *g = gaps_new(100);
    gaps_restore(g, 3, 5);
    gaps_restore(g, 90, 100);
    assert_true(gaps_unsampled(g));
    assert_int_equal(gaps_since_ms(g, 0), 0);
    assert_int_equal(LOOK(g, true, 4, 100, 101), 0);
    assert_int_equal(ranges(g), 3);
    assert_range(g, 2, 90, 99);
    gaps_free(&g);
}

// --- The model

enum { WRITERS = 14, STEPS = 15000, KEYS = 25 };

typedef struct model_row {
    enum { PENDING, COMMITTED, ROLLED_BACK } fate;
    int key; // −1: none
    bool relayed;
} model_row;

typedef struct writer {
    bool active, locked; // locked: holds the outbox's lock
    uint64_t vtx;
    int key; // whose row lock it holds, −1: none
    int64_t ids[4];
    int n;
} writer;

typedef struct model {
    model_row rows[STEPS * 2];
    int64_t last; // id
    writer writers[WRITERS];
    uint64_t next_vtx;
    int64_t relayed_of_key[KEYS];
    gaps *gaps;
    int64_t dead, relayed;
    unsigned seed;
} model;

static int dice(model *m, int sides) {
    return rand_r(&m->seed) % sides;
}

static bool key_locked(const model *m, int key) {
    for (int i = 0; i < WRITERS; i++)
        if (m->writers[i].active && m->writers[i].key == key)
            return true;
    return false;
}

static void end_writer(model *m, writer *w, bool commit) {
    for (int i = 0; i < w->n; i++)
        if (m->rows[w->ids[i]].fate == PENDING)
            m->rows[w->ids[i]].fate = commit ? COMMITTED : ROLLED_BACK;
    *w = (writer){0};
}

// Begins, takes its key's lock, takes the table's lock, draws ids, rolls back to a savepoint, ends.
static void step_writer(model *m, writer *w) {
    if (!w->active) {
        int key = dice(m, KEYS);
        if (key_locked(m, key))
            return; // waits for the row lock
        *w = (writer){.active = true, .vtx = m->next_vtx++, .key = key};
    } else if (!w->locked) {
        w->locked = true;
    } else if (w->n < 4 && dice(m, 3) > 0) {
        int64_t id = ++m->last;
        m->rows[id] = (model_row){.key = w->key};
        w->ids[w->n++] = id;
    } else if (w->n > 0 && dice(m, 8) == 0) {
        m->rows[w->ids[w->n - 1]].fate = ROLLED_BACK; // savepoint
    } else {
        end_writer(m, w, dice(m, 100) >= 20);
    }
}

static void model_look(model *m) {
    int64_t ids[64];
    size_t limit = (size_t)1 + (size_t)dice(m, dice(m, 2) ? 4 : 60), n = 0, range = 0;
    const int64_t *lo, *hi;
    size_t n_ranges = gaps_ranges(m->gaps, &lo, &hi);
    for (int64_t id = 1; id <= m->last && n < limit; id++) {
        while (range < n_ranges && hi[range] < id)
            range++;
        bool wanted = id > gaps_high(m->gaps) || (range < n_ranges && lo[range] <= id);
        if (wanted && m->rows[id].fate == COMMITTED)
            ids[n++] = id;
    }
    m->dead += gaps_look(m->gaps, ids, n, n < limit, 1);
    for (size_t i = 0; i < n; i++) {
        model_row *row = &m->rows[ids[i]];
        assert_false(row->relayed);
        row->relayed = true;
        assert_true(ids[i] > m->relayed_of_key[row->key]); // order per key
        m->relayed_of_key[row->key] = ids[i];
        m->relayed++;
    }
}

static void model_sample(model *m) {
    uint64_t holders[WRITERS];
    size_t n = 0;
    for (int i = 0; i < WRITERS; i++)
        if (m->writers[i].locked)
            holders[n++] = m->writers[i].vtx;
    for (size_t i = 1; i < n; i++) // ascending
        for (size_t j = i; j > 0 && holders[j] < holders[j - 1]; j--) {
            uint64_t swap = holders[j];
            holders[j] = holders[j - 1];
            holders[j - 1] = swap;
        }
    (void)gaps_sample(m->gaps, holders, n);
}

// A relay that died begins again at its floor, its open ranges unsampled.
static void model_restart(model *m) {
    const int64_t *lo, *hi;
    size_t n = gaps_ranges(m->gaps, &lo, &hi);
    gaps *fresh = gaps_new(gaps_high(m->gaps));
    for (size_t i = 0; i < n; i++)
        gaps_restore(fresh, lo[i], hi[i]);
    gaps_free(&m->gaps);
    m->gaps = fresh;
}

static void model_step(model *m) {
    int what = dice(m, 100);
    if (what < 80)
        step_writer(m, &m->writers[dice(m, WRITERS)]);
    else if (what < 90)
        model_look(m);
    else if (what < 99)
        model_sample(m);
    else if (dice(m, 2))
        gaps_forget_samples(m->gaps);
    else
        model_restart(m);
}

static void assert_all_settled(const model *m) {
    int64_t committed = 0, dead = 0;
    for (int64_t id = 1; id <= m->last; id++) {
        assert_int_equal(m->rows[id].relayed, m->rows[id].fate == COMMITTED);
        committed += m->rows[id].fate == COMMITTED;
        dead += m->rows[id].fate == ROLLED_BACK && id < gaps_high(m->gaps);
    }
    assert_int_equal(m->relayed, committed);
    assert_int_equal(m->dead, dead);
    assert_int_equal(ranges(m->gaps), 0);
    assert_true(committed > 1500);
}

static void test_random_transactions_are_relayed_once_and_in_order(void **state) {
    (void)state;
    static model m;
    for (unsigned seed = 1; seed <= 12; seed++) {
        memset(&m, 0, sizeof m);
        m.seed = seed;
        m.next_vtx = 1;
        m.gaps = gaps_new(0);
        for (int i = 0; i < STEPS; i++)
            model_step(&m);
        for (int i = 0; i < WRITERS; i++)
            if (m.writers[i].active)
                end_writer(&m, &m.writers[i], i % 2 == 0);
        for (int i = 0; i < 2000 && (i < 3 || ranges(m.gaps) > 0 || i % 100 != 0); i++) {
            model_look(&m);
            model_sample(&m);
        }
        assert_all_settled(&m);
        gaps_free(&m.gaps);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_consecutive_ids_leave_no_gap),
        cmocka_unit_test(test_missing_ids_become_gaps),
        cmocka_unit_test(test_a_gap_nobody_holds_dies_at_the_next_look_only),
        cmocka_unit_test(test_a_row_found_after_the_sample_is_not_dead),
        cmocka_unit_test(test_only_who_was_there_at_the_first_sample_holds),
        cmocka_unit_test(test_a_limited_look_decides_only_up_to_its_last_id),
        cmocka_unit_test(test_pieces_keep_their_holders),
        cmocka_unit_test(test_a_new_session_knows_nothing_of_holders),
        cmocka_unit_test(test_restored_gaps_are_unsampled_and_old),
        cmocka_unit_test(test_random_transactions_are_relayed_once_and_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
