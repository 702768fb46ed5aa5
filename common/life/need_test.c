#include "life/need.h"
#include "life/life.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

// A dependency that is there or not, and counts the questions.
typedef struct thing {
    atomic_bool there;
    atomic_int asked;
} thing;

static bool ask(void *arg, po_err *err) {
    thing *self = arg;
    atomic_fetch_add(&self->asked, 1);
    return atomic_load(&self->there) || po_fail(err, PO_RETRY, "gone", "nobody there");
}

// Long, since it is for faults alone.
static void until(bool (*is)(void *arg), void *arg) {
    for (int i = 0; i < 6000 && !is(arg); i++)
        po_life_wait(10);
    assert_true(is(arg));
}

static bool is_away(void *need) {
    return po_need_away(need, NULL);
}

static bool is_ready(void *arg) {
    (void)arg;
    return po_ready();
}

// FAULTS 62: readiness means that what is used was reached once; later outages change nothing.
static void readiness_waits_for_each_need_once(void **state) {
    (void)state;
    static thing database, brokers;
    po_need *d = po_need_new("database", ask, &database), *b = po_need_new("kafka", ask, &brokers);
    po_need_demand(b, false);
    po_ready_set(true);
    until(is_away, d);
    const char *missing = NULL;
    assert_false(po_ready());
    assert_false(po_needs_reached(&missing));
    assert_string_equal(missing, "database");
    po_need_state s;
    assert_true(po_need_away(d, &s));
    assert_int_equal(s.last_success_us, 0);
    assert_true(s.away_since_us > 0);
    assert_string_equal(s.why.code, "gone");

    atomic_store(&database.there, true);
    until(is_ready, NULL);
    assert_false(po_need_away(d, NULL));
    assert_true(po_needs_away(&s)); // the brokers, which nobody waits for yet
    assert_string_equal(s.name, "kafka");
    po_need_demand(b, true);
    assert_true(po_ready());

    atomic_store(&database.there, false);
    until(is_away, d); // though nobody uses it
    assert_true(po_ready());
    po_need_state all[PO_NEEDS_MOST];
    assert_int_equal(po_needs_list(all, PO_NEEDS_MOST), 2);
    assert_true(all[0].last_success_us > 0 && all[0].away_since_us >= all[0].last_success_us);
    po_need_end(d);
    po_need_end(b);
    po_ready_set(false);
}

static struct { atomic_bool inside, go; } slow;

static bool be_slow(void *arg, po_err *err) {
    (void)arg, (void)err;
    atomic_store(&slow.inside, true);
    while (!atomic_load(&slow.go))
        po_life_wait(1);
    atomic_store(&slow.inside, false);
    return true;
}

static void *let_go(void *arg) {
    po_life_wait(20);
    atomic_store(&slow.go, true);
    return arg;
}

static void a_need_that_has_ended_is_asked_no_more(void **state) {
    (void)state;
    static thing other = {.there = true};
    pthread_t thread;
    po_need *need = po_need_new("slow", be_slow, NULL), *o = po_need_new("other", ask, &other);
    while (!atomic_load(&slow.inside))
        po_life_wait(1);
    assert_int_equal(pthread_create(&thread, NULL, let_go, NULL), 0);
    po_need_end(need);
    assert_false(atomic_load(&slow.inside));
    pthread_join(thread, NULL);
    po_need_end(o);
    int asked = atomic_load(&other.asked);
    po_life_wait(50);
    assert_int_equal(atomic_load(&other.asked), asked);
    po_need_end(NULL);
    assert_false(po_need_away(NULL, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readiness_waits_for_each_need_once),
        cmocka_unit_test(a_need_that_has_ended_is_asked_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
