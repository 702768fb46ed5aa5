// Facts merge commutatively and idempotently, and many of them cost no more than many of them.
#include "decision/evaluate.h"
#include "decision/fact_samples.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

static po_arena *arena;

static int setup(void **state) {
    (void)state;
    arena = po_arena_new();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    po_arena_free(&arena);
    return 0;
}

static fact merge_two(const fact *a, const fact *b) {
    fact_set set;
    fact_set_init(&set, arena);
    assert_true(fact_set_merge(&set, a));
    fact_set_merge(&set, b);
    assert_false(fact_set_merge(&set, a));
    assert_false(fact_set_merge(&set, b));
    assert_int_equal(set.n, 1);
    return set.facts[0];
}

static fact merge_both_ways(fact a, fact b) {
    fact ab = merge_two(&a, &b), ba = merge_two(&b, &a);
    assert_int_equal(ab.state, ba.state);
    assert_int_equal(ab.rank, ba.rank);
    assert_int_equal(ab.canceled_seen, ba.canceled_seen);
    assert_int_equal(ab.waived, ba.waived);
    assert_true(ab.amount == ba.amount && ab.amount_most == ba.amount_most);
    assert_true(ab.discount == ba.discount && ab.at_us == ba.at_us);
    assert_true(ab.total == ba.total && ab.tax == ba.tax && ab.shipping == ba.shipping);
    assert_true(ab.failed_at_us == ba.failed_at_us);
    assert_true(po_str_eq(ab.payment, ba.payment) && po_str_eq(ab.charge, ba.charge));
    return ab;
}

// P7, and report 19: updated before created.
static void the_highest_rank_wins(void **state) {
    (void)state;
    fact f = merge_both_ways(unpaid("p1", STATE_PENDING, 1), paid("p1", 4900, 300));
    assert_int_equal(f.state, STATE_PAID);
    assert_int_equal(
        f.at_us,
        300 * PO_SECOND_US); // the winning state's own time, not the earlier of a weaker one
    f = merge_both_ways(paid("p1", 4900, 300), paid("p1", 4900, 200));
    assert_int_equal(f.at_us, 200 * PO_SECOND_US);
    f = merge_both_ways(refund("r1", "p1", STATE_PAID, 10, 1),
                        refund("r1", "p1", STATE_FAILED, 10, 1));
    assert_int_equal(f.state, STATE_FAILED);
}

static void a_cancel_stays_seen_beside_a_settle(void **state) {
    (void)state;
    fact f = merge_both_ways(unpaid("p1", STATE_CANCELED, 4), paid("p1", 4900, 100));
    assert_int_equal(f.state, STATE_PAID);
    assert_true(f.canceled_seen);
}

static void amounts_keep_both_ends_and_missing_ones_lose(void **state) {
    (void)state;
    fact f = merge_both_ways(paid("p1", 4900, 100), paid("p1", 5000, 100));
    assert_int_equal(f.amount, 4900);
    assert_int_equal(f.amount_most, 5000);
    f = merge_both_ways(paid("p1", NO_AMOUNT, 100), paid("p1", 5000, 100));
    assert_int_equal(f.amount, 5000);
    assert_int_equal(f.amount_most, 5000);
    f = merge_both_ways(discounted(paid("p1", 1, 100), 7), waived(paid("p1", 1, 100)));
    assert_int_equal(f.discount, 7);
    assert_true(f.waived);
    f = merge_both_ways(refund("r1", "", STATE_PAID, 10, 1), refund("r1", "p1", STATE_PAID, 10, 1));
    assert_true(po_str_is(f.payment, "p1"));
}

static void extras_are_the_largest_stated(void **state) {
    (void)state;
    fact f = merge_both_ways(extras(paid("p1", 5831, 100), 931, 0),
                             extras(paid("p1", 5400, 100), 0, 500));
    assert_int_equal(f.total, 5831);
    assert_int_equal(f.tax, 931);
    assert_int_equal(f.shipping, 500);
}

// When a refund was made does not hang on what became of it; that it failed has a time of its own.
static void a_refund_has_two_times(void **state) {
    (void)state;
    fact f =
        merge_both_ways(refund("r1", "p1", STATE_PAID, 10, 150), failed("r1", "p1", 10, 150, 300));
    assert_int_equal(f.at_us, 150 * PO_SECOND_US);
    assert_int_equal(f.failed_at_us, 300 * PO_SECOND_US);
    f = merge_both_ways(failed("r1", "p1", 10, 150, 300), failed("r1", "p1", 10, 150, 250));
    assert_int_equal(f.failed_at_us, 250 * PO_SECOND_US);
    f = merge_both_ways(refund("r1", "p1", STATE_PENDING, 10, 140), failed("r1", "p1", 10, 150, 0));
    assert_int_equal(f.at_us, 140 * PO_SECOND_US);
    assert_int_equal(f.failed_at_us, 0);
    f = merge_both_ways(of_charge(refund("r1", "p1", STATE_PAID, 10, 1), "c1"),
                        refund("r1", "p1", STATE_PAID, 10, 1));
    assert_true(po_str_is(f.charge, "c1"));
}

static void a_running_total_is_the_last_one_stated(void **state) {
    (void)state;
    fact f =
        merge_both_ways(refund_total("c", "p1", 2000, 200), refund_total("c", "p1", 1000, 300));
    assert_int_equal(f.amount, 1000);
    assert_int_equal(f.amount_most, 1000);
    assert_int_equal(f.at_us, 300 * PO_SECOND_US);
    f = merge_both_ways(refund_total("c", "p1", 2000, 200), refund_total("c", "", 1000, 200));
    assert_int_equal(f.amount, 2000);
    assert_true(po_str_is(f.payment, "p1"));
}

// FAULTS 25: stored until now as a fact per statement, which a program of before may still write
// beside the one of today.
static void running_totals_of_before_are_read_as_the_charges(void **state) {
    (void)state;
    fact stored[] = {
        refund_total("ch_1", "p1", 2000, 300), refund_total("ch_1:1000", "p1", 1000, 200),
        refund_total("ch_1:3000", "p1", 3000, 400), refund_total("ch_2:500", "p1", 500, 100),
        refund_total("ch_3:7", "p1", 70, 100)};
    fact_set set;
    fact_set_init(&set, arena);
    for (size_t i = 0; i < 5; i++)
        fact_set_load(&set, &stored[i]);
    assert_int_equal(set.n, 3);
    assert_true(po_str_is(set.facts[0].object, "ch_1"));
    assert_int_equal(set.facts[0].amount, 3000);
    assert_int_equal(set.facts[0].at_us, 400 * PO_SECOND_US);
    assert_true(po_str_is(set.facts[1].object, "ch_2"));
    assert_true(po_str_is(set.facts[2].object, "ch_3:7")); // no statement of 7
    assert_false(set.dirty[0] || set.dirty[1] || set.dirty[2]);
    fact again = refund_total("ch_1", "p1", 3000, 400), more = refund_total("ch_2", "p1", 900, 500);
    assert_false(fact_set_merge(&set, &again));
    assert_true(fact_set_merge(&set, &more));
    assert_int_equal(set.n, 3);
    assert_true(set.dirty[1]);
}

static void only_what_changed_is_dirty(void **state) {
    (void)state;
    fact_set set;
    fact_set_init(&set, arena);
    fact stored[] = {paid("p2", 1, 100), unpaid("p1", STATE_PENDING, 1)};
    fact_set_load(&set, &stored[0]);
    fact_set_load(&set, &stored[1]);
    fact weaker = unpaid("p2", STATE_PENDING, 1), stronger = paid("p1", 2, 100);
    assert_false(fact_set_merge(&set, &weaker));
    assert_true(fact_set_merge(&set, &stronger));
    assert_true(set.dirty[0] && po_str_is(set.facts[0].object, "p1"));
    assert_false(set.dirty[1]);
}

// A key is (provider, account, kind, object, unit): differing in one of them is another fact.
static void keys_are_told_apart(void **state) {
    (void)state;
    fact facts[] = {paid("p1", 1, 1),
                    paid("p1", 1, 1),
                    in_unit(paid("p1", 1, 1), EUR),
                    paid("p10", 1, 1),
                    sample(FACT_REFUND, "p1", 1),
                    paid("p1", 1, 1),
                    in_unit(paid("p1", 1, 1), (po_unit){.currency = "USD"})};
    facts[1].account = po_s("shop2");
    facts[5].provider = po_s("lightning");
    fact_set set;
    fact_set_init(&set, arena);
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        assert_true(fact_set_merge(&set, &facts[i]));
    assert_int_equal(set.n, sizeof facts / sizeof *facts);
}

// Kinds sort by name, so that a database can deliver the order of a set.
static void kinds_sort_by_name(void **state) {
    (void)state;
    static const fact_kind kinds[] = {FACT_REFUND, FACT_PAYMENT, FACT_EXPIRY, FACT_REFUND_TOTAL,
                                      FACT_MISMATCH};
    fact_set set;
    fact_set_init(&set, arena);
    for (size_t i = 0; i < 5; i++) {
        fact f = sample(kinds[i], "x", 1);
        fact_set_merge(&set, &f);
    }
    for (size_t i = 1; i < set.n; i++)
        assert_true(
            strcmp(fact_kind_name(set.facts[i - 1].kind), fact_kind_name(set.facts[i].kind)) < 0);
}

static void a_paid_payment_is_found(void **state) {
    (void)state;
    fact facts[] = {paid("p1", 1, 1), unpaid("p2", STATE_PENDING, 1),
                    refund("r1", "p3", STATE_PAID, 1, 1)};
    fact_set set;
    fact_set_init(&set, arena);
    assert_false(fact_set_has_paid(&set, po_s("stripe"), po_s("shop"), po_s("p1")));
    for (size_t i = 0; i < 3; i++)
        fact_set_merge(&set, &facts[i]);
    assert_true(fact_set_has_paid(&set, po_s("stripe"), po_s("shop"), po_s("p1")));
    assert_false(fact_set_has_paid(&set, po_s("stripe"), po_s("shop2"), po_s("p1")));
    assert_false(fact_set_has_paid(&set, po_s("stripe"), po_s("shop"), po_s("p2")));
    assert_false(fact_set_has_paid(&set, po_s("stripe"), po_s("shop"), po_s("p3")));
}

// Thousands of facts of one order, loaded in order, in reverse, and scattered, come to the same
// position.
static void many_facts_are_merely_slower(void **state) {
    (void)state;
    enum { MANY = 5000 };
    for (int way = 0; way < 3; way++) {
        fact_set set;
        fact_set_init(&set, arena);
        for (int i = 0; i < MANY; i++) {
            int k = way == 0 ? i : way == 1 ? MANY - 1 - i : (int)((int64_t)i * 7919 % MANY);
            fact f = k % 2 ? refund(po_printf(arena, "r%05d", k), po_printf(arena, "p%05d", k - 1),
                                    STATE_PAID, 1, 20000 - k)
                           : paid(po_printf(arena, "p%05d", k), 3, k);
            fact_set_load(&set, &f);
        }
        order o = order_for(MANY);
        position p = evaluate(&o, &set);
        assert_int_equal(set.n, MANY);
        assert_int_equal(p.received, MANY / 2 * 3);
        assert_int_equal(p.refunded, MANY / 2);
        assert_int_equal(p.state, ORDER_PAID);
    }
}

static void names_read_back(void **state) {
    (void)state;
    order_state s = ORDER_OPEN;
    verdict v = VERDICT_NONE;
    fact_kind k = FACT_PAYMENT;
    fact_state f = STATE_PENDING;
    assert_true(order_state_parse(po_s("review"), &s) && s == ORDER_REVIEW);
    assert_true(verdict_parse(po_s("underpaid"), &v) && v == VERDICT_UNDERPAID);
    assert_true(fact_kind_parse(po_s("refund_total"), &k) && k == FACT_REFUND_TOTAL);
    assert_true(fact_state_parse(po_s("held"), &f) && f == STATE_HELD);
    assert_false(order_state_parse(po_s(""), &s) || fact_state_parse(po_s("PAID"), &f));
    for (const rule *r = rules; r->sign; r++)
        assert_string_equal(reason_static(po_s(r->reason)), r->reason);
    assert_string_equal(reason_static(po_s("nonsense")), "");
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_highest_rank_wins),
        TEST(a_cancel_stays_seen_beside_a_settle),
        TEST(amounts_keep_both_ends_and_missing_ones_lose),
        TEST(extras_are_the_largest_stated),
        TEST(a_refund_has_two_times),
        TEST(a_running_total_is_the_last_one_stated),
        TEST(running_totals_of_before_are_read_as_the_charges),
        TEST(only_what_changed_is_dirty),
        TEST(keys_are_told_apart),
        TEST(kinds_sort_by_name),
        TEST(a_paid_payment_is_found),
        TEST(many_facts_are_merely_slower),
        TEST(names_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
