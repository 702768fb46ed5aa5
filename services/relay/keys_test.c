// One row of a key on its way, the others behind it, in order.
#include "keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static struct topic *const T1 = (struct topic *)0x1000, *const T2 = (struct topic *)0x2000;

static void test_a_second_row_waits_and_takes_over(void **state) {
    (void)state;
    keys *k = keys_new();
    key *head = keys_add(k, T1, po_s("a"), 1, 10);
    assert_non_null(head);
    assert_null(keys_add(k, T1, po_s("a"), 2, 11));
    assert_null(keys_add(k, T1, po_s("a"), 5, 12));
    assert_int_equal(keys_count(k), 1);
    assert_int_equal(keys_waiting(k), 2);
    head->alone = head->reported = true;
    head->state = KEY_SENT;
    assert_ptr_equal(keys_finish(k, head), head);
    assert_int_equal(head->id, 2);
    assert_int_equal(head->since_ms, 11);
    assert_int_equal(head->state, KEY_READY);
    assert_false(head->alone || head->reported); // that was the row's, not the key's
    assert_ptr_equal(keys_finish(k, head), head);
    assert_int_equal(head->id, 5);
    assert_null(keys_finish(k, head));
    assert_int_equal(keys_count(k), 0);
    assert_int_equal(keys_waiting(k), 0);
    keys_free(&k);
}

static void test_the_same_key_of_two_topics_is_two_keys(void **state) {
    (void)state;
    keys *k = keys_new();
    assert_non_null(keys_add(k, T1, po_s("a"), 1, 0));
    assert_non_null(keys_add(k, T2, po_s("a"), 2, 0));
    assert_non_null(keys_add(k, T1, po_s("aa"), 3, 0));
    assert_non_null(keys_add(k, T1, (po_str){"a\0", 2}, 4, 0));
    assert_int_equal(keys_count(k), 4);
    keys_free(&k);
}

static void sum(void *arg, int64_t id, int64_t since_ms) {
    (void)since_ms;
    *(int64_t *)arg += id;
}

static void test_each_visits_heads_and_waiting(void **state) {
    (void)state;
    keys *k = keys_new();
    int64_t total = 0;
    keys_add(k, T1, po_s("a"), 1, 0);
    keys_add(k, T1, po_s("a"), 10, 0);
    keys_add(k, T1, po_s("b"), 100, 0);
    keys_each(k, sum, &total);
    assert_int_equal(total, 111);
    assert_int_equal(keys_longest(k)->id, 1);
    keys_free(&k);
}

// Random rows of few and of many keys, against a queue per key.
static void test_random_rows_keep_their_order(void **state) {
    (void)state;
    enum { KEYS = 3000, STEPS = 60000 };
    static key *heads[KEYS];
    static int64_t last[KEYS], due[KEYS];
    unsigned seed = 7;
    int64_t id = 0, added = 0, finished = 0;
    keys *k = keys_new();
    for (int i = 0; i < STEPS || keys_count(k) > 0; i++) {
        int at = rand_r(&seed) % (i % 3 ? KEYS : 10);
        char name[16];
        snprintf(name, sizeof name, "order-%d", at);
        if (i < STEPS && rand_r(&seed) % 2) {
            key *one = keys_add(k, T1, po_s(name), ++id, 0);
            assert_int_equal(one != NULL, due[at] == 0);
            if (one)
                heads[at] = one;
            due[at]++;
            added++;
        } else if (due[at] > 0) {
            assert_true(heads[at]->id > last[at]);
            last[at] = heads[at]->id;
            heads[at] = keys_finish(k, heads[at]);
            due[at]--;
            finished++;
            assert_int_equal(heads[at] != NULL, due[at] > 0);
        }
    }
    assert_int_equal(added, finished);
    assert_int_equal(keys_waiting(k), 0);
    keys_free(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_second_row_waits_and_takes_over),
        cmocka_unit_test(test_the_same_key_of_two_topics_is_two_keys),
        cmocka_unit_test(test_each_visits_heads_and_waiting),
        cmocka_unit_test(test_random_rows_keep_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
