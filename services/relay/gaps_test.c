// The way of reading against its rules, small cases by name; model_test.c has the storms.
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
