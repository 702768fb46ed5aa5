// Positions: what a set of facts amounts to, one rule after the other. That arrival does not matter
// is decide_test's.
#include "decision/fact_samples.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

#define FACTS_MAX 6

typedef struct row {
    const char *name;
    fact facts[FACTS_MAX];
    order_state state;
    verdict verdict;
    const char *reason;
    int64_t due, received, refunded;
} row;

static position evaluate_facts(const order *o, const fact *facts, size_t n) {
    po_arena *arena = po_arena_new();
    fact_set set;
    fact_set_init(&set, arena);
    for (size_t i = 0; i < n && facts[i].provider.n; i++)
        fact_set_merge(&set, &facts[i]);
    position p = evaluate(o, &set);
    po_arena_free(&arena);
    return p;
}

static void check(const order *o, const row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const row *r = &rows[i];
        position p = evaluate_facts(o, r->facts, FACTS_MAX);
        if (p.state != r->state || p.verdict != r->verdict || strcmp(p.reason, r->reason) != 0 ||
            p.due != r->due || p.received != r->received || p.refunded != r->refunded)
            fail_msg("%s: %s/%s/\"%s\" due %lld received %lld refunded %lld", r->name,
                     order_state_name(p.state), verdict_name(p.verdict), p.reason, (long long)p.due,
                     (long long)p.received, (long long)p.refunded);
    }
}
#define CHECK(o, rows) check(o, rows, sizeof(rows) / sizeof *(rows))

static void paid_means_that_due_was_reached_at_some_moment(void **state) {
    (void)state;
    order o = order_for(4900);
    const row rows[] = {
        {"no fact", {{0}}, ORDER_OPEN, VERDICT_NONE, "", 4900, 0, 0},
        {"exact", {paid("p1", 4900, 100)}, ORDER_PAID, VERDICT_QUALIFIED, "", 4900, 4900, 0},
        {"short",
         {paid("p1", 4899, 100)},
         ORDER_REVIEW,
         VERDICT_UNDERPAID,
         "underpaid",
         4900,
         4899,
         0},
        {"over", {paid("p1", 4901, 100)}, ORDER_PAID, VERDICT_QUALIFIED, "", 4900, 4901, 0},
        {"topped up",
         {paid("p1", 3000, 100), paid("p2", 1900, 200)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         0},
        {"paid twice",
         {paid("p1", 4900, 100), paid("p2", 4900, 90)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         9800,
         0},
        {"refunded after",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PAID, 4900, 200)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         4900},
        {"refunded before the top-up",
         {paid("p1", 3000, 100), refund("r1", "p1", STATE_PAID, 1000, 150), paid("p2", 1900, 200)},
         ORDER_REVIEW,
         VERDICT_UNDERPAID,
         "underpaid",
         4900,
         4900,
         1000},
        {"refunded behind the top-up",
         {paid("p1", 3000, 100), refund("r1", "p1", STATE_PAID, 1000, 250), paid("p2", 1900, 200)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         1000},
        {"payments first on a tie",
         {paid("p1", 3000, 100), refund("r1", "p1", STATE_PAID, 1000, 200), paid("p2", 1900, 200)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         1000},
        {"short, then refunded",
         {paid("p1", 3000, 100), refund("r1", "p1", STATE_PAID, 3000, 200)},
         ORDER_REVIEW,
         VERDICT_UNDERPAID,
         "underpaid",
         4900,
         3000,
         3000},
        {"a failed refund never was",
         {paid("p1", 3000, 100), refund("r1", "p1", STATE_FAILED, 1000, 150),
          paid("p2", 1900, 200)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         0},
        {"nor did it in the running total",
         {paid("p1", 3000, 100), refund("r1", "p1", STATE_FAILED, 1000, 150),
          refund_total("c", "p1", 1000, 151), paid("p2", 1900, 200)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         0},
        {"a refund stated as older than its payment waits for it",
         {paid("p1", 4900, 150), refund("r1", "p1", STATE_PAID, 1000, 200), paid("p2", 100, 300),
          refund("r2", "p2", STATE_PAID, 100, 100)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         5000,
         1100},
        {"a refund cannot be older than its payment, whatever their clocks say",
         {paid("p1", 4900, 101), refund("r1", "p1", STATE_PAID, 1000, 100)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         1000},
        {"nor its running total",
         {paid("p1", 4900, 101), refund_total("c", "p1", 4900, 100)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         4900},
        {"what happens at one moment happens together",
         {paid("p1", 4000, 100), paid("p2", 900, 120), refund("r1", "p1", STATE_PAID, 500, 119),
          paid("p3", 500, 120)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         5400,
         500},
    };
    CHECK(&o, rows);
    position p = evaluate_facts(
        &o, (fact[]){paid("p1", 3000, 100), paid("p2", 1900, 200), paid("p3", 1, 300)}, 3);
    assert_int_equal(p.paid_at_us, 200 * PO_SECOND_US);
    o = order_for(0); // nothing due is reached by a payment, not by a refund before it
    p = evaluate_facts(&o, (fact[]){paid("p1", 5, 200), refund("r1", "p1", STATE_PAID, 1, 100)}, 2);
    assert_int_equal(p.paid_at_us, 200 * PO_SECOND_US);
}

// FAULTS 25 (a second refund of a part, read as the whole), and report 35.
static void refunds_are_counted_per_payment(void **state) {
    (void)state;
    order o = order_for(4900);
    const row rows[] = {
        {"by ids",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PAID, 1000, 200),
          refund("r2", "p1", STATE_PAID, 1000, 300)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         2000},
        {"by running totals",
         {paid("p1", 4900, 100), refund_total("c", "p1", 1000, 200),
          refund_total("c", "p1", 2000, 300)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         2000},
        {"the running total that was stated last, for it may fall",
         {paid("p1", 4900, 100), refund_total("c", "p1", 2000, 200),
          refund_total("c", "p1", 1000, 300)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         1000},
        {"of two that were stated at once the larger",
         {paid("p1", 4900, 100), refund_total("c", "p1", 2000, 200),
          refund_total("c", "p1", 1000, 200)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         2000},
        {"by both",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PAID, 1000, 200),
          refund("r2", "p1", STATE_PAID, 1000, 300), refund_total("c", "p1", 1000, 200),
          refund_total("c", "p1", 2000, 300)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         2000},
        {"one id missing",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PAID, 1000, 200),
          refund_total("c", "p1", 2000, 300)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         2000},
        {"pending is not returned",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PENDING, 1000, 200)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         0},
        {"all of it is not above it",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PAID, 4900, 200)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         4900},
        {"the failed one is taken off the total",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PAID, 1000, 200),
          refund("r2", "p1", STATE_FAILED, 500, 210), refund_total("c", "p1", 1500, 220)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         1000},
        // Report 37: nothing to subtract from is no negative balance.
        {"of an unknown payment",
         {paid("p1", 4900, 100), refund("r1", "px", STATE_PAID, 1000, 200)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         0},
        {"of nothing",
         {refund("r1", "p1", STATE_PAID, 1000, 200)},
         ORDER_OPEN,
         VERDICT_NONE,
         "",
         4900,
         0,
         0},
        {"of an unpaid payment",
         {unpaid("p1", STATE_PENDING, 1), refund("r1", "p1", STATE_PAID, 1000, 200)},
         ORDER_OPEN,
         VERDICT_PENDING,
         "",
         4900,
         0,
         0},
    };
    CHECK(&o, rows);
}

#define AS_PAID(refunded) ORDER_PAID, VERDICT_QUALIFIED, "", 4900, 4900, refunded

// A running total T at time t explains, it never adds. A = all named refunds made until t, L = those
// of them that had not failed before t: T − A where T ≥ A, else T − L where that is positive.
static void a_running_total_explains_and_never_adds(void **state) {
    (void)state;
    order o = order_for(4900);
    const row rows[] = {
        {"nothing named: all of it",
         {paid("p1", 4900, 100), refund_total("c", "p1", 1000, 200)},
         AS_PAID(1000)},
        {"named at its very second",
         {paid("p1", 4900, 100), refund_total("c", "p1", 1000, 200),
          refund("r1", "p1", STATE_PAID, 1000, 200)},
         AS_PAID(1000)},
        {"named later is another one",
         {paid("p1", 4900, 100), refund_total("c", "p1", 1000, 200),
          refund("r1", "p1", STATE_PAID, 500, 201)},
         AS_PAID(1500)},
        {"a pending one is named, and not returned",
         {paid("p1", 4900, 100), refund_total("c", "p1", 1000, 200),
          refund("r1", "p1", STATE_PENDING, 1000, 150)},
         AS_PAID(0)},
        {"one of a word that nobody knows is named, too",
         {paid("p1", 4900, 100), refund_total("c", "p1", 1000, 200),
          refund("r1", "p1", STATE_UNSUPPORTED, 1000, 150)},
         AS_PAID(0)},
        {"failed, and the total keeps it",
         {paid("p1", 4900, 100), refund_total("c", "p1", 1500, 300),
          refund("r1", "p1", STATE_PAID, 1000, 150), failed("r2", "p1", 500, 160, 200)},
         AS_PAID(1000)},
        {"failed, and the total falls by it",
         {paid("p1", 4900, 100), refund_total("c", "p1", 1000, 300),
          refund("r1", "p1", STATE_PAID, 1000, 150), failed("r2", "p1", 500, 160, 200)},
         AS_PAID(1000)},
        {"failed before a total that states more than is alive",
         {paid("p1", 4900, 100), refund_total("c", "p1", 1200, 300),
          refund("r1", "p1", STATE_PAID, 1000, 150), failed("r2", "p1", 500, 160, 200)},
         AS_PAID(1200)},
        {"failed at the second of the total: it was in it still",
         {paid("p1", 4900, 100), refund_total("c", "p1", 1200, 200),
          refund("r1", "p1", STATE_PAID, 1000, 150), failed("r2", "p1", 500, 160, 200)},
         AS_PAID(1000)},
        {"failed at no known time: taken as alive, lest more be counted than was refunded",
         {paid("p1", 4900, 100), refund_total("c", "p1", 1200, 300),
          refund("r1", "p1", STATE_PAID, 1000, 150), refund("r2", "p1", STATE_FAILED, 500, 160)},
         AS_PAID(1000)},
        {"less than is named says nothing",
         {paid("p1", 4900, 100), refund_total("c", "p1", 300, 200),
          refund("r1", "p1", STATE_PAID, 1000, 150)},
         AS_PAID(1000)},
        {"of its own charge",
         {paid("p1", 4900, 100), refund_total("c1", "p1", 300, 200),
          of_charge(refund("r1", "p1", STATE_PAID, 1000, 150), "c2"),
          of_charge(refund("r2", "p1", STATE_PAID, 100, 150), "c1")},
         AS_PAID(1300)},
        {"a refund of no known charge may be of any",
         {paid("p1", 4900, 100), refund_total("c1", "p1", 300, 200),
          refund_total("c2", "p1", 400, 200), refund("r1", "p1", STATE_PAID, 300, 150)},
         AS_PAID(400)},
    };
    CHECK(&o, rows);
    position p = evaluate_facts(&o,
                                (fact[]){paid("p1", 4900, 100), refund_total("c", "p1", 1000, 200),
                                         refund("r1", "p1", STATE_PAID, 300, 150)},
                                3);
    assert_int_equal(p.unexplained, 700);
}

// What only a total states is dated by it: the walk may say paid, until the refund is named.
static void an_older_refund_shows_that_due_never_was_reached(void **state) {
    (void)state;
    order o = order_for(4900);
    const row rows[] = {
        {"by its total alone, stated after the top-up",
         {paid("p1", 3000, 100), paid("p2", 1900, 200), refund_total("c", "p1", 1000, 300)},
         AS_PAID(1000)},
        {"named, as older than the top-up",
         {paid("p1", 3000, 100), paid("p2", 1900, 200), refund_total("c", "p1", 1000, 300),
          refund("r1", "p1", STATE_PAID, 1000, 150)},
         ORDER_REVIEW,
         VERDICT_UNDERPAID,
         "underpaid",
         4900,
         4900,
         1000},
        {"made before, though it succeeded after",
         {paid("p1", 3000, 100), paid("p2", 1900, 200),
          refund("r1", "p1", STATE_PENDING, 1000, 150), refund("r1", "p1", STATE_PAID, 1000, 400)},
         ORDER_REVIEW,
         VERDICT_UNDERPAID,
         "underpaid",
         4900,
         4900,
         1000},
    };
    CHECK(&o, rows);
}

#define OVER(received, refunded) \
    ORDER_REVIEW, VERDICT_INCONSISTENT, "over_refunded", 4900, received, refunded

// More back than came is capped, and told; money ends it.
static void more_refunded_than_captured_is_told(void **state) {
    (void)state;
    order o = order_for(4900);
    const row rows[] = {
        {"by one refund",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PAID, 4901, 200)},
         OVER(4900, 4900)},
        {"by two",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PAID, 4900, 200),
          refund("r2", "p1", STATE_PAID, 1, 300)},
         OVER(4900, 4900)},
        {"by a running total",
         {paid("p1", 4900, 100), refund_total("c", "p1", 4901, 200)},
         OVER(4900, 4900)},
        {"of its own payment, whatever the others left",
         {paid("p1", 4900, 100), paid("p2", 100, 100), refund("r1", "p2", STATE_PAID, 6000, 200)},
         OVER(5000, 100)},
        {"of a short payment",
         {paid("p1", 10, 100), refund("r1", "p1", STATE_PAID, 11, 200)},
         OVER(10, 10)},
        {"one of them failed: ended",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PAID, 4900, 200),
          failed("r2", "p1", 1, 300, 400)},
         AS_PAID(4900)},
        {"a later payment is not enough",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PAID, 5000, 200), paid("p2", 4899, 300)},
         OVER(9799, 4900)},
        {"a later payment brings what is left to due: ended",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PAID, 5000, 200), paid("p2", 4900, 300)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         9800,
         4900},
        {"and again",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PAID, 5000, 200), paid("p2", 4900, 300),
          refund("r2", "p1", STATE_PAID, 1, 400)},
         OVER(9800, 4900)},
        {"a person's review outranks it",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PAID, 4901, 200),
          bare(FACT_MISMATCH, "route_conflict")},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "route_conflict",
         4900,
         4900,
         4900},
    };
    CHECK(&o, rows);
}

// FAULTS 54: only what lies above the price raises due; tax first, so that tax inside the price
// changes nothing.
static void tax_and_shipping_above_the_price_raise_due(void **state) {
    (void)state;
    order o = order_for(4900);
    fact exclusive = extras(paid("p1", 5831, 100), 931, 0);
    const struct {
        const char *name;
        fact facts[3];
        order_state state;
        int64_t due, received, refunded, tax, shipping;
    } rows[] = {
        {"inclusive", {extras(paid("p1", 4900, 100), 782, 0)}, ORDER_PAID, 4900, 4900, 0, 0, 0},
        {"exclusive", {exclusive}, ORDER_PAID, 5831, 5831, 0, 931, 0},
        {"tax and shipping",
         {extras(paid("p1", 6331, 100), 931, 500)},
         ORDER_PAID,
         6331,
         6331,
         0,
         931,
         500},
        {"more above the price than tax and shipping: only they",
         {extras(paid("p1", 7000, 100), 931, 500)},
         ORDER_PAID,
         6331,
         7000,
         0,
         931,
         500},
        {"some of them in the price: tax first",
         {extras(paid("p1", 5931, 100), 931, 500)},
         ORDER_PAID,
         5931,
         5931,
         0,
         931,
         100},
        {"paid twice: once",
         {exclusive, extras(paid("p2", 5831, 200), 931, 0)},
         ORDER_PAID,
         5831,
         11662,
         0,
         931,
         0},
        {"the largest of two",
         {exclusive, extras(paid("p2", 5400, 200), 0, 500)},
         ORDER_PAID,
         5831,
         11231,
         0,
         931,
         0},
        {"of two of one size that with more tax",
         {exclusive, extras(paid("p2", 5831, 200), 900, 31)},
         ORDER_PAID,
         5831,
         11662,
         0,
         931,
         0},
        {"partly refunded",
         {exclusive, refund("r1", "p1", STATE_PAID, 931, 200)},
         ORDER_PAID,
         5831,
         5831,
         931,
         931,
         0},
        {"the price alone came",
         {exclusive, paid("p1", 4900, 100)}, // and contradicts
         ORDER_REVIEW,
         5831,
         4900,
         0,
         931,
         0},
        {"short: what the session asked for is due",
         {extras(paid("p1", 5831, 100), 931, 0), refund("r1", "p1", STATE_PAID, 1, 100)},
         ORDER_PAID,
         5831,
         5831,
         1,
         931,
         0},
        {"not of an unpaid session",
         {unpaid("p1", STATE_PENDING, 1)},
         ORDER_OPEN,
         4900,
         0,
         0,
         0,
         0},
        {"in another currency they are nobody's",
         {in_unit(exclusive, EUR)},
         ORDER_REVIEW,
         4900,
         0,
         0,
         0,
         0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        position p = evaluate_facts(&o, rows[i].facts, 3);
        if (p.state != rows[i].state || p.due != rows[i].due || p.received != rows[i].received ||
            p.refunded != rows[i].refunded || p.tax != rows[i].tax ||
            p.shipping != rows[i].shipping)
            fail_msg("%s: %s due %lld received %lld refunded %lld tax %lld shipping %lld",
                     rows[i].name, order_state_name(p.state), (long long)p.due,
                     (long long)p.received, (long long)p.refunded, (long long)p.tax,
                     (long long)p.shipping);
    }
    o = order_for(5831); // in the shop's own price
    position p = evaluate_facts(&o, &exclusive, 1);
    assert_int_equal(p.state, ORDER_PAID);
    assert_int_equal(p.due, 5831);
    assert_int_equal(p.tax + p.shipping, 0);
}

static void a_discount_leaves_what_is_above_the_price(void **state) {
    (void)state;
    order o = order_for(4900);
    o.max_discount = 4900;
    fact shipped = discounted(extras(paid("p1", 500, 100), 0, 500), 4900);
    position p = evaluate_facts(&o, &shipped, 1); // shipping with a 100 % coupon
    assert_int_equal(p.state, ORDER_PAID);
    assert_int_equal(p.due, 500);
    assert_int_equal(p.shipping, 500);
    fact taxed = discounted(extras(paid("p1", 4641, 100), 741, 0), 1000);
    p = evaluate_facts(&o, &taxed, 1);
    assert_int_equal(p.state, ORDER_PAID);
    assert_int_equal(p.due, 4641);
    assert_int_equal(p.tax, 741);
    o.max_discount = 999; // not allowed: the price and the tax are due
    p = evaluate_facts(&o, &taxed, 1);
    assert_int_equal(p.state, ORDER_REVIEW);
    assert_string_equal(p.reason, "discount_not_allowed");
    assert_int_equal(p.due, 5641);
    o.max_discount = 4900;
    fact nothing = waived(discounted(extras(paid("cs1", 0, 100), 100, 200), 9900));
    p = evaluate_facts(&o, &nothing, 1); // asks for nothing, whatever its list price
    assert_int_equal(p.state, ORDER_PAID);
    assert_int_equal(p.due, 0);
    assert_int_equal(p.tax + p.shipping, 0);
}

static void a_discount_within_the_limit_lowers_due(void **state) {
    (void)state;
    order o = order_for(4900);
    o.max_discount = 1000;
    const row rows[] = {
        {"allowed",
         {discounted(paid("p1", 3900, 100), 1000)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         3900,
         3900,
         0},
        {"too much",
         {discounted(paid("p1", 3899, 100), 1001)},
         ORDER_REVIEW,
         VERDICT_UNDERPAID,
         "discount_not_allowed",
         4900,
         3899,
         0},
        {"short even so",
         {discounted(paid("p1", 3000, 100), 1001)},
         ORDER_REVIEW,
         VERDICT_UNDERPAID,
         "underpaid",
         4900,
         3000,
         0},
        {"short of the lower due",
         {discounted(paid("p1", 3899, 100), 1000)},
         ORDER_REVIEW,
         VERDICT_UNDERPAID,
         "underpaid",
         3900,
         3899,
         0},
        {"too much, topped up",
         {discounted(paid("p1", 3899, 100), 1001), paid("p2", 1001, 200)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         0},
        {"the largest counts",
         {discounted(paid("p1", 2000, 100), 500), discounted(paid("p2", 2000, 200), 900)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4000,
         4000,
         0},
        {"waived, but the limit is less",
         {waived(paid("p1", 0, 100))},
         ORDER_REVIEW,
         VERDICT_UNDERPAID,
         "discount_not_allowed",
         4900,
         0,
         0},
    };
    CHECK(&o, rows);
    o.max_discount = 3000;
    const row beside[] = {
        {"waived beside a payment: the rest",
         {waived(paid("cs1", 0, 100)), paid("p2", 1900, 90)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         1900,
         1900,
         0},
    };
    CHECK(&o, beside);
    o.max_discount = 4900;
    const row all[] = {
        // Report 26: a 100 % coupon.
        {"waived", {waived(paid("cs1", 0, 100))}, ORDER_PAID, VERDICT_QUALIFIED, "", 0, 0, 0},
        {"waived, stating another list price",
         {waived(discounted(paid("cs1", 0, 100), 9900))},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         0,
         0,
         0},
        {"nothing due is not paid by itself",
         {unpaid("p1", STATE_PENDING, 1)},
         ORDER_OPEN,
         VERDICT_PENDING,
         "",
         4900,
         0,
         0},
    };
    CHECK(&o, all);
    o = order_for(0);
    const row free_of_charge[] = {
        {"no payment", {{0}}, ORDER_OPEN, VERDICT_NONE, "", 0, 0, 0},
        {"a refund alone",
         {refund("r1", "p1", STATE_PAID, 1, 1)},
         ORDER_OPEN,
         VERDICT_NONE,
         "",
         0,
         0,
         0},
        {"paid nothing", {paid("p1", 0, 100)}, ORDER_PAID, VERDICT_QUALIFIED, "", 0, 0, 0},
        {"paid, amount unknown",
         {paid("p1", NO_AMOUNT, 100)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "amount_missing",
         0,
         0,
         0},
    };
    CHECK(&o, free_of_charge);
}

// Reviews that only a person ends outrank "paid".
static void contradictions_and_strangers_are_reviewed(void **state) {
    (void)state;
    order o = order_for(4900);
    fact canceled = unpaid("p1", STATE_CANCELED, 4);
    const row rows[] = {
        {"two amounts: the smaller",
         {paid("p1", 4900, 100), paid("p1", 5000, 100)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "contradiction",
         4900,
         4900,
         0},
        {"settled and canceled",
         {paid("p1", 4900, 100), canceled},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "contradiction",
         4900,
         4900,
         0},
        {"canceled and settled",
         {canceled, paid("p1", 4900, 100)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "contradiction",
         4900,
         4900,
         0},
        {"another payment canceled is none",
         {paid("p2", 4900, 100), canceled},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         0},
        {"two currencies of one payment",
         {paid("p1", 4900, 100), in_unit(paid("p1", 4900, 100), EUR)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "contradiction",
         4900,
         4900,
         0},
        {"two refund amounts: the larger",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PAID, 10, 200),
          refund("r1", "p1", STATE_PAID, 20, 200)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "contradiction",
         4900,
         4900,
         20},
        {"two amounts of a failed refund: the larger is named",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_FAILED, 10, 200),
          refund("r1", "p1", STATE_FAILED, 20, 200), refund_total("c", "p1", 100, 210)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "contradiction",
         4900,
         4900,
         80},
        {"refunded in another currency",
         {paid("p1", 4900, 100), in_unit(refund("r1", "p1", STATE_PAID, 10, 200), EUR)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "foreign_currency",
         4900,
         4900,
         0},
        // Report 41: 100 VND for 100 USD.
        {"another currency counts 0",
         {in_unit(paid("p1", 4900, 100), EUR)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "foreign_currency",
         4900,
         0,
         0},
        {"beside a full payment",
         {paid("p2", 4900, 100), in_unit(paid("p1", 4900, 100), EUR)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "foreign_currency",
         4900,
         4900,
         0},
        {"another account",
         {paid("p1", 4900, 100), bare(FACT_MISMATCH, "foreign_account")},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "foreign_account",
         4900,
         4900,
         0},
        // FAULTS 58: what is wrong is the reference's account, not the event's.
        {"another account of the order",
         {bare(FACT_MISMATCH, "registered_elsewhere")},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "registered_elsewhere",
         4900,
         0,
         0},
        // FAULTS 37: evidence is no verdict.
        {"named by another order's event",
         {bare(FACT_MISMATCH, "named_elsewhere")},
         ORDER_OPEN,
         VERDICT_NONE,
         "",
         4900,
         0,
         0},
        {"named by another order's event, and paid",
         {paid("p1", 4900, 100), bare(FACT_MISMATCH, "named_elsewhere")},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         0},
        {"two routes",
         {bare(FACT_MISMATCH, "route_conflict")},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "route_conflict",
         4900,
         0,
         0},
        {"another profile",
         {bare(FACT_MISMATCH, "foreign_profile")},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "foreign_profile",
         4900,
         0,
         0},
        {"unlisted evidence",
         {bare(FACT_MISMATCH, "odd")},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "mismatch",
         4900,
         0,
         0},
        {"amount missing",
         {paid("p1", NO_AMOUNT, 100)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "amount_missing",
         4900,
         0,
         0},
        {"a known amount beats a missing one",
         {paid("p1", NO_AMOUNT, 100), paid("p1", 4900, 100)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         0},
        {"others paid enough",
         {paid("p1", NO_AMOUNT, 100), paid("p2", 4900, 100)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         0},
    };
    CHECK(&o, rows);
    o.canceled_by_shop = true;
    const row canceled_rows[] = {
        {"canceled", {{0}}, ORDER_CANCELED, VERDICT_CANCELED, "canceled_by_shop", 4900, 0, 0},
        {"pending after cancel",
         {unpaid("p1", STATE_PENDING, 1)},
         ORDER_CANCELED,
         VERDICT_CANCELED,
         "canceled_by_shop",
         4900,
         0,
         0},
        {"paid after cancel",
         {paid("p1", 4900, 100)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "paid_after_cancel",
         4900,
         4900,
         0},
        {"short after cancel",
         {paid("p1", 1, 100)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "paid_after_cancel",
         4900,
         1,
         0},
        {"paid after cancel, refunded",
         {paid("p1", 4900, 100), refund("r1", "p1", STATE_PAID, 4900, 200)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "paid_after_cancel",
         4900,
         4900,
         4900},
        {"amount unknown",
         {paid("p1", NO_AMOUNT, 100)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "paid_after_cancel",
         4900,
         0,
         0},
    };
    CHECK(&o, canceled_rows);
}

// P7: weaker facts stand behind stronger ones; P12: an unknown state is visible and never paid.
static void without_money_the_strongest_fact_speaks(void **state) {
    (void)state;
    order o = order_for(4900);
    fact pending = unpaid("p1", STATE_PENDING, 1), held = unpaid("p2", STATE_HELD, 2);
    fact failed = unpaid("p3", STATE_FAILED, 2), expired = unpaid("p4", STATE_EXPIRED, 3);
    fact canceled = unpaid("p5", STATE_CANCELED, 3), odd = unpaid("p6", STATE_UNSUPPORTED, 0);
    fact expiry = bare(FACT_EXPIRY, "");
    const row rows[] = {
        {"pending",
         {pending, failed, expired, canceled, odd, expiry},
         ORDER_OPEN,
         VERDICT_PENDING,
         "",
         4900,
         0,
         0},
        {"held", {held, failed, expired}, ORDER_OPEN, VERDICT_PENDING, "", 4900, 0, 0},
        {"session expired",
         {failed, expired, canceled, odd},
         ORDER_CANCELED,
         VERDICT_CANCELED,
         "expired",
         4900,
         0,
         0},
        {"failed", {failed, canceled, odd}, ORDER_OPEN, VERDICT_FAILED, "", 4900, 0, 0},
        {"canceled", {canceled, odd}, ORDER_CANCELED, VERDICT_CANCELED, "canceled", 4900, 0, 0},
        {"unsupported", {odd}, ORDER_OPEN, VERDICT_UNSUPPORTED, "", 4900, 0, 0},
        {"order expired", {expiry}, ORDER_CANCELED, VERDICT_CANCELED, "expired", 4900, 0, 0},
        {"money after expiry",
         {expiry, paid("p1", 4900, 600)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         0},
        {"pending after paid",
         {paid("p1", 4900, 100), unpaid("p1", STATE_PENDING, 1)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         0},
        {"odd word after paid",
         {paid("p1", 4900, 100), unpaid("p1", STATE_UNSUPPORTED, 0)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         0},
        {"paid after failed",
         {unpaid("p1", STATE_FAILED, 2), paid("p1", 4900, 100)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         4900,
         4900,
         0},
    };
    CHECK(&o, rows);
}

// FAULTS 36: a clock that ran out ends the order, whatever came of the attempts before. Only a
// payment that is still on its way keeps it open, until that one is final too.
static void a_clock_that_ran_out_ends_the_order(void **state) {
    (void)state;
    order o = order_for(4900);
    fact expiry = bare(FACT_EXPIRY, ""), pending = unpaid("p0", STATE_PENDING, 1);
    const fact ends[] = {unpaid("p1", STATE_FAILED, 2), unpaid("p2", STATE_CANCELED, 3),
                         unpaid("p3", STATE_EXPIRED, 3), unpaid("p4", STATE_UNSUPPORTED, 0)};
    for (unsigned mix = 0; mix < 16; mix++) {
        row rows[] = {
            {"the order's clock",
             {expiry},
             ORDER_CANCELED,
             VERDICT_CANCELED,
             "expired",
             4900,
             0,
             0},
            {"and a payment on its way",
             {expiry, pending},
             ORDER_OPEN,
             VERDICT_PENDING,
             "",
             4900,
             0,
             0},
            {"the session's clock",
             {ends[2]},
             ORDER_CANCELED,
             VERDICT_CANCELED,
             "expired",
             4900,
             0,
             0},
        };
        for (size_t r = 0; r < 3; r++)
            for (size_t i = 0, n = r == 1 ? 2 : 1; i < 4; i++)
                if (mix & 1u << i)
                    rows[r].facts[n++] = ends[i];
        CHECK(&o, rows);
    }
}

// P11: three independent facts.
static void late_partial_and_over_are_independent(void **state) {
    (void)state;
    order o = order_for(4900);
    o.expires_at_us = 150 * PO_SECOND_US;
    static const struct {
        int64_t amount, at;
        bool late, partial, over;
    } rows[] = {{4900, 150, false, false, false}, {4900, 151, true, false, false},
                {4899, 150, false, true, false},  {4899, 151, true, true, false},
                {4901, 150, false, false, true},  {4901, 151, true, false, true},
                {0, 151, true, false, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        position p = evaluate_facts(&o, (fact[]){paid("p1", rows[i].amount, rows[i].at)}, 1);
        assert_int_equal(p.late, rows[i].late);
        assert_int_equal(p.partial, rows[i].partial);
        assert_int_equal(p.over, rows[i].over);
    }
    o.expires_at_us = 0;
    assert_false(evaluate_facts(&o, (fact[]){paid("p1", 4900, 151)}, 1).late);
}

// P9: exact from a coarser unit of the currency, never to a coarser one.
static void units_rescale_exactly_or_are_foreign(void **state) {
    (void)state;
    po_unit sat = {.currency = "BTC", .exponent = 8}, msat = {.currency = "BTC", .exponent = 11};
    order o = order_for(1500000);
    o.price.unit = msat;
    const row rows[] = {
        {"same",
         {in_unit(paid("p1", 1500000, 100), msat)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         1500000,
         1500000,
         0},
        {"coarser",
         {in_unit(paid("p1", 1500, 100), sat)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         1500000,
         1500000,
         0},
        {"one satoshi short",
         {in_unit(paid("p1", 1499, 100), sat)},
         ORDER_REVIEW,
         VERDICT_UNDERPAID,
         "underpaid",
         1500000,
         1499000,
         0},
        {"one payment in two units that say the same counts once",
         {in_unit(paid("p1", 1500, 100), sat), in_unit(paid("p1", 1500000, 100), msat)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         1500000,
         1500000,
         0},
        {"that say different things",
         {in_unit(paid("p1", 1500, 100), sat), in_unit(paid("p1", 1500001, 100), msat)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "contradiction",
         1500000,
         1500000,
         0},
        {"beyond 64 bits",
         {in_unit(paid("p1", INT64_MAX / 999, 100), sat)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "overflow",
         1500000,
         INT64_MAX,
         0},
    };
    CHECK(&o, rows);
    for (int i = 0; i < 2; i++) { // and at the earlier of its two times
        position p = evaluate_facts(&o,
                                    (fact[]){in_unit(paid("p1", 1500, i ? 200 : 100), sat),
                                             in_unit(paid("p1", 1500000, i ? 100 : 200), msat)},
                                    2);
        assert_int_equal(p.paid_at_us, 100 * PO_SECOND_US);
    }
    o.price = (po_money){1500, sat};
    const row finer[] = {{"finer",
                          {in_unit(paid("p1", 1500000, 100), msat)},
                          ORDER_REVIEW,
                          VERDICT_INCONSISTENT,
                          "foreign_currency",
                          1500,
                          0,
                          0}};
    CHECK(&o, finer);
}

static void amounts_near_the_end_of_64_bits_are_reviewed(void **state) {
    (void)state;
    order o = order_for(INT64_MAX);
    const row rows[] = {
        {"the largest fits",
         {paid("p1", INT64_MAX, 100)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         INT64_MAX,
         INT64_MAX,
         0},
        {"one more does not",
         {paid("p1", INT64_MAX, 100), paid("p2", 1, 100)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "overflow",
         INT64_MAX,
         INT64_MAX,
         0},
        {"refunded beyond",
         {paid("p1", INT64_MAX, 100), paid("p2", INT64_MAX, 100),
          refund("r1", "p1", STATE_PAID, INT64_MAX, 200),
          refund("r2", "p1", STATE_PAID, INT64_MAX, 200),
          refund("r3", "p2", STATE_PAID, INT64_MAX, 200)},
         ORDER_REVIEW,
         VERDICT_INCONSISTENT,
         "overflow",
         INT64_MAX,
         INT64_MAX,
         INT64_MAX},
        {"failed beyond",
         {paid("p1", INT64_MAX, 100), refund("r1", "p1", STATE_FAILED, INT64_MAX, 200),
          refund("r2", "p1", STATE_FAILED, INT64_MAX, 200)},
         ORDER_PAID,
         VERDICT_QUALIFIED,
         "",
         INT64_MAX,
         INT64_MAX,
         0},
        {"a discount beyond the price",
         {discounted(waived(paid("p1", 0, 100)), INT64_MAX)},
         ORDER_REVIEW,
         VERDICT_UNDERPAID,
         "discount_not_allowed",
         INT64_MAX,
         0,
         0},
    };
    CHECK(&o, rows);
    o = order_for(0);
    o.max_discount = INT64_MAX;
    const row discount[] = {{"due never falls below 0",
                             {discounted(paid("p1", 5, 100), INT64_MAX)},
                             ORDER_PAID,
                             VERDICT_QUALIFIED,
                             "",
                             0,
                             5,
                             0}};
    CHECK(&o, discount);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paid_means_that_due_was_reached_at_some_moment),
        cmocka_unit_test(refunds_are_counted_per_payment),
        cmocka_unit_test(a_running_total_explains_and_never_adds),
        cmocka_unit_test(an_older_refund_shows_that_due_never_was_reached),
        cmocka_unit_test(more_refunded_than_captured_is_told),
        cmocka_unit_test(tax_and_shipping_above_the_price_raise_due),
        cmocka_unit_test(a_discount_leaves_what_is_above_the_price),
        cmocka_unit_test(a_discount_within_the_limit_lowers_due),
        cmocka_unit_test(contradictions_and_strangers_are_reviewed),
        cmocka_unit_test(without_money_the_strongest_fact_speaks),
        cmocka_unit_test(a_clock_that_ran_out_ends_the_order),
        cmocka_unit_test(late_partial_and_over_are_independent),
        cmocka_unit_test(units_rescale_exactly_or_are_foreign),
        cmocka_unit_test(amounts_near_the_end_of_64_bits_are_reviewed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
